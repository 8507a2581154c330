"""Plots as inline SVG, for HTML pages without other files.

This module decides ticks, units and positions. The page's style sheet decides the colours, by
class, also for light and dark. There is no plotting library: a page that opens anywhere, years
later, without a script and without a dependency of a few megabytes, is worth two hundred lines.
This module does not know what is plotted.
"""

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from math import ceil, floor, log10

from msgspec import Struct

_CHARACTER = 6.6
"""The approximate width of a character of a label, at font size 12."""
_LINE = 20
"""The height of a line of text."""
_TOP = 26
_BOTTOM = 40
_RIGHT = 18
_STEPS_S = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(minutes * 60 for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * 3600 for hours in (1, 2, 3, 6, 12)),
    *(days * 86400 for days in (1, 2, 5, 7, 14, 28, 56, 112, 224, 365, 730, 1825)),
)


class Size(Struct, frozen=True):
    width: int
    height: int


WIDE = Size(560, 260)
NARROW = Size(350, 230)


class Axis(Struct, frozen=True):
    """The axis along one side. The ticks of a `seconds` axis are round durations."""

    label: str
    seconds: bool = False


class Curve(Struct, frozen=True):
    name: str
    points: Sequence[tuple[float, float]]
    tone: int = 1
    """The number of the colour in the page's style sheet."""
    filled: bool = False
    dots: bool = False


class Mark(Struct, frozen=True):
    """A straight line with a name: a limit (horizontal) or a moment (vertical)."""

    name: str
    at: float


# Numbers


def amount(value: float) -> str:
    """A number in few characters."""
    size = abs(value)
    if size >= 10_000_000:
        return f"{value / 1_000_000:,.0f}M"
    if size >= 1_000_000:
        return f"{value / 1_000_000:.3g}M"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2g}" if size < 10 else f"{value:.1f}"


def clock(seconds: float) -> str:
    """A duration with one unit, or with two where one is not enough: `90s` is `1m 30s`."""
    if seconds < 60:
        return f"{seconds:.3g}s"
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    rest = round(seconds)
    parts: list[tuple[int, str]] = []
    for unit, size in units:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count}{unit}" for count, unit in parts[:2] if count)


def ticks(most: float, *, seconds: bool, count: int) -> list[float]:
    """Ticks from 0 to the first round number that is not below `most`."""
    most = most or 1.0
    rough = most / count
    if seconds:
        step = next((step for step in _STEPS_S if step >= rough), float(_STEPS_S[-1]))
    else:
        whole = 10.0 ** floor(log10(rough))
        step = next(whole * part for part in (1, 2, 2.5, 5, 10) if whole * part >= rough * 0.999)
        step = max(step, 1.0) if most >= count else step
    return [step * number for number in range(ceil(most / step - 1e-9) + 1)]


# The frame


