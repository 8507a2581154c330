"""SQLite: acquire and release one free key in a file, one thread.

The floor is the least that a fenced, expiring lock takes in the same mode of the same file format:
two immediate transactions of one statement each. For scale: huey's task lock, which is kept in
SQLite and never expires, and the operating system's lock on a file.
"""

import fcntl
import os
import sqlite3
import tempfile
from contextlib import ExitStack, closing
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex

from benchmarks.leases import ours, paired
from benchmarks.leases.paired import Contestant, Role, cycles_of
from benchmarks.tables import Result, Say
from dibs.adapters.sqlite.database import Database
from dibs.adapters.sqlite.leases import SqliteLeases

QUESTION = "sqlite: acquire + release on one key, one thread"
CYCLES = 20
_SHARED_MEMORY = "/dev/shm"
_NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"
_SCHEMA = """
CREATE TABLE locks (
    key TEXT PRIMARY KEY, fence INTEGER NOT NULL, run TEXT, expires_at INTEGER NOT NULL
) WITHOUT ROWID
"""
_ACQUIRE = f"""
INSERT INTO locks VALUES (?1, 1, ?2, {_NOW_MS} + ?3)
ON CONFLICT (key) DO UPDATE SET fence = fence + 1, run = excluded.run,
    expires_at = excluded.expires_at
WHERE run IS NULL OR expires_at <= {_NOW_MS}
RETURNING fence, expires_at
"""
_RELEASE = "UPDATE locks SET run = NULL WHERE key = ? AND run = ? RETURNING fence"
_NOTES = """\
floor: BEGIN IMMEDIATE, upsert RETURNING, COMMIT; BEGIN IMMEDIATE, update RETURNING, COMMIT; it
takes the time of day for its clock, which steps; ours keeps a clock in the file that does not,
which is one statement more in each transaction
ours: SqliteLeases.acquire and .release, with a new run for each cycle; the record stays, ended
huey: lock_task, an insert if absent and a delete by name; nothing expires in it
flock: LOCK_EX and LOCK_UN of one open file; nothing is written
"""


def run(*, rounds: int, durable: bool, say: Say) -> Result:
    result = Result(QUESTION)
    with ExitStack() as opened:
        place = None if durable else memory()
        folder = Path(
            opened.enter_context(tempfile.TemporaryDirectory(prefix="dibs-bench-", dir=place))
        )
        contestants = paired.with_control([make(folder, opened) for make in _SIDES])
        paired.race("sqlite", contestants, rounds=rounds, cycles=CYCLES, say=say)
    result.tables = [paired.speeds(contestants, CYCLES), paired.gains(contestants, ours.HEADS)]
    kept = f"in {place}, which is memory" if place else "on a disk, synced at checkpoints"
    result.notes = [paired.LEGEND, _NOTES, f"all: write-ahead log, synchronous=NORMAL, {kept}"]
    return result


def memory() -> str | None:
    """Where files never wait for a disk, if there is such a place."""
    return _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None


def _floor(folder: Path, opened: ExitStack) -> Contestant:
    sql = opened.enter_context(closing(sqlite3.connect(folder / "floor.db", isolation_level=None)))
    sql.execute("PRAGMA journal_mode = WAL")
    sql.execute("PRAGMA synchronous = NORMAL")
    sql.execute(_SCHEMA)

    def write(statement: str, *values: str | int) -> object:
        sql.execute("BEGIN IMMEDIATE")
        row = sql.execute(statement, values).fetchone()
        sql.execute("COMMIT")
        return row

    def cycle() -> None:
        token = token_hex(6)
        assert write(_ACQUIRE, ours.KEY, token, ours.TTL_S * 1000)
        assert write(_RELEASE, ours.KEY, token)

    gives = ("yes", "yes", "a random token", "yes, not renewed", "refused")
    return Contestant("floor: two statements", Role.FLOOR, cycles_of(cycle), gives)


def _ours(folder: Path, opened: ExitStack) -> Contestant:
    database = opened.enter_context(closing(Database(folder / "ours.db")))
    batch = cycles_of(ours.cycle_of(SqliteLeases(database)))
    return Contestant("dibs, SqliteLeases", Role.OURS, batch, ours.GIVES)


def _huey(folder: Path, opened: ExitStack) -> Contestant:
    from huey import SqliteHuey

    storage = SqliteHuey(filename=str(folder / "huey.db"))
    opened.callback(storage.storage.close)
    storage.storage.conn.execute("PRAGMA synchronous = NORMAL")  # like for like: its own is FULL
    lock = storage.lock_task("bench")

    def cycle() -> None:
        with lock:
            pass

    gives = ("yes", "no", "nobody", "no", "refused")
    return Contestant(f"huey lock_task {version('huey')}", Role.ASIDE, cycles_of(cycle), gives)


def _flock(folder: Path, opened: ExitStack) -> Contestant:
    handle = os.open(folder / "flock", os.O_RDWR | os.O_CREAT)
    opened.callback(os.close, handle)

    def cycle() -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(handle, fcntl.LOCK_UN)

    gives = ("yes", "no", "nobody", "with its process", "-")
    return Contestant("flock, for scale", Role.ASIDE, cycles_of(cycle), gives)


def _hold(_: Path, opened: ExitStack) -> Contestant:
    return ours.hold_of("auto", opened)


_SIDES = (_floor, _ours, _hold, _huey, _flock)
