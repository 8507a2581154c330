"""What shows an ending, what lets the issue go, and when there is nothing left to do."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dibs.core.labels import (
    AddLabels,
    CloseIssue,
    Painting,
    RemoveLabels,
    ending_effects,
    ending_paint,
    leftovers,
)
from dibs.core.presets import STAGES

from .builders import edited, labels_after, make_record, make_snapshot, shown_by_another

ADVANCED = make_record("advanced", "review", painted=False)
DECIDED = edited("a", "released", 1, 0, prev=20, updated=5, outcome="advanced", target="review")
SHOWN = edited(
    "a", "released", 1, 0, prev=5, updated=9, outcome="advanced", target="review", shown=True
)
TOLD = shown_by_another("a", 2, 9)
OFF = RemoveLabels(("claimed",))
HELD = ("stage:ready", "stage:processing", "claimed")

LABEL_SETS = st.frozensets(st.sampled_from([*STAGES.every_label, "bug"]))
ENDINGS = st.sampled_from(
    [
        ADVANCED,
        make_record("advanced", "done", stage="review", painted=False),
        make_record("advanced", "ready", stage="review", painted=False),
        *(make_record(outcome, painted=False) for outcome in ("returned", "failed", "parked")),
    ]
)


def painting(record, labels, *comments) -> Painting:
    return ending_paint(STAGES, record, make_snapshot(comments, now=30, labels=labels))


def whole(paint: Painting):
    return (*paint.showing, *paint.letting_go)


def test_the_stages_labels_show_the_ending_and_claimed_lets_the_issue_go():
    paint = painting(ADVANCED, HELD, DECIDED)
    assert paint.showing == (
        AddLabels(("stage:review",)),
        RemoveLabels(("stage:ready",)),
        RemoveLabels(("stage:processing",)),
    )
    assert (paint.letting_go, paint.shown) == ((OFF,), False)


@given(ENDINGS, LABEL_SETS)
def test_nothing_but_claimed_waits_for_the_card(record, labels):
    paint = painting(record, labels)
    assert paint.letting_go == (OFF,)
    assert labels_after(paint.showing, labels) & {"claimed"} == labels & {"claimed"}
    assert labels_after(whole(paint), labels) == labels_after(
        ending_effects(STAGES, record, labels), labels
    )


def test_claimed_is_let_go_even_if_the_plan_did_not_see_it():
    """Between the look and the writing a late claimer may have put it on."""
    paint = painting(ADVANCED, ["stage:ready"], DECIDED)
    assert paint.letting_go == (OFF,)


@pytest.mark.parametrize("labels", [("stage:ready",), ("stage:ready", "stage:processing")])
def test_an_ending_is_painted_although_somebody_else_took_claimed_off(labels):
    paint = painting(ADVANCED, labels, DECIDED)
    assert labels_after(whole(paint), frozenset(labels)) == {"stage:review"}


@pytest.mark.parametrize("comments", [(SHOWN,), (DECIDED, TOLD), (SHOWN, TOLD)])
@given(labels=LABEL_SETS.map(lambda labels: labels - {"claimed"}))
def test_what_a_person_does_to_the_labels_of_a_shown_ending_is_the_last_word(comments, labels):
    assume(len(STAGES.stages_of(frozenset(labels))) == 1)
    paint = painting(ADVANCED, labels, *comments)
    assert (paint.showing, paint.letting_go) == ((), ())


@pytest.mark.parametrize("comments", [(SHOWN,), (DECIDED, TOLD)])
def test_an_issue_that_a_late_painter_left_without_any_stage_stands_where_its_run_ended(comments):
    stands = (AddLabels(("stage:review",)),)
    assert painting(ADVANCED, (), *comments).showing == stands
    paint = painting(ADVANCED, ("claimed", "triaged"), *comments)
    assert (paint.showing, paint.letting_go) == (stands, (OFF,))


MOVED_ON = edited(
    "b", "released", 3, 10, prev=12, updated=13, outcome="advanced", target="done", shown=True
)
LONG_AFTER = 10_000


def test_a_stage_that_was_left_behind_comes_off_beside_the_one_it_stands_in():
    labels = ("stage:done", "stage:review")
    old = make_snapshot((SHOWN, MOVED_ON), now=LONG_AFTER, labels=labels)
    assert leftovers(STAGES, old) == (RemoveLabels(("stage:review",)),)


def test_a_person_who_moves_an_issue_is_given_the_time_between_two_labels():
    labels = ("stage:done", "stage:review")
    assert leftovers(STAGES, make_snapshot((SHOWN, MOVED_ON), now=20, labels=labels)) == ()


def test_an_issue_that_is_put_back_to_the_start_was_put_there_by_a_person():
    labels = ("stage:done", "stage:ready")
    assert leftovers(STAGES, make_snapshot((SHOWN, MOVED_ON), now=LONG_AFTER, labels=labels)) == ()


def test_a_stage_where_no_run_has_been_is_a_persons_word():
    assert (
        leftovers(
            STAGES, make_snapshot((SHOWN,), now=LONG_AFTER, labels=("stage:review", "stage:done"))
        )
        == ()
    )
    assert (
        leftovers(
            STAGES, make_snapshot((SHOWN,), now=LONG_AFTER, labels=("stage:ready", "stage:done"))
        )
        == ()
    )


@pytest.mark.parametrize("comments", [(SHOWN,), (DECIDED, TOLD)])
def test_claimed_that_is_left_on_a_shown_ending_comes_off(comments):
    paint = painting(ADVANCED, ("stage:review", "claimed"), *comments)
    assert (paint.showing, paint.letting_go) == ((), (OFF,))


@pytest.mark.parametrize(
    "comments",
    [
        (),
        (DECIDED,),
        (DECIDED, shown_by_another("b", 2, 9)),
        (DECIDED, shown_by_another("a", 2, 9, by_writer=False)),
    ],
)
def test_an_ending_that_nobody_who_counts_says_is_shown_is_painted(comments):
    assert painting(ADVANCED, ("stage:ready",), *comments).labels_differ


@pytest.mark.parametrize(
    ("showing", "differ"),
    [
        ((), False),
        ((CloseIssue(),), False),  # closing twice does no harm, and a label says where it is
        ((AddLabels(("stage:review",)),), True),
        ((RemoveLabels(("stage:ready",)),), True),
        ((AddLabels(("stage:done",)), CloseIssue()), True),
    ],
)
def test_only_labels_that_are_missing_or_left_over_make_a_difference(showing, differ):
    assert Painting(showing, (OFF,)).labels_differ is differ


@given(ENDINGS, LABEL_SETS)
def test_once_its_labels_are_on_nothing_differs_until_somebody_undoes_them(record, labels):
    painted = labels_after(painting(record, labels).showing, labels)
    assert not painting(record, painted).labels_differ
    if painted != labels:
        assert painting(record, labels).labels_differ


def test_an_ending_in_a_stage_the_configuration_has_dropped_only_lets_the_issue_go():
    record = make_record("advanced", "review", stage="old", painted=False)
    paint = painting(record, ("stage:old", "claimed"))
    assert (paint.showing, paint.letting_go, paint.shown) == ((), (OFF,), False)
