"""What a server's clock says now, worked out from the `Date` of its replies.

A reply says the second in which it was written, and we know that this was after we asked and before
we heard: two bounds on how far the server's clock is ahead of our monotonic one. Each reply narrows
them. Where both bounds lie in one second, that second is certain and nobody has to ask for it.
Decides nothing about leases, and never looks at a wall clock of ours.
"""

import threading
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from math import floor

from dibs.core.ids import LocalTime, ServerTime, server_time

# A clock that is being slewed gains or loses up to 0.0005 s in a second; twice that is allowed for.
_DRIFT = 0.001


@lru_cache(maxsize=16)
def http_date(text: str) -> ServerTime:
    """Raises ValueError on anything but a date of HTTP."""
    moment = parsedate_to_datetime(text)
    return server_time(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


class ServerSeconds:
    """The clock of one server, in whole seconds. For many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: tuple[float, float, LocalTime] | None = None
        """The least and the most that the server is ahead, and when that was last narrowed."""

    def observe(self, asked: LocalTime, said: ServerTime, heard: LocalTime) -> None:
        least, most = said.timestamp() - heard, said.timestamp() + 1 - asked
        with self._lock:
            known = self._bounds(heard)
            if known is not None and max(known[0], least) <= min(known[1], most):
                least, most = max(known[0], least), min(known[1], most)
            # Otherwise the server's clock was set: what we knew of it is void.
            self._known = (least, most, heard)

    def certain(self, now: LocalTime) -> ServerTime | None:
        """The second that the server would put on a reply now, if there is no doubt about it."""
        with self._lock:
            known = self._bounds(now)
        if known is None or floor(known[0] + now) != floor(known[1] + now):
            return None
        return _moment(known[0] + now)

    def earliest(self, now: LocalTime) -> ServerTime | None:
        """A second that has begun for sure; at most a little over one behind."""
        with self._lock:
            known = self._bounds(now)
        return _moment(known[0] + now) if known is not None else None

    def _bounds(self, now: LocalTime) -> tuple[float, float] | None:
        if self._known is None:
            return None
        least, most, at = self._known
        drift = _DRIFT * max(0.0, now - at)
        return least - drift, most + drift


def _moment(seconds: float) -> ServerTime:
    return ServerTime(datetime.fromtimestamp(floor(seconds), UTC))
