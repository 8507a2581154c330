"""Since when each record has its version, in a file on this machine: for stores without a clock.

A sighting is a record, its version, and the machine's uptime at which that version was first seen.
"""

from datetime import timedelta

from dibs.adapters.sqlite.database import Database, Transaction
from dibs.adapters.system import BOOT, uptime_ms
from dibs.adapters.wrappers.leases import MOST_REMEMBERED
from dibs.core.ids import ZERO, milliseconds

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
# If another process stored the same version between our reading and our writing, its row stays.
_WRITE_IF_NEW = (
    f"{_WRITE} WHERE version <> excluded.version OR boot <> excluded.boot"
    " OR uptime > excluded.uptime"
)


class FileObservations:
    """The sightings of all processes on the machine that share the file, by the machine's uptime.

    A row from before a reboot, or from a container with its own uptime, does not count. Where
    reboots cannot be told apart, a row with a larger uptime than the present does not count, and a
    row with a smaller uptime gives an age below the true age.
    """

    def __init__(self, database: Database, *, most: int = MOST_REMEMBERED) -> None:
        self._database = database
        database.ensure("sightings", _SCHEMA)
        # Each start bounds the file: the records that did not change for longest go first.
        with database.reading() as tx:
            count: int = tx.sql.execute("SELECT COUNT(*) FROM sightings").fetchone()[0]
        if count > most:
            with database.writing() as tx:
                tx.sql.execute("DELETE FROM sightings WHERE boot <> ?", (BOOT,))
                tx.sql.execute(
                    "DELETE FROM sightings WHERE record NOT IN"
                    " (SELECT record FROM sightings ORDER BY uptime DESC LIMIT ?)",
                    (most,),
                )

    def age(self, record: str, version: str) -> timedelta:
        with self._database.reading() as tx:
            sighting = _last_sighting(tx, record)
        if sighting is not None and sighting[0] == version:
            return sighting[1]
        with self._database.writing() as tx:
            tx.sql.execute(_WRITE_IF_NEW, (record, version, uptime_ms(), BOOT))
        return ZERO

    def note(self, record: str, version: str, ago: timedelta) -> None:
        with self._database.writing() as tx:
            tx.sql.execute(_WRITE, (record, version, uptime_ms() - milliseconds(ago), BOOT))

    def silence(self, record: str) -> timedelta:
        with self._database.reading() as tx:
            sighting = _last_sighting(tx, record)
        return ZERO if sighting is None else sighting[1]


def _last_sighting(tx: Transaction, record: str) -> tuple[str, timedelta] | None:
    """The version seen last, and for how long; None without a sighting that counts."""
    row = tx.sql.execute(
        "SELECT version, uptime FROM sightings WHERE record = ? AND boot = ?", (record, BOOT)
    ).fetchone()
    now_ms = uptime_ms()
    if row is None or row[1] > now_ms:
        return None
    # Both are cut to whole milliseconds, so the difference may be a millisecond too large.
    return row[0], timedelta(milliseconds=max(0, now_ms - row[1] - 1))
