"""Many schedules, counted: how often each scenario was run, and which rules were violated."""

import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from enum import StrEnum
from itertools import chain, zip_longest
from multiprocessing import get_context

from msgspec import Struct, field

from dibs_lab.sim.checkers import (
    RULES,
    Checker,
    Evidence,
    Violation,
    advanced_once,
    comes_to_rest,
    one_holder,
    picture_is_true,
    promised,
    violations,
)
from dibs_lab.sim.controls import seed_script, state_machine, workers_of
from dibs_lab.sim.exhaustive import CASES, Broken, Case, explore
from dibs_lab.sim.mutants import Mutant
from dibs_lab.sim.runs import Cast, Run, our_workers, play
from dibs_lab.sim.scenarios import BY_NAME
from dibs_lab.sim.world import Scenario

_CHUNK = 100


class Who(StrEnum):
    """Whose protocol the workers follow."""

    OURS = "dibs"
    SEED_SCRIPT = "seed script"
    STATE_MACHINE = "state machine"


CASTS: Mapping[Who, Cast] = {
    Who.OURS: our_workers,
    Who.SEED_SCRIPT: workers_of(seed_script),
    Who.STATE_MACHINE: workers_of(state_machine),
}


class Count(Struct):
    """The totals of many runs."""

    schedules: int = 0
    switches: int = 0
    holds: int = 0
    two_holders: int = 0
    """Schedules in which two runs trusted a lease on one issue at once."""
    finished_twice: int = 0
    """Schedules in which a stage was finished again."""
    lost: int = 0
    """Issues that never came to rest."""
    odd_labels: int = 0
    """Schedules that ended with no stage, several stages, or another than the cards name."""
    broken: Counter[str] = field(default_factory=Counter)
    """Schedules that violated a rule that was promised for them."""
    first: dict[str, int] = field(default_factory=dict)
    """The first seed of each violation, promised or not."""

    def take(self, run: Run) -> None:
        self.schedules += 1
        self.switches += run.switches
        evidence = Evidence.of(run)
        self.holds += len(evidence.holds)
        for rule in RULES:
            found = list(rule(evidence))
            if found:
                self._note(rule, run, found)

    def _note(self, rule: Checker, run: Run, found: Sequence[Violation]) -> None:
        self.two_holders += rule is one_holder
        self.finished_twice += rule is advanced_once
        self.lost += len(found) if rule is comes_to_rest else 0
        self.odd_labels += rule is picture_is_true
        if promised(rule, run.scenario):
            self.broken[found[0].rule] += 1
        self.first[found[0].rule] = min(run.seed, self.first.get(found[0].rule, run.seed))

    def add(self, other: "Count") -> None:
        self.schedules += other.schedules
        self.switches += other.switches
        self.holds += other.holds
        self.two_holders += other.two_holders
        self.finished_twice += other.finished_twice
        self.lost += other.lost
        self.odd_labels += other.odd_labels
        self.broken += other.broken
        for rule, seed in other.first.items():
            self.first[rule] = min(seed, self.first.get(rule, seed))


class Order(Struct, frozen=True):
    """A number of schedules of one scenario, with one kind of worker."""

    scenario: Scenario
    who: Who = Who.OURS
    schedules: int = 1000
    first_seed: int = 0

    @property
    def seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.schedules)


def count_runs(scenario: Scenario, who: Who, seeds: Iterable[int]) -> Count:
    """Run the seeds one after the other, in this process."""
    found = Count()
    with _collecting_once():
        for seed in seeds:
            found.take(play(scenario, seed, CASTS[who]))
    return found


@contextmanager
def _collecting_once() -> Iterator[None]:
    """Collect garbage once: a run leaves cycles, and collecting them as they come takes 25 %."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


def run_orders(
    orders: Sequence[Order],
    *,
    jobs: int,
    played: Callable[[int], None] = lambda _: None,
    enough: Callable[[], bool] = lambda: False,
) -> list[Count]:
    """Run all orders in several processes; `played` gets the number of finished schedules.

    The orders advance side by side, so that all have similar progress when `enough` is true.
    """
    totals = [Count() for _ in orders]
    # Forked children would inherit greenlets of another process's hub.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_quiet) as pool:
        pending: dict[Future[Count], int] = {}
        for number, order, seeds in _side_by_side(orders):
            pending[pool.submit(count_runs, order.scenario, order.who, seeds)] = number
        for done in as_completed(pending):
            totals[pending[done]].add(done.result())
            played(done.result().schedules)
            if enough():
                pool.shutdown(wait=True, cancel_futures=True)
                break
    return totals


def _side_by_side(orders: Sequence[Order]) -> Iterator[tuple[int, Order, range]]:
    rounds = zip_longest(*(_chunks(number, order) for number, order in enumerate(orders)))
    return (chunk for chunk in chain.from_iterable(rounds) if chunk is not None)


def _quiet() -> None:
    """Silence the services, which warn of every fault; here faults are intended."""
    logging.disable(logging.CRITICAL)


def _chunks(number: int, order: Order) -> Iterator[tuple[int, Order, range]]:
    for start in order.seeds[::_CHUNK]:
        yield number, order, range(start, min(start + _CHUNK, order.seeds.stop))


class Catch(Struct, frozen=True):
    """The schedule that showed a mutant's flaw."""

    where: str
    text: str
    seed: int | None = None
    """The seed that shows it; None if an exhaustive case does."""


def hunt(mutant: Mutant, *, most: int = 20_000, first: int = 0) -> Catch | None:
    """The first schedule from seed `first` on that shows the mutant's flaw.

    None if none of `most` schedules does.
    """
    with mutant.in_force():
        if mutant.shown_by in BY_NAME:
            return _hunt_seeds(BY_NAME[mutant.shown_by], range(first, first + most))
        return _hunt_case(next(case for case in CASES if case.name == mutant.shown_by))


def _hunt_seeds(scenario: Scenario, seeds: range) -> Catch | None:
    for seed in seeds:
        if found := violations(play(scenario, seed)):
            return Catch(scenario.name, str(found[0]), seed)
    return None


def _hunt_case(case: Case) -> Catch | None:
    try:
        explore(case)
    except Broken as flaw:
        return Catch(case.name, str(flaw).partition(", after")[0])
    return None
