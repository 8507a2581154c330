"""Readings that are not one moment: an issue's own fields from one, its comments from another.

A server answers a reading with several queries of its own, one after the other. What others write
between two of them is in the reply with its later half only: labels from before an ending was
painted beside the card that says that it is, or the card from before beside labels from after.
Where readers lag, each query may be answered by another replica, so each half lags by itself.

No half is older than its request, but for that lag: what was written before it was sent is in both.
The reply to a trip is read where the trip has written, after its last effect, so each half shows
all that was there by then; what others write while it is read comes in between. A list of issues is
torn like one issue, and which issues it finds is a query of its own, as it always was.
"""

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.issue import Snapshot

Look = Callable[[], tuple[Snapshot, ...]]
"""Some issues, all at one moment."""


class Tear(Struct, frozen=True):
    """How one reading comes apart."""

    gap_us: int = 0
    """How long after the first half the second is read."""
    comments_first: bool = False

    def read(self, look: Look, pause: Callable[[int], None]) -> tuple[Snapshot, ...]:
        before = look()
        pause(self.gap_us)
        return tuple(map(self._joined, before, look()))

    def _joined(self, before: Snapshot, after: Snapshot) -> Snapshot:
        fields, comments = (after, before) if self.comments_first else (before, after)
        return replace(after, issue=fields.issue, comments=comments.comments)
