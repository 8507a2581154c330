"""Leases in one SQLite file: the fence rises in the same statement that grants.

One row per issue, kept for ever, so the fence never starts again. The database's clock decides when
a lease expires. An ending stays `painted = 0` until a process has shown it on the tracker, and
nothing is granted over an unpainted ending: the row is the write-ahead record.
"""

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from dibs.adapters.sqlite.database import Database, Transaction
from dibs.core import grants
from dibs.core.ids import Fence, IssueRef, milliseconds, moment
from dibs.core.lease import (
    AcquireResult,
    Bid,
    Ending,
    Full,
    Granted,
    Lease,
    Outcome,
    Record,
    Released,
    ReleaseResult,
    Renewed,
    RenewResult,
    Revocation,
)
from dibs.ports.leases import EVERY_GUARANTEE

_SCHEMA = """
CREATE TABLE leases (
    repo TEXT NOT NULL,
    key TEXT NOT NULL,
    fence INTEGER NOT NULL,
    run TEXT NOT NULL,
    holder TEXT NOT NULL,
    stage TEXT NOT NULL,
    ttl_ms INTEGER NOT NULL,
    granted_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    beats INTEGER NOT NULL,
    outcome TEXT,
    next TEXT,
    note TEXT,
    painted INTEGER NOT NULL,
    revoked_by TEXT,
    revoked_why TEXT,
    revoked_now INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (repo, key)
) WITHOUT ROWID;
CREATE INDEX leases_running ON leases (expires_at) WHERE outcome IS NULL;
"""
_COLUMNS = (
    "repo, key, fence, run, holder, stage, ttl_ms, granted_at, expires_at, beats,"
    " outcome, next, note, painted, revoked_by, revoked_why, revoked_now"
)
_ACQUIRE = f"""
INSERT INTO leases ({_COLUMNS})
VALUES (:repo, :key, :floor + 1, :run, :holder, :stage, :ttl, :now, :now + :ttl, 0,
        NULL, NULL, NULL, 1, NULL, NULL, 0)
ON CONFLICT (repo, key) DO UPDATE SET
    fence = MAX(fence, :floor) + 1,
    run = excluded.run, holder = excluded.holder, stage = excluded.stage,
    ttl_ms = excluded.ttl_ms, granted_at = excluded.granted_at, expires_at = excluded.expires_at,
    beats = 0, outcome = NULL, next = NULL, note = NULL, painted = 1,
    revoked_by = NULL, revoked_why = NULL, revoked_now = 0
WHERE painted = 1 AND (outcome IS NOT NULL OR expires_at <= :now)
RETURNING {_COLUMNS}
"""
_LEASE = "lease"
_MINE = "repo = :repo AND key = :key AND run = :run"


