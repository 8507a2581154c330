"""Our cards in the words of the issue-claim state machine: the same records, for both readers."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.core.agent_dialect import (
    as_native,
    ending_note,
    fields_of,
    firing_holder,
    firing_of,
    key_of,
    others_release,
    release_beside,
    spell,
)
from dibs.core.card import (
    Card,
    CardState,
    ShownMark,
    UnknownMark,
    parse_mark,
    render_card,
    render_revoke,
    render_shown,
    same_mark,
)
from dibs.core.fold import FoldRules, fold, read_marks, standing_on_comments
from dibs.core.foreign import foreign_claims
from dibs.core.ids import HolderId, RunId, StageName
from dibs.core.lease import Ending, Outcome, Revocation
from dibs.core.signing import Signed, believed, parse_keyring, sign, verify

from .builders import REF, RULES, RUNS, WILD, at, make_card, make_comment, make_snapshot, s

TS = "2026-05-01T19:42:33Z"
FIRING = "20260501-194217-643a"
LUCIUS = firing_holder("lucius", FIRING)
OLD_CLAIM = f"<!-- agent-claim:codename=lucius firing_id={FIRING} ts={TS} -->"
OLD_RELEASE = (
    f"<!-- agent-release:codename=lucius firing_id={FIRING} outcome=stale-swept"
    " swept_by=20260502-030000-cleanup ts=2026-05-02T03:00:00Z -->"
)


def their_reader(body):
    """What one of their runners reads: the prefix, then every word of the body that has a `=`."""
    text = body.strip()
    for prefix in ("<!-- agent-claim:", "<!-- agent-release:"):
        if text.startswith(prefix):
            words = text.removeprefix(prefix).removesuffix("-->").split()
            return prefix, dict(word.split("=", 1) for word in words if "=" in word)
    return None


@st.composite
def cards(draw):
    state = draw(st.sampled_from(CardState))
    ending = None
    if state is CardState.RELEASED and draw(st.booleans()):
        ending = Ending(draw(st.sampled_from(Outcome)), StageName("pr-open"), draw(WILD))
    named = st.one_of(
        WILD,
        st.builds(firing_holder, WILD, WILD),
        st.sampled_from(["lucius", "a firing b", "mbp.local:w6-3", "-->"]),
    )
    return Card(
        run=RunId(draw(RUNS)),
        ttl=timedelta(seconds=draw(st.integers(1, 90_000))),
        state=state,
        holder=HolderId(draw(named)),
        stage=StageName(draw(WILD)),
        prev=None if state is CardState.BID else at(draw(st.integers(0, 10**6))),
        beats=draw(st.integers(0, 99)),
        ending=ending,
        shown=state is CardState.RELEASED and draw(st.booleans()),
        floor=draw(st.integers(0, 10**6)),
        fence=draw(st.integers(0, 10**6)),
    )


@given(cards())
def test_a_card_says_the_same_in_both_dialects(card):
    native = render_card(card)
    spelt = spell(native, TS)
    assert parse_mark(spelt) == parse_mark(native)
    assert same_mark(spelt, native)


def test_a_holder_whose_firing_id_is_its_run_keeps_its_name():
    card = Card(run="0", ttl=timedelta(seconds=1), state=CardState.BID, holder="alfred firing 0")
    assert parse_mark(spell(render_card(card), TS)).holder == "alfred firing 0"


@given(cards())
def test_their_readers_see_a_card_as_a_claim_until_it_is_conceded(card):
    seen = their_reader(spell(render_card(card), TS))
    if card.state is CardState.CONCEDED:
        assert seen is None, "it is over: to them there is no such claim any more"
        return
    prefix, fields = seen
    assert prefix == "<!-- agent-claim:"
    assert (fields["codename"], fields["firing_id"]) == key_of(card.holder, card.run)
    assert fields["ts"] == TS


@given(cards())
def test_their_readers_pair_the_release_with_the_claim(card):
    spelt = their_reader(spell(render_card(card), TS))
    release = release_beside(render_card(card), TS)
    if not card.shown:
        assert release is None
        return
    prefix, fields = their_reader(release)
    assert prefix == "<!-- agent-release:"
    assert (fields["codename"], fields["firing_id"]) == (
        spelt[1]["codename"],
        spelt[1]["firing_id"],
    )
    assert fields["outcome"]
    assert parse_mark(release) is None, "to us the card has said it"
    assert foreign_claims([make_comment(release, 1, 1)], now=at(2), ttl=s(99)) == ()


@given(RUNS, WILD, st.sampled_from(Outcome), WILD)
def test_whoever_paints_for_the_dead_releases_for_their_readers_too(run, holder, outcome, note):
    native = render_shown(RunId(run), HolderId(holder), Ending(outcome, None, note))
    spelt = spell(native, TS)
    assert parse_mark(spelt) == parse_mark(native) == ShownMark(RunId(run))
    prefix, fields = their_reader(spelt)
    assert prefix == "<!-- agent-release:"
    assert (fields["codename"], fields["firing_id"]) == key_of(holder, run)


def test_the_documented_lines_come_out_word_for_word():
    held = replace(make_card("9f3a", "held", prev=20), holder=LUCIUS)
    line = spell(render_card(held), TS).partition("\n")[0]
    assert line.startswith(OLD_CLAIM.removesuffix(" -->") + " run=9f3a ttl=20s v=1 ")
    note = ending_note("success", "https://github.com/foo/bar/pull/42")
    ending = Ending(Outcome.ADVANCED, StageName("pr-open"), note)
    done = replace(make_card("9f3a", "released", prev=20, shown=True, ending=ending), holder=LUCIUS)
    assert release_beside(render_card(done), TS).partition("\n")[0] == (
        f"<!-- agent-release:codename=lucius firing_id={FIRING} outcome=success"
        f" pr=https://github.com/foo/bar/pull/42 ts={TS} run=9f3a -->"
    )


@pytest.mark.parametrize(
    ("outcome", "theirs"),
    [("advanced", "success"), ("returned", "returned"), ("failed", "failure")],
)
def test_an_ending_without_an_outcome_of_theirs_gets_the_closest(outcome, theirs):
    done = make_card("a", "released", prev=20, shown=True, ending=Ending(Outcome(outcome)))
    assert their_reader(release_beside(render_card(done), TS))[1]["outcome"] == theirs


def test_an_equals_sign_in_a_note_is_a_part_of_its_word():
    """A note is anybody's prose, and a release that cannot be spelt would show no ending at all."""
    ending = Ending(Outcome.ADVANCED, None, "outcome=success pr=https://example.org/?tab=a=b")
    done = make_card("a", "released", prev=20, shown=True, ending=ending)
    theirs = their_reader(release_beside(render_card(done), TS))[1]
    assert (theirs["outcome"], theirs["pr"]) == ("success", "https://example.org/%3Ftab%3Da%3Db")


