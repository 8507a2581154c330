"""What authors of adapters write, type-checked by mypy in strict mode and never run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import assert_type

from dibs.adapters.memory.leases import MemoryLeases
from dibs.adapters.memory.tracker import MemoryTracker
from dibs.ports.leases import LeaseStore
from dibs.ports.tracker import Tracker
from dibs.testing.clock import FakeClock
from dibs.testing.conformance import (
    LEASE_CHECKS,
    Check,
    Finding,
    LeaseHarness,
    NotApplicable,
    Report,
    TrackerHarness,
    prove_leases,
    prove_tracker,
)


class MyLeases(LeaseHarness):
    short = timedelta(seconds=1)
    sequences = 3

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        super().__init__(MemoryLeases(clock.server_now))

    def another(self) -> LeaseStore:
        return self.store

    def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)

    def restart(self) -> LeaseStore:
        raise NotApplicable("it lives in this process")

    def skewed(self, by: timedelta) -> LeaseStore:
        raise NotApplicable(f"nobody is {by} off")


class MyTracker(TrackerHarness):
    many = 30

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        super().__init__(MemoryTracker(clock.server_now))

    def another(self) -> Tracker:
        return self.tracker

    def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)


@contextmanager
def my_leases() -> Iterator[MyLeases]:
    yield MyLeases(FakeClock())


@contextmanager
def my_tracker() -> Iterator[TrackerHarness]:
    yield MyTracker(FakeClock())


def prove_them() -> None:
    report = prove_leases(my_leases)
    assert_type(report, Report)
    assert_type(report.ok, bool)
    assert_type(report.failed, tuple[str, ...])
    assert_type(report.proved, Mapping[str, tuple[str, ...]])
    assert_type(report.findings, tuple[Finding, ...])
    report.insist()
    prove_tracker(my_tracker).insist()
    for check in LEASE_CHECKS:
        assert_type(check, Check[LeaseHarness])
