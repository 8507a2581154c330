"""Leases in one PostgreSQL table: the fence rises in the statement that grants.

One row per issue, kept for ever, so that the fence never starts again. Expiry is judged by the
server's clock. An ending stays unpainted until somebody has shown it on the tracker, and nothing
is granted over it: that row is the write-ahead record. The columns are those of the SQLite store.

Decides what each answer of the server means. What it is asked stands in `postgres_statements`, how
in `postgres_database`.
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
    Database,
    Rows,
    Statement,
    Values,
    parse_postgres_url,
)
from dibs.adapters.postgres.statements import EXPIRED, OUTCOME_AT, VERSION, LeaseStatements
from dibs.adapters.system import SystemClock
from dibs.core import grants
from dibs.core.errors import Damaged, Misuse, NotPermitted, Outage
from dibs.core.ids import Fence, HolderId, IssueRef, ServerTime, milliseconds
from dibs.core.lease import (
    AcquireResult,
    Bid,
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
from dibs.ports.leases import Guarantee

_TRIES = 10
_MOST_AWAITING = 1000
_EAR_S = (5.0, 10.0)
"""No wait is longer: whoever was to be woken may have died, and the others must find out."""
_NAP_S = (0.1, 0.4)
"""Between two looks where nobody can be told anything."""
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # PostgreSQL's; its times are microseconds since then
_INT8 = Struct("!q")


class PostgresLeases:
    """For many threads. Each borrows a connection for a statement, and one more while it waits."""

    guarantees = (
        Guarantee.ATOMIC
        | Guarantee.FENCED
        | Guarantee.SERVER_CLOCK
        | Guarantee.IDEMPOTENT
        | Guarantee.DURABLE
        | Guarantee.COUNTED
    )

    def __init__(self, database: Database, namespace: str | None = None) -> None:
        self._database = database
        self.name = database.name
        self._namespace = namespace
        self._say = LeaseStatements(namespace)
        self._knows_epochs = False
        self._clock = SystemClock()
        self._made = False
        self._making = threading.Lock()

    @classmethod
    def connect(cls, url: str) -> "PostgresLeases":
        """Reads the URL; talks to the server with the first operation, and not before."""
        parsed = parse_postgres_url(url)
        return cls(Database(parsed), parsed.namespace)

    def close(self) -> None:
        self._database.close()

    def acquire(self, bid: Bid) -> AcquireResult:
        values = (
            *_issue(bid.issue),
            *(_name(bid.run), _prose(bid.holder), _name(bid.stage)),
            *(_number(milliseconds(bid.ttl)), _number(bid.floor)),
        )
        if not self._knows_epochs:
            self._ask_for_epochs()
        for _ in range(_TRIES):
            told = _told(bid, self._bid(bid, values))
            if told is not None:
                return told
        return Unproven(f"the issue changed hands {_TRIES} times while we asked for it")

    def _bid(self, bid: Bid, values: Values) -> Cells:
        if bid.limit is None:
            return self._ask(self._say.acquire, values)[0]
        stage = _name(bid.stage)
        steps = (
            (self._say.turn_to_count, (_number(_lock_number(stage)),)),
            (self._say.settle, (stage,)),
            (self._say.acquire_counted, (*values, _number(bid.limit))),
        )
        return self._database.transact(steps)[0]

    def _ask_for_epochs(self) -> None:
        """Some who sell PostgreSQL as a service do not let anybody ask where its log is."""
        self._make_sure()
        try:
            self._database.ask(self._say.epoch)
        except (NotPermitted, Damaged):
            self._say = LeaseStatements(self._namespace, epochs=False)
        self._knows_epochs = True

    def renew(self, lease: Lease) -> RenewResult:
        mine = _mine(lease)
        beat = _number(lease.beats + 1)
        rows = self._ask(self._say.renew, (*mine, _ONE, _NONE), again=(*mine, _NONE, beat))
        if not rows or _expired(rows[0]):
            return Lost(grants.NOT_OURS)
        record = _record(rows[0])
        if record.revocation is not None:
            return grants.asked_to_stop(record.revocation)
        return Renewed(replace(record.lease, card=lease.card))

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        rows = self._ask(
            self._say.release,
            (
                *_mine(lease),
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
        self._ask(self._say.acknowledge, _mine(record.lease))

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        values = (
            *(*_issue(issue), _name(revocation.run)),
            *(_prose(revocation.by), _prose(revocation.reason), _flag(on=revocation.force)),
        )
        rows = self._ask(
            self._say.revoke,
            (*values, _flag(on=False)),
            again=(*values, _flag(on=revocation.force)),
        )
        record = _record(rows[0]) if rows else None
        if record is None or (_expired(rows[0]) and not _forced(record)):
            return None  # over before anybody revoked it
        return record

    def read(self, issue: IssueRef) -> Record | None:
        rows = self._ask(self._say.read, _issue(issue))
        return _record(rows[0]) if rows else None

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        wanted = _name(stage) if stage is not None else None
        return tuple(map(_record, self._ask(self._say.live, (wanted, _number(limit)))))

    def highest(self) -> Fence:
        return Fence(_int(self._ask(self._say.highest)[0][0]))

    def await_end(self, issue: IssueRef, seconds: float) -> None:
        try:
            if seconds > _NAP_S[0] and self._hears_of_the_end(issue, seconds):
                return
        except Outage:
            pass  # whoever asks next is told
        self._clock.sleep(min(seconds, random.uniform(*_NAP_S)))

    def _hears_of_the_end(self, issue: IssueRef, seconds: float) -> bool:
        """Whether it was waited for with an open ear; False: nobody would have told us."""
        with self._database.listening() as ear:
            if ear is None:
                return False
            ear.session.forget_notifications()
            me = (*_issue(issue), ear.channel.encode())
            if not self._ask(self._say.await_end, (*me, _number(_MOST_AWAITING))):
                return True  # there is nothing to wait for
            if not ear.session.notified(min(seconds, random.uniform(*_EAR_S))):
                self._ask(self._say.leave, me)
            return True

    def _ask(self, statement: Statement, values: Values = (), again: Values | None = None) -> Rows:
        if not self._made:
            self._make_sure()
        return self._database.ask(statement, values, again)

    def _make_sure(self) -> None:
        """The table is made by whoever comes first, or by somebody with more rights before that."""
        with self._making:
            refusal: Outage | None = None
            while not self._made:
                there, version, has_schema = self._database.ask(
                    self._say.inspect, self._say.inspected
                )[0]
                if there == _TRUE:
                    self._check_version(version)
                    self._made = True
                elif refusal is not None:
                    raise self._cannot_make(refusal) from refusal
                else:
                    refusal = self._make(with_schema=has_schema == _FALSE)

    def _make(self, *, with_schema: bool) -> Outage | None:
        """What went wrong. Somebody else may have made the table meanwhile, so look again."""
        steps = [(statement, ()) for statement in self._say.making(with_schema=with_schema)]
        try:
            self._database.transact(steps)
        except (NotPermitted, Damaged) as failure:
            return failure
        return None

    def _check_version(self, version: bytes | None) -> None:
        # A copy may have been restored without its comments: then the columns have to tell.
        if version is not None and version != VERSION.encode():
            raise Damaged(
                f"{self.name}: the table {self._say.table} is of another version of dibs or not "
                f"its table at all (its comment is {version.decode()!r}, not {VERSION!r})"
            )

    def _cannot_make(self, refusal: Outage) -> Outage:
        if not isinstance(refusal, NotPermitted):
            return refusal
        return NotPermitted(
            f"{self.name}: there is no table {self._say.table}, and this role may not make it; it "
            f"needs CREATE on the schema, or the table and SELECT, INSERT and UPDATE on it "
            f"({refusal})"
        )


# What is said to the server

_TRUE, _FALSE = b"\x01", b"\x00"
_ONE, _NONE = b"1", b"0"


def _issue(issue: IssueRef) -> tuple[bytes, bytes]:
    return _name(issue.repo), _name(issue.key)


def _mine(lease: Lease) -> tuple[bytes, bytes, bytes]:
    return *_issue(lease.issue), _name(lease.run)


def _name(text: str) -> bytes:
    """A name that something is found by again: kept as it is, or refused."""
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
    """What people say: a letter that cannot be kept must not keep a lease from ending."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace")


