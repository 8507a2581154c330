"""Leases in Redis or Valkey: one script, one round trip and one step for each operation.

The record of an issue is a hash that anybody can read, and that never expires; the live index of
its stage changes in the same step, so a count of it stands. Time is the server's. The fence rises
above the record, above the bid's floor and above the epoch of the server process (`redis_links`),
so that it does not go back with the data.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from dibs.adapters.redis import scripts
from dibs.adapters.redis.links import RedisLinks, RedisUrl, parse_redis_url
from dibs.adapters.redis.scripts import Keys, issue_spelt, spelt
from dibs.adapters.system import SystemClock
from dibs.core import grants
from dibs.core.errors import Damaged, Unavailable
from dibs.core.ids import (
    Fence,
    HolderId,
    IssueRef,
    RunId,
    StageName,
    later,
    milliseconds,
    moment,
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
)
from dibs.ports.leases import Guarantee

_ALWAYS = (
    Guarantee.ATOMIC
    | Guarantee.FENCED
    | Guarantee.SERVER_CLOCK
    | Guarantee.IDEMPOTENT
    | Guarantee.COUNTED
)


class RedisLeases:
    """One namespace on one server. Safe for many threads."""

    def __init__(self, url: RedisUrl) -> None:
        """Connects, so that a server which is no good for leases is refused at the start."""
        self.name = url.name
        self._timeout_s = url.timeout_s
        self._keys = Keys(url.namespace)
        self._links = RedisLinks(url, self._keys.epoch)
        self._links.ask(("PING",))

    @classmethod
    def connect(cls, url: str) -> "RedisLeases":
        return cls(parse_redis_url(url))

    @property
    def guarantees(self) -> Guarantee:
        """`DURABLE` while the server keeps an append-only file, and not otherwise."""
        return _ALWAYS | Guarantee.DURABLE if self._links.durable else _ALWAYS

    def close(self) -> None:
        self._links.close()

    def acquire(self, bid: Bid) -> AcquireResult:
        keys, ttl_ms, holder = self._keys, milliseconds(bid.ttl), _prose(bid.holder)
        words = (
            *(keys.issue + spelt(bid.issue), keys.epoch, keys.live + bid.stage),
            *(bid.run, holder, bid.stage, str(ttl_ms), str(bid.floor)),
            "" if bid.limit is None else str(bid.limit),
        )
        reply = self._links.run(scripts.ACQUIRE, words)
        if reply == [3]:  # the epoch is another server's
            reply = self._links.run_greeted(scripts.ACQUIRE, words)
        if isinstance(reply, str):
            now_ms, fence = reply.split()
            return Granted(_granted(bid, holder, Fence(int(fence)), int(now_ms), ttl_ms))
        return self._not_granted(bid, reply)

    def _not_granted(self, bid: Bid, reply: list[Any]) -> AcquireResult:
        match reply:
            case [0, now_ms, fields]:
                told = grants.refusal(self._record(bid.issue, now_ms, fields), bid)
                assert told is not None, "the script grants what is free"
                return told
            case [2, count]:
                return Full(count)
            case [3]:
                raise Unavailable(f"{self.name} is failing over: its epoch changes under our feet")
            case _:
                raise Damaged(f"{self.name}: the fence of {bid.issue} cannot rise any more")

    def renew(self, lease: Lease) -> RenewResult:
        words = (self._record_key(lease.issue), self._keys.live + lease.stage, lease.run)
        reply = self._links.run(scripts.RENEW, (*words, ""), again=(*words, str(lease.beats)))
        match reply:
            case [1, expires_ms, beats, fence, granted_ms]:
                return Renewed(
                    replace(
                        lease,
                        fence=Fence(fence),
                        granted_at=moment(granted_ms),
                        expires_at=moment(expires_ms),
                        beats=beats,
                    )
                )
            case [2, by, why]:
                return grants.asked_to_stop(Revocation(lease.run, by, why or ""))
            case _:
                return Lost(grants.NOT_OURS)

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        keys, issue = self._keys, spelt(lease.issue)
        painted, note = ending.outcome is Outcome.CONCEDED, _prose(ending.note)
        words = (
            *(keys.issue + issue, keys.live + lease.stage, keys.wake + issue),
            *(lease.run, str(lease.fence), str(lease.beats)),
            *(ending.outcome.value, "1" if painted else "0", ending.next or "", note),
        )
        reply = self._links.run(scripts.RELEASE, words)
        if isinstance(reply, int):
            kept = ending if note == ending.note else replace(ending, note=note)
            return Released(_ended(lease, kept, reply, painted=painted))
        match reply:
            case [1, now_ms, fields]:
                return Released(self._record(lease.issue, now_ms, fields))
            case _:
                return Lost(grants.NOT_OURS)

    def acknowledge(self, record: Record) -> None:
        issue = spelt(record.lease.issue)
        words = (self._keys.issue + issue, self._keys.wake + issue, record.lease.run)
        self._links.run(scripts.ACKNOWLEDGE, words)

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        keys, name, force = self._keys, spelt(issue), "1" if revocation.force else "0"
        words = (
            *(keys.issue + name, keys.wake + name, revocation.run, _prose(revocation.by)),
            *(_prose(revocation.reason), force, keys.live),
        )
        match self._links.run(scripts.REVOKE, (*words, "0"), again=(*words, force)):
            case [1, now_ms, fields]:
                return self._record(issue, now_ms, fields)
            case _:
                return None

    def read(self, issue: IssueRef) -> Record | None:
        now_ms, fields = self._links.run(scripts.READ, (self._record_key(issue),))
        return None if fields[0] is None else self._record(issue, now_ms, fields)

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        words = (self._keys.epoch, self._keys.live, str(limit))
        now_ms, found = self._links.run(scripts.LIVE, words if stage is None else (*words, stage))
        return tuple(
            self._record(issue_spelt(key.removeprefix(self._keys.issue)), now_ms, fields)
            for key, fields in found
        )

    def highest(self) -> Fence:
        """No lower than any fence that was granted; the server's time, as a rule."""
        return Fence(int(self._links.run(scripts.HIGHEST, (self._keys.epoch,))))

    def await_end(self, issue: IssueRef, seconds: float) -> None:
        """Block on the issue's list, in turns that end well before the connection's timeout."""
        wake, clock = self._keys.wake + spelt(issue), SystemClock()
        until = clock.now() + seconds
        while (left_s := until - clock.now()) > 0:
            turn_s = max(min(left_s, self._timeout_s / 2), 0.001)
            turn_ms = str(int(turn_s * 1000) + 1)
            # Sent together: a lease that ends in between finds that somebody waits.
            _, woken = self._links.ask(
                ("EVAL", scripts.AWAIT.text, "2", self._record_key(issue), wake, turn_ms),
                ("BLPOP", wake, f"{turn_s:.3f}"),
            )
            if woken is not None:
                return

    def _record_key(self, issue: IssueRef) -> str:
        return self._keys.issue + spelt(issue)

    def _record(self, issue: IssueRef, now_ms: int, fields: Sequence[Any]) -> Record:
        try:
            return _record(issue, now_ms, fields)
        except (TypeError, ValueError) as failure:
            raise Damaged(
                f"{self.name}: the record of {issue} is not whole; look at the hash "
                f"{self._record_key(issue)}"
            ) from failure


