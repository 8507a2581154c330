"""One seed, run to its end: the result for checkers and for people."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from dibs import __version__
from dibs.core.ids import IssueRef
from dibs.core.issue import Snapshot
from dibs.core.pipeline import Pipeline
from dibs_lab.sim import hands
from dibs_lab.sim.history import Note
from dibs_lab.sim.world import Scenario, World

Cast = Callable[[World], None]
"""Starts the processes that take part in a world."""


class Run(Struct, frozen=True):
    """A finished run. Seed, scenario and version are enough to repeat it."""

    scenario: Scenario
    seed: int
    pipeline: Pipeline
    notes: tuple[Note, ...]
    snapshots: Mapping[IssueRef, Snapshot]
    """The server's final state."""
    at_rest: Mapping[IssueRef, bool]
    passed_s: float
    switches: int
    version: str = __version__


def our_workers(world: World) -> None:
    """The number of shipped workers that the scenario says, and everybody else it names."""
    for number in range(1, world.scenario.workers + 1):
        world.start_worker(f"w{number}")
    hands.set_out(world)


def play(scenario: Scenario, seed: int, cast: Cast = our_workers) -> Run:
    world = World(scenario, seed)
    try:
        cast(world)
        world.run()
    finally:
        world.end()
    return finished(world)


def finished(world: World) -> Run:
    """The result of a world that has ended."""
    return Run(
        scenario=world.scenario,
        seed=world.seed,
        pipeline=world.pipeline,
        notes=tuple(world.history.notes),
        snapshots={issue: world.server.truth.read(issue) for issue in world.issues},
        at_rest={issue: world.at_rest(issue) for issue in world.issues},
        passed_s=world.simulation.passed_s,
        switches=world.simulation.switches,
    )
