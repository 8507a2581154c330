"""A PostgreSQL database shared by many machines: connections, second tries, errors.

Decides which connection a thread borrows, when a statement is worth a second try, and which of our
errors each failure is. Leaves nothing in a session that a pooler could hand to somebody else: no
setting, no temporary table, no session lock; a plan only where no pooler is in between. Knows no
table.

Whatever is asked here must be harmless to ask twice: a connection that broke after sitting idle is
replaced and the statement sent again, although the server may have done it already.
"""

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from secrets import token_hex

import psycopg
from msgspec import Struct

from dibs.adapters.clocks import SystemClock
from dibs.adapters.postgres_session import (
    Rows,
    Session,
    SessionFailure,
    SessionLost,
    Statement,
    StatementRefused,
    Step,
    Unanswered,
    Values,
)
from dibs.adapters.postgres_url import PostgresUrl
from dibs.core.errors import Damaged, NotPermitted, Outage, Unavailable
from dibs.ports.clock import Clock

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
