"""One token's budgets, pace and breaker as one value, and the two things that happen to it.

A request asks to be let through and is told how long to wait if it is not; a reply is taken note
of. This is what the processes of a machine share. Pure: where it is kept is the ledger's business.
"""

from typing import TypeAlias

from msgspec import Struct, field

from dibs.adapters.github.breaker import Breaker
from dibs.adapters.github.budget import HOUR_S, Budget, Purpose, Resource
from dibs.adapters.github.pace import Kind, Limits, Pace, Rule
from dibs.core.ids import LocalTime

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
