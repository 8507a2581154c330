"""One of many who want the same key: how each side waits for it, and how its requests are counted.

A contender lives in a process of its own, with a client of its own. Ours waits as a hold does:
bid, then sleep until the store tells of an end or the lease that was seen is over. The others wait
as they do by default.
"""

import fcntl
import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from benchmarks.leases import ours
from dibs.adapters.system import SystemClock
from dibs.core.ids import IssueRef
from dibs.core.lease import Bid, Busy, Granted, Lease, Released, Unproven
from dibs.ports.leases import LeaseStore
from dibs.services.resuming import LeaseWaiter

_PATIENCE_S = 60.0


class Contender(Protocol):
    def acquire(self, key: str) -> int | None:
        """Wait for the key; its fence, if there is one."""
        ...

    def release(self, key: str) -> None: ...

    @property
    def asked(self) -> int:
        """How often it has asked, if nobody else could count that."""
        ...


class Store:
    """A lease store of ours."""

    def __init__(self, store: LeaseStore) -> None:
        self._store, self._clock, self._dice = store, SystemClock(), random.Random()
        self._lease: Lease | None = None
        self.asked = 0

    def acquire(self, key: str) -> int:
        run, issue = ours.fresh_run(), IssueRef(ours.ISSUE.repo, key)
        waiting, until = (
            LeaseWaiter(self._store, self._clock, self._dice),
            self._clock.now() + _PATIENCE_S,
        )
        while (left_s := until - self._clock.now()) > 0:
            told = self._store.acquire(Bid(issue, run, ours.HOLDER, ours.STAGE, ours.TTL))
            match told:
                case Granted(lease):
                    self._lease = lease
                    return lease.fence
                case Busy(record):
                    waiting.pause(issue, record.remaining, left_s)
                case Unproven():
                    continue
                case _:
                    raise AssertionError(f"no limit was given: {told}")
        raise TimeoutError(f"no grant within {_PATIENCE_S:.0f} s")

    def release(self, key: str) -> None:
        assert self._lease is not None
        assert self._lease.issue.key == key
        released = self._store.release(self._lease, ours.CONCEDED)
        assert isinstance(released, Released), released


class Plain:
    """A lock of somebody else's: an object for each key, with calls to take it and to give it."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        self._make, self._locks = make, dict[str, Any]()
        self.asked = 0
        """Right for those who ask once to take it and once to give it."""

    def acquire(self, key: str) -> None:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = self._make(key)
        self.asked += 1
        assert lock.acquire()

    def release(self, key: str) -> None:
        self.asked += 1
        self._locks[key].release()


# Redis


@contextmanager
def redis_ours(url: str) -> Iterator[Contender]:
    from dibs.adapters.redis.leases import RedisLeases

    with closing(RedisLeases.connect(url)) as store:
        yield Store(store)


@contextmanager
def redis_py(url: str) -> Iterator[Contender]:
    import redis

    with closing(redis.Redis.from_url(url)) as client:
        yield Plain(lambda key: client.lock(key, timeout=ours.TTL_S))


@contextmanager
def python_redis_lock(url: str) -> Iterator[Contender]:
    import redis
    import redis_lock

    with closing(redis.Redis.from_url(url)) as client:
        yield Plain(lambda key: redis_lock.Lock(client, key, expire=ours.TTL_S))


# PostgreSQL


@contextmanager
def postgres_ours(url: str) -> Iterator[Contender]:
    from dibs.adapters.postgres.database import PostgresDatabase, parse_postgres_url
    from dibs.adapters.postgres.leases import PostgresLeases

    # The server's own count of transactions will not do: for each NOTIFY every listener begins one.
    class Counted(PostgresDatabase):
        def ask(self, *arguments: Any, **options: Any) -> Any:
            contender.asked += 1
            return super().ask(*arguments, **options)

    with closing(PostgresLeases(Counted(parse_postgres_url(url)))) as store:
        contender = Store(store)
        yield contender


class _Advisory:
    def __init__(self, sql: Any, key: str) -> None:
        self._sql, self._key = sql, key

    def acquire(self) -> bool:
        self._sql.execute("SELECT pg_advisory_lock(hashtext(%s))", (self._key,))
        return True

    def release(self) -> None:
        self._sql.execute("SELECT pg_advisory_unlock(hashtext(%s))", (self._key,))


@contextmanager
def advisory(url: str) -> Iterator[Contender]:
    import psycopg

    with closing(psycopg.connect(url, autocommit=True)) as sql:
        yield Plain(lambda key: _Advisory(sql, key))


# etcd


@contextmanager
def etcd_ours(url: str) -> Iterator[Contender]:
    from dibs.adapters.etcd.leases import EtcdLeases

    with closing(EtcdLeases(url)) as store:
        yield Store(store)


@contextmanager
def tooz_etcd(url: str) -> Iterator[Contender]:
    from tooz import coordination

    place = url.removeprefix("etcd://").partition("/")[0]
    coordinator: Any = coordination.get_coordinator(
        f"etcd3+http://{place}?lock_timeout={ours.TTL_S}", str(os.getpid()).encode()
    )
    coordinator.start()
    try:
        yield Plain(lambda key: coordinator.get_lock(key.encode()))
    finally:
        coordinator.stop()


# SQLite


@contextmanager
def sqlite_ours(url: str) -> Iterator[Contender]:
    from dibs.adapters.sqlite.database import Database
    from dibs.adapters.sqlite.leases import SqliteLeases

    with closing(Database(Path(url) / "ours.db")) as database:
        contender = Store(SqliteLeases(database))

        def note(statement: str) -> None:
            contender.asked += statement.startswith("BEGIN")

        with database.reading() as tx:  # one thread, so it is always the same connection
            tx.sql.set_trace_callback(note)
        yield contender


class _Flock:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)

    def acquire(self) -> bool:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)


@contextmanager
def flock(url: str) -> Iterator[Contender]:
    yield Plain(lambda key: _Flock(Path(url) / key))
