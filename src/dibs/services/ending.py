"""Ending a lease: advance, give back, count a failure, park.

The ending is decided first and painted after, so that the next worker can finish what a crash in
between left. A holder that has lost its lease is refused and changes nothing.
"""

from typing import TYPE_CHECKING, assert_never

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.errors import Outage
from dibs.core.events import EventKind, Step, about
from dibs.core.ids import StageName
from dibs.core.issue import Snapshot
from dibs.core.labels import Painting, ending_paint
from dibs.core.lease import Ending, Lost, Outcome, Record, Released, StopAsked, fit_note
from dibs.services.backlog import Rests
from dibs.services.keeping import Keeper

if TYPE_CHECKING:
    from dibs.services.backlog import Backlog


class Finished(Struct, frozen=True):
    """The ending counts. If `record.painted` is false, the next reader paints the labels."""

    record: Record
    ending: Ending
    left_in: tuple[StageName, ...] = ()
    """An advance that moved nothing: a person had put the issue into this stage meanwhile."""

    @property
    def outcome(self) -> Outcome:
        return self.ending.outcome


class FinishRefused(Struct, frozen=True):
    """The lease was no longer ours: the ending does not count."""

    why: str


FinishResult = Finished | FinishRefused


class Advancing:
    def __init__(self, backlog: "Backlog") -> None:
        self._leases = backlog.leases
        self._pipeline = backlog.pipeline
        self._observer, self._clock = backlog.observer, backlog.clock
        self._reached, self._mask = backlog.reached, backlog.mask
        self._rests = Rests(backlog)

    def advance(self, keeper: Keeper, to: str | None = None, note: str = "") -> FinishResult:
        """Move the issue on. Raises IllegalMove, before any write, if the pipeline forbids it."""
        target = self._pipeline.target(keeper.stage.name, to)
        return self._finish(keeper, Ending(Outcome.ADVANCED, target.name, note))

    def give_back(self, keeper: Keeper, note: str = "") -> FinishResult:
        """Return the issue to its stage. No attempt is counted."""
        return self._finish(keeper, Ending(Outcome.RETURNED, note=note))

    def fail(self, keeper: Keeper, note: str = "") -> FinishResult:
        """Count a failed attempt; the last attempt which the stage allows parks the issue."""
        spent = keeper.failed_attempts + 1 >= keeper.stage.attempts
        return self._finish(keeper, Ending(Outcome.PARKED if spent else Outcome.FAILED, note=note))

    def park(self, keeper: Keeper, note: str = "") -> FinishResult:
        return self._finish(keeper, Ending(Outcome.PARKED, note=note))

    def _finish(self, keeper: Keeper, ending: Ending) -> FinishResult:
        keeper.begin_finishing()
        ending = replace(ending, note=fit_note(self._mask(ending.note)))
        self._reached(Step.FINISH_STARTED)
        condition = keeper.condition
        if isinstance(condition, Lost):
            return self._refuse(keeper, condition.why)
        blamed = ending.outcome in (Outcome.FAILED, Outcome.PARKED)
        if isinstance(condition, StopAsked) and blamed:
            # A person stopped the work: that is not the issue's failure.
            ending = Ending(Outcome.RETURNED, note=ending.note)
        began_at = self._clock.now()
        left_in: set[StageName] = set()

        def paint(record: Record, snapshot: Snapshot) -> Painting:
            painting = ending_paint(self._pipeline, record, snapshot)
            left_in.update(painting.left_in)
            return painting

        try:
            result = self._leases.finish(keeper.lease, ending, paint)
        except Outage:
            keeper.keep_on()  # no decision that we know of: hold the lease, so it can be retried
            raise
        match result:
            case Released(record):
                ending = record.ending or ending  # the run may have ended its lease before
                self._observer.observe(
                    about(
                        _EVENTS[ending.outcome],
                        keeper.lease,
                        at=record.as_of,
                        spans={"took": self._clock.now() - began_at, "held": keeper.held_s},
                        next=ending.next or "",
                        note=ending.note,
                    )
                )
                if ending.outcome is Outcome.FAILED:
                    self._rests.note_failed(keeper.lease.issue)
                return Finished(record, ending, tuple(sorted(left_in)))
            case Lost(why):
                keeper.give_up(why)
                return self._refuse(keeper, why)
            case never:
                assert_never(never)

    def _refuse(self, keeper: Keeper, why: str) -> FinishRefused:
        self._observer.observe(about(EventKind.FINISH_REFUSED, keeper.lease, why=why))
        return FinishRefused(why)


_EVENTS = {
    Outcome.ADVANCED: EventKind.ADVANCED,
    Outcome.RETURNED: EventKind.RETURNED,
    Outcome.FAILED: EventKind.FAILED,
    Outcome.PARKED: EventKind.PARKED,
    Outcome.CONCEDED: EventKind.RETURNED,
}
