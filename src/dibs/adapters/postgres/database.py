"""A PostgreSQL database that many machines share: its URL, its sessions, retries and errors.

    postgresql://[user[:password]@]host[:port][,host[:port]...]/database[?option=value&...]

libpq gets every option that it knows (`sslmode`, `target_session_attrs`, `host` for a socket's
folder, ...). Two options are dibs' own: `namespace`, the schema that keeps several backlogs apart
in one database, and `timeout`, in seconds. Reading a URL opens no connection. No error text shows a
secret part of the URL. A server on another machine must prove who it is (`sslmode=verify-full`),
unless the URL, the environment or a service file chooses another mode: left to itself, libpq gives
the password in clear text to every server that wants no TLS.

A `PostgresSession` is one connection. It waits for each answer until a deadline, sends several
statements as one transaction in one round trip, and decides whether the server may keep plans. It
repeats nothing, and tells three failures apart because each needs a different reaction: the server
refused, the connection broke, or no answer came in time. It speaks through psycopg's wrapper of
libpq and not through its cursors, because a cursor cannot be given a deadline for a statement.

A `PostgresDatabase` decides which session a thread borrows, which statements are tried again, and
which error of dibs each failure becomes. It leaves nothing in a session that a pooler could hand to
another client: no setting, no temporary table, no session lock; a plan only where no pooler is in
between.

Every statement that is asked here must be harmless to ask twice: if a connection breaks after it
sat idle, the statement is sent again on a new connection, although the server may have executed it
already. Knows no table.
"""

import math
import os
import re
import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import unquote

import psycopg
from msgspec import Struct
from psycopg import conninfo, pq

from dibs.adapters.system import IdlePool, SystemClock
from dibs.core.durations import LOST_RACE
from dibs.core.errors import BadConfiguration, Damaged, NotPermitted, Outage, Unavailable
from dibs.core.ids import LocalTime
from dibs.core.references import seconds_in, split_url, this_machine
from dibs.ports.system import Clock

Values = Sequence[bytes | None]
Cells = tuple[Any, ...]
"""The cells of one row: bytes in PostgreSQL's binary format, or None."""
Rows = list[Cells]

_BINARY = pq.Format.BINARY  # times are numbers then, under any DateStyle and TimeZone
_FINE = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK})
_CANCEL_S = 1.0
_PROBATION = 5
"""A session asks so many statements before it checks for a pooler and keeps plans: for a short
session the check would cost more than the plans save."""


class Statement(Struct, frozen=True):
    text: bytes
    name: bytes = b""
    """The name under which the server may keep the plan. Empty: plan the statement every time."""


Step = tuple[Statement, Values]

_BACKEND_PID = Statement(b"SELECT pg_backend_pid()")
# Every transaction names its isolation level, because the role or the database may have another
# default. Under a stricter level the snapshot of a count would be older than the turn that the
# transaction waited for.
_BEGIN = Statement(b"BEGIN ISOLATION LEVEL READ COMMITTED")
_COMMIT = Statement(b"COMMIT")


class SessionFailure(Exception):
    """A failure of a session, before `PostgresDatabase` translates it."""


class StatementRefused(SessionFailure):
    """The server answered with an error. The statement changed no data."""

    def __init__(self, text: str, code: str) -> None:
        self.code = code
        """The SQLSTATE: five letters and digits."""
        super().__init__(text)


class SessionLost(SessionFailure):
    """The connection broke. The server may have executed the statement or not."""


class Unanswered(SessionFailure):
    """No answer came in time. The server may still execute the statement."""


