"""The counts of a simulated fleet, instead of a full history.

Counts starts, endings, deaths, waits and requests as they happen, and keeps nothing that grows with
the number of calls: one hundred thousand issues must fit. This module decides what a duplicate
start and a takeover are; `sizing` reports what they mean for a fleet.
"""

from array import array
from collections import Counter
from enum import StrEnum

from msgspec import Struct

from dibs.core.events import Event, EventKind
from dibs.core.ids import IssueRef, RunId
from dibs_lab.sim.fibres import Process, Simulation
from dibs_lab.sim.metering import HOUR_US, MINUTE_US, Price

_MOST_BINS = 480
_FIRST_BIN_US = 1_000_000


class Purpose(StrEnum):
    """Why a worker sent a request."""

    SCANNING = "scanning"
    CLAIMING = "claiming"
    RENEWING = "renewing"
    FINISHING = "finishing"
    SWEEPING = "sweeping"


class Line(StrEnum):
    """The counts that are kept over time."""

    ARRIVED = "arrived"
    STARTED = "started"
    STOPPED = "stopped"
    RESTED = "rested"
    REQUESTS = "requests"
    CREATING = "creating"


class Series:
    """Counts over time, in stretches that double in length when there are too many of them."""

    def __init__(self) -> None:
        self.width_us = _FIRST_BIN_US
        self._bins = {line: [0] for line in Line}

    def add(self, line: Line, now_us: int, count: int = 1) -> None:
        place = now_us // self.width_us
        while place >= _MOST_BINS:
            self._double()
            place = now_us // self.width_us
        bins = self._bins[line]
        if place >= len(bins):
            bins.extend([0] * (place + 1 - len(bins)))
        bins[place] += count

    def _double(self) -> None:
        self.width_us *= 2
        for bins in self._bins.values():
            bins.append(0)
            bins[:] = [left + right for left, right in zip(bins[::2], bins[1::2], strict=False)]

    def counts(self, line: Line, until_us: int) -> tuple[int, ...]:
        """Each stretch's count, up to and including the stretch of `until_us`."""
        length = until_us // self.width_us + 1
        bins = self._bins[line][:length]
        return (*bins, *([0] * (length - len(bins))))


class Busiest:
    """The highest count in any one stretch of time, such as a clock hour."""

    def __init__(self, length_us: int) -> None:
        self._length_us = length_us
        self._number = 0
        self._count = 0
        self.most = 0

    def add(self, now_us: int, count: int) -> None:
        number = now_us // self._length_us
        if number != self._number:
            self._number, self._count = number, 0
        self._count += count
        self.most = max(self.most, self._count)


class _Start(Struct):
    """A handler that runs."""

    process: Process
    at_us: int


