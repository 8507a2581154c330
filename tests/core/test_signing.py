"""Signed marks: they hold as they were written and where they were written, and not otherwise."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.pretty import pretty_repr

from dibs.core import card, signing
from dibs.core import granter as control
from dibs.core.agent_dialect import key_of, their_release
from dibs.core.card import (
    Card,
    RevokeMark,
    ShownMark,
    UnknownMark,
    parse_mark,
    render_card,
    render_revoke,
    render_shown,
)
from dibs.core.eligibility import GATE_KINDS, PauseScope
from dibs.core.fold import FoldRules, standing_on_comments
from dibs.core.granter import Appointed, Moving, PauseWord, ResumeWord, parse_entry
from dibs.core.ids import Fence, IssueRef, RunId
from dibs.core.lease import Revocation
from dibs.core.marker import LONGEST_LINE
from dibs.core.signing import (
    BadKey,
    Keyring,
    Signed,
    Strictness,
    believing,
    parse_keyring,
    sign,
    verify,
)

from .builders import (
    REF,
    RULES,
    RUNS,
    WILD,
    at,
    edited,
    make_card,
    make_comment,
    make_snapshot,
    revoke,
)

SECRET = "correct horse battery"
OTHER = "another staple, no comma".replace(",", "")
RING = parse_keyring(f"one:{SECRET}")
BOTH = parse_keyring(f"two:{OTHER},one:{SECRET}")
LENIENT = parse_keyring(f"one:{SECRET}", Strictness.LENIENT)

MARKS = [
    render_card(make_card("a")),
    render_card(make_card("b", "held", prev=20, beats=3)),
    render_revoke(Revocation(RunId("a"), "ann", "it -- is stuck", force=True)),
    render_shown(RunId("a")),
    control.render_appointment(Appointed("redis://db", Fence(7)), over=12),
    control.render_appointment(Moving("auto", "redis://db", Fence(7), "me"), over=0),
    control.render_pause(PauseWord(PauseScope.FLEET, "ann", "release day")),
    control.render_resume(ResumeWord(PauseScope.REPOSITORY, "ann")),
]
each_mark = pytest.mark.parametrize("body", MARKS, ids=lambda body: body.split()[1])


# What is signed


def test_every_line_that_somebody_reads_as_a_mark_is_one_that_is_signed():
    others = {"parked", *GATE_KINDS}  # read in `labels` and `approval`
    assert {*card._READERS, *control._READERS, *others} == set(signing.KINDS)


@each_mark
def test_a_signed_mark_holds_and_says_what_it_said(body):
    signed = sign(body, REF, RING)
    assert verify(signed, REF, RING) is Signed.VALID
    assert re.search(r" sig=one:[0-9a-f]{64} -->", signed.splitlines()[0])
    assert signed.splitlines()[1:] == body.splitlines()[1:]
    match parse_mark(body):
        case None:
            assert parse_entry(signed) == parse_entry(body)
        case Card() | RevokeMark() | ShownMark() as said:
            assert replace(parse_mark(signed), extra=()) == said
        case UnknownMark():
            pytest.fail("not a mark")


@each_mark
def test_signing_twice_is_signing_once(body):
    once = sign(body, REF, RING)
    assert sign(once, REF, RING) == once
    assert verify(sign(once, REF, BOTH), REF, BOTH) is Signed.VALID


@pytest.mark.parametrize(
    "body", ["", "Paused by ann: wait", "<!-- note run=a -->", " <!-- claim run=a ttl=1s -->"]
)
def test_what_is_no_mark_is_left_as_it_is(body):
    assert sign(body, REF, RING) == body
    assert verify(body, REF, RING) is Signed.NO_MARK


# What does not hold


@each_mark
@pytest.mark.parametrize(
    "elsewhere",
    [
        IssueRef(REF.repo, "8"),
        IssueRef(REF.repo, "70"),
        IssueRef("acme/other", REF.key),
        IssueRef("", REF.key),
        IssueRef("acme/shop7", ""),
    ],
    ids=str,
)
def test_a_mark_holds_for_its_own_issue_and_repository_only(body, elsewhere):
    assert verify(sign(body, REF, RING), elsewhere, RING) is Signed.INVALID


def test_the_case_of_a_repositorys_name_is_the_settings_and_not_a_difference():
    shouted = IssueRef(REF.repo.upper(), REF.key)
    assert verify(sign(MARKS[0], shouted, RING), REF, RING) is Signed.VALID


@each_mark
def test_without_a_signature_it_is_not_signed(body):
    assert verify(body, REF, RING) is Signed.UNSIGNED


@each_mark
@pytest.mark.parametrize(
    "spoil",
    [
        lambda line: re.sub(r"sig=one:", "sig=three:", line),
        lambda line: re.sub(r"sig=one:", "sig=", line),
        lambda line: re.sub(r"sig=one:", "sig=one:one:", line),
        lambda line: re.sub(r"sig=one:[0-9a-f]{64}", "sig=", line),
        lambda line: re.sub(r"([0-9a-f]{64})", lambda m: m[1][:-1], line),
        lambda line: re.sub(r"([0-9a-f]{64})", lambda m: m[1] + "0", line),
        lambda line: re.sub(r"([0-9a-f]{64})", lambda m: m[1].upper() + "", line),
        lambda line: re.sub(r"([0-9a-f]{64})", "0" * 64, line),
        lambda line: re.sub(r" (sig=\S+)", r" \1 \1", line),
        lambda line: re.sub(r" (sig=\S+)", r" sig=one:" + "0" * 64 + r" \1", line),
        lambda line: line.replace(" -->", " x=1 -->", 1),
        lambda line: line.replace("v=1", "v=2"),
        lambda line: line.replace(" v=1", ""),
    ],
    ids=[
        *("unknown key", "no key", "two keys", "empty", "too short", "too long", "capitals"),
        *("another", "twice", "two", "a field more", "a version", "a field less"),
    ],
)
def test_a_signature_that_was_tampered_with_does_not_hold(body, spoil):
    line, _, rest = sign(body, REF, RING).partition("\n")
    spoilt = f"{spoil(line)}\n{rest}"
    assert spoil(line) != line
    assert verify(spoilt, REF, RING) is Signed.INVALID


def test_one_kind_does_not_pass_for_another():
    signed = sign("<!-- shown run=a v=1 -->", REF, RING)
    assert verify(signed.replace("shown", "revoke", 1), REF, RING) is Signed.INVALID


def test_fields_cannot_be_shifted_into_one_another():
    first = sign("<!-- revoke run=a by=b -->", REF, RING)
    signature = re.search(r"sig=\S+", first)[0]
    for line in ("revoke run=a by=b:", "revoke run=ab by=", "revoke run=a3:b by=b"):
        assert verify(f"<!-- {line} {signature} -->", REF, RING) is Signed.INVALID


@given(st.sampled_from(MARKS), st.data())
def test_no_change_of_one_character_of_the_line_holds(body, data):
    signed = sign(body, REF, RING)
    line = signed.splitlines()[0]
    place = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(st.characters(min_codepoint=33, max_codepoint=126))
    spoilt = signed[:place] + other + signed[place + 1 :]
    if spoilt != signed:
        assert verify(spoilt, REF, RING) is not Signed.VALID


@given(st.builds(make_card, RUNS), WILD, WILD, RUNS)
def test_whatever_a_card_says_its_signature_holds_and_another_cards_does_not(made, a, b, run):
    one = render_card(replace(made, holder=a, stage=b))
    two = render_card(replace(made, holder=b, stage=a, run=RunId(run)))
    signed = sign(one, REF, RING)
    assert verify(signed, REF, RING) is Signed.VALID
    if one.splitlines()[0] != two.splitlines()[0]:
        signature = re.search(r" sig=\S+", signed)[0]
        spoilt = two.replace(" -->", f"{signature} -->", 1)
        assert verify(spoilt, REF, RING) is Signed.INVALID


@given(WILD)
def test_nothing_that_is_read_as_a_mark_escapes_the_signature(text):
    for start in ("", "<!-- claim ", "<!-- shown run=a", "<!-- revoke run=a -->"):
        body = start + text
        read = not isinstance(parse_mark(body), UnknownMark | None) or parse_entry(body) is not None
        if read:
            assert verify(body, REF, RING) in (Signed.UNSIGNED, Signed.INVALID)


def test_there_is_room_for_the_signature_on_the_longest_lines_we_write():
    long = "🦄" * 5000
    name = f"{'a' * 32}:{SECRET}"
    ring = parse_keyring(name)
    widest = make_card("r" * 64, "held", prev=20)
    for body in (
        render_revoke(Revocation(RunId("r" * 64), long, long, force=True)),
        render_card(replace(widest, holder="🦄" * 100, stage="s" * 64)),
        control.render_pause(PauseWord(PauseScope.REPOSITORY, long, long)),
    ):
        signed = sign(body, REF, ring)
        assert len(signed.splitlines()[0]) <= LONGEST_LINE
        assert verify(signed, REF, ring) is Signed.VALID


def test_a_line_that_is_too_long_is_no_mark_with_a_signature_either():
    body = f"<!-- claim run=a ttl=1s note={'x' * LONGEST_LINE} -->"
    assert verify(sign(body, REF, RING), REF, RING) is Signed.UNSIGNED


# Keys


def test_the_first_key_signs_and_all_verify():
    by_two = sign(MARKS[0], REF, BOTH)
    assert "sig=two:" in by_two
    assert verify(by_two, REF, BOTH) is Signed.VALID
    assert verify(sign(MARKS[0], REF, RING), REF, BOTH) is Signed.VALID
    assert verify(by_two, REF, RING) is Signed.INVALID


def test_a_key_may_go_without_a_name_and_is_called_the_same_everywhere():
    bare, again = parse_keyring(SECRET), parse_keyring(f" {SECRET} ")
    assert bare.ids == again.ids
    assert re.fullmatch(r"[0-9a-f]{8}", bare.ids[0])
    assert verify(sign(MARKS[0], REF, bare), REF, again) is Signed.VALID
    assert verify(sign(MARKS[0], REF, bare), REF, RING) is Signed.INVALID


def test_a_key_of_the_same_name_and_another_secret_is_another_key():
    impostor = parse_keyring(f"one:{OTHER}")
    assert verify(sign(MARKS[0], REF, impostor), REF, RING) is Signed.INVALID


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "short",
        "one:short",
        f"one:{SECRET},",
        f"one:{SECRET},one:{OTHER}",
        f"{'a' * 33}:{SECRET}",
    ],
)
def test_what_is_no_list_of_keys_is_refused_without_showing_any(text):
    with pytest.raises(BadKey) as refused:
        parse_keyring(text)
    assert SECRET not in str(refused.value)
    assert "short" not in str(refused.value).replace("shorter", "")


def test_a_secret_is_never_shown():
    for shown in (repr(BOTH), str(BOTH), repr(BOTH.keys[0]), f"{BOTH!r}", pretty_repr(BOTH)):
        assert SECRET not in shown
        assert OTHER not in shown
        assert "one" in shown or "two" in shown


# What is believed


def snapshot_of(*comments):
    return make_snapshot(comments, now=30, labels=["stage:ready"])


def signed_comment(comment, ring=RING):
    return replace(comment, body=sign(comment.body, REF, ring))


HELD = edited("a", "held", 1, 0, prev=20, updated=15)


@pytest.mark.parametrize("ring", [RING, LENIENT], ids=["strict", "lenient"])
def test_signed_marks_people_and_strangers_are_as_they_were(ring):
    snapshot = snapshot_of(
        signed_comment(HELD),
        signed_comment(revoke("a", 2, 18)),
        make_comment("What about the tests?", 3, 19),
        make_comment(HELD.body, 4, 19, by_writer=False),
    )
    assert believing(snapshot, ring) is snapshot


def test_what_nobody_signed_counts_like_a_strangers():
    snapshot = believing(snapshot_of(HELD, revoke("a", 2, 18), make_comment("hm", 3, 19)), RING)
    assert [comment.by_writer for comment in snapshot.comments] == [False, False, True]
    assert standing_on_comments(snapshot, FoldRules()).record is None


def test_while_a_key_is_handed_out_unsigned_marks_count_and_forged_ones_do_not():
    forged = replace(HELD, id=2, body=sign(HELD.body, IssueRef(REF.repo, "1"), RING))
    snapshot = believing(snapshot_of(HELD, forged), LENIENT)
    assert [comment.by_writer for comment in snapshot.comments] == [True, False]


def test_a_copy_of_a_signed_card_counts_for_nothing():
    """Whoever copied it after its release would hold the issue in that run's name."""
    held = signed_comment(HELD)
    released = signed_comment(edited("a", "released", 1, 0, prev=35, updated=18))
    copied = replace(held, id=9, created_at=at(19), updated_at=at(19))
    snapshot = snapshot_of(copied, released)
    live = standing_on_comments(snapshot, RULES).live
    assert live is not None, "without the rule the copy would be in force"
    judged = believing(snapshot, RING)
    assert [comment.by_writer for comment in judged.comments] == [False, True]
    assert standing_on_comments(judged, RULES).live is None


