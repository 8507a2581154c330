"""Leases in one PostgreSQL table: the fence rises in the statement that grants.

One row per issue, kept for ever, so the fence never starts again. The server's clock decides when a
lease expires. An ending stays unpainted until a client has shown it on the tracker, and nothing is
granted over an unpainted ending: the row is the write-ahead record. The columns are those of the
SQLite store, and one for the waiters.

Decides what each answer of the server means. The statements are in `statements`, sessions and
retries in `database`.
"""

import random
import threading
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import Any

from msgspec.structs import replace

from dibs.adapters.postgres.database import (
    Cells,
    PostgresDatabase,
    Rows,
    Statement,
    Values,
    parse_postgres_url,
)
from dibs.adapters.postgres.statements import OUTCOME_AT, VERSION, LeaseStatements
from dibs.adapters.system import ServerPace, SystemClock
from dibs.core import grants
from dibs.core.durations import LOST_RACE
from dibs.core.errors import Damaged, Misuse, NotPermitted, Outage
from dibs.core.ids import Fence, HolderId, IssueRef, RunId, ServerTime, StageName, milliseconds
from dibs.core.lease import (
    AcquireResult,
    Bid,
    Busy,
    Ending,
    Full,
    Granted,
    Lease,
    Lost,
    Outcome,
    Record,
    Released,
    ReleaseResult,
    Renewed,
    RenewResult,
    Revocation,
    Unproven,
)
from dibs.ports.leases import EVERY_GUARANTEE

_MOST_AWAITING = 1000
_LISTEN_S = (5.0, 10.0)
"""The longest wait, drawn from this range: only the first waiter is notified and may have died, so
the others must look for themselves."""
_NAP_S = (0.1, 0.4)
"""The sleep between two looks, drawn from this range, where notifications cannot be received."""
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # PostgreSQL's times are microseconds since then
_INT8 = Struct("!q")


