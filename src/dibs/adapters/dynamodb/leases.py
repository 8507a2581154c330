"""Leases in one DynamoDB table: an item for each issue, and no clock but the watcher's own.

DynamoDB has no clock that a condition could ask. So a lease is over when a client has *watched* it
be over. Every grant and every renewal puts a new random `version` into the item. A client that has
seen the same version unchanged for the whole ttl, on its own monotonic clock, may write that the
lease is over, or take the issue; the write is refused if the version has changed. Only durations
cross machines; times of day never decide. A holder counts the ttl from before it sent the write, a
watcher from after it received the version. So the watcher's ttl always ends after the holder's.

The first client that sees that a lease is over writes so into the item (`state = over`). Processes
that live for one command watch nothing, and read the state there. Once the state is written,
nothing revives the lease: the late holder's write is refused. A holder that has seen nothing new of
its own lease for a ttl reads the item before it writes, and thereby writes down its own end.

`granted_at` and `expires_at` are stamps of the writer's time of day, for people. The `as_of` of a
record is computed back from them: the stamp of the last write, plus the time for which we have
known the version. So `Record.live` means exactly that we have not watched the version for a ttl,
and `Record.remaining` is the time for which we would still have to watch it.

A limit is kept without slots that could be lost: the leases themselves are counted, in an index
that is read consistently. The grant is written in one transaction with the stage's turn, which is
refused if another client was granted a lease under a limit since the counting began. A transaction
becomes visible item by item. So the turn names the grant that it was taken with, and no client
counts before it can see that grant.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from typing import Self
from urllib.parse import quote, unquote

from msgspec.structs import replace

from dibs.adapters.dynamodb.table import Change, DynamoTable, Item, UpdateResult, Value, parse_place
from dibs.adapters.system import SystemClock
from dibs.adapters.wrappers.leases import MemoryObservations, Observations, new_nonce, time_of_day
from dibs.core import grants
from dibs.core.durations import LOST_RACE
from dibs.core.errors import Damaged, NotPermitted, Outage, Unavailable
from dibs.core.grants import plain_bid, plain_ending, plain_name, plain_revocation
from dibs.core.ids import (
    ZERO,
    Fence,
    HolderId,
    IssueRef,
    LocalTime,
    RunId,
    ServerTime,
    StageName,
    later,
    milliseconds,
    server_time,
)
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
from dibs.ports.leases import EVERY_GUARANTEE, Guarantee
from dibs.ports.system import Clock

_HELD = "held"
_UNPAINTED = "unpainted"
_OVER = "over"
_STATES: Mapping[str, Value] = {"held": _HELD, "unpainted": _UNPAINTED, "over": _OVER}
_ENDED = ("outcome", "next", "note", "revoked_by", "revoked_why")
# Attributes of an ended lease that the next lease must not inherit.
_LEFT_BEHIND = (*_ENDED, "revoked_now")
_ISSUES = "issue:"
_STAGES = "stage:"
_MINE = "#run = :mine AND #state = :held"


class _WriteResult(UpdateResult, frozen=True):
    age: timedelta | None = None
    """How long we have known the version, if we wrote it; None: ask the observations."""


class DynamoLeases:
    guarantees = EVERY_GUARANTEE & ~Guarantee.SERVER_CLOCK

    def __init__(self, table: DynamoTable, observations: Observations, clock: Clock) -> None:
        self._table, self._observations, self._clock = table, observations, clock
        self.name = table.name
        self._observed = f"{table.identity}/"
        """The beginning of every name under which an item is observed."""

    @classmethod
    def connect(
        cls, url: str, observations: Observations | None = None, clock: Clock | None = None
    ) -> Self:
        """Sends no request yet. Without `observations`, the store keeps its own in memory."""
        clock = SystemClock() if clock is None else clock
        observations = MemoryObservations(clock) if observations is None else observations
        return cls(DynamoTable(parse_place(url), clock), observations, clock)

    def close(self) -> None:
        self._table.close()

    # The operations

    def acquire(self, bid: Bid) -> AcquireResult:
        bid = plain_bid(bid)
        if bid.limit is not None:
            answer = self._try_within(bid, bid.limit)
            for _ in range(LOST_RACE.most):
                if not isinstance(answer, Unproven):
                    break
                self._table.step_back()
                answer = self._try_within(bid, bid.limit)
            return answer
        # Grant in one step, without having read the item; the update itself raises the fence.
        change = Change(
            "attribute_not_exists(#state) OR #state = :over AND #fence >= :floor",
            put=_grant_attributes(bid),
            compute={"fence": "if_not_exists(#fence, :floor) + :one"},
            drop=_LEFT_BEHIND,
            given={**_STATES, "floor": bid.floor, "one": 1},
        )
        written = self._write(bid.issue, change)
        for _ in range(LOST_RACE.most):
            known = self._record(bid.issue, written.item, written.age)
            if written.done:
                assert known is not None, "it was just written"
                return Granted(known.lease)
            match grants.refusal(known, bid):
                case None:
                    change = _grant_over(bid, known, written.item)
                case Granted():
                    change = _repeat_grant(written.item)
                case busy:
                    return busy
            written = self._write(bid.issue, change)
        return Unproven(f"{bid.issue} changed hands faster than it could be taken")

    def _try_within(self, bid: Bid, limit: int) -> AcquireResult:
        """Read the stage's turn, then count, then grant and take the turn in one transaction.

        If another client is granted a lease under a limit after our first read, the client has
        taken the turn: our transaction is refused, and the caller tries again. Leases that end
        during the count only leave room. A lease that is granted without a limit during the count
        could as well have come after ours.
        """
        record_name = _record_name(bid.issue)
        turn_name = f"{_STAGES}{quote(bid.stage, safe='')}"
        items = self._table.get_many((record_name, turn_name))
        item, turn = items.get(record_name), items.get(turn_name)
        known = self._record(bid.issue, item)
        refusal = grants.refusal(known, bid)
        if isinstance(refusal, Granted) and not self._write(bid.issue, _repeat_grant(item)).done:
            return Unproven(f"{bid.issue} changed while it was looked at")
        if refusal is not None:
            return refusal
        if turn is not None:
            # The grant that the turn was last taken with must be visible before we count.
            granted = self._table.get(_text(turn, "taken_for"))
            if granted is None or _number(granted, "fence") < _number(turn, "fence"):
                return Unproven(f"a grant of stage {bid.stage!r} was made and cannot be seen yet")
        in_flight = sum(1 for _ in self._in_flight(bid.stage))
        if in_flight >= limit:
            return Full(in_flight)
        grant = _grant_over(bid, known, item)
        take_turn = _take_turn(bid, grant, turn)
        sent_at = self._clock.now()
        if not self._table.update_together({record_name: grant, turn_name: take_turn}):
            return Unproven(f"others were granted leases of stage {bid.stage!r} meanwhile")
        self._note_version(bid.issue, grant, sent_at)
        return Granted(_stored(bid.issue, grant.put).lease)

    def renew(self, lease: Lease) -> RenewResult:
        self._look_if_silent(lease)
        # If the time of day was set back, the lease keeps the `expires_at` that it has.
        expires_at = max(later(time_of_day(), lease.ttl), lease.expires_at)
        change = Change(
            f"{_MINE} AND attribute_not_exists(#revoked_by) AND #version <> :version",
            put={"expires_at": _stamp(expires_at), "version": new_nonce()},
            compute={"beats": "#beats + :one"},
            given={**_STATES, "mine": lease.run, "one": 1},
        )
        written = self._write(lease.issue, change)
        known = self._record(lease.issue, written.item, written.age)
        if known is None or known.lease.run != lease.run or not known.live:
            return Lost(grants.NOT_OURS)
        if written.done:
            return Renewed(replace(known.lease, card=lease.card))
        if known.revocation is not None:
            return grants.asked_to_stop(known.revocation)
        return Lost(grants.NOT_OURS)

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        self._look_if_silent(lease)
        ending = plain_ending(ending)
        put: dict[str, Value] = {
            "state": _OVER if ending.outcome is Outcome.CONCEDED else _UNPAINTED,
            "outcome": ending.outcome.value,
            "note": ending.note,
            "expires_at": _stamp(time_of_day()),
            "version": new_nonce(),
        }
        if ending.next is not None:
            put["next"] = ending.next
        change = Change(_MINE, put=put, drop=("since",), given={**_STATES, "mine": lease.run})
        written = self._write(lease.issue, change)
        known = self._record(lease.issue, written.item, written.age)
        if known is None or known.lease.run != lease.run or known.ending is None:
            return Lost(grants.NOT_OURS)
        return Released(known)  # by this write, or by an earlier write whose reply was lost

    def acknowledge(self, record: Record) -> None:
        change = Change(
            "#run = :mine AND #state = :unpainted",
            put={"state": _OVER},
            given={**_STATES, "mine": record.lease.run},
        )
        self._write(record.lease.issue, change)

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        revocation = plain_revocation(revocation)
        put: dict[str, Value] = {
            "revoked_by": revocation.by,
            "revoked_why": revocation.reason,
            "revoked_now": revocation.force,
        }
        # A mere request leaves the version alone: a new version would give the holder more time.
        if revocation.force:
            put |= {"state": _OVER, "expires_at": _stamp(time_of_day()), "version": new_nonce()}
        change = Change(
            _MINE,
            put=put,
            drop=("since",) if revocation.force else (),
            given={**_STATES, "mine": revocation.run},
        )
        written = self._write(issue, change)
        if not written.done or written.item is None:
            return None
        record = self._expire_if_over(issue, written.item, written.age)
        return record if record.live or revocation.force else None

    def read(self, issue: IssueRef) -> Record | None:
        item = self._table.get(_record_name(issue))
        return self._expire_if_over(issue, item) if item is not None else None

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        if stage is not None:
            plain_name(stage)
        found = islice(self._in_flight(stage), max(0, limit))
        return tuple(grants.live_records(found, stage))

    def highest(self) -> Fence:
        fences = (_number(item, "fence") for item in self._table.all(_ISSUES, ("fence",)))
        return Fence(max(fences, default=0))

    # From items to records

    def _record(
        self, issue: IssueRef, item: Item | None, age: timedelta | None = None
    ) -> Record | None:
        """The item as a record. `as_of` depends on how long we have known the item's version.

        `age`: that time, if the caller knows; None: ask the observations.
        """
        if item is None:
            return None
        record, state = _stored(issue, item), _text(item, "state")
        # A painted ending is over, however long we have watched it.
        if record.ending is not None and record.painted:
            return record
        if age is None:
            name = self._observed + _record_name(issue)
            age = self._observations.age(name, _text(item, "version"))
        watched = age - record.lease.ttl if state == _HELD else age
        return replace(record, as_of=later(record.as_of, watched))

    def _expire_if_over(self, issue: IssueRef, item: Item, age: timedelta | None = None) -> Record:
        """The item as a record. If we have watched the lease be over, write the expiry first."""
        for _ in range(LOST_RACE.most):
            record = self._record(issue, item, age)
            assert record is not None, "there is an item"
            if record.live or _text(item, "state") != _HELD:
                return record
            expiry = Change(
                "#version = :seen AND #state = :held",
                put={"state": _OVER, "version": new_nonce()},
                drop=("since",),
                given={**_STATES, "seen": _text(item, "version")},
            )
            over_for = record.as_of - record.lease.expires_at
            try:
                written = self._write(issue, expiry, already=over_for)
            except NotPermitted:
                return record  # a client that may only read has watched the lease all the same
            if written.item is None:
                break
            item, age = written.item, written.age
        raise Damaged(f"{self.name}: the record of {issue} changes without end, or was deleted")

    def _in_flight(self, stage: str | None) -> Iterator[Record]:
        """The live leases, the oldest grant first. Expiries are written on the way."""
        only_if, values = ("#stage = :stage", {"stage": stage}) if stage is not None else ("", {})
        for names in self._table.in_flight(only_if, values):
            items = self._table.get_many(names)
            for name in names:
                if name not in items:
                    continue
                repo, _, key = name.removeprefix(_ISSUES).partition("#")  # see `_record_name`
                record = self._expire_if_over(IssueRef(unquote(repo), unquote(key)), items[name])
                if record.live and stage in (None, record.lease.stage):
                    yield record

    def _look_if_silent(self, lease: Lease) -> None:
        """Read the item if we have seen nothing new of our own lease for a ttl.

        By then another client may have watched the lease be over. Reading writes down the expiry.
        """
        try:
            silence = self._observations.silence(self._observed + _record_name(lease.issue))
        except Outage:
            return  # our write is refused all the same if another client has written the expiry
        if silence >= lease.ttl:
            self.read(lease.issue)

    # Writing

    def _write(self, issue: IssueRef, change: Change, *, already: timedelta = ZERO) -> _WriteResult:
        """Update the issue's item, and recognise our own write by the version.

        If a refusal shows the version of `change`, our first sending was done: the reply was lost,
        and the vendor's library sent the request again. If a success shows another version, the
        answer belongs to another request and proves nothing.

        `already`: how long we have watched the lease be over, if `change` is an expiry.
        """
        sent_at = self._clock.now()
        result = self._table.update(_record_name(issue), change)
        version = change.put.get("version")
        if version is None:
            return _WriteResult(result.done, result.item)
        if (result.item or {}).get("version") != version:
            if result.done:
                raise Unavailable(f"{self.name}: the answer to another request came for {issue}")
            return _WriteResult(False, result.item)
        age = self._note_version(issue, change, sent_at, already)
        return _WriteResult(True, result.item, age)

    def _note_version(
        self, issue: IssueRef, change: Change, sent_at: LocalTime, already: timedelta = ZERO
    ) -> timedelta:
        """Observe the version of our own write from `sent_at` on, and return the version's age.

        No holder can trust the version from an earlier time than `sent_at`.
        """
        age = already + timedelta(seconds=self._clock.now() - sent_at)
        with suppress(Outage):  # then we only watch it for longer; the write stands
            name = self._observed + _record_name(issue)
            self._observations.note(name, _text(change.put, "version"), age)
        return age


# Changes


def _grant_over(bid: Bid, known: Record | None, item: Item | None) -> Change:
    """A grant that replaces `item`, which we judged to be free, if the item is still the same."""
    put = {**_grant_attributes(bid), "fence": grants.next_fence(known, bid)}
    if item is None:
        return Change("attribute_not_exists(#state)", put=put, drop=_LEFT_BEHIND)
    seen = {"seen": _text(item, "version")}
    return Change("#version = :seen", put=put, drop=_LEFT_BEHIND, given=seen)


def _grant_attributes(bid: Bid) -> dict[str, Value]:
    """All attributes of a new lease, except for the fence."""
    now = time_of_day()
    return {
        "state": _HELD,
        "run": bid.run,
        "holder": bid.holder,
        "stage": bid.stage,
        "ttl_ms": milliseconds(bid.ttl),
        "granted_at": _stamp(now),
        "expires_at": _stamp(later(now, bid.ttl)),
        "beats": 0,
        "since": _stamp(now),
        "version": new_nonce(),
    }


def _repeat_grant(item: Item | None) -> Change:
    """Give a grant, which the same run asks for again, a new version and change nothing else.

    The holder may count a ttl from the repeated request, hence watchers must begin anew.
    """
    assert item is not None, "there is a grant"
    return Change(
        "#version = :seen AND #state = :held",
        put={"version": new_nonce()},
        given={**_STATES, "seen": _text(item, "version")},
    )


def _take_turn(bid: Bid, grant: Change, item: Item | None) -> Change:
    """Take the stage's turn for a grant, if the turn is still as in `item`."""
    put: dict[str, Value] = {"taken_for": _record_name(bid.issue), "fence": grant.put["fence"]}
    if item is None:
        return Change("attribute_not_exists(#turn)", put={**put, "turn": 1})
    turn = _number(item, "turn")
    return Change("#turn = :seen", put={**put, "turn": turn + 1}, given={"seen": turn})


