"""How long a record has been seen unchanged: expiry for stores that have no clock.

A contender may take over only a record whose version it has watched, on its own monotonic clock,
for a whole ttl. No clock is compared with another's: where the holder was last heard of does not
matter, only that nothing was heard of it since we began to look. Whoever never looked before has
to wait a ttl; a sighting is therefore kept for the next process of this machine.

What the store must do for its part: give every write of a holder a version that never comes again,
ask for the age only after the reply with that version has arrived, and take over, or call the
lease over, with a write that is refused if the version has changed. Then a sighting that is
forgotten, written down late or replaced by a slower reader only makes somebody wait longer.
"""

import threading
from collections import OrderedDict
from datetime import timedelta
from typing import Protocol

from dibs.adapters.clocks import BOOT, uptime_ms
from dibs.adapters.sqlite_database import Database, Transaction
from dibs.core.ids import ZERO, LocalTime, milliseconds
from dibs.ports.clock import Clock

_MOST_REMEMBERED = 100_000
_SCHEMA = """
CREATE TABLE sightings (
    record TEXT PRIMARY KEY,
    version TEXT NOT NULL,
    uptime INTEGER NOT NULL,
    boot TEXT NOT NULL
) WITHOUT ROWID;
"""
_WRITE = (
    "INSERT INTO sightings (record, version, uptime, boot) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (record) DO UPDATE"
    " SET version = excluded.version, uptime = excluded.uptime, boot = excluded.boot"
)
# Another process may have seen it between our reading and our writing: then its sighting stands.
_WRITE_IF_NEW = (
    f"{_WRITE} WHERE version <> excluded.version OR boot <> excluded.boot"
    " OR uptime > excluded.uptime"
)


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

    def __init__(self, clock: Clock, *, most: int = _MOST_REMEMBERED) -> None:
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


class FileObservations:
    """Of all processes of this machine that share the file, on the machine's uptime.

    A row of another start of the machine, or of a container that has an uptime of its own, is no
    sighting. Where starts cannot be told apart, an uptime that is larger than ours is not believed,
    and a smaller one claims less than the truth.
    """

    def __init__(self, database: Database, *, most: int = _MOST_REMEMBERED) -> None:
        self._database = database
        database.ensure("sightings", _SCHEMA)
        self._forget_beyond(most)

    def age(self, record: str, version: str) -> timedelta:
        with self._database.reading() as tx:
            known = _known(tx, record)
        if known is not None and known[0] == version:
            return known[1]
        with self._database.writing() as tx:
            tx.sql.execute(_WRITE_IF_NEW, (record, version, uptime_ms(), BOOT))
        return ZERO

    def note(self, record: str, version: str, ago: timedelta) -> None:
        with self._database.writing() as tx:
            tx.sql.execute(_WRITE, (record, version, uptime_ms() - milliseconds(ago), BOOT))

    def silence(self, record: str) -> timedelta:
        with self._database.reading() as tx:
            known = _known(tx, record)
        return ZERO if known is None else known[1]

    def _forget_beyond(self, most: int) -> None:
        """The file is bounded whenever it is opened: what did not change for longest goes first."""
        with self._database.reading() as tx:
            count: int = tx.sql.execute("SELECT COUNT(*) FROM sightings").fetchone()[0]
        if count <= most:
            return
        with self._database.writing() as tx:
            tx.sql.execute("DELETE FROM sightings WHERE boot <> ?", (BOOT,))
            tx.sql.execute(
                "DELETE FROM sightings WHERE record NOT IN"
                " (SELECT record FROM sightings ORDER BY uptime DESC LIMIT ?)",
                (most,),
            )


def _known(tx: Transaction, record: str) -> tuple[str, timedelta] | None:
    """The version seen last, and for how long; None if there is no sighting to believe."""
    row = tx.sql.execute(
        "SELECT version, uptime FROM sightings WHERE record = ? AND boot = ?", (record, BOOT)
    ).fetchone()
    now_ms = uptime_ms()
    if row is None or row[1] > now_ms:
        return None
    # Both are cut to whole milliseconds, so their difference may be one too many.
    return row[0], timedelta(milliseconds=max(0, now_ms - row[1] - 1))
