"""Leases, the records which a store keeps of them, and their endings.

A `Lease` is the holder's own copy. The holder hands it back with every operation, so that
yesterday's worker cannot act on today's lease. A `Record` is the store's view of the last lease on
an issue. Whether the holder may still *trust* its lease is a matter of local time: see the keeper
(`services.keeping`).
"""

from datetime import timedelta
from enum import StrEnum

from msgspec import Struct

from dibs.core.ids import Fence, HolderId, IssueRef, LocalTime, RunId, ServerTime, StageName
from dibs.core.issue import Snapshot


class Outcome(StrEnum):
    """How a lease ended."""

    ADVANCED = "advanced"
    RETURNED = "returned"
    FAILED = "failed"
    PARKED = "parked"
    CONCEDED = "conceded"


class Ending(Struct, frozen=True, omit_defaults=True):
    """The holder's decision at the end of a lease: the write-ahead record of the label change."""

    outcome: Outcome
    next: StageName | None = None
    note: str = ""


LONGEST_NOTE = 200


def fit_note(text: str) -> str:
    """The text as a note for a card: one line, at most 200 characters, valid UTF-8."""
    return " ".join(text.encode("utf-8", "replace").decode().split())[:LONGEST_NOTE]


_ASKS = "asks: "


def asking(words: str) -> str:
    """The note of a parking that is no failure: the handler asks a person."""
    return f"{_ASKS}{words}"


def asked(ending: Ending) -> bool:
    """Whether the ending parks the issue because the handler asks a person."""
    return ending.outcome is Outcome.PARKED and ending.note.startswith(_ASKS)


class Bid(Struct, frozen=True):
    """A wish for a lease. The caller chooses the run, so a store recognises a retry."""

    issue: IssueRef
    run: RunId
    holder: HolderId
    stage: StageName
    ttl: timedelta
    limit: int | None = None
    """Refuse if so many leases of this stage are live; the store counts and grants in one step."""
    floor: Fence = Fence(0)
    """The highest fence that another store granted before: the new fence must be above it."""


class Lease(Struct, frozen=True):
    """One grant: the holder's own copy."""

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
    """The id of the comment that shows this lease on the tracker; None before it is posted."""


class Revocation(Struct, frozen=True):
    """An operator's order to end a run's lease: after notice, or at once if forced."""

    run: RunId
    by: str
    reason: str
    force: bool = False


class Record(Struct, frozen=True):
    """The store's view of the last lease on an issue. Live or over, its fence stands."""

    lease: Lease
    as_of: ServerTime
    """The store's own time of this view: no other clock may judge the expiry."""
    ending: Ending | None = None
    painted: bool = True
    """False if the labels do not show the ending yet: then the next worker paints them."""
    revocation: Revocation | None = None

    @property
    def live(self) -> bool:
        return self.ending is None and self.as_of < self.lease.expires_at

    @property
    def unpainted(self) -> bool:
        """Whether the lease has an ending which the labels do not show yet."""
        return self.ending is not None and not self.painted

    @property
    def remaining(self) -> timedelta:
        return self.lease.expires_at - self.as_of


class Try(Struct, frozen=True):
    """One confirmed lease in an issue's history: the unit in which attempts are counted."""

    run: RunId
    stage: StageName
    ended_at: ServerTime | None
    """None while the lease is running."""
    outcome: Outcome | None
    """None while the lease is running, and for a holder that vanished without an ending."""
    excused: bool = False
    """No failure of the issue: an operator took the lease away, or the handler was at fault."""


class Standing(Struct, frozen=True):
    """Where an issue stands, by cards and store: the last lease, and the tries before."""

    record: Record | None
    tries: tuple[Try, ...] = ()
    bidding_until: ServerTime | None = None
    """Until when a bid is in force that may still be confirmed; None without such a bid."""
    highest: Fence = Fence(0)
    """Where cards only show the leases of an atomic store: the highest fence on the cards."""

    @property
    def live(self) -> Record | None:
        return self.record if self.record is not None and self.record.live else None

    @property
    def unpainted(self) -> Record | None:
        """The record, if the ending is not painted yet."""
        return self.record if self.record is not None and self.record.unpainted else None


# Outcomes of the store's operations: values, matched to the end.


class Granted(Struct, frozen=True):
    lease: Lease
    snapshot: Snapshot | None = None
    """The snapshot that proved the win, if the store had to read one."""
    asked_at: LocalTime | None = None
    """When that snapshot was requested: our bid was visible to all by then."""


class Busy(Struct, frozen=True):
    """Another run holds the issue, or the ending of the last run is not painted yet."""

    record: Record


class Full(Struct, frozen=True):
    """The issue is free, but its stage already has as many live leases as the bid allows."""

    in_flight: int


class Unproven(Struct, frozen=True):
    """The store could not prove a win. Never treated as a win."""

    why: str


class Renewed(Struct, frozen=True):
    lease: Lease
    snapshot: Snapshot | None = None
    """A snapshot of the issue right after the renewal; None if the tracker could not be read."""


class StopAsked(Struct, frozen=True):
    """Still ours, but a person wants the work to stop: a revoke, a veto label, a closed issue."""

    why: str


class Lost(Struct, frozen=True):
    """Not ours any more. Touch nothing."""

    why: str


class Released(Struct, frozen=True):
    """The ending is written and counts."""

    record: Record


AcquireResult = Granted | Busy | Full | Unproven
RenewResult = Renewed | StopAsked | Lost
ReleaseResult = Released | Lost
