"""Leases in this process's memory: one lock makes each operation atomic; they end with the process.

Stores whole records, and asks `core.grants` for the next record.
"""

import threading
from collections.abc import Callable

from msgspec.structs import replace

from dibs.core import grants
from dibs.core.ids import Fence, IssueRef, ServerTime
from dibs.core.lease import (
    AcquireResult,
    Bid,
    Ending,
    Full,
    Granted,
    Lease,
    Record,
    Released,
    ReleaseResult,
    Renewed,
    RenewResult,
    Revocation,
)
from dibs.ports.leases import EVERY_GUARANTEE, Guarantee


class MemoryLeases:
    name = "memory:"
    guarantees = EVERY_GUARANTEE & ~Guarantee.DURABLE

    def __init__(self, now: Callable[[], ServerTime]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._records: dict[IssueRef, Record] = {}

    def acquire(self, bid: Bid) -> AcquireResult:
        with self._lock:
            known, now = self._read(bid.issue), self._now()
            if (refusal := grants.refusal(known, bid)) is not None:
                return refusal
            if bid.limit is not None and (count := len(self._live(bid.stage))) >= bid.limit:
                return Full(count)
            record = grants.grant(bid, grants.next_fence(known, bid), now)
            return Granted(self._write(record).lease)

    def renew(self, lease: Lease) -> RenewResult:
        with self._lock:
            made = grants.renewal(self._read(lease.issue), lease, self._now())
            if not isinstance(made, Record):
                return made
            return Renewed(replace(self._write(made).lease, card=lease.card))

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        with self._lock:
            made = grants.ending(self._read(lease.issue), lease, ending, self._now())
            return Released(self._write(made)) if isinstance(made, Record) else made

    def acknowledge(self, record: Record) -> None:
        with self._lock:
            made = grants.acknowledgement(self._read(record.lease.issue), record)
            if made is not None:
                self._write(made)

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        with self._lock:
            made = grants.revoked(self._read(issue), revocation, self._now())
            return self._write(made) if made is not None else None

    def read(self, issue: IssueRef) -> Record | None:
        with self._lock:
            return self._read(issue)

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        with self._lock:
            found = self._live(stage)
        found.sort(key=lambda record: (record.lease.granted_at, record.lease.issue))
        return tuple(found[:limit])

    def highest(self) -> Fence:
        with self._lock:
            fences = (record.lease.fence for record in self._records.values())
            return Fence(max(fences, default=0))

    def _live(self, stage: str | None) -> list[Record]:
        known = (self._read(issue) for issue in self._records)
        return [
            record
            for record in known
            if record is not None and record.live and stage in (None, record.lease.stage)
        ]

    def _read(self, issue: IssueRef) -> Record | None:
        """The stored record, with the present time. The caller holds the lock."""
        record = self._records.get(issue)
        return replace(record, as_of=self._now()) if record is not None else None

    def _write(self, record: Record) -> Record:
        self._records[record.lease.issue] = record
        return record
