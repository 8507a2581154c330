"""What a fleet spends on finding work, on a tracker that is not cheap to ask: counted call by call.

The shipped workers on a simulated tracker of one trip that reads many, with the grain of GitHub, a
settle of two seconds and up to 0.6 s a request. Work is short: claims come as fast as they can.
"""

from collections import Counter
from dataclasses import dataclass

import pytest

from dibs.core.events import Event, EventKind
from dibs_lab.sim.faults import Faults
from dibs_lab.sim.history import Called
from dibs_lab.sim.runs import play
from dibs_lab.sim.world import Scenario

FINDING = ("find", "find_snapshots", "snapshots")


@dataclass(frozen=True)
class Spent:
    finding: float
    """Requests that look for work or sweep, an issue."""
    wasted: float
    """Bids that came to nothing, an issue."""
    advanced: int


def calm(workers: int, issues: int) -> Scenario:
    return Scenario(
        name="calm",
        workers=workers,
        issues=issues,
        one_trip=True,
        ttl_s=120.0,
        settle_s=2.0,
        work_s=(0.0, 10.0),
        storm_s=0.0,
        faults=Faults(delay_s=0.6, grain_s=1.0, in_flight_s=5.0),
        bound_ttls=60.0,
    )


def spent(workers: int, issues: int) -> Spent:
    """With the first seed that makes the tracker one that is not cheap to ask."""
    for seed in range(20):
        run = play(calm(workers, issues), seed)
        calls = Counter(note.what.op for note in run.notes if isinstance(note.what, Called))
        if calls["snapshots"]:
            break
    else:
        raise AssertionError("no seed made it costly")
    told = Counter(note.what.kind for note in run.notes if isinstance(note.what, Event))
    found = Spent(
        finding=sum(calls[op] for op in FINDING) / issues,
        wasted=calls["comment"] / issues - 1,
        advanced=told[EventKind.ADVANCED],
    )
    print(f"{workers} workers, {issues} issues: {found}")
    return found


@pytest.mark.parametrize(
    ("workers", "issues", "finding", "wasted"),
    [(1, 60, 0.8, 0.0), (8, 200, 2.2, 0.08), (64, 400, 4.0, 0.3)],
)
def test_finding_work_takes_few_requests_and_few_bids_are_wasted(workers, issues, finding, wasted):
    found = spent(workers, issues)
    assert found.advanced == issues, "each once"
    assert found.finding <= finding
    assert found.wasted <= wasted
