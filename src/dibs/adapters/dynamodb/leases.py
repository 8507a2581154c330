"""Leases in one DynamoDB table: an item for each issue, and no clock but the watcher's own.

The service has no clock that a condition could ask, so a lease is over when somebody has *watched*
it be over: every grant and every renewal puts a new random `version`, and whoever has seen one
version unchanged for the whole ttl, on its own monotonic clock, may write that the lease is over,
or take the issue, with a write that is refused if the version has changed. Durations cross
machines, times of day never decide. A holder trusts its lease from before it sent the write; a
watcher counts from after it received it; so the watcher is always the later one.

Whoever sees first that a lease is over writes it down (`state = over`). Processes that live for
one command watch nothing, and read it there; and once it is written, nothing revives the lease:
the late holder's write is refused. A holder that has heard nothing new of its own lease for a ttl
looks before it writes, and thereby writes down its own end.

`granted_at` and `expires_at` are stamps of the writer's time of day, for people. What a reading
calls `as_of` is reckoned back from them: the stamp of the last write, and the time for which we
have known it. So `Record.live` says exactly that we have not watched it for a ttl, and
`Record.remaining` how long we would still have to.

A limit is kept without slots that could be lost: the leases themselves are counted, in an index
that is read consistently, and the grant is written together with the stage's turn, which is
refused if anybody else was granted under a limit since the counting began. A transaction becomes
visible item by item, so the turn names the grant that it was taken with, and nobody counts before
that grant can be seen.
"""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from typing import Self
from urllib.parse import quote, unquote

from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.dynamodb.table import Change, Item, Table, Value, parse_place
from dibs.adapters.system import SystemClock, wall_clock
from dibs.adapters.wrappers.leases import (
    MemoryObservations,
    Observations,
    plain_bid,
    plain_ending,
    plain_name,
    plain_revocation,
)
from dibs.core import grants
from dibs.core.errors import Damaged, NotPermitted, Outage, Unavailable
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
from dibs.ports.leases import Guarantee
from dibs.ports.system import Clock

_HELD = "held"
_UNPAINTED = "unpainted"
_OVER = "over"
_STATES: Mapping[str, Value] = {"held": _HELD, "unpainted": _UNPAINTED, "over": _OVER}
_TURNS = 10
# What a lease leaves behind and the next one must not inherit.
_LEFT_BEHIND = ("outcome", "next", "note", "revoked_by", "revoked_why", "revoked_now")
_ISSUES = "issue:"
_STAGES = "stage:"
_MINE = "#run = :mine AND #state = :held"


class _Written(Struct, frozen=True):
    """What came of a conditional write."""

    done: bool
    item: Item | None
    """As it is now, or as it stood in the way."""
    age: timedelta | None = None
    """How long its version is known, if it is our own: then nobody has to be asked."""


