"""How a fleet would perform: any number of shipped workers on a simulated tracker.

The workers are those of `dibs work`: `wiring.Services` builds them, and they claim, renew, spread,
sweep and finish as in production. Simulated are the clock, the threads, the tracker, the lease
store, and the handlers, which only take time. Time is virtual, so a week takes seconds.

`Fleet` says what is simulated, `simulate` runs it, and `Sizing` is the result. The same fleet and
seed give the same result. The reader decides which settings are good.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.memory.control import MemoryPauses
from dibs.adapters.memory.leases import MemoryLeases
from dibs.core.durations import LeaseTerms, format_duration, terms_for
from dibs.core.errors import RateLimited
from dibs.core.events import Event, EventKind
from dibs.core.ids import ZERO, HolderId, IssueRef, RunId
from dibs.core.issue import Draft
from dibs.core.pipeline import Pipeline
from dibs.core.presets import STAGES
from dibs.ports.tracker import IssueQuery
from dibs.services.running import Work as Assigned
from dibs.settings import load as config
from dibs.wiring.services import Adapters, Services
from dibs_lab.sim.counting import Line, Purpose, Tally
from dibs_lab.sim.faults import Faults, Weather
from dibs_lab.sim.fibres import Fibre, Process, Simulation, microseconds
from dibs_lab.sim.history import History
from dibs_lab.sim.loads import Arrival, AtOnce, Fixed, Work
from dibs_lab.sim.metering import HOUR_US, NO_LIMITS, Allowance, Costs, Limits
from dibs_lab.sim.server import Server
from dibs_lab.sim.wires import Wire, WiredStore, WiredTracker
from dibs_lab.sim.world import NoRunner

COMMENTS = "comments"
STORE = "store"
MOST_WORKERS = 10_000
MOST_ISSUES = 1_000_000
_GRAIN = timedelta(seconds=1)
_TELL_EVERY = 5_000
_FORGOTTEN_TTLS = 5
_STORE_CALLS = frozenset(
    {"acquire", "renew", "release", "acknowledge", "revoke", "read_lease", "live"}
)

Answer = TypeVar("Answer")


class Fleet(Struct, frozen=True):
    """What is simulated. Raises ValueError for values that make no sense."""

    workers: int = 10
    issues: int = 1000
    arrival: Arrival = AtOnce()
    work: Work = Fixed(timedelta(minutes=10))
    ttl: timedelta = timedelta(minutes=10)
    settle: timedelta = ZERO
    lag: timedelta = ZERO
    """Each write becomes visible up to this much later, to all readers, independently of others."""
    crash_per_hour: float = 0.0
    """How often each worker is killed, per hour that it runs."""
    restart: timedelta = timedelta(minutes=1)
    """How long until a killed worker runs again."""
    delay: timedelta = timedelta(milliseconds=500)
    """A request and its reply together take up to this long."""
    leases: str = COMMENTS
    limits: Limits = NO_LIMITS
    jobs: int = 1
    poll: timedelta = timedelta(seconds=5)
    sweep: timedelta | None = None
    """None: a third of the ttl, the usual default."""
    attempts: int = 3
    """A crash counts as a failed attempt; the last one parks the issue."""
    longest: timedelta = timedelta(days=60)
    """When the simulation ends, even if issues are left."""
    seed: int = 1

    def __post_init__(self) -> None:
        _between("workers", self.workers, 1, MOST_WORKERS)
        _between("issues", self.issues, 1, MOST_ISSUES)
        _between("jobs", self.jobs, 1, 1000)
        _between("attempts", self.attempts, 1, 1000)
        if self.leases not in (COMMENTS, STORE):
            raise ValueError(f"leases {self.leases!r} is not one of {COMMENTS}, {STORE}")
        for name in ("settle", "lag", "restart", "delay"):
            if getattr(self, name) < ZERO:
                raise ValueError(f"{name} may not be negative")
        for name in ("poll", "longest"):
            if getattr(self, name) <= ZERO:
                raise ValueError(f"{name} must be longer than nothing")
        if not 0 <= self.crash_per_hour <= 3600:
            raise ValueError("a worker can crash at most once a second")
        try:
            trust = self.terms.trust
        except ValueError as flaw:
            raise ValueError(
                f"ttl {format_duration(self.ttl)} is too short for a tracker that counts in whole "
                f"seconds: {flaw}"
            ) from flaw
        if self.leases == COMMENTS and self.settle + 4 * self.delay >= trust:
            raise ValueError(
                f"with settle {format_duration(self.settle)} and delay "
                f"{format_duration(self.delay)}, a lease of {format_duration(self.ttl)} is over "
                "before it can be proved"
            )

    @property
    def terms(self) -> LeaseTerms:
        """Raises ValueError for a ttl that no lease can have."""
        return terms_for(self.ttl, grain=_GRAIN)

    @property
    def sweep_every(self) -> timedelta:
        return self.sweep or self.ttl / 3

    @property
    def places(self) -> int:
        """How many issues the fleet can work at once."""
        return self.workers * self.jobs


def _between(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} {value} is not between {least} and {most}")


class Distribution(Struct, frozen=True):
    """A summary of many durations. All zero if there were none."""

    count: int = 0
    mean_s: float = 0.0
    p50_s: float = 0.0
    p90_s: float = 0.0
    most_s: float = 0.0
    bins: tuple[int, ...] = ()
    """The number of durations in each of the equal parts of 0 to `most_s`."""

    @classmethod
    def of(cls, lengths_s: Iterable[float], parts: int = 40) -> "Distribution":
        ordered = sorted(lengths_s)
        if not ordered:
            return cls()
        bins = [0] * parts
        most_s = ordered[-1]
        for length_s in ordered:
            bins[min(int(length_s / most_s * parts), parts - 1) if most_s else 0] += 1
        return cls(
            count=len(ordered),
            mean_s=sum(ordered) / len(ordered),
            p50_s=ordered[(len(ordered) - 1) // 2],
            p90_s=ordered[(len(ordered) - 1) * 9 // 10],
            most_s=most_s,
            bins=tuple(bins),
        )


class Requests(Struct, frozen=True):
    """The fleet's requests to the tracker's API, priced by `Costs`."""

    total: int
    creating: int
    """How many created content: a comment, for which GitHub has a tighter limit."""
    an_issue: float
    an_hour: float
    busiest_hour: int
    creating_busiest_hour: int
    creating_busiest_minute: int
    by_call: Mapping[str, int]
    by_purpose: Mapping[str, int]
    refused: int
    """How often the API refused a request because of its limit."""
    limited_s: float
    """How long calls waited for that in total: from a refusal to the next accepted call."""
    to_store: int
    """Calls of an atomic lease store, which is another server."""


class Timeline(Struct, frozen=True):
    """Counts over time, in stretches of equal length."""

    width_s: float
    arrived: tuple[int, ...]
    started: tuple[int, ...]
    stopped: tuple[int, ...]
    rested: tuple[int, ...]
    requests: tuple[int, ...]
    creating: tuple[int, ...]


class Sizing(Struct, frozen=True):
    """The result of a simulation."""

    fleet: Fleet
    passed_s: float
    """From the start until the last issue came to rest."""
    done: int
    parked: int
    unfinished: int
    """Neither done nor parked when the time was over; includes `lost`."""
    lost: int
    """Begun once, and then held by nobody for five ttls until the end: must never happen."""
    starts: int
    """How often a handler was started."""
    duplicate_starts: int
    """Starts while another run of the issue worked and trusted its lease, or after it was done."""
    repeated_starts: int
    """Starts after an earlier run ended without finishing: its holder died or lost its lease."""
    advanced_twice: int
    crashes: int
    holders_died: int
    """Leases whose holder was killed."""
    leases_lost: int
    """Holders that were alive and had to stop: they could not renew in time."""
    races_lost: int
    """Bids that did not win."""
    blocked: Distribution
    """From a holder's death until its issue is free: the lease expires, and a worker sweeps."""
    takeover: Distribution
    """From a holder's death to the next start of a handler on its issue."""
    wait: Distribution
    """From an issue's arrival to the first start of a handler on it."""
    busy_s: float
    """The time of all handlers together."""
    wasted_s: float
    """How much of that was cut off by a crash or a lost lease."""
    requests: Requests
    timeline: Timeline
    switches: int = 0
    """How many steps the simulator made."""

    @property
    def an_hour(self) -> float:
        """Issues done per hour."""
        return self.done / self.passed_s * 3600 if self.passed_s else 0.0

    @property
    def utilisation(self) -> float:
        """The share of all workers' time in which a handler ran."""
        whole_s = self.fleet.places * self.passed_s
        return self.busy_s / whole_s if whole_s else 0.0


