"""Taking up a lease again in another process, and waiting for the lease of another holder.

Taking up: `dibs claim` in a script prints a run; `dibs heartbeat` and `dibs release` name the run
again. The store tells how much of the ttl remains; trust is counted from before the request.

Waiting: `Queueing` claims an issue that another run holds as soon as the lease ends, with no
advantage over other bidders. `LeaseWaiter` waits for the end: by a notice from the store if the
store sends one, else by a jittered, bounded poll.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.durations import terms_for
from dibs.core.eligibility import ReasonCode, count_attempts, reasons_with
from dibs.core.errors import BadTtl, Outage
from dibs.core.ids import IssueRef, LocalTime, RunId, StageName
from dibs.core.issue import Snapshot
from dibs.core.lease import Record, Standing
from dibs.core.named import is_named
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
    from dibs.services.board import Board
    from dibs.services.running import Running


class NotHeld(Struct, frozen=True):
    """The run does not hold the issue; `record` shows the present or the last holder."""

    issue: IssueRef
    record: Record | None


class Resuming:
    def __init__(self, backlog: "Backlog") -> None:
        self._tracker = backlog.tracker
        self._leases = backlog.leases
        self._pipeline = backlog.pipeline
        self._clock = backlog.clock

    def find(self, run: RunId) -> IssueRef | None:
        """The issue that the run holds now; None if no live lease belongs to the run."""
        held = (record.lease for record in self._leases.live(limit=_MOST_LIVE))
        found = (lease.issue for lease in held if lease.run == run)
        return next((issue for issue in found if not is_named(issue)), None)

    def resume(self, issue: IssueRef, run: RunId) -> Claimed | NotHeld:
        """Take up the lease of `run` on the issue."""
        asked_at = self._clock.now()
        snapshot = self._tracker.read(issue)
        return self._resume(snapshot, self._leases.standing(snapshot), run, asked_at)

    def resume_on(self, snapshot: Snapshot, run: RunId, asked_at: LocalTime) -> Claimed | NotHeld:
        """Like `resume`, on a snapshot that was requested at `asked_at`."""
        return self._resume(snapshot, self._leases.standing(snapshot), run, asked_at)

    def resume_as(self, issue: IssueRef, holder: str) -> Claimed | NotHeld:
        """Like `resume`, for a person, who remembers a name and not a run."""
        asked_at = self._clock.now()
        snapshot = self._tracker.read(issue)
        standing = self._leases.standing(snapshot)
        if standing.live is None or standing.live.lease.holder != holder:
            return NotHeld(issue, standing.record)
        return self._resume(snapshot, standing, standing.live.lease.run, asked_at)

    def _resume(
        self, snapshot: Snapshot, standing: Standing, run: RunId, asked_at: LocalTime
    ) -> Claimed | NotHeld:
        lease = self._leases.mine(snapshot, run)
        if lease is None or standing.live is None:
            return NotHeld(snapshot.issue.ref, standing.record)
        stage = self._pipeline.stage(lease.stage)
        spent: timedelta = lease.ttl - standing.live.remaining
        limits = stage.terms
        try:
            terms = terms_for(lease.ttl, grain=limits.grain, max_hold=limits.max_hold)
        except ValueError as flaw:  # claimed by a program with other rules for a ttl
            raise BadTtl(f"run {lease.run} on {lease.issue}: {flaw}") from flaw
        return Claimed(
            lease=lease,
            stage=stage,
            terms=terms,
            asked_at=LocalTime(asked_at - spent.total_seconds()),
            snapshot=snapshot,
            failed_attempts=count_attempts(standing.tries, stage).failed,
        )


_MOST_LIVE = 100_000
_FIRST_POLL_S = 0.05
_LONGEST_POLL_S = 2.0
_LONGEST_LISTEN_S = 5.0
_GROWTH = 1.6


class LeaseWaiter:
    """Pauses of growing length until a lease may be over.

    Each pause may end early. No pause outlasts the lease by much, because a store sends no notice
    when a lease expires.
    """

    def __init__(self, store: LeaseStore | None, clock: Clock, dice: "Random") -> None:
        self._store: object = store
        self._clock = clock
        self._dice = dice
        self._poll_s = _FIRST_POLL_S

    def pause(self, issue: IssueRef, remaining: timedelta, left_s: float) -> None:
        """Wait until the lease may be over, at most `left_s`."""
        # Up to half a poll more than remains: a claim at the very moment of expiry is refused.
        over_s = max(remaining.total_seconds(), 0.0) + self._dice.uniform(0, self._poll_s / 2)
        poll_s = self._dice.uniform(self._poll_s / 2, self._poll_s)
        self._poll_s = min(self._poll_s * _GROWTH, _LONGEST_POLL_S)
        if not isinstance(self._store, Waking):  # asked here: most holds never wait
            self._clock.sleep(min(over_s, left_s, poll_s))
            return
        # A store may keep a lease for a while after its ttl: then nothing remains, and the lease is
        # still not over. So listen no shorter than a poll, which grows.
        listen_s = min(max(over_s, poll_s), left_s, _LONGEST_LISTEN_S)
        try:
            self._store.await_end(issue, listen_s)
        except Outage as failure:
            if not failure.retryable:
                raise
            self._clock.sleep(min(poll_s, left_s))  # the next claim meets the outage, if it lasts


_SOON = timedelta(seconds=1)
_PASSING = reasons_with(lambda meaning: meaning.others_end_it)
"""Reasons that go away when other runs are done. All other reasons need a person."""


class Queueing:
    def __init__(
        self,
        backlog: "Backlog",
        claiming: Claiming,
        store: LeaseStore | None,
        dice: "Callable[[], Random]",
        *,
        board: "Callable[[], Board]",
        running: "Callable[[], Running]",
        poll_s: float,
    ) -> None:
        """`poll_s`: the time between two looks for the next issue."""
        self._tracker, self._clock = backlog.tracker, backlog.clock
        self._claiming, self._store, self._dice = claiming, store, dice
        self._board, self._running, self._poll_s = board, running, poll_s

    def claim_next(
        self, options: ClaimOptions, *, stage: StageName | None = None, wait_s: float = 0.0
    ) -> Claimed | None:
        """Claim the first issue on offer that this process wins; wait for one up to `wait_s`.

        An issue without attempts left is parked on the way, as a worker does it.
        """
        until = self._clock.now() + wait_s
        from dibs.services.board import RowState  # only `claim --next` needs these two
        from dibs.services.scanning import COSTLY

        costs = self._tracker.traits.shortlists
        poll_s = max(self._poll_s, COSTLY.kept_s) if costs else self._poll_s
        while True:
            for row in self._board().offers(stage=stage, to_claim=True):
                how, wanted = options, row.stage if stage else None
                if row.state is RowState.PARKED:
                    overlook = options.overlook | {ReasonCode.ATTEMPTS_SPENT}
                    how = replace(options, overlook=overlook)
                result = self._claiming.claim(row.issue.ref, wanted, how)
                if not isinstance(result, Claimed):
                    continue
                if how is options or result.failed_attempts < result.stage.attempts:
                    return result
                self._running().park(result)
            left_s = until - self._clock.now()
            if left_s <= 0:
                return None
            self._clock.sleep(min(left_s, poll_s * self._dice().uniform(0.5, 1.0)))

    def claim(self, issue: IssueRef, options: ClaimOptions, *, wait_s: float) -> ClaimResult:
        """Like `Claiming.claim`, repeated for `wait_s` while the only obstacle is another run."""
        until = self._clock.now() + wait_s
        waiter: LeaseWaiter | None = None
        while True:
            result = self._claiming.claim(issue, None, options)
            left_s = until - self._clock.now()
            match result:
                case Beaten(_, record):
                    remaining = record.remaining
                case Refused(_, reasons) if all(reason.code in _PASSING for reason in reasons):
                    remaining = _SOON
                case Doubtful():
                    remaining = _SOON
                case _:  # claimed, or waiting would not help
                    return result
            if left_s <= 0:
                return result
            waiter = waiter or LeaseWaiter(self._store, self._clock, self._dice())
            waiter.pause(issue, remaining, left_s)
