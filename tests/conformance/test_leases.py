"""The lease stores we ship, and the proof that the suite catches one that does not conform."""

import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from dibs.adapters.leases.memory import MemoryLeases
from dibs.core.ids import Fence, later
from dibs.core.lease import Busy, Granted, Lost, Renewed
from dibs.ports.guarantees import Guarantee
from dibs.testing.clock import FakeClock
from dibs.testing.conformance import leases as suite
from dibs.testing.conformance.report import NotApplicable

from . import harnesses
from .harnesses import MemoryHarness

STORES = {
    "memory": harnesses.memory_leases,
    "sqlite": harnesses.sqlite_leases,
    "comments-on-memory": harnesses.comments_on_memory,
    "comments-on-sqlite": harnesses.comments_on_sqlite,
}


@pytest.mark.parametrize("check", suite.CHECKS, ids=str)
@pytest.mark.parametrize("factory", STORES.values(), ids=STORES)
def test_a_store_keeps_what_it_declares(factory, check):
    try:
        with factory() as harness:
            if check.proves not in harness.store.guarantees:
                pytest.skip("the guarantee is not declared")
            check(harness)
    except NotApplicable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(
    ("store", "declares"),
    [
        ("memory", ("atomic", "fenced", "server_clock", "idempotent")),
        ("sqlite", ("atomic", "fenced", "server_clock", "idempotent", "durable")),
        ("comments-on-memory", ("fenced", "server_clock", "durable")),
        ("comments-on-sqlite", ("fenced", "server_clock", "durable")),
    ],
)
def test_every_declared_guarantee_has_a_passing_check(store, declares, record_property):
    report = suite.prove(STORES[store])
    record_property("guarantees", str(report))
    print(report)
    assert report.declared.names == declares
    assert report.unproved == ()
    assert all(report.proved[name] for name in declares)


def test_every_guarantee_that_can_be_declared_has_a_check():
    proved = Guarantee.NONE
    for check in suite.CHECKS:
        proved |= check.proves
    assert all(guarantee in proved for guarantee in Guarantee)


def test_every_check_says_in_words_what_it_asks_for():
    names = [check.name for check in suite.CHECKS]
    assert len(set(names)) == len(names)
    assert all(check.text for check in suite.CHECKS)


# Stores that are wrong in one thing each


class GrantsTwice(MemoryLeases):
    """Looks first and grants after, with a gap in between."""

    def __init__(self, now):
        super().__init__(now)
        self._gap = threading.Event()

    def acquire(self, bid):
        known = self.read(bid.issue)
        if known is not None and (known.live or not known.painted):
            return Busy(known) if known.lease.run != bid.run else Granted(known.lease)
        self._gap.wait(0.002)
        with self._lock:
            self._records.pop(bid.issue, None)
        granted = super().acquire(bid)
        fence = Fence(known.lease.fence + 1 if known else 1)
        with self._lock:
            record = self._records[bid.issue]
            self._records[bid.issue] = replace(record, lease=replace(record.lease, fence=fence))
            return Granted(replace(granted.lease, fence=fence))


class ForgetsTheFence(MemoryLeases):
    """Deletes the record with the lease, and with it the counter."""

    def acknowledge(self, record):
        super().acknowledge(record)
        with self._lock:
            self._records.pop(record.lease.issue, None)


class RenewRevives(MemoryLeases):
    """Extends by name: whoever was the last holder is the holder."""

    def renew(self, lease):
        result = super().renew(lease)
        with self._lock:
            known = self._records.get(lease.issue)
            if isinstance(result, Lost) and known and known.lease.run == lease.run:
                revived = replace(known.lease, expires_at=later(self._now(), lease.ttl))
                self._records[lease.issue] = replace(known, lease=revived)
                return Renewed(revived)
        return result


class ReleasesByName(MemoryLeases):
    """Ends the issue's lease, whoever holds it."""

    def release(self, lease, ending):
        known = self.read(lease.issue)
        return super().release(known.lease if known else lease, ending)


class GrantsOverUnpainted(MemoryLeases):
    def acquire(self, bid):
        known = self.read(bid.issue)
        if known is not None and not known.painted:
            self.acknowledge(known)
        return super().acquire(bid)


class RevokesWhoeverHolds(MemoryLeases):
    def revoke(self, issue, revocation):
        known = self.read(issue)
        if known is not None:
            revocation = replace(revocation, run=known.lease.run)
        return super().revoke(issue, revocation)


class RetriesLoseToThemselves(MemoryLeases):
    def acquire(self, bid):
        known = self.read(bid.issue)
        return Busy(known) if known is not None and known.live else super().acquire(bid)


class ClientsClock(MemoryLeases):
    """Believes the expiry that the client brings along."""

    def __init__(self, now):
        self._ahead = False
        super().__init__(lambda: later(now(), suite.LeaseHarness.short) if self._ahead else now())

    def read(self, issue):
        self._ahead = True
        try:
            return super().read(issue)
        finally:
            self._ahead = False


class ClaimsToBeDurable(MemoryLeases):
    guarantees = MemoryLeases.guarantees | Guarantee.DURABLE


def examine(store_type):
    @contextmanager
    def factory():
        clock = FakeClock()
        yield MemoryHarness(clock, store_type(clock.server_now))

    return suite.prove(factory)


@pytest.mark.parametrize(
    ("broken", "caught_by", "unproved"),
    [
        (GrantsTwice, "a_crowd_never_holds_twice", "atomic"),
        (GrantsOverUnpainted, "nothing_is_granted_over_an_unpainted_ending", "atomic"),
        (ForgetsTheFence, "fences_rise_across_release", "fenced"),
        (RetriesLoseToThemselves, "a_retried_acquire_is_the_same_grant", "idempotent"),
        (ClientsClock, "a_grant_is_stamped_by_the_store", "server_clock"),
        (RenewRevives, "an_expired_lease_cannot_renew", None),
        (RenewRevives, "nothing_revives_an_expired_lease", None),
        (ReleasesByName, "a_superseded_lease_can_do_nothing", None),
        (RevokesWhoeverHolds, "a_revoke_names_one_run", None),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value),
)
def test_a_broken_store_is_caught_by_name(broken, caught_by, unproved):
    report = examine(broken)
    assert caught_by in report.failed
    assert unproved is None or unproved in report.unproved
    assert not report.ok
    with pytest.raises(AssertionError, match=caught_by):
        report.insist()


def test_a_guarantee_that_no_check_could_prove_is_not_believed():
    report = examine(ClaimsToBeDurable)
    assert report.failed == ()
    assert report.unproved == ("durable",)
    assert not report.ok
    assert "durable: NOT PROVED" in str(report)


def test_the_healthy_store_that_the_broken_ones_derive_from_conforms():
    report = examine(MemoryLeases)
    report.insist()
    assert report.ok
    assert "conforms" in str(report)