class PostgresLeases:
    """The lease store in a PostgreSQL table. Safe for many threads.

    A thread borrows a session for each statement, and a second session while it waits for an end.
    """

    guarantees = EVERY_GUARANTEE

    def __init__(self, database: PostgresDatabase, namespace: str | None = None) -> None:
        self._database = database
        self.name = database.name
        self._namespace = namespace
        self._statements = LeaseStatements(namespace)
        self._epochs: bool | None = None
        """Whether the server shows its timeline; None: it was not asked yet."""
        self._clock = SystemClock()
        self._pace = ServerPace(database.name, self._clock)
        self._table_ready = False
        self._preparing = threading.Lock()

    @classmethod
    def connect(cls, url: str) -> "PostgresLeases":
        """Read the URL. The first operation opens the first connection."""
        parsed = parse_postgres_url(url)
        return cls(PostgresDatabase(parsed), parsed.namespace)

    def worries(self) -> tuple[str, ...]:
        [[fsync]] = self._database.ask(self._statements.fsync)
        worries = []
        if fsync == b"off":
            worries.append(
                f"fsync is off on the server of {self.name}: if its machine crashes, it may forget "
                "leases, and grant the same fences again"
            )
        if not self._sees_epochs():
            worries.append(
                f"the server of {self.name} does not show its timeline; after a failover or a "
                "restored backup it may grant the same fences again"
            )
        return tuple(worries)

    def close(self) -> None:
        self._database.close()

    def acquire(self, bid: Bid) -> AcquireResult:
        if (paused := self._pace.pause()) is not None:
            return paused
        values = (
            *_issue_key(bid.issue),
            *(_name(bid.run), _prose(bid.holder), _name(bid.stage)),
            *(_number(milliseconds(bid.ttl)), _number(bid.floor)),
        )
        if self._epochs is None:
            self._ensure_table()
            self._sees_epochs()
        for _ in range(LOST_RACE.most):
            sent_at = self._pace.sending()
            if bid.limit is None:
                rows = self._ask(self._statements.acquire, values)
            else:
                stage = _name(bid.stage)
                steps = (
                    (self._statements.turn_to_count, (_number(_lock_number(stage)),)),
                    (self._statements.settle, (stage,)),
                    (self._statements.acquire_counted, (*values, _number(bid.limit))),
                )
                rows = self._database.transact(steps)
            result = _acquire_result(bid, rows[0])
            match result:
                case Granted(lease):
                    repeated = rows[0][1] is None
                    now = _record(rows[0][4:]).as_of if repeated else lease.granted_at
                    self._pace.saw(now, sent_at, lease.ttl)
                    return self._pace.accept(self, lease)
                case Busy(record):
                    self._pace.saw(record.as_of, sent_at, record.lease.ttl)
            if result is not None:
                return result
        return Unproven(f"the issue changed hands {LOST_RACE.most} times while we asked for it")

    def renew(self, lease: Lease) -> RenewResult:
        key = _lease_key(lease)
        beat, sent_at = _number(lease.beats + 1), self._pace.sending()
        rows = self._ask(self._statements.renew, (*key, _ONE, _ZERO), again=(*key, _ZERO, beat))
        if not rows or _expired(rows[0]):
            return Lost(grants.NOT_OURS)
        record = _record(rows[0])
        if record.revocation is not None:
            return grants.asked_to_stop(record.revocation)
        self._pace.saw(record.as_of, sent_at, record.lease.ttl)
        return Renewed(replace(record.lease, card=lease.card))

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        rows = self._ask(
            self._statements.release,
            (
                *_lease_key(lease),
                ending.outcome.value.encode(),
                _name(ending.next) if ending.next is not None else None,
                _prose(ending.note),
                _flag(on=ending.outcome is Outcome.CONCEDED),
            ),
        )
        if not rows or _expired(rows[0]):
            return Lost(grants.NOT_OURS)
        return Released(_record(rows[0]))

    def acknowledge(self, record: Record) -> None:
        self._ask(self._statements.acknowledge, _lease_key(record.lease))

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        values = (
            *(*_issue_key(issue), _name(revocation.run)),
            *(_prose(revocation.by), _prose(revocation.reason), _flag(on=revocation.force)),
        )
        rows = self._ask(
            self._statements.revoke,
            (*values, _flag(on=False)),
            again=(*values, _flag(on=revocation.force)),
        )
        if not rows:
            return None
        record = _record(rows[0])
        forced = record.revocation is not None and record.revocation.force
        if _expired(rows[0]) and not forced:
            return None  # the lease ran out before this revoke
        return record

    def read(self, issue: IssueRef) -> Record | None:
        sent_at = self._pace.sending()
        rows = self._ask(self._statements.read, _issue_key(issue))
        if not rows:
            return None
        record = _record(rows[0])
        if not _expired(rows[0]):  # whose time may be later than the server's
            self._pace.saw(record.as_of, sent_at, record.lease.ttl)
        return record

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        wanted = _name(stage) if stage is not None else None
        return tuple(map(_record, self._ask(self._statements.live, (wanted, _number(limit)))))

    def highest(self) -> Fence:
        return Fence(_int(self._ask(self._statements.highest)[0][0]))

    def await_end(self, issue: IssueRef, seconds: float) -> None:
        """Wait for the notification of an end; where LISTEN cannot work, take a short sleep."""
        try:
            if seconds > _NAP_S[0]:
                with self._database.listening() as listener:
                    if listener is not None:
                        listener.forget_notifications()
                        waiter = (*_issue_key(issue), listener.channel.encode())
                        most = _number(_MOST_AWAITING)
                        if not self._ask(self._statements.await_end, (*waiter, most)):
                            return  # the issue is free already
                        wait_s = min(seconds, random.uniform(*_LISTEN_S))
                        if not listener.notified(wait_s):
                            self._ask(self._statements.leave, waiter)
                        return
        except Outage:
            pass  # the caller's next operation reports the outage
        self._clock.sleep(min(seconds, random.uniform(*_NAP_S)))

    def _sees_epochs(self) -> bool:
        if self._epochs is None:
            try:
                self._database.ask(self._statements.epoch)
                self._epochs = True
            except (NotPermitted, Damaged):  # some hosted servers hide the position of their log
                self._statements = LeaseStatements(self._namespace, epochs=False)
                self._epochs = False
        return self._epochs

    def _ask(self, statement: Statement, values: Values = (), again: Values | None = None) -> Rows:
        if not self._table_ready:
            self._ensure_table()
        return self._database.ask(statement, values, again)

    def _ensure_table(self) -> None:
        """Make a missing table, or check the version of an existing table.

        The first client makes the table, unless a role with more rights has made it before.
        """
        with self._preparing:
            refusal: Outage | None = None
            while not self._table_ready:
                there, version, has_schema = self._database.ask(
                    self._statements.inspect, self._statements.inspected
                )[0]
                if there == _TRUE:
                    # A copy may have been restored without its comments: then errors about missing
                    # columns show a wrong version.
                    if version is not None and version != VERSION.encode():
                        raise Damaged(
                            f"{self.name}: the table {self._statements.table} is of another "
                            "version of dibs or not its table at all (its comment is "
                            f"{version.decode()!r}, not {VERSION!r})"
                        )
                    self._table_ready = True
                elif isinstance(refusal, NotPermitted):
                    raise NotPermitted(
                        f"{self.name}: there is no table {self._statements.table}, and this role "
                        "may not make it; it needs CREATE on the schema, or the table and SELECT, "
                        f"INSERT and UPDATE on it ({refusal})"
                    ) from refusal
                elif refusal is not None:
                    raise refusal
                else:
                    making = self._statements.making(with_schema=has_schema == _FALSE)
                    try:
                        self._database.transact([(statement, ()) for statement in making])
                    except (NotPermitted, Damaged) as failure:
                        refusal = failure  # another client may have made the table: look again