def _granted(bid: Bid, holder: str, fence: Fence, now_ms: int, ttl_ms: int) -> Lease:
    now, ttl = moment(now_ms), timedelta(milliseconds=ttl_ms)
    return Lease(
        issue=bid.issue,
        run=bid.run,
        holder=HolderId(holder),
        stage=bid.stage,
        fence=fence,
        ttl=ttl,
        granted_at=now,
        expires_at=later(now, ttl),
    )


def _ended(lease: Lease, ending: Ending, now_ms: int, *, painted: bool) -> Record:
    """What the script has written, which said that everything else is as the holder has it."""
    now = moment(now_ms)
    return Record(
        Lease(
            issue=lease.issue,
            run=lease.run,
            holder=lease.holder,
            stage=lease.stage,
            fence=lease.fence,
            ttl=lease.ttl,
            granted_at=lease.granted_at,
            expires_at=now,
            beats=lease.beats,
        ),
        now,
        ending,
        painted=painted,
    )


def _record(issue: IssueRef, now_ms: int, fields: Sequence[Any]) -> Record:
    (run, holder, stage, fence, ttl_ms, granted_at, expires_at, beats, *rest) = fields
    outcome, target, note, painted, revoked_by, revoked_why, revoked_now = rest
    lease = Lease(
        issue=issue,
        run=RunId(run),
        holder=HolderId(holder),
        stage=StageName(stage),
        fence=Fence(int(fence)),
        ttl=timedelta(milliseconds=int(ttl_ms)),
        granted_at=moment(int(granted_at)),
        expires_at=moment(int(expires_at)),
        beats=int(beats),
    )
    as_of, ending = moment(now_ms), None
    if outcome == scripts.EXPIRED:
        as_of = max(as_of, lease.expires_at)  # whatever the clock says since
    elif outcome is not None:
        ending = Ending(Outcome(outcome), target and StageName(target), note or "")
    revocation = (
        Revocation(lease.run, revoked_by, revoked_why or "", force=revoked_now == "1")
        if revoked_by is not None
        else None
    )
    return Record(lease, as_of, ending, painted=painted != "0", revocation=revocation)


def _prose(text: str) -> str:
    """What people say: a letter that cannot be kept must not keep a lease from ending."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
