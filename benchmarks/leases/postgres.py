"""PostgreSQL: acquire and release one free key, beside two raw statements and two job queues.

The floor is the least that a fenced, expiring lock takes there: an upsert and an update, through a
psycopg connection in autocommit, whose plans the server keeps as it keeps ours. The queues have no
lock to measure; what they do that is like it is to fetch one job and to finish it.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack, closing
from datetime import timedelta
from importlib.metadata import version
from secrets import token_hex
from typing import Any

import psycopg
from tests.servers.postgres import Postgres

from benchmarks.leases import ours, paired
from benchmarks.leases.paired import Batch, Contestant, Role, cycles_of
from benchmarks.tables import Result, Say
from dibs.adapters.postgres.leases import PostgresLeases

QUESTION = "postgres: acquire + release on one key, one thread"
CYCLES = 10
_SCHEMA = """
CREATE TABLE floor_locks (
    key text PRIMARY KEY, fence bigint NOT NULL, run text, expires_at timestamptz NOT NULL
) WITH (fillfactor = 50)
"""
_ACQUIRE = """
INSERT INTO floor_locks AS l
VALUES (%(key)s, 1, %(run)s, clock_timestamp() + %(ttl)s * interval '1 second')
ON CONFLICT (key) DO UPDATE SET
    fence = l.fence + 1, run = excluded.run, expires_at = excluded.expires_at
WHERE l.run IS NULL OR l.expires_at <= clock_timestamp()
RETURNING l.fence, l.expires_at
"""
_RELEASE = """
UPDATE floor_locks SET run = NULL WHERE key = %(key)s AND run = %(run)s
    AND expires_at > clock_timestamp()
