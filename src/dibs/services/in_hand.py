"""What whoever has a lease in hand may ask of it, whatever it is a lease on.

One answer for an issue's lease, a name's slot and a firing's claim. How it was come by and how it
is ended is for each of them to know.
"""

from collections.abc import Callable

from dibs.core.ids import Fence, RunId
from dibs.services.keeping import Keeper


class InHand:
    _keeper: Keeper

    @property
    def run(self) -> RunId:
        return self._keeper.run

    @property
    def fence(self) -> Fence:
        """Give it to whatever you write to; refuse lower ones there."""
        return self._keeper.fence

    @property
    def remaining_s(self) -> float:
        """How long the lease can be trusted if nothing renews it."""
        return self._keeper.remaining_s()

    @property
    def lost(self) -> bool:
        return self._keeper.over.is_set() or self.remaining_s == 0.0

    def check(self) -> None:
        """Call before every side effect. Raises LeaseLost when you must stop."""
        self._keeper.check()

    def ensure(self, seconds: float) -> None:
        """Call before a step that cannot be interrupted. Renews if need be, raises if it cannot."""
        self._keeper.ensure(seconds)

    def on_lost(self, watcher: Callable[[str], None]) -> None:
        """Be told why, once, from the renewing thread."""
        self._keeper.on_lost(watcher)
