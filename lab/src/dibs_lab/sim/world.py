"""One simulated world: a server, workers that share nothing else, people, and one seed.

The workers are the shipped ones: `wiring.Services` builds them from the same parts as in a process.
Only what they use to reach the outside is simulated: the clock, the threads, the tracker, the lease
store. A run ends when every issue has come to rest and every process is idle, or when the time in
which that must have happened is over.
"""

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import lru_cache
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from dibs.adapters.memory.control import MemoryPauses
from dibs.adapters.memory.leases import MemoryLeases
from dibs.core.durations import LeaseTerms, terms_for
from dibs.core.errors import LeaseLost
from dibs.core.ids import Fence, HolderId, IssueRef, RunId, StageName
from dibs.core.issue import Draft
from dibs.core.pipeline import Backoff, Command, Pipeline, PythonCallable
from dibs.core.presets import STAGES
from dibs.ports.system import Assignment, FinishedRun, RunningHandler
from dibs.services.running import Work
from dibs.settings import load as config
from dibs.wiring.services import Adapters, Services
from dibs_lab.sim.faults import Faults, Weather
from dibs_lab.sim.fibres import Killed, Process, Simulation, microseconds
from dibs_lab.sim.history import Acts, Effect, History
from dibs_lab.sim.server import Server
from dibs_lab.sim.trips import Network
from dibs_lab.sim.wires import Wire, WiredStore, WiredTracker, WiredTrips

_SERVER_S = 1.0
"""More than the server takes for all effects of a trip."""
COMMENTS = "comments"
MEMORY = "memory"


class Scenario(Struct, frozen=True):
    """Everything that a run depends on, except the seed."""

    name: str = "unnamed"
    workers: int = 3
    issues: int = 1
    stages: int = 1
    """How many stages an issue is worked in, one after the other."""
    leases: str = COMMENTS
    one_trip: bool = False
    """The tracker takes several effects in one request, though not in one step."""
    ttl_s: float = 20.0
    settle_s: float = 0.0
    work_s: tuple[float, float] = (1.0, 30.0)
    """The shortest and the longest time of a handler."""
    storm_s: float = 90.0
    """When the faults stop."""
    faults: Faults = field(default_factory=Faults)
    bound_ttls: float = 12.0
    """How many ttls after the storm every issue must have come to rest."""

    @property
    def covered(self) -> bool:
        """Whether a reader that sees its own bid is sure to see every earlier one.

        A replica that lags in order shows no later write without the earlier ones, so it needs no
        settle; if each write has its own delay, settle must cover it.
        """
        return self.faults.write_lag_s == 0 or self.settle_s > self.faults.lag_s

    @property
    def timely(self) -> bool:
        """Whether settle covers this tracker's lag; if not, holders give up their leases."""
        return self.faults.lag_s == 0 or self.settle_s > self.faults.lag_s

    @property
    def pictured(self) -> bool:
        """Whether the labels are sure to be right in the end, on a tracker that cannot batch.

        Not where other people change labels while a painter is suspended; nor where a lagging
        tracker hides the card from a process that paints for an atomic store; nor where a label
        change takes effect late and nobody checks it, or one of several changes is left out.
        """
        faults = self.faults
        hands = faults.bot or faults.person or faults.tampers
        strays = faults.straggle or faults.failed_in_part
        return not hands and not strays and (self.leases == COMMENTS or faults.lag_s == 0)

    @property
    def exclusive(self) -> bool:
        """Whether one holder at a time is promised, or only likely."""
        if self.leases == MEMORY:
            return not self.faults.force
        return self.covered and not self.faults.tampers

    @property
    def terms(self) -> LeaseTerms:
        grain = timedelta(seconds=self.faults.grain_s)
        return terms_for(timedelta(seconds=self.ttl_s), grain=grain)

    @property
    def horizon_s(self) -> float:
        return self.storm_s + self.bound_ttls * self.ttl_s


