"""One way to talk to whatever connection the caller has: DB-API 2, or SQLAlchemy's.

Decides how parameters are spelled, how a transaction begins and ends on a connection that may
commit by itself, and which failures of a first statement may pass. Imports no driver: the
connection's own module says what it is. Errors of the driver are the caller's, and go through.
"""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from dibs.core.errors import Misuse


class DbapiConnection(Protocol):
    """PEP 249."""

    def cursor(self) -> Any: ...
    def commit(self) -> Any: ...
    def rollback(self) -> Any: ...


@runtime_checkable
class AlchemyConnection(Protocol):
    """What is used of SQLAlchemy's `Connection`."""

    @property
    def dialect(self) -> Any: ...
    @property
    def connection(self) -> Any: ...
    def exec_driver_sql(self, statement: str, parameters: Any, /) -> Any: ...
    def begin(self) -> Any: ...
    def in_transaction(self) -> bool: ...
    def get_transaction(self) -> Any: ...


Connection = DbapiConnection | AlchemyConnection


class State(Enum):
    """What a driver says of its transaction."""

    IDLE = "idle"
    OPEN = "open"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Session(Protocol):
    """A connection in one tongue: `?` stands for each value."""

    def change(self, text: str, values: Sequence[object]) -> int:
        """How many rows the statement changed."""
        ...

    def row(self, text: str, values: Sequence[object]) -> Sequence[Any] | None: ...
    def say(self, text: str) -> None: ...

    @property
    def state(self) -> State: ...

    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


def session(connection: Connection, paramstyle: str | None = None) -> Session:
    if isinstance(connection, AlchemyConnection):
        return _Alchemy(connection, paramstyle or connection.dialect.paramstyle)
    return _Dbapi(connection, paramstyle or paramstyle_of(connection))


class _Dbapi:
    def __init__(self, connection: DbapiConnection, paramstyle: str) -> None:
        self._connection = connection
        self._paramstyle = paramstyle
        self._said_begin = False

    def change(self, text: str, values: Sequence[object]) -> int:
        with contextlib.closing(self._connection.cursor()) as cursor:
            cursor.execute(*spell(text, values, self._paramstyle))
            return counted(cursor.rowcount)

    def row(self, text: str, values: Sequence[object]) -> Sequence[Any] | None:
        with contextlib.closing(self._connection.cursor()) as cursor:
            cursor.execute(*spell(text, values, self._paramstyle))
            return _in_order(cursor.fetchone())

    @property
    def state(self) -> State:
        return _state(self._connection)

    def begin(self) -> None:
        """DB-API opens a transaction with the first statement, unless it was told not to."""
        self._said_begin = _commits_by_itself(self._connection)
        if self._said_begin:
            self.say("BEGIN")

    def commit(self) -> None:
        if self._said_begin:
            self.say("COMMIT")
        else:
            self._connection.commit()

    def rollback(self) -> None:
        if self._said_begin:
            self.say("ROLLBACK")
        else:
            self._connection.rollback()

    def say(self, text: str) -> None:
        with contextlib.closing(self._connection.cursor()) as cursor:
            cursor.execute(text)


class _Alchemy:
    def __init__(self, connection: AlchemyConnection, paramstyle: str) -> None:
        self._connection = connection
        self._paramstyle = paramstyle
        self._transaction: Any = None

    def change(self, text: str, values: Sequence[object]) -> int:
        result = self._connection.exec_driver_sql(*spell(text, values, self._paramstyle))
        with contextlib.closing(result):
            return counted(result.rowcount)

    def row(self, text: str, values: Sequence[object]) -> Sequence[Any] | None:
        result = self._connection.exec_driver_sql(*spell(text, values, self._paramstyle))
        with contextlib.closing(result):
            return _in_order(result.fetchone())

    def say(self, text: str) -> None:
        self._connection.exec_driver_sql(text, ()).close()

    @property
    def state(self) -> State:
        if not self._connection.in_transaction():
            return State.IDLE
        if self._transaction is None:
            return State.OPEN  # SQLAlchemy begins by itself, often before the driver does
        if self._connection.get_transaction() is not self._transaction:
            return State.IDLE  # ours is over; this is one that SQLAlchemy has begun since
        return _state(self._connection.connection.driver_connection)

    def begin(self) -> None:
        if _commits_by_itself(self._connection.connection.driver_connection):
            raise Misuse(
                "the connection commits every statement by itself (isolation level AUTOCOMMIT),"
                " so a check and the writes after it would not be one step"
            )
        self._transaction = self._connection.begin()

    def commit(self) -> None:
        self._transaction.commit()
        self._transaction = None

    def rollback(self) -> None:
        self._transaction = None
        # Not always the one that was begun here: others may have ended that, and SQLAlchemy has
        # then begun another by itself, which must not be left for somebody to commit.
        if (open_now := self._connection.get_transaction()) is not None:
            open_now.rollback()


