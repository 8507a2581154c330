"""Where the picture contradicts the truth: what is named, what is mended, what is left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.core.labels import (
    AddLabels,
    CloseIssue,
    Flaw,
    FlawCode,
    RemoveLabels,
    diagnose,
)
from dibs.core.lease import Standing
from dibs.core.presets import STAGES

from .builders import REF, at, bid, edited, labels_after, make_comment, make_record, make_snapshot

FREE = Standing(None)
ALMOST = "<!-- claim run=a ttl=soon -->"
LIVE = Standing(make_record(None, expires=120, as_of=100))
OVER = Standing(make_record(None, expires=20, as_of=100))
BIDDING = Standing(None, (), at(110))
ADVANCED = make_record("advanced", "review", as_of=100)
LONG_AGO = 10_000
CODES = FlawCode


def flaws_of(
    labels,
    standing=FREE,
    *,
    now=LONG_AGO,
    open=True,  # noqa: A002
    comments=(),
    updated=0,
    most=None,
):
    snapshot = make_snapshot(comments, now=now, labels=labels, open=open, updated=updated)
    return diagnose(snapshot, standing, STAGES, most_comments=most)


@pytest.mark.parametrize(
    ("labels", "standing", "code", "repair"),
    [
        (
            ["stage:ready", "stage:processing", "claimed"],
            Standing(replace(ADVANCED, painted=False)),
            CODES.UNPAINTED_ENDING,
            (
                AddLabels(("stage:review",)),
                RemoveLabels(("stage:ready",)),
                RemoveLabels(("stage:processing",)),
                RemoveLabels(("claimed",)),
            ),
        ),
        (
            ["stage:ready", "claimed"],
            FREE,
            CODES.CLAIMED_WITHOUT_LEASE,
            (RemoveLabels(("claimed",)),),
        ),
        (
            ["stage:ready", "claimed"],
            OVER,
            CODES.CLAIMED_WITHOUT_LEASE,
            (RemoveLabels(("claimed",)),),
        ),
        (
            ["stage:ready", "stage:processing"],
            OVER,
            CODES.CLAIMED_WITHOUT_LEASE,
            (RemoveLabels(("stage:processing",)),),
        ),
        (
            ["stage:ready"],
            LIVE,
            CODES.LEASE_WITHOUT_LABEL,
            (AddLabels(("claimed", "stage:processing")),),
        ),
        (
            ["stage:ready", "claimed"],
            LIVE,
            CODES.LEASE_WITHOUT_LABEL,
            (AddLabels(("stage:processing",)),),
        ),
        (["stage:ready", "stage:review"], FREE, CODES.SEVERAL_STAGES, ()),
        (["stage:ready", "stage:done"], Standing(ADVANCED), CODES.SEVERAL_STAGES, ()),
        (
            ["stage:ready", "stage:review"],
            Standing(make_record("failed", as_of=100)),
            CODES.SEVERAL_STAGES,
            (),
        ),
        (["stage:done"], FREE, CODES.OPEN_AT_THE_END, (CloseIssue(),)),
    ],
)
def test_a_flaw_is_named_and_mended_only_as_the_truth_says(labels, standing, code, repair):
    (flaw,) = flaws_of(labels, standing)
    assert (flaw.issue, flaw.code, flaw.repair) == (REF, code, repair)
    assert flaw.text


@pytest.mark.parametrize(
    ("count", "most", "is_open", "named"),
    [(7, 10, True, 0), (8, 10, True, 1), (8, 10, False, 0), (8, None, True, 0)],
)
def test_an_issue_that_soon_takes_no_claim_is_named(count, most, is_open, named):
    talk = [make_comment("talk", number, 1) for number in range(count)]
    flaws = flaws_of(["stage:ready"], comments=talk, open=is_open, most=most)
    assert [flaw.code for flaw in flaws] == [CODES.NEARLY_FULL] * named


@pytest.mark.parametrize(
    "body",
    [
        "<!-- claim run=a ttl=60s v=2 -->",
        "<!-- claim of mine -->",
        "<!-- revoke run= -->",
        "<!-- shown run= -->",
    ],
)
def test_a_card_nobody_can_read_is_named_and_left_alone(body):
    comments = [bid("a", 1, 0), make_comment(body, 2, 1), make_comment("talk", 3, 2)]
    (flaw,) = flaws_of(["stage:ready"], comments=comments)
    assert (flaw.code, flaw.repair) == (CODES.UNREADABLE_CARD, ())
    assert "comment 2" in flaw.text


WORKED = edited("a", "released", 1, 0, prev=20, updated=7, outcome="advanced", target="review")


def test_an_issue_that_was_worked_and_lost_its_stage_is_named_and_left_to_a_person():
    """A person may have taken it out of the pipeline; a painting may have failed in part."""
    (flaw,) = flaws_of(["bug"], Standing(ADVANCED), comments=[WORKED])
    assert (flaw.code, flaw.repair) == (CODES.NO_STAGE, ())
    assert "'stage:review'" in flaw.text
    assert flaws_of(["bug"], Standing(ADVANCED), comments=[WORKED], open=False) == ()


@pytest.mark.parametrize(
    ("labels", "standing", "is_open"),
    [
        ([], FREE, True),
        (["bug"], FREE, True),
        (["stage:ready"], FREE, True),
        (["stage:ready"], OVER, True),
        (["stage:review"], Standing(ADVANCED), True),
        (["stage:ready", "claimed", "stage:processing"], LIVE, True),
        (["stage:ready", "claimed"], BIDDING, True),
        (["stage:done"], FREE, False),
        (["gone:stage"], Standing(make_record(None, stage="gone", expires=120, as_of=1)), True),
    ],
)
def test_a_picture_that_shows_the_truth_has_no_flaw(labels, standing, is_open):
    assert flaws_of(labels, standing, open=is_open) == ()


@pytest.mark.parametrize("labels", [["stage:ready"], ["stage:review"]])
def test_an_ending_that_no_card_says_is_painted_is_a_flaw_without_claimed_too(labels):
    """Somebody else may have taken `claimed` off, before or after the stage's labels changed."""
    (flaw,) = flaws_of(labels, Standing(replace(ADVANCED, painted=False)))
    assert flaw.code is CODES.UNPAINTED_ENDING
    assert labels_after(flaw.repair, frozenset(labels)) == {"stage:review"}


