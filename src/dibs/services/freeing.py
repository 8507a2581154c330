"""Label changes where a stage gives way to `claimed`, and finding out whether one came too late.

Taking the labels of a vanished holder off puts the stage back. A sweeper that slept since it looked
would put it back onto an issue that others have moved on meanwhile. So the reply is read: if the
issue has been led on, what was added is taken back. Whoever holds it by then repaints it.
"""

from collections.abc import Sequence
from contextlib import suppress

from dibs.core.errors import Outage
from dibs.core.ids import IssueRef
from dibs.core.issue import Thread
from dibs.core.lease import Outcome, Standing
from dibs.core.painting import put_right
from dibs.core.pipeline import Pipeline, Stage
from dibs.core.plan import AddLabels, Effect, fallen_out, freeing_effects
from dibs.ports.applying import apply, apply_to
from dibs.ports.clock import Clock
from dibs.ports.leases import ShownLeases
from dibs.ports.tracker import Tracker

_REPAIRS = 5


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