class PostgresSession:
    """A connection to the server, for a single thread at a time."""

    def __init__(self, parameters: Mapping[str, str], clock: Clock, patience_s: float) -> None:
        """Raise psycopg.Error, OSError or UnicodeError if the server cannot be reached."""
        sql: psycopg.Connection[Any] = psycopg.Connection.connect(
            **parameters,  # type: ignore[arg-type]
            autocommit=True,
            prepare_threshold=None,
        )
        self._sql, self._pg = sql, sql.pgconn
        self._clock, self._patience_s = clock, patience_s
        self._poll = select.poll()
        self._socket = sql.pgconn.socket
        self._awaits = select.POLLIN
        self._poll.register(self._socket, self._awaits)
        self._unprepared_asks = 0
        self._direct: bool | None = None
        self._prepared: set[bytes] = set()
        self.channel = ""
        self.encoding = (self._pg.parameter_status(b"server_encoding") or b"UTF8").decode()
        """The encoding of the database. UTF8 is assumed if a pooler does not report it."""

    @property
    def usable(self) -> bool:
        """Whether the session is idle between transactions."""
        return self._pg.transaction_status == pq.TransactionStatus.IDLE

    @property
    def quiet(self) -> bool:
        """Whether no unread data waits. Unread data mostly announces that the server closes."""
        return self._awaits == select.POLLIN and not self._poll.poll(0)

    def ask(self, statement: Statement, values: Values = (), *, keep_plan: bool = True) -> Rows:
        """Execute a statement. If plans may be kept, a named statement is prepared only once."""
        until = self._deadline()
        with self._broken_as_lost():
            prepared = keep_plan and statement.name in self._prepared
            if keep_plan and not prepared:
                self._unprepared_asks += 1
                if statement.name and self._unprepared_asks > _PROBATION:
                    if self._direct is None:
                        self._direct = self._same_backend(until)
                    if self._direct:
                        self._pg.send_prepare(statement.name, statement.text)
                        self._answer(until)
                        self._prepared.add(statement.name)
                        prepared = True
            if prepared:
                self._pg.send_query_prepared(statement.name, [*values], result_format=_BINARY)
            else:
                self._send(statement, values)
            return _rows(self._answer(until))

    def transact(self, steps: Sequence[Step]) -> Rows:
        """Execute all steps or none, in a single round trip. Returns the rows of the last step."""
        with self._broken_as_lost():
            until = self._deadline()
            self._pg.enter_pipeline_mode()
            for statement, values in ((_BEGIN, ()), *steps, (_COMMIT, ())):
                self._send(statement, values)
            self._pg.pipeline_sync()
            self._flush(until)
            answers: list[pq.abc.PGresult] = []
            while True:
                result = self._next(until)
                if result is None:
                    self._check_alive()
                elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                    break
                else:
                    answers.append(result)
            self._pg.exit_pipeline_mode()
            for answer in answers:
                self._check(answer)
            return _rows(answers[-2])

    @property
    def direct(self) -> bool:
        """Whether the connection leads to a single server process, with no pooler in between.

        A pooler greets each client with a process id that it made up, and may hand each statement
        to a different backend. The session must then leave neither a plan nor a LISTEN behind.
        """
        if self._direct is None:
            with self._broken_as_lost():
                self._direct = self._same_backend(self._deadline())
        return self._direct

    def listen(self) -> None:
        """Listen on a channel of this session alone. The session then runs no other statement."""
        self.channel = f"dibs_{token_hex(8)}"
        self.ask(Statement(f"LISTEN {self.channel}".encode()))

    def notified(self, seconds: float) -> bool:
        """Wait for a notification; False if none arrives in time."""
        until = LocalTime(self._clock.now() + seconds)
        with self._broken_as_lost():
            while self._pg.notifies() is None:
                try:
                    self._await(select.POLLIN, until)
                except Unanswered:
                    return False
                self._pg.consume_input()
            return True

    def forget_notifications(self) -> None:
        with self._broken_as_lost():
            self._pg.consume_input()
            while self._pg.notifies() is not None:
                pass

    def cancel(self) -> None:
        """Cancel the running statement. A statement that waits for a lock could act much later."""
        if psycopg.capabilities.has_cancel_safe():  # an older cancel has no timeout
            with suppress(psycopg.Error, OSError):
                self._sql.cancel_safe(timeout=_CANCEL_S)

    def close(self) -> None:
        self._sql.close()

    def _same_backend(self, until: LocalTime) -> bool:
        """Whether the process that answers has the process id from the connection's greeting."""
        self._send(_BACKEND_PID, ())
        pid = self._answer(until).get_value(0, 0) or b""
        return int.from_bytes(pid, "big", signed=True) == self._pg.backend_pid

    def _send(self, statement: Statement, values: Values) -> None:
        # A list, because psycopg's compiled wrapper took nothing else before 3.3.
        self._pg.send_query_params(statement.text, [*values], result_format=_BINARY)

    def _answer(self, until: LocalTime) -> pq.abc.PGresult:
        """The answer to a statement: the last result before libpq reports the end."""
        self._flush(until)
        last = None
        while (result := self._next(until)) is not None:
            last = result
        if last is None:
            raise SessionLost(self._pg.get_error_message())
        self._check(last)
        return last

    def _next(self, until: LocalTime) -> pq.abc.PGresult | None:
        while self._pg.is_busy():
            self._await(select.POLLIN, until)
            self._pg.consume_input()
        return self._pg.get_result()

    def _flush(self, until: LocalTime) -> None:
        while self._pg.flush():
            self._await(select.POLLIN | select.POLLOUT, until)
            self._pg.consume_input()  # a server that cannot send stops receiving

    def _await(self, events: int, until: LocalTime) -> None:
        """Wait until the socket is ready for one of the events. Raise Unanswered at `until`."""
        if events != self._awaits:
            self._poll.modify(self._socket, events)
            self._awaits = events
        left_s = until - self._clock.now()
        if left_s <= 0 or not self._poll.poll(left_s * 1000):
            raise Unanswered(f"no answer within {self._patience_s:g} s")

    def _check(self, result: pq.abc.PGresult) -> None:
        """Raise StatementRefused, or SessionLost if the error came with a broken connection."""
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
    def _broken_as_lost(self) -> Any:
        """Any error of libpq's own calls means that the connection is lost."""
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
_LONGEST_NAME = 63  # bytes; PostgreSQL cuts longer names off, and two names may become equal
_UNREADABLE = (
    "the URL of the PostgreSQL store cannot be read: it has no host, or a port that is no number; "
    "in a password, write / as %2F, ? as %3F, # as %23 and @ as %40"
)


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A URL that was checked. The repr shows no secret."""

    name: str
    """For messages: without user, password and options."""
    namespace: str | None
    """The schema of the tables; None: the schema that the role's search path leads to."""
    timeout_s: float
    parameters: Mapping[str, str] = field(repr=False)
    """The parameters by libpq's names, with dibs' defaults."""
    must_prove_itself: bool = False
    """Whether dibs demands a certificate of the server: nobody chose an `sslmode`."""


