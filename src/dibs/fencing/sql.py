"""Fenced writes in a SQL database, over any DB-API 2 or SQLAlchemy connection.

Two ways. A table with a `fence` column is written with one guarded statement: `guarded_update`. Any
other tables are written in a block that first raises the resource's fence in a small table beside
them, and so holds its row until all of it commits together: `guarded`.

`guarded_update` and `stamp` run in the caller's transaction, which the caller ends. `guarded`,
`stamp_resource` and `create_table` have a transaction of their own.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from dibs.core.errors import Misuse, Unavailable
from dibs.fencing.connections import Connection, Session, State, may_pass, session
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
"""The small table that `guarded` keeps, unless told another."""

_DDL = """
CREATE TABLE {place} (
    resource VARCHAR(255) NOT NULL PRIMARY KEY,
    fence BIGINT NOT NULL,
    step BIGINT NOT NULL
)
"""
_LONGEST_RESOURCE = 255
_LOOKS = 3
_BEGINNINGS = 100
_PART = r'(?:[A-Za-z_][\w$]*|"[\w $-]+"|`[\w $-]+`|\[[\w $-]+\])'
_NAME = re.compile(rf"{_PART}(?:\.{_PART}){{0,2}}", re.ASCII)
_C = TypeVar("_C", bound=Connection)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose rows are resources, by the names of its columns.

    `fence`, and `step` and `version` if it has them, are whole numbers as large as a BIGINT. A name
    is spliced into statements, so it is a plain word, or quoted as the database quotes names.
    """

    name: str
    fence: str = "fence"
    version: str | None = None
    """Rises by one with each guarded update."""
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
    """Change one row, if no higher fence has: the comparison and the write are one statement.

    With `version`, only if the row still has the version that the caller read. With `step`, only
    if that step of this fence has not been applied. The caller commits.
    """
    kept = Table(table) if isinstance(table, str) else table
    if not changes:
        raise Misuse("an update without changes is a stamp")
    write = _Write(kept, key, changes, fence, version, step)
    return write.make(session(connection, paramstyle))


def stamp(
    connection: Connection,
    table: str | Table,
    key: Mapping[str, object],
    fence: int,
    *,
    paramstyle: str | None = None,
) -> Outcome:
    """Raise a row's fence and change nothing else: right after the lease was granted.

    From then on the holder before is refused, even while the new one has not written yet.
    """
    kept = Table(table) if isinstance(table, str) else table
    return _Write(kept, key, {}, fence).make(session(connection, paramstyle))


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
    """A transaction that commits only under a fence that is still the highest for the resource.

    The fence is compared, raised and locked by the transaction's first statement, before the body
    runs, so whoever comes with a higher one waits until the body has committed, and whoever comes
    with a lower one is refused. Raises `StaleFence`, or `AlreadyApplied` for a step that was
    applied before. An exception in the body rolls everything back.

    A body that ends the transaction itself lets go of the row. So the last statement finds the row
    as the first one left it, or what the body wrote after that is rolled back.
    """
    asked = session(connection, paramstyle)
    if asked.state in (State.OPEN, State.FAILED):
        raise Misuse(
            "the connection is in a transaction already, which would end with the guarded block;"
            " commit it or roll it back first"
        )
    write = _enter(asked, table, resource, fence, step)
    try:
        yield connection
        _still_there(asked)
        _still_held(asked, write)
        asked.commit()
    except BaseException:
        _give_up(asked)
        raise


def stamp_resource(
    connection: Connection,
    resource: str,
    fence: int,
    *,
    table: str = FENCES,
    paramstyle: str | None = None,
) -> Applied | Stale:
    """Raise the fence of a resource that `guarded` guards: right after the lease was granted."""
    try:
        with guarded(connection, resource, fence, table=table, paramstyle=paramstyle):
            return Applied()
    except StaleFence as refused:
        return Stale(refused.seen)


def create_table(connection: Connection, name: str = FENCES) -> None:
    """Make the table that `guarded` keeps, if it is not there: where the schema is set up."""
    asked = session(connection, "qmark")  # there are no parameters
    ddl = _DDL.format(place=f"IF NOT EXISTS {_checked(name)}")
    _begin(asked, lambda: asked.say(ddl))
    asked.commit()


