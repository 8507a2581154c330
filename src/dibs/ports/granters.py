"""Where it is written which store grants: beside the backlog, for every worker to read."""

from typing import Protocol

from dibs.core.granter import Granter
from dibs.core.ids import LocalTime


class Granters(Protocol):
    def granter(self, *, since: LocalTime | None = None) -> Granter | None:
        """Who grants now; None before the first grant of all.

        What was read at `since` or later will do.
        """
        ...

    def lately(self) -> Granter | None:
        """The same, some seconds old at most: for whoever looks again before he acts on it."""
        ...

    def appoint(self, granter: Granter, *, instead_of: Granter | None) -> Granter:
        """Write it down if `instead_of` is what stands. Returns what stands afterwards."""
        ...
