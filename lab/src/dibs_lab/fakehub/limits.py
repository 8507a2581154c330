"""GitHub's rate limits: what an account has left, and whether it asks too fast.

Primary budgets are per account and hour, separately for REST and GraphQL; GitHub counts an
account's tokens together, and so does this module. Secondary limits cover the last minute and the
last hour. The numbers are those that GitHub publishes (free accounts, 2026); where it publishes
none, the docstring says so.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from .records import Viewer

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Limits:
    """None lifts a limit."""

    rest_per_hour: int | None = 5_000
    graphql_per_hour: int | None = 5_000
    """In points."""
    anonymous_per_hour: int | None = 60
    content_per_minute: int | None = 80
    content_per_hour: int | None = 500
    """Requests that create what people are notified of: issues, comments, pull requests. GitHub
    publishes the two numbers, and not what exactly it counts."""
    rest_points_per_minute: int | None = 900
    """A GET is 1 point, a write 5."""
    graphql_points_per_minute: int | None = 2_000
    """A query is 1 point, a document with mutations 5."""
    concurrent: int | None = 100
    secondary_status: int = 403
    """GitHub answers 403 or 429."""
    issues_per_minute: int | None = None
    issues_per_hour: int | None = None
    """Of new issues over REST alone. GitHub publishes no number, only that some limits are lower;
    others measured 20 and 150."""

    @classmethod
    def off(cls) -> "Limits":
        return cls(None, None, None, None, None, None, None, None)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one request costs."""

    resource: str = "core"
    """`core` or `graphql`."""
    primary: int = 1
    """Points of the hour's budget; 0 for a free request."""
    points: int = 1
    """Points of the minute's budget: 5 for a write."""
    content: int = 0
    """How many pieces of content it creates."""
    issues: int = 0
    """How many of them are issues."""


@dataclass(frozen=True, slots=True)
class TooMuch:
    """A limit is reached."""

    secondary: bool
    message: str
    retry_after_s: int | None
    """The value of Retry-After; primary limits send their reset time instead."""


@dataclass(slots=True)
class _Spent:
    """One account's use of one budget in its hour."""

    resets_at: datetime
    used: int = 0


@dataclass(slots=True)
class _Window:
    """What was done within the last `span`."""

    span: timedelta
    marks: deque[tuple[datetime, int]] = field(default_factory=deque)
    total: int = 0

    def add(self, now: datetime, amount: int) -> None:
        self.marks.append((now, amount))
        self.total += amount

    def within(self, now: datetime) -> int:
        while self.marks and self.marks[0][0] <= now - self.span:
            self.total -= self.marks.popleft()[1]
        return self.total

    def room_in(self, now: datetime, most: int, amount: int) -> int:
        """Whole seconds until `amount` fits below `most`."""
        left = self.within(now) + amount
        for at, size in self.marks:
            left -= size
            if left <= most:
                return max(1, ceil((at + self.span - now).total_seconds()))
        return ceil(self.span.total_seconds())