class DynamoLeases:
    guarantees = (
        Guarantee.ATOMIC
        | Guarantee.FENCED
        | Guarantee.IDEMPOTENT
        | Guarantee.DURABLE
        | Guarantee.COUNTED
    )

    def __init__(self, table: Table, observations: Observations, clock: Clock) -> None:
        self._table, self._seen, self._clock = table, observations, clock
        self.name = table.name
        self._watched = f"{table.identity}/"

    @classmethod
    def connect(
        cls, url: str, observations: Observations | None = None, clock: Clock | None = None
    ) -> Self:
        """Touches nothing yet. Sightings are this process's own, unless some are handed in."""
        clock = SystemClock() if clock is None else clock
        seen = MemoryObservations(clock) if observations is None else observations
        return cls(Table(parse_place(url), clock), seen, clock)

    def close(self) -> None:
        self._table.close()

    # The operations

    def acquire(self, bid: Bid) -> AcquireResult:
        bid = plain_bid(bid)
        if bid.limit is not None:
            return self._acquire_within(bid, bid.limit)
        written = self._write(bid.issue, _grant_if_free(bid))
        for _ in range(_TURNS):
            known = self._told(bid.issue, written.item, written.age)
            if written.done:
                assert known is not None, "it was just written"
                return Granted(known.lease)
            match grants.refusal(known, bid):
                case None:
                    change = _grant_over(bid, known, written.item)
                case Granted():
                    change = _once_more(written.item)
                case busy:
                    return busy
            written = self._write(bid.issue, change)
        return Unproven(f"{bid.issue} changed hands faster than it could be taken")

    def _acquire_within(self, bid: Bid, limit: int) -> AcquireResult:
        """Read the stage's turn, then count, then grant and take the turn in one step.

        Whoever is granted under a limit in the meantime has taken the turn, and we count again.
        Leases that end meanwhile only leave room; one that is granted without a limit meanwhile
        could as well have come after us.
        """
        told = self._try_within(bid, limit)
        for _ in range(_TURNS):
            if not isinstance(told, Unproven):
                break
            self._table.take_turns()
            told = self._try_within(bid, limit)
        return told

    def _try_within(self, bid: Bid, limit: int) -> AcquireResult:
        record, turn = _record_name(bid.issue), _turn_name(bid.stage)
        items = self._table.get_many((record, turn))
        item, taken = items.get(record), items.get(turn)
        known = self._told(bid.issue, item)
        told = grants.refusal(known, bid)
        if isinstance(told, Granted) and not self._write(bid.issue, _once_more(item)).done:
            return Unproven(f"{bid.issue} changed while it was looked at")
        if told is not None:
            return told
        if not self._visible(taken):
            return Unproven(f"a grant of stage {bid.stage!r} was made and cannot be seen yet")
        in_flight = sum(1 for _ in self._in_flight(bid.stage))
        if in_flight >= limit:
            return Full(in_flight)
        grant = _grant_over(bid, known, item)
        if not self._write_together(bid, grant, _take_turn(bid, grant, taken)):
            return Unproven(f"others were granted leases of stage {bid.stage!r} meanwhile")
        return Granted(_lease(bid.issue, {**grant.put}))

    def _visible(self, turn: Item | None) -> bool:
        """Whether the grant that the turn was last taken with can be counted by now."""
        if turn is None:
            return True
        item = self._table.get(_text(turn, "taken_for"))
        return item is not None and _number(item, "fence") >= _number(turn, "fence")

    def renew(self, lease: Lease) -> RenewResult:
        self._look_if_silent(lease)
        written = self._write(lease.issue, _renewal(lease))
        known = self._told(lease.issue, written.item, written.age)
        if known is None or known.lease.run != lease.run or not known.live:
            return Lost(grants.NOT_OURS)
        if written.done:
            return Renewed(replace(known.lease, card=lease.card))
        if known.revocation is not None:
            return grants.asked_to_stop(known.revocation)
        return Lost(grants.NOT_OURS)

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        self._look_if_silent(lease)
        written = self._write(lease.issue, _ending(lease, plain_ending(ending)))
        known = self._told(lease.issue, written.item, written.age)
        if known is None or known.lease.run != lease.run or known.ending is None:
            return Lost(grants.NOT_OURS)
        return Released(known)  # by this write, or by one whose reply was lost

    def acknowledge(self, record: Record) -> None:
        change = Change(
            "#run = :mine AND #state = :unpainted",
            put={"state": _OVER},
            given={**_STATES, "mine": record.lease.run},
        )
        self._write(record.lease.issue, change)

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        written = self._write(issue, _revocation(plain_revocation(revocation)))
        if not written.done or written.item is None:
            return None
        record = self._settled(issue, written.item, written.age)
        return record if record.live or revocation.force else None

    def read(self, issue: IssueRef) -> Record | None:
        item = self._table.get(_record_name(issue))
        return self._settled(issue, item) if item is not None else None

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        if stage is not None:
            plain_name(stage)
        found = list(islice(self._in_flight(stage), max(0, limit)))
        found.sort(key=lambda record: (record.lease.granted_at, record.lease.issue))
        return tuple(found)

    def highest(self) -> Fence:
        fences = (_number(item, "fence") for item in self._table.all(_ISSUES, ("fence",)))
        return Fence(max(fences, default=0))

    # What we may say of an item

    def _told(
        self, issue: IssueRef, item: Item | None, age: timedelta | None = None
    ) -> Record | None:
        """The item as a record, as of what we have watched of it."""
        if item is None:
            return None
        lease, ending, state = _lease(issue, item), _ended(item), _text(item, "state")
        as_of = lease.expires_at
        if ending is None or state == _UNPAINTED:  # what is painted is over, whoever watched it
            if age is None:
                age = self._seen.age(self._watched + _record_name(issue), _text(item, "version"))
            as_of = later(as_of, age - lease.ttl if state == _HELD else age)
        painted = state != _UNPAINTED
        return Record(lease, as_of, ending, painted=painted, revocation=_revoked(item))

    def _settled(self, issue: IssueRef, item: Item, age: timedelta | None = None) -> Record:
        """The record; if we have watched it be over, that is written down before it is said."""
        for _ in range(_TURNS):
            record = self._told(issue, item, age)
            assert record is not None, "there is an item"
            if record.live or _text(item, "state") != _HELD:
                return record
            try:
                over_for = record.as_of - record.lease.expires_at
                written = self._write(issue, _expiry(item), already=over_for)
            except NotPermitted:
                return record  # whoever may only read has watched it all the same
            if written.item is None:
                break
            item, age = written.item, written.age
        raise Damaged(f"{self.name}: the record of {issue} changes without end, or was deleted")

    def _in_flight(self, stage: str | None) -> Iterator[Record]:
        """The live leases, the oldest grant first."""
        only_if, values = ("#stage = :stage", {"stage": stage}) if stage is not None else ("", {})
        for names in self._table.in_flight(only_if, values):
            items = self._table.get_many(names)
            for name in names:
                if name not in items:
                    continue
                record = self._settled(_issue_named(name), items[name])
                if record.live and stage in (None, record.lease.stage):
                    yield record

    def _look_if_silent(self, lease: Lease) -> None:
        """Nothing new of our own lease for a ttl: others may have watched it be over by now."""
        try:
            silence = self._seen.silence(self._watched + _record_name(lease.issue))
        except Outage:
            return  # the write is refused all the same if somebody has written its end down
        if silence >= lease.ttl:
            self.read(lease.issue)

    # Writing

    def _write(self, issue: IssueRef, change: Change, *, already: timedelta = ZERO) -> _Written:
        """A refusal that shows the version we meant to write was our own doing: the reply to it
        was lost, and the vendor's library sent it again. A success that does not show it is the
        answer to something else, and says nothing.
        """
        sent_at = self._clock.now()
        answer = self._table.update(_record_name(issue), change)
        version = change.put.get("version")
        if version is None:
            return _Written(answer.done, answer.item)
        if (answer.item or {}).get("version") != version:
            if answer.done:
                raise Unavailable(f"{self.name}: the answer to another request came for {issue}")
            return _Written(False, answer.item)
        return _Written(True, answer.item, self._note(issue, change, sent_at, already))

    def _write_together(self, bid: Bid, grant: Change, turn: Change) -> bool:
        sent_at = self._clock.now()
        changes = {_record_name(bid.issue): grant, _turn_name(bid.stage): turn}
        if not self._table.update_together(changes):
            return False
        self._note(bid.issue, grant, sent_at)
        return True

    def _note(
        self, issue: IssueRef, change: Change, sent_at: LocalTime, already: timedelta = ZERO
    ) -> timedelta:
        """We know our own version from before it was sent: no holder trusts it from earlier on."""
        age = already + timedelta(seconds=self._clock.now() - sent_at)
        with suppress(Outage):  # then we only watch it for longer; what was written stands
            name = self._watched + _record_name(issue)
            self._seen.note(name, _text(change.put, "version"), age)
        return age


