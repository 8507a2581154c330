"""Sightings of records in a file of this machine, for stores that have no clock."""

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
# Another process may have seen it between our reading and our writing: then its sighting stands.
_WRITE_IF_NEW = (
    f"{_WRITE} WHERE version <> excluded.version OR boot <> excluded.boot"
    " OR uptime > excluded.uptime"
)


class FileObservations:
    """Of all processes of this machine that share the file, on the machine's uptime.

    A row of another start of the machine, or of a container that has an uptime of its own, is no
    sighting. Where starts cannot be told apart, an uptime that is larger than ours is not believed,
    and a smaller one claims less than the truth.
    """

    def __init__(self, database: Database, *, most: int = MOST_REMEMBERED) -> None:
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