@given(WILD, WILD)
def test_an_outcome_and_an_address_can_end_no_line(outcome, url):
    ending = Ending(Outcome.RETURNED, None, ending_note(outcome, url)[:200])
    done = make_card("a", "released", prev=20, shown=True, ending=ending)
    release = release_beside(render_card(done), TS)
    line, _, rest = release.partition("\n")
    assert line.count("-->") == 1
    assert line.endswith(" run=a -->")
    assert "=" not in rest


@pytest.mark.parametrize(
    "body",
    [
        OLD_CLAIM,
        OLD_RELEASE,
        "<!-- agent-claim:",
        "<!-- agent-claim:run=a -->",
        "<!-- agent-claim:v1 issue=51 -->",
        '<!-- agent-claim: {"runId":"a"} -->',
        f"<!-- agent-claim:codename=a firing_id=b ts={TS} run=a run=b ttl=9s v=1 -->",
        f"<!-- agent-release:codename=a firing_id=b outcome=c ts={TS} run=a -->",
    ],
)
def test_what_is_not_exactly_ours_is_no_card_of_ours(body):
    assert as_native(body) is None
    assert parse_mark(body) is None


def test_a_card_of_ours_that_is_spoilt_is_left_alone_and_named():
    spoilt = f"<!-- agent-claim:codename=a firing_id=b ts={TS} run=a ttl=long v=1 -->"
    assert isinstance(parse_mark(spoilt), UnknownMark)


@given(WILD)
def test_only_marks_of_ours_are_spelt_anew(body):
    revoke = render_revoke(Revocation(RunId("a"), "ada", "why", force=True))
    for other in (body, revoke, OLD_CLAIM):
        assert spell(other, TS) == other
        assert release_beside(other, TS) is None


def test_a_holder_with_a_firing_is_read_back_and_no_other_is():
    assert firing_of(firing_holder("dark knight", "a b")) == ("dark knight", "a b")
    assert firing_of("mbp.local:w6-3") is None
    assert firing_of("") is None
    long = firing_holder("c" * 500, "f" * 500)
    assert [len(part) for part in firing_of(long)] == [48, 48]
    assert long != firing_holder("c" * 500, "f" * 499), "who is called alike may release alike"
    assert firing_of(firing_holder("c", "f" * 500, "~2")) == ("c", f"{firing_of(long)[1]}~2")


