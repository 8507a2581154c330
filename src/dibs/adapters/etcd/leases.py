"""Leases in etcd: one transaction grants, and the revision it makes is the fence.

A lease is live while its key exists, and etcd alone removes it. Every operation compares that what
it knows of the issue is still so and writes what `core.grants` makes of it, in one step; whoever
was overtaken gets the new state in the same reply and decides again. How a lease is written down is
in `etcd_records`, how long etcd keeps it in `etcd_terms`.
"""

import os
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.etcd.gateway import Gateway, Json, LeaseGone, Transacted, Watching, etcd_place
from dibs.adapters.etcd.records import (
    Keys,
    Reading,
    Terms,
    as_of,
    created_in,
    delete,
    end_of,
    find,
    find_all,
    none_created_after,
    put,
    read,
    read_floor,
    seconds_for,
    write,
    written_in,
)
from dibs.adapters.system import SystemClock
from dibs.adapters.wrappers.leases import plain_bid, plain_ending, plain_revocation
from dibs.core import grants
from dibs.core.errors import Unavailable
from dibs.core.ids import Fence, IssueRef, LocalTime, ServerTime
from dibs.core.lease import (
    AcquireResult,
    Bid,
    Busy,
    Ending,
    Full,
    Granted,
    Lease,
    Lost,
    Record,
    Released,
    ReleaseResult,
    Renewed,
    RenewResult,
    Revocation,
    StopAsked,
    Unproven,
)
from dibs.ports.leases import Guarantee
from dibs.ports.system import Clock

_TRIES = 16
_NOTICING = timedelta(seconds=1)
_PAGE = 500
_REMEMBERED = 4096
_LEAST_SPREAD_S, _MOST_SPREAD_S = 0.002, 0.128
K = TypeVar("K")
V = TypeVar("V")
Told = TypeVar("Told")


class _View(Struct, frozen=True):
    """What a bid knows, or guesses, when it is made."""

    reading: Reading = Reading()
    moment: ServerTime | None = None
    """When the store said so; None for a guess, on which nobody is refused."""
    count: int = 0
    """So many leases of the bid's stage were live ..."""
    counted_in: int = 0
    """... at this revision. None were, before there was any."""


