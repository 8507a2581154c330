"""Which cards no judgement needs: with and without them every verdict is the same, for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.core.approval import visit_of
from dibs.core.card import Card, CardState, parse_mark, render_card, render_excuse, render_revoke
from dibs.core.compacting import TAIL, outlived
from dibs.core.eligibility import Surroundings, failed_tries, judge
from dibs.core.fold import (
    FoldRules,
    fold,
    highest_fence,
    read_marks,
    standing_on_comments,
    tries_on_comments,
    tries_on_picture,
)
from dibs.core.ids import HolderId, RunId, StageName
from dibs.core.issue import Issue, Snapshot
from dibs.core.labels import leftovers, stands_in
from dibs.core.lease import Ending, Outcome, Revocation, Standing
from dibs.core.presets import STAGES

from .builders import REF, at, make_comment, s

RULES = FoldRules()
STAGE_NAMES = tuple(stage.name for stage in STAGES.stages)
LABELS = [
    frozenset({STAGES.stages[0].label}),
    frozenset({STAGES.stages[1].label}),
    frozenset(stage.label for stage in STAGES.stages),
    frozenset(),
]
TTL = 20
GAP = 30

_TURN = st.tuples(
    st.sampled_from(
        (*("advanced", "failed", "returned", "parked"), *("vanished", "late", "conceded", "bid"))
    ),
    st.sampled_from(STAGE_NAMES[:2]),
    st.sampled_from(("", "", "", "revoked", "excused", "words", "crowd")),
)
TURNS = st.lists(_TURN, max_size=30)


def history(turns, *, atomic, first=0):
    """The comments of so many runs, one after the other, and some bids beside them."""
    comments = []

    def post(body, created, updated=None):
        number = 10 * first + len(comments) + 1
        comments.append(make_comment(body, number, created, updated))

    for place, (how, stage, beside) in enumerate(turns, start=first):
        start = place * GAP
        card = Card(
            run=RunId(f"r{place}"),
            ttl=s(TTL),
            holder=HolderId("w"),
            stage=StageName(stage),
            fence=place + 1 if atomic else 0,
        )
        ended = {"late": start + TTL + 2}.get(how, start + 5)
        prev = at(start + TTL - (2 if how == "late" else 0))
        if how in ("conceded", "bid", "vanished"):
            state = {"conceded": "conceded", "bid": "bid", "vanished": "held"}[how]
            edited = None if how == "bid" else start + 1
            card = replace(card, state=CardState(state), prev=None if how == "bid" else prev)
            if atomic and how != "vanished":
                continue  # an atomic store shows granted leases only
            post(render_card(card), start, edited)
        else:
            outcome = Outcome.ADVANCED if how == "late" else Outcome(how)
            onward = STAGE_NAMES[STAGE_NAMES.index(stage) + 1]
            ending = Ending(outcome, StageName(onward) if outcome is Outcome.ADVANCED else None)
            shown = how != "late"
            card = replace(card, state=CardState.RELEASED, prev=prev, ending=ending, shown=shown)
            post(render_card(card), start, ended)
        if beside == "revoked":
            post(render_revoke(Revocation(card.run, "ann", "stop")), start + 3)
        elif beside == "excused":
            post(render_excuse(card.run, HolderId("w"), "the handler"), start + 25)
        elif beside == "words":
            post("What is this?", start + 3)
        elif beside == "crowd" and not atomic:
            rival = Card(run=RunId(f"x{place}"), ttl=s(TTL), stage=card.stage)
            post(render_card(rival), start + 2)
    return comments


def verdicts(comments, now, *, atomic):
    """Everything that is decided from the cards."""
    marks = read_marks(comments, RULES)
    if atomic:
        tries = tries_on_picture(marks, None)
        standing = Standing(None, tries, highest=highest_fence(marks))
    else:
        tries = tries_on_comments(marks, RULES, now)
    found = [fold(marks, RULES), highest_fence(marks)]
    for stage in STAGE_NAMES:
        found.append(failed_tries(tries, stage))
        whole = Snapshot(Issue(REF, "t", True, frozenset(), 0, at(0), at(0)), tuple(comments), now)
        found.append(visit_of(whole, tries, STAGES.stage(stage), STAGES))
    for labels in LABELS:
        issue = Issue(REF, "t", True, labels, len(comments), at(0), at(0))
        snapshot = Snapshot(issue, tuple(comments), now)
        if not atomic:
            standing = standing_on_comments(snapshot, RULES)
            found += [standing.record, standing.bidding_until, standing.unpainted]
        found.append(judge(snapshot, standing, STAGES, Surroundings()))
        found += [stands_in(STAGES, snapshot), leftovers(STAGES, snapshot)]
    return found


def tries_of(comments, now, *, atomic):
    marks = read_marks(comments, RULES)
    if atomic:
        return tries_on_picture(marks, None)
    return tries_on_comments(marks, RULES, now)


@given(TURNS, TURNS.map(lambda turns: turns[:6]), st.booleans(), st.integers(1, 4))
def test_every_verdict_is_the_same_with_and_without_them(turns, later, atomic, tail):
    past = history(turns, atomic=atomic)
    now = at(len(turns) * GAP)
    gone = outlived(past, tries_of(past, now, atomic=atomic), RULES, tail)
    kept = [comment for comment in past if comment.id not in gone]
    future = history(later, atomic=atomic, first=len(turns))
    for count in range(len(future) + 1):
        seen_at = at((len(turns) + len(later)) * GAP) if count == len(future) else now
        whole = verdicts([*past, *future[:count]], seen_at, atomic=atomic)
        assert verdicts([*kept, *future[:count]], seen_at, atomic=atomic) == whole
    again = outlived(kept, tries_of(kept, now, atomic=atomic), RULES, tail)
    assert not again, "what is needed is needed at the second look, too"


@given(TURNS, st.booleans())
def test_only_cards_and_marks_about_them_are_outlived(turns, atomic):
    past = history(turns, atomic=atomic)
    gone = outlived(past, tries_of(past, at(9999), atomic=atomic), RULES, 1)
    for comment in past:
        if comment.id in gone:
            assert parse_mark(comment.body) is not None
        if comment.body == "What is this?":
            assert comment.id not in gone


@pytest.mark.parametrize("how", ["returned", "advanced", "vanished", "conceded"])
def test_a_long_past_leaves_a_few_cards(how):
    turns = [(how, "ready", "excused" if how == "vanished" else "")] * 400
    turns += [("returned", "ready", "")] * (TAIL + 1)
    past = history(turns, atomic=False)
    gone = outlived(past, tries_of(past, at(9e6), atomic=False), RULES)
    assert len(past) - len(gone) <= TAIL + 5


def test_two_cards_of_one_run_are_left_alone():
    past = history([("advanced", "ready", "")] * 40, atomic=True)
    assert outlived(past, tries_of(past, at(9e6), atomic=True), RULES)
    copied = [*past, replace(past[3], id=9999, created_at=at(8e6), updated_at=at(8e6))]
    assert not outlived(copied, tries_of(copied, at(9e6), atomic=True), RULES)


def test_a_strangers_card_counts_for_nothing():
    past = history([("returned", "ready", "")] * 40, atomic=True)
    gone = outlived(past, tries_of(past, at(9e6), atomic=True), RULES)
    strange = [replace(comment, id=comment.id + 5000, by_writer=False) for comment in past]
    both = [*past, *strange]
    assert outlived(both, tries_of(both, at(9e6), atomic=True), RULES) == gone
