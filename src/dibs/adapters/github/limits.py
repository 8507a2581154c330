"""When one token's next request may be sent: GitHub's limits, and what has been used of them.

Pure: no clock, no file, no request. `Spending` holds the state that all processes of a machine
share: budgets, pace and breaker. `Spending.admit` lets a request through or says how long to wait;
`Spending.note` records the outcome of a request. `ledger` keeps the state in a file.

Budget (GitHub's primary limit): GitHub counts REST and GraphQL apart, and each reply names the
requests left and the end of the window. The rest of a budget is kept for the most important
purposes: looking for work is refused first, a heartbeat only when nothing is left at all.

Pace (the secondary limits): 80 requests a minute and 500 an hour that create content, 900 points a
minute over REST and 2000 over GraphQL; a read is one point, a write five. New issues have a lower
limit, which GitHub does not publish; 20 a minute and 150 an hour were measured by others. GitHub
does not report how much of these limits is used, so we count. A part of each limit is kept for
finishing and heartbeats. A request creates content if it notifies people (a new issue, a new
comment); an edit of a comment or a label is a write, but creates no content.

Breaker: leaves the server alone after the server asked for a rest, or failed several times in a
row. Closed, everything passes. Open, everything is refused until the time that the server named,
or until a time that grows with each failure. Then one request tries, and the more important its
purpose, the earlier it may: a heartbeat first, a look for work last.
"""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from math import floor
from typing import TypeAlias, assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from dibs.core.ids import LocalTime

HOUR_S = 3600.0
_SAME_WINDOW_S = 5.0
"""Replies from different servers of GitHub name slightly different ends of the same window."""


class Purpose(IntEnum):
    """What a request is for; the lowest is refused first."""

    DISCOVER = 0
    """Looking for work: lists, sweeps, boards."""
    LOOK = 1
    """Reading one issue for a person or program that asks."""
    CLAIM = 2
    FINISH = 3
    HOLD = 4
    """Heartbeats: without them, a holder loses the work in progress."""


class Resource(StrEnum):
    """An API with a budget of its own, by GitHub's name."""

    REST = "core"
    GRAPHQL = "graphql"


class _Need(Struct, frozen=True):
    """How much of a budget must be left to serve a purpose."""

    even: float
    """Share of the limit spread evenly over the time until the window ends."""
    floor: float
    """Share of the whole limit, however soon the window ends."""


_NEEDS: Mapping[Purpose, _Need] = {
    Purpose.DISCOVER: _Need(even=0.40, floor=0.020),
    Purpose.LOOK: _Need(even=0.20, floor=0.015),
    Purpose.CLAIM: _Need(even=0.10, floor=0.010),
    Purpose.FINISH: _Need(even=0.02, floor=0.002),
    Purpose.HOLD: _Need(even=0.0, floor=0.0),
}


class Budget(Struct, frozen=True):
    """The window of a resource, as GitHub last reported."""

    limit: int
    remaining: int
    resets_at: LocalTime

    def wait_s(self, purpose: Purpose, now: LocalTime) -> float:
        """Seconds until the budget serves `purpose`; 0: now."""
        left_s = self.resets_at - now
        if left_s <= 0:
            return 0.0  # another window began, and no reply has reported it yet
        need = _NEEDS[purpose]
        if self.remaining <= need.floor * self.limit:
            return left_s
        # If nothing is spent, `remaining` covers a growing share of the time left.
        enough_for_s = self.remaining / (need.even * self.limit) * HOUR_S if need.even else left_s
        return max(0.0, left_s - enough_for_s)

    def spent(self, now: LocalTime) -> bool:
        return self.remaining <= 0 and now < self.resets_at

    def after(self, reported: "Budget") -> "Budget":
        """The budget after a further report. The later window wins; within a window the lower
        `remaining` wins, because replies overtake each other.
        """
        if reported.resets_at > self.resets_at + _SAME_WINDOW_S:
            return reported
        if reported.resets_at < self.resets_at - _SAME_WINDOW_S:
            return self
        return replace(reported, remaining=min(self.remaining, reported.remaining))


