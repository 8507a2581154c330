"""How fast a token may be used, whatever is left of its budget.

GitHub's secondary limits: 80 requests a minute and 500 an hour that create content, 900 points a
minute over REST and 2000 over GraphQL, where a read is one point and a write is five. Nothing tells
how much of them is used, so it is counted here. A part of each is kept for finishing and for
heartbeats. Content are the requests that notify people (a new issue, a new comment); an edit of a
comment or a label is a write, but not content. Pure.

What is left of a token's requests, and who may still spend it.

GitHub counts REST and GraphQL apart and says with each reply what is left and when it starts anew.
What is left is kept for those who need it most: looking for work is refused first, a heartbeat only
when there is nothing left at all. Pure: knows no clock, no file and no request.

When to leave a server alone: after it said so, or after it failed again and again.

Closed, everything passes. Open, everything fails at once, until the time that the server named or
that grows with each failure. Then one request tries: the more it matters, the earlier it may, so
that a heartbeat is the first to pass and a look for work the last. Pure.

One token's budgets, pace and breaker as one value, and the two things that happen to it.

A request asks to be let through and is told how long to wait if it is not; a reply is taken note
of. This is what the processes of a machine share. Pure: where it is kept is the ledger's business.
"""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from math import floor
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from dibs.core.ids import LocalTime

HOUR_S = 3600.0
_SAME_WINDOW_S = 5.0
"""Replies of different servers name slightly different ends of one window."""


class Purpose(IntEnum):
    """What a request is for; the lower is shed first."""

    DISCOVER = 0
    """Finding out whether there is something to do: lists, sweeps, boards."""
    LOOK = 1
    """Reading one issue for somebody who asks."""
    CLAIM = 2
    FINISH = 3
    HOLD = 4
    """Heartbeats: without them, work that is being done is lost."""


class Resource(StrEnum):
    """What GitHub counts apart. The names are its own."""

    REST = "core"
    GRAPHQL = "graphql"


class _Need(Struct, frozen=True):
    """What must be left for a purpose to be served."""

    even: float
    """Of an even share of the limit over the time until it starts anew."""
    floor: float
    """Of the limit, however soon that is."""


_NEEDS: Mapping[Purpose, _Need] = {
    Purpose.DISCOVER: _Need(even=0.40, floor=0.020),
    Purpose.LOOK: _Need(even=0.20, floor=0.015),
    Purpose.CLAIM: _Need(even=0.10, floor=0.010),
    Purpose.FINISH: _Need(even=0.02, floor=0.002),
    Purpose.HOLD: _Need(even=0.0, floor=0.0),
}


class Budget(Struct, frozen=True):
    """One resource's window, as GitHub told it last."""

    limit: int
    remaining: int
    resets_at: LocalTime

    def wait_s(self, purpose: Purpose, now: LocalTime) -> float:
        """How long this purpose has to wait; 0 if it may go on."""
        left_s = self.resets_at - now
        if left_s <= 0:
            return 0.0  # another window began, and nobody has told us about it yet
        need = _NEEDS[purpose]
        if self.remaining <= need.floor * self.limit:
            return left_s
        # With nothing spent, what is left is a larger share of the time left from moment to moment.
        enough_for_s = self.remaining / (need.even * self.limit) * HOUR_S if need.even else left_s
        return max(0.0, left_s - enough_for_s)

    def spent(self, now: LocalTime) -> bool:
        return self.remaining <= 0 and now < self.resets_at

    def after(self, told: "Budget") -> "Budget":
        """Replies overtake each other: within a window, the least that was told is what is left."""
        if told.resets_at > self.resets_at + _SAME_WINDOW_S:
            return told
        if told.resets_at < self.resets_at - _SAME_WINDOW_S:
            return self
        return replace(told, remaining=min(self.remaining, told.remaining))


