"""One SQLite file that many processes share: connections, transactions, time, errors.

Decides how the embedded adapters use the file: a write-ahead log, one immediate transaction per
write, a clock that never runs backwards, and which error of dibs each failure of SQLite becomes.
Knows no table but its clock. Writes nothing into the database of another program: a file is ours if
it is empty, carries our mark, or has our clock.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from dibs.adapters.system import (
    BOOT,
    IdlePool,
    Sharing,
    SystemClock,
    make_folder,
    open_file,
    uptime_ms,
)
from dibs.core.errors import BadConfiguration, Damaged, NotPermitted, Outage, Unavailable

# Whole milliseconds since 1970, by SQLite's own clock.
_WALL_MS = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"
# The database's time follows the machine's uptime and not the wall clock: a step of the wall clock,
# in either direction, neither frees a held lease nor prolongs a lease that is over. After a reboot
# no process holds a lease, and the time is taken from the wall clock again, but never goes
# backwards. The time is stored once a second and not with every transaction, which would write a
# page each time: a time that was handed out since is less than a second after the stored time.
_WRITTEN_EVERY_MS = 1000
_NOW_MS = (
    "CASE WHEN boot = :boot AND :uptime >= uptime THEN high + :uptime - uptime"
    f" ELSE MAX(high + {_WRITTEN_EVERY_MS}, {_WALL_MS}) END"
)
_WRITTEN = f"boot = :boot AND :uptime BETWEEN uptime AND uptime + {_WRITTEN_EVERY_MS}"
_TICK = f"UPDATE clock SET high = {_NOW_MS}, uptime = :uptime, boot = :boot"
_PEEK = f"SELECT {_NOW_MS}, {_WRITTEN} FROM clock"
_CLOCK = """
CREATE TABLE IF NOT EXISTS clock (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    high INTEGER NOT NULL,
    uptime INTEGER NOT NULL,
    boot TEXT NOT NULL
);
INSERT OR IGNORE INTO clock VALUES (1, 0, 0, '');
"""
APPLICATION_ID = 0x64696273  # "dibs"
"""The mark of our files, in the header of the file."""
# The version of an unmarked file, the columns of its clock, and what else is in it. One statement,
# because another process may make the tables in between.
_UNMARKED = """
SELECT
    (SELECT user_version FROM pragma_user_version),
    (SELECT group_concat(name) FROM pragma_table_info('clock')),
    (SELECT group_concat(name, ', ') FROM (SELECT name FROM sqlite_master ORDER BY name LIMIT 3))
"""
_OUR_CLOCK = "id,high,uptime,boot"
_LARGEST_VALUE = 16_000_000
"""Bytes of a row or a text: a file that came with an archive must not fill the memory."""
_STEPS = 1_000_000
"""Some ten milliseconds of SQLite's work."""
_LONGEST_S = 60.0
"""For all that is done with a connection at a time: a trigger of an archive may have no end."""
SCHEMA_VERSION = 3
"""The `user_version` of the files that this version of dibs writes."""
_TURN_S = (0.0005, 0.004)

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_FORBIDDEN = {
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_CANTOPEN,
}


class Migration(Struct, frozen=True):
    """What changes a table of an earlier version into the table of version `to`."""

    to: int
    table: str
    """The migration is for files that have this table."""
    statements: str


MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        2,
        "issues",
        """
CREATE TABLE rests (
    number INTEGER PRIMARY KEY REFERENCES issues (number),
    until INTEGER NOT NULL,
    rules TEXT NOT NULL,
    noted_at INTEGER NOT NULL
);
CREATE INDEX rests_by_time ON rests (until);
CREATE INDEX rests_by_rules ON rests (rules);
CREATE INDEX rests_by_age ON rests (noted_at);
""",
    ),
    Migration(
        3,
        "issues",
        """
CREATE TABLE archive (
    id INTEGER PRIMARY KEY,
    number INTEGER NOT NULL REFERENCES issues (number),
    author TEXT NOT NULL,
    body TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
CREATE INDEX archive_by_issue ON archive (number, id);
""",
    ),
)
"""In the order of their versions. A new schema is a new number, a row here, and a file of the
version before in tests/data."""


class Transaction(Struct, frozen=True):
    """An open transaction, and the database's time at which the transaction runs."""

    sql: sqlite3.Connection
    now_ms: int
    seen: dict[object, Any] = field(default_factory=dict)
    """What the transaction has read or written, for adapters that would read it again."""