class Progress(Struct, frozen=True):
    rested: int
    issues: int
    passed_s: float


def simulate(
    fleet: Fleet,
    *,
    progress: Callable[[Progress], None] = lambda _: None,
    costs: Costs = Costs(),
) -> Sizing:
    """Let the fleet work until every issue has come to rest, or `fleet.longest` is over."""
    trial = _Trial(fleet, costs)
    try:
        trial.run(progress)
        return trial.sizing()
    finally:
        trial.end()


class _AllAtRest(Exception):
    """Nothing is left to simulate."""


class _Watched(Simulation):
    """A simulation that calls a function after each step, outside of all fibres."""

    after_each_step: Callable[[], None] = staticmethod(lambda: None)

    def step(self, fibre: Fibre) -> None:
        super().step(fibre)
        self.after_each_step()


class _MeteredWire(Wire):
    """One worker's connection to the tracker and the store: it takes time, and counts requests."""

    def __init__(self, process: Process, trial: "_Trial") -> None:
        super().__init__(process, trial.weather, trial.history)
        self._trial = trial
        self._sweeping = False
        self._limited_from_us: dict[int, int] = {}

    def call(
        self,
        op: str,
        issue: IssueRef | None,
        do: Callable[[], Answer],
        *arguments: object,
        writes: bool = False,
    ) -> Answer:
        """One wait, and the effect at its end: half the steps, with the same results for sizing."""
        trial = self._trial
        self._process.sleep(trial.dice.random() * trial.delay_s)
        if op not in _STORE_CALLS:
            self._admit(op)
        answer = do()
        price = trial.costs.of(op, arguments, answer)
        trial.allowance.charge(price, trial.simulation.now_us)
        trial.tally.call(op, self._purpose(op, arguments), price)
        if issue is not None and writes:
            trial.look_for_rest(op, issue, arguments)
        return answer

    def _admit(self, op: str) -> None:
        trial, now_us = self._trial, self._trial.simulation.now_us
        assert trial.simulation.running is not None, "only a fibre calls"
        fibre = trial.simulation.running.number
        try:
            trial.allowance.admit(op, now_us)
        except RateLimited:
            trial.tally.refused += 1
            self._limited_from_us.setdefault(fibre, now_us)
            raise
        if self._limited_from_us and fibre in self._limited_from_us:
            trial.tally.limited_us += now_us - self._limited_from_us.pop(fibre)

    def _purpose(self, op: str, arguments: tuple[object, ...]) -> Purpose:
        """The main loop looks for work, claims and sweeps; other calls come from other threads."""
        running = self._trial.simulation.running
        assert running is not None, "only a fibre calls"
        if running.name.startswith("dibs-keeper"):
            return Purpose.RENEWING
        if running.name != "main":
            return Purpose.FINISHING
        match op, arguments:
            case "find", (IssueQuery() as query,):
                self._sweeping = not self._trial.seeks_work(query)
                return Purpose.SWEEPING if self._sweeping else Purpose.SCANNING
            case _:
                return Purpose.SWEEPING if self._sweeping else Purpose.CLAIMING

    def observe(self, event: Event) -> None:
        self._trial.tally.hear(self._process, event)