# Changes


def _grant_if_free(bid: Bid) -> Change:
    """In one step, without knowing what is there; the fence rises by itself."""
    return Change(
        "attribute_not_exists(#state) OR #state = :over AND #fence >= :floor",
        put=_granted(bid),
        compute={"fence": "if_not_exists(#fence, :floor) + :one"},
        drop=_LEFT_BEHIND,
        given={**_STATES, "floor": bid.floor, "one": 1},
    )


def _grant_over(bid: Bid, known: Record | None, item: Item | None) -> Change:
    """Over the record that we judged to be free, if it is still that one."""
    put = {**_granted(bid), "fence": grants.next_fence(known, bid)}
    if item is None:
        return Change("attribute_not_exists(#state)", put=put, drop=_LEFT_BEHIND)
    seen = {"seen": _text(item, "version")}
    return Change("#version = :seen", put=put, drop=_LEFT_BEHIND, given=seen)


def _granted(bid: Bid) -> dict[str, Value]:
    now = _now()
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
        "version": _new_version(),
    }


def _once_more(item: Item | None) -> Change:
    """The same grant for the same run, with a new version and nothing else: whoever is told that it
    holds may count a ttl from its asking, so others have to begin their watch anew.
    """
    assert item is not None, "there is a grant"
    return Change(
        "#version = :seen AND #state = :held",
        put={"version": _new_version()},
        given={**_STATES, "seen": _text(item, "version")},
    )


def _take_turn(bid: Bid, grant: Change, item: Item | None) -> Change:
    put: dict[str, Value] = {"taken_for": _record_name(bid.issue), "fence": grant.put["fence"]}
    if item is None:
        return Change("attribute_not_exists(#turn)", put={**put, "turn": 1})
    turn = _number(item, "turn")
    return Change("#turn = :seen", put={**put, "turn": turn + 1}, given={"seen": turn})


