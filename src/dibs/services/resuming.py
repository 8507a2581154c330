"""Taking up a lease again in another process that knows nothing but its run.

`dibs claim` in a script hands out a run; `dibs heartbeat` and `dibs release` come back with it.
Trust is rebuilt from what the store says is left, counted from before it was asked.
"""

from datetime import timedelta

from msgspec import Struct

from dibs.core.attempts import count_attempts
from dibs.core.errors import BadTtl
from dibs.core.ids import IssueRef, LocalTime, RunId
from dibs.core.issue import Thread
from dibs.core.lease import Lease, Record, Standing
from dibs.core.pipeline import Pipeline, Stage
from dibs.core.terms import LeaseTerms, terms_for
from dibs.ports.clock import Clock
from dibs.ports.leases import ShownLeases
from dibs.ports.tracker import Tracker
from dibs.services.claiming import Claimed


class NotHeld(Struct, frozen=True):
    """That run does not hold the issue. Whoever does, or did, is in the record."""

    issue: IssueRef
    record: Record | None


class Resuming:
    def __init__(
        self, tracker: Tracker, leases: ShownLeases, pipeline: Pipeline, clock: Clock
    ) -> None:
        self._tracker = tracker
        self._leases = leases
        self._pipeline = pipeline
        self._clock = clock

    def resume(self, issue: IssueRef, run: RunId) -> Claimed | NotHeld:
        asked_at = self._clock.now()
        thread = self._tracker.read(issue)
        return self._resume(thread, self._leases.standing(thread), run, asked_at)

    def resume_on(self, thread: Thread, run: RunId, asked_at: LocalTime) -> Claimed | NotHeld:
        """The same on a reading that was asked for at `asked_at`."""
        return self._resume(thread, self._leases.standing(thread), run, asked_at)

    def resume_as(self, issue: IssueRef, holder: str) -> Claimed | NotHeld:
        """The same for a person, who remembers a name and not a run."""
        asked_at = self._clock.now()
        thread = self._tracker.read(issue)
        standing = self._leases.standing(thread)
        if standing.live is None or standing.live.lease.holder != holder:
            return NotHeld(issue, standing.record)
        return self._resume(thread, standing, standing.live.lease.run, asked_at)

    def _resume(
        self, thread: Thread, standing: Standing, run: RunId, asked_at: LocalTime
    ) -> Claimed | NotHeld:
        lease = self._leases.mine(thread, run)
        if lease is None or standing.live is None:
            return NotHeld(thread.issue.ref, standing.record)
        stage = self._pipeline.stage(lease.stage)
        spent: timedelta = lease.ttl - standing.live.remaining
        return Claimed(
            lease=lease,
            stage=stage,
            terms=_terms(lease, stage),
            asked_at=LocalTime(asked_at - spent.total_seconds()),
            thread=thread,
            failed_attempts=count_attempts(standing.tries, stage).failed,
        )


def _terms(lease: Lease, stage: Stage) -> LeaseTerms:
    try:
        return terms_for(lease.ttl, grain=stage.terms.grain, max_hold=stage.terms.max_hold)
    except ValueError as flaw:  # claimed by a program that counts otherwise
        raise BadTtl(f"run {lease.run} on {lease.issue}: {flaw}") from flaw