# Values for the server

_TRUE, _FALSE = b"\x01", b"\x00"
_ONE, _ZERO = b"1", b"0"


def _issue_key(issue: IssueRef) -> tuple[bytes, bytes]:
    return _name(issue.repo), _name(issue.key)


def _lease_key(lease: Lease) -> tuple[bytes, bytes, bytes]:
    return *_issue_key(lease.issue), _name(lease.run)


def _name(text: str) -> bytes:
    """A name that rows are looked up by: stored unchanged. Raise Misuse if PostgreSQL cannot."""
    try:
        plain = text.encode()
    except UnicodeEncodeError:
        plain = b"\0"
    if b"\0" in plain:
        raise Misuse(
            f"{text!r} cannot be kept by PostgreSQL: its text has no NUL and no half letters"
        )
    return plain


def _prose(text: str) -> bytes:
    """Free text: a character that PostgreSQL cannot store must not stop a lease from ending."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace")


def _number(value: int) -> bytes:
    return b"%d" % value


def _flag(*, on: bool) -> bytes:
    return b"true" if on else b"false"


# Values from the server


def _acquire_result(bid: Bid, row: Cells) -> AcquireResult | None:
    """None: the snapshot shows a free issue, but the locked row was not free. Ask again."""
    count, fence, granted_at = row[:3]
    if fence is not None:
        holder, ttl = HolderId(_prose(bid.holder).decode()), milliseconds(bid.ttl)
        stored = replace(bid, holder=holder, ttl=timedelta(milliseconds=ttl))
        return Granted(grants.grant(stored, _int(fence), _moment(granted_at)).lease)
    refusal = grants.refusal(_record(row[4:]) if row[4] is not None else None, bid)
    if refusal is None and bid.limit is not None and (n := _int(count)) >= bid.limit:
        return Full(n)
    return refusal


def _lock_number(name: bytes) -> int:
    """A signed 32-bit number for the stage's lock. Stages with equal numbers take turns as well."""
    return zlib.crc32(name) - 2**31


def _record(cells: Sequence[Any]) -> Record:
    """Read the columns of a row and then the server's time. Cells after them are ignored."""
    (repo, key, fence, run, holder, stage, ttl_ms, granted_at, expires_at, beats, *rest) = cells
    outcome, target, note, painted, revoked_by, revoked_why, revoked_now, as_of = rest[:8]
    lease = Lease(
        issue=IssueRef(repo.decode(), key.decode()),
        run=RunId(run.decode()),
        holder=HolderId(holder.decode()),
        stage=StageName(stage.decode()),
        fence=Fence(_int(fence)),
        ttl=timedelta(milliseconds=_int(ttl_ms)),
        granted_at=_moment(granted_at),
        expires_at=_moment(expires_at),
        beats=_int(beats),
    )
    return grants.stored_record(
        lease,
        _moment(as_of),
        outcome=_text(outcome),
        following=_text(target),
        note=_text(note),
        painted=painted == _TRUE,
        revoked_by=_text(revoked_by),
        revoked_why=_text(revoked_why),
        revoked_now=revoked_now == _TRUE,
    )


def _expired(cells: Sequence[Any]) -> bool:
    return bool(cells[OUTCOME_AT] == grants.EXPIRED.encode())


def _text(cell: bytes | None) -> str | None:
    return cell.decode() if cell is not None else None


def _int(cell: bytes) -> Any:
    return _INT8.unpack(cell)[0]


def _moment(cell: bytes) -> ServerTime:
    return ServerTime(_EPOCH + timedelta(0, 0, _INT8.unpack(cell)[0]))
