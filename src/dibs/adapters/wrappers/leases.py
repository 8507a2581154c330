"""Help for lease stores: whole records, and expiry without a clock of the store.

`WholeRecords`: the operations on a granted lease, for a store that replaces whole records.

`Observations`: how long a record has been seen unchanged. A store without a clock expires leases by
it: a contender may take over only a record whose version it has watched, on its own monotonic
clock, for a whole ttl. No two clocks are compared: the time of the holder's last write does not
matter, only that the record did not change since the contender began to watch. A contender that
never watched the record has to wait a ttl; a sighting is therefore kept for the next process of
this machine.

A store must do its part: give every write of a holder a version that never comes again, ask for
the age only after the reply with that version has arrived, and take a lease over, or end it as
expired, with a write that is refused if the version has changed. Then a sighting that is forgotten,
written late or replaced by a slower reader only makes a contender wait longer.
"""

import secrets
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

from msgspec.structs import replace

from dibs.adapters.system import wall_clock
from dibs.core import grants
from dibs.core.bounded import Bounded
from dibs.core.ids import ZERO, IssueRef, LocalTime, ServerTime
from dibs.core.lease import (
    Ending,
    Lease,
    Lost,
    Record,
    Released,
    ReleaseResult,
    Renewed,
    RenewResult,
    Revocation,
    StopAsked,
)
from dibs.ports.system import Clock

MOST_REMEMBERED = 100_000
Answer = TypeVar("Answer")
K = TypeVar("K")
V = TypeVar("V")


class WholeRecords:
    """Renews, ends and revokes leases as `core.grants` decides; the store swaps the records."""

    def renew(self, lease: Lease) -> RenewResult:
        made: Record | StopAsked | Lost = self._change(
            lease.issue, lambda known, now: grants.renewal(known, lease, now), renewing=True
        )
        return Renewed(replace(made.lease, card=lease.card)) if isinstance(made, Record) else made

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        made: Record | Released | Lost = self._change(
            lease.issue, lambda known, now: grants.ending(known, lease, ending, now)
        )
        return Released(made) if isinstance(made, Record) else made

    def acknowledge(self, record: Record) -> None:
        self._change(record.lease.issue, lambda known, _: grants.acknowledgement(known, record))

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        return self._change(issue, lambda known, now: grants.revoked(known, revocation, now))

    def _change(
        self,
        issue: IssueRef,
        decide: Callable[[Record | None, ServerTime], Record | Answer],
        *,
        renewing: bool = False,
    ) -> Record | Answer:
        """Write the record that `decide` makes, and return it; or return the answer of `decide`.

        `decide` gets the stored record and the store's time, and decides again if the record has
        changed before it could be replaced.
        """
        raise NotImplementedError


class Recent(Generic[K, V]):
    """A cache of the values that were put last, for many threads."""

    def __init__(self, most: int) -> None:
        self._lock = threading.Lock()
        self._values: Bounded[K, V] = Bounded(most)

    def get(self, key: K) -> V | None:
        with self._lock:
            return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._values[key] = value


class Observations(Protocol):
    """Sightings: per record, the version seen last and since when. Safe for many threads."""

    def age(self, record: str, version: str) -> timedelta:
        """How long ago this version of the record was first seen here; zero at first sight."""
        ...

    def note(self, record: str, version: str, ago: timedelta) -> None:
        """Record the version as first seen `ago`, without a look at the store.

        For a writer of the version, which counts from the moment before the write was sent: no
        holder can trust the lease from an earlier moment on.
        """
        ...

    def silence(self, record: str) -> timedelta:
        """How long no new version of the record has been seen here; zero if none ever was."""
        ...


class MemoryObservations:
    """Sightings in the memory of a process, by the local clock."""

    def __init__(self, clock: Clock, *, most: int = MOST_REMEMBERED) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # a forgotten sighting only makes us wait again
        self._seen: Bounded[str, tuple[str, LocalTime]] = Bounded(most)

    def age(self, record: str, version: str) -> timedelta:
        # The clock is read under the lock, so that a slow thread cannot record an earlier time
        # after a fast thread.
        with self._lock:
            sighting = self._seen.get(record)
            if sighting is None or sighting[0] != version:
                self._seen[record] = (version, self._clock.now())
                return ZERO
            return self._since(sighting[1])

    def note(self, record: str, version: str, ago: timedelta) -> None:
        with self._lock:
            at = LocalTime(self._clock.now() - ago.total_seconds())
            self._seen[record] = (version, at)

    def silence(self, record: str) -> timedelta:
        with self._lock:
            sighting = self._seen.get(record)
            return ZERO if sighting is None else self._since(sighting[1])

    def _since(self, at: LocalTime) -> timedelta:
        return timedelta(seconds=max(0.0, self._clock.now() - at))


def new_nonce() -> str:
    """A version that never comes again."""
    return secrets.token_hex(8)


def time_of_day() -> ServerTime:
    """The machine's time in whole milliseconds: a stamp for people, which decides nothing."""
    now = wall_clock()
    return ServerTime(now.replace(microsecond=now.microsecond // 1000 * 1000))
