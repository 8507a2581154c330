"""The expiry rule and the fold: who holds an issue, from its cards alone."""

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.core.card import Card, CardState, RevokeMark, parse_mark, render_card, render_excuse
from dibs.core.eligibility import count_attempts
from dibs.core.fold import (
    Folded,
    FoldRules,
    Marks,
    PostedCard,
    PostedRevoke,
    Won,
    confirmed,
    counted_in_time,
    expiry,
    fold,
    lease_of,
    prove,
    read_marks,
    shows_ending,
    standing_on_comments,
    tries_on_comments,
    tries_on_picture,
    without_run,
)
from dibs.core.ids import Fence, HolderId, RunId, StageName, later
from dibs.core.issue import Comment
from dibs.core.lease import Ending, Outcome, Record, Revocation, Try
from dibs.core.presets import STAGES

from .builders import (
    REF,
    RULES,
    at,
    bid,
    edited,
    make_card,
    make_comment,
    make_lease,
    make_snapshot,
    posted,
    posted_revoke,
    revoke,
    s,
    shown_by_another,
)

SETTLED = FoldRules(settle=s(2))


def folded(*comments, rules=RULES):
    return fold(read_marks(comments, rules), rules)


def current_run(*comments, rules=RULES):
    found = folded(*comments, rules=rules).current
    return None if found is None else found.card.run


def standing(*comments, now, labels=("stage:ready", "claimed"), rules=RULES, apart_from=None):
    snapshot = make_snapshot(comments, now=now, labels=labels)
    return standing_on_comments(snapshot, rules, apart_from=apart_from)


# Section 3: the expiry of one card, a row per branch; ttl 20


@pytest.mark.parametrize(
    ("state", "created", "prev", "updated", "in_time", "ends"),
    [
        ("bid", 0, None, 0, True, 20),
        ("bid", 5, None, 5, True, 25),
        ("bid", 0, None, 90, True, 20),  # touched by somebody else: not an edit by its holder
        ("held", 0, 20, 3, True, 23),
        ("held", 0, 20, 19, True, 39),
        ("held", 0, 20, 20, False, 20),  # the tie is too late
        ("held", 0, 20, 21, False, 20),
        ("held", 0, 33, 32, True, 52),
        ("held", 0, 33, 33, False, 33),
        ("held", 0, 33, 500, False, 33),
        ("released", 0, 20, 3, True, 3),
        ("released", 0, 20, 19, True, 19),
        ("released", 0, 20, 20, False, 20),
        ("released", 0, 20, 21, False, 20),
        ("conceded", 0, 20, 3, True, 3),
        ("conceded", 0, 20, 19, True, 19),
        ("conceded", 0, 20, 20, False, 20),
        ("conceded", 0, 20, 21, False, 20),
    ],
)
def test_a_card_expires_as_the_protocol_says(state, created, prev, updated, in_time, ends):
    card = posted(make_card("a", state, prev=prev), 1, created, updated)
    assert counted_in_time(card) is in_time
    assert expiry(card, (), RULES) == at(ends)
    assert expiry(card, (), SETTLED) == at(ends)  # settling is for revokes only


@pytest.mark.parametrize("updated", [7, 8, 19, 20, 500])
def test_saying_that_an_ending_is_shown_moves_neither_its_end_nor_its_outcome(updated):
    """The second edit carries the moment of the first as `prev`, and may land at any time."""
    decided = edited("a", "released", 1, 0, prev=20, updated=7, outcome="failed")
    shown = edited("a", "released", 1, 0, prev=7, updated=updated, outcome="failed", shown=True)
    assert folded(shown).expires_at == folded(decided).expires_at == at(7)
    before, after = standing(decided, now=500), standing(shown, now=500)
    assert after == replace(before, record=replace(before.record, painted=True))


@pytest.mark.parametrize("prev", [8, 20, 10**9])
def test_a_shown_card_whose_prev_lies_ahead_keeps_nobody_off(prev):
    """No server stamps that; a card written by hand must not lock an issue for years."""
    odd = edited("a", "released", 1, 0, prev=prev, updated=7, outcome="advanced", shown=True)
    assert folded(odd).expires_at == at(7)
    assert current_run(odd, bid("b", 2, 7)) == "b"


@pytest.mark.parametrize(
    ("revoked", "force", "counts"),
    [(3, False, True), (8, True, True), (7, True, False), (6, True, False)],
)
def test_a_revoke_caps_a_shown_ending_as_it_capped_the_decision(revoked, force, counts):
    decided = edited("a", "released", 1, 0, prev=20, updated=7, outcome="advanced")
    shown = edited("a", "released", 1, 0, prev=7, updated=30, outcome="advanced", shown=True)
    word = revoke("a", 2, revoked, force=force)
    for card in (decided, shown):
        found = standing(card, word, now=40)
        assert found.record.lease.expires_at == at(7 if counts else revoked)
        assert (found.record.ending is not None) is counts
        assert [attempt.outcome for attempt in found.tries] == ["advanced" if counts else None]