def _renewal(lease: Lease) -> Change:
    # A time of day that was set back takes nothing away.
    until = max(later(_now(), lease.ttl), lease.expires_at)
    return Change(
        f"{_MINE} AND attribute_not_exists(#revoked_by) AND #version <> :version",
        put={"expires_at": _stamp(until), "version": _new_version()},
        compute={"beats": "#beats + :one"},
        given={**_STATES, "mine": lease.run, "one": 1},
    )


def _ending(lease: Lease, ending: Ending) -> Change:
    conceded = ending.outcome is Outcome.CONCEDED
    put: dict[str, Value] = {
        "state": _OVER if conceded else _UNPAINTED,
        "outcome": ending.outcome.value,
        "note": ending.note,
        "expires_at": _stamp(_now()),
        "version": _new_version(),
    }
    if ending.next is not None:
        put["next"] = ending.next
    return Change(_MINE, put=put, drop=("since",), given={**_STATES, "mine": lease.run})


def _revocation(revocation: Revocation) -> Change:
    """A request leaves the version alone: it gives the holder no more time than it had."""
    put: dict[str, Value] = {
        "revoked_by": revocation.by,
        "revoked_why": revocation.reason,
        "revoked_now": revocation.force,
    }
    if revocation.force:
        put |= {"state": _OVER, "expires_at": _stamp(_now()), "version": _new_version()}
    return Change(
        _MINE,
        put=put,
        drop=("since",) if revocation.force else (),
        given={**_STATES, "mine": revocation.run},
    )


def _expiry(item: Item) -> Change:
    return Change(
        "#version = :seen AND #state = :held",
        put={"state": _OVER, "version": _new_version()},
        drop=("since",),
        given={**_STATES, "seen": _text(item, "version")},
    )


# Items


def _lease(issue: IssueRef, item: Item) -> Lease:
    return Lease(
        issue=issue,
        run=RunId(_text(item, "run")),
        holder=HolderId(_text(item, "holder")),
        stage=StageName(_text(item, "stage")),
        fence=Fence(_number(item, "fence")),
        ttl=timedelta(milliseconds=_number(item, "ttl_ms")),
        granted_at=_moment(item, "granted_at"),
        expires_at=_moment(item, "expires_at"),
        beats=_number(item, "beats"),
    )


def _ended(item: Item) -> Ending | None:
    if "outcome" not in item:
        return None
    try:
        outcome = Outcome(_text(item, "outcome"))
    except ValueError as failure:
        raise _spoilt(item, "outcome") from failure
    target = StageName(_text(item, "next")) if "next" in item else None
    return Ending(outcome, target, _text(item, "note"))


def _revoked(item: Item) -> Revocation | None:
    if "revoked_by" not in item:
        return None
    return Revocation(
        RunId(_text(item, "run")),
        _text(item, "revoked_by"),
        _text(item, "revoked_why"),
        force=item.get("revoked_now") is True,
    )


def _text(item: Mapping[str, Value], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _spoilt(item, name)
    return value


def _number(item: Mapping[str, Value], name: str) -> int:
    value = item.get(name)
    if not isinstance(value, int):
        raise _spoilt(item, name)
    return value


def _moment(item: Mapping[str, Value], name: str) -> ServerTime:
    try:
        return server_time(datetime.fromisoformat(_text(item, name)))
    except ValueError as failure:
        raise _spoilt(item, name) from failure


def _spoilt(item: Mapping[str, Value], name: str) -> Damaged:
    return Damaged(
        f"the item {item.get('record', 'of a lease')!r} has no usable {name!r}: "
        "something else than dibs wrote it"
    )


def _record_name(issue: IssueRef) -> str:
    repo, key = plain_name(issue.repo), plain_name(issue.key)
    return f"{_ISSUES}{quote(repo, safe='/')}#{quote(key, safe='')}"


def _issue_named(name: str) -> IssueRef:
    repo, _, key = name.removeprefix(_ISSUES).partition("#")
    return IssueRef(unquote(repo), unquote(key))


def _turn_name(stage: StageName) -> str:
    return f"{_STAGES}{quote(stage, safe='')}"


def _new_version() -> str:
    return secrets.token_hex(8)


def _now() -> ServerTime:
    """Of this machine's time of day, in whole milliseconds: a stamp, which decides nothing."""
    now = wall_clock()
    return ServerTime(now.replace(microsecond=now.microsecond // 1000 * 1000))


def _stamp(moment: ServerTime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