# One row


@dataclass(frozen=True, slots=True)
class _Write:
    """A guarded change of one row, and what it is told."""

    table: Table
    key: Mapping[str, object]
    changes: Mapping[str, object]
    fence: int
    version: int | None = None
    step: int | None = None

    def __post_init__(self) -> None:
        check(self.fence, self.step)
        for name in (*self.key, *self.changes):
            if _checked(name) in _kept(self.table):
                raise Misuse(f"{name} is kept by the guard; it can be neither key nor change")
        if not self.key or any(value is None for value in self.key.values()):
            raise Misuse(f"the key of a row in {self.table.name} needs columns, each with a value")
        for given, column in ((self.version, self.table.version), (self.step, self.table.step)):
            if given is not None and column is None:
                raise Misuse(
                    f"{self.table.name} is not said to have versions or steps;"
                    " name their columns with Table(...)"
                )

    def make(self, asked: Session) -> Outcome:
        for _ in range(_LOOKS):
            changed = asked.change(*self._statement())
            if changed == 1:
                return Applied(None if self.version is None else self.version + 1)
            if changed > 1:
                raise Misuse(
                    f"{dict(self.key)!r} names {changed} rows of {self.table.name}, not one;"
                    " roll the write back"
                )
            if (told := self.refusal(asked)) is not None:
                return told
        # Either the row changes faster than it can be looked at, or the driver counts rows that
        # became different and not rows that were found. Not knowing is not success.
        raise Unavailable(
            f"no row of {self.table.name} was changed, and nothing stands in the way; if this goes"
            " on, let the driver count the rows that are found (MySQL: CLIENT.FOUND_ROWS)"
        )

    def _statement(self) -> tuple[str, list[object]]:
        """The one statement. Sets the fence last: MySQL lets later parts see what earlier set."""
        known = f"COALESCE({self.table.fence}, 0)"
        parts = [f"{column} = ?" for column in self.changes]
        values = list(self.changes.values())
        if self.table.step is not None and self.step is not None:
            parts.append(f"{self.table.step} = ?")
            values.append(self.step)
        elif self.table.step is not None:
            parts.append(
                f"{self.table.step} = CASE WHEN {known} < ? THEN 0 ELSE {self.table.step} END"
            )
            values.append(self.fence)
        if self.table.version is not None and self.changes:
            parts.append(f"{self.table.version} = {self.table.version} + 1")
        parts.append(f"{self.table.fence} = ?")
        values.append(self.fence)
        where, sought = self._where()
        text = f"UPDATE {self.table.name} SET {', '.join(parts)} WHERE {where}"  # noqa: S608
        return f"{text} AND {self._unless_refused(known)}", [*values, *sought, *self._limits()]

    def _where(self) -> tuple[str, list[object]]:
        return " AND ".join(f"{column} = ?" for column in self.key), list(self.key.values())

    def _unless_refused(self, known: str) -> str:
        if self.step is None:
            allowed = f"{known} <= ?"
        else:
            allowed = f"({known} < ? OR ({known} = ? AND COALESCE({self.table.step}, 0) < ?))"
        return allowed if self.version is None else f"{allowed} AND {self.table.version} = ?"

    def _limits(self) -> list[object]:
        limits = [self.fence] if self.step is None else [self.fence, self.fence, self.step]
        return [*limits] if self.version is None else [*limits, self.version]

    def refusal(self, asked: Session) -> Outcome | None:
        """Why no row was changed. None if nothing stands in the way (any more)."""
        where, sought = self._where()
        kept = _kept(self.table)
        text = f"SELECT {', '.join(kept)} FROM {self.table.name} WHERE {where}"  # noqa: S608
        row = asked.row(text, sought)
        if row is None:
            return Missing()
        seen = dict(zip(kept, row, strict=True))
        step = seen[self.table.step] if self.table.step is not None else 0
        mark = Mark(int(seen[self.table.fence] or 0), int(step or 0))
        if (told := mark.refusal(self.fence, self.step)) is not None:
            return told
        if self.table.version is not None and self.version is not None:
            version = seen[self.table.version]
            return (
                None if version == self.version else Conflict(other_version(version, self.version))
            )
        return None


