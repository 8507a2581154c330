"""Every kind of connection that a guarded block is tried on, and a counter to count with."""

import contextlib
import sqlite3
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dibs.fencing import sql

from .places import engine_at, pg8000_at


@dataclass(frozen=True)
class Block:
    connect: Callable[[str], Any]
    on_postgres: bool = False


def _sqlite(place: str) -> Any:
    return sqlite3.connect(place, timeout=60)


def _sqlite_autocommit(place: str) -> Any:
    return sqlite3.connect(place, timeout=60, isolation_level=None)


def _sqlite_told(autocommit: bool) -> Callable[[str], Any]:
    def connect(place: str) -> Any:
        return sqlite3.connect(place, timeout=60, autocommit=autocommit)

    return connect


def _psycopg(level: str | None = None) -> Callable[[str], Any]:
    def connect(place: str) -> Any:
        import psycopg

        connection = psycopg.connect(place)
        connection.isolation_level = psycopg.IsolationLevel[level] if level else None
        return connection

    return connect


def _psycopg_autocommit(level: str = "read committed") -> Callable[[str], Any]:
    def connect(place: str) -> Any:
        import psycopg

        options = f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}"
        return psycopg.connect(place, autocommit=True, options=options)

    return connect


def _pg8000(place: str) -> Any:
    return pg8000_at(place)


def _alchemy(level: str | None = None) -> Callable[[str], Any]:
    def connect(place: str) -> Any:
        # One connection is all of it, and it goes with the process.
        engine = engine_at(place)
        return (engine.execution_options(isolation_level=level) if level else engine).connect()

    return connect


BLOCKS = {
    "sqlite": Block(_sqlite),
    "sqlite-autocommit": Block(_sqlite_autocommit),
    "sqlite-sqlalchemy": Block(_alchemy()),
    "postgres": Block(_psycopg(), on_postgres=True),
    "postgres-repeatable-read": Block(_psycopg("REPEATABLE_READ"), on_postgres=True),
    "postgres-serializable": Block(_psycopg("SERIALIZABLE"), on_postgres=True),
    "postgres-autocommit": Block(_psycopg_autocommit(), on_postgres=True),
    "postgres-autocommit-serializable": Block(
        _psycopg_autocommit("serializable"), on_postgres=True
    ),
    "postgres-pg8000": Block(_pg8000, on_postgres=True),
    "postgres-sqlalchemy": Block(_alchemy(), on_postgres=True),
    "postgres-sqlalchemy-serializable": Block(_alchemy("SERIALIZABLE"), on_postgres=True),
}

if sys.version_info >= (3, 12):  # sqlite3 can be told in PEP 249's own words since then
    BLOCKS["sqlite-pep249"] = Block(_sqlite_told(False))
    BLOCKS["sqlite-pep249-autocommit"] = Block(_sqlite_told(True))


def execute(connection: Any, text: str) -> Any:
    """One statement on whatever it is; its first row, if it has rows."""
    if hasattr(connection, "exec_driver_sql"):
        result = connection.exec_driver_sql(text)
        return result.fetchone() if result.returns_rows else None
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(text)
        return cursor.fetchone() if cursor.description else None


def shut(connection: Any) -> None:
    connection.close()
    if hasattr(connection, "engine"):
        connection.engine.dispose()


@dataclass(frozen=True)
class Counter:
    """A counter at 0 in a table of its own, and the fences beside it."""

    kind: str
    place: str
    name: str

    @property
    def table(self) -> str:
        return f"counter_{self.name}"

    @property
    def fences(self) -> str:
        return f"fences_{self.name}"

    def connect(self) -> Any:
        return BLOCKS[self.kind].connect(self.place)

    @contextlib.contextmanager
    def connected(self):
        connection = self.connect()
        try:
            yield connection
        finally:
            shut(connection)

    def n(self) -> int:
        """Read over a connection of its own: only what is committed shows."""
        return self._ask(f"SELECT n FROM {self.table}")

    def fence(self) -> int:
        return self._ask(f"SELECT MAX(fence) FROM {self.fences}")

    def _ask(self, text: str) -> Any:
        with self.connected() as connection:
            found = execute(connection, text)[0]
            connection.rollback()
            return found


def make_counter(kind: str, folder: Path) -> Counter:
    place = _postgres() if BLOCKS[kind].on_postgres else str(folder / "counter.db")
    made = Counter(kind, place, uuid.uuid4().hex[:12])
    with made.connected() as connection:
        sql.create_table(connection, made.fences)
        sql.create_table(connection, made.fences)  # a second time does no harm
        execute(connection, f"CREATE TABLE {made.table} (n BIGINT NOT NULL)")
        execute(connection, f"INSERT INTO {made.table} VALUES (0)")
        connection.commit()
    return made


def _postgres() -> str:
    from tests.servers.postgres import postgres

    return postgres().url()
