"""Leases in etcd: a grant is one transaction, and the revision of the transaction is the fence.

A lease is live while its key exists, and only etcd removes the key when the time is over. Every
operation is one transaction: it compares the issue's keys with the ones that the client knows, and
writes the record that `core.grants` decides on. If another client was faster, the same reply
contains the new state, and the operation decides again. `records` describes how a lease is written
and, in `Terms`, how long etcd keeps it.
"""

import os
import random
from collections.abc import Callable, Sequence
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.etcd import records
from dibs.adapters.etcd.gateway import (
    Gateway,
    Json,
    KeyValue,
    LeaseGone,
    Transacted,
    Watching,
    etcd_place,
)
from dibs.adapters.etcd.records import EtcdKeys, IssueReading, Terms
from dibs.adapters.system import SystemClock
from dibs.adapters.wrappers.leases import Answer, Recent, WholeRecords
from dibs.core import grants
from dibs.core.durations import LOST_RACE
from dibs.core.errors import Unavailable
from dibs.core.grants import plain_bid, plain_ending, plain_revocation
from dibs.core.ids import Fence, IssueRef, LocalTime, ServerTime
from dibs.core.lease import (
    AcquireResult,
    Bid,
    Busy,
    Ending,
    Full,
    Granted,
    Lease,
    Record,
    ReleaseResult,
    Revocation,
    Unproven,
)
from dibs.ports.leases import EVERY_GUARANTEE
from dibs.ports.system import Clock

_NOTICING = timedelta(seconds=1)
_PAGE = 500
_REMEMBERED = 4096
_LEAST_SPREAD_S, _MOST_SPREAD_S = 0.002, 0.128


class _View(Struct, frozen=True):
    """The state of issue and stage on which a bid is based: read from etcd, or guessed."""

    reading: IssueReading = IssueReading()
    moment: ServerTime | None = None
    """The server's time of the reading; None for a guess, by which no bid is refused."""
    count: int = 0
    """How many leases of the bid's stage were live at the revision `counted_in`."""
    counted_in: int = 0
    """0: before the first revision, when no lease was live."""


