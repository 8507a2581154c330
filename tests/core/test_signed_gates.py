"""A signed gate opens by a signed approval of this text, out of this stage, for one move."""

import pytest
from msgspec.structs import replace

from dibs.core.eligibility import ReasonCode, Surroundings, judge_claimable
from dibs.core.ids import IssueRef
from dibs.core.labels import parking_comment
from dibs.core.pipeline import ApprovalGate, SignedGate
from dibs.core.presets import STAGES
from dibs.core.signing import Signed, Strictness, believing, parse_keyring, sign, verify

from .builders import REF, make_comment, make_issue, make_record, make_snapshot, make_try, ruling

SECRET = "correct horse battery"
RING = parse_keyring(f"one:{SECRET}")
LENIENT = parse_keyring(f"one:{SECRET}", Strictness.LENIENT)
OTHERS = parse_keyring("one:another staple and more")
LABELS = ("stage:review", "approved")
ISSUE = make_issue(LABELS)
EARLIER = make_try("advanced", stage="review", run="earlier")


def pipeline_with(gate):
    stages = (
        replace(stage, gate=gate) if stage.name == "review" else stage for stage in STAGES.stages
    )
    return replace(STAGES, stages=tuple(stages))


def shut(*bodies, gate=SignedGate("approved"), ring=RING, tries=(), labels=LABELS, by_writer=True):
    """Why the gate is shut for an issue with these comments; None if it is open."""
    comments = [
        make_comment(body, number, number, by_writer=by_writer)
        for number, body in enumerate(bodies, 1)
    ]
    snapshot = make_snapshot(comments, now=100, labels=labels)
    if ring is not None:
        snapshot = believing(snapshot, ring)
    verdict = judge_claimable(snapshot, tries, pipeline_with(gate), Surroundings())
    texts = [reason.text for reason in verdict.reasons if reason.code is ReasonCode.GATE_SHUT]
    assert len(texts) == len(verdict.reasons) <= 1
    return texts[0] if texts else None


def approval(issue=ISSUE, stage="review", visit="first", *, by=RING, on=REF):
    body = ruling(issue, stage, visit=visit)
    return sign(body, on, by) if by is not None else body


@pytest.mark.parametrize("ring", [RING, LENIENT], ids=["strict", "lenient"])
def test_a_signed_approval_of_the_text_opens_it(ring):
    assert shut(approval(), ring=ring) is None
    assert "nobody approved it" in shut(approval(), ring=ring, labels=["stage:review"])


@pytest.mark.parametrize("ring", [RING, LENIENT, None], ids=["strict", "lenient", "no key"])
@pytest.mark.parametrize(
    "body",
    [
        "looks good to me",
        approval(by=None),
        approval(by=OTHERS),
        approval(on=IssueRef("acme/shop", "8")),
        approval(on=IssueRef("acme/other", "7")),
        approval(stage="ready"),
        approval().replace("v=1", "v=2"),
        approval().replace("by=ann", "by=bob"),
        approval(replace(ISSUE, body="pay mallory")).replace("text=", "text=0"),
        "\n" + approval(),
    ],
    ids=["words", "unsigned", "another key", "another issue", "another repository", "another stage",
         "another version", "another name", "another text", "not the first line"],
)  # fmt: skip
def test_nothing_else_opens_it(ring, body):
    assert "is shut" in shut(body, ring=ring)


def test_without_a_key_not_even_a_signed_approval_counts():
    assert "it is not signed" in shut(approval(), ring=None)


def test_a_strangers_copy_of_a_signed_approval_does_not_count():
    assert "it is not signed" in shut(approval(), by_writer=False)


def test_a_later_change_of_the_text_shuts_it_whatever_is_posted_unsigned():
    other = replace(ISSUE, title="what ann has read")
    assert "it is for another text" in shut(approval(other))
    assert "it is not signed" in shut(approval(other), approval(by=None), ring=LENIENT)
    assert shut(approval(other), approval()) is None


def test_an_approval_is_good_for_one_move():
    """A copy of it, or the label put on again, opens the gate no second time."""
    worked = make_try("advanced", stage="ready", run="before")
    assert shut(approval(), tries=[make_try("failed", stage="review")]) is None
    assert shut(approval(visit="before"), tries=[worked]) is None
    assert "of an earlier visit" in shut(approval(), tries=[EARLIER])
    assert "of an earlier visit" in shut(approval(), approval(), tries=[EARLIER])
    assert shut(approval(), approval(visit="earlier"), tries=[EARLIER]) is None
    assert "of an earlier visit" in shut(approval(visit="earlier"))


def test_a_copy_of_an_old_card_brings_no_old_visit_back():
    used = make_try("advanced", stage="review", run="c")
    assert "of an earlier visit" in shut(approval(visit="earlier"), tries=[EARLIER, used, EARLIER])
    assert shut(approval(visit="c"), tries=[EARLIER, used, EARLIER]) is None


# A gate that asks for no signature, with a key in force


def test_an_unsigned_approval_reopens_no_gate_of_a_strict_fleet():
    gate = ApprovalGate("approved")
    stale = approval(replace(ISSUE, body="as ann has read it"))
    assert "it is for another text" in shut(stale, approval(by=None), gate=gate)
    assert shut(stale, approval(by=None), gate=gate, ring=LENIENT) is None
    assert shut(stale, approval(), gate=gate) is None
    assert shut(gate=gate) is None, "the label alone, as before"


def test_an_approval_of_an_older_dibs_counts_without_a_key():
    stale = approval(replace(ISSUE, body="as ann has read it"), by=None)
    gate = ApprovalGate("approved")
    assert "it is for another text" in shut(stale, gate=gate, ring=None)
    assert shut(stale, approval(by=None), gate=gate, ring=None) is None


# Parked


def test_a_parking_comment_is_signed_and_posted_once():
    record = make_record("parked")
    first = parking_comment(STAGES, record, make_snapshot())
    signed = sign(first, REF, RING)
    assert verify(signed, REF, RING) is Signed.VALID
    assert verify(signed, IssueRef("acme/shop", "8"), RING) is Signed.INVALID
    assert verify(first, REF, RING) is Signed.UNSIGNED
    for body in (first, signed):
        assert parking_comment(STAGES, record, make_snapshot([make_comment(body, 1, 1)])) is None
    forged = believing(make_snapshot([make_comment(first, 1, 1)]), RING)
    assert parking_comment(STAGES, record, forged) == first