def parse_postgres_url(url: str) -> PostgresUrl:
    """Raise BadConfiguration if a part of the URL is unknown, missing or out of range.

    The defaults find out a peer that vanished: keepalives on an idle connection, the user timeout
    while data is on its way. If the URL names several servers, only the server that accepts writes
    can grant.
    """
    parts = split_url(url, _UNREADABLE)
    if parts.scheme not in SCHEMES:
        raise BadConfiguration(
            f"{parts.scheme!r} is no scheme of the PostgreSQL store; it has {', '.join(SCHEMES)}"
        )
    namespace, timeout_s, options = _parse_options(parts.query)
    try:
        given = conninfo.conninfo_to_dict(f"postgresql://{parts.netloc}{parts.path}?{options}")
    except psycopg.Error:  # its text may quote any part of the URL
        raise BadConfiguration(_UNREADABLE) from None
    ports = str(given.get("port") or "")
    if not all(port.isdecimal() for port in ports.split(",") if port):  # libpq checks them later
        raise BadConfiguration(_UNREADABLE)
    if namespace is not None and not (
        namespace.isprintable() and 0 < len(namespace.encode()) <= _LONGEST_NAME
    ):
        raise BadConfiguration(
            f"namespace {namespace!r}: it names a schema, of at most {_LONGEST_NAME} bytes"
        )
    parameters = {
        "fallback_application_name": "dibs",
        "client_encoding": "UTF8",
        "connect_timeout": str(max(2, math.ceil(timeout_s))),  # libpq takes 1 for 2
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "3",
        "tcp_user_timeout": str(round(timeout_s * 1000)),
    }
    if "," in str(given.get("host") or ""):
        parameters["target_session_attrs"] = "read-write"
    parameters |= {name: str(value) for name, value in given.items() if value is not None}
    demanded = demanded_proof(parameters, os.environ)
    return PostgresUrl(
        name=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}",
        namespace=namespace,
        timeout_s=timeout_s,
        parameters=parameters | demanded,
        must_prove_itself=bool(demanded),
    )


_ROOTS_OF_THE_SYSTEM = 160000
"""The first version of libpq that knows `sslrootcert=system`."""