class Meter:
    """Counts what accounts spend, and refuses what exceeds a limit."""

    def __init__(self, now: Callable[[], datetime], limits: Limits) -> None:
        self._now = now
        self.limits = limits
        self._lock = threading.Lock()
        self._spent: dict[tuple[str, str], _Spent] = {}
        self._recent: dict[tuple[str, str, timedelta], _Window] = {}
        self._running: dict[str, int] = {}

    def forget(self) -> None:
        """Give every account a full budget again."""
        with self._lock:
            self._spent.clear()
            self._recent.clear()

    def spend(self, viewer: Viewer, used: int, resource: str = "core") -> None:
        """Spend this much of the hour's budget at once, for tests of an empty budget."""
        with self._lock:
            self._account(viewer.login, resource).used += used

    def begin(self, viewer: Viewer, cost: Cost) -> TooMuch | None:
        """Charge a request, or return the limit it exceeds; a refused request costs nothing."""
        with self._lock:
            refused = self._crowded(viewer.login) or self._over(viewer, cost)
            if refused is None:
                self._charge(viewer.login, cost)
            self._running[viewer.login] = self._running.get(viewer.login, 0) + 1
            return refused

    def give_back(self, viewer: Viewer, cost: Cost) -> None:
        """Refund a request: nothing had changed, so it costs nothing."""
        with self._lock:
            account = self._account(viewer.login, cost.resource)
            account.used = max(0, account.used - cost.primary)

    def end(self, viewer: Viewer) -> None:
        """The request is answered, and no longer counts as concurrent."""
        with self._lock:
            self._running[viewer.login] -= 1

    def headers(self, viewer: Viewer, resource: str) -> dict[str, str]:
        with self._lock:
            told = self._told(viewer, resource)
        return {
            **{f"X-RateLimit-{name.title()}": str(value) for name, value in told.items()},
            "X-RateLimit-Resource": resource,
        }

    def budget(self, viewer: Viewer, resource: str) -> Mapping[str, int]:
        """`limit`, `remaining`, `reset` (Unix seconds) and `used`."""
        with self._lock:
            return self._told(viewer, resource)

    def resets_at(self, viewer: Viewer, resource: str) -> datetime:
        with self._lock:
            return self._account(viewer.login, resource).resets_at.replace(microsecond=0)

    def overview(self, viewer: Viewer) -> dict[str, Any]:
        with self._lock:
            resources = {name: self._told(viewer, name) for name in ("core", "graphql", "search")}
        return {"resources": resources, "rate": resources["core"]}

    def _told(self, viewer: Viewer, resource: str) -> dict[str, int]:
        account = self._account(viewer.login, resource)
        limit = self._limit(viewer, resource)
        most = 5_000 if limit is None else limit
        used = min(account.used, most) if limit is not None else 0
        reset = int(account.resets_at.timestamp())
        return {"limit": most, "remaining": most - used, "reset": reset, "used": used}

    def _limit(self, viewer: Viewer, resource: str) -> int | None:
        if viewer.user is None:
            return self.limits.anonymous_per_hour
        return self.limits.graphql_per_hour if resource == "graphql" else self.limits.rest_per_hour

    def _account(self, login: str, resource: str) -> _Spent:
        found, now = self._spent.get((login, resource)), self._now()
        if found is None or found.resets_at <= now:
            found = self._spent[login, resource] = _Spent(now + HOUR)
        return found

    def _crowded(self, login: str) -> TooMuch | None:
        most = self.limits.concurrent
        return None if most is None or self._running.get(login, 0) < most else _secondary(1)

    def _over(self, viewer: Viewer, cost: Cost) -> TooMuch | None:
        limit = self._limit(viewer, cost.resource)
        used = self._account(viewer.login, cost.resource).used
        if limit is not None and cost.primary and used + cost.primary > limit:
            who = f"user ID {viewer.user.id}" if viewer.user else "your address"
            return TooMuch(False, f"API rate limit exceeded for {who}.", None)
        now = self._now()
        for kind, span, most, amount in self._windows(cost):
            window = self._window(viewer.login, kind, span)
            if most is not None and amount and window.within(now) + amount > most:
                return _secondary(window.room_in(now, most, amount))
        return None

    def _windows(self, cost: Cost) -> tuple[tuple[str, timedelta, int | None, int], ...]:
        a_minute = (
            self.limits.graphql_points_per_minute
            if cost.resource == "graphql"
            else self.limits.rest_points_per_minute
        )
        return (
            (cost.resource, MINUTE, a_minute, cost.points if cost.primary else 0),
            ("content", MINUTE, self.limits.content_per_minute, cost.content),
            ("content", HOUR, self.limits.content_per_hour, cost.content),
            ("issues", MINUTE, self.limits.issues_per_minute, cost.issues),
            ("issues", HOUR, self.limits.issues_per_hour, cost.issues),
        )

    def _charge(self, login: str, cost: Cost) -> None:
        now = self._now()
        self._account(login, cost.resource).used += cost.primary
        for kind, span, most, amount in self._windows(cost):
            if most is not None and amount:
                self._window(login, kind, span).add(now, amount)

    def _window(self, login: str, kind: str, span: timedelta) -> _Window:
        return self._recent.setdefault((login, kind, span), _Window(span))


def _secondary(retry_after_s: int) -> TooMuch:
    message = (
        "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
    )
    return TooMuch(True, message, retry_after_s)
