"""The etcd leases of one client: each is asked for once and serves everybody for a while.

An etcd lease is asked for a little longer than is wanted, and taken for every grant and renewal as
long as what is left of it still covers a whole ttl. So a key may live that little longer than was
asked for, and never shorter. Nothing is kept alive and nothing given back: an etcd lease
that is no longer taken runs out by itself, and refused bids and crashed clients leave none behind.

`KeepAlive` is not used: the leader answers it without asking the others, and one that was deposed
while it hung may promise time that the cluster does not give (etcd issue 15247).
"""

import threading
from datetime import timedelta
from math import ceil

from msgspec import Struct

from dibs.adapters.etcd_gateway import Gateway
from dibs.core.errors import Unavailable
from dibs.core.ids import LocalTime, ServerTime
from dibs.ports.clock import Clock

_MOST = 64
_LONGER, _MOST_LONGER_S = 0.1, 30.0


def seconds_for(ttl: timedelta) -> int:
    """What etcd is asked for: whole seconds, and more, so that one lease serves many grants."""
    ttl_s = ttl.total_seconds()
    return ceil(ttl_s + min(ttl_s * _LONGER, _MOST_LONGER_S))


class _Term(Struct, frozen=True):
    lease: int
    covers_until: LocalTime
    """At least, on our own clock: counted from before it was asked for."""


class Terms:
    def __init__(self, gateway: Gateway, clock: Clock) -> None:
        self._gateway, self._clock = gateway, clock
        self._lock = threading.Lock()
        self._terms: dict[int, _Term] = {}
        """By the seconds asked for."""

    def begin(self, ttl: timedelta, until: LocalTime) -> tuple[int, ServerTime]:
        """An etcd lease that will not be over before a whole ttl from now; and the server's now."""
        ttl_s, seconds = ttl.total_seconds(), seconds_for(ttl)
        # One thread asks, the others wait for what it gets, but no longer than they may.
        if not self._lock.acquire(timeout=max(0.0, until - self._clock.now())):
            raise Unavailable("etcd did not grant a lease in time; it may be slow or away")
        try:
            now = self._clock.now()
            term = self._terms.get(seconds)
            if term is None or term.covers_until < now + ttl_s:
                return self._ask(seconds, until)
        finally:
            self._lock.release()
        return term.lease, self._gateway.now(until)

    def forget(self, lease: int) -> None:
        """The server says that it is gone: an operator revoked it, or its clock ran ahead."""
        with self._lock:
            self._terms = {
                seconds: term for seconds, term in self._terms.items() if term.lease != lease
            }

    def _ask(self, seconds: int, until: LocalTime) -> tuple[int, ServerTime]:
        asked = self._clock.now()
        lease, granted_s, at = self._gateway.grant(until, seconds)
        if len(self._terms) >= _MOST:
            self._terms.clear()  # forgetting only makes us ask again
        self._terms[seconds] = _Term(lease, LocalTime(asked + granted_s))
        return lease, at
