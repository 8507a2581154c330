"""The one place where an effect becomes a call on a tracker.

With a batching tracker it is one trip. With any other it is one call per effect, in the order of
the plan, and then a reading: every write is looked at. Functions beside the protocols, because
both services and the comment store need them and neither may import the other.
"""

from collections.abc import Callable, Sequence
from typing import assert_never

from dibs.core.ids import IssueRef
from dibs.core.issue import Issue, Thread
from dibs.core.painting import Painting
from dibs.core.plan import (
    AddLabels,
    CloseIssue,
    EditComment,
    Effect,
    PostComment,
    RemoveLabels,
)
from dibs.core.steps import Reached, Step, unwatched
from dibs.ports.tracker import Batching, Tracker

_REPAIRS = 5


def apply(
    tracker: Tracker,
    issue: IssueRef,
    effects: Sequence[Effect],
    reached: Reached = unwatched,
) -> Thread:
    """Do it, whatever the issue looks like by now."""
    if not effects:
        return tracker.read(issue)
    if isinstance(tracker, Batching):
        thread = tracker.apply(issue, effects)
        assert thread is not None, "without a condition it is always applied"
        return thread
    for effect in effects:
        _apply_one(tracker, issue, effect, reached)
    return tracker.read(issue)


def apply_to(
    tracker: Tracker, seen: Issue, effects: Sequence[Effect], reached: Reached = unwatched
) -> Thread | None:
    """Do it only if the issue is still as it was seen; None if it is not.

    One step with a batching tracker. With any other a moment remains between looking and doing, in
    which a sleeper may spoil the picture, never the truth.
    """
    if isinstance(tracker, Batching):
        return tracker.apply(seen.ref, effects, seen=seen)
    if tracker.read(seen.ref).issue != seen:
        return None
    return apply(tracker, seen.ref, effects, reached)


def paint_ending(
    tracker: Tracker,
    seen: Thread,
    plan: Callable[[Thread], Painting],
    mark: Sequence[Effect],
    reached: Reached = unwatched,
) -> Thread | None:
    """Labels first, then the mark that says they are shown, then the issue is let go.

    What somebody undid meanwhile is done once more. If it turns out that somebody else had shown it
    already, we painted late, and put right what came of that. None if nothing of this helped, or if
    the issue is not as it was seen: look again.
    """
    paint = plan(seen)
    if isinstance(tracker, Batching):
        effects = (*paint.showing, *mark, *paint.letting_go)
        return tracker.apply(seen.issue.ref, effects, seen=seen.issue)
    painted = apply_to(tracker, seen.issue, paint.showing, reached)
    if painted is None:
        return None
    left = plan(painted)
    if left.shown and not paint.shown:
        return _put_right(tracker, painted, plan, _named(paint.showing, AddLabels))
    if left.labels_differ:
        painted = apply(tracker, seen.issue.ref, left.showing, reached)
        if plan(painted).labels_differ:
            return None
    return apply(tracker, seen.issue.ref, (*mark, *paint.letting_go), reached)


def _put_right(
    tracker: Tracker,
    painted: Thread,
    plan: Callable[[Thread], Painting],
    added: frozenset[str],
) -> Thread:
    """Until nothing is left to put right: who slept once may sleep again while at it."""
    for _ in range(_REPAIRS):
        right = plan(painted).putting_right(added)
        if not right:
            break
        painted = apply(tracker, painted.issue.ref, right)
        added = (added | _named(right, AddLabels)) - _named(right, RemoveLabels)
    return painted


def _named(effects: Sequence[Effect], kind: type[AddLabels] | type[RemoveLabels]) -> frozenset[str]:
    return frozenset(
        label for effect in effects if isinstance(effect, kind) for label in effect.labels
    )


def _apply_one(tracker: Tracker, issue: IssueRef, effect: Effect, reached: Reached) -> None:
    match effect:
        case AddLabels(labels):
            tracker.edit_labels(issue, add=labels)
            reached(Step.FINISH_LABEL_ADDED)
        case RemoveLabels(labels):
            tracker.edit_labels(issue, remove=labels)
            reached(Step.FINISH_LABEL_REMOVED)
        case PostComment(body):
            tracker.comment(issue, body)
            reached(Step.FINISH_SHOWN)
        case EditComment(comment, body):
            tracker.edit_comment(issue, comment, body)
            reached(Step.FINISH_SHOWN)
        case CloseIssue():
            tracker.close(issue)
            reached(Step.FINISH_CLOSED)
        case _:
            assert_never(effect)
