"""Help for lease stores: expiry without a clock of the store, and text that is sure to be UTF-8.

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

`plain_bid`, `plain_ending`, `plain_revocation`: Python's text may hold half letters (lone
surrogates), as from a file name or an argument that was not UTF-8. A name is used to find a record
again, so a name with a half letter is refused; prose must not keep a lease from beginning or
ending, so a half letter in prose is replaced.
"""

import threading
from datetime import timedelta
from typing import Protocol

from msgspec.structs import replace

from dibs.core.bounded import Bounded
from dibs.core.errors import Misuse
from dibs.core.ids import ZERO, HolderId, LocalTime
from dibs.core.lease import Bid, Ending, Revocation
from dibs.ports.system import Clock

MOST_REMEMBERED = 100_000


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
                self._remember(record, version, self._clock.now())
                return ZERO
            return self._since(sighting[1])

    def note(self, record: str, version: str, ago: timedelta) -> None:
        with self._lock:
            self._remember(record, version, LocalTime(self._clock.now() - ago.total_seconds()))

    def silence(self, record: str) -> timedelta:
        with self._lock:
            sighting = self._seen.get(record)
            return ZERO if sighting is None else self._since(sighting[1])

    def _remember(self, record: str, version: str, at: LocalTime) -> None:
        self._seen[record] = (version, at)

    def _since(self, at: LocalTime) -> timedelta:
        return timedelta(seconds=max(0.0, self._clock.now() - at))


def plain_bid(bid: Bid) -> Bid:
    """The bid as UTF-8: raises Misuse for a half letter in a name, replaces it in the holder."""
    for name in (bid.issue.repo, bid.issue.key, bid.run, bid.stage):
        plain_name(name)
    return replace(bid, holder=HolderId(_prose(bid.holder)))


def plain_ending(ending: Ending) -> Ending:
    """The ending as UTF-8: raises Misuse for a half letter in `next`, replaces it in the note."""
    if ending.next is not None:
        plain_name(ending.next)
    return replace(ending, note=_prose(ending.note))


def plain_revocation(revocation: Revocation) -> Revocation:
    """The revocation as UTF-8: raises Misuse for a half letter in the run, replaces it in prose."""
    plain_name(revocation.run)
    return replace(revocation, by=_prose(revocation.by), reason=_prose(revocation.reason))


def plain_name(text: str) -> str:
    """The name itself; raises Misuse for text which cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Misuse(f"{text!r} cannot be kept by the store: it has half a letter in it") from None
    return text


def _prose(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