class _Trial:
    """One simulation under way."""

    def __init__(self, fleet: Fleet, costs: Costs) -> None:
        self.fleet, self.costs = fleet, costs
        self.simulation = _Watched(grain=_GRAIN)
        self.tally = Tally(self.simulation)
        self.allowance = Allowance(fleet.limits)
        self.history = History(lambda: self.simulation.now_us)
        self.dice = random.Random(f"{fleet.seed} weather")
        self.delay_s = fleet.delay.total_seconds()
        self.server = Server(self.simulation, self.dice, write_lag_s=fleet.lag.total_seconds())
        self.weather = Weather(Faults(), self.dice, self.history, calm_from_us=0)
        self._dice = random.Random(f"{fleet.seed} workers")
        self._settings = _settings(fleet)
        self._pipeline = self._settings.pipeline
        self._store = MemoryLeases(self.simulation.server_now) if fleet.leases == STORE else None
        self._pauses = MemoryPauses(self.simulation.server_now)
        self._working: list[Process] = []
        self._runs = 0
        # Separate random numbers, so that fleets with the same seed have the same issues and
        # crashes.
        work = random.Random(f"{fleet.seed} work")
        self._work_s = [fleet.work.draw_s(work) for _ in range(fleet.issues)]

    # The run

    def run(self, progress: Callable[[Progress], None]) -> None:
        self._bring_issues()
        for number in range(1, self.fleet.workers + 1):
            self._employ(f"w{number}")

        simulation, tally, issues = self.simulation, self.tally, self.fleet.issues

        def look() -> None:
            if simulation.switches % _TELL_EVERY == 0:
                progress(Progress(tally.rested, issues, simulation.passed_s))
            if tally.rested == issues:
                raise _AllAtRest

        simulation.after_each_step = look
        with suppress(_AllAtRest):
            simulation.run(microseconds(self.fleet.longest.total_seconds()))
        progress(Progress(tally.rested, issues, simulation.passed_s))

    def end(self) -> None:
        """End every fibre."""
        for process in self._working:
            process.kill()

    # Issues

    def _bring_issues(self) -> None:
        gaps_s = self.fleet.arrival.gaps_s(random.Random(f"{self.fleet.seed} arrivals"))
        source = Process(self.simulation, "the source of issues")
        self._working.append(source)

        def bring() -> None:
            for gap_s in islice(gaps_s, self.fleet.issues):
                source.sleep(gap_s)
                self._create()

        if isinstance(self.fleet.arrival, AtOnce):
            for _ in range(self.fleet.issues):
                self._create()
        else:
            source.start(bring, "main")

    def _create(self) -> None:
        first = self._pipeline.stages[0]
        draft = Draft("An issue", labels=frozenset({first.label}))
        self.tally.arrive(self.server.create(draft).ref)

    def seeks_work(self, query: IssueQuery) -> bool:
        """Whether a query is a scan for work. The other queries are a sweep's."""
        return query.labels[:1] == (self._pipeline.stages[0].label,)

    def look_for_rest(self, op: str, issue: IssueRef, arguments: tuple[object, ...]) -> None:
        """A closed issue is done; an issue with the label for people is parked."""
        match op, arguments:
            case "close", _:
                self.tally.rest(issue, done=True)
            case "edit_labels", (tuple(add), _) if self._pipeline.labels.parked in add:
                self.tally.rest(issue, done=False)

    # Workers

    def _employ(self, name: str) -> None:
        """Start a worker, and start it again whenever it dies."""
        if not self.fleet.crash_per_hour:
            self._start_worker(name)
            return
        luck = random.Random(f"{self.fleet.seed} luck of {name}")
        supervisor = Process(self.simulation, f"{name}'s supervisor")
        self._working.append(supervisor)

        def supervise() -> None:
            while True:
                worker = self._start_worker(name)
                supervisor.sleep(luck.expovariate(self.fleet.crash_per_hour / 3600))
                self.tally.die(worker)
                worker.alive = False
                self.simulation.leave_dying(worker)
                self._working.remove(worker)
                supervisor.sleep(self.fleet.restart.total_seconds())

        supervisor.start(supervise, "main")

    def _start_worker(self, name: str) -> Process:
        process = Process(self.simulation, name)
        self._working.append(process)
        services = self._services(process)
        worker = services.worker(HolderId(name), services.serving(()))

        def main() -> None:
            worker.run()

        process.start(main, "main")
        return process

    def _services(self, process: Process) -> Services:
        """The shipped services, in a simulated process."""
        wire = _MeteredWire(process, self)
        tracker = WiredTracker(wire, self.server, settle=self.fleet.settle, grain=_GRAIN)
        services = Services(
            self._settings,
            Adapters(
                tracker=tracker,
                store=WiredStore(wire, self._store) if self._store is not None else None,
                pauses=self._pauses,
                observers=(wire,),
                clock=process,
                threads=process,
            ),
            handlers={self._pipeline.stages[0].name: self._handler(process)},
            new_run=self._new_run,
            dice=lambda: random.Random(self._dice.random()),
        )
        services.runner = NoRunner()
        return services

    def _new_run(self) -> RunId:
        self._runs += 1
        return RunId(f"run{self._runs}")

    def _handler(self, process: Process) -> Callable[[Assigned], None]:
        """A handler that takes as long as the issue takes, and stops when it is told to."""

        def handle(work: Assigned) -> None:
            keeper = work.lease
            assert keeper is not None, "it runs in the worker's own process"
            process.wait(keeper.over, self._work_s[int(keeper.issue.key) - 1])
            work.check()

        return handle

    # What came of it

    def sizing(self) -> Sizing:
        tally, fleet = self.tally, self.fleet
        now_us = self.simulation.now_us
        unfinished = fleet.issues - tally.rested
        forgotten_us = now_us - _FORGOTTEN_TTLS * microseconds(fleet.ttl.total_seconds())
        return Sizing(
            fleet=fleet,
            passed_s=self.simulation.passed_s,
            done=tally.done,
            parked=tally.parked,
            unfinished=unfinished,
            lost=tally.left_alone(forgotten_us),
            starts=tally.starts,
            duplicate_starts=tally.duplicate_starts,
            repeated_starts=tally.repeated_starts,
            advanced_twice=tally.advanced_twice,
            crashes=tally.crashes,
            holders_died=tally.holders_died,
            leases_lost=tally.events[EventKind.LEASE_LOST],
            races_lost=tally.events[EventKind.CLAIM_LOST],
            blocked=Distribution.of(tally.blocked_s),
            takeover=Distribution.of(tally.takeovers_s),
            wait=Distribution.of(tally.waits_s),
            busy_s=tally.busy_us / 1e6,
            wasted_s=tally.wasted_us / 1e6,
            requests=self._requests(now_us),
            timeline=self._timeline(now_us),
            switches=self.simulation.switches,
        )

    def _requests(self, now_us: int) -> Requests:
        tally = self.tally
        return Requests(
            total=tally.requests,
            creating=tally.creating,
            an_issue=tally.requests / max(1, tally.rested),
            an_hour=tally.requests / max(1, now_us) * HOUR_US,
            busiest_hour=tally.busiest_hour.most,
            creating_busiest_hour=tally.busiest_creating_hour.most,
            creating_busiest_minute=tally.busiest_creating_minute.most,
            by_call=dict(sorted(tally.by_call.items())),
            by_purpose={purpose.value: tally.by_purpose[purpose] for purpose in Purpose},
            refused=tally.refused,
            limited_s=tally.limited_us / 1e6,
            to_store=tally.store_calls,
        )

    def _timeline(self, now_us: int) -> Timeline:
        series = self.tally.series
        return Timeline(
            width_s=series.width_us / 1e6,
            arrived=series.counts(Line.ARRIVED, now_us),
            started=series.counts(Line.STARTED, now_us),
            stopped=series.counts(Line.STOPPED, now_us),
            rested=series.counts(Line.RESTED, now_us),
            requests=series.counts(Line.REQUESTS, now_us),
            creating=series.counts(Line.CREATING, now_us),
        )


def _settings(fleet: Fleet) -> config.Settings:
    settings = config.from_mapping({}, source="the simulator", root=Path())
    return replace(
        settings,
        pipeline=_pipeline(fleet),
        settle=fleet.settle,
        poll=fleet.poll,
        sweep=fleet.sweep_every,
        jobs=fleet.jobs,
    )


def _pipeline(fleet: Fleet) -> Pipeline:
    """One stage with a handler, and the end."""
    first, *_, last = STAGES.stages
    worked = replace(first, next=(last.name,), terms=fleet.terms, attempts=fleet.attempts)
    return replace(STAGES, stages=(worked, replace(last, terms=fleet.terms)))
