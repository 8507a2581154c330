"""Several leases under one piece of work: trusted until the first of them ends, lost together.

One lease is the usual case, and costs what it costs by itself.
"""

from collections.abc import Callable, Iterator
from functools import partial

from dibs.core.ids import LocalTime
from dibs.services.keeping import Keeper, Overdue


class Together:
    def __init__(self, keepers: tuple[Keeper, ...]) -> None:
        self.keepers = keepers
        self.lead = keepers[0]
        """The one that the work is named after."""
        if len(keepers) > 1:
            for keeper in keepers:
                keeper.on_lost(partial(self._stop_others, keeper))

    def __iter__(self) -> Iterator[Keeper]:
        return iter(self.keepers)

    def _stop_others(self, lost: Keeper, why: str) -> None:
        for keeper in self.keepers:
            if keeper is not lost:
                keeper.ask_to_stop(f"the lease on {lost.issue} is over: {why}")

    @property
    def trusted_until(self) -> LocalTime:
        """The work may go on until then without another word, even if this process freezes."""
        return min(keeper.trusted_until for keeper in self.keepers)

    def check(self) -> None:
        """Raises LeaseLost when the work must stop."""
        for keeper in self.keepers:
            keeper.check()

    def on_lost(self, watcher: Callable[[str], None]) -> None:
        """Be told, once: whichever is lost, the others are asked to stop."""
        self.lead.on_lost(watcher)

    @property
    def over(self) -> bool:
        return any(keeper.over.is_set() for keeper in self.keepers)

    @property
    def overdue(self) -> Overdue | None:
        """That one was held longer than anybody may, if so."""
        found = (keeper.condition for keeper in self.keepers)
        return next((one for one in found if isinstance(one, Overdue)), None)

    @property
    def all_ours(self) -> bool:
        """Whether every lease could still be ended properly, as far as anybody knows."""
        return all(keeper.ours_s() > 0 for keeper in self.keepers)
