"""A lease store under test, what the checks need of its surroundings, and the verbs they share."""

from abc import ABC, abstractmethod
from datetime import timedelta

from dibs.core.ids import HolderId, IssueRef, RunId, StageName
from dibs.core.lease import (
    AcquireResult,
    Bid,
    Ending,
    Granted,
    Lease,
    Outcome,
    Record,
    Released,
    Renewed,
    RenewResult,
    Revocation,
)
from dibs.ports.leases import LeaseStore
from dibs.testing.conformance.report import NotApplicable

ADVANCED = Ending(Outcome.ADVANCED, StageName("review"), "it works")
CONCEDED = Ending(Outcome.CONCEDED)


class LeaseHarness(ABC):
    """A store under test, and what the checks need of its surroundings."""

    long = timedelta(minutes=5)
    """A ttl that no check outlives, even on a slow machine."""
    short = timedelta(seconds=20)
    """A ttl that is waited for. Where the store's time is real, make it a fraction of a second."""
    sequences = 20
    """How many random sequences of calls are tried. Each waits for a short ttl once or twice."""

    def __init__(self, store: LeaseStore) -> None:
        self.store = store
        self._issues = 0

    @abstractmethod
    def another(self) -> LeaseStore:
        """A second, independent client of the same store."""

    @abstractmethod
    def advance(self, seconds: float) -> None:
        """Return when the store's own clock has gone on by so much, and little more."""

    def restart(self) -> LeaseStore:
        """End every process that the store lives in, and come back on what is left."""
        raise NotApplicable("this store cannot be restarted")

    def skewed(self, by: timedelta) -> LeaseStore:
        """A client on a machine whose own clock is off by so much."""
        del by
        raise NotApplicable("its clients have no clock of their own")

    def cut_off(self) -> LeaseStore:
        """A client that can no longer reach the store, for the rest of the check."""
        raise NotApplicable("there is nothing that its clients could be cut off from")

    def issue(self) -> IssueRef:
        """An issue that nobody has touched yet."""
        self._issues += 1
        return IssueRef("", str(self._issues))

    def confirm(self, store: LeaseStore, lease: Lease) -> RenewResult:
        """Make a grant count, where a grant is only a won bid."""
        del store
        return Renewed(lease)

    def paint(self, store: LeaseStore, record: Record) -> None:
        """Show an ending on the tracker, as far as this store wants to know of it."""
        store.acknowledge(record)


def bid(
    issue: IssueRef, run: str, ttl: timedelta, *, stage: str = "ready", holder: str = ""
) -> Bid:
    return Bid(issue, RunId(run), HolderId(holder or f"worker-{run}"), StageName(stage), ttl)


def hold(
    harness: LeaseHarness,
    issue: IssueRef,
    run: str,
    ttl: timedelta,
    *,
    store: LeaseStore | None = None,
    stage: str = "ready",
    holder: str = "",
) -> Lease:
    """Acquire and confirm; the check fails if either is refused."""
    store = store or harness.store
    granted = store.acquire(bid(issue, run, ttl, stage=stage, holder=holder))
    assert isinstance(granted, Granted), f"run {run} was not granted: {granted}"
    confirmed = harness.confirm(store, granted.lease)
    assert isinstance(confirmed, Renewed), f"run {run} was not confirmed: {confirmed}"
    return confirmed.lease


def end(harness: LeaseHarness, lease: Lease, ending: Ending = ADVANCED) -> Record:
    """Release and paint, as a holder that finished its work does."""
    released = harness.store.release(lease, ending)
    assert isinstance(released, Released), f"the holder could not release: {released}"
    harness.paint(harness.store, released.record)
    return released.record


def expire(harness: LeaseHarness, issue: IssueRef) -> Record:
    """Wait, on the store's own word, until the lease is over."""
    for _ in range(1000):
        record = harness.store.read(issue)
        assert record is not None, "a lease that was granted can be read"
        if not record.live:
            return record
        harness.advance(max(record.remaining.total_seconds(), 0.001))
    raise AssertionError("the lease never expired by the store's clock")


def refused(result: AcquireResult) -> bool:
    return not isinstance(result, Granted)


def record_of(store: LeaseStore, issue: IssueRef) -> Record:
    record = store.read(issue)
    assert record is not None, f"{issue} has a lease, and the store cannot tell of it"
    return record


def revocation(run: str, *, force: bool = False) -> Revocation:
    return Revocation(RunId(run), "ada", "wrong branch", force=force)
