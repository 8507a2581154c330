"""Label changes where a stage gives way to `claimed`, and finding out whether one came too late.

Taking the labels of a vanished holder off puts the stage back. A sweeper that slept since it looked
would put it back onto an issue that others have moved on meanwhile. So the reply is read: if the
issue has been led on, what was added is taken back. Whoever holds it by then repaints it.

The one place where an effect becomes a call on a tracker.

With a batching tracker it is one step, with a tracker of one trip one request. With any other it is
one call per effect, in the order of the plan, and then a reading: every write is looked at.
Functions beside the protocols, because both services and the comment store need them and neither
may import the other.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import assert_never

from msgspec.structs import replace

from dibs.core.card import same_mark
from dibs.core.errors import Outage, Unavailable
from dibs.core.events import Reached, unwatched
from dibs.core.ids import IssueRef
from dibs.core.issue import Issue, Thread
from dibs.core.labels import (
    AddLabels,
    CloseIssue,
    EditComment,
    Effect,
    Painting,
    PostComment,
    RemoveLabels,
    fallen_out,
    freeing_effects,
    put_right,
)
from dibs.core.lease import Outcome, Standing
from dibs.core.pipeline import Pipeline, Stage
from dibs.ports.leases import ShownLeases
from dibs.ports.system import Clock
from dibs.ports.tracker import Applies, Tracker

_REPAIRS = 5


def in_one_request(tracker: Tracker) -> bool:
    """Whether several effects are one request and not one step: any part of it may happen."""
    return tracker.traits.applies is Applies.IN_ONE_REQUEST


def apply(
    tracker: Tracker,
    issue: IssueRef,
    effects: Sequence[Effect],
    reached: Reached = unwatched,
) -> Thread:
    """Do the effects, however the issue looks by now."""
    if not effects:
        return tracker.read(issue)
    thread = tracker.apply(issue, effects, reached=reached)
    assert thread is not None, "without a condition the effects are always applied"
    return thread


def apply_to(
    tracker: Tracker, seen: Issue, effects: Sequence[Effect], reached: Reached = unwatched
) -> Thread | None:
    """Do the effects only if the issue is still as it was seen; None if it is not.

    Only a tracker that applies in one step keeps this strictly. With any other a moment remains
    between looking and doing, in which a sleeper may spoil the picture, never the truth. Where
    several effects are one request, that moment begins when the issue was seen: a look just before
    would cost as much again and change little.
    """
    if not effects and in_one_request(tracker):
        return tracker.read(seen.ref)
    return tracker.apply(seen.ref, effects, if_unchanged=seen, reached=reached)


def paint_ending(
    tracker: Tracker,
    seen: Thread,
    plan: Callable[[Thread], Painting],
    mark: Sequence[Effect],
    reached: Reached = unwatched,
    *,
    tried_on: Thread | None = None,
) -> Thread | None:
    """Labels first, then the mark that says they are shown, then the issue is let go.

    What somebody undid meanwhile is done once more. If it turns out that somebody else had shown it
    already, we painted late, and put right what came of that. None if nothing of this helped, or if
    the issue is not as it was seen: look again.

    `tried_on` is what was seen before a trip of ours of which any part may have happened.
    """
    match tracker.traits.applies:
        case Applies.IN_ONE_STEP:
            paint = plan(seen)
            effects = (*paint.showing, *mark, *paint.letting_go)
            return tracker.apply(seen.issue.ref, effects, if_unchanged=seen.issue)
        case Applies.IN_ONE_REQUEST if tried_on is not None:
            return _paint_the_rest(tracker, seen, plan, mark, tried_on)
        case Applies.IN_ONE_REQUEST:
            return _paint_in_a_trip(tracker, seen, plan, mark)
        case Applies.ONE_BY_ONE:
            return _paint_step_by_step(tracker, seen, plan, mark, reached)


def _paint_step_by_step(
    tracker: Tracker,
    seen: Thread,
    plan: Callable[[Thread], Painting],
    mark: Sequence[Effect],
    reached: Reached,
) -> Thread | None:
    paint = plan(seen)
    painted = apply_to(tracker, seen.issue, paint.showing, reached)
    if painted is None:
        return None
    left = plan(painted)
    if left.shown and not paint.shown:
        again = partial(apply, tracker, seen.issue.ref)
        return _put_right(again, painted, plan, _named(paint.showing, AddLabels))
    if left.labels_differ:
        painted = apply(tracker, seen.issue.ref, _once_more(left.showing), reached)
        if plan(painted).labels_differ:
            return None
    return apply(tracker, seen.issue.ref, (*mark, *paint.letting_go), reached)


def _paint_in_a_trip(
    tracker: Tracker, seen: Thread, plan: Callable[[Thread], Painting], mark: Sequence[Effect]
) -> Thread:
    """All of it at once; the reply tells whether somebody was there before us, or undid it."""
    again = partial(apply, tracker, seen.issue.ref)
    paint = plan(seen)
    painted = again((*paint.showing, *mark, *paint.letting_go))
    if not painted.complete:
        raise Unavailable(f"{seen.issue.ref}: the reply does not show all comments")
    left = plan(_unsaid(painted, seen, mark))
    if left.shown and not paint.shown:
        return _put_right(again, painted, plan, _named(paint.showing, AddLabels))
    return again(_once_more(left.showing)) if left.labels_differ else painted


def _paint_the_rest(
    tracker: Tracker,
    seen: Thread,
    plan: Callable[[Thread], Painting],
    mark: Sequence[Effect],
    before: Thread,
) -> Thread:
    """After a trip of which any part may have happened: what it said proves nothing."""
    said, left = plan(seen), plan(_unsaid(seen, before, mark))
    if left.shown:
        return repair_labels(tracker, seen, plan, before)
    effects = (*left.showing, *(() if said.shown else mark), *said.letting_go)
    return apply(tracker, seen.issue.ref, effects) if effects else seen


def repair_labels(
    tracker: Tracker, seen: Thread, plan: Callable[[Thread], Painting], tried_on: Thread
) -> Thread:
    """Others have gone on meanwhile: take back what a trip of ours may have added since."""
    again = partial(apply, tracker, seen.issue.ref)
    return _put_right(again, seen, plan, _named(plan(tried_on).showing, AddLabels))


def _unsaid(painted: Thread, seen: Thread, mark: Sequence[Effect]) -> Thread:
    """The reply as if we had not said that it is shown: whoever else said so stands out then."""
    before = {comment.id: comment for comment in seen.comments}
    comments = list(painted.comments)
    for effect in mark:
        match effect:
            case EditComment(number):
                comments = [
                    before.get(one.id, one) if one.id == number else one for one in comments
                ]
            case PostComment(body):
                ours = [
                    one for one in comments if one.id not in before and same_mark(one.body, body)
                ]
                comments = [one for one in comments if one not in ours[-1:]]
            case AddLabels() | RemoveLabels() | CloseIssue():
                pass
            case never:
                assert_never(never)
    return replace(painted, comments=tuple(comments))


def _once_more(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """What is closed stays closed, whether a reading shows it already or not."""
    return tuple(effect for effect in effects if not isinstance(effect, CloseIssue))


def _put_right(
    again: Callable[[Sequence[Effect]], Thread],
    painted: Thread,
    plan: Callable[[Thread], Painting],
    added: frozenset[str],
) -> Thread:
    """Until nothing is left to put right: who slept once may sleep again while at it.

    Where an issue stands is what its last card says, so a list that lacks some says nothing.
    """
    for _ in range(_REPAIRS):
        if not painted.complete:
            painted = again(())
            continue
        right = plan(painted).putting_right(added)
        if not right:
            break
        painted = again(right)
        added = (added | _named(right, AddLabels)) - _named(right, RemoveLabels)
    return painted


def _named(effects: Sequence[Effect], kind: type[AddLabels] | type[RemoveLabels]) -> frozenset[str]:
    return frozenset(
        label for effect in effects if isinstance(effect, kind) for label in effect.labels
    )


def put_back(
    tracker: Tracker, clock: Clock, pipeline: Pipeline, stage: Stage, issue: IssueRef
) -> None:
    """For whoever painted a claim and may have been too late: if that took the last label off that
    anybody would find the issue by, its stage is put back. Looked at when every reader sees it.
    """
    if not (stage.gives_way and pipeline.swaps_labels):
        return
    clock.sleep(tracker.traits.settle.total_seconds())
    with suppress(Outage):
        labels = tracker.read(issue).issue.labels
        if missing := fallen_out(pipeline, stage, labels):
            apply(tracker, issue, missing)


class Freeing:
    def __init__(self, tracker: Tracker, leases: ShownLeases, pipeline: Pipeline) -> None:
        self._tracker = tracker
        self._leases = leases
        self._pipeline = pipeline

    def free(
        self, thread: Thread, standing: Standing, *, first: Sequence[Effect] = ()
    ) -> Thread | None:
        """The issue as it is after that; None if it was not as it was seen, or not any more."""
        worked = standing.record.lease.stage if standing.record is not None else None
        paint = freeing_effects(self._pipeline, thread.issue.labels, worked)
        freed = apply_to(self._tracker, thread.issue, (*first, *paint))
        if freed is None:
            return None
        added = _added(paint)
        if not added or not self._led_on(freed):
            return freed
        self._put_right(freed, added)
        return None

    def _led_on(self, freed: Thread) -> bool:
        if not freed.complete:
            return False  # an incomplete list decides nothing
        record = self._leases.standing(freed).record
        ending = record.ending if record is not None else None
        return ending is not None and ending.outcome is Outcome.ADVANCED

    def _put_right(self, freed: Thread, added: frozenset[str]) -> None:
        """Until nothing is left to put right: who slept once may sleep again while at it."""
        for _ in range(_REPAIRS):
            right = put_right(self._pipeline, freed, added)
            if not right:
                return
            freed = apply(self._tracker, freed.issue.ref, right)
            added = _added(right)


def _added(effects: Sequence[Effect]) -> frozenset[str]:
    return frozenset(label for one in effects if isinstance(one, AddLabels) for label in one.labels)