class Tally:
    """All counts of one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.series = Series()
        self.events: Counter[EventKind] = Counter()
        # Issues
        self._arrived_us: dict[IssueRef, int] = {}
        self._begun: set[IssueRef] = set()
        self._touched_us: dict[IssueRef, int] = {}
        self._advanced: set[IssueRef] = set()
        self._rested: set[IssueRef] = set()
        self.rested = 0
        self.done = 0
        self.parked = 0
        self.advanced_twice = 0
        # Runs
        self._held: dict[Process, dict[RunId, IssueRef]] = {}
        self._at_work: dict[IssueRef, dict[RunId, _Start]] = {}
        self._died_us: dict[IssueRef, int] = {}
        self._blocked_us: dict[IssueRef, int] = {}
        self.starts = 0
        self.duplicate_starts = 0
        self.repeated_starts = 0
        self.crashes = 0
        self.holders_died = 0
        self.busy_us = 0
        self.wasted_us = 0
        self.blocked_s = array("d")
        self.takeovers_s = array("d")
        self.waits_s = array("d")
        # Requests
        self.requests = 0
        self.creating = 0
        self.by_call: Counter[str] = Counter()
        self.by_purpose: Counter[Purpose] = Counter()
        self.store_calls = 0
        self.busiest_hour = Busiest(HOUR_US)
        self.busiest_creating_hour = Busiest(HOUR_US)
        self.busiest_creating_minute = Busiest(MINUTE_US)
        self.refused = 0
        self.limited_us = 0

    # Issues

    def arrive(self, issue: IssueRef) -> None:
        now_us = self._simulation.now_us
        self._arrived_us[issue] = now_us
        self.series.add(Line.ARRIVED, now_us)

    def rest(self, issue: IssueRef, *, done: bool) -> None:
        """The issue was closed or parked. Its time stops here, once."""
        if self._arrived_us.pop(issue, None) is None:
            return
        self._rested.add(issue)
        self.rested += 1
        self.done += done
        self.parked += not done
        self._begun.discard(issue)
        self._touched_us.pop(issue, None)
        self._died_us.pop(issue, None)
        self._blocked_us.pop(issue, None)
        self.series.add(Line.RESTED, self._simulation.now_us)

    def left_alone(self, since_us: int) -> int:
        """How many open issues were started once and have had no run since `since_us`."""
        return sum(
            issue not in self._at_work and touched_us < since_us
            for issue, touched_us in self._touched_us.items()
        )

    @property
    def open(self) -> int:
        return len(self._arrived_us)

    # Runs

    def hear(self, process: Process, event: Event) -> None:
        """Count a worker's event."""
        self.events[event.kind] += 1
        issue, run = event.issue, event.run
        if event.kind is EventKind.FREED and issue in self._blocked_us:
            self.blocked_s.append((self._simulation.now_us - self._blocked_us.pop(issue)) / 1e6)
        if issue is None or run is None:
            return
        match event.kind:
            case EventKind.CLAIMED:
                self._held.setdefault(process, {})[run] = issue
            case EventKind.HANDLER_STARTED:
                self._start(process, issue, run)
            case EventKind.HANDLER_EXITED | EventKind.LEASE_LOST:
                self._stop(issue, run, wasted=event.kind is EventKind.LEASE_LOST)
            case EventKind.ADVANCED:
                self.advanced_twice += issue in self._advanced
                self._advanced.add(issue)
                self._let_go(process, run)
            case (
                EventKind.RETURNED | EventKind.FAILED | EventKind.PARKED | EventKind.FINISH_REFUSED
            ):
                self._let_go(process, run)

    def _let_go(self, process: Process, run: RunId) -> None:
        self._held.get(process, {}).pop(run, None)

    def _start(self, process: Process, issue: IssueRef, run: RunId) -> None:
        now_us = self._simulation.now_us
        self.starts += 1
        self.series.add(Line.STARTED, now_us)
        at_work = self._at_work.setdefault(issue, {})
        if at_work or issue in self._rested:
            self.duplicate_starts += 1
        elif issue in self._begun:
            self.repeated_starts += 1
        else:
            self.waits_s.append((now_us - self._arrived_us[issue]) / 1e6)
        if (died_us := self._died_us.pop(issue, None)) is not None:
            self.takeovers_s.append((now_us - died_us) / 1e6)
        at_work[run] = _Start(process, now_us)
        self._begun.add(issue)
        self._touch(issue)

    def _stop(self, issue: IssueRef, run: RunId, *, wasted: bool) -> None:
        at_work = self._at_work.get(issue, {})
        start = at_work.pop(run, None)
        if start is None:
            return
        if not at_work:
            del self._at_work[issue]
        now_us = self._simulation.now_us
        self.series.add(Line.STOPPED, now_us)
        self.busy_us += now_us - start.at_us
        self.wasted_us += now_us - start.at_us if wasted else 0
        self._touch(issue)

    def _touch(self, issue: IssueRef) -> None:
        if issue in self._arrived_us:
            self._touched_us[issue] = self._simulation.now_us

    def die(self, process: Process) -> None:
        """Count the death of a worker and its leases."""
        self.crashes += 1
        for run, issue in self._held.pop(process, {}).items():
            self.holders_died += 1
            self._stop(issue, run, wasted=True)
            if issue in self._arrived_us:
                self._died_us[issue] = self._blocked_us[issue] = self._simulation.now_us

    # Requests

    def call(self, op: str, purpose: Purpose, price: Price) -> None:
        if not price.requests:
            self.store_calls += 1
            return
        now_us = self._simulation.now_us
        self.requests += price.requests
        self.by_call[op] += price.requests
        self.by_purpose[purpose] += price.requests
        self.busiest_hour.add(now_us, price.requests)
        self.series.add(Line.REQUESTS, now_us, price.requests)
        if price.creating:
            self.creating += price.creating
            self.busiest_creating_hour.add(now_us, price.creating)
            self.busiest_creating_minute.add(now_us, price.creating)
            self.series.add(Line.CREATING, now_us, price.creating)