class EtcdLeases(WholeRecords):
    guarantees = EVERY_GUARANTEE

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        """`clock`: local and monotonic; measures durations only, such as the age of etcd leases."""
        self._place = etcd_place(url)
        self.name = self._place.name
        self._clock = clock or SystemClock()
        self._keys = EtcdKeys(self._place.prefix)
        self._floor = (0, 0)
        """As it was last seen: the number, and the revision that wrote it."""
        self._begin(revision=0)

    def _begin(self, revision: int) -> None:
        """Start with empty caches and without a connection. etcd cannot be below `revision`."""
        self._gateway = Gateway(self._place, self._clock, revision)
        self._terms = Terms(self._gateway, self._clock)
        # The last state that was seen. Only the number of requests depends on these caches.
        self._readings: Recent[IssueRef, IssueReading] = Recent(_REMEMBERED)
        self._counts: Recent[str, tuple[int, int]] = Recent(_REMEMBERED)
        self._spreads: Recent[IssueRef, float] = Recent(_REMEMBERED)
        self._pid = os.getpid()  # last: another thread may go on once it is set

    def close(self) -> None:
        if self._pid == os.getpid():  # a child of a fork leaves the parent's connections open
            self._gateway.close()

    def _deadline(self) -> LocalTime:
        """The end of the time that an operation may take if the operation begins now.

        Every operation calls `_deadline` first, because a child of a fork starts anew here: parent
        and child would read each other's replies on a shared connection, and a lock held by a
        thread of the parent stays locked in the child for ever.
        """
        if self._pid != os.getpid():
            self._begin(self._gateway.revision)
        return self._gateway.deadline()

    # Acquiring

    def acquire(self, bid: Bid) -> AcquireResult:
        """Bid without reading first, on the guess that the issue is free.

        If the guess is wrong, the refused transaction returns the state for the next try.
        """
        bid, until = plain_bid(bid), self._deadline()
        reading = self._readings.get(bid.issue)
        if reading is None or not reading.free:
            reading = IssueReading()
        count, counted_in = self._counts.get(bid.stage) or (0, 0)
        view = _View(reading, None, count, counted_in)
        for _ in range(LOST_RACE.most):
            answer = self._answer_without_bid(view, bid)
            if answer is not None and view.moment is not None:
                return answer
            try:
                outcome = self._bid(view, bid, until) if answer is None else self._look(bid, until)
            except LeaseGone:
                continue  # `_attaching` forgot the etcd lease, and the next try asks for another
            if isinstance(outcome, Granted):
                return outcome
            view, reading, record = outcome, outcome.reading, outcome.reading.record
            if reading.outranked and record is not None and record.lease.run == bid.run:
                # This run got a grant whose fence is not above all fences before it: the records
                # were brought to a cluster whose revisions are lower. Take the grant back; no
                # caller has seen it. The next grant is made above the fence that was found.
                self._gateway.txn(
                    until,
                    compare=self._unchanged(bid.issue, reading),
                    success=(
                        *self._delete_live(record.lease),
                        records.delete(self._keys.open(bid.issue)),
                    ),
                )
                view = self._look(bid, until)
        return Unproven(f"{bid.issue} changed {LOST_RACE.most} times while it was bid for")

    def _answer_without_bid(self, view: _View, bid: Bid) -> Granted | Busy | Full | None:
        """The answer if the view allows no new grant: own lease, busy, full. None: make the bid."""
        if view.moment is not None:
            answer = grants.refusal(view.reading.record_at(view.moment), bid)
            spread = self._spreads.get(bid.issue)
            if isinstance(answer, Busy) and spread is not None:
                # `await_end` woke us in vain, since a rival was faster: wait longer the next time.
                self._spreads.put(bid.issue, min(_MOST_SPREAD_S, spread * 2))
            if answer is not None:
                return answer
        full = bid.limit is not None and view.count >= bid.limit
        return Full(view.count) if full else None

    def _bid(self, view: _View, bid: Bid, until: LocalTime) -> Granted | _View:
        """Write the grant in one transaction, if issue, stage and floor are still as in `view`.

        Returns the state in etcd if the transaction was refused, or if the fence of the grant
        cannot be handed out (`outranked`).
        """
        etcd_lease, now = self._terms.begin(bid.ttl, until)
        last = view.reading.record
        if last is not None:
            now = max(now, last.lease.expires_at)
        made = grants.grant(bid, Fence(0), now)
        floor = self._floor_above(max(bid.floor, view.reading.fence))
        compare = [*self._unchanged(bid.issue, view.reading)]
        if bid.limit is not None:
            # Then the count is still an upper bound: leases that ended since then only make room,
            # and this comparison fails if a lease was granted since then.
            compare.append(records.none_created_after(self._keys.stage(bid.stage), view.counted_in))
        compare.append(floor.unchanged)
        reads = self._reads(bid)
        reply = self._attaching(
            etcd_lease,
            until,
            compare=compare,
            success=(*reads, *self._put_live(made, etcd_lease, floor=floor.number), *floor.raising),
            failure=reads,
        )
        before = self._view(reply, bid)
        if not reply.succeeded:
            return before
        revision = reply.revision
        lease = replace(made.lease, fence=Fence(floor.number + revision))
        after = IssueReading(
            revision,
            held=revision,
            open=revision,
            record=replace(made, lease=lease),
            done=before.reading.done,
        )
        self._readings.put(bid.issue, after)
        if floor.raising:
            self._floor = (floor.number, revision)
        if bid.limit is not None:
            self._counts.put(bid.stage, (before.count + 1, revision))
        return replace(before, reading=after) if after.outranked else Granted(lease)

    def _look(self, bid: Bid, until: LocalTime) -> _View:
        return self._view(self._gateway.txn(until, success=self._reads(bid)), bid)

    def _reads(self, bid: Bid) -> tuple[Json, ...]:
        """The reads that a bid needs: the issue's keys, the floor, the count of the stage.

        A bid puts them into both branches of the transaction, before all writes.
        """
        reads = (records.get_prefix(self._keys.issue(bid.issue)), records.get(self._keys.floor))
        if bid.limit is None:
            return reads
        return *reads, records.get_prefix(self._keys.stage(bid.stage), count_only=True)

    def _view(self, reply: Transacted, bid: Bid) -> _View:
        """Decode and remember the results of `_reads`."""
        found, floors, *counted = reply.ranges
        self._floor = records.read_floor(floors.kvs)
        reading = self._reading(bid.issue, found.kvs, reply.revision)
        count = counted[0].count if counted else 0
        if counted:
            self._counts.put(bid.stage, (count, reply.revision))
        return _View(reading, reply.at, count, reply.revision)

    def _floor_above(self, least: int) -> "_Floor":
        """A floor that makes the next fence, floor plus revision, higher than `least`.

        All issues share the floor and the floor never falls, hence fences rise with revisions.
        """
        (number, written), revision = self._floor, self._gateway.revision
        unchanged = records.written_in(self._keys.floor, written)
        if number + revision >= least:  # every later write gets a revision above this one
            return _Floor(number, unchanged)
        number = least - revision
        return _Floor(number, unchanged, (records.put(self._keys.floor, str(number).encode()),))

    # Changing a lease

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        return super().release(lease, plain_ending(ending))

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        return super().revoke(issue, plain_revocation(revocation))

    def _change(
        self,
        issue: IssueRef,
        decide: Callable[[Record | None, ServerTime], Record | Answer],
        *,
        renewing: bool = False,
    ) -> Record | Answer:
        """The first decision may be based on a remembered reading, because a write compares.

        An answer without a write is returned only if the reading came from etcd during the call.
        """
        until = self._deadline()
        reading, moment = self._readings.get(issue), None
        for _ in range(LOST_RACE.most):
            if reading is None:
                reading, moment = self._read(issue, until)
            etcd_lease: int | None = None  # the keys stay attached as they are
            if renewing and reading.record is not None:
                etcd_lease, now = self._terms.begin(reading.record.lease.ttl, until)
            else:
                now = self._gateway.recent_time(until)
            known = reading.record_at(moment or now)
            if known is not None:  # the clock of the member that we ask may be behind
                lease = known.lease
                begun = ServerTime(lease.expires_at - lease.ttl) if renewing else lease.granted_at
                now = max(now, begun)
            made = decide(known, now)
            if not isinstance(made, Record):
                if moment is not None:
                    return made
                reading = None
                continue
            try:
                reply = self._swap(reading, made, etcd_lease, until)
            except LeaseGone:
                continue
            if reply.succeeded:
                ended, finished = _ended(made), _finished(made)
                after = IssueReading(
                    reply.revision,
                    held=0 if ended else reading.held,
                    open=0 if finished else reply.revision,
                    record=made,
                    done=made.lease.fence if finished else reading.done,
                )
                self._readings.put(issue, after)
                return records.as_of(made, reply.at, held=not ended)
            reading, moment = self._reading(issue, reply.ranges[0].kvs, reply.revision), reply.at
            known = reading.record_at(moment)
            if reply.resent and known is not None and known == replace(made, as_of=known.as_of):
                return known  # our own first sending was carried out, and its reply was lost
        raise Unavailable(
            f"{self.name}: {issue} changed {LOST_RACE.most} times while it was written"
        )

    def _swap(
        self, reading: IssueReading, made: Record, etcd_lease: int | None, until: LocalTime
    ) -> Transacted:
        """Replace the record in one transaction. A refused transaction returns the issue's keys."""
        issue = made.lease.issue
        writes: tuple[Json, ...]
        if not _ended(made):
            writes = self._put_live(made, etcd_lease)
        elif not _finished(made):
            writes = (
                *self._delete_live(made.lease),
                records.put(self._keys.open(issue), records.write(made)),
            )
        else:
            writes = (
                *self._delete_live(made.lease),
                records.delete(self._keys.open(issue)),
                records.put(self._keys.done(issue), records.write(made)),
            )
        return self._attaching(
            etcd_lease,
            until,
            compare=self._unchanged(issue, reading),
            success=writes,
            failure=(records.get_prefix(self._keys.issue(issue)),),
        )

    def _attaching(
        self, etcd_lease: int | None, until: LocalTime, **parts: Sequence[Json]
    ) -> Transacted:
        """Send a transaction, with parts as of `Gateway.txn`, that attaches keys to the etcd lease.

        If the etcd lease is gone, forget the lease and raise LeaseGone.
        """
        try:
            return self._gateway.txn(until, **parts)
        except LeaseGone:
            if etcd_lease is not None:
                self._terms.forget(etcd_lease)
            raise

    # The comparisons and writes of a transaction

    def _unchanged(self, issue: IssueRef, reading: IssueReading) -> tuple[Json, ...]:
        """Compare `open` and `held`: every write changes `open`, and an expiry removes `held`."""
        return (
            records.written_in(self._keys.open(issue), reading.open),
            records.created_in(self._keys.held(issue), reading.held),
        )

    def _put_live(
        self, record: Record, etcd_lease: int | None, *, floor: int = 0
    ) -> tuple[Json, ...]:
        """Write a live lease, which lasts as long as the etcd lease. None: as long as before."""
        lease, text = record.lease, records.write(record, floor=floor)
        return (
            records.put(self._keys.held(lease.issue), lease.run.encode(), etcd_lease),
            records.put(self._keys.in_stage(lease), text, etcd_lease),
            records.put(self._keys.open(lease.issue), text),
        )

    def _delete_live(self, lease: Lease) -> tuple[Json, ...]:
        return tuple(
            map(records.delete, (self._keys.held(lease.issue), self._keys.in_stage(lease)))
        )

    # Reading

    def read(self, issue: IssueRef) -> Record | None:
        reading, moment = self._read(issue, self._deadline())
        return reading.record_at(moment)

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        prefix = self._keys.live if stage is None else self._keys.stage(stage)
        found: list[Record] = []
        oldest = 1
        while (wanted := min(_PAGE, limit - len(found))) > 0:
            page = self._gateway.range(
                self._deadline(),
                {
                    "key": prefix,
                    "range_end": records.end_of(prefix),
                    "sort_target": "CREATE",
                    "sort_order": "ASCEND",
                    "min_create_revision": oldest,
                    "limit": wanted,
                },
            )
            found += (
                records.as_of(records.read(pair, pair.create_revision), page.at, held=True)
                for pair in page.keys
            )
            if len(page.keys) < wanted:
                break
            oldest = page.keys[-1].create_revision + 1
        return tuple(found)

    def lingers(self, ttl: timedelta) -> timedelta:
        """The time asked of etcd beyond the ttl, and about a second until etcd notices the end."""
        return timedelta(seconds=records.seconds_for(ttl)) - ttl + _NOTICING

    def highest(self) -> Fence:
        """Reads every record, page by page: records brought from another cluster count as well."""
        start, end = self._keys.issues, records.end_of(self._keys.issues)
        highest = Fence(0)
        while True:
            page = self._gateway.range(
                self._deadline(), {"key": start, "range_end": end, "limit": _PAGE}
            ).keys
            for pair in page:
                if not pair.key.endswith(b"/held"):
                    highest = max(highest, records.read(pair, pair.mod_revision).lease.fence)
            if len(page) < _PAGE:
                return highest
            start = page[-1].key + b"\0"

    def _read(self, issue: IssueRef, until: LocalTime) -> tuple[IssueReading, ServerTime]:
        prefix = self._keys.issue(issue)
        found = self._gateway.range(until, {"key": prefix, "range_end": records.end_of(prefix)})
        return self._reading(issue, found.keys, found.revision), found.at

    def _reading(self, issue: IssueRef, found: Sequence[KeyValue], revision: int) -> IssueReading:
        """Decode an issue's keys, and remember them."""
        reading = self._keys.reading(issue, found, revision)
        self._readings.put(issue, reading)
        return reading

    # Waiting

    def await_end(self, issue: IssueRef, seconds: float) -> None:
        """Returns after an expiry as well, because etcd then deletes the key `held`."""
        until, deadline = LocalTime(self._clock.now() + seconds), self._deadline()
        reading = self._readings.get(issue) or self._read(issue, deadline)[0]
        if reading.free:
            return
        keys = self._keys.issue(issue)
        # The watch begins right after the reading, and reports past events first: none is missed.
        since = reading.revision + 1
        with self._gateway.watch(until, keys, records.end_of(keys), since) as watching:
            if reading.held:
                self._await_turn(issue, watching)
                return
            while (events := watching.events()) is not None:
                if events:
                    return

    def _await_turn(self, issue: IssueRef, watching: Watching) -> None:
        """Return when the issue is free and no rival took the issue first.

        Waiters must not all bid at once. Each waits for a random time after the end of a lease, and
        goes on waiting if a new holder appears, which costs no request. A waiter that lost
        waits longer the next time.
        """
        held_key = self._keys.held(issue)
        while (events := watching.events()) is not None:
            states = [event.type != "DELETE" for event in events if event.kv.key == held_key]
            if not states or states[-1]:
                continue
            spread = self._spreads.get(issue) or _LEAST_SPREAD_S
            if watching.quiet(random.uniform(0, spread)):
                self._spreads.put(issue, max(_LEAST_SPREAD_S, spread / 2))
                return
            self._spreads.put(issue, min(_MOST_SPREAD_S, spread * 2))


class _Floor(Struct, frozen=True):
    number: int
    unchanged: Json
    """The comparison of the floor's key with the one that we read."""
    raising: tuple[Json, ...] = ()
    """The write that raises the floor; empty if the floor is high enough."""


def _ended(record: Record) -> bool:
    """Whether the holder decided an ending or an operator forced a revocation.

    Expiry is not considered: etcd decides about expiry.
    """
    forced = record.revocation is not None and record.revocation.force
    return record.ending is not None or forced


def _finished(record: Record) -> bool:
    """Whether the lease has an ending, and the ending is painted."""
    return record.ending is not None and record.painted