def budget_told(headers: Mapping[str, str], served_at_s: float, now: LocalTime) -> Budget | None:
    """Read the budget from a reply's headers. `served_at_s`: the reply's `Date`, since 1970.

    None if the server does not count (GitHub Enterprise counts only if configured to).
    """
    try:
        limit = int(headers["x-ratelimit-limit"])
        remaining = int(headers["x-ratelimit-remaining"])
        left_s = int(headers["x-ratelimit-reset"]) - served_at_s
    except (KeyError, ValueError):
        return None
    if limit <= 0:
        return None
    # A window lasts an hour. A longer one means that a clock was set; do not wait for days.
    return Budget(limit, max(0, remaining), LocalTime(now + min(max(left_s, 0.0), HOUR_S)))


_MINUTE_S = 61.0
"""We count a request when it is let through, and it arrives a little later. So a minute at the
server can contain the requests of slightly more than a minute here."""

_NO_LIMIT = 1_000_000_000

_SHARES: Mapping[Purpose, float] = {  # of each secondary limit, how much a purpose may fill
    Purpose.DISCOVER: 0.70,
    Purpose.LOOK: 0.80,
    Purpose.CLAIM: 0.90,
    Purpose.FINISH: 0.97,
    Purpose.HOLD: 1.0,
}


class Kind(StrEnum):
    """The category under which a request is counted."""

    REST_READ = "rest read"
    REST_UNCHANGED = "rest unchanged"
    """A read answered with 304, which costs nothing."""
    REST_EDIT = "rest edit"
    REST_CREATE = "rest create"
    REST_ISSUE = "rest issue"
    """A new issue, which counts among the creations, and in limits of its own."""
    GRAPHQL_READ = "graphql read"
    GRAPHQL_EDIT = "graphql edit"
    GRAPHQL_CREATE = "graphql create"
    AS_APP = "app token"
    """A request by an App for a token: GitHub counts it for the App, not for the installation."""

    @property
    def creates(self) -> bool:
        return self in (Kind.REST_CREATE, Kind.REST_ISSUE, Kind.GRAPHQL_CREATE)

    @property
    def writes(self) -> bool:
        return self.creates or self in (Kind.REST_EDIT, Kind.GRAPHQL_EDIT, Kind.AS_APP)

    @property
    def graphql(self) -> bool:
        return self in (Kind.GRAPHQL_READ, Kind.GRAPHQL_EDIT, Kind.GRAPHQL_CREATE)

    @property
    def resource(self) -> Resource:
        return Resource.GRAPHQL if self.graphql else Resource.REST

    @property
    def points(self) -> int:
        return 5 if self.writes else 1


class Rule(Struct, frozen=True):
    """At most `most` points in any `span_s` seconds, counted in slots of `slot_s` seconds.

    A slot counts until all of it has left the span: we may count too much, never too little.
    """

    name: str
    most: int
    span_s: float
    slot_s: float

    def slot(self, now: LocalTime) -> int:
        return floor(now / self.slot_s)

    def oldest(self, now: LocalTime) -> int:
        """The oldest slot that still counts."""
        return floor((now - self.span_s) / self.slot_s)

    def leaves_at(self, slot: int) -> float:
        """When the slot no longer counts."""
        return (slot + 1) * self.slot_s + self.span_s

    def recent(self, slots: Mapping[int, int], now: LocalTime) -> dict[int, int]:
        """The slots that still count. A slot in the future comes from another clock: ignored."""
        oldest, newest = self.oldest(now), self.slot(now)
        return {slot: n for slot, n in slots.items() if oldest <= slot <= newest and n > 0}


