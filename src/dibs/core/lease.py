"""What a lease is, what a store remembers of one, and how one ends.

A `Lease` is the holder's own copy, handed back with every operation, so that yesterday's worker
cannot act on today's lease. A `Record` is the store's word about an issue. Whether the holder may
still *trust* its lease is local time, and lives with the keeper.
"""

from datetime import timedelta
from enum import StrEnum

from msgspec import Struct

from dibs.core.ids import Fence, HolderId, IssueRef, LocalTime, RunId, ServerTime, StageName
from dibs.core.issue import Thread


class Outcome(StrEnum):
    """What came of a lease."""

    ADVANCED = "advanced"
    RETURNED = "returned"
    FAILED = "failed"
    PARKED = "parked"
    CONCEDED = "conceded"


class Ending(Struct, frozen=True):
    """The decision at the end of a lease: the write-ahead record of the label change."""

    outcome: Outcome
    next: StageName | None = None
    note: str = ""


LONGEST_NOTE = 200


def fit_note(text: str) -> str:
    """A note fit for a card: one line, bounded, writable anywhere."""
    return " ".join(text.encode("utf-8", "replace").decode().split())[:LONGEST_NOTE]


class Bid(Struct, frozen=True):
    """A wish for a lease. The run is chosen by the caller, so a retry is recognised as the same."""

    issue: IssueRef
    run: RunId
    holder: HolderId
    stage: StageName
    ttl: timedelta
    limit: int | None = None
    """Refuse if so many leases of this stage are live: the slot is taken with the grant."""
    floor: Fence = Fence(0)
    """No fence up to here is granted again: what another store handed out before."""


class Lease(Struct, frozen=True):
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


class Revocation(Struct, frozen=True):
    """An operator's word on somebody's lease."""

    run: RunId
    by: str
    reason: str
    force: bool = False


class Record(Struct, frozen=True):
    """The latest lease on an issue, as the store tells it. Live or over, the fence stands."""

    lease: Lease
    as_of: ServerTime
    """The store's own time when it said so: no other clock may judge its expiry."""
    ending: Ending | None = None
    painted: bool = True
    """Whether the labels show the ending. If not, whoever comes next paints them."""
    revocation: Revocation | None = None

    @property
    def live(self) -> bool:
        return self.ending is None and self.as_of < self.lease.expires_at

    @property
    def unpainted(self) -> bool:
        """Decided, and nobody has finished painting its labels."""
        return self.ending is not None and not self.painted

    @property
    def remaining(self) -> timedelta:
        return self.lease.expires_at - self.as_of


class Try(Struct, frozen=True):
    """One confirmed lease in an issue's history, as attempts are counted from it."""

    run: RunId
    stage: StageName
    ended_at: ServerTime | None
    """None while it is still running."""
    outcome: Outcome | None
    """None while running, and for a holder that vanished without a word."""
    excused: bool = False
    """An operator took the lease away: not the issue's fault."""


class Standing(Struct, frozen=True):
    """Everything an issue's cards and store say, folded: who holds it, what came before."""

    record: Record | None
    tries: tuple[Try, ...] = ()
    bidding_until: ServerTime | None = None
    """A bid that may still be confirmed is in force until then."""
    highest: Fence = Fence(0)
    """Where cards only show what a store granted: the highest fence among them."""

    @property
    def live(self) -> Record | None:
        return self.record if self.record is not None and self.record.live else None

    @property
    def unpainted(self) -> Record | None:
        """An ending that was decided but whose labels nobody has finished painting."""
        return self.record if self.record is not None and self.record.unpainted else None


# Outcomes of the store's operations: values, matched to the end.


class Granted(Struct, frozen=True):
    lease: Lease
    thread: Thread | None = None
    """The reading the win was proved on, where the store had to make one."""
    asked_at: LocalTime | None = None
    """When that reading was asked for, our bid being there for all to see."""


class Busy(Struct, frozen=True):
    """Another run holds the issue, or its ending is not painted yet."""

    record: Record


class Full(Struct, frozen=True):
    """The issue is free, but its stage has as many live leases as the bid allows."""

    in_flight: int


class Unproven(Struct, frozen=True):
    """The store could not prove a win. Never treated as one."""

    why: str


class Renewed(Struct, frozen=True):
    lease: Lease
    thread: Thread | None = None
    """The issue as it was right after; None if the tracker could not be asked."""


class StopAsked(Struct, frozen=True):
    """Still ours, but a person wants the work to stop: a revoke, a veto label, a closed issue."""

    why: str


class Lost(Struct, frozen=True):
    """Not ours any more. Touch nothing."""

    why: str


class Released(Struct, frozen=True):
    """The ending counts."""

    record: Record


AcquireResult = Granted | Busy | Full | Unproven
RenewResult = Renewed | StopAsked | Lost
ReleaseResult = Released | Lost
