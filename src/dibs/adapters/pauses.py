"""Pauses of a repository or the fleet: in memory, or in the embedded tracker's file."""

from collections.abc import Callable

from dibs.adapters.sqlite_database import Database
from dibs.core.eligibility import Pause, PauseScope
from dibs.core.ids import ServerTime, moment

_SCHEMA = """
CREATE TABLE pauses (
    scope TEXT NOT NULL,
    repo TEXT NOT NULL,
    reason TEXT NOT NULL,
    said_by TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (scope, repo)
) WITHOUT ROWID;
"""


class MemoryPauses:
    def __init__(self, now: Callable[[], ServerTime]) -> None:
        self._now = now
        self._pauses: dict[tuple[PauseScope, str], Pause] = {}

    def pauses(self) -> tuple[Pause, ...]:
        return tuple(self._pauses.values())

    def pause(self, scope: PauseScope, *, repo: str, reason: str, by: str) -> None:
        self._pauses[scope, repo] = Pause(scope, reason, by, self._now(), repo)

    def resume(self, scope: PauseScope, *, repo: str, by: str) -> bool:  # noqa: ARG002 - no log
        return self._pauses.pop((scope, repo), None) is not None


class SqlitePauses:
    def __init__(self, database: Database) -> None:
        self._database = database
        database.ensure("pauses", _SCHEMA)

    def pauses(self) -> tuple[Pause, ...]:
        with self._database.reading() as tx:
            rows = tx.sql.execute("SELECT scope, repo, reason, said_by, since FROM pauses")
            return tuple(
                Pause(PauseScope(scope), reason, by, moment(since), repo)
                for scope, repo, reason, by, since in rows
            )

    def pause(self, scope: PauseScope, *, repo: str, reason: str, by: str) -> None:
        with self._database.writing() as tx:
            tx.sql.execute(
                "INSERT OR REPLACE INTO pauses (scope, repo, reason, said_by, since)"
                " VALUES (?, ?, ?, ?, ?)",
                (scope.value, repo, reason, by, tx.now_ms),
            )

    def resume(self, scope: PauseScope, *, repo: str, by: str) -> bool:  # noqa: ARG002 - no log
        with self._database.writing() as tx:
            gone = tx.sql.execute(
                "DELETE FROM pauses WHERE scope = ? AND repo = ?", (scope.value, repo)
            )
            return gone.rowcount > 0