def _kept(table: Table) -> tuple[str, ...]:
    names = (table.fence, table.version, table.step)
    return tuple(name for name in names if name is not None)


# A block


def _enter(asked: Session, table: str, resource: str, fence: int, step: int | None) -> _Write:
    """Begin, and hold the resource's row under this fence; or raise, with nothing begun."""
    if not 0 < len(resource) <= _LONGEST_RESOURCE:
        raise Misuse(f"a resource's name has 1 to {_LONGEST_RESOURCE} characters: {resource!r}")
    write = _Write(Table(table, step="step"), {"resource": resource}, {}, fence, step=step)
    told = _begin(asked, lambda: _raise_fence(asked, write))
    if not isinstance(told, Applied):
        asked.rollback()
        if isinstance(told, Duplicate):
            raise AlreadyApplied(resource, fence=fence, step=step)
        insist(told, resource, fence)
    return write


def _raise_fence(asked: Session, write: _Write) -> Outcome:
    # A write comes first, even if it may find no row: a SQLite transaction that begins by reading
    # can be refused the lock when it wants to write.
    told = write.make(asked)
    if not isinstance(told, Missing):
        return told
    # Of two that insert at once the database lets one, and the other begins anew and updates.
    values = [write.key["resource"], write.fence, write.step or 0]
    into = f"INSERT INTO {write.table.name} (resource, fence, step) VALUES (?, ?, ?)"  # noqa: S608
    asked.change(into, values)
    return Applied()


def _begin(asked: Session, first: Callable[[], _T]) -> _T:
    """Begin a transaction with a first statement, and again if another was in the way.

    Where transactions have a snapshot (REPEATABLE READ, SERIALIZABLE), whoever waited for the row
    is refused when it gets it. Nothing has been done yet, so beginning anew is right, with a
    snapshot that knows what the other did. Somebody gets through each time.
    """
    for left in reversed(range(_BEGINNINGS)):
        asked.begin()
        try:
            return first()
        except BaseException as failure:
            _give_up(asked)
            if not left or not may_pass(failure):
                raise
    raise AssertionError("the last beginning returns or raises")


_ENDED = (
    "the guarded block has ended its transaction itself,"
    " so what it wrote after that was not guarded"
)


def _still_there(asked: Session) -> None:
    """The transaction that holds the row must be the one that is about to commit."""
    match asked.state:
        case State.IDLE:
            raise Misuse(_ENDED)
        case State.FAILED:
            raise Misuse(
                "a statement in the guarded block failed and the block went on;"
                " the database has given up the transaction, and nothing of it is applied"
            )


def _still_held(asked: Session, write: _Write) -> None:
    """The row must be as this block left it, and stay so until the commit that comes next.

    Few drivers tell one transaction from the next, so a body that has committed and gone on shows
    only here. It is a write, because that meets what others have committed by now and holds it:
    where transactions have a snapshot, a row that has changed since is the database's own error.
    """
    columns = {"resource": write.key["resource"], "fence": write.fence}
    if write.step is not None:
        columns["step"] = write.step
    where = " AND ".join(f"{column} = ?" for column in columns)
    text = f"UPDATE {write.table.name} SET fence = ? WHERE {where}"  # noqa: S608
    if asked.change(text, [write.fence, *columns.values()]) == 1:
        return
    told = write.refusal(asked)
    if isinstance(told, Stale):
        insist(told, str(write.key["resource"]), write.fence)
    raise Misuse(_ENDED)


def _give_up(asked: Session) -> None:
    # The exception that led here is the one to see; a connection that is gone is rolled back by
    # its server.
    with contextlib.suppress(Exception):
        asked.rollback()


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Misuse(
            f"{name!r} is not a name of a table or column: a plain word, or quoted as the"
            " database quotes names"
        )
    return name
