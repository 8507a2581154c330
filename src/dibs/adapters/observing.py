"""How long a record has been seen unchanged: expiry for stores that have no clock.

A contender may take over only a record whose version it has watched, on its own monotonic clock,
for a whole ttl. No clock is compared with another's: where the holder was last heard of does not
matter, only that nothing was heard of it since we began to look. Whoever never looked before has
to wait a ttl; a sighting is therefore kept for the next process of this machine.
"""

import threading
from collections import OrderedDict
from datetime import timedelta
from typing import Protocol

from dibs.adapters.clocks import BOOT, uptime_ms
from dibs.adapters.sqlite_database import Database
from dibs.core.ids import LocalTime
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


class Observations(Protocol):
    def age(self, record: str, version: str) -> timedelta:
        """How long this version of the record has been known here; nothing at first sight."""
        ...


class MemoryObservations:
    """Of one process, on its local clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, tuple[str, LocalTime]] = OrderedDict()

    def age(self, record: str, version: str) -> timedelta:
        now = self._clock.now()
        with self._lock:
            known = self._seen.get(record)
            if known is None or known[0] != version:
                self._seen[record] = (version, now)
                self._seen.move_to_end(record)
                if len(self._seen) > _MOST_REMEMBERED:  # forgetting only makes us wait again
                    self._seen.popitem(last=False)
                return timedelta()
            return timedelta(seconds=now - known[1])


class FileObservations:
    """Of all processes of this machine that share the file, on the machine's uptime."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.ensure("sightings", _SCHEMA)

    def age(self, record: str, version: str) -> timedelta:
        with self._database.reading() as tx:
            row = tx.sql.execute(
                "SELECT uptime FROM sightings WHERE record = ? AND version = ? AND boot = ?",
                (record, version, BOOT),
            ).fetchone()
        # Before our own look: the time between the two readings is not time that we watched.
        now_ms = uptime_ms()
        if row is not None and row[0] <= now_ms:
            return timedelta(milliseconds=now_ms - row[0])
        with self._database.writing() as tx:
            tx.sql.execute(
                "INSERT OR REPLACE INTO sightings (record, version, uptime, boot)"
                " VALUES (?, ?, ?, ?)",
                (record, version, uptime_ms(), BOOT),
            )
        return timedelta()