def _number(value: int) -> bytes:
    return b"%d" % value


def _flag(*, on: bool) -> bytes:
    return b"true" if on else b"false"


def _lock_number(name: bytes) -> int:
    """A signed number of 32 bits. Two stages that share one only wait for each other."""
    return zlib.crc32(name) - 2**31


# What it says


def _told(bid: Bid, row: Cells) -> AcquireResult | None:
    """None: the row that was seen and the row that was locked were not the same. Ask again."""
    count, fence, granted_at, expires_at = row[:4]
    if fence is not None:
        return Granted(
            Lease(
                issue=bid.issue,
                run=bid.run,
                holder=HolderId(_prose(bid.holder).decode()),
                stage=bid.stage,
                fence=_int(fence),
                ttl=timedelta(milliseconds=milliseconds(bid.ttl)),
                granted_at=_moment(granted_at),
                expires_at=_moment(expires_at),
            )
        )
    known = _record(row[4:]) if row[4] is not None else None
    told = grants.refusal(known, bid)
    if told is None and bid.limit is not None and (n := _int(count)) >= bid.limit:
        return Full(n)
    return told


def _record(cells: Sequence[Any]) -> Record:
    """From the columns and the server's time; what may follow is of no interest."""
    (repo, key, fence, run, holder, stage, ttl_ms, granted_at, expires_at, beats, *rest) = cells
    outcome, target, note, painted, revoked_by, revoked_why, revoked_now, as_of = rest[:8]
    lease = Lease(
        issue=IssueRef(repo.decode(), key.decode()),
        run=run.decode(),
        holder=holder.decode(),
        stage=stage.decode(),
        fence=_int(fence),
        ttl=timedelta(milliseconds=_int(ttl_ms)),
        granted_at=_moment(granted_at),
        expires_at=_moment(expires_at),
        beats=_int(beats),
    )
    told_at = _moment(as_of)
    ending = revocation = None
    if _expired(cells):
        told_at = max(told_at, lease.expires_at)  # whatever the clock says since
    elif outcome is not None:
        following = target.decode() if target is not None else None
        ending = Ending(Outcome(outcome.decode()), following, note.decode())
    if revoked_by is not None:
        revocation = Revocation(
            lease.run, revoked_by.decode(), revoked_why.decode(), force=revoked_now == _TRUE
        )
    return Record(lease, told_at, ending, painted=painted == _TRUE, revocation=revocation)


def _expired(cells: Sequence[Any]) -> bool:
    return bool(cells[OUTCOME_AT] == EXPIRED.encode())


def _forced(record: Record) -> bool:
    return record.revocation is not None and record.revocation.force


def _int(cell: bytes) -> Any:
    return _INT8.unpack(cell)[0]


def _moment(cell: bytes) -> ServerTime:
    return ServerTime(_EPOCH + timedelta(0, 0, _INT8.unpack(cell)[0]))
