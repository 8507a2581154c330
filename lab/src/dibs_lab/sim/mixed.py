"""A fleet during its migration: runners of the published state machine beside dibs, on one issue.

The runners are the control of `controls`; the dibs workers are the shipped ones, with the pipeline
and the dialect of preset `agent`. Counted are pairs that held an issue at once: two runners, one of
each, two dibs workers.
"""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.memory.tracker import MemoryTracker
from dibs.adapters.wrappers.trackers import SpokenTracker
from dibs.core.errors import Outage
from dibs.core.ids import IssueRef
from dibs.core.issue import Snapshot
from dibs.core.pipeline import Dialect, People, Pipeline
from dibs.core.presets import AGENT
from dibs.wiring.services import Services
from dibs_lab.sim import hands
from dibs_lab.sim.checkers import Hold, holds
from dibs_lab.sim.controls import start_control, state_machine
from dibs_lab.sim.faults import Faults
from dibs_lab.sim.fibres import Process
from dibs_lab.sim.runs import Run, finished
from dibs_lab.sim.wires import WiredTracker
from dibs_lab.sim.world import Scenario, World

_THEIRS = "old"


class Pair(StrEnum):
    """Who held one issue at the same time."""

    THEIRS = "two of theirs"
    MIXED = "one of each"
    OURS = "two of ours"


class Fleet(Struct, frozen=True):
    theirs: int
    ours: int


def agent_rules(pipeline: Pipeline, scenario: Scenario) -> Pipeline:
    """The world's own stages, with the labels, the dialect and the patience of preset `agent`."""
    first, *others = pipeline.stages
    return replace(
        pipeline,
        stages=(replace(first, working_label=None, gives_way=True), *others),
        labels=AGENT.labels,
        people=People(marker_ttl=scenario.terms.ttl),
        dialect=Dialect.AGENT,
    )


class MixedWorld(World):
    def __init__(self, scenario: Scenario, seed: int) -> None:
        super().__init__(scenario, seed)
        self.pipeline = agent_rules(self.pipeline, scenario)
        self.settings = replace(self.settings, pipeline=self.pipeline)

    def services(self, process: Process) -> Services:
        services = super().services(process)
        services.adapters.tracker = SpokenTracker(
            services.adapters.tracker, self.simulation.server_now
        )
        return services


class FailsOpen:
    """What runners of the state machine do with a failed read: an open issue with nothing on it."""

    def __init__(self, truth: MemoryTracker, inner: WiredTracker) -> None:
        self._truth = truth
        self._inner = inner

    def read(self, issue: IssueRef) -> Snapshot:
        try:
            return self._inner.read(issue)
        except Outage:
            known = self._truth.read(issue)
            blank = replace(known.issue, open=True, labels=frozenset(), comment_count=0)
            return Snapshot(blank, (), known.now)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def play_mixed(scenario: Scenario, seed: int, fleet: Fleet) -> Run:
    world = MixedWorld(scenario, seed)
    sees = partial(FailsOpen, world.server.truth)
    try:
        for number in range(1, fleet.theirs + 1):
            start_control(world, state_machine, f"{_THEIRS}{number}", through=sees)
        for number in range(1, fleet.ours + 1):
            world.start_worker(f"w{number}")
        hands.set_out(world)
        world.run()
    finally:
        world.end()
    return finished(world)


def pairs(run: Run) -> set[Pair]:
    """Which kinds of double holders there were."""
    found: set[Pair] = set()
    held = holds(run)
    for place, one in enumerate(held):
        found |= {_kind(one, other) for other in held[place + 1 :] if _overlap(one, other)}
    return found


def _overlap(one: Hold, other: Hold) -> bool:
    together = one.since_us < other.until_us and other.since_us < one.until_us
    return together and one.issue == other.issue and one.run != other.run


def _kind(one: Hold, other: Hold) -> Pair:
    theirs = sum(hold.process.startswith(_THEIRS) for hold in (one, other))
    return (Pair.OURS, Pair.MIXED, Pair.THEIRS)[theirs]


def count_pairs(scenario: Scenario, seeds: Iterable[int], fleet: Fleet) -> Counter[Pair]:
    """In how many schedules each kind of double holder occurred."""
    counted: Counter[Pair] = Counter()
    for seed in seeds:
        counted.update(pairs(play_mixed(scenario, seed, fleet)))
    return counted


_SHORT = (1.0, 8.0)
_LIKE_GITHUB = Scenario(settle_s=2.5, work_s=_SHORT)


def _world(name: str, faults: Faults, **changed: object) -> Scenario:
    return replace(_LIKE_GITHUB, name=name, faults=faults, **changed)


WORLDS: tuple[Scenario, ...] = (
    _world("timestamps in milliseconds, nothing lags", Faults(grain_s=0.001)),
    _world("timestamps in whole seconds, nothing lags", Faults()),
    _world("writes seen within 2 s", Faults(write_lag_s=2.0)),
    _world("writes seen within 5 s, longer than settle", Faults(write_lag_s=5.0)),
    _world("one request in ten fails", Faults(unavailable=0.1)),
    _world("crashes and stalls", Faults(freeze=0.1, freeze_s=40.0, crash=0.15)),
    _world("work longer than a claim counts", Faults(), work_s=(15.0, 60.0)),
)
"""What the state machine's rules do not cover, one fault at a time. dibs settles as on GitHub."""