@pytest.mark.parametrize(
    ("state", "prev", "updated", "revokes", "ends"),
    [
        # a graceful revoke: revoke.created + ttl (20) + settle (2), and never later
        ("bid", None, 0, [(0, False)], 20),  # its own end comes first
        ("held", 20, 3, [(0, False)], 22),
        ("held", 20, 3, [(1, False)], 23),  # the tie
        ("held", 20, 3, [(10, False)], 23),
        ("held", 60, 59, [(30, False)], 52),  # a holder that renews and does not read
        ("held", 60, 59, [(50, False)], 72),
        ("held", 60, 59, [(90, False)], 79),  # too late to matter
        ("released", 60, 45, [(30, False)], 45),
        ("released", 60, 58, [(30, False)], 52),
        ("conceded", 60, 58, [(30, False)], 52),
        ("held", 20, 25, [(10, False)], 20),
        # a forced one: revoke.created, at once
        ("bid", None, 0, [(7, True)], 7),
        ("held", 20, 3, [(10, True)], 10),
        ("held", 20, 3, [(23, True)], 23),
        ("held", 20, 3, [(24, True)], 23),
        ("released", 20, 3, [(10, True)], 3),
        ("released", 20, 12, [(10, True)], 10),
        # several: the earliest cap holds, in whatever order they are listed
        ("held", 60, 59, [(30, False), (20, False)], 42),
        ("held", 60, 59, [(20, False), (30, False)], 42),
        ("held", 60, 59, [(30, False), (40, True)], 40),
        ("held", 60, 59, [(40, True), (30, False)], 40),
        ("held", 60, 59, [(55, True), (30, False)], 52),
    ],
)
def test_a_revoke_caps_the_expiry_and_never_extends_it(state, prev, updated, revokes, ends):
    card = posted(make_card("a", state, prev=prev), 1, 0, updated)
    found = [posted_revoke("a", created, force=force) for created, force in revokes]
    assert expiry(card, found, SETTLED) == at(ends)


@pytest.mark.parametrize(
    ("state", "proved"), [("bid", False), ("held", True), ("released", True), ("conceded", False)]
)
def test_only_a_held_or_released_card_was_ever_confirmed(state, proved):
    prev = None if state == "bid" else 20
    assert confirmed(make_card(state=state, prev=prev)) is proved


@pytest.mark.parametrize(
    ("expires", "now", "live"), [(20, 19, True), (20, 20, False), (20, 21, False), (None, 0, False)]
)
def test_a_lease_is_live_strictly_before_its_expiry(expires, now, live):
    assert Folded(None, None if expires is None else at(expires)).live(at(now)) is live


# Section 3: the fold


def test_no_cards_no_holder():
    assert folded() == Folded(None, None)
    assert folded(make_comment("just talk", 1, 0)) == Folded(None, None)


CASES = [
    ("the only bid", [bid("a", 1, 0)], "a", 20),
    ("the earlier of two", [bid("a", 1, 0), bid("b", 2, 1)], "a", 20),
    ("the lower id in the same second", [bid("a", 1, 0), bid("b", 2, 0)], "a", 20),
    (
        "the lower id, however the ids are spread",
        [bid("a", 900, 0), bid("b", 901, 0), bid("c", 902, 0)],
        "a",
        20,
    ),
    ("time before id", [bid("a", 9, 0), bid("b", 2, 1)], "a", 20),
    ("a bid at the very expiry", [bid("a", 1, 0), bid("b", 2, 20)], "b", 40),
    ("a bid just before the expiry", [bid("a", 1, 0), bid("b", 2, 19)], "a", 20),
    (
        "a bid created while another was in force never counts, not even afterwards",
        [bid("a", 1, 0), bid("b", 2, 10), bid("c", 3, 25)],
        "c",
        45,
    ),
    (
        "nor does it block the one after it",
        [bid("a", 1, 0), bid("b", 2, 19), bid("c", 3, 20)],
        "c",
        40,
    ),
    (
        "a confirmed card takes over",
        [bid("a", 1, 0), edited("b", "held", 2, 5, prev=25, updated=6)],
        "b",
        26,
    ),
    (
        "a released card was confirmed",
        [bid("a", 1, 0), edited("b", "released", 2, 5, prev=25, updated=6)],
        "b",
        6,
    ),
    (
        "a concession in somebody else's time changes nothing",
        [
            edited("a", "held", 1, 0, prev=20, updated=2),
            edited("b", "conceded", 2, 1, prev=21, updated=3),
        ],
        "a",
        22,
    ),
    (
        "a concession of the current bid ends it when it lands, not before",
        [edited("a", "conceded", 1, 0, prev=20, updated=6), bid("b", 2, 5)],
        "a",
        6,
    ),
    (
        "and whoever comes after it may hold",
        [edited("a", "conceded", 1, 0, prev=20, updated=6), bid("b", 2, 6)],
        "b",
        26,
    ),
    (
        "a concession is no erasure: the bid it blocked stays blocked",
        [edited("a", "conceded", 1, 0, prev=20, updated=6), bid("b", 2, 3), bid("c", 3, 7)],
        "c",
        27,
    ),
    (
        "a renewed lease blocks as long as it is renewed",
        [edited("a", "held", 1, 0, prev=95, updated=90), bid("b", 2, 50), bid("c", 3, 109)],
        "a",
        110,
    ),
    (
        "a late beat revives nothing",
        [edited("a", "held", 1, 0, prev=20, updated=25), bid("b", 2, 22)],
        "b",
        42,
    ),
    (
        "a beat in the very second of the expiry revives nothing",
        [edited("a", "held", 1, 0, prev=20, updated=20), bid("b", 2, 20)],
        "b",
        40,
    ),
    (
        "a late release ends nothing that was not over",
        [edited("a", "released", 1, 0, prev=20, updated=25), bid("b", 2, 22)],
        "b",
        42,
    ),
    (
        "a released lease frees at once",
        [edited("a", "released", 1, 0, prev=20, updated=4), bid("b", 2, 4)],
        "b",
        24,
    ),
    (
        "a graceful revoke frees one ttl later",
        [edited("a", "held", 1, 0, prev=60, updated=59), revoke("a", 2, 30), bid("b", 3, 49)],
        "a",
        50,
    ),
    (
        "and then another may bid",
        [edited("a", "held", 1, 0, prev=60, updated=59), revoke("a", 2, 30), bid("b", 3, 50)],
        "b",
        70,
    ),
    (
        "a forced revoke frees at once",
        [
            edited("a", "held", 1, 0, prev=60, updated=59),
            revoke("a", 2, 30, force=True),
            bid("b", 3, 30),
        ],
        "b",
        50,
    ),
    (
        "a revoke names a run and hits no other",
        [
            edited("a", "released", 1, 0, prev=20, updated=4),
            bid("b", 2, 5),
            revoke("a", 3, 6, force=True),
        ],
        "b",
        25,
    ),
    (
        "a card that asks for too much time is no card",
        [bid("a", 1, 0, ttl=86_401), bid("b", 2, 5)],
        "b",
        25,
    ),
    ("a card of no time is no card", [bid("a", 1, 0, ttl=0), bid("b", 2, 5)], "b", 25),
    (
        "a stranger's card blocks nobody",
        [bid("a", 1, 0, by_writer=False), bid("b", 2, 5)],
        "b",
        25,
    ),
    (
        "a stranger's confirmed card takes nothing",
        [bid("a", 1, 0), edited("x", "held", 2, 5, prev=25, updated=6, by_writer=False)],
        "a",
        20,
    ),
    (
        "a stranger's revoke frees nothing",
        [bid("a", 1, 0), revoke("a", 2, 3, force=True, by_writer=False), bid("b", 3, 5)],
        "a",
        20,
    ),
    (
        "a card of another version is left alone",
        [make_comment("<!-- claim run=x ttl=60s v=2 -->", 1, 0), bid("b", 2, 5)],
        "b",
        25,
    ),
    (
        "a quoted card is no card",
        [make_comment("> <!-- claim run=x ttl=60s -->", 1, 0), bid("b", 2, 5)],
        "b",
        25,
    ),
    (
        "the seed's card counts",
        [make_comment("<!-- claim run=x ttl=60s --> claimed by worker-7", 1, 0), bid("b", 2, 5)],
        "x",
        60,
    ),
]


