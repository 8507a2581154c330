"""How long a record has been seen unchanged: expiry for stores that have no clock.

A contender may take over only a record whose version it has watched, on its own monotonic clock,
for a whole ttl. No clock is compared with another's: where the holder was last heard of does not
matter, only that nothing was heard of it since we began to look. Whoever never looked before has
to wait a ttl; a sighting is therefore kept for the next process of this machine.

What the store must do for its part: give every write of a holder a version that never comes again,
ask for the age only after the reply with that version has arrived, and take over, or call the
lease over, with a write that is refused if the version has changed. Then a sighting that is
forgotten, written down late or replaced by a slower reader only makes somebody wait longer.

What of a bid, an ending or a revocation can be written down where all text is UTF-8.

Python's text may hold half letters (lone surrogates), as from a file name or an argument that was
not UTF-8. A name is found by again, so it is kept as it is or refused; what people say must not
keep a lease from beginning or ending, so there the half letter is replaced. Decides nothing else.
"""

import threading
from collections import OrderedDict
from datetime import timedelta
from typing import Protocol

from msgspec.structs import replace

from dibs.core.errors import Misuse
from dibs.core.ids import ZERO, HolderId, LocalTime
from dibs.core.lease import Bid, Ending, Revocation
from dibs.ports.system import Clock

MOST_REMEMBERED = 100_000


class Observations(Protocol):
    """Safe for many threads."""

    def age(self, record: str, version: str) -> timedelta:
        """How long this version of the record has been known here; nothing at first sight."""
        ...

    def note(self, record: str, version: str, ago: timedelta) -> None:
        """Take this version as known here since so long ago, although nobody looked.

        For those who wrote it themselves, from the moment before they sent it: no holder can
        trust a lease from earlier on than that.
        """
        ...

    def silence(self, record: str) -> timedelta:
        """How long nothing new of the record has been seen here; nothing if it never was."""
        ...


class MemoryObservations:
    """Of one process, on its local clock."""

    def __init__(self, clock: Clock, *, most: int = MOST_REMEMBERED) -> None:
        self._clock, self._most = clock, most
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, tuple[str, LocalTime]] = OrderedDict()

    def age(self, record: str, version: str) -> timedelta:
        with self._lock:  # the clock is read inside: a slower thread may not be before a faster one
            known = self._seen.get(record)
            if known is None or known[0] != version:
                self._remember(record, version, self._clock.now())
                return ZERO
            return self._since(known[1])

    def note(self, record: str, version: str, ago: timedelta) -> None:
        with self._lock:
            self._remember(record, version, LocalTime(self._clock.now() - ago.total_seconds()))

    def silence(self, record: str) -> timedelta:
        with self._lock:
            known = self._seen.get(record)
            return ZERO if known is None else self._since(known[1])

    def _remember(self, record: str, version: str, at: LocalTime) -> None:
        self._seen[record] = (version, at)
        self._seen.move_to_end(record)
        if len(self._seen) > self._most:  # forgetting only makes us wait again
            self._seen.popitem(last=False)

    def _since(self, at: LocalTime) -> timedelta:
        return timedelta(seconds=max(0.0, self._clock.now() - at))


def plain_bid(bid: Bid) -> Bid:
    for name in (bid.issue.repo, bid.issue.key, bid.run, bid.stage):
        plain_name(name)
    return replace(bid, holder=HolderId(_prose(bid.holder)))


def plain_ending(ending: Ending) -> Ending:
    if ending.next is not None:
        plain_name(ending.next)
    return replace(ending, note=_prose(ending.note))


def plain_revocation(revocation: Revocation) -> Revocation:
    plain_name(revocation.run)
    return replace(revocation, by=_prose(revocation.by), reason=_prose(revocation.reason))


def plain_name(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Misuse(f"{text!r} cannot be kept by the store: it has half a letter in it") from None
    return text


def _prose(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
