"""Reads that are not of one moment: an issue's own fields from one, its comments from another.

A server answers a read with several queries of its own, one after the other. What others write
between two of them is only in the later part of the reply: labels from before an ending was painted
beside the card that says that it is shown, or the card from before beside labels from after. Where
readers lag, each query may be answered by another replica, so each part lags separately.

Apart from that lag, no part is older than its request: both contain what was written before it was
sent. The reply to a trip is read where the trip has written, after its last effect, so each part
shows everything up to then; what others write during the read may be in one part only. A list of
issues is torn like one issue; which issues it finds is a separate query, as always.
"""

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.issue import Snapshot

Look = Callable[[], tuple[Snapshot, ...]]
"""Some issues, all at one moment."""


class Tear(Struct, frozen=True):
    """How one read is torn."""

    gap_us: int = 0
    """How long after the first part the second is read."""
    comments_first: bool = False

    def read(self, look: Look, pause: Callable[[int], None]) -> tuple[Snapshot, ...]:
        before = look()
        pause(self.gap_us)
        return tuple(map(self._joined, before, look()))

    def _joined(self, before: Snapshot, after: Snapshot) -> Snapshot:
        fields, comments = (after, before) if self.comments_first else (before, after)
        return replace(after, issue=fields.issue, comments=comments.comments)
