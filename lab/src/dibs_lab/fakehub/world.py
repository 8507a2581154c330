"""The parts of one fake GitHub, wired together: state, limits, faults, counts."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from .apps import Apps
from .counting import Counts
from .faults import Faults
from .git import Git
from .hooks import Deliveries
from .limits import Limits, Meter
from .state import State


@dataclass(frozen=True, slots=True)
class World:
    state: State
    meter: Meter
    counts: Counts
    faults: Faults
    deliveries: Deliveries
    git: Git
    apps: Apps
    graphql: bool = True
    """Whether the fake serves GraphQL at all."""


def make_world(
    *,
    clock: Callable[[], datetime],
    limits: Limits,
    seed: int,
    api: Callable[[], str],
    graphql: bool,
) -> World:
    state = State(clock=clock)
    counts, faults = Counts(), Faults(seed)
    deliveries = Deliveries(state, api)
    state.lag, state.reading, state.forbids = faults.lag, faults.reading, faults.forbids
    state.strays = faults.meets
    state.listeners += [counts.hear, faults.hear, deliveries.hear]
    meter = Meter(state.now, limits)
    return World(state, meter, counts, faults, deliveries, Git(), Apps(state), graphql)