def budget_told(headers: Mapping[str, str], served_at_s: float, now: LocalTime) -> Budget | None:
    """What a reply says. `served_at_s`: the reply's own time of day, since 1970.

    None where the server does not count (GitHub Enterprise does not, unless it is told to).
    """
    try:
        limit = int(headers["x-ratelimit-limit"])
        remaining = int(headers["x-ratelimit-remaining"])
        left_s = int(headers["x-ratelimit-reset"]) - served_at_s
    except (KeyError, ValueError):
        return None
    if limit <= 0:
        return None
    # A window is an hour: a longer one is a clock that was set, and must not shut us out for days.
    return Budget(limit, max(0, remaining), LocalTime(now + min(max(left_s, 0.0), HOUR_S)))


_MINUTE_S = 61.0
"""A request is counted when it is let through and arrives a little later, so that a minute at the
server may hold what was let through in a little more than one."""

_NO_LIMIT = 1_000_000_000

_SHARES: Mapping[Purpose, float] = {
    Purpose.DISCOVER: 0.70,
    Purpose.LOOK: 0.80,
    Purpose.CLAIM: 0.90,
    Purpose.FINISH: 0.97,
    Purpose.HOLD: 1.0,
}


class Kind(StrEnum):
    """What a request is, as it is counted."""

    REST_READ = "rest read"
    REST_UNCHANGED = "rest unchanged"
    """Answered with 304: a read that cost nothing."""
    REST_EDIT = "rest edit"
    REST_CREATE = "rest create"
    GRAPHQL_READ = "graphql read"
    GRAPHQL_EDIT = "graphql edit"
    GRAPHQL_CREATE = "graphql create"
    AS_APP = "app token"
    """What an App asks for itself: GitHub counts it for the App and not for its installation."""

    @property
    def creates(self) -> bool:
        return self in (Kind.REST_CREATE, Kind.GRAPHQL_CREATE)

    @property
    def writes(self) -> bool:
        return self.creates or self in (Kind.REST_EDIT, Kind.GRAPHQL_EDIT, Kind.AS_APP)

    @property
    def graphql(self) -> bool:
        return self in (Kind.GRAPHQL_READ, Kind.GRAPHQL_EDIT, Kind.GRAPHQL_CREATE)

    @property
    def points(self) -> int:
        return 5 if self.writes else 1


class Rule(Struct, frozen=True):
    """At most so many in any span of time, counted in slots: never too few, by a slot too long."""

    name: str
    most: int
    span_s: float
    slot_s: float

    def slot(self, now: LocalTime) -> int:
        return floor(now / self.slot_s)

    def oldest(self, now: LocalTime) -> int:
        return floor((now - self.span_s) / self.slot_s)

    def leaves_at(self, slot: int) -> float:
        return (slot + 1) * self.slot_s + self.span_s


