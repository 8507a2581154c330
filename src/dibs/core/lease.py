"""What a lease is, what a store remembers of one, and how one ends.

A `Lease` is the holder's own copy, handed back with every operation, so that yesterday's worker
cannot act on today's lease. A `Record` is the store's word about an issue. Whether the holder may
still *trust* its lease is local time, and lives with the keeper.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from dibs.core.ids import Fence, HolderId, IssueRef, RunId, ServerTime, StageName


class Outcome(StrEnum):
    """What came of a lease."""

    ADVANCED = "advanced"
    RETURNED = "returned"
    FAILED = "failed"
    PARKED = "parked"
    CONCEDED = "conceded"


@dataclass(frozen=True, slots=True)
class Ending:
    """The decision at the end of a lease: the write-ahead record of the label change."""

    outcome: Outcome
    next: StageName | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bid:
    """A wish for a lease. The run is chosen by the caller, so a retry is recognised as the same."""

    issue: IssueRef
    run: RunId
    holder: HolderId
    stage: StageName
    ttl: timedelta


@dataclass(frozen=True, slots=True)
class Lease:
    """One grant, as its holder knows it."""

    issue: IssueRef
    run: RunId
    holder: HolderId
    stage: StageName
    fence: Fence
    ttl: timedelta
    granted_at: ServerTime
    expires_at: ServerTime
    beats: int = 0
    card: int | None = None
    """The comment that shows this lease on the tracker, once there is one."""


@dataclass(frozen=True, slots=True)
class Revocation:
    """An operator's word on somebody's lease."""

    run: RunId
    by: str
    reason: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """The latest lease on an issue, as the store tells it. Live or over, the fence stands."""

    lease: Lease
    ending: Ending | None = None
    painted: bool = True
    """Whether the labels show the ending. If not, whoever comes next paints them."""
    revocation: Revocation | None = None

    def live(self, now: ServerTime) -> bool:
        return self.ending is None and now < self.lease.expires_at


@dataclass(frozen=True, slots=True)
class Try:
    """One confirmed lease in an issue's history, as attempts are counted from it."""

    run: RunId
    stage: StageName
    ended_at: ServerTime | None
    """None while it is still running."""
    outcome: Outcome | None
    """None while running, and for a holder that vanished without a word."""
    excused: bool = False
    """An operator took the lease away: not the issue's fault."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Everything an issue's cards and store say, folded: who holds it, what came before."""

    record: Record | None
    tries: tuple[Try, ...] = ()
    bidding_until: ServerTime | None = None
    """A bid that may still be confirmed is in force until then."""

    def holder_at(self, now: ServerTime) -> Lease | None:
        if self.record is not None and self.record.live(now):
            return self.record.lease
        return None

    @property
    def unpainted(self) -> Record | None:
        """An ending that was decided but whose labels nobody has finished painting."""
        record = self.record
        return record if record and record.ending and not record.painted else None


# Outcomes of the store's operations: values, matched to the end.


@dataclass(frozen=True, slots=True)
class Granted:
    lease: Lease


@dataclass(frozen=True, slots=True)
class Busy:
    """Another run holds the issue, or its ending is not painted yet."""

    record: Record
    remaining: timedelta


@dataclass(frozen=True, slots=True)
class Unproven:
    """The store could not prove a win. Never treated as one."""

    why: str


@dataclass(frozen=True, slots=True)
class Renewed:
    lease: Lease


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Still ours, but a person wants the work to stop: a revoke, a veto label, a closed issue."""

    why: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Not ours any more. Touch nothing."""

    why: str


@dataclass(frozen=True, slots=True)
class Released:
    """The ending counts."""

    record: Record


AcquireResult = Granted | Busy | Unproven
RenewResult = Renewed | StopAsked | Lost
ReleaseResult = Released | Lost
