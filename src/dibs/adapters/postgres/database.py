"""A PostgreSQL database shared by many machines: connections, second tries, errors.

Decides which connection a thread borrows, when a statement is worth a second try, and which of our
errors each failure is. Leaves nothing in a session that a pooler could hand to somebody else: no
setting, no temporary table, no session lock; a plan only where no pooler is in between. Knows no
table.

Whatever is asked here must be harmless to ask twice: a connection that broke after sitting idle is
replaced and the statement sent again, although the server may have done it already.

One connection to PostgreSQL: a statement goes out, an answer comes back, in time or not at all.

Decides how an answer is waited for, how several statements make one transaction in one round trip,
and whether the server may keep our plans. Knows no table, tries nothing twice, and tells three
kinds of failure apart, since they call for different things: the server said no, the connection is
gone, or nobody answered.

It speaks through psycopg's wrapper of libpq and not through its cursors, which cannot be given a
deadline for a statement.

What the URL of a PostgreSQL store says: where the server is, and how it is reached.

    postgresql://[user[:password]@]host[:port][,host[:port]...]/database[?option=value&...]

Every option of libpq's passes through (`sslmode`, `target_session_attrs`, `host` for a socket's
folder, ...). Two are ours: `namespace`, the schema that keeps several backlogs apart in one
database, and `timeout`, in seconds. Connects to nothing. No error tells more of the URL than may be
shown.
"""

import math
import os
import re
import select
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
from msgspec import Struct
from psycopg import conninfo, pq

from dibs.adapters.system import SystemClock
from dibs.core.errors import BadConfiguration, Damaged, NotPermitted, Outage, Unavailable
from dibs.core.ids import LocalTime
from dibs.ports.system import Clock

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


SCHEMES = ("postgresql", "postgres")
_LONGEST_TIMEOUT_S = 3600.0
_LONGEST_NAME = 63  # bytes; PostgreSQL cuts off what is longer, and two names may become one
_UNREADABLE = (
    "the URL of the PostgreSQL store cannot be read: it has no host, or a port that is no number; "
    "in a password, write / as %2F, ? as %3F, # as %23 and @ as %40"
)


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A URL that makes sense. Its repr shows no secret."""

    name: str
    """Fit for people: no user, no password, no options."""
    namespace: str | None
    """The schema of the tables; None: wherever the role's search path leads."""
    timeout_s: float
    parameters: Mapping[str, str] = field(repr=False)
    """By libpq's names, what we add to them included."""


def parse_postgres_url(url: str) -> PostgresUrl:
    """Raise BadConfiguration for what cannot be meant."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BadConfiguration(_UNREADABLE) from None
    if parts.scheme not in SCHEMES:
        raise BadConfiguration(
            f"{parts.scheme!r} is no scheme of the PostgreSQL store; it has {', '.join(SCHEMES)}"
        )
    # A password with one of / ? # in it is cut there, and its rest must not be taken for a database
    # or an option, and so be shown.
    if parts.fragment or "@" in parts.path + parts.query:
        raise BadConfiguration(_UNREADABLE)
    ours, theirs = _options(parts.query)
    timeout_s = _timeout(ours.get("timeout", "5"))
    told = _libpq(f"postgresql://{parts.netloc}{parts.path}?{theirs}")
    return PostgresUrl(
        name=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}",
        namespace=_namespace(ours.get("namespace")),
        timeout_s=timeout_s,
        parameters={**_defaults(timeout_s, told), **told},
    )


def _options(query: str) -> tuple[dict[str, str], str]:
    """Ours, decoded; and libpq's, as they were written."""
    ours: dict[str, str] = {}
    theirs: list[str] = []
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name in {"namespace", "timeout"}:
            ours[name] = unquote(value)
        elif name in known:
            theirs.append(pair)
        else:
            raise BadConfiguration(
                f"the PostgreSQL store has no option {name!r}; it has namespace, timeout and "
                "those of libpq"
            )
    return ours, "&".join(theirs)


def _libpq(url: str) -> dict[str, str]:
    try:
        told = conninfo.conninfo_to_dict(url)
    except psycopg.Error:  # its text may quote any part of the URL
        raise BadConfiguration(_UNREADABLE) from None
    ports = str(told.get("port") or "")
    if not all(port.isdecimal() for port in ports.split(",") if port):  # libpq looks later
        raise BadConfiguration(_UNREADABLE)
    return {name: str(value) for name, value in told.items() if value is not None}


