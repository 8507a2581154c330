"""Lease stores, and where the granter and the pauses of a backlog are kept.

A lease store grants: who may work an issue, until when, under which fence. `LeaseStore` is what an
atomic store implements. `ShownLeases` is what the services use: leases that also show on the
tracker, as labels and a card. The comment store is both by nature; any other store becomes one in
`services.shown_leases`. A store names its guarantees, so that an unsafe pairing with a stage can be
refused at the start.

`Granters` keeps which store grants, and `Pauses` keeps a person's pauses of the repository or the
fleet: both beside the backlog, for every worker to read.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import Flag, auto
from typing import Protocol, runtime_checkable

from dibs.core.eligibility import Pause, PauseScope
from dibs.core.granter import Granter, Owner
from dibs.core.ids import Fence, IssueRef, LocalTime, RunId
from dibs.core.issue import Snapshot
from dibs.core.labels import Effect, Painting
from dibs.core.lease import (
    AcquireResult,
    Bid,
    Ending,
    Lease,
    Record,
    ReleaseResult,
    RenewResult,
    Revocation,
    Standing,
)


class Guarantee(Flag):
    """What a lease store promises."""

    NONE = 0
    ATOMIC = auto()
    """At most one live grant per issue, even under contention."""
    FENCED = auto()
    """Each grant carries a higher fence than any before it on that issue."""
    SERVER_CLOCK = auto()
    """Expiry is judged by the store's clock, never by a client's."""
    IDEMPOTENT = auto()
    """A retried acquire of the same run returns the same grant."""
    DURABLE = auto()
    """Grants and fences survive the death of every process."""
    COUNTED = auto()
    """The step that grants also checks the bid's limit on live leases, even under contention."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name.lower() for member in Guarantee if member in self and member.name)


PROTECTIVE = Guarantee.ATOMIC | Guarantee.FENCED
"""What an irreversible stage asks of the store: one holder, and a fence to check."""

EVERY_GUARANTEE = (
    Guarantee.ATOMIC
    | Guarantee.FENCED
    | Guarantee.SERVER_CLOCK
    | Guarantee.IDEMPOTENT
    | Guarantee.DURABLE
    | Guarantee.COUNTED
)
"""A store that promises less names the exceptions; the conformance suite proves each promise."""


Painter = Callable[[Record, Snapshot], Painting]
"""Returns the label changes that show the ending of a record, given a snapshot of the issue."""


class Leases(Protocol):
    """The part of `LeaseStore` and `ShownLeases` that is the same."""

    @property
    def name(self) -> str: ...

    @property
    def guarantees(self) -> Guarantee: ...

    def acquire(self, bid: Bid) -> AcquireResult:
        """Grant a lease, or return the record of its holder.

        Checked in order: a live grant of the same run is returned unchanged; a live lease of
        another run, and in an atomic store an unpainted ending, is `Busy`; a reached limit is
        `Full`; else the lease is granted.
        """
        ...

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        """Ask the holder to stop, or end the lease if forced. None if the run holds no lease."""
        ...

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        """The live leases, the oldest grant first. Reads no lease which is over."""
        ...

    def highest(self) -> Fence:
        """The highest fence ever granted here, on any issue or name. May read the whole store."""
        ...


class LeaseStore(Leases, Protocol):
    def renew(self, lease: Lease) -> RenewResult: ...

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        """Decide how the lease ends. Idempotent for the same run."""
        ...

    def acknowledge(self, record: Record) -> None:
        """Note that the ending has been painted: the write-ahead record has done its work."""
        ...

    def read(self, issue: IssueRef) -> Record | None: ...


@runtime_checkable
class Waking(Protocol):
    """A store which can report the end of a lease, so that waiting workers need not poll."""

    def await_end(self, issue: IssueRef, seconds: float) -> None:
        """Return when a lease on the issue may have been ended, or after `seconds`.

        May return early, and may miss an end: the caller asks the store either way. An expiry is
        not reported, so the caller waits no longer than the current lease runs.
        """
        ...


@runtime_checkable
class Lingering(Protocol):
    """A store which may keep a lease for longer than its ttl."""

    def lingers(self, ttl: timedelta) -> timedelta:
        """How much longer than the ttl an unreleased lease may last, at most."""
        ...


class ShownLeases(Leases, Protocol):
    """Leases which also show on the tracker."""

    def show(self, lease: Lease, paint: Sequence[Effect]) -> RenewResult:
        """Make the grant visible: paint the labels; confirm the card if a grant is a won bid."""
        ...

    def renew(self, lease: Lease) -> RenewResult:
        """Extend the lease, and return a snapshot of the issue if the tracker answers."""
        ...

    def concede(self, lease: Lease) -> None:
        """Give back a grant which was never shown. Changes no comment but its own card."""
        ...

    def finish(self, lease: Lease, ending: Ending, painter: Painter) -> ReleaseResult:
        """Decide the ending, then paint it. The decision stands even if the painting fails."""
        ...

    def roll_forward(self, record: Record, painter: Painter) -> None:
        """Finish the painting of an ending, unless done. Any worker may do it for any run."""
        ...

    def standing(self, snapshot: Snapshot, *, apart_from: RunId | None = None) -> Standing:
        """The last lease on the issue, and the attempts before by the cards of the snapshot.

        `apart_from` leaves out a run, for a bidder who looks at the time before its own bid.
        """
        ...

    def mine(self, snapshot: Snapshot, run: RunId) -> Lease | None:
        """The live lease of the run, if any: for a process which has only the id of its run."""
        ...


class Granters(Protocol):
    """Where the one store which grants the leases of a backlog is recorded."""

    def owner(self) -> Owner:
        """The identity of the backlog, made once and kept beside it."""
        ...

    def granter(self, *, since: LocalTime | None = None) -> Granter | None:
        """The granter now; None before the first grant of all.

        With `since`, an answer read at or after `since` may be reused.
        """
        ...

    def lately(self) -> Granter | None:
        """The granter, some seconds old at most: for a caller who asks `granter` before acting."""
        ...

    def appoint(self, granter: Granter, *, instead_of: Granter | None) -> Granter:
        """Record the granter if the current one is `instead_of`. Returns the granter afterwards."""
        ...


class Pauses(Protocol):
    """Where a person's pauses of the repository or the fleet are recorded."""

    def pauses(self) -> tuple[Pause, ...]: ...

    def pause(self, scope: PauseScope, *, repo: str, reason: str, by: str) -> None: ...

    def resume(self, scope: PauseScope, *, repo: str, by: str) -> bool:
        """Lift the pause. False if the scope was not paused."""
        ...


@runtime_checkable
class Worrying(Protocol):
    """Optional: an adapter whose server may keep less than the adapter's kind promises.

    A lease store warns of a server which may forget grants, the place of granter and pauses warns
    before it is full.
    """

    def worries(self) -> tuple[str, ...]:
        """Warnings for a person, in words. Asks the server."""
        ...
