"""Every kind of place that can be fenced, behind one face, and made in one line.

An address is text, so that another process can open the same place. Drivers and servers are
imported by who needs them, because many processes start here and each needs one.
"""

import contextlib
import sqlite3
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dibs.fencing import Outcome, files, objects, redis, sql

KEY = {"issue": 12}


@dataclass(frozen=True)
class Seen:
    value: str
    fence: int
    version: Any


class Place(ABC):
    @abstractmethod
    def write(
        self, value: str, fence: int, *, version: Any = None, step: int | None = None
    ) -> Outcome:
        """Change what is there; make nothing new."""

    @abstractmethod
    def stamp(self, fence: int) -> Outcome: ...

    @abstractmethod
    def read(self) -> Seen | None: ...

    @abstractmethod
    def remove(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


# Rows


class Row(Place):
    """A row of a table with fence, version and step, over some connection."""

    def __init__(self, address: str) -> None:
        place, _, name = address.rpartition("|")
        self.table = sql.Table(name, version="version", step="step")
        self.connection = self.connect(place)

    @abstractmethod
    def connect(self, place: str) -> Any: ...

    def write(
        self, value: str, fence: int, *, version: Any = None, step: int | None = None
    ) -> Outcome:
        with self.ended():
            return sql.guarded_update(
                self.connection, self.table, KEY, {"body": value}, fence, version=version, step=step
            )

    def stamp(self, fence: int) -> Outcome:
        with self.ended():
            return sql.stamp(self.connection, self.table, KEY, fence)

    @contextlib.contextmanager
    def ended(self):
        try:
            yield
        finally:
            self.connection.commit()

    def ask(self, text: str) -> Any:
        with contextlib.closing(self.connection.cursor()) as cursor:
            cursor.execute(text)
            return cursor.fetchone() if cursor.description else None

    def read(self) -> Seen | None:
        with self.ended():
            row = self.ask(f"SELECT body, fence, version FROM {self.table.name} WHERE issue = 12")
        return Seen(*row) if row is not None else None

    def remove(self) -> None:
        with self.ended():
            self.ask(f"DELETE FROM {self.table.name}")

    def close(self) -> None:
        self.connection.close()


COLUMNS = """(
    issue BIGINT PRIMARY KEY, body TEXT NOT NULL,
    fence BIGINT, version BIGINT NOT NULL, step BIGINT NOT NULL
)"""


class SqliteRow(Row):
    def connect(self, place: str) -> Any:
        return sqlite3.connect(place, timeout=60)


class SqliteRowAtOnce(Row):
    def connect(self, place: str) -> Any:
        return sqlite3.connect(place, timeout=60, isolation_level=None)


class PostgresRow(Row):
    def connect(self, place: str) -> Any:
        import psycopg

        return psycopg.connect(place)


class PostgresRowAtOnce(Row):
    def connect(self, place: str) -> Any:
        import psycopg

        return psycopg.connect(place, autocommit=True)


class Pg8000Row(Row):
    def connect(self, place: str) -> Any:
        return pg8000_at(place)


class AlchemyRow(Row):
    def connect(self, place: str) -> Any:
        self.engine = engine_at(place)
        return self.engine.connect()

    def ask(self, text: str) -> Any:
        result = self.connection.exec_driver_sql(text)
        return result.fetchone() if result.returns_rows else None

    def close(self) -> None:
        self.connection.close()
        self.engine.dispose()


def pg8000_at(url: str) -> Any:
    import pg8000.dbapi

    port = int(url.rpartition(":")[2].partition("/")[0])
    return pg8000.dbapi.connect("postgres", host="127.0.0.1", port=port)


def engine_at(place: str) -> Any:
    import sqlalchemy

    if place.startswith("postgresql://"):
        return sqlalchemy.create_engine(place.replace("postgresql:", "postgresql+psycopg:"))
    return sqlalchemy.create_engine(f"sqlite:///{place}", connect_args={"timeout": 60})


def _new_name(what: str) -> str:
    return f"{what}_{uuid.uuid4().hex[:12]}"


def sqlite_row(folder: Path) -> str:
    file = folder / "rows.db"
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"CREATE TABLE reports {COLUMNS}")
        connection.execute("INSERT INTO reports VALUES (12, '', NULL, 1, 0), (13, '', 99, 1, 0)")
    return f"{file}|reports"


def postgres_row(_: Path) -> str:
    import psycopg
    from tests.servers.postgres import postgres

    name = _new_name("reports")
    with psycopg.connect(postgres().url(), autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name} {COLUMNS}")
        connection.execute(f"INSERT INTO {name} VALUES (12, '', NULL, 1, 0), (13, '', 99, 1, 0)")
    return f"{postgres().url()}|{name}"


# Redis


