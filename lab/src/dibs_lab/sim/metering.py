"""What calls cost in requests to the tracker's API, and when the API refuses more.

`Costs` is the only table of prices: each port call done over REST without batching and without
conditional requests. An adapter that needs fewer requests brings its own table. This module does
not know which worker asked, or why.
"""

import re
from math import ceil
from typing import NamedTuple

from msgspec import Struct

from dibs.core.errors import RateLimited
from dibs.core.issue import Snapshot
from dibs.ports.tracker import Found

MINUTE_US = 60_000_000
HOUR_US = 3_600_000_000
# GitHub's limits for one token: the primary limit, and the secondary one for creating content.
GITHUB_REQUESTS_AN_HOUR = 5000
GITHUB_CREATING_A_MINUTE = 80
GITHUB_CREATING_AN_HOUR = 500
_MANY = re.compile(r"github(?: *\* *(\d{1,6}))?", re.ASCII)
_HOURLY = re.compile(r"(\d{1,9}) */ *h", re.ASCII)


class Price(NamedTuple):
    requests: int = 0
    creating: int = 0
    """How many of them create content, which has a tighter limit."""


class Costs(Struct, frozen=True):
    """What one call costs.

    | call | requests |
    |---|---|
    | find | 1 for each page of 100 issues |
    | read | 1 for the issue, and 1 for each page of 100 comments |
    | comment, create | 1, which creates content |
    | edit_comment, close, tally | 1 |
    | edit_labels | 1 for all that are added, and 1 for each that is removed |
    | a lease store's calls | 0: it is another server |
    """

    page: int = 100

    def of(self, op: str, arguments: tuple[object, ...], answer: object) -> Price:
        match op:
            case "find":
                assert isinstance(answer, Found), "what the port promises"
                return Price(max(1, ceil(len(answer.issues) / self.page)))
            case "read":
                assert isinstance(answer, Snapshot), "what the port promises"
                return Price(1 + ceil(len(answer.comments) / self.page))
            case "comment" | "create":
                return Price(1, creating=1)
            case "edit_labels":
                add, remove = arguments
                assert isinstance(remove, tuple), "what the wire notes"
                return Price(bool(add) + len(remove))
            case "edit_comment" | "close" | "tally":
                return Price(1)
            case _:
                return Price()


class Limits(Struct, frozen=True):
    """How much an API allows. None: no limit."""

    requests_an_hour: int | None = None
    creating_a_minute: int | None = None
    creating_an_hour: int | None = None

    def __str__(self) -> str:
        if self == NO_LIMITS:
            return "none"
        times, rest = divmod(self.requests_an_hour or 0, GITHUB_REQUESTS_AN_HOUR)
        if not rest and self == github(times):
            return "github" if times == 1 else f"github*{times}"
        return f"{self.requests_an_hour}/h"


def github(tokens: int) -> Limits:
    """The limits of this many tokens of different accounts, used evenly."""
    return Limits(
        requests_an_hour=GITHUB_REQUESTS_AN_HOUR * tokens,
        creating_a_minute=GITHUB_CREATING_A_MINUTE * tokens,
        creating_an_hour=GITHUB_CREATING_AN_HOUR * tokens,
    )


NO_LIMITS = Limits()
GITHUB = github(1)


def parse_limits(text: str) -> Limits:
    """Read `none`, `github`, `github*4` or `15000/h`. Raises ValueError."""
    compact = text.strip().lower()
    if compact == "none":
        return NO_LIMITS
    if match := _MANY.fullmatch(compact):
        tokens = int(match[1] or 1)
    elif match := _HOURLY.fullmatch(compact):
        tokens = int(match[1])
    else:
        raise ValueError(
            f"{text[:40]!r} is not a limit; write none, github, github*4 for four tokens, "
            "or 15000/h"
        )
    if tokens < 1:
        raise ValueError(f"{text[:40]!r} allows nothing at all")
    return github(tokens) if compact.startswith("github") else Limits(requests_an_hour=tokens)


class _Window:
    """A limit for each stretch of time; requests above it are refused until the next begins."""

    def __init__(self, what: str, most: int, length_us: int) -> None:
        self._what = what
        self._most = most
        self._length_us = length_us
        self._number = 0
        self._used = 0

    def insist_on_room(self, now_us: int) -> None:
        self._turn(now_us)
        if self._used >= self._most:
            left_us = (self._number + 1) * self._length_us - now_us
            raise RateLimited(f"{self._what}: {self._most} used", retry_after_s=left_us / 1e6)

    def use(self, now_us: int, count: int) -> None:
        self._turn(now_us)
        self._used += count

    def _turn(self, now_us: int) -> None:
        number = now_us // self._length_us
        if number != self._number:
            self._number, self._used = number, 0


class Allowance:
    """The API's own count of requests."""

    def __init__(self, limits: Limits) -> None:
        self._any: list[_Window] = []
        self._creating: list[_Window] = []
        if limits.requests_an_hour is not None:
            self._any.append(_Window("requests an hour", limits.requests_an_hour, HOUR_US))
        if limits.creating_a_minute is not None:
            window = _Window("new comments a minute", limits.creating_a_minute, MINUTE_US)
            self._creating.append(window)
        if limits.creating_an_hour is not None:
            window = _Window("new comments an hour", limits.creating_an_hour, HOUR_US)
            self._creating.append(window)

    def admit(self, op: str, now_us: int) -> None:
        """Raises RateLimited, with the time to wait, if the limit is reached."""
        for window in self._any:
            window.insist_on_room(now_us)
        if op in ("comment", "create"):
            for window in self._creating:
                window.insist_on_room(now_us)

    def charge(self, price: Price, now_us: int) -> None:
        for window in self._any:
            window.use(now_us, price.requests)
        for window in self._creating:
            window.use(now_us, price.creating)