class _Frame(Struct, frozen=True):
    """Where values are on the sheet."""

    size: Size
    left: float
    most_x: float
    most_y: float

    @property
    def right(self) -> float:
        return self.size.width - _RIGHT

    @property
    def bottom(self) -> float:
        return self.size.height - _BOTTOM

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * value / self.most_x

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - _TOP) * value / self.most_y


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(x: float, y: float, words: str, *, style: str = "", anchor: str = "middle") -> str:
    return (
        f'<text x="{_number(x)}" y="{_number(y)}" class="{style}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )


def _frame(most_x: float, most_y: float, x: Axis, y: Axis, size: Size) -> tuple[_Frame, str]:
    up = ticks(most_y, seconds=y.seconds, count=4)
    named = [clock(at) if y.seconds and at else amount(at) for at in up]
    left = 12 + max(len(name) for name in named) * _CHARACTER
    frame = _Frame(size, left, most_x or 1.0, up[-1])
    drawn = [
        f'<line class="grid" x1="{_number(left)}" x2="{_number(frame.right)}" '
        f'y1="{_number(frame.y(at))}" y2="{_number(frame.y(at))}"/>'
        + _text(left - 6, frame.y(at) + 4, name, anchor="end")
        for at, name in zip(up, named, strict=True)
    ]
    drawn.append(_text(0, 11, y.label, style="axis", anchor="start"))
    drawn.append(_text(frame.right, size.height - 4, x.label, style="axis", anchor="end"))
    return frame, "".join(drawn)


def _along(frame: _Frame, x: Axis) -> str:
    room = max(2, int((frame.right - frame.left) / 70))
    found = [
        at
        for at in ticks(frame.most_x, seconds=x.seconds, count=room)
        if at <= frame.most_x * 1.001
    ]
    return "".join(
        f'<line class="tick" x1="{_number(frame.x(at))}" x2="{_number(frame.x(at))}" '
        f'y1="{_number(frame.bottom)}" y2="{_number(frame.bottom + 4)}"/>'
        + _text(frame.x(at), frame.bottom + 17, clock(at) if x.seconds and at else amount(at))
        for at in found
    )


def _sheet(size: Size, about: str, *parts: str) -> str:
    return (
        f'<svg viewBox="0 0 {size.width} {size.height}" role="img" '
        f'aria-label="{escape(about, quote=True)}">{"".join(parts)}</svg>'
    )


# Plots


def curves(
    drawn: Sequence[Curve],
    *,
    x: Axis,
    y: Axis,
    about: str,
    limits: Sequence[Mark] = (),
    size: Size = WIDE,
) -> str:
    """Curves over one common x axis. A limit far above all curves is not drawn."""
    most_x = max((px for curve in drawn for px, _ in curve.points), default=1.0)
    most_y = max((py for curve in drawn for _, py in curve.points), default=1.0)
    near = [limit for limit in limits if limit.at <= most_y * 3]
    most_y = max(most_y, *(limit.at * 1.04 for limit in near)) if near else most_y
    frame, lines = _frame(most_x, most_y, x, y, size)
    return _sheet(
        size,
        about,
        lines,
        _along(frame, x),
        *(_curve(frame, curve) for curve in drawn),
        *(_limit(frame, limit) for limit in near),
    )


def _curve(frame: _Frame, curve: Curve) -> str:
    path = " ".join(f"{_number(frame.x(px))},{_number(frame.y(py))}" for px, py in curve.points)
    made = f'<polyline class="line tone{curve.tone}" points="{path}"/>'
    if curve.filled and curve.points:
        first, last = curve.points[0][0], curve.points[-1][0]
        foot = _number(frame.bottom)
        around = f"{_number(frame.x(first))},{foot} {path} {_number(frame.x(last))},{foot}"
        made = f'<polygon class="area tone{curve.tone}" points="{around}"/>' + made
    if curve.dots:
        made += "".join(
            f'<circle class="dot tone{curve.tone}" cx="{_number(frame.x(px))}" '
            f'cy="{_number(frame.y(py))}" r="4"/>'
            for px, py in curve.points
        )
    return made


def _limit(frame: _Frame, limit: Mark) -> str:
    """The limit's name is below its line if the curves are above and there is room."""
    height = _number(frame.y(limit.at))
    below = limit.at < frame.most_y / 3 and frame.bottom - frame.y(limit.at) > _LINE
    return (
        f'<line class="limit" x1="{_number(frame.left)}" x2="{_number(frame.right)}" '
        f'y1="{height}" y2="{height}"/>'
        + _text(
            frame.right - 4,
            frame.y(limit.at) + (14 if below else -5),
            limit.name,
            style="limit",
            anchor="end",
        )
    )


def histogram(
    bins: Sequence[int],
    most: float,
    *,
    x: Axis,
    y: Axis,
    about: str,
    marks: Sequence[Mark] = (),
    size: Size = WIDE,
) -> str:
    """The number of values in each of the equal parts of 0 to `most`."""
    most_x = max(most, *(mark.at * 1.02 for mark in marks)) if marks else most
    frame, lines = _frame(most_x, max(bins, default=1), x, y, size)
    width = most / max(1, len(bins))
    bars = "".join(
        f'<rect class="bar tone1" x="{_number(frame.x(place * width) + 0.5)}" '
        f'y="{_number(frame.y(count))}" '
        f'width="{_number(max(0.8, frame.x(width) - frame.left - 1))}" '
        f'height="{_number(frame.bottom - frame.y(count))}">'
        f"<title>{escape(f'{clock(place * width)} to {clock((place + 1) * width)}: {count}')}"
        "</title></rect>"
        for place, count in enumerate(bins)
        if count
    )
    return _sheet(size, about, lines, _along(frame, x), bars, _moments(frame, marks))


def _moments(frame: _Frame, marks: Sequence[Mark]) -> str:
    """Vertical lines; their names are below each other, so that none covers another."""
    made = []
    for place, mark in enumerate(marks):
        at = frame.x(mark.at)
        rightward = at + 8 + len(mark.name) * _CHARACTER < frame.right
        made.append(
            f'<line class="limit" x1="{_number(at)}" x2="{_number(at)}" '
            f'y1="{_TOP}" y2="{_number(frame.bottom)}"/>'
            + _text(
                at + (5 if rightward else -5),
                _TOP + 10 + 15 * place,
                mark.name,
                style="limit",
                anchor="start" if rightward else "end",
            )
        )
    return "".join(made)


def steps(
    names: Sequence[str], drawn: Sequence[Curve], *, x: Axis, y: Axis, about: str, size: Size
) -> str:
    """Values at a few named places, joined by lines. A curve's points are (place, value)."""
    most_y = max((value for curve in drawn for _, value in curve.points), default=1.0)
    frame, lines = _frame(float(len(names)), most_y, x, y, size)
    centred = [
        Curve(
            curve.name,
            [(place + 0.5, value) for place, value in curve.points],
            curve.tone,
            dots=True,
        )
        for curve in drawn
    ]
    every = ceil(max(len(name) for name in names) * _CHARACTER * len(names) / frame.right * 1.05)
    below = "".join(
        _text(frame.x(place + 0.5), frame.bottom + 17, name)
        for place, name in enumerate(names)
        if place % max(1, every) == 0
    )
    return _sheet(size, about, lines, below, *(_curve(frame, curve) for curve in centred))


# Series


def running_sum(counts: Sequence[int]) -> list[int]:
    total, sums = 0, []
    for count in counts:
        total += count
        sums.append(total)
    return sums


def thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most `most` points: the first, and the last point of each stretch."""
    if len(points) <= most:
        return list(points)
    every = ceil(len(points) / most)
    kept = [*points[:1], *points[every::every]]
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def stairs(rates: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The steps of rates that are constant between two moments: (moment, rate from then on)."""
    made: list[tuple[float, float]] = []
    for (at, rate), (until, _) in pairwise(rates):
        made += [(at, rate), (until, rate)]
    return made