# Items


def _stored(issue: IssueRef, item: Mapping[str, Value]) -> Record:
    """The record of the item, as of the expiry of the lease."""
    ttl, expires_at = timedelta(milliseconds=_number(item, "ttl_ms")), _moment(item, "expires_at")
    outcome, following, note, revoked_by, revoked_why = (
        _text(item, name) if name in item else None for name in _ENDED
    )
    lease = Lease(
        issue=issue,
        run=RunId(_text(item, "run")),
        holder=HolderId(_text(item, "holder")),
        stage=StageName(_text(item, "stage")),
        fence=Fence(_number(item, "fence")),
        ttl=ttl,
        granted_at=_moment(item, "granted_at"),
        expires_at=expires_at,
        beats=_number(item, "beats"),
    )
    try:
        return grants.stored_record(
            lease,
            expires_at,
            outcome=outcome,
            following=following,
            note=note,
            painted=item.get("state") != _UNPAINTED,
            revoked_by=revoked_by,
            revoked_why=revoked_why,
            revoked_now=item.get("revoked_now") is True,
        )
    except ValueError as failure:
        raise _damaged(item, "outcome") from failure


def _text(item: Mapping[str, Value], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _damaged(item, name)
    return value


def _number(item: Mapping[str, Value], name: str) -> int:
    value = item.get(name)
    if not isinstance(value, int):
        raise _damaged(item, name)
    return value


def _moment(item: Mapping[str, Value], name: str) -> ServerTime:
    try:
        return server_time(datetime.fromisoformat(_text(item, name)))
    except ValueError as failure:
        raise _damaged(item, name) from failure


def _damaged(item: Mapping[str, Value], name: str) -> Damaged:
    return Damaged(
        f"the item {item.get('record', 'of a lease')!r} has no usable {name!r}: "
        "something else than dibs wrote it"
    )


def _record_name(issue: IssueRef) -> str:
    repo, key = plain_name(issue.repo), plain_name(issue.key)
    return f"{_ISSUES}{quote(repo, safe='/')}#{quote(key, safe='')}"


def _stamp(moment: ServerTime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
