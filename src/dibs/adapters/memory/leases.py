"""Leases in this process's memory: one lock makes each operation atomic; they end with the process.

Stores whole records, and asks `core.grants` for the next record.
"""

import threading
from collections.abc import Callable

from msgspec.structs import replace

from dibs.adapters.wrappers.leases import Answer, WholeRecords
from dibs.core import grants
from dibs.core.ids import Fence, IssueRef, ServerTime
from dibs.core.lease import AcquireResult, Bid, Full, Granted, Record
from dibs.ports.leases import EVERY_GUARANTEE, Guarantee


class MemoryLeases(WholeRecords):
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
            self._records[bid.issue] = record
            return Granted(record.lease)

    def _change(
        self,
        issue: IssueRef,
        decide: Callable[[Record | None, ServerTime], Record | Answer],
        *,
        renewing: bool = False,  # noqa: ARG002 - a renewal is a change like any other
    ) -> Record | Answer:
        with self._lock:
            made = decide(self._read(issue), self._now())
            if isinstance(made, Record):
                self._records[issue] = made
            return made

    def read(self, issue: IssueRef) -> Record | None:
        with self._lock:
            return self._read(issue)

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        with self._lock:
            return tuple(self._live(stage)[:limit])

    def highest(self) -> Fence:
        with self._lock:
            fences = (record.lease.fence for record in self._records.values())
            return Fence(max(fences, default=0))

    def _live(self, stage: str | None) -> list[Record]:
        return grants.live_records(map(self._read, self._records), stage)

    def _read(self, issue: IssueRef) -> Record | None:
        """The stored record, with the present time. The caller holds the lock."""
        record = self._records.get(issue)
        return replace(record, as_of=self._now()) if record is not None else None
