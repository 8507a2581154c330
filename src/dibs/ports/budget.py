"""What is left of a tracker's patience, for people to see: trackers that count have one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from dibs.core.errors import Outage
from dibs.core.ids import ServerTime


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the server grants for a span of time, and counts itself, over all machines."""

    name: str
    limit: int
    used: int
    remaining: int
    resets_at: ServerTime


@dataclass(frozen=True, slots=True)
class Kept:
    """A limit that the server does not count for us: kept to by the processes of this machine."""

    name: str
    used: int
    most: int | None
    """None: it is only counted."""


@dataclass(frozen=True, slots=True)
class Shut:
    """The server is left alone for now."""

    why: str
    wait_s: float


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """One token's."""

    place: str
    """The server."""
    now: ServerTime | None
    """None if the server was not asked, or did not answer."""
    allowances: tuple[Allowance, ...]
    """Empty where the server does not count, or was not heard."""
    kept: tuple[Kept, ...]
    counted: Mapping[str, int]
    """The requests of this machine in the last hour, by their kind."""
    shut: Shut | None
    shared: bool
    """Whether all processes of this machine are counted, or this one alone."""
    trouble: Outage | None = None
    """Why the server was not heard."""


class Budgeted(Protocol):
    def budgets(self) -> tuple[BudgetReport, ...]:
        """One for each token that is used."""
        ...
