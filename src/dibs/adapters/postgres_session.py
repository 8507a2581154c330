"""One connection to PostgreSQL: a statement goes out, an answer comes back, in time or not at all.

Decides how an answer is waited for, how several statements make one transaction in one round trip,
and whether the server may keep our plans. Knows no table, tries nothing twice, and tells three
kinds of failure apart, since they call for different things: the server said no, the connection is
gone, or nobody answered.

It speaks through psycopg's wrapper of libpq and not through its cursors, which cannot be given a
deadline for a statement.
"""

import select
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from msgspec import Struct
from psycopg import pq

from dibs.core.ids import LocalTime
from dibs.ports.clock import Clock

Values = Sequence[bytes | None]
Cells = tuple[Any, ...]
"""Of one row: bytes in PostgreSQL's binary form, or None."""
Rows = list[Cells]

_BINARY = pq.Format.BINARY  # times come as numbers, whatever DateStyle and TimeZone are set to
_FINE = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK})
_CANCEL_S = 1.0
_PROBATION = 5
"""So many statements before it is asked whether plans may be kept: a short life never pays."""


class Statement(Struct, frozen=True):
    text: bytes
    name: bytes = b""
    """What the server may keep its plan under. Empty: it is planned every time."""


Step = tuple[Statement, Values]

_WHO = Statement(b"SELECT pg_backend_pid()")
# Said with each transaction, since the role or the database may have another default, under which
# a count would be taken from a snapshot that is older than the turn it waited for.
_BEGIN = Statement(b"BEGIN ISOLATION LEVEL READ COMMITTED")
_COMMIT = Statement(b"COMMIT")


class SessionFailure(Exception):
    """Something that is translated before it leaves the adapter."""


class StatementRefused(SessionFailure):
    """The server understood, and said no. Nothing was changed."""

    def __init__(self, text: str, code: str) -> None:
        self.code = code
        """SQLSTATE: five letters and digits."""
        super().__init__(text)


class SessionLost(SessionFailure):
    """The connection broke. What was asked may have been done or not."""


class Unanswered(SessionFailure):
    """No answer in time. What was asked may be done yet."""


