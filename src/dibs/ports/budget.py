"""What is left of a tracker's patience, for people to see: trackers that count have one."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from dibs.core.errors import Outage
from dibs.core.ids import ServerTime


class Allowance(Struct, frozen=True):
    """What the server grants for a span of time, and counts itself, over all machines."""

    name: str
    limit: int
    used: int
    remaining: int
    resets_at: ServerTime


class Kept(Struct, frozen=True):
    """A limit that the server does not count for us: kept to by the processes of this machine."""

    name: str
    used: int
    most: int | None
    """None: it is only counted."""


class Shut(Struct, frozen=True):
    """The server is left alone for now."""

    why: str
    wait_s: float


class BudgetReport(Struct, frozen=True):
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