def demanded_proof(given: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The options by which a server must prove its name; none for a server on this machine.

    None also if the operator chose a mode, in libpq's order: URL, service file, environment.
    """
    from configparser import ConfigParser, Error

    variables = {"host": "PGHOST", "hostaddr": "PGHOSTADDR", "service": "PGSERVICE"}
    variables |= {"sslmode": "PGSSLMODE", "sslrootcert": "PGSSLROOTCERT"}
    chosen = {name: environment[key] for name, key in variables.items() if environment.get(key)}
    service = given.get("service") or chosen.get("service", "")
    users = Path(environment.get("PGSERVICEFILE", "~/.pg_service.conf")).expanduser()
    systems = Path(environment.get("PGSYSCONFDIR", "/etc/postgresql-common"), "pg_service.conf")
    for file in (users, systems) if service else ():
        services = ConfigParser(interpolation=None, delimiters=("=",), strict=False)
        with suppress(OSError, Error, UnicodeError):
            services.read(file, "utf-8")
        if services.has_section(service):
            chosen |= services[service]
            break
    chosen |= given
    hosts = chosen.get("hostaddr") or chosen.get("host") or ""
    if "sslmode" in chosen or all(this_machine(host.strip()) for host in hosts.split(",")):
        return {}
    own_roots = Path("~/.postgresql/root.crt").expanduser().exists() or "sslrootcert" in chosen
    if own_roots or pq.version() < _ROOTS_OF_THE_SYSTEM:
        return {"sslmode": "verify-full"}
    return {"sslmode": "verify-full", "sslrootcert": "system"}


def _parse_options(query: str) -> tuple[str | None, float, str]:
    """The namespace, the timeout, and libpq's options as they were written."""
    own: dict[str, str] = {}
    libpq_options: list[str] = []
    libpq_names = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name in {"namespace", "timeout"}:
            own[name] = unquote(value)
        elif name in libpq_names:
            libpq_options.append(pair)
        else:
            raise BadConfiguration(
                f"the PostgreSQL store has no option {name!r}; it has namespace, timeout and "
                "those of libpq"
            )
    timeout = own.get("timeout", "5")
    wrong = f"timeout {timeout!r} of the PostgreSQL store: write seconds, as in 5"
    seconds = seconds_in(timeout, _LONGEST_TIMEOUT_S, wrong)
    return own.get("namespace"), seconds, "&".join(libpq_options)


_MOST_IDLE = 8

# SQLSTATEs, grouped by how dibs reacts. Two characters name a whole class.
_CONFLICTS = ("40001", "40P01")
"""The isolation is stricter than expected, or a deadlock: undone by the server, may be retried."""
_NO_PLANS = ("26000", "42P05")
"""The backend lacks our plan, or has another client's: so a pooler is in between after all."""
_READ_ONLY = ("25006",)
"""The server is a standby, or a primary that was demoted."""
_FORBIDDEN = ("28", "42501")
_PASSING = ("08", "25006", "40", "53200", "53300", "53400", "55", "57")
"""Failures that pass: connections, conflicts, resources, locks, an operator's intervention."""
_FULL = ("53100",)
_NOT_THERE = ("3D000", "3F000", "42P01", "42703")

# A refused login carries no SQLSTATE, only the server's text. A text in another language than
# English becomes Unavailable, and the error quotes it.
_NO_ENTRY = re.compile(
    r"authentication failed|no password supplied|pg_hba\.conf|permission denied|certificate"
    r'|role ".*" (does not exist|is not permitted)|does not support SSL',
    re.IGNORECASE,
)
_NO_PROOF = re.compile(r"certificate|SSL|TLS")
_HOW_TO_PROVE = (
    "off this machine dibs asks for sslmode=verify-full: name the authority's certificate with "
    "sslrootcert=FILE in the URL, or choose a weaker sslmode there; see docs/stores/postgres.md"
)
_NO_DATABASE = re.compile(r'database ".*" does not exist')


class PostgresDatabase:
    """A server and a small pool of sessions. A thread borrows a session for each transaction."""

    def __init__(self, url: PostgresUrl, clock: Clock | None = None) -> None:
        self.name = url.name
        self._url = url
        self._clock = clock or SystemClock()
        self._idle = IdlePool(_MOST_IDLE, PostgresSession.close)
        self._idle_listening = IdlePool(_MOST_IDLE, PostgresSession.close)
        self._pooled = False
        """A pooler was detected: keep no plans, and do not LISTEN."""
        self._strict = False
        """A conflict was reported, so the server's default isolation may be stricter than READ
        COMMITTED: every statement becomes a transaction that names its isolation level."""

    def ask(self, statement: Statement, values: Values = (), again: Values | None = None) -> Rows:
        """Execute a statement as a transaction, in a single round trip.

        `again` replaces `values` after a lost connection: the first try may have been executed.
        """
        return self.transact(((statement, values),), again)

    @contextmanager
    def listening(self) -> Iterator[PostgresSession | None]:
        """Lend a session that listens; None if a pooler is in between and LISTEN cannot work."""
        session = self._idle_listening.take()
        if session is None and not self._pooled:
            session = self._connect()
        if session is None:
            yield None
            return
        try:
            if not session.channel and session.direct:
                session.listen()
            yield session if session.channel else None
        except BaseException as failure:
            session.close()
            if isinstance(failure, SessionFailure):
                raise self._translate(failure) from failure
            raise
        if session.channel:
            _give_back(session, self._idle_listening)
        else:
            self._pooled = True
            session.close()

    def close(self) -> None:
        self._idle.close()
        self._idle_listening.close()

    def __del__(self) -> None:
        self.close()

    def transact(self, steps: Sequence[Step], again: Values | None = None) -> Rows:
        """Execute several statements. Each sees all transactions committed before it began."""
        fresh = False
        for _ in range(LOST_RACE.most):
            session = self._connect() if fresh else self._borrow()
            try:
                if self._strict or len(steps) > 1:
                    rows = session.transact(steps)
                else:
                    statement, values = steps[0]
                    rows = session.ask(statement, values, keep_plan=not self._pooled)
            except SessionFailure as failure:
                fresh = self._needs_fresh(failure, session, is_fresh=fresh)
                if again is not None and isinstance(failure, SessionLost):
                    steps = ((steps[0][0], again),)
            except BaseException:
                session.close()
                raise
            else:
                _give_back(session, self._idle)
                return rows
        raise Unavailable(f"{self.name}: {LOST_RACE.most} tries in a row ran into others")

    def _needs_fresh(
        self, failure: SessionFailure, session: PostgresSession, *, is_fresh: bool
    ) -> bool:
        """Whether the next try needs a new connection. Raise if another try is useless."""
        match failure:
            case StatementRefused(code=code):
                _give_back(session, self._idle)
                if code in _CONFLICTS:
                    self._strict = True
                    return is_fresh
                if code in _NO_PLANS:
                    self._pooled = True
                    return is_fresh
                hopeful = code in _READ_ONLY  # another server may be the primary by now
            case Unanswered():
                session.cancel()
                session.close()
                hopeful = False
            case _:
                session.close()
                hopeful = True  # the connection may have died long ago, while it was idle
        if not hopeful or is_fresh:
            raise self._translate(failure) from failure
        self._idle.drop()  # the cause has most likely broken every idle session
        return True

    def _borrow(self) -> PostgresSession:
        while (session := self._idle.take()) is not None:
            if session.quiet:
                return session
            session.close()
        return self._connect()

    def _connect(self) -> PostgresSession:
        url = self._url
        try:
            session = PostgresSession(url.parameters, self._clock, url.timeout_s)
        except (psycopg.Error, OSError, UnicodeError) as failure:
            text = _first_line(failure)
            if _NO_DATABASE.search(text):
                raise Damaged(f"{self.name} is not there ({text})") from failure
            if url.must_prove_itself and _NO_PROOF.search(text):
                unproven = NotPermitted(f"{self.name} did not prove who it is ({text})")
                unproven.hint = _HOW_TO_PROVE
                raise unproven from failure
            if _NO_ENTRY.search(text):
                raise NotPermitted(f"{self.name} does not let us in ({text})") from failure
            raise Unavailable(f"{self.name} cannot be reached ({text})") from failure
        if session.encoding != "UTF8":
            session.close()
            raise Damaged(
                f"{self.name} keeps text as {session.encoding}; names and notes need a database "
                "whose encoding is UTF8"
            )
        return session

    def _translate(self, failure: SessionFailure) -> Outage:
        """Translate to dibs' error tree: who must act, and whether a later try may help."""
        name, text = self.name, _first_line(failure)
        if not isinstance(failure, StatementRefused):
            return Unavailable(f"{name} did not answer ({text})")
        code = failure.code
        if code.startswith(_FULL):
            return Damaged(f"{name} cannot grow: its disk is full ({text})")
        if code.startswith(_FORBIDDEN):
            return NotPermitted(f"{name} refuses ({text})")
        if code.startswith(_READ_ONLY) or text == "recovery is in progress":
            return Unavailable(
                f"{name} is read-only now: a standby, not promoted yet, or "
                f"default_transaction_read_only is on ({text})"
            )
        if code.startswith(_PASSING):
            return Unavailable(f"{name} cannot do it now ({text})")
        if code.startswith(_NOT_THERE):
            return Damaged(f"{name} does not have what dibs made there, or not as it was ({text})")
        return Damaged(f"{name}: PostgreSQL failed ({text}; SQLSTATE {code})")


def _give_back(session: PostgresSession, idle: IdlePool[PostgresSession]) -> None:
    if session.usable:
        idle.keep(session)
    else:
        session.close()


def _first_line(failure: BaseException) -> str:
    return next(iter(str(failure).splitlines()), type(failure).__name__)
