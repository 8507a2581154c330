"""Where it is written which store grants: beside the backlog, for every worker to read."""

from typing import Protocol

from dibs.core.granter import Granter


class Granters(Protocol):
    def granter(self) -> Granter | None:
        """Who grants; None before the first grant of all."""
        ...

    def appoint(self, granter: Granter, *, instead_of: Granter | None) -> Granter:
        """Write it down if `instead_of` is what stands. Returns what stands afterwards."""
        ...
