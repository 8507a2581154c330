"""Leases in this process's memory: atomic under one lock, gone with the process."""

import threading
from collections.abc import Callable
from dataclasses import replace

from dibs.core.ids import Fence, IssueRef, ServerTime, later
from dibs.core.lease import (
    AcquireResult,
    Bid,
    Busy,
    Ending,
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
    StopAsked,
)
from dibs.ports.guarantees import Guarantee


class MemoryLeases:
    name = "memory:"
    guarantees = Guarantee.ATOMIC | Guarantee.FENCED | Guarantee.SERVER_CLOCK | Guarantee.IDEMPOTENT

    def __init__(self, now: Callable[[], ServerTime]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._records: dict[IssueRef, Record] = {}

    def acquire(self, bid: Bid) -> AcquireResult:
        with self._lock:
            known, now = self._known(bid.issue), self._now()
            if known is not None and (known.live or not known.painted):
                if known.lease.run == bid.run and known.live:
                    return Granted(known.lease)
                return Busy(known)
            lease = Lease(
                issue=bid.issue,
                run=bid.run,
                holder=bid.holder,
                stage=bid.stage,
                fence=Fence(known.lease.fence + 1 if known else 1),
                ttl=bid.ttl,
                granted_at=now,
                expires_at=later(now, bid.ttl),
            )
            self._records[bid.issue] = Record(lease, as_of=now)
            return Granted(lease)

    def renew(self, lease: Lease) -> RenewResult:
        with self._lock:
            known, now = self._mine(lease), self._now()
            if known is None or not known.live:
                return Lost("the lease expired or another run holds the issue")
            if known.revocation is not None:
                return StopAsked(f"revoked by {known.revocation.by}: {known.revocation.reason}")
            renewed = replace(
                lease,
                granted_at=known.lease.granted_at,
                expires_at=later(now, lease.ttl),
                beats=lease.beats + 1,
            )
            self._records[lease.issue] = replace(known, lease=renewed)
            return Renewed(renewed)

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        with self._lock:
            known, now = self._mine(lease), self._now()
            if known is not None and known.ending is not None:
                return Released(known)  # a retry after a lost reply
            if known is None or not known.live:
                return Lost("the lease expired or another run holds the issue")
            ended = replace(
                known,
                lease=replace(known.lease, expires_at=now),
                ending=ending,
                painted=ending.outcome is Outcome.CONCEDED,
            )
            self._records[lease.issue] = ended
            return Released(ended)

    def acknowledge(self, record: Record) -> None:
        with self._lock:
            known = self._mine(record.lease)
            if known is not None and known.ending is not None:
                self._records[record.lease.issue] = replace(known, painted=True)

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        with self._lock:
            known, now = self._known(issue), self._now()
            if known is None or known.lease.run != revocation.run or not known.live:
                return None
            lease = replace(known.lease, expires_at=now) if revocation.force else known.lease
            self._records[issue] = replace(known, lease=lease, revocation=revocation)
            return self._records[issue]

    def read(self, issue: IssueRef) -> Record | None:
        with self._lock:
            return self._known(issue)

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        with self._lock:
            known = [self._known(issue) for issue in self._records]
        found = [
            record
            for record in known
            if record is not None and record.live and stage in (None, record.lease.stage)
        ]
        found.sort(key=lambda record: (record.lease.granted_at, record.lease.issue))
        return tuple(found[:limit])

    def _known(self, issue: IssueRef) -> Record | None:
        record = self._records.get(issue)
        return replace(record, as_of=self._now()) if record is not None else None

    def _mine(self, lease: Lease) -> Record | None:
        known = self._known(lease.issue)
        return known if known is not None and known.lease.run == lease.run else None
