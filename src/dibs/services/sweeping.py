"""One bounded pass over claimed issues: finish what was left half painted, free what is over.

A sweep never ends a live lease. It only brings the picture back to the truth; whoever wants the
issue afterwards bids for it like anybody else. Every worker sweeps, so recovery needs no job of
its own.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from dibs.core.eligibility import abandoned_at
from dibs.core.errors import NoSuchIssue
from dibs.core.events import Event, EventKind
from dibs.core.ids import IssueRef, later
from dibs.core.issue import Thread
from dibs.core.lease import Record, Standing
from dibs.core.pipeline import Pipeline
from dibs.core.plan import freeing_effects
from dibs.ports.applying import apply
from dibs.ports.journal import Journal
from dibs.ports.leases import ShownLeases
from dibs.ports.paging import walk
from dibs.ports.tracker import IssueQuery, Tracker
from dibs.services.claiming import Claiming


class Sweep(StrEnum):
    """What a sweep does with one claimed issue."""

    LIVE = "live"
    YOUNG = "young"
    ROLLED_FORWARD = "rolled_forward"
    FREED = "freed"


@dataclass(frozen=True, slots=True)
class Swept:
    issue: IssueRef
    action: Sweep
    text: str


@dataclass(frozen=True, slots=True)
class SweepReport:
    looked_at: int
    swept: tuple[Swept, ...]
    resume_after: IssueRef | None = None
    """Where the next pass goes on, if this one ended at its limit."""

    @property
    def changed(self) -> tuple[Swept, ...]:
        return tuple(
            entry for entry in self.swept if entry.action in (Sweep.ROLLED_FORWARD, Sweep.FREED)
        )


class Sweeping:
    def __init__(
        self,
        tracker: Tracker,
        leases: ShownLeases,
        pipeline: Pipeline,
        claiming: Claiming,
        journal: Journal,
        *,
        grace: timedelta,
    ) -> None:
        self._tracker = tracker
        self._leases = leases
        self._pipeline = pipeline
        self._claiming = claiming
        self._journal = journal
        self._grace = grace

    def sweep(
        self, *, limit: int = 1000, dry_run: bool = False, after: IssueRef | None = None
    ) -> SweepReport:
        """Look at `limit` claimed issues; `after` goes on where a bounded pass ended."""
        swept = []
        claimed = (self._pipeline.labels.claimed,)  # closed ones too: they can be stuck
        query = IssueQuery(claimed, limit=limit, after=after, closed_too=True)
        for issue in walk(self._tracker, query):
            with suppress(NoSuchIssue):  # deleted or transferred since it was listed
                swept.append(self._one(issue.ref, dry_run=dry_run))
        last = swept[-1].issue if swept and len(swept) == limit else None
        return SweepReport(len(swept), tuple(swept), resume_after=last)

    def _one(self, ref: IssueRef, *, dry_run: bool) -> Swept:
        thread = self._tracker.read(ref)
        standing = self._leases.standing(thread)
        if standing.unpainted is not None and thread.complete:
            if not dry_run:
                self._claiming.roll_forward(standing.unpainted, thread)
            return Swept(ref, Sweep.ROLLED_FORWARD, _rolled(standing.unpainted))
        if (why := self._keep(thread, standing)) is not None:
            return why
        if not dry_run:
            self._free(thread)
        return Swept(ref, Sweep.FREED, "no lease is live; its labels were taken off")

    def _keep(self, thread: Thread, standing: Standing) -> Swept | None:
        ref, record = thread.issue.ref, standing.record
        if record is not None and record.live:
            return Swept(ref, Sweep.LIVE, f"{record.lease.holder} holds it")
        if standing.bidding_until is not None and thread.now < standing.bidding_until:
            return Swept(ref, Sweep.YOUNG, "somebody is bidding for it")
        if not thread.complete:
            return Swept(ref, Sweep.YOUNG, "not all its comments could be read")
        if record is None:
            if thread.now < abandoned_at(thread.issue, self._pipeline):
                return Swept(ref, Sweep.YOUNG, "claimed without a card, less than a ttl ago")
        elif record.ending is None and record.as_of < later(record.lease.expires_at, self._grace):
            return Swept(ref, Sweep.YOUNG, "expired, and still in its grace")
        return None

    def _free(self, thread: Thread) -> None:
        paint = freeing_effects(self._pipeline, thread.issue.labels)
        apply(self._tracker, thread.issue.ref, paint)
        self._journal.append(Event(EventKind.FREED, issue=thread.issue.ref, at=thread.now))


def _rolled(record: Record) -> str:
    assert record.ending is not None, "only an ending is rolled forward"
    onward = f" to {record.ending.next}" if record.ending.next else ""
    return f"{record.lease.holder} had {record.ending.outcome.value} it{onward}; labels finished"