def test_what_ours_says_in_this_dialect_is_shown_as_it_was_meant():
    spelt = spell(render_card(replace(make_card("a"), holder=firing_holder("a b", "c"))), TS)
    assert fields_of(spelt)["codename"] == "a b"
    assert fields_of(OLD_CLAIM) == {"codename": "lucius", "firing_id": FIRING, "ts": TS}
    assert fields_of("Looking into it, a=b") == {}


# The fold, with both on one issue


def snapshot_of(*bodies, now=100.0):
    comments = [make_comment(body, place, 10.0 * place) for place, body in enumerate(bodies, 1)]
    return make_snapshot(comments, now=now)


def spelt(card, **fields):
    return spell(render_card(replace(card, **fields)), TS)


def test_cards_of_both_dialects_are_folded_as_one_list():
    snapshot = snapshot_of(
        spelt(make_card("a", "conceded", prev=30)),
        spelt(make_card("b", ttl=600), holder=LUCIUS),
        render_card(make_card("c", ttl=600)),
    )
    folded = fold(read_marks(snapshot.comments, RULES), RULES)
    assert (folded.current.card.run, folded.current.card.holder) == ("b", LUCIUS)


def test_a_claim_of_theirs_is_foreign_and_ours_is_not():
    snapshot = snapshot_of(OLD_CLAIM, spelt(make_card("b", ttl=600), holder=LUCIUS))
    (foreign,) = foreign_claims(snapshot.comments, now=snapshot.now, ttl=timedelta(hours=4))
    assert foreign.comment == 1
    (posted,) = read_marks(snapshot.comments, RULES).cards
    assert posted.card.run == "b"


def test_a_sweep_of_theirs_is_a_revoke_and_leaves_the_holder_the_time_to_stop():
    held = spelt(make_card("b", "held", ttl=600, prev=610), holder=LUCIUS)
    snapshot = snapshot_of(held, OLD_RELEASE, now=30.0)
    record = standing_on_comments(snapshot, RULES).record
    assert record.live, "nobody of ours takes it before its holder could have heard"
    assert record.revocation == Revocation(RunId("b"), "20260502-030000-cleanup", "stale-swept")
    assert record.lease.expires_at == at(10 + 600)


@pytest.mark.parametrize(
    "release",
    [OLD_RELEASE.replace("lucius", "robin"), OLD_RELEASE.replace(FIRING, "other")],
    ids=["another codename", "another firing"],
)
def test_a_release_of_another_key_is_not_about_us(release):
    held = spelt(make_card("b", "held", ttl=600, prev=610), holder=LUCIUS)
    record = standing_on_comments(snapshot_of(held, release, now=30.0), RULES).record
    assert record.revocation is None


def test_a_strangers_release_takes_nothing_away():
    held = spelt(make_card("b", "held", ttl=600, prev=610), holder=LUCIUS)
    comments = [make_comment(held, 1, 10), make_comment(OLD_RELEASE, 2, 20, by_writer=False)]
    record = standing_on_comments(make_snapshot(comments, now=30), RULES).record
    assert record.revocation is None


def test_a_release_before_the_card_is_of_an_earlier_claim():
    held = spelt(make_card("b", "held", ttl=600, prev=620), holder=LUCIUS)
    record = standing_on_comments(snapshot_of(OLD_RELEASE, held, now=30.0), RULES).record
    assert record.revocation is None
    assert others_release(held) is None


# Signed


KEYS = parse_keyring("k1:0123456789abcdef0123")


@given(cards())
def test_a_signature_holds_in_both_dialects(card):
    signed = sign(render_card(card), REF, KEYS)
    spelt_anew = spell(signed, TS)
    assert verify(spelt_anew, REF, KEYS) is Signed.VALID
    assert parse_mark(spelt_anew) == parse_mark(signed)


def test_a_card_that_was_altered_in_this_dialect_is_not_signed_any_more():
    spelt_anew = spell(sign(render_card(make_card("a")), REF, KEYS), TS)
    altered = spelt_anew.replace("ttl=20s", "ttl=90s")
    assert verify(altered, REF, KEYS) is Signed.INVALID
    comments = (make_comment(spelt_anew, 1, 1), make_comment(altered, 2, 2))
    assert [one.by_writer for one in believed(comments, REF, KEYS)] == [True, False]
    assert verify(OLD_CLAIM, REF, KEYS) is Signed.NO_MARK


def test_a_card_may_not_ask_for_more_than_the_maximum_in_this_dialect_either():
    snapshot = snapshot_of(spelt(make_card("b", ttl=600)))
    assert read_marks(snapshot.comments, FoldRules(max_ttl=s(599))).cards == ()
