"""How fast a token may be used, whatever is left of its budget.

GitHub's secondary limits: 80 requests a minute and 500 an hour that create content, 900 points a
minute over REST and 2000 over GraphQL, where a read is one point and a write is five. Nothing tells
how much of them is used, so it is counted here. A part of each is kept for finishing and for
heartbeats. Content are the requests that notify people (a new issue, a new comment); an edit of a
comment or a label is a write, but not content. Pure.
"""

from collections.abc import Mapping
from enum import StrEnum
from math import floor

from msgspec import Struct, field

from dibs.adapters.github.budget import HOUR_S, Purpose
from dibs.core.ids import LocalTime

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