class Limits(Struct, frozen=True):
    """The secondary limits that we keep to."""

    creations_a_minute: int = 80
    creations_an_hour: int = 500
    rest_points_a_minute: int = 900
    graphql_points_a_minute: int = 2000
    issues_a_minute: int = 20
    issues_an_hour: int = 150

    @classmethod
    def none(cls) -> "Limits":
        """For a server without secondary limits. Requests are counted all the same."""
        return cls(*(_NO_LIMIT,) * 6)

    def shared_by(self, machines: int) -> "Limits":
        """The part of each machine if several use the token: no counter covers all of them."""
        return Limits(
            max(1, self.creations_a_minute // machines),
            max(1, self.creations_an_hour // machines),
            max(5, self.rest_points_a_minute // machines),
            max(5, self.graphql_points_a_minute // machines),
            max(1, self.issues_a_minute // machines),
            max(1, self.issues_an_hour // machines),
        )

    @property
    def rules(self) -> tuple[Rule, Rule, Rule, Rule, Rule, Rule]:
        return (
            Rule("creations a minute", self.creations_a_minute, _MINUTE_S, 1.0),
            Rule("creations an hour", self.creations_an_hour, HOUR_S, 60.0),
            Rule("REST points a minute", self.rest_points_a_minute, _MINUTE_S, 1.0),
            Rule("GraphQL points a minute", self.graphql_points_a_minute, _MINUTE_S, 1.0),
            Rule("new issues a minute", self.issues_a_minute, _MINUTE_S, 1.0),
            Rule("new issues an hour", self.issues_an_hour, HOUR_S, 60.0),
        )

    def on(self, kind: Kind) -> tuple[tuple[Rule, int], ...]:
        """The rules that count a request of `kind`, each with the points to add."""
        a_minute, an_hour, rest, graphql, issues_a_minute, issues_an_hour = self.rules
        points = (graphql if kind.graphql else rest, kind.points)
        if not kind.creates:
            return (points,)
        issues = ((issues_a_minute, 1), (issues_an_hour, 1)) if kind is Kind.REST_ISSUE else ()
        return ((a_minute, 1), (an_hour, 1), points, *issues)


class Pace(Struct):
    """Recent requests, counted by rule. All processes of a machine that use the token share it."""

    slots: dict[str, dict[int, int]] = field(default_factory=dict)
    """By rule name: the points in each slot."""

    def wait_s(self, kind: Kind, purpose: Purpose, limits: Limits, now: LocalTime) -> float:
        """Seconds until every rule has room for the request; 0: now."""
        longest_s = 0.0
        for rule, weight in limits.on(kind):
            slots = self._slots(rule, now)
            # A request heavier than its purpose's share must fit into an empty window.
            most = max(weight, floor(rule.most * _SHARES[purpose]))
            used = sum(slots.values())
            for slot in sorted(slots):
                if used + weight <= most:
                    break
                used -= slots[slot]
                longest_s = max(longest_s, rule.leaves_at(slot) - now)
        return longest_s

    def add(
        self, kind: Kind, limits: Limits, now: LocalTime, *, at: LocalTime | None = None
    ) -> None:
        """Count a request. `at`: when the request was let through, if earlier than `now`."""
        for rule, weight in limits.on(kind):
            slots, slot = self._slots(rule, now), rule.slot(now if at is None else at)
            slots[slot] = slots.get(slot, 0) + weight
            self.slots[rule.name] = slots

    def used(self, rule: Rule, now: LocalTime) -> int:
        return sum(self._slots(rule, now).values())

    def _slots(self, rule: Rule, now: LocalTime) -> dict[int, int]:
        return rule.recent(self.slots.get(rule.name, {}), now)


_SHORTEST_S = 1.0
_UNTOLD_S = 60.0
"""If GitHub asks for a rest and names no time: at least a minute, doubled each further time."""
_FAILURES = 5
"""The breaker opens after this many failures without a success between them."""
_AFTER_FAILURES_S = 2.0
_LONGEST_AFTER_FAILURES_S = 30.0
_MOST_DOUBLED = 10
_TURN_S = 0.5
"""How much later each less important purpose may try than the next more important one."""
_PROBE_S = 20.0
"""How long a probe without an outcome holds back other requests: its process may have ended."""


class Breaker(Struct, frozen=True):
    why: str = ""
    """Empty: closed. The breaker stays open past `open_until`, until a request has passed."""
    opened_at: LocalTime = LocalTime(0.0)
    open_until: LocalTime = LocalTime(0.0)
    probe_until: LocalTime = LocalTime(0.0)
    times: int = 0
    """How often the breaker opened since a request last passed."""
    failures: int = 0
    """How many requests failed since a request last passed."""

    @property
    def closed(self) -> bool:
        return not self.why

    def wait_s(self, purpose: Purpose, now: LocalTime) -> float:
        """Seconds until a request with `purpose` may try; 0: now."""
        if self.closed:
            return 0.0
        turn_at = self.open_until + _TURN_S * (Purpose.HOLD - purpose)
        return max(0.0, turn_at - now, self.probe_until - now)

    def admitted(self, now: LocalTime) -> "Breaker":
        """After a request was let through. If the breaker is open, the request is the probe, and no
        further request passes until the probe has an outcome or `_PROBE_S` is over.
        """
        return self if self.closed else replace(self, probe_until=LocalTime(now + _PROBE_S))

    def succeeded(self, asked_at: LocalTime) -> "Breaker":
        """After a success. A request sent before the end of the rest does not close the breaker."""
        return Breaker() if self.closed or asked_at >= self.open_until else self

    def limited(
        self, asked_at: LocalTime, now: LocalTime, told_s: float | None, why: str
    ) -> "Breaker":
        """After the server asked for a rest. `told_s`: for how long, if the server named a time."""
        if told_s is not None:
            wait_s = told_s
        elif self._opened_after(asked_at):
            wait_s = 0.0
        else:
            wait_s = _UNTOLD_S * 2 ** min(self.times, _MOST_DOUBLED)
        return self._open(asked_at, now, min(max(wait_s, _SHORTEST_S), HOUR_S), why)

    def failed(self, asked_at: LocalTime, now: LocalTime, why: str) -> "Breaker":
        """After a request without a usable reply."""
        failures = self.failures + 1
        if self._opened_after(asked_at):
            return self
        if self.closed and failures < _FAILURES:
            return replace(self, failures=failures)
        wait_s = _AFTER_FAILURES_S * 2 ** min(self.times, _MOST_DOUBLED)
        opened = self._open(asked_at, now, min(wait_s, _LONGEST_AFTER_FAILURES_S), why)
        return replace(opened, failures=failures)

    def _opened_after(self, asked_at: LocalTime) -> bool:
        """The breaker opened while the request was on the way.

        Many requests are on the way when the breaker opens. They report the same trouble again,
        not a worse trouble, and do not count as a further opening.
        """
        return not self.closed and asked_at <= self.opened_at

    def _open(self, asked_at: LocalTime, now: LocalTime, wait_s: float, why: str) -> "Breaker":
        again = self._opened_after(asked_at)
        return Breaker(
            why=why,
            opened_at=self.opened_at if again else now,
            open_until=LocalTime(max(self.open_until, now + wait_s)),
            times=self.times if again else self.times + 1,
            failures=self.failures,
        )

    def sane(self, now: LocalTime) -> "Breaker":
        """A closed breaker if the times, which another process wrote, reach too far ahead.

        Damaged times must not block every process for days.
        """
        fits = self.open_until <= now + HOUR_S and self.probe_until <= now + _PROBE_S
        return self if fits else Breaker()


_COUNTING = Rule("requests", most=0, span_s=HOUR_S, slot_s=60.0)


class Refusal(Struct, frozen=True):
    """A request was not let through: how long to wait, and why."""

    wait_s: float
    why: str


class LetThrough(Struct, frozen=True):
    """A request let through by this process, not yet written to the shared file."""

    kind: Kind
    at: LocalTime


class Passed(Struct, frozen=True):
    """A reply came, so the server works; the reply may still be an error."""

    asked_at: LocalTime
    kind: Kind
    budgets: tuple[tuple[Resource, Budget], ...] = ()
    free: bool = False
    """The answer was 304, which costs nothing."""


class Limited(Struct, frozen=True):
    """The server wants a rest from all users of the token."""

    asked_at: LocalTime
    heard_at: LocalTime
    told_s: float | None
    why: str


class Failed(Struct, frozen=True):
    """No reply, or a reply by a broken server."""

    asked_at: LocalTime
    heard_at: LocalTime
    why: str


Outcome: TypeAlias = Passed | Limited | Failed


class Spending(Struct):
    """The state of one token's limits. The field names are the format of the ledger's file."""

    pace: Pace = field(default_factory=Pace)
    breaker: Breaker = field(default_factory=Breaker)
    budgets: dict[Resource, Budget] = field(default_factory=dict)
    counts: dict[Kind, dict[int, int]] = field(default_factory=dict)
    """Requests let through in the last hour, by the minute."""

    def admit(self, kind: Kind, purpose: Purpose, limits: Limits, now: LocalTime) -> Refusal | None:
        """Count the request and let it through, or say how long to wait and why."""
        budget = self.budgets.get(kind.resource) if kind is not Kind.AS_APP else None
        api = "GraphQL" if kind.graphql else "REST"
        low = f"too little is left of the {api} budget to {purpose.name.lower()}"
        waits = (
            Refusal(self.breaker.wait_s(purpose, now), self.breaker.why),
            Refusal(budget.wait_s(purpose, now) if budget else 0.0, low),
            Refusal(self.pace.wait_s(kind, purpose, limits, now), "kept below GitHub's pace"),
        )
        longest = max(waits, key=lambda refusal: refusal.wait_s)
        if longest.wait_s > 0:
            return longest
        self.breaker = self.breaker.admitted(now)
        self.pace.add(kind, limits, now)
        self._count(kind, now)
        return None

    def count(self, earlier: LetThrough, limits: Limits, now: LocalTime) -> None:
        """Count a request let through earlier and missing from the shared file."""
        self.pace.add(earlier.kind, limits, now, at=earlier.at)
        self._count(earlier.kind, earlier.at)

    def note(self, outcome: Outcome) -> None:
        match outcome:
            case Passed(asked_at, kind, budgets, free):
                self.breaker = self.breaker.succeeded(asked_at)
                for resource, reported in budgets:
                    before = self.budgets.get(resource)
                    self.budgets[resource] = before.after(reported) if before else reported
                if free:
                    # Move one request from `kind` to REST_UNCHANGED. We counted it before we sent
                    # it, perhaps in the minute before.
                    slots, slot = self.counts.get(kind, {}), _COUNTING.slot(asked_at)
                    counted = next((at for at in (slot, slot - 1) if slots.get(at, 0) > 0), None)
                    if counted is not None:
                        slots[counted] -= 1
                    self._count(Kind.REST_UNCHANGED, asked_at)
            case Limited(asked_at, heard_at, told_s, why):
                self.breaker = self.breaker.limited(asked_at, heard_at, told_s, why)
            case Failed(asked_at, heard_at, why):
                self.breaker = self.breaker.failed(asked_at, heard_at, why)
            case never:
                assert_never(never)

    def back_in(self, resource: Resource, now: LocalTime) -> float | None:
        """Seconds until the next window if the resource is spent; else None."""
        budget = self.budgets.get(resource)
        return budget.resets_at - now if budget is not None and budget.spent(now) else None

    def sane(self, now: LocalTime) -> "Spending":
        """Drop values that no process of this machine can have written."""
        self.breaker = self.breaker.sane(now)
        self.counts = {kind: _COUNTING.recent(self.counts[kind], now) for kind in self.counts}
        self.budgets = {
            resource: budget
            for resource, budget in self.budgets.items()
            if budget.resets_at <= now + HOUR_S and budget.limit > 0
        }
        return self

    def counted(self, now: LocalTime) -> dict[Kind, int]:
        """Requests in the last hour, by kind."""
        counts = {kind: _COUNTING.recent(self.counts.get(kind, {}), now) for kind in Kind}
        return {kind: sum(slots.values()) for kind, slots in counts.items()}

    def _count(self, kind: Kind, at: LocalTime) -> None:
        """Count a request at `at`, which may be a moment ago: later counts are kept."""
        oldest, slot = _COUNTING.oldest(at), _COUNTING.slot(at)
        slots = {old: n for old, n in self.counts.get(kind, {}).items() if old >= oldest}
        slots[slot] = slots.get(slot, 0) + 1
        self.counts[kind] = slots