class Database:
    """A file and a small pool of connections. A thread borrows a connection per transaction."""

    def __init__(self, path: Path, *, busy_s: float = 30.0, share: Sharing | None = None) -> None:
        self.path, self._share = path, share
        self._busy_s = busy_s
        self._idle = IdlePool(8, sqlite3.Connection.close)
        self._step = threading.local()
        """`transaction`: the one that this thread's `one_step` has open. `until`: when SQLite must
        be done with what the thread asks for."""

    def ensure(self, table: str, schema: str) -> None:
        """Create the tables of the schema, and the clock. Do not write to a file that has them."""
        with self._connection() as sql:
            known = sql.execute(
                "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name IN (?, 'clock')",
                (table,),
            ).fetchone()
            if known[0] == 2:
                return
            with self._immediate(sql):
                self._version(sql)  # another process may have migrated the file since
                _create(sql, _CLOCK)
                if not sql.execute(
                    "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
                ).fetchone():  # checked again: another process may have created it since
                    _create(sql, schema)
                sql.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                sql.execute(f"PRAGMA application_id = {APPLICATION_ID}")

    def writing(self, *, in_one_statement: bool = False) -> AbstractContextManager[Transaction]:
        """An immediate transaction: waits for the write lock first, and is never refused after.

        The time is stored if the stored time is too old. Inside `one_step`, a part of the step's
        transaction: if the part fails, the part alone is undone. SQLite undoes a failed statement.
        """
        outer = self._open_step()
        if outer is None:
            return self._writing()
        return nullcontext(outer) if in_one_statement else _part(outer)

    @contextmanager
    def _writing(self) -> Iterator[Transaction]:
        with self._connection() as sql, sql:  # commits at the end, or rolls back
            self._patiently(sql, "BEGIN IMMEDIATE")
            uptime = _uptime()
            now_ms, written = sql.execute(_PEEK, uptime).fetchone()
            if not written:
                sql.execute(_TICK, uptime)
            yield Transaction(sql, int(now_ms))

    def reading(self) -> AbstractContextManager[Transaction]:
        """A snapshot: all statements of the transaction see the same state."""
        outer = self._open_step()
        return self._reading() if outer is None else nullcontext(outer)

    @contextmanager
    def _reading(self) -> Iterator[Transaction]:
        with self._connection() as sql:
            sql.execute("BEGIN")
            try:
                yield Transaction(sql, self._patiently(sql, _PEEK, _uptime()).fetchone()[0])
            finally:
                sql.rollback()

    def select(self, statement: str) -> list[Any]:
        """The rows of a single statement, which is a snapshot by itself. Once in a step."""
        if (outer := self._open_step()) is not None:
            if statement not in outer.seen:
                outer.seen[statement] = outer.sql.execute(statement).fetchall()
            known: list[Any] = outer.seen[statement]
            return known
        with self._connection() as sql:
            return self._patiently(sql, statement).fetchall()

    @contextmanager
    def one_step(self) -> Iterator[None]:
        """Make all reads and writes of the calling thread inside a single transaction.

        The transaction is committed when the step ends, and undone if the step raises.
        """
        if self._open_step() is not None:
            yield
            return
        with self.writing() as transaction:
            self._step.transaction = transaction
            try:
                yield
            finally:
                self._step.transaction = None

    def _open_step(self) -> Transaction | None:
        return getattr(self._step, "transaction", None)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection, and translate SQLite's errors into those of dibs."""
        try:
            self._step.until = SystemClock().now() + _LONGEST_S
            sql = self._idle.take() or self._connect()
            try:
                yield sql
            finally:
                self._idle.keep(sql)
        except sqlite3.Error as failure:
            raise translate(failure, self.path) from failure

    def _connect(self) -> sqlite3.Connection:
        try:
            make_folder(self.path.parent, self._share)
            if not self.path.exists():  # SQLite would make it readable for all; the rest follows it
                os.close(open_file(self.path, os.O_RDWR | os.O_CREAT, self._share))
        except OSError as failure:
            raise NotPermitted(f"{self.path} cannot be made: {failure}") from failure
        sql = sqlite3.connect(
            self.path, timeout=_TURN_S[0], isolation_level=None, check_same_thread=False
        )
        with ExitStack() as on_failure:
            on_failure.callback(sql.close)
            sql.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
            step = self._step  # not this object: it closes its connections when nobody refers to it
            # Also lets Ctrl-C end an endless statement.
            sql.set_progress_handler(lambda: SystemClock().now() > step.until, _STEPS)
            version = self._version(sql)  # first: what follows would write into a foreign file
            # WAL lets readers go on while one process writes. NORMAL syncs at checkpoints: a killed
            # process loses nothing, a power cut may lose the last commits but never the file.
            mode = self._patiently(sql, "PRAGMA journal_mode = WAL").fetchone()[0]
            if mode != "wal":
                raise Damaged(f"{self.path} cannot keep a write-ahead log (its mode stays {mode})")
            sql.execute("PRAGMA synchronous = NORMAL")
            if 0 < version < SCHEMA_VERSION:
                self._migrate(sql)
            on_failure.pop_all()
        return sql

    def _version(self, sql: sqlite3.Connection) -> int:
        """The file's schema version.

        Raises BadConfiguration if the file is another program's, Damaged if a later version of dibs
        wrote it.
        """
        mark: int = self._patiently(sql, "PRAGMA application_id").fetchone()[0]
        version: int
        if mark == APPLICATION_ID:
            version = sql.execute("PRAGMA user_version").fetchone()[0]
        else:  # a new file, a file of an earlier version of dibs, or another program's
            version, clock, names = self._patiently(sql, _UNMARKED).fetchone()
            if clock != _OUR_CLOCK and (mark or version or names):
                raise BadConfiguration(
                    f"{self.path} is the database of another program: it has "
                    f"{names or 'a mark of its own'}, and nothing of dibs",
                    hint="look at tracker and leases in: dibs config show; "
                    "dibs makes a file of its own where there is none",
                )
        if not 0 <= version <= SCHEMA_VERSION:
            raise Damaged(
                f"{self.path} was written by a later version of dibs "
                f"(its schema is {version}, this one knows {SCHEMA_VERSION})"
            )
        return version

    def _migrate(self, sql: sqlite3.Connection) -> None:
        """Bring a file of an earlier version up to date, in one transaction."""
        with self._immediate(sql):
            # read again: another process may have migrated the file since
            version = self._version(sql)
            tables = {row[0] for row in sql.execute("SELECT name FROM sqlite_master")}
            for migration in MIGRATIONS:
                if migration.to > version and migration.table in tables:
                    _create(sql, migration.statements)
            sql.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            sql.execute(f"PRAGMA application_id = {APPLICATION_ID}")

    @contextmanager
    def _immediate(self, sql: sqlite3.Connection) -> Iterator[None]:
        with sql:  # commits at the end, or rolls back
            self._patiently(sql, "BEGIN IMMEDIATE")
            yield

    def _patiently(
        self, sql: sqlite3.Connection, statement: str, values: Mapping[str, object] | tuple[()] = ()
    ) -> sqlite3.Cursor:
        """Execute the statement; while the file is busy, try again after short, random sleeps.

        SQLite's own waits double up to a tenth of a second, and by then another worker has long
        claimed the issue. Some statements (journal_mode, a snapshot during recovery) do not wait
        at all.
        """
        clock, deadline = SystemClock(), None
        while True:
            try:
                return sql.execute(statement, values)
            except sqlite3.OperationalError as failure:
                deadline = deadline or clock.now() + self._busy_s
                if failure.sqlite_errorcode & 0xFF not in _BUSY or clock.now() >= deadline:
                    raise
                import random

                clock.sleep(random.uniform(*_TURN_S))

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        self._idle.close()


