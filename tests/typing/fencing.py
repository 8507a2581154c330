"""What users write with `dibs.fencing`, type-checked by mypy in strict mode and never run."""

import sqlite3
from typing import Any, assert_never, assert_type

import psycopg
import redis as redis_py
import sqlalchemy

import dibs
from dibs.fencing import (
    Applied,
    Conflict,
    Duplicate,
    Missing,
    Outcome,
    Reading,
    Stale,
    StaleFence,
    files,
    insist,
    key_for,
    objects,
    redis,
    sql,
)


def every_outcome_is_matched(outcome: Outcome) -> str:
    match outcome:
        case Applied(version):
            return str(version)
        case Duplicate():
            return "again"
        case Stale(seen):
            assert_type(seen, dibs.Fence)
            return "stop"
        case Conflict(why):
            return why
        case Missing():
            return "gone"
        case never:
            assert_never(never)


def any_connection(
    lite: sqlite3.Connection,
    pg: psycopg.Connection[Any],
    alchemy: sqlalchemy.Connection,
    lease: dibs.HeldLease,
) -> None:
    table = sql.Table("reports", version="version")
    for connection in (lite, pg, alchemy):
        outcome = sql.guarded_update(connection, table, {"id": 1}, {"body": "x"}, lease.fence)
        assert_type(outcome, Outcome)
        insist(outcome, "report", lease.fence)
    with sql.guarded(lite, "report", 7, step=1) as writes:
        assert_type(writes, sqlite3.Connection)
    with sql.guarded(pg, "report", 7) as transaction:
        assert_type(transaction, psycopg.Connection[Any])
    with sql.guarded(alchemy, "report", 7) as connected:
        assert_type(connected, sqlalchemy.Connection)


def other_places(server: redis_py.Redis, s3: objects.Client, lease: dibs.HeldLease) -> None:
    assert_type(redis.guarded_set(server, "key", "value", lease.fence), Outcome)
    assert_type(redis.guarded_hset(server, "key", {"a": 1, "b": b"2"}, 7), Outcome)
    assert_type(objects.read(s3, "bucket", "key"), Reading[bytes] | None)
    assert_type(files.stamp("path", lease.fence), Applied | Stale)
    assert_type(key_for(lease.issue, lease.fence, "charge"), str)


def a_stale_fence_is_a_lost_lease(stale: StaleFence) -> dibs.LeaseLost:
    return stale