def counted(rowcount: int) -> int:
    if rowcount < 0:
        raise Misuse(
            "the driver does not say how many rows a statement changed, so whether the fenced write"
            " was applied is not known; roll it back"
        )
    return rowcount


def _in_order(row: Any) -> Sequence[Any] | None:
    """The values of a row in the order of its columns, also where rows come as mappings."""
    if row is None:
        return None
    return tuple(row.values()) if isinstance(row, Mapping) else tuple(row)


# How parameters are spelled


def paramstyle_of(connection: object) -> str:
    """As the module says that the connection's class, or one that it extends, comes from."""
    for kind in type(connection).__mro__:
        name = kind.__module__
        while name:
            style = getattr(sys.modules.get(name), "paramstyle", None)
            if isinstance(style, str):
                return style
            name = name.rpartition(".")[0]
    raise Misuse(
        f"the driver of {type(connection).__module__}.{type(connection).__qualname__} does not say"
        " how it spells parameters; say it with paramstyle="
    )


def spell(text: str, values: Sequence[object], paramstyle: str) -> tuple[str, Any]:
    """The statement and its values as the driver wants them. `?` occurs as placeholder only."""
    spelling = {
        "qmark": "?",
        "format": "%s",
        "numeric": ":{0}",
        "numeric_dollar": "${0}",
        "named": ":v{0}",
        "pyformat": "%(v{0})s",
    }.get(paramstyle)
    if spelling is None:
        raise Misuse(f"there is no paramstyle {paramstyle!r}")
    first, *rest = text.split("?")
    spelled = first + "".join(
        spelling.format(place) + part for place, part in enumerate(rest, start=1)
    )
    if paramstyle in ("named", "pyformat"):
        return spelled, {f"v{place}": value for place, value in enumerate(values, start=1)}
    return spelled, tuple(values)


# What drivers say of themselves


def _is_sqlite(raw: object) -> bool:
    return isinstance(getattr(raw, "in_transaction", None), bool)


def _commits_by_itself(raw: object) -> bool:
    ask = getattr(raw, "get_autocommit", None)  # MySQL's drivers
    if callable(ask):
        return bool(ask())
    told = getattr(raw, "autocommit", None)
    if isinstance(told, bool):
        return told
    # Before Python 3.12, and after it unless told otherwise, this is how sqlite3 says it.
    return _is_sqlite(raw) and getattr(raw, "isolation_level", "") is None


_LIBPQ = {0: State.IDLE, 1: State.OPEN, 2: State.OPEN, 3: State.FAILED}


def _state(raw: object) -> State:
    status = getattr(getattr(raw, "info", None), "transaction_status", None)  # psycopg
    if status is not None:
        return _LIBPQ.get(int(status), State.UNKNOWN)
    if not _is_sqlite(raw) or getattr(raw, "autocommit", None) is False:
        return State.UNKNOWN  # sqlite3 told to keep a transaction open at all times tells nothing
    return State.OPEN if getattr(raw, "in_transaction", False) else State.IDLE


_PASSING = {
    "40001",  # could not serialize: another transaction was there first
    "40P01",  # deadlock
    "23505",  # unique violation: another has just made the row
}


def may_pass(failure: BaseException) -> bool:
    """Whether the first statement of a transaction may succeed if all of it begins anew."""
    kinds = {kind.__name__ for kind in type(failure).__mro__}
    return "IntegrityError" in kinds or _sqlstate(failure) in _PASSING


def _sqlstate(failure: BaseException) -> str | None:
    for told in (failure, getattr(failure, "orig", None)):  # SQLAlchemy wraps the driver's
        for name in ("sqlstate", "pgcode"):
            if isinstance(code := getattr(told, name, None), str):
                return code
        match getattr(told, "args", ()):
            case ({"C": str(code)}, *_):  # pg8000
                return code
    return None