def test_another_tools_release_takes_no_signed_lease_away_and_ends_its_own_claims():
    held = signed_comment(HELD)
    key = key_of(parse_mark(HELD.body).holder, "a")
    theirs = [
        make_comment("<!-- agent-claim:codename=lucius firing_id=7 ts=0 -->", 2, 16),
        make_comment(their_release("lucius", "7", "success", "0"), 3, 17),
        make_comment(their_release(*key, "stale-swept", "0"), 4, 18),
    ]
    snapshot = snapshot_of(held, *theirs)
    assert standing_on_comments(believing(snapshot, LENIENT), RULES).record.revocation is not None
    judged = believing(snapshot, RING)
    assert [comment.by_writer for comment in judged.comments] == [True, True, True, False]
    assert standing_on_comments(judged, RULES).record.revocation is None


def test_the_words_about_a_run_are_no_copies_of_its_card():
    comments = (signed_comment(HELD), signed_comment(revoke("a", 2, 18)))
    shown = signed_comment(make_comment(render_shown(RunId("a")), 3, 19))
    snapshot = snapshot_of(*comments, shown)
    assert believing(snapshot, RING) is snapshot


def test_a_copy_of_a_signed_resume_lifts_no_later_pause():
    pause = control.render_pause(PauseWord(PauseScope.FLEET, "ann", "release day"))
    resume = control.render_resume(ResumeWord(PauseScope.FLEET, "ann", over=1))
    log = [pause, resume, pause, resume]
    comments = tuple(
        signed_comment(make_comment(body, place, place)) for place, body in enumerate(log, 1)
    )
    assert control.fold_control(comments[:2]).paused == {}
    standing = control.fold_control(signing.believed(comments, REF, RING))
    assert standing.pause(PauseScope.FLEET, repo="").since == at(3)


def test_a_log_that_nobody_signed_appoints_and_pauses_nothing():
    bodies = [body for body in MARKS if parse_entry(body) is not None]
    comments = tuple(make_comment(body, place, place) for place, body in enumerate(bodies, 1))
    assert control.fold_control(signing.believed(comments, REF, RING)) == control.Control()


def test_a_keyring_without_a_key_cannot_be():
    with pytest.raises(BadKey):
        Keyring(())