class SqliteLeases:
    guarantees = EVERY_GUARANTEE

    def __init__(self, database: Database) -> None:
        self._database = database
        self.name = f"sqlite:{database.path}"
        database.ensure("leases", _SCHEMA)

    def acquire(self, bid: Bid) -> AcquireResult:
        with self._database.writing(in_one_statement=True) as tx:
            if bid.limit is not None:
                refusal = grants.refusal(_read(tx, bid.issue), bid)
                if refusal is not None:
                    return refusal
                # No other transaction can write before this one ends, so the count stays right.
                count: int = tx.sql.execute(
                    "SELECT COUNT(*) FROM leases"
                    " WHERE outcome IS NULL AND expires_at > ? AND stage = ?",
                    (tx.now_ms, bid.stage),
                ).fetchone()[0]
                if count >= bid.limit:
                    return Full(count)
            bidder = {"holder": bid.holder, "stage": bid.stage, "ttl": milliseconds(bid.ttl)}
            granted = _fetch_record(tx, _ACQUIRE, bid.issue, bid.run, floor=bid.floor, **bidder)
            if granted is not None:
                return Granted(granted.lease)
            refusal = grants.refusal(_read(tx, bid.issue), bid)
            assert refusal is not None, "a refused upsert means that the row is there, and not free"
            return refusal

    def renew(self, lease: Lease) -> RenewResult:
        with self._database.writing(in_one_statement=True) as tx:
            renewed = _fetch_record(
                tx,
                f"UPDATE leases SET expires_at = :now + ttl_ms, beats = beats + 1 WHERE {_MINE}"
                f" AND outcome IS NULL AND expires_at > :now AND revoked_by IS NULL"
                f" RETURNING {_COLUMNS}",
                *(lease.issue, lease.run),
            )
            if renewed is not None:
                return Renewed(replace(renewed.lease, card=lease.card))
            refusal = grants.renewal(_read(tx, lease.issue), lease, moment(tx.now_ms))
            assert not isinstance(refusal, Record), "the statement renews what can be renewed"
            return refusal

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        with self._database.writing(in_one_statement=True) as tx:
            released = _fetch_record(
                tx,
                "UPDATE leases SET expires_at = :now, outcome = :outcome, next = :next,"
                f" note = :note, painted = :painted WHERE {_MINE}"
                f" AND outcome IS NULL AND expires_at > :now RETURNING {_COLUMNS}",
                *(lease.issue, lease.run),
                outcome=ending.outcome.value,
                next=ending.next,
                note=ending.note,
                painted=ending.outcome is Outcome.CONCEDED,
            )
            if released is not None:
                return Released(released)
            refusal = grants.ending(_read(tx, lease.issue), lease, ending, moment(tx.now_ms))
            assert not isinstance(refusal, Record), "the statement ends what is live"
            return refusal

    def acknowledge(self, record: Record) -> None:
        with self._database.writing(in_one_statement=True) as tx:
            statement = f"UPDATE leases SET painted = 1 WHERE {_MINE} AND outcome IS NOT NULL"
            _fetch_record(tx, statement, record.lease.issue, record.lease.run)
            tx.seen.pop((_LEASE, record.lease.issue), None)

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        with self._database.writing(in_one_statement=True) as tx:
            return _fetch_record(
                tx,
                "UPDATE leases SET revoked_by = :by, revoked_why = :why, revoked_now = :force,"
                f" expires_at = CASE WHEN :force THEN :now ELSE expires_at END WHERE {_MINE}"
                f" AND outcome IS NULL AND expires_at > :now RETURNING {_COLUMNS}",
                *(issue, revocation.run),
                by=revocation.by,
                why=revocation.reason,
                force=revocation.force,
            )

    def read(self, issue: IssueRef) -> Record | None:
        with self._database.reading() as tx:
            return _read(tx, issue)

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        with self._database.reading() as tx:
            rows = tx.sql.execute(
                f"SELECT {_COLUMNS} FROM leases WHERE outcome IS NULL AND expires_at > :now"
                " AND (:stage IS NULL OR stage = :stage) ORDER BY granted_at, key LIMIT :limit",
                {"now": tx.now_ms, "stage": stage, "limit": limit},
            ).fetchall()
            return tuple(_record(row, tx) for row in rows)

    def highest(self) -> Fence:
        with self._database.reading() as tx:
            row = tx.sql.execute("SELECT COALESCE(MAX(fence), 0) FROM leases").fetchone()
            return Fence(row[0])


def _read(tx: Transaction, issue: IssueRef) -> Record | None:
    known: Record | None = tx.seen.get((_LEASE, issue))
    if known is not None:
        return known
    statement = f"SELECT {_COLUMNS} FROM leases WHERE repo = :repo AND key = :key"
    return _fetch_record(tx, statement, issue)


def _fetch_record(
    tx: Transaction, statement: str, issue: IssueRef, run: str = "", **values: object
) -> Record | None:
    """Execute a statement about the issue, or the run's lease on it: the row that is returned."""
    key = {"repo": issue.repo, "key": issue.key, "run": run, "now": tx.now_ms}
    row = tx.sql.execute(statement, {**key, **values}).fetchone()
    if row is None:
        return None
    record = tx.seen[_LEASE, issue] = _record(row, tx)
    return record


def _record(row: tuple[Any, ...], tx: Transaction) -> Record:
    repo, key, fence, run, holder, stage, ttl_ms, granted_at, expires_at, beats, *rest = row
    outcome, following, note, painted, revoked_by, revoked_why, revoked_now = rest
    times = (timedelta(milliseconds=ttl_ms), moment(granted_at), moment(expires_at))
    return grants.stored_record(
        Lease(IssueRef(repo, key), run, holder, stage, fence, *times, beats),
        moment(tx.now_ms),
        outcome=outcome,
        following=following,
        note=note,
        painted=bool(painted),
        revoked_by=revoked_by,
        revoked_why=revoked_why,
        revoked_now=bool(revoked_now),
    )
