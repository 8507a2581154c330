"""Fenced writes in a SQL database, over any DB-API 2 or SQLAlchemy connection.

There are two ways. `guarded_update` changes a table that has a `fence` column, with one guarded
statement. `guarded` is for any other tables: a block that first raises the resource's fence in a
small table beside them, and so locks the row until everything commits together.

`guarded_update` and `stamp` run in the caller's transaction, which the caller ends. `guarded`,
`stamp_resource` and `create_table` have a transaction of their own.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from dibs.core.durations import LOST_RACE
from dibs.core.errors import Misuse, Unavailable
from dibs.fencing.connections import Connection, SqlSession, TransactionState, may_pass, session_for
from dibs.fencing.values import (
    AlreadyApplied,
    Applied,
    Conflict,
    Duplicate,
    Mark,
    Missing,
    Outcome,
    Stale,
    StaleFence,
    check,
    insist,
    other_version,
)

__all__ = [
    "FENCES",
    "Connection",
    "Table",
    "create_table",
    "guarded",
    "guarded_update",
    "stamp",
    "stamp_resource",
]

FENCES = "dibs_fences"
"""The default name of the small table with the fences of `guarded` blocks."""

_DDL = """
CREATE TABLE {place} (
    resource VARCHAR(255) NOT NULL PRIMARY KEY,
    fence BIGINT NOT NULL,
    step BIGINT NOT NULL
)
"""
_LONGEST_RESOURCE = 255
_BEGINNINGS = 100
_PART = r'(?:[A-Za-z_][\w$]*|"[\w $-]+"|`[\w $-]+`|\[[\w $-]+\])'
_NAME = re.compile(rf"{_PART}(?:\.{_PART}){{0,2}}", re.ASCII)
_C = TypeVar("_C", bound=Connection)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Table:
    """The names of a table and its columns; each row is a resource.

    `fence`, and `step` and `version` if the table has them, are whole numbers as large as a
    BIGINT. Names are spliced into statements: each must be a plain word, or quoted in the
    database's way.
    """

    name: str
    fence: str = "fence"
    version: str | None = None
    """Raised by one with each guarded update."""
    step: str | None = None

    def __post_init__(self) -> None:
        for name in (self.name, self.fence, self.version, self.step):
            if name is not None:
                _checked(name)


def guarded_update(
    connection: Connection,
    table: str | Table,
    key: Mapping[str, object],
    changes: Mapping[str, object],
    fence: int,
    *,
    version: int | None = None,
    step: int | None = None,
    paramstyle: str | None = None,
) -> Outcome:
    """Change a row, unless a higher fence was seen; a single statement compares and writes.

    With `version`, only if the row still has this version. With `step`, only if neither the step
    nor a later step of the same fence was applied. The caller commits.
    """
    columns = Table(table) if isinstance(table, str) else table
    if not changes:
        raise Misuse("an update without changes is a stamp")
    write = _RowWrite(columns, key, changes, fence, version, step)
    return write.make(session_for(connection, paramstyle))


def stamp(
    connection: Connection,
    table: str | Table,
    key: Mapping[str, object],
    fence: int,
    *,
    paramstyle: str | None = None,
) -> Outcome:
    """Raise a row's fence without changing other columns; call right after getting a lease.

    From then on the former holder is refused, even before the new holder has written.
    """
    columns = Table(table) if isinstance(table, str) else table
    return _RowWrite(columns, key, {}, fence).make(session_for(connection, paramstyle))


@contextlib.contextmanager
def guarded(
    connection: _C,
    resource: str,
    fence: int,
    *,
    step: int | None = None,
    table: str = FENCES,
    paramstyle: str | None = None,
) -> Iterator[_C]:
    """A transaction which commits only if the fence is still the highest for the resource.

    The transaction's first statement compares, raises and locks the fence, before the body runs.
    A holder with a higher fence waits until the body has committed; a holder with a lower fence is
    refused. Raises `StaleFence`, or `AlreadyApplied` for a step applied before. An exception in
    the body rolls everything back.

    A body which ends the transaction itself releases the row. The last statement therefore checks
    the row: if the row is not as the first statement left it, writes since then are rolled back.
    """
    session = session_for(connection, paramstyle)
    if session.state in (TransactionState.OPEN, TransactionState.FAILED):
        raise Misuse(
            "the connection is in a transaction already, which would end with the guarded block;"
            " commit it or roll it back first"
        )
    if not 0 < len(resource) <= _LONGEST_RESOURCE:
        raise Misuse(f"a resource's name has 1 to {_LONGEST_RESOURCE} characters: {resource!r}")
    write = _RowWrite(Table(table, step="step"), {"resource": resource}, {}, fence, step=step)

    def raise_fence() -> Outcome:
        # Begin with a write, even if no row is found: in SQLite, a transaction that begins by
        # reading can be refused the lock when it wants to write.
        outcome = write.make(session)
        if not isinstance(outcome, Missing):
            return outcome
        # If two transactions insert at once, the database lets one; the other begins again.
        into = f"INSERT INTO {table} (resource, fence, step) VALUES (?, ?, ?)"  # noqa: S608
        session.change(into, [resource, fence, step or 0])
        return Applied()

    outcome = _begin(session, raise_fence)
    if not isinstance(outcome, Applied):
        session.rollback()
    if isinstance(outcome, Duplicate):
        raise AlreadyApplied(resource, fence=fence, step=step)
    insist(outcome, resource, fence)
    try:
        yield connection
        _check_still_locked(session, write)
        session.commit()
    except BaseException:
        _rollback_quietly(session)
        raise


def stamp_resource(
    connection: Connection,
    resource: str,
    fence: int,
    *,
    table: str = FENCES,
    paramstyle: str | None = None,
) -> Applied | Stale:
    """Raise the fence of a resource of `guarded`; call right after getting a lease."""
    try:
        with guarded(connection, resource, fence, table=table, paramstyle=paramstyle):
            return Applied()
    except StaleFence as refused:
        return Stale(refused.seen)


def create_table(connection: Connection, name: str = FENCES) -> None:
    """Create the table for `guarded` if it does not exist; call where you set up the schema."""
    session = session_for(connection, "qmark")  # there are no parameters
    ddl = _DDL.format(place=f"IF NOT EXISTS {_checked(name)}")
    _begin(session, lambda: session.execute(ddl))
    session.commit()


# One row


@dataclass(frozen=True, slots=True)
class _RowWrite:
    table: Table
    key: Mapping[str, object]
    changes: Mapping[str, object]
    fence: int
    version: int | None = None
    step: int | None = None

    def __post_init__(self) -> None:
        check(self.fence, self.step)
        for name in (*self.key, *self.changes):
            if _checked(name) in _guard_columns(self.table):
                raise Misuse(f"{name} is kept by the guard; it can be neither key nor change")
        if not self.key or any(value is None for value in self.key.values()):
            raise Misuse(f"the key of a row in {self.table.name} needs columns, each with a value")
        for given, column in ((self.version, self.table.version), (self.step, self.table.step)):
            if given is not None and column is None:
                raise Misuse(
                    f"{self.table.name} is not said to have versions or steps;"
                    " name their columns with Table(...)"
                )

    def make(self, session: SqlSession) -> Outcome:
        """Run the statement; if no row was changed, find out why."""
        for _ in range(LOST_RACE.most):
            changed = session.change(*self._statement())
            if changed == 1:
                return Applied(None if self.version is None else self.version + 1)
            if changed > 1:
                raise Misuse(
                    f"{dict(self.key)!r} names {changed} rows of {self.table.name}, not one;"
                    " roll the write back"
                )
            if (refusal := self.refusal(session)) is not None:
                return refusal
        # Either the row changes faster than it can be read, or the driver counts the rows that
        # became different and not the rows that were found. An unknown result is not success.
        raise Unavailable(
            f"no row of {self.table.name} was changed, and nothing stands in the way; if this goes"
            " on, let the driver count the rows that are found (MySQL: CLIENT.FOUND_ROWS)"
        )

    def _statement(self) -> tuple[str, list[object]]:
        """The UPDATE and its values; no row matches if the write must be refused.

        Sets the fence last: in MySQL, later assignments see the values of earlier assignments.
        """
        seen = f"COALESCE({self.table.fence}, 0)"
        parts = [f"{column} = ?" for column in self.changes]
        values = list(self.changes.values())
        if self.table.step is not None and self.step is not None:
            parts.append(f"{self.table.step} = ?")
            values.append(self.step)
        elif self.table.step is not None:
            parts.append(
                f"{self.table.step} = CASE WHEN {seen} < ? THEN 0 ELSE {self.table.step} END"
            )
            values.append(self.fence)
        if self.table.version is not None and self.changes:
            parts.append(f"{self.table.version} = {self.table.version} + 1")
        parts.append(f"{self.table.fence} = ?")
        values.append(self.fence)
        where, sought = self._where()
        values += sought
        if self.step is None:
            allowed = f"{seen} <= ?"
            values.append(self.fence)
        else:
            allowed = f"({seen} < ? OR ({seen} = ? AND COALESCE({self.table.step}, 0) < ?))"
            values += [self.fence, self.fence, self.step]
        if self.version is not None:
            allowed = f"{allowed} AND {self.table.version} = ?"
            values.append(self.version)
        text = f"UPDATE {self.table.name} SET {', '.join(parts)} WHERE {where}"  # noqa: S608
        return f"{text} AND {allowed}", values

    def _where(self) -> tuple[str, list[object]]:
        return " AND ".join(f"{column} = ?" for column in self.key), list(self.key.values())

    def refusal(self, session: SqlSession) -> Outcome | None:
        """Read the row: the reason why the write is refused; None if the write is allowed now."""
        where, sought = self._where()
        columns = _guard_columns(self.table)
        text = f"SELECT {', '.join(columns)} FROM {self.table.name} WHERE {where}"  # noqa: S608
        row = session.row(text, sought)
        if row is None:
            return Missing()
        seen = dict(zip(columns, row, strict=True))
        step = seen[self.table.step] if self.table.step is not None else 0
        mark = Mark(int(seen[self.table.fence] or 0), int(step or 0))
        if (refusal := mark.refusal(self.fence, self.step)) is not None:
            return refusal
        version = self.version if self.table.version is None else seen[self.table.version]
        if self.version is None or self.version == version:
            return None
        return Conflict(other_version(version, self.version))


def _guard_columns(table: Table) -> tuple[str, ...]:
    names = (table.fence, table.version, table.step)
    return tuple(name for name in names if name is not None)


# A block


def _begin(session: SqlSession, first: Callable[[], _T]) -> _T:
    """Begin a transaction with a first statement; begin again if another transaction interfered.

    Where transactions have a snapshot (REPEATABLE READ, SERIALIZABLE), a transaction that waited
    for the row is refused when the row becomes free. No statement was applied yet, so beginning
    again is safe, and the new snapshot has the changes of the other transaction. In each round at
    least one transaction succeeds.
    """
    for left in reversed(range(_BEGINNINGS)):
        session.begin()
        try:
            return first()
        except BaseException as failure:
            _rollback_quietly(session)
            if not left or not may_pass(failure):
                raise
    raise AssertionError("the last beginning returns or raises")


_ENDED = (
    "the guarded block has ended its transaction itself,"
    " so what it wrote after that was not guarded"
)


def _check_still_locked(session: SqlSession, write: _RowWrite) -> None:
    """Raise unless the row is as the block's first statement left it; lock it until the commit.

    Few drivers can distinguish a transaction from the next one: if the body committed and
    continued, only the row shows it. The check is an UPDATE, because an UPDATE sees changes
    committed by other transactions, and locks the row until the commit. Where transactions have a
    snapshot, the database itself raises an error if the row has changed.
    """
    match session.state:
        case TransactionState.IDLE:
            raise Misuse(_ENDED)
        case TransactionState.FAILED:
            raise Misuse(
                "a statement in the guarded block failed and the block went on;"
                " the database has given up the transaction, and nothing of it is applied"
            )
    columns = {"resource": write.key["resource"], "fence": write.fence}
    if write.step is not None:
        columns["step"] = write.step
    where = " AND ".join(f"{column} = ?" for column in columns)
    text = f"UPDATE {write.table.name} SET fence = ? WHERE {where}"  # noqa: S608
    if session.change(text, [write.fence, *columns.values()]) == 1:
        return
    refusal = write.refusal(session)
    if isinstance(refusal, Stale):
        insist(refusal, str(write.key["resource"]), write.fence)
    raise Misuse(_ENDED)


def _rollback_quietly(session: SqlSession) -> None:
    """Roll back after an exception; an error here must not hide that exception.

    If the connection is broken, the server rolls back by itself.
    """
    with contextlib.suppress(Exception):
        session.rollback()


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Misuse(
            f"{name!r} is not a name of a table or column: a plain word, or quoted as the"
            " database quotes names"
        )
    return name