@lru_cache(maxsize=64)
def settings_of(scenario: Scenario, *, closes: bool = True) -> config.Settings:
    settings = config.from_mapping({}, source="the simulator", root=Path())
    return replace(
        settings,
        pipeline=pipeline_of(scenario, closes=closes),
        settle=timedelta(seconds=scenario.settle_s),
        poll=timedelta(seconds=scenario.ttl_s / 3),
        sweep=timedelta(seconds=scenario.ttl_s),
        grace=timedelta(),
    )


def pipeline_of(scenario: Scenario, *, closes: bool) -> Pipeline:
    """The stages with handlers, and the end. Each stage must be worked exactly once."""
    first, second, last = STAGES.stages
    rest = Backoff(timedelta(seconds=scenario.ttl_s / 4), timedelta(seconds=scenario.ttl_s))
    # Crashes count as attempts, and a storm has many of them.
    first = replace(first, terms=scenario.terms, backoff=rest, attempts=8)
    further = [
        replace(first, name=StageName(name), label=f"{second.label}:{name}", working_label=None)
        for name in ("review", "test", "docs", "deploy")
    ]
    worked = [first, *further][: scenario.stages]
    last = replace(last, terms=scenario.terms, closes=closes)
    after = [*worked[1:], last]
    moving = [replace(one, next=(then.name,)) for one, then in zip(worked, after, strict=True)]
    return replace(STAGES, stages=(*moving, last))


class NoRunner:
    """Fails if called: handlers run in the simulated process itself."""

    def check(self, handler: Command | PythonCallable, **_: object) -> None:
        raise AssertionError("a simulated stage has no command")

    def start(self, assignment: Assignment, trusted_until: float) -> RunningHandler:
        raise AssertionError("a simulated stage has no command")

    def settle(self, run: RunId) -> None:
        """No run of a command is open."""

    def finished_by_the_dead(self) -> Iterator[FinishedRun]:
        return iter(())