class StringKey(Place):
    def __init__(self, address: str) -> None:
        port, _, self.key = address.partition("|")
        self.client = self.connect(int(port))

    def connect(self, port: int) -> Any:
        import redis as redis_py

        return redis_py.Redis(port=port, protocol=2)

    def write(
        self, value: str, fence: int, *, version: Any = None, step: int | None = None
    ) -> Outcome:
        return redis.guarded_set(
            self.client, self.key, value, fence, version=version, step=step, create=False
        )

    def stamp(self, fence: int) -> Outcome:
        return redis.stamp(self.client, self.key, fence)

    def read(self) -> Seen | None:
        found = redis.read(self.client, self.key)
        return found and Seen(_text(found.value), found.fence, found.version)

    def remove(self) -> None:
        self.client.delete(self.key)

    def close(self) -> None:
        self.client.close()


class HashKey(StringKey):
    def connect(self, port: int) -> Any:
        import redis as redis_py

        return redis_py.Redis(port=port, protocol=3, decode_responses=True)

    def write(
        self, value: str, fence: int, *, version: Any = None, step: int | None = None
    ) -> Outcome:
        fields = {"body": value, "again": value}
        return redis.guarded_hset(
            self.client, self.key, fields, fence, version=version, step=step, create=False
        )

    def read(self) -> Seen | None:
        found = redis.read_hash(self.client, self.key)
        return found and Seen(found.value["body"], found.fence, found.version)


class ClusterKey(StringKey):
    def connect(self, port: int) -> Any:
        import redis as redis_py

        return redis_py.RedisCluster(host="127.0.0.1", port=port)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def string_key(_: Path) -> str:
    from tests.servers.valkey import valkey

    key = _new_name("report")
    valkey().client().set(key, "")
    return f"{valkey().port}|{key}"


def hash_key(_: Path) -> str:
    from tests.servers.valkey import valkey

    key = _new_name("report")
    valkey().client().hset(key, "body", "")
    return f"{valkey().port}|{key}"


def cluster_key(_: Path) -> str:
    from tests.servers.valkey import cluster_node

    key = _new_name("report")
    cluster_node().client().set(key, "")
    return f"{cluster_node().port}|{key}"


# Objects and files


class S3Object(Place):
    def __init__(self, address: str) -> None:
        from tests.servers.s3 import client_for

        endpoint, self.bucket, self.key = address.split("|")
        self.client = client_for(endpoint)

    def write(
        self, value: str, fence: int, *, version: Any = None, step: int | None = None
    ) -> Outcome:
        return objects.guarded_put(
            self.client,
            self.bucket,
            self.key,
            value.encode(),
            fence,
            version=version,
            step=step,
            create=False,
        )

    def stamp(self, fence: int) -> Outcome:
        return objects.stamp(self.client, self.bucket, self.key, fence)

    def read(self) -> Seen | None:
        found = objects.read(self.client, self.bucket, self.key)
        return found and Seen(found.value.decode(), found.fence, found.version)

    def remove(self) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=self.key)

    def close(self) -> None:
        self.client.close()


def s3_object(_: Path) -> str:
    from tests.servers.s3 import object_server

    server = object_server()
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    with contextlib.closing(server.client()) as client:
        client.create_bucket(Bucket=bucket)
        client.put_object(Bucket=bucket, Key="reports/12", Body=b"")
    return f"{server.endpoint}|{bucket}|reports/12"


class File(Place):
    def __init__(self, address: str) -> None:
        self.path = Path(address)

    def write(
        self, value: str, fence: int, *, version: Any = None, step: int | None = None
    ) -> Outcome:
        return files.guarded_write(
            self.path, value.encode(), fence, version=version, step=step, create=False
        )

    def stamp(self, fence: int) -> Outcome:
        return files.stamp(self.path, fence)

    def read(self) -> Seen | None:
        found = files.read(self.path)
        return found and Seen(found.value.decode(), found.fence, found.version)

    def remove(self) -> None:
        self.path.unlink()

    def close(self) -> None:
        pass


def local_file(folder: Path) -> str:
    file = folder / "report 12.txt"
    file.touch()
    return str(file)


Opening = Callable[[str], Place]
Making = Callable[[Path], str]
KINDS: dict[str, tuple[Making, Opening]] = {
    "sqlite": (sqlite_row, SqliteRow),
    "sqlite-autocommit": (sqlite_row, SqliteRowAtOnce),
    "sqlite-sqlalchemy": (sqlite_row, AlchemyRow),
    "postgres": (postgres_row, PostgresRow),
    "postgres-autocommit": (postgres_row, PostgresRowAtOnce),
    "postgres-pg8000": (postgres_row, Pg8000Row),
    "postgres-sqlalchemy": (postgres_row, AlchemyRow),
    "valkey-string": (string_key, StringKey),
    "valkey-hash": (hash_key, HashKey),
    "valkey-cluster": (cluster_key, ClusterKey),
    "s3": (s3_object, S3Object),
    "file": (local_file, File),
}
ONE_OF_EACH = ["sqlite", "postgres", "valkey-string", "s3", "file"]
"""For tests that take their time: one client for each place."""


def make(kind: str, folder: Path) -> str:
    """A place with empty content that nobody has fenced; its address."""
    return KINDS[kind][0](folder)


def reach(kind: str, address: str) -> Place:
    return KINDS[kind][1](address)