@contextmanager
def _part(outer: Transaction) -> Iterator[Transaction]:
    """A part of a transaction, undone by itself if it fails."""
    outer.sql.execute("SAVEPOINT part")
    try:
        yield outer
    except BaseException:
        if outer.sql.in_transaction:  # SQLite ends the whole of it if the disk is full
            outer.seen.clear()
            outer.sql.execute("ROLLBACK TO part")
            outer.sql.execute("RELEASE part")
        raise
    outer.sql.execute("RELEASE part")


def _uptime() -> Mapping[str, object]:
    return {"uptime": uptime_ms(), "boot": BOOT}


def _create(sql: sqlite3.Connection, schema: str) -> None:
    """Execute each statement alone: executescript would commit the open transaction."""
    for statement in schema.split(";"):
        if statement.strip():
            sql.execute(statement)


def translate(failure: sqlite3.Error, path: Path) -> Outage:
    """Translate to dibs' error tree: who must act, and whether a later try may help."""
    code = getattr(failure, "sqlite_errorcode", None)
    primary = code & 0xFF if code is not None else None
    if primary in _BUSY:
        return Unavailable(f"{path} is busy: other processes kept it locked ({failure})")
    if primary in _FORBIDDEN:
        return NotPermitted(f"{path} cannot be written or opened ({failure})")
    if primary == sqlite3.SQLITE_INTERRUPT:
        return Damaged(
            f"{path} takes too long to answer; a trigger or a view in it may have no end"
        )
    if primary == sqlite3.SQLITE_FULL:
        return Damaged(f"{path} cannot grow: the disk is full or a limit is reached ({failure})")
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Damaged(f"{path} is not a healthy SQLite database ({failure})")
    if primary == sqlite3.SQLITE_IOERR:
        return Damaged(f"{path} cannot be read or written: the disk may be full ({failure})")
    return Damaged(f"{path}: SQLite failed ({failure})")