def test_half_painted_explains_everything_else():
    labels = ["stage:ready", "stage:review", "claimed"]
    (flaw,) = flaws_of(labels, Standing(replace(ADVANCED, painted=False)))
    assert flaw.code is CODES.UNPAINTED_ENDING


def test_a_claimed_label_without_a_card_is_given_a_full_ttl_before_it_is_taken_off():
    """The protocol's section 7; the sweep keeps to it, so the check must."""
    labels = ["stage:ready", "claimed"]
    young = flaws_of(labels, now=599, updated=0)
    assert all(flaw.repair == () for flaw in young)
    (old,) = flaws_of(labels, now=600, updated=0)
    assert old.repair == (RemoveLabels(("claimed",)),)


@pytest.mark.parametrize("missing", ["pages", "comments"])
def test_an_incomplete_list_mends_nothing(missing):
    """A reader that saw only some of the comments has no verdict: the live card may be missing."""
    snapshot = make_snapshot(now=LONG_AGO, labels=["stage:ready", "stage:processing", "claimed"])
    if missing == "pages":
        snapshot = replace(snapshot, all_pages=False)
    else:
        snapshot = replace(snapshot, issue=replace(snapshot.issue, comment_count=3))
    assert all(flaw.repair == () for flaw in diagnose(snapshot, FREE, STAGES))


def test_a_stage_that_came_back_after_the_painting_was_finished_is_left_to_a_person():
    """The cards say that it is painted, so the old label is no leftover. Somebody put it there."""
    (flaw,) = flaws_of(["stage:ready", "stage:review"], Standing(ADVANCED))
    assert flaw.code is CODES.SEVERAL_STAGES
    assert flaw.repair == ()


ANY_LABELS = st.frozensets(st.sampled_from([*STAGES.every_label, "bug", "area:shop"]))
STANDINGS = st.sampled_from(
    [FREE, LIVE, OVER, BIDDING, Standing(ADVANCED), Standing(replace(ADVANCED, painted=False))]
)


@given(ANY_LABELS, STANDINGS, st.booleans())
def test_a_repaired_issue_has_nothing_left_to_repair_and_keeps_what_is_not_ours(
    labels, standing, is_open
):
    before = labels
    for _ in range(3):
        flaws = flaws_of(labels, standing, open=is_open)
        for flaw in flaws:
            labels = labels_after(flaw.repair, labels)
            is_open = is_open and CloseIssue() not in flaw.repair
        if standing.unpainted is not None:  # whoever paints it says so
            standing = Standing(ADVANCED)
    assert not any(flaw.repair for flaw in flaws_of(labels, standing, open=is_open))
    kept = {"bug", "area:shop", "paused", "parked", "do-not-pickup"}
    assert labels & kept == before & kept


@given(ANY_LABELS, st.booleans())
def test_a_live_lease_is_never_mended_away(labels, is_open):
    after = labels
    for flaw in flaws_of(labels, LIVE, open=is_open):
        after = labels_after(flaw.repair, after)
    assert {"claimed", "stage:processing"} <= after


def test_a_flaw_that_only_a_person_can_decide_repairs_nothing():
    assert Flaw(REF, CODES.SEVERAL_STAGES, "two").repair == ()


def test_every_flaw_has_a_row():
    seen = {
        flaw.code
        for labels, standing, comments in [
            (["claimed"], Standing(replace(ADVANCED, painted=False)), ()),
            (["claimed"], FREE, ()),
            (["stage:ready"], LIVE, ()),
            (["stage:ready", "stage:review"], FREE, ()),
            (["stage:done"], FREE, ()),
            (["bug"], Standing(ADVANCED), (WORKED,)),
            ([], FREE, (make_comment("<!-- claim x -->", 1, 0),)),
        ]
        for flaw in flaws_of(labels, standing, comments=comments, most=1)
    }
    assert seen == set(FlawCode)


@pytest.mark.parametrize("by_writer", [True, False])
def test_a_stranger_cannot_fill_the_list_of_flaws(by_writer):
    junk = [make_comment(ALMOST, number, 0, by_writer=by_writer) for number in range(1, 4)]
    codes = [flaw.code for flaw in flaws_of(["stage:ready"], comments=junk)]
    assert codes == [CODES.UNREADABLE_CARD] * (3 if by_writer else 0)
