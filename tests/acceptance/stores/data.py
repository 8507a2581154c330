"""What the holders write to: one number, guarded by the fence where it is kept.

Kinds: a row in SQLite (`sqlite:PATH`) or PostgreSQL (`postgresql://...`), a key in Redis or Valkey
(`redis://HOST:PORT/KEY`).
"""

import sqlite3
from typing import Any, Protocol
from urllib.parse import urlsplit

from dibs.fencing import Applied, Outcome, Stale, sql
from dibs.fencing import redis as fenced_keys

_ROW = {"id": 1}
DIGITS = 12


def digits(number: int) -> bytes:
    """As a plain file has it: always as long, so that it is written over and never cut off."""
    return b"%012d" % number


class Number(Protocol):
    """A number that refuses lower fences than it has seen."""

    def make(self) -> None: ...

    def stamp(self, fence: int) -> Outcome: ...

    def read(self) -> int: ...

    def write(self, number: int, fence: int) -> Outcome: ...

    def write_bare(self, number: int) -> None:
        """As one does who has not heard of fences."""
        ...

    def close(self) -> None: ...


class Row:
    """Each statement is a transaction of its own."""

    def __init__(self, connection: Any, table: str, mark: str) -> None:
        self._connection, self._table, self._mark = connection, table, mark

    def make(self) -> None:
        columns = "(id INTEGER PRIMARY KEY, n INTEGER NOT NULL, fence BIGINT NOT NULL)"
        self._connection.execute(f"CREATE TABLE {self._table} {columns}")
        self._connection.execute(f"INSERT INTO {self._table} VALUES (1, 0, 0)")

    def stamp(self, fence: int) -> Outcome:
        return sql.stamp(self._connection, self._table, _ROW, fence)

    def read(self) -> int:
        [found] = self._connection.execute(f"SELECT n FROM {self._table}").fetchall()
        return found[0]

    def write(self, number: int, fence: int) -> Outcome:
        return sql.guarded_update(self._connection, self._table, _ROW, {"n": number}, fence)

    def write_bare(self, number: int) -> None:
        self._connection.execute(f"UPDATE {self._table} SET n = {self._mark}", (number,))

    def close(self) -> None:
        self._connection.close()


class Key:
    def __init__(self, client: Any, key: str) -> None:
        self._client, self._key = client, key

    def make(self) -> None:
        self._client.set(self._key, 0)

    def stamp(self, fence: int) -> Outcome:
        return fenced_keys.stamp(self._client, self._key, fence)

    def read(self) -> int:
        return int(self._client.get(self._key))

    def write(self, number: int, fence: int) -> Outcome:
        return fenced_keys.guarded_set(self._client, self._key, number, fence)

    def write_bare(self, number: int) -> None:
        self._client.set(self._key, number)

    def close(self) -> None:
        self._client.close()


def applied(told: Outcome) -> bool:
    """Whether it was written. If not, a higher fence must have been there: nothing else may be."""
    assert isinstance(told, Applied | Stale), told
    return isinstance(told, Applied)


def reach(address: str) -> Number:
    if address.startswith("sqlite:"):
        path = address.removeprefix("sqlite:")
        connection = sqlite3.connect(path, timeout=60, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")  # no power is cut in these tests
        return Row(connection, "numbers", "?")
    place, _, name = address.rpartition("/")
    if address.startswith("postgresql:"):
        import psycopg

        return Row(psycopg.connect(place, autocommit=True), name, "%s")
    import redis

    return Key(redis.Redis(port=urlsplit(place).port, protocol=2), name)