def _defaults(timeout_s: float, told: Mapping[str, str]) -> dict[str, str]:
    """What we ask for if the URL does not.

    A peer that vanished without a word is found out by keepalives on an idle connection, and by
    the user timeout while something is on its way. Of several servers, only the one that takes
    writes can grant anything.
    """
    several = {"target_session_attrs": "read-write"} if "," in told.get("host", "") else {}
    return {
        "fallback_application_name": "dibs",
        "client_encoding": "UTF8",
        "connect_timeout": str(max(2, math.ceil(timeout_s))),  # libpq takes 1 for 2
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "3",
        "tcp_user_timeout": str(round(timeout_s * 1000)),
        **several,
    }


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_TIMEOUT_S:
        raise BadConfiguration(f"timeout {text!r} of the PostgreSQL store: write seconds, as in 5")
    return seconds


def _namespace(text: str | None) -> str | None:
    if text is None:
        return None
    if not text.isprintable() or not 0 < len(text.encode()) <= _LONGEST_NAME:
        raise BadConfiguration(
            f"namespace {text!r}: it names a schema, of at most {_LONGEST_NAME} bytes"
        )
    return text


_MOST_IDLE = 8
_TRIES = 6

# SQLSTATE, by what is done about it. Two characters name a whole class.
_CONFLICTS = ("40001", "40P01")
"""A stricter isolation than ours, or a deadlock: it was undone, and may be asked again."""
_NO_PLANS = ("26000", "42P05")
"""Our plan is not there, or another client's is: a pooler is in between after all."""
_READ_ONLY = ("25006",)
"""A standby, or a primary that has become one."""
_FORBIDDEN = ("28", "42501")
_PASSING = ("08", "25006", "40", "53200", "53300", "53400", "55", "57")
"""Connections, conflicts, resources, locks, and what an operator did to the server."""
_FULL = ("53100",)
_NOT_THERE = ("3D000", "3F000", "42P01", "42703")

# A refused login carries no code, only the server's words. What is said in another language than
# these is told as Unavailable, with the same words.
_NO_ENTRY = re.compile(
    r"authentication failed|no password supplied|pg_hba\.conf|permission denied|certificate"
    r'|role ".*" (does not exist|is not permitted)|does not support SSL',
    re.IGNORECASE,
)
_NO_DATABASE = re.compile(r'database ".*" does not exist')


class Ear(Struct, frozen=True):
    """A session that hears what is said on its channel, and is used for nothing else."""

    session: Session
    channel: str