RETURNING fence
"""
_NOTES = """\
floor: INSERT ... ON CONFLICT ... RETURNING and UPDATE ... RETURNING on one psycopg connection in
autocommit, both prepared by the server; one table of four columns
ours: PostgresLeases.acquire and .release, with a new run for each cycle; the record stays, ended
the queues: one job fetched and finished (kept as succeeded, or moved to the log), alone in their
own event loop in this process, by psycopg's asynchronous connections; the jobs of a batch are
enqueued before it, outside the time; no worker, no heartbeat and no notification is measured
advisory: pg_try_advisory_lock and pg_advisory_unlock, for scale: gone with the connection, no
expiry, and not safe behind a transaction pooler
"""


def run(*, rounds: int, durable: bool, say: Say) -> Result:
    result = Result(QUESTION)
    with ExitStack() as opened:
        say("postgres: starting PostgreSQL")
        server = opened.enter_context(closing(Postgres(fsync=durable)))
        loop = asyncio.new_event_loop()
        opened.callback(loop.close)
        queues = opened.enter_context(_Queues(server.url(), loop))
        sides = [
            _floor(server.url(), opened),
            _ours(server.url(), opened),
            ours.hold_of(server.url(), opened),
            queues.procrastinate(),
            queues.pgqueuer(),
            _advisory(server.url(), opened),
        ]
        contestants = paired.with_control(sides)
        paired.race("postgres", contestants, rounds=rounds, cycles=CYCLES, say=say)
        with closing(psycopg.connect(server.url())) as sql:
            told = sql.info.parameter_status("server_version")
    result.tables = [paired.speeds(contestants, CYCLES), paired.gains(contestants, ours.HEADS)]
    kept = "commits are synced" if durable else "fsync off"
    result.notes = [paired.LEGEND, _NOTES, f"server: PostgreSQL {told} on loopback, {kept}"]
    result.checks = [paired.behind_none(contestants)]
    return result


# Plain calls


def _connect(url: str, opened: ExitStack) -> "psycopg.Connection[Any]":
    return opened.enter_context(closing(psycopg.connect(url, autocommit=True)))


def _floor(url: str, opened: ExitStack) -> Contestant:
    sql = _connect(url, opened)
    sql.execute(_SCHEMA)

    def cycle() -> None:
        values = {"key": ours.KEY, "run": token_hex(6), "ttl": ours.TTL_S}
        assert sql.execute(_ACQUIRE, values, prepare=True).fetchone()
        assert sql.execute(_RELEASE, values, prepare=True).fetchone()

    gives = ("yes", "yes", "a random token", "yes, not renewed", "refused")
    return Contestant("floor: two statements", Role.FLOOR, cycles_of(cycle), gives)


def _ours(url: str, opened: ExitStack) -> Contestant:
    store = opened.enter_context(closing(PostgresLeases.connect(url)))
    batch = cycles_of(ours.cycle_of(store))
    return Contestant("dibs, PostgresLeases", Role.OURS, batch, ours.GIVES)


def _advisory(url: str, opened: ExitStack) -> Contestant:
    sql = _connect(url, opened)

    def ask(function: str) -> Any:
        row = sql.execute(f"SELECT {function}(4711)", prepare=True).fetchone()
        return row and row[0]

    def cycle() -> None:
        assert ask("pg_try_advisory_lock")
        assert ask("pg_advisory_unlock")

    gives = ("yes", "no", "a process id", "with its connection", "held twice")
    return Contestant("advisory lock, for scale", Role.ASIDE, cycles_of(cycle), gives)


# Job queues


class _Queues:
    """Two job queues in one event loop, which runs only while one of them is measured."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self._url, self._loop = url, loop
        self._opened = AsyncExitStack()

    def __enter__(self) -> "_Queues":
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._opened.aclose())

    def procrastinate(self) -> Contestant:
        fetch_and_finish, enqueue = self._loop.run_until_complete(self._procrastinate())
        return self._queue(
            "procrastinate", "procrastinate, fetch + finish", enqueue, fetch_and_finish
        )

    def pgqueuer(self) -> Contestant:
        fetch_and_finish, enqueue = self._loop.run_until_complete(self._pgqueuer())
        return self._queue("pgqueuer", "pgqueuer, dequeue + log", enqueue, fetch_and_finish)

    def _queue(
        self,
        package: str,
        name: str,
        enqueue: Callable[[int], Awaitable[None]],
        fetch_and_finish: Callable[[], Awaitable[None]],
    ) -> Contestant:
        async def work(cycles: int) -> list[float]:
            await enqueue(cycles)
            times_s = []
            for _ in range(cycles):
                began_at = time.perf_counter()
                await fetch_and_finish()
                times_s.append(time.perf_counter() - began_at)
            return times_s

        gives = ("yes", "no", "a worker", "by heartbeat", "another job")
        return Contestant(f"{name} {version(package)}", Role.OTHER, self._batch(work), gives)

    def _batch(self, work: Callable[[int], Coroutine[None, None, list[float]]]) -> Batch:
        return lambda cycles: self._loop.run_until_complete(work(cycles))

    async def _procrastinate(self) -> Any:
        from procrastinate import App, PsycopgConnector
        from procrastinate.jobs import Job, Status

        app = App(connector=PsycopgConnector(conninfo=self._url, min_size=1, max_size=1))
        await self._opened.enter_async_context(app.open_async())
        await app.schema_manager.apply_schema_async()
        jobs = app.job_manager
        worker = await jobs.register_worker()
        job = Job(queue="bench", lock=None, queueing_lock=None, task_name="bench")

        async def enqueue(cycles: int) -> None:
            await jobs.batch_defer_jobs_async([job] * cycles)

        async def fetch_and_finish() -> None:
            fetched = await jobs.fetch_job(queues=None, worker_id=worker)
            assert fetched is not None
            await jobs.finish_job(fetched, Status.SUCCEEDED, delete_job=False)

        return fetch_and_finish, enqueue

    async def _pgqueuer(self) -> Any:
        from pgqueuer.db import PsycopgDriver
        from pgqueuer.queries import EntrypointExecutionParameter, Queries

        sql = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
        self._opened.push_async_callback(sql.close)
        queries = Queries(PsycopgDriver(sql))
        await queries.install()
        entrypoints, worker = {"bench": EntrypointExecutionParameter(0)}, uuid.uuid4()

        async def enqueue(cycles: int) -> None:
            await queries.enqueue(["bench"] * cycles, [None] * cycles, [0] * cycles)

        async def fetch_and_finish() -> None:
            (job,) = await queries.dequeue(1, entrypoints, worker, None, timedelta(seconds=30))
            await queries.log_jobs([(job, "successful", None)])

        return fetch_and_finish, enqueue
