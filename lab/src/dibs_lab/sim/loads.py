"""How much work arrives, and when: durations of work and arrivals of issues, as people write them.

This module decides the spellings (`10m`, `5m..20m`, `~10m`; `all`, `2m`, `30/h`) and how each is
drawn. The caller passes the random numbers. It does not know who does the work.
"""

import random
import re
from collections.abc import Iterator
from datetime import timedelta
from itertools import cycle, repeat

from msgspec import Struct

from dibs.core.durations import describe_span, format_duration, parse_duration

_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) */ *(m|h|d)", re.ASCII)
_PER_HOUR = {"m": 60.0, "h": 1.0, "d": 1 / 24}


# How long work takes


class Fixed(Struct, frozen=True):
    span: timedelta

    def draw_s(self, _: random.Random) -> float:
        return self.span.total_seconds()

    @property
    def mean_s(self) -> float:
        return self.span.total_seconds()

    def __str__(self) -> str:
        return format_duration(self.span)


class Between(Struct, frozen=True):
    """Every duration between the two is equally likely."""

    shortest: timedelta
    longest: timedelta

    def draw_s(self, dice: random.Random) -> float:
        return dice.uniform(self.shortest.total_seconds(), self.longest.total_seconds())

    @property
    def mean_s(self) -> float:
        return (self.shortest + self.longest).total_seconds() / 2

    def __str__(self) -> str:
        return f"{format_duration(self.shortest)}..{format_duration(self.longest)}"


class Exponential(Struct, frozen=True):
    """Many short, few long: only the mean is known."""

    mean: timedelta

    def draw_s(self, dice: random.Random) -> float:
        return dice.expovariate(1 / self.mean.total_seconds())

    @property
    def mean_s(self) -> float:
        return self.mean.total_seconds()

    def __str__(self) -> str:
        return f"~{format_duration(self.mean)}"


class Sampled(Struct, frozen=True):
    """Each duration is one that was measured."""

    lengths_s: tuple[float, ...]

    def draw_s(self, dice: random.Random) -> float:
        return dice.choice(self.lengths_s)

    @property
    def mean_s(self) -> float:
        return sum(self.lengths_s) / len(self.lengths_s)

    def __str__(self) -> str:
        mean = describe_span(timedelta(seconds=self.mean_s))
        return f"{len(self.lengths_s)} recorded lengths, {mean} on average"


Work = Fixed | Between | Exponential | Sampled


def parse_work(text: str) -> Work:
    """Read `10m`, `5m..20m` or `~10m`. Raises ValueError that says what was expected."""
    compact = text.strip()
    if compact.startswith("~"):
        return Exponential(_some(compact[1:]))
    if ".." not in compact:
        return Fixed(_some(compact))
    shortest, _, longest = compact.partition("..")
    made = Between(parse_duration(shortest), _some(longest))
    if made.shortest > made.longest:
        raise ValueError(f"{text[:40]!r} ends before it begins")
    return made


# When issues come


class AtOnce(Struct, frozen=True):
    """All issues exist when the fleet starts."""

    def gaps_s(self, _: random.Random) -> Iterator[float]:
        return repeat(0.0)

    mean_gap_s = 0.0

    def __str__(self) -> str:
        return "all"


class Evenly(Struct, frozen=True):
    every: timedelta

    def gaps_s(self, _: random.Random) -> Iterator[float]:
        return repeat(self.every.total_seconds())

    @property
    def mean_gap_s(self) -> float:
        return self.every.total_seconds()

    def __str__(self) -> str:
        return format_duration(self.every)


class AtRandom(Struct, frozen=True):
    """Independently of each other, with this many an hour on average."""

    per_hour: float

    def gaps_s(self, dice: random.Random) -> Iterator[float]:
        while True:
            yield dice.expovariate(self.per_hour / 3600)

    @property
    def mean_gap_s(self) -> float:
        return 3600 / self.per_hour

    def __str__(self) -> str:
        return format_rate(self.per_hour)


class Recorded(Struct, frozen=True):
    """As in the journal; repeated if more are needed."""

    seen_s: tuple[float, ...]
    """The time from each arrival to the next."""

    def gaps_s(self, _: random.Random) -> Iterator[float]:
        return cycle(self.seen_s)

    @property
    def mean_gap_s(self) -> float:
        return sum(self.seen_s) / len(self.seen_s)

    def __str__(self) -> str:
        return f"as recorded, {format_rate(3600 / max(self.mean_gap_s, 0.001))} on average"


Arrival = AtOnce | Evenly | AtRandom | Recorded


def parse_arrival(text: str) -> Arrival:
    """Read `all`, `30/h` or `2m`. Raises ValueError that says what was expected."""
    compact = text.strip()
    if compact == "all":
        return AtOnce()
    if "/" in compact:
        per_hour = parse_rate(compact)
        if per_hour <= 0:
            raise ValueError(f"{text[:40]!r} brings no issue at all")
        return AtRandom(per_hour)
    return Evenly(_some(compact))


def parse_rate(text: str) -> float:
    """Read `30/h`, `1/d` or `0` as a number per hour. Raises ValueError."""
    compact = text.strip().lower()
    if compact == "0":
        return 0.0
    match = _RATE.fullmatch(compact)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a rate; write it like 30/h, 1/d or 0")
    return float(match[1]) * _PER_HOUR[match[2]]


def format_rate(per_hour: float) -> str:
    """Per hour, or per day where the hourly rate is below one."""
    if not per_hour:
        return "0"
    unit = "h" if per_hour >= 1 else "d"
    return f"{per_hour / _PER_HOUR[unit]:.6g}/{unit}"


def _some(text: str) -> timedelta:
    span = parse_duration(text)
    if not span:
        raise ValueError(f"{text[:40]!r} is no time at all")
    return span
