"""One interface to the caller's SQL connection: DB-API 2, or SQLAlchemy's.

This module decides how parameters are spelled, how a transaction begins and ends on a connection
that may commit by itself, and after which errors of a first statement the transaction may be begun
again. It imports no driver: it reads the attributes of the connection and of the connection's
module. Errors of the driver are passed on to the caller unchanged.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
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
    """The part of SQLAlchemy's `Connection` used here."""

    @property
    def dialect(self) -> Any: ...
    @property
    def connection(self) -> Any: ...
    def exec_driver_sql(self, statement: str, parameters: Any, /) -> Any: ...
    def begin(self) -> Any: ...
    def in_transaction(self) -> bool: ...
    def get_transaction(self) -> Any: ...


Connection = DbapiConnection | AlchemyConnection


class TransactionState(Enum):
    """The state of a connection's transaction, as reported by the driver."""

    IDLE = "idle"
    OPEN = "open"
    FAILED = "failed"
    UNKNOWN = "unknown"


class SqlSession(Protocol):
    """A connection of any driver. In statements, `?` stands for each value."""

    _paramstyle: str

    def change(self, text: str, values: Sequence[object]) -> int:
        """Run a statement; the number of rows changed."""
        with self._run(*spell(text, values, self._paramstyle)) as result:
            return counted(result.rowcount)

    def row(self, text: str, values: Sequence[object]) -> Sequence[Any] | None:
        """Run a query; the first row, with its values in column order."""
        with self._run(*spell(text, values, self._paramstyle)) as result:
            row = result.fetchone()
        # Some drivers return rows as mappings.
        return None if row is None else tuple(row.values() if isinstance(row, Mapping) else row)

    def execute(self, text: str) -> None:
        with self._run(text):
            pass

    def _run(self, *statement: Any) -> AbstractContextManager[Any]:
        """Run a statement, with or without values; the result is open inside the block."""
        ...

    @property
    def state(self) -> TransactionState: ...

    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


def session_for(connection: Connection, paramstyle: str | None = None) -> SqlSession:
    if isinstance(connection, AlchemyConnection):
        return _Alchemy(connection, paramstyle or connection.dialect.paramstyle)
    return _Dbapi(connection, paramstyle or paramstyle_of(connection))


class _Dbapi(SqlSession):
    def __init__(self, connection: DbapiConnection, paramstyle: str) -> None:
        self._connection, self._paramstyle = connection, paramstyle
        self._explicit = False
        """Whether the transaction was begun with a BEGIN statement of ours."""

    @contextmanager
    def _run(self, *statement: Any) -> Iterator[Any]:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(*statement)
            yield cursor

    @property
    def state(self) -> TransactionState:
        return _state(self._connection)

    def begin(self) -> None:
        """Begin a transaction: with BEGIN if the connection commits by itself.

        Otherwise DB-API opens a transaction with the first statement.
        """
        self._explicit = _commits_by_itself(self._connection)
        if self._explicit:
            self.execute("BEGIN")

    def commit(self) -> None:
        if self._explicit:
            self.execute("COMMIT")
        else:
            self._connection.commit()

    def rollback(self) -> None:
        if self._explicit:
            self.execute("ROLLBACK")
        else:
            self._connection.rollback()


class _Alchemy(SqlSession):
    def __init__(self, connection: AlchemyConnection, paramstyle: str) -> None:
        self._connection, self._paramstyle = connection, paramstyle
        self._transaction: Any = None

    def _run(self, text: str, values: Any = ()) -> AbstractContextManager[Any]:
        return closing(self._connection.exec_driver_sql(text, values))

    @property
    def state(self) -> TransactionState:
        if not self._connection.in_transaction():
            return TransactionState.IDLE
        if self._transaction is None:
            # SQLAlchemy begins a transaction by itself, often before the driver does.
            return TransactionState.OPEN
        if self._connection.get_transaction() is not self._transaction:
            return TransactionState.IDLE  # ours has ended; SQLAlchemy has begun another one since
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
        # This may be another transaction than the one begun here: if the caller ended ours,
        # SQLAlchemy has begun a new one by itself, which must not stay open to be committed later.
        if (open_now := self._connection.get_transaction()) is not None:
            open_now.rollback()


def counted(rowcount: int) -> int:
    """The row count; raises `Misuse` if the driver does not report row counts."""
    if rowcount < 0:
        raise Misuse(
            "the driver does not say how many rows a statement changed, so whether the fenced write"
            " was applied is not known; roll it back"
        )
    return rowcount


# Spelling of parameters


def paramstyle_of(connection: object) -> str:
    """The `paramstyle` of the driver's module: the module of the connection's class or a base."""
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
    """The statement and its values in the driver's paramstyle.

    In `text`, `?` must not occur except as a placeholder.
    """
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


# Attributes of the drivers' connections


def _is_sqlite(raw: object) -> bool:
    return isinstance(getattr(raw, "in_transaction", None), bool)


def _commits_by_itself(raw: object) -> bool:
    get_autocommit = getattr(raw, "get_autocommit", None)  # MySQL's drivers
    if callable(get_autocommit):
        return bool(get_autocommit())
    autocommit = getattr(raw, "autocommit", None)
    if isinstance(autocommit, bool):
        return autocommit
    # sqlite3 before Python 3.12, and later versions in their default setting.
    return _is_sqlite(raw) and getattr(raw, "isolation_level", "") is None


_LIBPQ = {
    0: TransactionState.IDLE,
    1: TransactionState.OPEN,
    2: TransactionState.OPEN,
    3: TransactionState.FAILED,
}


def _state(raw: object) -> TransactionState:
    status = getattr(getattr(raw, "info", None), "transaction_status", None)  # psycopg
    if status is not None:
        return _LIBPQ.get(int(status), TransactionState.UNKNOWN)
    if not _is_sqlite(raw) or getattr(raw, "autocommit", None) is False:
        # With autocommit=False, sqlite3 always has a transaction open.
        return TransactionState.UNKNOWN
    return TransactionState.OPEN if getattr(raw, "in_transaction", False) else TransactionState.IDLE


_TRANSIENT = {
    "40001",  # could not serialize: another transaction was first
    "40P01",  # deadlock
    "23505",  # unique violation: another transaction has just inserted the row
}


def may_pass(failure: BaseException) -> bool:
    """Whether the first statement may succeed if the transaction is begun again."""
    kinds = {kind.__name__ for kind in type(failure).__mro__}
    return "IntegrityError" in kinds or _sqlstate(failure) in _TRANSIENT


def _sqlstate(failure: BaseException) -> str | None:
    """The SQLSTATE code of a driver's error, or of an error wrapped by SQLAlchemy."""
    for error in (failure, getattr(failure, "orig", None)):
        for name in ("sqlstate", "pgcode"):
            if isinstance(code := getattr(error, name, None), str):
                return code
        match getattr(error, "args", ()):
            case ({"C": str(code)}, *_):  # pg8000
                return code
    return None