class Database:
    """A server and a small stock of connections to it. Threads borrow one per transaction."""

    def __init__(self, url: PostgresUrl, clock: Clock | None = None) -> None:
        self.name = url.name
        self._url = url
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._idle: list[Session] = []
        self._ears: list[Ear] = []
        self._closed = False
        self._pid = os.getpid()
        self._pooled = False
        """A pooler was found out: keep no plans, and listen to nothing."""
        self._strict = False
        """A conflict was told: the default isolation here is not the one we are made for."""

    def ask(self, statement: Statement, values: Values = (), again: Values | None = None) -> Rows:
        """One statement, one transaction, one round trip.

        `again`: what to send instead if it was sent before and nobody knows what came of it.
        """
        return self._insist(((statement, values),), again)

    def transact(self, steps: Sequence[Step]) -> Rows:
        """Several statements, each of which sees what was committed before it began."""
        return self._insist(steps, None)

    @contextmanager
    def listening(self) -> Iterator[Ear | None]:
        """None where nothing can be heard, since a pooler is in between."""
        ear = self._borrow_ear()
        if ear is None:
            yield None
            return
        try:
            yield ear
        except SessionFailure as failure:
            ear.session.close()
            raise self._translate(failure) from failure
        except BaseException:
            ear.session.close()
            raise
        self._give_back_ear(ear)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = [*self._idle, *(ear.session for ear in self._ears)]
            self._idle, self._ears = [], []
        if self._pid == os.getpid():
            for session in idle:
                session.close()

    def __del__(self) -> None:
        self.close()

    # Second tries

    def _insist(self, steps: Sequence[Step], again: Values | None) -> Rows:
        fresh = False
        for _ in range(_TRIES):
            session = self._connect() if fresh else self._borrow()
            try:
                rows = self._say(session, steps)
            except SessionFailure as failure:
                fresh = self._needs_fresh(failure, session, is_fresh=fresh)
                if again is not None and isinstance(failure, SessionLost):
                    steps = ((steps[0][0], again),)
            except BaseException:
                session.close()
                raise
            else:
                self._give_back(session)
                return rows
        raise Unavailable(f"{self.name}: {_TRIES} tries in a row ran into others")

    def _say(self, session: Session, steps: Sequence[Step]) -> Rows:
        if self._strict or len(steps) > 1:
            return session.transact(steps)
        statement, values = steps[0]
        return session.ask(statement, values, keep_plan=not self._pooled)

    def _needs_fresh(self, failure: SessionFailure, session: Session, *, is_fresh: bool) -> bool:
        """Whether the next try needs a new connection. Raise if there is no use in a next try."""
        match failure:
            case StatementRefused():
                self._give_back(session)
                if self._adapts(failure):
                    return is_fresh
                hopeful = failure.code in _READ_ONLY  # another server may be the primary by now
            case Unanswered():
                session.cancel()
                session.close()
                hopeful = False
            case _:
                session.close()
                hopeful = True  # it may have died long ago, while it was idle
        if not hopeful or is_fresh:
            raise self._translate(failure) from failure
        self._drop_idle()  # what broke one has most likely broken all
        return True

    def _adapts(self, failure: StatementRefused) -> bool:
        """Whether it is worth asking again, now that we know what we are dealing with."""
        if failure.code in _CONFLICTS:
            self._strict = True
        elif failure.code in _NO_PLANS:
            self._pooled = True
        else:
            return False
        return True

    # Connections

    def _borrow(self) -> Session:
        with self._lock:
            if self._pid != os.getpid():
                self._leave_to_the_parent()
            while self._idle:
                session = self._idle.pop()
                if session.quiet:
                    return session
                session.close()
        return self._connect()

    def _borrow_ear(self) -> Ear | None:
        with self._lock:
            if self._pid != os.getpid():
                self._leave_to_the_parent()
            if self._ears:
                return self._ears.pop()
        if self._pooled:
            return None
        session = self._connect()
        try:
            if not session.direct:
                self._pooled = True
                session.close()
                return None
            channel = f"dibs_{token_hex(8)}"
            session.ask(Statement(f"LISTEN {channel}".encode()))
        except SessionFailure as failure:
            session.close()
            raise self._translate(failure) from failure
        return Ear(session, channel)

    def _give_back(self, session: Session) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _MOST_IDLE and session.usable:
                self._idle.append(session)
                return
        session.close()

    def _give_back_ear(self, ear: Ear) -> None:
        with self._lock:
            if not self._closed and len(self._ears) < _MOST_IDLE and ear.session.usable:
                self._ears.append(ear)
                return
        ear.session.close()

    def _leave_to_the_parent(self) -> None:
        """After a fork: the connections are not ours, and even closing them would be heard."""
        self._pid, self._idle, self._ears = os.getpid(), [], []

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def _connect(self) -> Session:
        url = self._url
        try:
            session = Session.connect(url.parameters, self._clock, url.timeout_s)
        except (psycopg.Error, OSError, UnicodeError) as failure:
            raise _refused_login(self.name, _first_line(failure)) from failure
        if session.encoding != "UTF8":
            session.close()
            raise Damaged(
                f"{self.name} keeps text as {session.encoding}; names and notes need a database "
                "whose encoding is UTF8"
            )
        return session

    # Errors

    def _translate(self, failure: SessionFailure) -> Outage:
        text = _first_line(failure)
        if not isinstance(failure, StatementRefused):
            return Unavailable(f"{self.name} did not answer ({text})")
        return _refusal(self.name, failure.code, text)


def _refused_login(name: str, text: str) -> Outage:
    if _NO_DATABASE.search(text):
        return Damaged(f"{name} is not there ({text})")
    if _NO_ENTRY.search(text):
        return NotPermitted(f"{name} does not let us in ({text})")
    return Unavailable(f"{name} cannot be reached ({text})")


def _refusal(name: str, code: str, text: str) -> Outage:
    """Which of our errors this is: who must act, and would trying again help."""
    if code.startswith(_FULL):
        return Damaged(f"{name} cannot grow: its disk is full ({text})")
    if code.startswith(_FORBIDDEN):
        return NotPermitted(f"{name} refuses ({text})")
    if code.startswith(_READ_ONLY):
        return Unavailable(f"{name} is read-only now: a standby, or not promoted yet ({text})")
    if code.startswith(_PASSING):
        return Unavailable(f"{name} cannot do it now ({text})")
    if code.startswith(_NOT_THERE):
        return Damaged(f"{name} does not have what dibs made there, or not as it was ({text})")
    return Damaged(f"{name}: PostgreSQL failed ({text}; SQLSTATE {code})")


def _first_line(failure: BaseException) -> str:
    return next(iter(str(failure).splitlines()), type(failure).__name__)
