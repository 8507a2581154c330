"""Contestants measured in turns, and what may be said of them afterwards.

A round gives every contestant one batch of cycles, in a new random order. Of a batch the median
cycle counts, since on a busy machine a longer batch is interrupted more often, and not only by its
own length. What is compared is the ratio of two batches of the same round, so that a slow minute
hits both; what is told is the median of those ratios, its spread, and how well it is known. One
contestant is the floor, and runs twice in each round: what it differs from itself is the noise of
the run.
"""

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from benchmarks.tables import Check, Column, Say, Table

MOST_OF_FLOOR = 1.10
LEGEND = """\
us/cycle: the median of the rounds, and of a round its median cycle; mean: of all cycles, with
whatever else the machine did meanwhile; of floor: the median of the rounds' ratios, how well that
median is known (95 %), and between what the middle half of the ratios lies; ours of it: the same
for our time over this side's
"""
Batch = Callable[[int], list[float]]
"""Do so many cycles; how many seconds each took."""


class Role(Enum):
    FLOOR = "the least that could be done"
    AGAIN = "the floor, measured a second time"
    OURS = "ours"
    HOLD = "ours, as a program uses it"
    OTHER = "a library that ours must not be behind"
    ASIDE = "for scale"


@dataclass(slots=True)
class Contestant:
    name: str
    role: Role
    batch: Batch
    gives: tuple[str, ...] = ()
    """What one gets for it, in the order of the table of `gains`."""
    times_s: list[float] = field(default_factory=list)
    """The median cycle of each round."""
    means_s: list[float] = field(default_factory=list)
    """The mean cycle of each round, with whatever came in between."""
    requests: float | None = None
    """Per cycle, if they can be counted."""


def cycles_of(cycle: Callable[[], None]) -> Batch:
    """Batches of a cycle that is a plain call."""

    def batch(cycles: int) -> list[float]:
        times_s = []
        for _ in range(cycles):
            began_at = time.perf_counter()
            cycle()
            times_s.append(time.perf_counter() - began_at)
        return times_s

    return batch


def with_control(contestants: Sequence[Contestant]) -> list[Contestant]:
    """The floor once more, at the end of the table."""
    floor = only(contestants, Role.FLOOR)
    return [*contestants, Contestant("the floor again", Role.AGAIN, floor.batch)]


def count_requests(
    contestants: Sequence[Contestant], read: Callable[[], float], cycles: int = 20
) -> None:
    """Ask the server how much it was asked. `read` counts up, itself included or not."""
    for one in contestants:
        one.batch(cycles)  # connections are made and scripts are known
        first, again = read(), read()
        one.batch(cycles)
        one.requests = (read() - again - (again - first)) / cycles


def race(
    name: str, contestants: Sequence[Contestant], *, rounds: int, cycles: int, say: Say
) -> None:
    """Measure them all, in turns."""
    for one in contestants:
        one.batch(cycles)
    gc.collect()
    gc.freeze()  # what was imported is not gone through again in the middle of somebody's batch
    dice = random.Random(0)
    order = list(contestants)
    for number in range(1, rounds + 1):
        if number % max(1, rounds // 5) == 0:
            say(f"{name}: round {number} of {rounds}")
        dice.shuffle(order)
        for one in order:
            times_s = one.batch(cycles)
            one.times_s.append(statistics.median(times_s))
            one.means_s.append(statistics.fmean(times_s))
    gc.unfreeze()


# What may be said


@dataclass(frozen=True, slots=True)
class Ratio:
    """How much longer one takes than another, from the ratios of each round."""

    median: float
    low: float
    high: float
    """The median lies between these with 95 % confidence, whatever the noise looks like."""
    quarter: float
    three_quarters: float
    """The middle half of all rounds lies between these."""

    @property
    def behind(self) -> bool:
        """Slower, and not by chance."""
        return self.low > 1.0


def ratio(one: Contestant, other: Contestant) -> Ratio:
    ratios = sorted(a / b for a, b in zip(one.times_s, other.times_s, strict=True))
    many = len(ratios)
    reach = 0.98 * math.sqrt(many)
    low = ratios[max(0, math.floor(many / 2 - reach))]
    high = ratios[min(many - 1, math.ceil(many / 2 + reach))]
    quarters = statistics.quantiles(ratios, method="inclusive") if many > 1 else ratios * 3
    return Ratio(statistics.median(ratios), low, high, quarters[0], quarters[2])


def only(contestants: Sequence[Contestant], role: Role) -> Contestant:
    (found,) = (one for one in contestants if one.role is role)
    return found


def speeds(contestants: Sequence[Contestant], cycles: int) -> Table:
    floor, ours = only(contestants, Role.FLOOR), only(contestants, Role.OURS)
    rows = []
    for one in contestants:
        of_floor, of_ours = ratio(one, floor), ratio(ours, one)
        rows.append(
            (
                one.name,
                statistics.median(one.times_s) * 1e6,
                statistics.fmean(one.means_s) * 1e6,
                of_floor.median,
                _span(of_floor.low, of_floor.high),
                _span(of_floor.quarter, of_floor.three_quarters),
                None if one is ours else of_ours.median,
                None if one is ours else _span(of_ours.low, of_ours.high),
                one.requests,
            )
        )
    columns = (
        Column("side"),
        Column("us/cycle", ",.0f"),
        Column("mean", ",.0f"),
        Column("of floor", ".2f"),
        Column("95 %"),
        Column("middle half"),
        Column("ours of it", ".2f"),
        Column("95 %"),
        Column("requests", ".1f"),
    )
    rounds = len(floor.times_s)
    return Table(f"acquire + release: {rounds} rounds of {cycles} cycles each", columns, (*rows,))


def gains(contestants: Sequence[Contestant], heads: Sequence[str]) -> Table:
    """What one gets for a cycle."""
    rows = tuple((one.name, *one.gives) for one in contestants if one.gives)
    return Table("what it gives", (Column("side"), *map(Column, heads)), rows)


def not_above_floor(
    contestants: Sequence[Contestant], most: float = MOST_OF_FLOOR, role: Role = Role.OURS
) -> Check:
    ours, floor = only(contestants, role), only(contestants, Role.FLOOR)
    told, noise = ratio(ours, floor), ratio(only(contestants, Role.AGAIN), floor)
    return Check(
        f"{ours.name} takes {told.median:.2f} times the floor (95 %: {_span(told.low, told.high)};"
        f" at most {most:.2f}); the floor again takes {noise.median:.2f} times itself,"
        f" {_span(noise.quarter, noise.three_quarters)} in the middle half of"
        f" {len(ours.times_s)} rounds",
        told.median <= most,
    )


def behind_none(contestants: Sequence[Contestant]) -> Check:
    ours = only(contestants, Role.OURS)
    others = [one for one in contestants if one.role is Role.OTHER]
    told = {one.name: ratio(ours, one) for one in others}
    behind = [name for name, against in told.items() if against.behind]
    shown = ", ".join(f"{against.median:.2f} of {name}" for name, against in told.items())
    return Check(f"ours is behind {' and '.join(behind) or 'none'} of them: {shown}", not behind)


def _span(low: float, high: float) -> str:
    return f"{low:.2f}-{high:.2f}"