class Session:
    """For one thread at a time."""

    def __init__(self, sql: psycopg.Connection[Any], clock: Clock, patience_s: float) -> None:
        self._sql, self._pg = sql, sql.pgconn
        self._clock, self._patience_s = clock, patience_s
        self._poll = select.poll()
        self._socket = sql.pgconn.socket
        self._awaits = select.POLLIN
        self._poll.register(self._socket, self._awaits)
        self._asked = 0
        self._direct: bool | None = None
        self._kept: set[bytes] = set()
        self.encoding = (self._pg.parameter_status(b"server_encoding") or b"UTF8").decode()
        """What the database keeps text in. A pooler that does not say is believed."""

    @classmethod
    def connect(cls, parameters: Mapping[str, str], clock: Clock, patience_s: float) -> "Session":
        """Raise psycopg.Error, OSError or UnicodeError."""
        sql = psycopg.Connection.connect(
            **parameters,  # type: ignore[arg-type]
            autocommit=True,
            prepare_threshold=None,
        )
        return cls(sql, clock, patience_s)

    @property
    def usable(self) -> bool:
        """Between transactions, as we want to find it."""
        return self._pg.transaction_status == pq.TransactionStatus.IDLE

    @property
    def quiet(self) -> bool:
        """Whether nothing came in while nobody asked: mostly that would be the server's goodbye."""
        return self._awaits == select.POLLIN and not self._poll.poll(0)

    def ask(self, statement: Statement, values: Values = (), *, keep_plan: bool = True) -> Rows:
        until = self._deadline()
        try:
            if keep_plan and (statement.name in self._kept or self._keeps(statement, until)):
                self._pg.send_query_prepared(statement.name, [*values], result_format=_BINARY)
            else:
                self._send(statement, values)
            return _rows(self._answer(until))
        except psycopg.Error as failure:
            raise SessionLost(str(failure)) from failure

    def transact(self, steps: Sequence[Step]) -> Rows:
        """All of it or nothing, in one round trip; the rows of the last step."""
        with self._failing():
            until = self._deadline()
            self._pg.enter_pipeline_mode()
            for statement, values in ((_BEGIN, ()), *steps, (_COMMIT, ())):
                self._send(statement, values)
            self._pg.pipeline_sync()
            answers = self._answers(until)
            self._pg.exit_pipeline_mode()
            for answer in answers:
                self._check(answer)
            return _rows(answers[-2])

    @property
    def direct(self) -> bool:
        """Whether the server at the other end is the one that greeted us.

        A pooler greets each client under a process id of its own making, and may hand its
        statements to a different backend each time: then nothing may be left behind in a session,
        neither a plan nor a LISTEN.
        """
        if self._direct is None:
            with self._failing():
                self._direct = self._meets_its_greeter(self._deadline())
        return self._direct

    def notified(self, seconds: float) -> bool:
        """Wait for a notification; False if there was none in time."""
        until = LocalTime(self._clock.now() + seconds)
        with self._failing():
            while self._pg.notifies() is None:
                try:
                    self._await(select.POLLIN, until)
                except Unanswered:
                    return False
                self._pg.consume_input()
            return True

    def forget_notifications(self) -> None:
        with self._failing():
            self._pg.consume_input()
            while self._pg.notifies() is not None:
                pass

    def cancel(self) -> None:
        """Tell the server not to bother: what waits for a lock would act when we are long gone."""
        if psycopg.capabilities.has_cancel_safe():  # else it would wait without an end itself
            with suppress(psycopg.Error, OSError):
                self._sql.cancel_safe(timeout=_CANCEL_S)

    def close(self) -> None:
        self._sql.close()

    # How it is done

    def _keeps(self, statement: Statement, until: LocalTime) -> bool:
        """Whether the server has kept this statement's plan, now at the latest."""
        self._asked += 1
        if not statement.name or self._asked <= _PROBATION:
            return False
        if self._direct is None:
            self._direct = self._meets_its_greeter(until)
        if self._direct:
            self._pg.send_prepare(statement.name, statement.text)
            self._answer(until)
            self._kept.add(statement.name)
        return self._direct

    def _meets_its_greeter(self, until: LocalTime) -> bool:
        self._send(_WHO, ())
        told = self._answer(until).get_value(0, 0) or b""
        return int.from_bytes(told, "big", signed=True) == self._pg.backend_pid

    def _send(self, statement: Statement, values: Values) -> None:
        # A list, since before 3.3 the compiled wrapper took nothing else.
        self._pg.send_query_params(statement.text, [*values], result_format=_BINARY)

    def _answer(self, until: LocalTime) -> pq.abc.PGresult:
        """The answer to one statement, which is there when libpq has no more of it."""
        self._flush(until)
        last = None
        while (result := self._next(until)) is not None:
            last = result
        if last is None:
            raise SessionLost(self._pg.get_error_message())
        self._check(last)
        return last

    def _answers(self, until: LocalTime) -> list[pq.abc.PGresult]:
        """The answers to a pipeline, up to its end."""
        self._flush(until)
        answers: list[pq.abc.PGresult] = []
        while True:
            result = self._next(until)
            if result is None:
                self._check_alive()
            elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                return answers
            else:
                answers.append(result)

    def _next(self, until: LocalTime) -> pq.abc.PGresult | None:
        while self._pg.is_busy():
            self._await(select.POLLIN, until)
            self._pg.consume_input()
        return self._pg.get_result()

    def _flush(self, until: LocalTime) -> None:
        while self._pg.flush():
            self._await(select.POLLIN | select.POLLOUT, until)
            self._pg.consume_input()  # a server that cannot say anything stops listening

    def _await(self, what: int, until: LocalTime) -> None:
        if what != self._awaits:
            self._poll.modify(self._socket, what)
            self._awaits = what
        left_s = until - self._clock.now()
        if left_s <= 0 or not self._poll.poll(left_s * 1000):
            raise Unanswered(f"no answer within {self._patience_s:g} s")

    def _check(self, result: pq.abc.PGresult) -> None:
        if result.status in _FINE:
            return
        self._check_alive()
        field = pq.DiagnosticField
        text = result.error_field(field.MESSAGE_PRIMARY) or result.error_message
        code = result.error_field(field.SQLSTATE) or b""
        raise StatementRefused(text.decode("utf-8", "replace"), code.decode())

    def _check_alive(self) -> None:
        if self._pg.status == pq.ConnStatus.BAD:
            raise SessionLost(self._pg.get_error_message())

    def _deadline(self) -> LocalTime:
        return LocalTime(self._clock.now() + self._patience_s)

    @contextmanager
    def _failing(self) -> Any:
        """What libpq cannot do any more is a lost connection, whatever it calls it."""
        try:
            yield
        except psycopg.Error as failure:
            raise SessionLost(str(failure)) from failure


def _rows(result: pq.abc.PGresult) -> Rows:
    columns = range(result.nfields)
    return [
        tuple(result.get_value(row, column) for column in columns) for row in range(result.ntuples)
    ]
