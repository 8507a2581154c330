"""Lease stores: who may work an issue, until when, under which fence.

`LeaseStore` is what an atomic store implements. `ShownLeases` is what the services use: leases that
also show on the tracker, as labels and a card. The comment store is both by nature; any other
store becomes one in `services.shown_leases`.

What an adapter promises, so that an unsafe pairing can be refused at the start.

Where it is written which store grants: beside the backlog, for every worker to read.

Where a person's word about the whole repository or fleet is kept for every worker to read.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import Flag, auto
from typing import Protocol, runtime_checkable

from dibs.core.eligibility import Pause, PauseScope
from dibs.core.granter import Granter
from dibs.core.ids import Fence, IssueRef, LocalTime, RunId
from dibs.core.issue import Thread
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
    """A bid's limit on live leases is kept in the step that grants, even under contention."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name.lower() for member in Guarantee if member in self and member.name)


PROTECTIVE = Guarantee.ATOMIC | Guarantee.FENCED
"""What a stage that cannot be undone asks of the store: one holder, and a fence to check."""


Painter = Callable[[Record, Thread], Painting]
"""Which label changes show this ending, given what can be seen of the issue."""


class LeaseStore(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def guarantees(self) -> Guarantee: ...

    def acquire(self, bid: Bid) -> AcquireResult:
        """One grant, or who has it. An atomic store refuses over an unpainted ending.

        The same run's live grant comes back as it is; then `Busy`; then `Full`; then a grant.
        """
        ...

    def renew(self, lease: Lease) -> RenewResult: ...

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        """Decide how the lease ends. Idempotent for the same run."""
        ...

    def acknowledge(self, record: Record) -> None:
        """The ending has been painted: the write-ahead record has done its work."""
        ...

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        """Ask for the named run's lease, or end it. None if that run does not hold it."""
        ...

    def read(self, issue: IssueRef) -> Record | None: ...

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        """The live leases, the oldest grant first. Reads no lease that is over."""
        ...

    def highest(self) -> Fence:
        """The highest fence that was ever granted here, on anything. May have to read it all."""
        ...


@runtime_checkable
class Waking(Protocol):
    """What a store adds that can tell of the end of a lease, so that nobody has to poll for it."""

    def await_end(self, issue: IssueRef, seconds: float) -> None:
        """Return when a lease on the issue may have been ended, or the time is over.

        May return early, and may miss an end: the caller asks the store either way. An expiry
        makes no noise, so the caller waits no longer than the lease that it knows of.
        """
        ...


@runtime_checkable
class Lingering(Protocol):
    """What a store adds that keeps a lease for longer than was asked for."""

    def lingers(self, ttl: timedelta) -> timedelta:
        """By how much at most, if nobody releases it."""
        ...


class ShownLeases(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def guarantees(self) -> Guarantee: ...

    def acquire(self, bid: Bid) -> AcquireResult: ...

    def show(self, lease: Lease, paint: Sequence[Effect]) -> RenewResult:
        """Make the grant count and visible: confirm it where a grant is a won bid, paint labels."""
        ...

    def renew(self, lease: Lease) -> RenewResult:
        """Extend the lease, and look at the issue while at it."""
        ...

    def concede(self, lease: Lease) -> None:
        """Give a grant back that was never shown. Touches nothing but its own card."""
        ...

    def finish(self, lease: Lease, ending: Ending, painter: Painter) -> ReleaseResult:
        """Decide the ending, then paint it. The decision stands even if the painting fails."""
        ...

    def roll_forward(self, record: Record, painter: Painter) -> None:
        """Finish the painting of an ending, unless somebody has: anybody's, by anybody."""
        ...

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None: ...

    def standing(self, thread: Thread, *, apart_from: RunId | None = None) -> Standing:
        """The store's word on the issue, with the history its cards tell."""
        ...

    def mine(self, thread: Thread, run: RunId) -> Lease | None:
        """Our own live lease, for a process that knows nothing but its run."""
        ...

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]: ...

    def highest(self) -> Fence: ...


class Granters(Protocol):
    def granter(self, *, since: LocalTime | None = None) -> Granter | None:
        """Who grants now; None before the first grant of all.

        What was read at `since` or later will do.
        """
        ...

    def lately(self) -> Granter | None:
        """The same, some seconds old at most: for whoever looks again before he acts on it."""
        ...

    def appoint(self, granter: Granter, *, instead_of: Granter | None) -> Granter:
        """Write it down if `instead_of` is what stands. Returns what stands afterwards."""
        ...


class Pauses(Protocol):
    def pauses(self) -> tuple[Pause, ...]: ...

    def pause(self, scope: PauseScope, *, repo: str, reason: str, by: str) -> None: ...

    def resume(self, scope: PauseScope, *, repo: str, by: str) -> bool:
        """True if there was something to lift."""
        ...


@runtime_checkable
class Worrying(Protocol):
    """Optional: an adapter that keeps these words where there may be no room for more one day."""

    def worries(self) -> tuple[str, ...]:
        """What a person should look at before that."""
        ...