class World:
    """The state of one run."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        faults = scenario.faults
        self.scenario, self.seed = scenario, seed
        self.dice = random.Random(seed)
        self.simulation = Simulation(grain=timedelta(seconds=faults.grain_s))
        self.history = History(lambda: self.simulation.now_us)
        self.server = Server(
            self.simulation,
            self.dice,
            read_lag_s=faults.read_lag_s,
            write_lag_s=faults.write_lag_s,
        )
        self.store = MemoryLeases(self.simulation.server_now) if scenario.leases == MEMORY else None
        self.pauses = MemoryPauses(self.simulation.server_now)
        self.weather = Weather(
            faults, self.dice, self.history, calm_from_us=microseconds(scenario.storm_s)
        )
        self._cheap_reads = self.dice.random() < 0.5
        self.settings = settings_of(scenario, closes=self.dice.random() < 0.5)
        self.pipeline = self.settings.pipeline
        self.network = Network(self.simulation)
        self.processes: list[Process] = [self.network.process]
        self.highest_fence: dict[IssueRef, Fence] = {}
        self.issues = [
            self.server.create(Draft(f"Issue {number}", labels=self._first_labels)).ref
            for number in range(1, scenario.issues + 1)
        ]
        self._runs = 0
        self._over = False

    @property
    def _first_labels(self) -> frozenset[str]:
        return frozenset({self.pipeline.stages[0].label})

    @property
    def _worked(self) -> list[str]:
        return [stage.name for stage in self.pipeline.stages if not stage.final]

    # Processes

    def process(self, name: str) -> Process:
        offset_s = self.scenario.faults.clock_offset_s
        made = Process(self.simulation, name, clock_offset_s=self.dice.uniform(-offset_s, offset_s))
        self.processes.append(made)
        return made

    def wire(self, process: Process) -> Wire:
        return Wire(process, self.weather, self.history, self.network)

    def tracker(self, wire: Wire) -> WiredTracker:
        faults = self.scenario.faults
        kind = WiredTrips if self.scenario.one_trip else WiredTracker
        return kind(
            wire,
            self.server,
            settle=timedelta(seconds=self.scenario.settle_s),
            grain=timedelta(seconds=faults.grain_s),
            cheap_reads=self._cheap_reads,
            in_flight=None
            if faults.in_flight_s is None
            else timedelta(seconds=faults.in_flight_s + faults.delay_s + _SERVER_S),
        )

    def services(self, process: Process) -> Services:
        """The shipped services, in a simulated process."""
        wire = self.wire(process)
        services = Services(
            self.settings,
            Adapters(
                tracker=self.tracker(wire),
                store=WiredStore(wire, self.store) if self.store is not None else None,
                pauses=self.pauses,
                observers=(wire,),
                clock=process,
                threads=process,
            ),
            reached=wire.reached,
            handlers=dict.fromkeys(self._worked, self._handler(process, wire)),
            new_run=self.new_run,
            dice=lambda: random.Random(self.dice.random()),
        )
        services.runner = NoRunner()
        return services

    def new_run(self) -> RunId:
        self._runs += 1
        return RunId(f"run{self._runs}")

    def start_worker(self, name: str, *, doomed: bool = True) -> Process:
        process = self.process(name)
        services = self.services(process)
        worker = services.worker(HolderId(name), services.serving(()))
        if doomed:
            self.weather.doom(process)
        process.start(lambda: self._work(process, worker.run), "main")
        return process

    def _work(self, process: Process, run: Callable[[], object]) -> None:
        """Run a worker; if it dies, start it again, as a supervisor does."""
        try:
            run()
        except Killed:
            name = process.name
            self.replace_dead(name, lambda: self.start_worker(name, doomed=False))
            raise

    def replace_dead(self, name: str, start: Callable[[], object]) -> None:
        """Start it again soon after its death, with the same name, as a service manager does."""
        if self._over:
            return
        nanny = self.process(f"{name}'s nanny")
        rest_s = self.dice.uniform(0.0, 2 * self.scenario.ttl_s)

        def start_again() -> None:
            nanny.sleep(rest_s)
            start()

        nanny.start(start_again, "main")

    def _handler(self, process: Process, wire: Wire) -> Callable[[Work], None]:
        def handle(work: Work) -> None:
            keeper = work.lease
            assert keeper is not None, "it runs in the worker's own process"
            until = process.now() + self.dice.uniform(*self.scenario.work_s)
            while (left_s := until - process.now()) > 0:
                if process.wait(keeper.over, min(left_s, self.scenario.ttl_s / 4)):
                    break
                self._act(work, wire)
            if self.dice.random() < self.scenario.faults.fail and self.weather.storms(process):
                raise RuntimeError("the handler failed")
            self._act(work, wire)
            self._take_effect(wire, keeper.issue, RunId(work.run), Fence(work.fence))

        return handle

    @staticmethod
    def _act(work: Work, wire: Wire) -> None:
        work.check()
        wire.note(Acts(RunId(work.run)))

    def _take_effect(self, wire: Wire, issue: IssueRef, run: RunId, fence: Fence) -> None:
        """A write somewhere else, which refuses a lower fence than it has seen."""

        def write() -> bool:
            accepted = fence >= self.highest_fence.get(issue, 0)
            if accepted:
                self.highest_fence[issue] = fence
            wire.note(Effect(issue, run, fence, accepted))
            return accepted

        if not wire.call("effect", issue, write, fence, writes=True):
            raise LeaseLost(issue, fence=fence, why="the resource refused the fence")

    # The run

    def at_rest(self, issue: IssueRef) -> bool:
        """Done, parked or paused, and held by nobody."""
        known, marks = self.server.truth.read(issue).issue, self.pipeline.labels
        if known.labels & {marks.claimed, *self.pipeline.working_labels}:
            return False
        if known.labels & {marks.parked, marks.paused}:
            return True
        stages = self.pipeline.stages_of(known.labels)
        if len(stages) == 1:
            return stages[0].final or not known.open
        # No stage or several: nobody works it. The rule about the picture reports the cause.
        painted_by_s = self.scenario.storm_s + 3 * self.scenario.ttl_s
        return self.simulation.passed_s > painted_by_s

    def quiet(self) -> bool:
        return all(process.idle for process in self.processes) and all(
            self.at_rest(issue) for issue in self.issues
        )

    def run(self) -> None:
        self.simulation.run(microseconds(self.scenario.horizon_s), over=self.quiet)

    def end(self) -> None:
        """End every fibre."""
        self._over = True
        for process in self.processes:
            process.kill()
