"""Control records in the embedded tracker's file: the store that grants, and pauses."""

from contextlib import closing
from pathlib import Path
from typing import Any, assert_never

from dibs.adapters.sqlite.database import Database, translate
from dibs.core.eligibility import Pause, PauseScope
from dibs.core.errors import NotPermitted, Unavailable
from dibs.core.granter import Appointed, Granter, Moving, Owner
from dibs.core.ids import Fence, LocalTime, moment

_GRANTERS_SCHEMA = """
CREATE TABLE granter (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    store TEXT NOT NULL,
    target TEXT,
    floor INTEGER NOT NULL,
    mover TEXT NOT NULL
);
"""

_GRANTER = "SELECT store, target, floor, mover FROM granter"
_PAUSES = "SELECT scope, repo, reason, said_by, since FROM pauses"
_OWNER_SCHEMA = """
CREATE TABLE IF NOT EXISTS backlog (only INTEGER PRIMARY KEY CHECK (only = 1), id TEXT NOT NULL);
CREATE TABLE backlog_place (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    path BLOB NOT NULL,
    inode TEXT NOT NULL
);
"""
_OWNER = "SELECT id, path, inode FROM backlog LEFT JOIN backlog_place USING (only)"


class SqliteGranters:
    def __init__(self, database: Database) -> None:
        self._database = database
        database.ensure("granter", _GRANTERS_SCHEMA)

    def owner(self) -> Owner:
        """The backlog's id. A copy of the file gets a new id when it is first used.

        A file at another path than at its last use was moved, or is a copy. It is a copy if it is
        not the file that was used last, and the file at the old path has the same id.
        """
        import os
        import socket

        path = self._database.path
        self._database.ensure("backlog_place", _OWNER_SCHEMA)
        with self._database.reading() as tx:
            row = tx.sql.execute(_OWNER).fetchone()
        file = path.stat()
        here = (os.fsencode(path.resolve()), f"{file.st_dev}:{file.st_ino}")
        if row is None or row[1:] != here:
            with self._database.writing() as tx:
                known, place, inode = tx.sql.execute(_OWNER).fetchone() or ("", *here)
                same = (place or here[0]) == here[0] or inode == here[1]
                if not known or (not same and has_id(Path(os.fsdecode(place)), known)):
                    known = os.urandom(8).hex()
                row = (known, *here)
                tx.sql.execute("INSERT OR REPLACE INTO backlog (only, id) VALUES (1, ?)", row[:1])
                tx.sql.execute("INSERT OR REPLACE INTO backlog_place VALUES (1, ?, ?)", here)
        return Owner(row[0], f"{path.absolute()} on {socket.gethostname()}")

    def lately(self) -> Granter | None:
        return self.granter()

    def granter(self, *, since: LocalTime | None = None) -> Granter | None:  # noqa: ARG002
        return _granter(self._database.select(_GRANTER))

    def appoint(self, granter: Granter, *, instead_of: Granter | None) -> Granter:
        with self._database.writing() as tx:
            known = _granter(tx.sql.execute(_GRANTER).fetchall())
            if known is not None and known != instead_of:
                return known
            match granter:
                case Appointed(store, floor):
                    row: tuple[object, ...] = (store, None, floor, "")
                case Moving(origin, target, floor, mover):
                    row = (origin, target, floor, mover)
                case _:
                    assert_never(granter)
            tx.sql.execute(
                "INSERT OR REPLACE INTO granter (id, store, target, floor, mover)"
                " VALUES (1, ?, ?, ?, ?)",
                row,
            )
            tx.seen.pop(_GRANTER, None)
            return granter


def has_id(path: Path, known: str) -> bool:
    """Whether the backlog in another file has the id. A file that cannot be read may have it."""
    import sqlite3

    try:
        path.stat()
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as sql:
            return bool(sql.execute("SELECT id FROM backlog").fetchone() == (known,))
    except OSError as failure:
        return isinstance(failure, PermissionError)
    except sqlite3.Error as failure:
        return isinstance(translate(failure, path), Unavailable | NotPermitted)


def _granter(rows: list[Any]) -> Granter | None:
    if not rows:
        return None
    store, target, floor, mover = rows[0]
    if target is None:
        return Appointed(store, Fence(floor))
    return Moving(store, target, Fence(floor), mover)


_PAUSES_SCHEMA = """
CREATE TABLE pauses (
    scope TEXT NOT NULL,
    repo TEXT NOT NULL,
    reason TEXT NOT NULL,
    said_by TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (scope, repo)
) WITHOUT ROWID;
"""


class SqlitePauses:
    def __init__(self, database: Database) -> None:
        self._database = database
        database.ensure("pauses", _PAUSES_SCHEMA)

    def pauses(self) -> tuple[Pause, ...]:
        return tuple(
            Pause(PauseScope(scope), reason, by, moment(since), repo)
            for scope, repo, reason, by, since in self._database.select(_PAUSES)
        )

    def pause(self, scope: PauseScope, *, repo: str, reason: str, by: str) -> None:
        with self._database.writing() as tx:
            tx.seen.pop(_PAUSES, None)
            tx.sql.execute(
                "INSERT OR REPLACE INTO pauses (scope, repo, reason, said_by, since)"
                " VALUES (?, ?, ?, ?, ?)",
                (scope.value, repo, reason, by, tx.now_ms),
            )

    def resume(self, scope: PauseScope, *, repo: str, by: str) -> bool:  # noqa: ARG002 - no log
        with self._database.writing() as tx:
            tx.seen.pop(_PAUSES, None)
            deleted = tx.sql.execute(
                "DELETE FROM pauses WHERE scope = ? AND repo = ?", (scope.value, repo)
            )
            return deleted.rowcount > 0
