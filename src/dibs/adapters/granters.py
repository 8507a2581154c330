"""Which store grants: in memory, or one row in the embedded tracker's file."""

import threading

from dibs.adapters.sqlite_database import Database, Transaction
from dibs.core.granter import Appointed, Granter, Moving
from dibs.core.ids import Fence, LocalTime

_SCHEMA = """
CREATE TABLE granter (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    store TEXT NOT NULL,
    target TEXT,
    floor INTEGER NOT NULL,
    mover TEXT NOT NULL
);
"""


class MemoryGranters:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._granter: Granter | None = None

    def granter(self, *, since: LocalTime | None = None) -> Granter | None:  # noqa: ARG002
        return self._granter

    def lately(self) -> Granter | None:
        return self._granter

    def appoint(self, granter: Granter, *, instead_of: Granter | None) -> Granter:
        with self._lock:
            if self._granter == instead_of:
                self._granter = granter
            assert self._granter is not None, "nobody is ever dismissed without a successor"
            return self._granter


class SqliteGranters:
    def __init__(self, database: Database) -> None:
        self._database = database
        database.ensure("granter", _SCHEMA)

    def lately(self) -> Granter | None:
        return self.granter()

    def granter(self, *, since: LocalTime | None = None) -> Granter | None:  # noqa: ARG002
        with self._database.reading() as tx:
            return _read(tx)

    def appoint(self, granter: Granter, *, instead_of: Granter | None) -> Granter:
        with self._database.writing() as tx:
            known = _read(tx)
            if known is not None and known != instead_of:
                return known
            tx.sql.execute(
                "INSERT OR REPLACE INTO granter (id, store, target, floor, mover)"
                " VALUES (1, ?, ?, ?, ?)",
                _row(granter),
            )
            return granter


def _row(granter: Granter) -> tuple[str, str | None, int, str]:
    match granter:
        case Appointed(store, floor):
            return store, None, floor, ""
        case Moving(origin, target, floor, mover):
            return origin, target, floor, mover


def _read(tx: Transaction) -> Granter | None:
    row = tx.sql.execute("SELECT store, target, floor, mover FROM granter").fetchone()
    if row is None:
        return None
    store, target, floor, mover = row
    if target is None:
        return Appointed(store, Fence(floor))
    return Moving(store, target, Fence(floor), mover)
