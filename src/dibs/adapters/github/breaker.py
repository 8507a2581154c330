"""When to leave a server alone: after it said so, or after it failed again and again.

Closed, everything passes. Open, everything fails at once, until the time that the server named or
that grows with each failure. Then one request tries: the more it matters, the earlier it may, so
that a heartbeat is the first to pass and a look for work the last. Pure.
"""

from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.github.budget import HOUR_S, Purpose
from dibs.core.ids import LocalTime

_SHORTEST_S = 1.0
_UNTOLD_S = 60.0
"""GitHub wants at least a minute of rest where it names no time, and more each further time."""
_FAILURES = 5
"""So many in a row, without one success among them."""
_AFTER_FAILURES_S = 2.0
_LONGEST_AFTER_FAILURES_S = 30.0
_MOST_DOUBLED = 10
_TURN_S = 0.5
"""By how much each less important purpose has to let the others go first."""
_PROBE_S = 20.0
"""A probe that was not heard of for so long is not waited for: its process may be gone."""


class Breaker(Struct, frozen=True):
    why: str = ""
    """Empty: closed. It stays open past `open_until`, until a request has passed."""
    opened_at: LocalTime = LocalTime(0.0)
    open_until: LocalTime = LocalTime(0.0)
    probe_until: LocalTime = LocalTime(0.0)
    times: int = 0
    """How often it opened since a request last passed."""
    failures: int = 0
    """How many requests failed since one last passed."""

    @property
    def closed(self) -> bool:
        return not self.why

    def wait_s(self, purpose: Purpose, now: LocalTime) -> float:
        """How long this purpose has to wait; 0 if it may try."""
        if self.closed:
            return 0.0
        turn_at = self.open_until + _TURN_S * (Purpose.HOLD - purpose)
        return max(0.0, turn_at - now, self.probe_until - now)

    def admitted(self, now: LocalTime) -> "Breaker":
        """The request that passes half open is the probe: nobody else tries beside it."""
        return self if self.closed else replace(self, probe_until=LocalTime(now + _PROBE_S))

    def succeeded(self, asked_at: LocalTime) -> "Breaker":
        """What was asked before the server wanted a rest says nothing about its being over."""
        return Breaker() if self.closed or asked_at >= self.open_until else self

    def limited(
        self, asked_at: LocalTime, now: LocalTime, told_s: float | None, why: str
    ) -> "Breaker":
        """The server asks for a rest, and may say for how long."""
        wait_s = told_s if told_s is not None else _UNTOLD_S * 2 ** min(self.times, _MOST_DOUBLED)
        if self._known(asked_at):
            wait_s = told_s or 0.0
        return self._open(asked_at, now, min(max(wait_s, _SHORTEST_S), HOUR_S), why)

    def failed(self, asked_at: LocalTime, now: LocalTime, why: str) -> "Breaker":
        failures = self.failures + 1
        if self._known(asked_at):
            return self
        if self.closed and failures < _FAILURES:
            return replace(self, failures=failures)
        wait_s = _AFTER_FAILURES_S * 2 ** min(self.times, _MOST_DOUBLED)
        opened = self._open(asked_at, now, min(wait_s, _LONGEST_AFTER_FAILURES_S), why)
        return replace(opened, failures=failures)

    def _known(self, asked_at: LocalTime) -> bool:
        """Many are on the way when it opens: they tell the same thing, not that it got worse."""
        return not self.closed and asked_at <= self.opened_at

    def _open(self, asked_at: LocalTime, now: LocalTime, wait_s: float, why: str) -> "Breaker":
        known = self._known(asked_at)
        return Breaker(
            why=why,
            opened_at=self.opened_at if known else now,
            open_until=LocalTime(max(self.open_until, now + wait_s)),
            times=self.times if known else self.times + 1,
            failures=self.failures,
        )

    def sane(self, now: LocalTime) -> "Breaker":
        """What another process wrote must not shut everybody out for days."""
        fits = self.open_until <= now + HOUR_S and self.probe_until <= now + _PROBE_S
        return self if fits else Breaker()
