"""Suites that any tracker or lease store can be put through, whoever wrote it.

    from dibs.testing.conformance import LeaseHarness, prove_leases

    @contextmanager
    def mine() -> Iterator[LeaseHarness]:
        yield MyHarness(...)

    prove_leases(mine).insist()

A factory opens a fresh, empty adapter for one check. Which checks are made follows from what the
adapter declares: a guarantee that is declared and that no check proves is a failure, and so is a
check that a harness does not allow. docs/guides/write-an-adapter.md has a whole example.
"""

from dibs.testing.conformance.lease_harness import LeaseHarness
from dibs.testing.conformance.leases import CHECKS as LEASE_CHECKS
from dibs.testing.conformance.leases import prove as prove_leases
from dibs.testing.conformance.report import (
    Check,
    Factory,
    Finding,
    NotApplicable,
    Report,
    Result,
)
from dibs.testing.conformance.tracker import CHECKS as TRACKER_CHECKS
from dibs.testing.conformance.tracker import TrackerHarness
from dibs.testing.conformance.tracker import prove as prove_tracker

__all__ = [
    "LEASE_CHECKS",
    "TRACKER_CHECKS",
    "Check",
    "Factory",
    "Finding",
    "LeaseHarness",
    "NotApplicable",
    "Report",
    "Result",
    "TrackerHarness",
    "prove_leases",
    "prove_tracker",
]
