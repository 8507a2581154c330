"""Control records in the embedded tracker's file: the store that grants, and pauses."""

from typing import Any, assert_never

from dibs.adapters.sqlite.database import Database
from dibs.core.eligibility import Pause, PauseScope
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
CREATE TABLE backlog (only INTEGER PRIMARY KEY CHECK (only = 1), id TEXT NOT NULL);
"""


class SqliteGranters:
    def __init__(self, database: Database) -> None:
        self._database = database
        database.ensure("granter", _GRANTERS_SCHEMA)

    def owner(self) -> Owner:
        import os
        import socket

        self._database.ensure("backlog", _OWNER_SCHEMA)
        with self._database.reading() as tx:
            row = tx.sql.execute("SELECT id FROM backlog").fetchone()
        if row is None:
            with self._database.writing() as tx:
                made = (os.urandom(8).hex(),)
                tx.sql.execute("INSERT OR IGNORE INTO backlog (only, id) VALUES (1, ?)", made)
                row = tx.sql.execute("SELECT id FROM backlog").fetchone()
        return Owner(row[0], f"{self._database.path.absolute()} on {socket.gethostname()}")

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