class Limits(Struct, frozen=True):
    """The secondary limits that are kept to."""

    creations_a_minute: int = 80
    creations_an_hour: int = 500
    rest_points_a_minute: int = 900
    graphql_points_a_minute: int = 2000

    @classmethod
    def none(cls) -> "Limits":
        """For a server that sets none. What is sent is counted all the same."""
        return cls(_NO_LIMIT, _NO_LIMIT, _NO_LIMIT, _NO_LIMIT)

    def shared_by(self, machines: int) -> "Limits":
        """One machine's part, where several use the token: nobody counts for all of them."""
        return Limits(
            max(1, self.creations_a_minute // machines),
            max(1, self.creations_an_hour // machines),
            max(5, self.rest_points_a_minute // machines),
            max(5, self.graphql_points_a_minute // machines),
        )

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (*self._creations, self._rest, self._graphql)

    def on(self, kind: Kind) -> tuple[tuple[Rule, int], ...]:
        """What a request of this kind counts against, and how much."""
        points = (self._graphql if kind.graphql else self._rest, kind.points)
        return (*((rule, 1) for rule in self._creations), points) if kind.creates else (points,)

    @property
    def _creations(self) -> tuple[Rule, Rule]:
        return (
            Rule("creations a minute", self.creations_a_minute, _MINUTE_S, 1.0),
            Rule("creations an hour", self.creations_an_hour, HOUR_S, 60.0),
        )

    @property
    def _rest(self) -> Rule:
        return Rule("REST points a minute", self.rest_points_a_minute, _MINUTE_S, 1.0)

    @property
    def _graphql(self) -> Rule:
        return Rule("GraphQL points a minute", self.graphql_points_a_minute, _MINUTE_S, 1.0)


class Pace(Struct):
    """What was let through lately. One for all processes of a machine that use the token."""

    slots: dict[str, dict[int, int]] = field(default_factory=dict)
    """By the rule's name: how many in each of its slots."""

    def wait_s(self, kind: Kind, purpose: Purpose, limits: Limits, now: LocalTime) -> float:
        """How long such a request has to wait; 0 if there is room."""
        return max(self._room_after_s(*entry, purpose, now) for entry in limits.on(kind))

    def add(
        self, kind: Kind, limits: Limits, now: LocalTime, *, at: LocalTime | None = None
    ) -> None:
        """`at`: when it was let through, if that was before."""
        for rule, weight in limits.on(kind):
            slots, slot = self._slots(rule, now), rule.slot(now if at is None else at)
            slots[slot] = slots.get(slot, 0) + weight
            self.slots[rule.name] = slots

    def used(self, rule: Rule, now: LocalTime) -> int:
        return sum(self._slots(rule, now).values())

    def _room_after_s(self, rule: Rule, weight: int, purpose: Purpose, now: LocalTime) -> float:
        slots = self._slots(rule, now)
        most = max(weight, floor(rule.most * _SHARES[purpose]))
        used = sum(slots.values())
        if used + weight <= most:
            return 0.0
        for slot in sorted(slots):
            used -= slots[slot]
            if used + weight <= most:
                return rule.leaves_at(slot) - now
        raise AssertionError("one request fits into an empty window")

    def _slots(self, rule: Rule, now: LocalTime) -> dict[int, int]:
        """Those that still count. A slot of the future is of another clock, and counts nothing."""
        oldest, newest = rule.oldest(now), rule.slot(now)
        slots = self.slots.get(rule.name, {})
        return {
            slot: count for slot, count in slots.items() if oldest <= slot <= newest and count > 0
        }


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


_COUNTING = Rule("requests", most=0, span_s=HOUR_S, slot_s=60.0)


class Refusal(Struct, frozen=True):
    """Not let through, and why."""

    wait_s: float
    why: str


class LetThrough(Struct, frozen=True):
    """A request that was counted elsewhere already."""

    kind: Kind
    at: LocalTime


class Passed(Struct, frozen=True):
    """A reply came, whatever it says: the server is there."""

    asked_at: LocalTime
    kind: Kind
    budgets: tuple[tuple[Resource, Budget], ...] = ()
    free: bool = False
    """It was answered with 304, which costs nothing."""


class Limited(Struct, frozen=True):
    """The server wants a rest from everybody who uses the token."""

    asked_at: LocalTime
    heard_at: LocalTime
    told_s: float | None
    why: str


class Failed(Struct, frozen=True):
    """No reply, or one that says that the server is broken."""

    asked_at: LocalTime
    heard_at: LocalTime
    why: str


Outcome: TypeAlias = Passed | Limited | Failed


class Spending(Struct):
    pace: Pace = field(default_factory=Pace)
    breaker: Breaker = field(default_factory=Breaker)
    budgets: dict[Resource, Budget] = field(default_factory=dict)
    counts: dict[Kind, dict[int, int]] = field(default_factory=dict)
    """What was let through in the last hour, by the minute."""

    def admit(self, kind: Kind, purpose: Purpose, limits: Limits, now: LocalTime) -> Refusal | None:
        """Count the request and let it through, or say how long it has to wait."""
        refusal = self._refusal(kind, purpose, limits, now)
        if refusal is None:
            self.breaker = self.breaker.admitted(now)
            self.pace.add(kind, limits, now)
            self._count(kind, now)
        return refusal

    def _refusal(
        self, kind: Kind, purpose: Purpose, limits: Limits, now: LocalTime
    ) -> Refusal | None:
        resource = Resource.GRAPHQL if kind.graphql else Resource.REST
        budget = self.budgets.get(resource) if kind is not Kind.AS_APP else None
        waits = (
            Refusal(self.breaker.wait_s(purpose, now), self.breaker.why),
            Refusal(budget.wait_s(purpose, now) if budget else 0.0, _low(resource, purpose)),
            Refusal(self.pace.wait_s(kind, purpose, limits, now), "kept below GitHub's pace"),
        )
        longest = max(waits, key=lambda one: one.wait_s)
        return longest if longest.wait_s > 0 else None

    def count(self, earlier: LetThrough, limits: Limits, now: LocalTime) -> None:
        """What was let through before, where nobody else could be told of it."""
        self.pace.add(earlier.kind, limits, now, at=earlier.at)
        self._count(earlier.kind, earlier.at)

    def note(self, outcome: Outcome) -> None:
        match outcome:
            case Passed(asked_at, kind, budgets, free):
                self.breaker = self.breaker.succeeded(asked_at)
                for resource, told in budgets:
                    self.tell(resource, told)
                if free:
                    self._uncount(kind, asked_at)
                    self._count(Kind.REST_UNCHANGED, asked_at)
            case Limited(asked_at, heard_at, told_s, why):
                self.breaker = self.breaker.limited(asked_at, heard_at, told_s, why)
            case Failed(asked_at, heard_at, why):
                self.breaker = self.breaker.failed(asked_at, heard_at, why)

    def tell(self, resource: Resource, told: Budget) -> None:
        known = self.budgets.get(resource)
        self.budgets[resource] = told if known is None else known.after(told)

    def spent(self, resource: Resource, now: LocalTime) -> bool:
        budget = self.budgets.get(resource)
        return budget is not None and budget.spent(now)

    def back_in(self, resource: Resource, now: LocalTime) -> float | None:
        """Until its next window, if nothing is left in this one."""
        budget = self.budgets.get(resource)
        return budget.resets_at - now if budget is not None and budget.spent(now) else None

    def sane(self, now: LocalTime) -> "Spending":
        """Without what no process of this machine can have meant."""
        self.breaker = self.breaker.sane(now)
        self.counts = {kind: self._recent(kind, now) for kind in self.counts}
        self.budgets = {
            resource: budget
            for resource, budget in self.budgets.items()
            if budget.resets_at <= now + HOUR_S and budget.limit > 0
        }
        return self

    def counted(self, now: LocalTime) -> dict[Kind, int]:
        return {kind: sum(self._recent(kind, now).values()) for kind in Kind}

    def _count(self, kind: Kind, at: LocalTime) -> None:
        """Also of a moment ago: what was counted since then stays."""
        oldest, slot = _COUNTING.oldest(at), _COUNTING.slot(at)
        slots = {one: n for one, n in self.counts.get(kind, {}).items() if one >= oldest}
        slots[slot] = slots.get(slot, 0) + 1
        self.counts[kind] = slots

    def _uncount(self, kind: Kind, at: LocalTime) -> None:
        """It was let through a moment before it was sent, and that may be another minute."""
        slots, slot = self.counts.get(kind, {}), _COUNTING.slot(at)
        counted = next((one for one in (slot, slot - 1) if slots.get(one, 0) > 0), None)
        if counted is not None:
            slots[counted] -= 1

    def _recent(self, kind: Kind, now: LocalTime) -> dict[int, int]:
        oldest, newest = _COUNTING.oldest(now), _COUNTING.slot(now)
        slots = self.counts.get(kind, {})
        return {slot: count for slot, count in slots.items() if oldest <= slot <= newest}


def _low(resource: Resource, purpose: Purpose) -> str:
    name = "GraphQL" if resource is Resource.GRAPHQL else "REST"
    return f"too little is left of the {name} budget to {purpose.name.lower()}"