@pytest.mark.parametrize(
    ("comments", "run", "ends"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
@pytest.mark.parametrize("order", ["as posted", "backwards"])
def test_the_fold_names_one_current_card(comments, run, ends, order):
    found = folded(*(comments if order == "as posted" else reversed(comments)))
    assert found.current.card.run == run
    assert found.expires_at == at(ends)
    assert found.live(at(ends - 1))
    assert not found.live(at(ends))


@pytest.mark.parametrize(("asked", "counts"), [(60, True), (61, False)])
def test_the_longest_ttl_is_the_readers_rule(asked, counts):
    rules = FoldRules(max_ttl=s(60))
    assert current_run(bid("a", 1, 0, ttl=asked), rules=rules) == ("a" if counts else None)


def test_a_card_of_no_time_is_no_card_even_if_it_is_the_only_one():
    assert folded(bid("a", 1, 0, ttl=0)) == Folded(None, None)


@pytest.mark.parametrize("ends", ["released", "expired", "conceded", "late"])
@pytest.mark.parametrize("times", [1, 2, 10, 60])
def test_an_issue_can_be_leased_again_and_again(ends, times):
    history = []
    for number in range(times):
        start = number * 30
        history.append(
            {
                "released": edited(
                    f"r{number}", "released", number + 1, start, prev=start + 20, updated=start + 9
                ),
                "conceded": edited(
                    f"r{number}", "conceded", number + 1, start, prev=start + 20, updated=start + 9
                ),
                "expired": edited(
                    f"r{number}", "held", number + 1, start, prev=start + 20, updated=start + 9
                ),
                "late": edited(
                    f"r{number}", "released", number + 1, start, prev=start + 20, updated=start + 28
                ),
            }[ends]
        )
    newcomer = bid("new", times + 1, times * 30)
    found = folded(*history, newcomer)
    assert found.current.card.run == "new"
    assert lease_of(REF, found.current, found.expires_at).fence == times + 1


# Properties of the fold


@st.composite
def histories(draw, *, one_revoke_each=True):
    """Any pile of cards and revokes a server could have stamped, with ties forced."""
    size = draw(st.integers(1, 6))
    times = sorted(draw(st.lists(st.integers(0, 12), min_size=size, max_size=size)))
    comments = []
    for number, created in enumerate(times, 1):
        ttl = draw(st.sampled_from([1, 2, 3, 5, 99_999]))
        state = draw(st.sampled_from(CardState))
        run, writer = f"r{number}", draw(st.integers(0, 5)) > 0
        if state is CardState.BID:
            comments.append(bid(run, number * 10, created, ttl=ttl, by_writer=writer))
        else:
            updated = created + draw(st.integers(0, 4))
            prev = created + draw(st.integers(1, 5))
            outcome = draw(st.sampled_from(Outcome)) if state is CardState.RELEASED else None
            shown = outcome is not None and draw(st.booleans())
            comments.append(
                edited(run, state.value, number * 10, created, prev=prev, updated=updated, ttl=ttl)
                if outcome is None
                else edited(
                    run,
                    state.value,
                    number * 10,
                    created,
                    prev=prev,
                    updated=updated,
                    ttl=ttl,
                    outcome=outcome.value,
                    shown=shown,
                    by_writer=writer,
                )
            )
        if draw(st.integers(0, 3)) == 0:
            comments.append(shown_by_another(run, 300 + number, created, by_writer=writer))
    for number in range(draw(st.integers(0, 3))):
        run = f"r{number + 1 if one_revoke_each else draw(st.integers(1, size))}"
        comments.append(
            revoke(
                run,
                500 + number,
                draw(st.integers(0, 14)),
                force=draw(st.booleans()),
                by=f"op{number}",
                by_writer=draw(st.integers(0, 5)) > 0,
            )
        )
    return comments


RULED = FoldRules(max_ttl=s(3600), settle=s(1))
LABELS = (*STAGES.every_label, "bug")


def plain_fold(comments, rules):
    """Section 3, written down a second time, as literally as it can be."""
    believed = [(parse_mark(comment.body), comment) for comment in comments if comment.by_writer]
    revokes = [
        (mark.revocation, c.created_at) for mark, c in believed if isinstance(mark, RevokeMark)
    ]
    cards = [(mark, c) for mark, c in believed if isinstance(mark, Card)]
    cards = [(mark, c) for mark, c in cards if s(0) < mark.ttl <= rules.max_ttl]
    current = ends = None
    for card, comment in sorted(cards, key=lambda pair: (pair[1].created_at, pair[1].id)):
        if card.state is CardState.BID:
            own = later(comment.created_at, card.ttl)
        elif comment.updated_at >= card.prev:
            own = card.prev
        elif card.state is CardState.HELD:
            own = later(comment.updated_at, card.ttl)
        else:
            own = comment.updated_at
        for word, said_at in revokes:
            if word.run == card.run:
                cap = said_at if word.force else later(said_at, card.ttl + rules.settle)
                own = min(own, cap)
        proved = card.state in (CardState.HELD, CardState.RELEASED)
        if current is None or comment.created_at >= ends or proved:
            current, ends = comment.id, own
    return current, ends


@given(histories(one_revoke_each=False))
def test_the_fold_agrees_with_a_literal_reading_of_the_protocol(comments):
    found = folded(*comments, rules=RULED)
    assert (found.current.id if found.current else None, found.expires_at) == plain_fold(
        comments, RULED
    )


@given(histories(one_revoke_each=False), st.randoms(use_true_random=False))
def test_the_verdict_does_not_depend_on_the_order_of_the_list(comments, dice):
    shuffled = comments.copy()
    dice.shuffle(shuffled)
    assert folded(*shuffled, rules=RULED) == folded(*comments, rules=RULED)


@given(histories(), st.randoms(use_true_random=False), st.integers(0, 30))
def test_the_standing_does_not_depend_on_the_order_of_the_list(comments, dice, now):
    shuffled = comments.copy()
    dice.shuffle(shuffled)
    ordered = replace(standing(*comments, now=now, rules=RULED))
    assert standing(*shuffled, now=now, rules=RULED) == ordered


def test_the_standing_does_not_depend_on_the_order_of_two_revokes_of_one_run():
    held = edited("a", "held", 1, 0, prev=20, updated=5)
    first, second = revoke("a", 2, 6, by="ann"), revoke("a", 3, 7, by="bob")
    assert standing(held, first, second, now=8) == standing(second, first, held, now=8)


@given(histories(one_revoke_each=False), st.integers(0, 30))
def test_who_says_that_an_ending_is_painted_has_no_say_in_who_holds_the_issue(comments, now):
    said = [shown_by_another(f"r{number}", 700 + number, 500) for number in range(1, 7)]
    assert folded(*comments, *said, rules=RULED) == folded(*comments, rules=RULED)
    before = standing(*comments, now=now, rules=RULED)
    after = standing(*comments, *said, now=now, rules=RULED)
    assert after.unpainted is None
    if before.record is not None:
        before = replace(before, record=replace(before.record, painted=True))
    assert after == before


@given(histories(one_revoke_each=False), st.integers(0, 30), st.frozensets(st.sampled_from(LABELS)))
def test_no_label_has_a_say_in_where_an_issue_stands(comments, now, labels):
    bare = standing(*comments, now=now, rules=RULED, labels=())
    assert standing(*comments, now=now, rules=RULED, labels=labels) == bare


@given(histories(one_revoke_each=False), st.text(max_size=20))
def test_talk_and_strangers_never_change_the_verdict(comments, talk):
    noise = [
        make_comment(talk, 901, 0),
        bid("noise", 902, 0, by_writer=False),
        edited("noise", "held", 903, 9, prev=29, updated=9, by_writer=False),
        *(
            revoke(f"r{number}", 910 + number, 0, force=True, by_writer=False)
            for number in range(7)
        ),
        *(shown_by_another(f"r{number}", 920 + number, 0, by_writer=False) for number in range(7)),
        bid("greedy", 930, 0, ttl=3601),
        make_comment("<!-- claim run=future ttl=60s v=2 -->", 931, 0),
    ]
    assert folded(*noise, *comments, rules=RULED) == folded(*comments, rules=RULED)
    heard = standing(*noise, *comments, now=40, rules=RULED)
    assert heard == standing(*comments, now=40, rules=RULED)


@given(histories(one_revoke_each=False))
def test_a_bid_created_in_anothers_time_is_never_current(comments):
    found = folded(*comments, rules=RULED)
    marks = read_marks(comments, RULED)
    if found.current is None or confirmed(found.current.card):
        return
    earlier = marks.cards[: marks.cards.index(found.current)]
    before = fold(Marks(earlier, marks.revokes), RULED)
    assert not before.live(found.current.created_at)


@given(histories(one_revoke_each=False))
def test_a_confirmed_card_is_passed_over_only_by_one_that_came_after_its_end_or_was_proved(
    comments,
):
    marks = read_marks(comments, RULED)
    proved = [found for found in marks.cards if confirmed(found.card)]
    current = fold(marks, RULED).current
    if proved:
        assert (current.created_at, current.id) >= (proved[-1].created_at, proved[-1].id)


@given(histories(), st.integers(0, 40))
def test_whoever_stands_as_the_holder_is_the_current_confirmed_live_card(comments, now):
    now = max([now, *(int((c.updated_at - at(0)).total_seconds()) for c in comments)])
    found = folded(*comments, rules=RULED)
    live = standing(*comments, now=now, rules=RULED).live
    holds = found.current is not None and confirmed(found.current.card) and found.live(at(now))
    assert (live is not None) is holds
    if live is not None:
        assert live.lease == lease_of(REF, found.current, found.expires_at)


@given(histories(one_revoke_each=False))
def test_the_marks_stand_in_the_servers_order(comments):
    keys = [(card.created_at, card.id) for card in read_marks(comments, RULED).cards]
    assert keys == sorted(keys)


# Marks


def test_the_believable_marks_are_picked_out():
    mine, word = bid("a", 4, 1), revoke("a", 9, 3)
    marks = read_marks([make_comment("hi", 1, 0), word, mine], RULES)
    assert marks.cards == (PostedCard(make_card("a"), 4, at(1), at(1)),)
    said = RevokeMark(Revocation(RunId("a"), "operator", "stuck"))
    assert marks.revokes == {"a": (PostedRevoke(said, at(3)),)}
    assert marks.shown == {}


def test_a_floor_once_reached_holds_for_all_later_cards():
    """Leases came back from a store; a bidder that has not heard of it names no floor."""
    first = replace(make_card("a", "released", prev=20, ending=Ending(Outcome.RETURNED)), floor=900)
    before = make_comment(render_card(first), 1, 0, 5)
    marks = read_marks([before, bid("b", 2, 10)], RULES)
    assert [posted.card.floor for posted in marks.cards] == [900, 900]
    record = standing(before, edited("b", "held", 2, 10, prev=30, updated=12), now=15).record
    assert record.lease.fence == 902


def test_a_bid_by_comment_outranks_the_leases_of_a_store():
    """The card of a store's lease names the fence that the store gave out."""
    stored = replace(
        make_card("a", "released", prev=20, ending=Ending(Outcome.RETURNED)), fence=Fence(500)
    )
    before = make_comment(render_card(stored), 1, 0, 5)
    record = standing(before, edited("b", "held", 2, 10, prev=30, updated=12), now=15).record
    assert record.lease.fence == 502


def test_what_others_said_about_an_ending_is_picked_out_by_its_run():
    comments = [
        bid("a", 1, 0),
        shown_by_another("a", 2, 1),
        shown_by_another("a", 3, 2),
        shown_by_another("stranger", 4, 3, by_writer=False),
    ]
    marks = read_marks(comments, RULES)
    assert marks.shown == {"a": at(2)}
    assert [found.id for found in marks.cards] == [1], "it is no card"
    assert without_run(marks, RunId("a")).shown == {"a": at(2)}


def test_a_run_can_be_left_out_as_if_it_had_never_bid():
    marks = read_marks([bid("a", 1, 0), bid("b", 2, 1), revoke("a", 3, 2)], RULES)
    left = without_run(marks, RunId("a"))
    assert [card.card.run for card in left.cards] == ["b"]
    assert without_run(marks, None) == marks
    assert without_run(marks, RunId("zzz")) == marks


def test_a_lease_is_the_current_card_and_its_fence_the_comments_id():
    card = replace(make_card("a", "held", prev=20), beats=4)
    lease = lease_of(REF, posted(card, 77, 3, 9), at(29))
    assert (lease.fence, lease.card, lease.run, lease.holder) == (77, 77, "a", "worker-a")
    assert (lease.issue, lease.stage, lease.ttl, lease.beats) == (REF, "ready", s(20), 4)
    assert (lease.granted_at, lease.expires_at) == (at(3), at(29))


# Standing


def test_an_untouched_issue_has_no_standing():
    found = standing(now=0)
    assert (found.record, found.tries, found.bidding_until) == (None, (), None)


@pytest.mark.parametrize(
    ("comments", "now", "holder", "bidding", "ending"),
    [
        ([bid("a", 1, 0)], 5, None, 20, None),
        ([bid("a", 1, 0)], 20, None, None, None),
        ([edited("a", "conceded", 1, 0, prev=20, updated=5)], 5, None, None, None),
        # a reader whose answer carries an earlier time than the edit it shows
        ([edited("a", "conceded", 1, 0, prev=20, updated=5)], 4, None, None, None),
        ([edited("a", "held", 1, 0, prev=20, updated=5)], 24, "a", None, None),
        ([edited("a", "held", 1, 0, prev=20, updated=5)], 25, None, None, None),
        ([edited("a", "held", 1, 0, prev=20, updated=20)], 20, None, None, None),
        (
            [edited("a", "released", 1, 0, prev=20, updated=5, outcome="advanced")],
            5,
            None,
            None,
            "advanced",
        ),
        (
            [edited("a", "released", 1, 0, prev=20, updated=20, outcome="advanced")],
            20,
            None,
            None,
            None,
        ),
        (
            [edited("a", "released", 1, 0, prev=20, updated=25, outcome="advanced")],
            25,
            None,
            None,
            None,
        ),
        (
            [edited("a", "released", 1, 0, prev=20, updated=5, outcome="failed"), bid("b", 2, 9)],
            10,
            None,
            29,
            "failed",
        ),
        ([edited("a", "held", 1, 0, prev=20, updated=5), bid("b", 2, 9)], 10, "a", None, None),
        ([edited("a", "held", 1, 0, prev=20, updated=5), bid("b", 2, 30)], 31, None, 50, None),
    ],
)
def test_the_standing_tells_holder_bid_and_ending(comments, now, holder, bidding, ending):
    found = standing(*comments, now=now)
    assert (found.live.lease.run if found.live else None) == holder
    assert found.bidding_until == (None if bidding is None else at(bidding))
    said = found.record.ending if found.record else None
    assert (said.outcome.value if said else None) == ending


def ended(run="a", number=1, *, prev=20.0, updated=5.0, shown=False):
    return edited(
        run,
        "released",
        number,
        0,
        prev=prev,
        updated=updated,
        outcome="advanced",
        target="review",
        shown=shown,
    )


@pytest.mark.parametrize(
    "labels",
    [
        ["stage:ready", "stage:processing", "claimed"],
        ["stage:ready"],  # a sweep that slept took `claimed` off, and nobody has painted
        ["stage:review", "claimed"],
        ["stage:review"],
        [],
    ],
)
@pytest.mark.parametrize(
    ("marks", "painted"),
    [
        ([ended()], False),
        ([ended(prev=5, updated=9, shown=True)], True),
        ([ended(), shown_by_another("a", 2, 9)], True),
        ([ended(), shown_by_another("a", 2, 9, by_writer=False)], False),
        ([ended(), shown_by_another("a", 2, 4)], False),  # said before it had ended
        ([ended(), shown_by_another("b", 2, 9)], False),
        ([ended(updated=25)], True),  # too late to be a decision: nothing to paint
        ([ended(), bid("b", 2, 9)], False),  # a bid changes nothing about the ending before it
        ([ended(), bid("b", 2, 9), shown_by_another("a", 3, 10)], True),
    ],
)
def test_an_ending_is_painted_when_the_cards_say_so_whatever_labels_are_on_the_issue(
    labels, marks, painted
):
    found = standing(*marks, now=30, labels=labels)
    assert found.record.painted is painted
    assert (found.unpainted is None) is painted
    if not painted:
        assert found.unpainted.ending == Ending(Outcome.ADVANCED, StageName("review"))


def test_a_lease_that_is_not_over_has_no_ending_that_could_be_shown():
    held = edited("a", "held", 1, 0, prev=20, updated=5)
    found = standing(held, shown_by_another("a", 2, 6), now=7)
    assert found.live.lease.run == "a"
    assert (found.record.ending, found.unpainted) == (None, None)


@pytest.mark.parametrize(
    ("comments", "shows"),
    [
        ([], False),
        ([ended()], False),
        ([ended(prev=5, updated=9, shown=True)], True),
        ([ended(), shown_by_another("a", 2, 9)], True),
        ([ended(), shown_by_another("a", 2, 9, by_writer=False)], False),
        ([ended("b", shown=True), shown_by_another("b", 2, 9)], False),
    ],
)
def test_a_card_shows_its_ending_when_it_or_somebody_for_it_says_so(comments, shows):
    assert shows_ending(comments, RunId("a")) is shows


def test_a_revoke_shows_on_the_record_of_the_run_it_names():
    held = edited("a", "held", 1, 0, prev=20, updated=5)
    assert standing(held, revoke("a", 2, 6), now=7).record.revocation.by == "operator"
    assert standing(held, revoke("z", 2, 6), now=7).record.revocation is None


@pytest.mark.parametrize("force", [True, False])
def test_an_ending_that_lands_after_a_revoke_has_ended_the_lease_does_not_count(force):
    """A forced revoke ends it at 30, a graceful one at 30 + ttl: another may hold it by then."""
    ended_at = 30 if force else 50
    card = edited("a", "released", 1, 0, prev=60, updated=55, outcome="advanced", target="review")
    found = standing(card, revoke("a", 2, 30, force=force), now=56)
    assert found.record.lease.expires_at == at(ended_at)
    assert found.record.ending is None
    assert found.unpainted is None
    assert [attempt.outcome for attempt in found.tries] == [None]


def test_an_ending_that_lands_before_the_revokes_end_counts():
    card = edited("a", "released", 1, 0, prev=60, updated=45, outcome="returned")
    found = standing(card, revoke("a", 2, 30), now=56)
    assert found.record.ending == Ending(Outcome.RETURNED)


def test_an_outcome_on_a_card_that_is_still_held_ends_nothing():
    """`outcome` is said with `released`; the fold and the standing must not disagree about it."""
    line = "<!-- claim run=a ttl=20s state=held prev=2026-05-01T12:00:20Z outcome=advanced -->"
    card = make_comment(line, 1, 0, 5)
    found = standing(card, now=8)
    assert (found.live is not None) is folded(card).live(at(8))
    assert found.unpainted is None


def test_the_standing_can_be_told_as_it_was_before_ones_own_bid():
    ended = edited("a", "released", 1, 0, prev=20, updated=5, outcome="failed")
    own = bid("me", 2, 9)
    assert standing(ended, own, now=10, apart_from=RunId("me")) == standing(ended, now=10)


# Tries


@pytest.mark.parametrize(
    ("comment", "now", "ended", "outcome"),
    [
        (edited("a", "held", 1, 0, prev=20, updated=5), 24, None, None),
        (edited("a", "held", 1, 0, prev=20, updated=5), 25, 25, None),
        (edited("a", "held", 1, 0, prev=20, updated=21), 30, 20, None),
        (edited("a", "released", 1, 0, prev=20, updated=5, outcome="failed"), 6, 5, "failed"),
        (edited("a", "released", 1, 0, prev=20, updated=5, outcome="failed"), 4, 5, "failed"),
        (edited("a", "released", 1, 0, prev=20, updated=5, outcome="advanced"), 6, 5, "advanced"),
        (edited("a", "released", 1, 0, prev=20, updated=22, outcome="advanced"), 30, 20, None),
        (
            edited("a", "released", 1, 0, prev=5, updated=22, outcome="failed", shown=True),
            30,
            5,  # its rest counts from the end, not from the painting
            "failed",
        ),
    ],
)
def test_a_confirmed_card_is_a_try_judged_by_its_own_times(comment, now, ended, outcome):
    marks = read_marks([comment], RULES)
    (found,) = tries_on_comments(marks, RULES, at(now))
    assert found.ended_at == (None if ended is None else at(ended))
    assert found.outcome == outcome
    assert (found.run, found.stage, found.excused) == ("a", "ready", False)


def test_bids_and_concessions_are_no_tries():
    comments = [bid("a", 1, 0), edited("b", "conceded", 2, 1, prev=21, updated=3)]
    assert tries_on_comments(read_marks(comments, RULES), RULES, at(99)) == ()
    assert tries_on_picture(read_marks(comments, RULES), None) == ()


@pytest.mark.parametrize("by_writer", [True, False])
def test_a_failure_that_a_writer_excused_is_excused(by_writer):
    ended = edited("a", "released", 1, 0, prev=20, updated=5)
    body = render_excuse(RunId("a"), HolderId("w1"), "the handler was at fault")
    excuse = replace(revoke("a", 2, 6), body=body, by_writer=by_writer)
    marks = read_marks([ended, excuse], RULES)
    assert [found.excused for found in tries_on_comments(marks, RULES, at(99))] == [by_writer]
    assert [found.excused for found in tries_on_picture(marks, None)] == [by_writer]


def test_a_lease_an_operator_took_away_is_excused():
    comments = [edited("a", "held", 1, 0, prev=20, updated=5), revoke("a", 2, 6)]
    marks = read_marks(comments, RULES)
    assert [found.excused for found in tries_on_comments(marks, RULES, at(99))] == [True]
    assert [found.excused for found in tries_on_picture(marks, None)] == [True]


@pytest.mark.parametrize("force", [True, False])
def test_a_revoke_that_comes_after_the_lease_was_over_excuses_nothing(force):
    crashed = edited("a", "held", 1, 0, prev=20, updated=5)
    marks = read_marks([crashed, revoke("a", 2, 500, force=force)], RULES)
    (found,) = tries_on_comments(marks, RULES, at(600))
    assert found == Try(RunId("a"), StageName("ready"), at(25), None, excused=False)


def test_a_release_that_names_no_outcome_is_not_taken_for_a_crash():
    line = "<!-- claim run=a ttl=20s stage=ready state=released prev=2026-05-01T12:00:20Z -->"
    released = make_comment(line, 1, 0, 5)
    tries = tries_on_comments(read_marks([released], RULES), RULES, at(99))
    assert count_attempts(tries, STAGES.stage("ready")).failed == 0


@pytest.mark.parametrize(
    ("state", "outcome", "record", "ended", "said"),
    [
        ("held", None, None, 5, None),
        ("held", None, (None, 10), None, None),  # the store says it is live
        ("held", None, (None, 30), 5, None),  # the store says it is over
        ("held", None, ("failed", 10), 5, "failed"),  # decided, and died before the card said so
        ("released", "advanced", None, 5, "advanced"),
        ("released", "advanced", ("advanced", 10), 5, "advanced"),
    ],
)
def test_cards_that_only_show_what_a_store_decided_defer_to_it(state, outcome, record, ended, said):
    comment = edited("a", state, 1, 0, prev=20, updated=5, outcome=outcome)
    told = None
    if record is not None:
        ending = None if record[0] is None else Ending(Outcome(record[0]))
        told = Record(make_lease("a", expires=20), at(record[1]), ending)
    (found,) = tries_on_picture(read_marks([comment], RULES), told)
    assert found.ended_at == (None if ended is None else at(ended))
    assert found.outcome == said


def test_a_try_that_only_shows_what_a_store_decided_ended_when_the_tracker_was_told():
    """The store may have a clock of its own; backoff is counted on the tracker's."""
    shown = edited("a", "released", 1, 0, prev=5, updated=90, outcome="failed", shown=True)
    (found,) = tries_on_picture(read_marks([shown], RULES), None)
    assert (found.ended_at, found.outcome) == (at(90), "failed")


def test_a_stores_word_about_one_run_says_nothing_about_another():
    comment = edited("b", "held", 1, 0, prev=20, updated=5)
    told = Record(make_lease("a", expires=20), at(10))
    (found,) = tries_on_picture(read_marks([comment], RULES), told)
    assert found.ended_at == at(5)


# The protocol on a small model: honest workers, stalls and crashes anywhere, one-second stamps


@dataclass
class Worker:
    """One run at a time. Sends and landings are apart, so anything may happen in between."""

    run: str = ""
    card: int = 0
    sent: tuple[Card, int] | None = None
    """An edit (or the first post) on its way, and when it was sent."""
    trusted_until: int = -1
    phase: str = "idle"


@dataclass
class World:
    ttl: int = 4
    now: int = 0
    comments: list[Comment] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=lambda: [Worker() for _ in range(3)])
    fences: list[int] = field(default_factory=list)
    runs: int = 0
    orphans: list[tuple[int, Card]] = field(default_factory=list)

    def snapshot(self):
        return make_snapshot(self.comments, now=self.now, labels=["stage:ready", "claimed"])

    def own(self, worker):
        return self.comments[worker.card - 1]

    def finished(self):
        tries = tries_on_comments(read_marks(self.comments, RULES), RULES, at(self.now))
        return [found for found in tries if found.outcome is Outcome.ADVANCED]

    def expiry_now(self, worker):
        marks = read_marks(self.comments, RULES)
        card = next(found for found in marks.cards if found.id == worker.card)
        return expiry(card, marks.revokes.get(card.card.run, ()), RULES)

    def revoked(self, worker):
        return worker.run in read_marks(self.comments, RULES).revokes

    def edit(self, worker, state, **changes):
        card = parse_mark(self.own(worker).body)
        card = replace(card, state=state, prev=self.expiry_now(worker), **changes)
        worker.sent = (card, self.now)

    def step(self, worker, wish):
        if worker.sent is not None:
            self.land(worker)
        elif worker.phase == "idle":
            self.runs += 1
            worker.run, worker.phase = f"run{self.runs}", "bidding"
            worker.sent = (make_card(worker.run, ttl=self.ttl), self.now)
        elif worker.phase == "bidding":
            won = isinstance(prove(self.snapshot(), worker.run, RULES), Won)
            if won and not self.finished():
                worker.phase = "confirming"
                self.edit(worker, CardState.HELD)
            else:
                worker.phase = "leaving"
                self.edit(worker, CardState.CONCEDED)
        elif worker.phase == "holding":
            if self.now >= worker.trusted_until:
                self.leave(worker)
            elif self.revoked(worker) or wish == "finish":
                worker.phase, worker.trusted_until = "leaving", -1
                outcome = Outcome.RETURNED if self.revoked(worker) else Outcome.ADVANCED
                self.edit(worker, CardState.RELEASED, ending=Ending(outcome))
            else:
                self.edit(worker, CardState.HELD)

    def land(self, worker):
        (card, sent_at), worker.sent = worker.sent, None
        trust_over = worker.phase == "holding" and self.now >= worker.trusted_until
        worker.card = self.write(worker.card, card)
        if worker.phase == "bidding":
            return
        in_time = at(self.now) < card.prev and not self.revoked(worker)
        if worker.phase == "leaving" or trust_over or not in_time:
            self.leave(worker)
        else:
            worker.phase, worker.trusted_until = "holding", sent_at + self.ttl

    def write(self, number, card):
        """Post or edit, stamped by the server now."""
        body = render_card(card)
        if not number:
            self.comments.append(make_comment(body, len(self.comments) + 1, self.now))
            return len(self.comments)
        old = self.comments[number - 1]
        self.comments[number - 1] = replace(old, body=body, updated_at=at(self.now))
        return number

    def leave(self, worker):
        worker.phase, worker.card, worker.trusted_until = "idle", 0, -1

    def crash(self, worker):
        """What was on its way may still land, long after its sender died."""
        if worker.sent is not None:
            self.orphans.append((worker.card, worker.sent[0]))
            worker.sent = None
        self.leave(worker)

    def deliver(self):
        while self.orphans:
            self.write(*self.orphans.pop())

    def trusting(self):
        return [w.run for w in self.workers if w.phase == "holding" and self.now < w.trusted_until]

    def check(self):
        assert len(self.trusting()) <= 1
        assert len(self.finished()) <= 1
        current = folded(*self.comments).current
        if current is not None:
            self.fences.append(current.id)
            assert self.fences == sorted(self.fences)
        for run in self.trusting():
            assert current.card.run == run


MOVES = st.tuples(
    st.sampled_from(
        ["step"] * 12 + ["finish"] * 3 + ["tick"] * 3 + ["stall", "deliver", "crash", "revoke"]
    ),
    st.integers(0, 2),
)


@settings(max_examples=300)
@given(st.lists(MOVES, min_size=20, max_size=80))
@example([("step", 0)] * 4 + [("step", 1)] * 4 + [("stall", 0)] + [("step", 1)] * 4)
def test_at_most_one_worker_ever_trusts_its_lease_and_the_fence_only_grows(moves):
    world = World()
    for move, number in moves:
        worker = world.workers[number]
        match move:
            case "tick":
                world.now += 1
            case "stall":
                world.now += world.ttl + 1
            case "crash":
                world.crash(worker)
            case "deliver":
                world.deliver()
            case "revoke":
                for run in world.trusting():
                    world.comments.append(revoke(run, len(world.comments) + 1, world.now))
            case wish:
                world.step(worker, wish)
        world.check()
