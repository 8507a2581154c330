"""Taking up a lease again in another process that knows nothing but its run.

`dibs claim` in a script hands out a run; `dibs heartbeat` and `dibs release` come back with it.
Trust is rebuilt from what the store says is left, counted from before it was asked.

Claiming an issue that another holds: wait for its lease to end, then ask like anybody else.

Waiting for a lease to end: told by the store where it can, else a jittered, bounded poll.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec import Struct

from dibs.core.durations import LeaseTerms, terms_for
from dibs.core.eligibility import ReasonCode, count_attempts
from dibs.core.errors import BadTtl, Outage
from dibs.core.ids import IssueRef, LocalTime, RunId
from dibs.core.issue import Thread
from dibs.core.lease import Lease, Record, Standing
from dibs.core.pipeline import Stage
from dibs.ports.leases import LeaseStore, Waking
from dibs.ports.system import Clock
from dibs.services.claiming import (
    Beaten,
    Claimed,
    Claiming,
    ClaimOptions,
    ClaimResult,
    Doubtful,
    Refused,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from dibs.services.backlog import Backlog


class NotHeld(Struct, frozen=True):
    """That run does not hold the issue. Whoever does, or did, is in the record."""

    issue: IssueRef
    record: Record | None


class Resuming:
    def __init__(self, backlog: "Backlog") -> None:
        self._tracker = backlog.tracker
        self._leases = backlog.leases
        self._pipeline = backlog.pipeline
        self._clock = backlog.clock

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


_FIRST_POLL_S = 0.05
_LONGEST_POLL_S = 2.0
_LONGEST_LISTEN_S = 5.0
_GROWTH = 1.6


class Waiting:
    """One waiter's patience for one lease. Each pause may end early, and none outlasts the lease
    that it waits for: an expiry makes no noise.
    """

    def __init__(self, store: LeaseStore | None, clock: Clock, dice: "Random") -> None:
        able: object = store
        self._waking = able if isinstance(able, Waking) else None
        self._clock = clock
        self._dice = dice
        self._poll_s = _FIRST_POLL_S

    def pause(self, issue: IssueRef, remaining: timedelta, left_s: float) -> None:
        """Until the lease may be over, and at most `left_s`."""
        # Half a poll more than remains: whoever asks at the very moment is refused once more.
        over_s = max(remaining.total_seconds(), 0.0) + self._dice.uniform(0, self._poll_s / 2)
        poll_s = self._dice.uniform(self._poll_s / 2, self._poll_s)
        self._poll_s = min(self._poll_s * _GROWTH, _LONGEST_POLL_S)
        if self._waking is None:
            self._clock.sleep(min(over_s, left_s, poll_s))
            return
        # A store may keep a lease for a while after its time: then nothing remains, and it is still
        # not over. So no shorter than a poll, which grows.
        listen_s = min(max(over_s, poll_s), left_s, _LONGEST_LISTEN_S)
        try:
            self._waking.await_end(issue, listen_s)
        except Outage as failure:
            if not failure.retryable:
                raise
            self._clock.sleep(min(poll_s, left_s))  # whoever asks next is told


_SOON = timedelta(seconds=1)
_PASSING = {
    ReasonCode.HELD,
    ReasonCode.BID_PENDING,
    ReasonCode.IN_GRACE,
    ReasonCode.UNPAINTED,
    ReasonCode.CLAIM_LABEL_ONLY,
    ReasonCode.WIP_LIMIT,
    ReasonCode.FOREIGN_CLAIM,
}
"""Reasons that go away when others are done. For all else a person must do something."""


class Queueing:
    def __init__(
        self,
        claiming: Claiming,
        store: LeaseStore | None,
        clock: Clock,
        dice: "Callable[[], Random]",
    ) -> None:
        self._claiming, self._store, self._clock, self._dice = claiming, store, clock, dice

    def claim(self, issue: IssueRef, options: ClaimOptions, *, wait_s: float) -> ClaimResult:
        """As `Claiming.claim`, again and again while only another's lease is in the way."""
        until = self._clock.now() + wait_s
        waiting: Waiting | None = None
        while True:
            result = self._claiming.claim(issue, None, options)
            left_s = until - self._clock.now()
            remaining = _in_the_way_for(result)
            if remaining is None or left_s <= 0:
                return result
            waiting = waiting or Waiting(self._store, self._clock, self._dice())
            waiting.pause(issue, remaining, left_s)


def _in_the_way_for(result: ClaimResult) -> timedelta | None:
    """How long at most, as far as can be told; None if waiting would not help."""
    match result:
        case Beaten(_, record):
            return record.remaining
        case Refused(_, reasons) if all(reason.code in _PASSING for reason in reasons):
            return _SOON
        case Doubtful():
            return _SOON
        case _:
            return None