class EtcdLeases:
    guarantees = (
        Guarantee.ATOMIC
        | Guarantee.FENCED
        | Guarantee.SERVER_CLOCK
        | Guarantee.IDEMPOTENT
        | Guarantee.DURABLE
        | Guarantee.COUNTED
    )

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        """`clock`: local and monotonic; it tells how old an etcd lease of ours is, and no more."""
        self._place = etcd_place(url)
        self.name = self._place.name
        self._clock = clock or SystemClock()
        self._keys = Keys(self._place.prefix)
        self._floor = (0, 0)
        """As it was last seen: the number, and the revision that wrote it."""
        self._begin(revision=0)

    def _begin(self, revision: int) -> None:
        """Connect to nothing yet, and know nothing but the revision below which etcd cannot be."""
        self._gateway = Gateway(self._place, self._clock, revision)
        self._terms = Terms(self._gateway, self._clock)
        # What was seen last. Nothing depends on it but the number of requests.
        self._known: _Recent[IssueRef, Reading] = _Recent()
        self._counts: _Recent[str, tuple[int, int]] = _Recent()
        self._spreads: _Recent[IssueRef, float] = _Recent()
        self._pid = os.getpid()  # last: another thread may go on once it is there

    def close(self) -> None:
        if self._pid == os.getpid():  # what a parent has open is the parent's to close
            self._gateway.close()

    def _deadline(self) -> LocalTime:
        """Until when an operation that begins now may go on.

        Every operation asks before it does anything. A child of a fork begins anew here: on one
        connection with its parent each would read the other's replies, and a lock that a thread of
        the parent held stays locked in the child for ever.
        """
        if self._pid != os.getpid():
            self._begin(self._gateway.revision)
        return self._gateway.deadline()

    # Acquiring

    def acquire(self, bid: Bid) -> AcquireResult:
        bid, until = plain_bid(bid), self._deadline()
        view = self._guess(bid)
        for _ in range(_TRIES):
            told = self._told(view, bid)
            if told is not None and view.moment is not None:
                return told
            try:
                outcome = self._bid(view, bid, until) if told is None else self._look(bid, until)
            except LeaseGone:
                continue  # it was forgotten, and the next try asks for another
            if isinstance(outcome, Granted):
                return outcome
            view = self._without_outranked(outcome, bid, until)
        return Unproven(f"{bid.issue} changed {_TRIES} times while it was bid for")

    def _guess(self, bid: Bid) -> _View:
        """That the issue is free: a bid which is wrong learns the truth with its refusal."""
        known = self._known.get(bid.issue)
        if known is None or not known.free:
            known = Reading()
        count, counted_in = self._counts.get(bid.stage) or (0, 0)
        return _View(known, None, count, counted_in)

    def _told(self, view: _View, bid: Bid) -> Granted | Busy | Full | None:
        """What the bid is told without a grant; None if it is to be made."""
        if view.moment is not None:
            told = grants.refusal(view.reading.told_at(view.moment), bid)
            if isinstance(told, Busy):
                self._woken_in_vain(bid.issue)
            if told is not None:
                return told
        full = bid.limit is not None and view.count >= bid.limit
        return Full(view.count) if full else None

    def _bid(self, view: _View, bid: Bid, until: LocalTime) -> Granted | _View:
        """One transaction: the grant, or why there is none."""
        lease, now = self._terms.begin(bid.ttl, until)
        known = view.reading.record
        if known is not None:
            now = max(now, known.lease.expires_at)
        made = grants.grant(bid, Fence(0), now)
        floor = self._floor_above(max(bid.floor, view.reading.fence))
        looks = self._looks(bid)
        reply = self._attaching(
            lease,
            until,
            compare=(*self._unchanged(bid.issue, view.reading), *self._room(view, bid), floor.same),
            success=(*looks, *self._kept(made, lease, floor=floor.number), *floor.kept),
            failure=looks,
        )
        before = self._view(reply, bid)
        return self._granted(made, floor, reply, before, bid) if reply.succeeded else before

    def _granted(
        self, made: Record, floor: "_Floor", reply: Transacted, before: _View, bid: Bid
    ) -> Granted | _View:
        """The grant with its fence; or what there is now, if that fence cannot be handed out."""
        revision = reply.revision
        lease = replace(made.lease, fence=Fence(floor.number + revision))
        after = Reading(
            revision, revision, revision, replace(made, lease=lease), before.reading.done
        )
        self._known.put(bid.issue, after)
        if floor.kept:
            self._floor = (floor.number, revision)
        if bid.limit is not None:
            self._counts.put(bid.stage, (before.count + 1, revision))
        return replace(before, reading=after) if after.outranked else Granted(lease)

    def _look(self, bid: Bid, until: LocalTime) -> _View:
        return self._view(self._gateway.txn(until, success=self._looks(bid)), bid)

    def _looks(self, bid: Bid) -> tuple[Json, ...]:
        """What a bid wants to know. In both branches, and before anything is written."""
        looks = (find_all(self._keys.issue(bid.issue)), find(self._keys.floor))
        if bid.limit is None:
            return looks
        return *looks, find_all(self._keys.stage(bid.stage), count_only=True)

    def _view(self, reply: Transacted, bid: Bid) -> _View:
        found, floors, *counted = reply.ranges
        self._floor = read_floor(floors.kvs)
        reading = self._keys.reading(bid.issue, found.kvs, reply.revision)
        self._known.put(bid.issue, reading)
        count = counted[0].count if counted else 0
        if counted:
            self._counts.put(bid.stage, (count, reply.revision))
        return _View(reading, reply.at, count, reply.revision)

    def _room(self, view: _View, bid: Bid) -> tuple[Json, ...]:
        """The count stands: leases that ended since make room, and whoever came since shows."""
        if bid.limit is None:
            return ()
        return (none_created_after(self._keys.stage(bid.stage), view.counted_in),)

    def _floor_above(self, least: int) -> "_Floor":
        """What to add to the revision so that the fence is above `least`.

        It is one number for all issues and never falls, so fences rise wherever revisions do.
        """
        (number, written), revision = self._floor, self._gateway.revision
        same = written_in(self._keys.floor, written)
        if number + revision >= least:  # what is written from now on is above that revision
            return _Floor(number, same)
        number = least - revision
        return _Floor(number, same, (put(self._keys.floor, str(number).encode()),))

    def _without_outranked(self, view: _View, bid: Bid, until: LocalTime) -> _View:
        """Take back a grant of this run whose fence is not above all before it.

        So it shows that the records were brought to a cluster whose revisions are lower. The grant
        was handed to nobody, and the next one is made above the fence that was found.
        """
        reading = view.reading
        if not reading.outranked or reading.record is None or reading.record.lease.run != bid.run:
            return view
        self._gateway.txn(
            until,
            compare=self._unchanged(bid.issue, reading),
            success=(*self._gone(reading.record.lease), delete(self._keys.open(bid.issue))),
        )
        return self._look(bid, until)

    # Changing what is there

    def renew(self, lease: Lease) -> RenewResult:
        def beat(known: Record | None, now: ServerTime) -> Record | StopAsked | Lost:
            if known is not None:  # the clock of another member may be behind
                now = max(now, ServerTime(known.lease.expires_at - known.lease.ttl))
            return grants.renewal(known, lease, now)

        until = self._deadline()
        made: Record | StopAsked | Lost = self._change(lease.issue, beat, until, renewing=True)
        return Renewed(replace(made.lease, card=lease.card)) if isinstance(made, Record) else made

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        ending = plain_ending(ending)

        def end(known: Record | None, now: ServerTime) -> Record | Released | Lost:
            return grants.ending(known, lease, ending, max(now, lease.granted_at))

        until = self._deadline()
        made: Record | Released | Lost = self._change(lease.issue, end, until)
        return Released(made) if isinstance(made, Record) else made

    def acknowledge(self, record: Record) -> None:
        def paint(known: Record | None, now: ServerTime) -> Record | None:
            del now
            return grants.acknowledgement(known, record)

        until = self._deadline()
        self._change(record.lease.issue, paint, until)

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        revocation = plain_revocation(revocation)

        def take(known: Record | None, now: ServerTime) -> Record | None:
            if known is not None:
                now = max(now, known.lease.granted_at)
            return grants.revoked(known, revocation, now)

        return self._change(issue, take, self._deadline())

    def _change(
        self,
        issue: IssueRef,
        decide: Callable[[Record | None, ServerTime], Record | Told],
        until: LocalTime,
        *,
        renewing: bool = False,
    ) -> Record | Told:
        """Write what is decided, if what it was decided on still stands; else decide again.

        What was remembered is good enough to write by, and never to refuse by.
        """
        reading, moment = self._known.get(issue), None
        for _ in range(_TRIES):
            if reading is None:
                reading, moment = self._read(issue, until)
            lease, now = self._times(reading, until, renewing=renewing)
            made = decide(reading.told_at(moment or now), now)
            if not isinstance(made, Record):
                if moment is not None:
                    return made
                reading = None
                continue
            try:
                reply = self._swap(reading, made, lease, until)
            except LeaseGone:
                continue
            if reply.succeeded:
                return self._changed(reading, made, reply)
            reading, moment = self._learned(issue, reply), reply.at
            known = reading.told_at(moment)
            if reply.resent and known is not None and known == replace(made, as_of=known.as_of):
                return known  # our own doing: its reply was lost, and it was sent again
        raise Unavailable(f"{self.name}: {issue} changed {_TRIES} times while it was written")

    def _times(
        self, reading: Reading, until: LocalTime, *, renewing: bool
    ) -> tuple[int | None, ServerTime]:
        """What a live lease is attached to anew, if it is; and the server's time."""
        if not renewing or reading.record is None:
            return None, self._gateway.lately(until)
        return self._terms.begin(reading.record.lease.ttl, until)

    def _swap(
        self, reading: Reading, made: Record, lease: int | None, until: LocalTime
    ) -> Transacted:
        issue = made.lease.issue
        if _ended(made):
            writes = (*self._gone(made.lease), *self._remains(made))
        else:
            writes = self._kept(made, lease)
        return self._attaching(
            lease,
            until,
            compare=self._unchanged(issue, reading),
            success=writes,
            failure=(find_all(self._keys.issue(issue)),),
        )

    def _changed(self, before: Reading, made: Record, reply: Transacted) -> Record:
        ended, wrapped_up = _ended(made), _wrapped_up(made)
        after = Reading(
            reply.revision,
            held=0 if ended else before.held,
            open=0 if wrapped_up else reply.revision,
            record=made,
            done=made.lease.fence if wrapped_up else before.done,
        )
        self._known.put(made.lease.issue, after)
        return as_of(made, reply.at, held=not ended)

    def _attaching(
        self,
        lease: int | None,
        until: LocalTime,
        *,
        compare: Sequence[Json],
        success: Sequence[Json],
        failure: Sequence[Json],
    ) -> Transacted:
        try:
            return self._gateway.txn(until, compare=compare, success=success, failure=failure)
        except LeaseGone:
            if lease is not None:
                self._terms.forget(lease)
            raise

    # What a transaction compares and writes

    def _unchanged(self, issue: IssueRef, reading: Reading) -> tuple[Json, ...]:
        """Every write changes `open`; only an expiry does not, and that takes `held` away."""
        return (
            written_in(self._keys.open(issue), reading.open),
            created_in(self._keys.held(issue), reading.held),
        )

    def _kept(self, record: Record, lease: int | None, *, floor: int = 0) -> tuple[Json, ...]:
        """Live, for as long as that etcd lease; None: for as long as before."""
        of, text = record.lease, write(record, floor=floor)
        return (
            put(self._keys.held(of.issue), of.run.encode(), lease),
            put(self._keys.in_stage(of), text, lease),
            put(self._keys.open(of.issue), text),
        )

    def _gone(self, lease: Lease) -> tuple[Json, ...]:
        return delete(self._keys.held(lease.issue)), delete(self._keys.in_stage(lease))

    def _remains(self, record: Record) -> tuple[Json, ...]:
        issue, text = record.lease.issue, write(record)
        if not _wrapped_up(record):
            return (put(self._keys.open(issue), text),)
        return delete(self._keys.open(issue)), put(self._keys.done(issue), text)

    # Reading

    def read(self, issue: IssueRef) -> Record | None:
        reading, moment = self._read(issue, self._deadline())
        return reading.told_at(moment)

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        prefix = self._keys.live if stage is None else self._keys.stage(stage)
        records: list[Record] = []
        oldest = 1
        while (wanted := min(_PAGE, limit - len(records))) > 0:
            page = self._gateway.range(
                self._deadline(),
                {
                    "key": prefix,
                    "range_end": end_of(prefix),
                    "sort_target": "CREATE",
                    "sort_order": "ASCEND",
                    "min_create_revision": oldest,
                    "limit": wanted,
                },
            )
            records += (
                as_of(read(pair, pair.create_revision), page.at, held=True) for pair in page.keys
            )
            if len(page.keys) < wanted:
                break
            oldest = page.keys[-1].create_revision + 1
        return tuple(records)

    def lingers(self, ttl: timedelta) -> timedelta:
        """What etcd is asked for on top, and the second or so that it takes to notice."""
        return timedelta(seconds=seconds_for(ttl)) - ttl + _NOTICING

    def highest(self) -> Fence:
        """Reads every record, a page at a time: also one that was brought from another cluster."""
        start, end = self._keys.issues, end_of(self._keys.issues)
        highest = Fence(0)
        while True:
            page = self._gateway.range(
                self._deadline(), {"key": start, "range_end": end, "limit": _PAGE}
            ).keys
            for pair in page:
                if not pair.key.endswith(b"/held"):
                    highest = max(highest, read(pair, pair.mod_revision).lease.fence)
            if len(page) < _PAGE:
                return highest
            start = page[-1].key + b"\0"

    def _read(self, issue: IssueRef, until: LocalTime) -> tuple[Reading, ServerTime]:
        prefix = self._keys.issue(issue)
        found = self._gateway.range(until, {"key": prefix, "range_end": end_of(prefix)})
        reading = self._keys.reading(issue, found.keys, found.revision)
        self._known.put(issue, reading)
        return reading, found.at

    def _learned(self, issue: IssueRef, reply: Transacted) -> Reading:
        reading = self._keys.reading(issue, reply.ranges[0].kvs, reply.revision)
        self._known.put(issue, reading)
        return reading

    # Waiting

    def await_end(self, issue: IssueRef, seconds: float) -> None:
        """Tells of an expiry as well, since etcd then deletes the key."""
        until, deadline = LocalTime(self._clock.now() + seconds), self._deadline()
        reading = self._known.get(issue) or self._read(issue, deadline)[0]
        if reading.free:
            return
        keys = self._keys.issue(issue)
        # From the reading on: what happened since then is told first, so that no end is missed.
        with self._gateway.watch(until, keys, end_of(keys), reading.revision + 1) as watching:
            if reading.held:
                self._await_turn(issue, watching)
            else:
                _await_change(watching)

    def _await_turn(self, issue: IssueRef, watching: Watching) -> None:
        """Return when the issue is free and nobody was quicker.

        Waiters do not all run at once: each lets a random while pass, and sleeps on if it sees a
        new holder in it, which costs no request. Whoever is beaten waits longer the next time.
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

    def _woken_in_vain(self, issue: IssueRef) -> None:
        spread = self._spreads.get(issue)
        if spread is not None:
            self._spreads.put(issue, min(_MOST_SPREAD_S, spread * 2))


class _Floor(Struct, frozen=True):
    number: int
    same: Json
    """The comparison that it is still the one we know."""
    kept: tuple[Json, ...] = ()
    """How it is raised, if it has to be."""


class _Recent(Generic[K, V]):
    """The last few thousand, for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        with self._lock:
            return self._kept.get(key)

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            if len(self._kept) > _REMEMBERED:
                self._kept.popitem(last=False)


def _await_change(watching: Watching) -> None:
    while (events := watching.events()) is not None:
        if events:
            return


def _ended(record: Record) -> bool:
    """Decided or forced. Whether it expired is etcd's to say."""
    forced = record.revocation is not None and record.revocation.force
    return record.ending is not None or forced


def _wrapped_up(record: Record) -> bool:
    return record.ending is not None and record.painted
