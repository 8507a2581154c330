"""Leases in Redis or Valkey: each operation is one script, one round trip and one atomic step.

The record of an issue is a hash that any client can read and that never expires. The script that
changes a record also changes the live index of the stage, so a count of that index is exact. Time
is the server's. A new fence is higher than the fence in the record, the bid's floor and the floor
of the server process's epoch (`links`), so a server that lost data does not repeat old fences.

Decides how each script is called and what its reply means. The scripts are in `scripts`,
connections in `links`.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from dibs.adapters.redis import scripts
from dibs.adapters.redis.links import RedisLinks, RedisUrl, parse_redis_url
from dibs.adapters.redis.scripts import RedisKeys, issue_spelt, spelt
from dibs.adapters.system import ServerPace, SystemClock
from dibs.core import grants
from dibs.core.errors import Damaged, Unavailable
from dibs.core.grants import plain_prose
from dibs.core.ids import Fence, HolderId, IssueRef, later, milliseconds, moment
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
from dibs.ports.leases import EVERY_GUARANTEE, Guarantee


class RedisLeases:
    """The lease store in a namespace of a Redis server. Safe for many threads.

    The first operation connects, and refuses a server that is unfit for leases.
    """

    def __init__(self, url: RedisUrl) -> None:
        self.name = url.name
        self._timeout_s = url.timeout_s
        self._keys = RedisKeys(url.namespace)
        self._links = RedisLinks(url, self._keys.epoch)
        self._pace = ServerPace(url.name, SystemClock())

    @classmethod
    def connect(cls, url: str) -> "RedisLeases":
        return cls(parse_redis_url(url))

    @property
    def guarantees(self) -> Guarantee:
        """`DURABLE` only if the server that was greeted last keeps an append-only file.

        A server that cannot be reached and was never greeted is not believed to keep one.
        """
        if self._links.durable is None:
            with suppress(Unavailable):
                self._links.ask(("PING",))
        return EVERY_GUARANTEE if self._links.durable else EVERY_GUARANTEE & ~Guarantee.DURABLE

    def worries(self) -> tuple[str, ...]:
        self._links.ask(("PING",))
        forgets = (
            f"not durable: the server of {self.name} keeps no append-only file (appendonly no); if "
            "it restarts, it forgets leases, and grants their issues again while holders work"
        )
        return () if self._links.durable else (forgets,)

    def close(self) -> None:
        self._links.close()

    def acquire(self, bid: Bid) -> AcquireResult:
        if (paused := self._pace.pause()) is not None:
            return paused
        keys, ttl_ms, holder = self._keys, milliseconds(bid.ttl), plain_prose(bid.holder)
        words = (
            *(keys.issue + spelt(bid.issue), keys.epoch, keys.live + bid.stage),
            *(bid.run, holder, bid.stage, str(ttl_ms), str(bid.floor)),
            "" if bid.limit is None else str(bid.limit),
        )
        sent_at = self._pace.sending()
        reply = self._links.run(scripts.ACQUIRE, words)
        if reply == [3]:  # the stored epoch was begun by another server process
            reply = self._links.run_greeted(scripts.ACQUIRE, words)
        if isinstance(reply, str):
            granted_ms, fence = reply.split()
            stored = replace(bid, holder=HolderId(holder), ttl=timedelta(milliseconds=ttl_ms))
            lease = grants.grant(stored, Fence(int(fence)), moment(int(granted_ms))).lease
            self._pace.saw(lease.granted_at, sent_at, lease.ttl)
            return self._pace.accept(self, lease)
        match reply:
            case [0, now_ms, fields]:
                record = self._record(bid.issue, now_ms, fields)
                self._pace.saw(moment(now_ms), sent_at, record.lease.ttl)
                refusal = grants.refusal(record, bid)
                assert refusal is not None, "the script grants what is free"
                if isinstance(refusal, Granted):
                    return self._pace.accept(self, refusal.lease)
                return refusal
            case [2, count]:
                return Full(count)
            case [3]:
                raise Unavailable(f"{self.name} is failing over: its epoch changes under our feet")
            case _:
                raise Damaged(f"{self.name}: the fence of {bid.issue} cannot rise any more")

    def renew(self, lease: Lease) -> RenewResult:
        words = (self._record_key(lease.issue), self._keys.live + lease.stage, lease.run)
        sent_at = self._pace.sending()
        reply = self._links.run(scripts.RENEW, (*words, ""), again=(*words, str(lease.beats)))
        match reply:
            case [1, expires_ms, beats, fence, granted_ms]:
                self._pace.saw(later(moment(expires_ms), -lease.ttl), sent_at, lease.ttl)
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
        painted, note = ending.outcome is Outcome.CONCEDED, plain_prose(ending.note)
        words = (
            *(keys.issue + issue, keys.live + lease.stage, keys.wake + issue),
            *(lease.run, str(lease.fence), str(lease.beats)),
            *(ending.outcome.value, "1" if painted else "0", ending.next or "", note),
        )
        reply = self._links.run(scripts.RELEASE, words)
        if isinstance(reply, int):
            # The script answers with the time alone if the holder's copy of the record is right.
            now = moment(reply)
            ended = replace(lease, expires_at=now, card=None)
            return Released(Record(ended, now, replace(ending, note=note), painted=painted))
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
            *(keys.issue + name, keys.wake + name, revocation.run, plain_prose(revocation.by)),
            *(plain_prose(revocation.reason), force, keys.live),
        )
        match self._links.run(scripts.REVOKE, (*words, "0"), again=(*words, force)):
            case [1, now_ms, fields]:
                return self._record(issue, now_ms, fields)
            case _:
                return None

    def read(self, issue: IssueRef) -> Record | None:
        sent_at = self._pace.sending()
        now_ms, fields = self._links.run(scripts.READ, (self._record_key(issue),))
        if fields[0] is None:
            return None
        record = self._record(issue, now_ms, fields)
        self._pace.saw(moment(now_ms), sent_at, record.lease.ttl)
        return record

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        words = (self._keys.epoch, self._keys.live, str(limit))
        now_ms, found = self._links.run(scripts.LIVE, words if stage is None else (*words, stage))
        return tuple(
            self._record(issue_spelt(key.removeprefix(self._keys.issue)), now_ms, fields)
            for key, fields in found
        )

    def highest(self) -> Fence:
        """A fence no lower than any granted fence: as a rule the server's time in microseconds."""
        return Fence(int(self._links.run(scripts.HIGHEST, (self._keys.epoch,))))

    def await_end(self, issue: IssueRef, seconds: float) -> None:
        """Block on the issue's wake list, in turns of at most half the connection's timeout."""
        wake, clock = self._keys.wake + spelt(issue), SystemClock()
        until = clock.now() + seconds
        while (left_s := until - clock.now()) > 0:
            turn_s = max(min(left_s, self._timeout_s / 2), 0.001)
            turn_ms = str(int(turn_s * 1000) + 1)
            # Both commands go out together: a lease that ends in between already sees the waiter.
            _, woken = self._links.ask(
                ("EVAL", scripts.AWAIT.text, "2", self._record_key(issue), wake, turn_ms),
                ("BLPOP", wake, f"{turn_s:.3f}"),
            )
            if woken is not None:
                return

    def _record_key(self, issue: IssueRef) -> str:
        return self._keys.issue + spelt(issue)

    def _record(self, issue: IssueRef, now_ms: int, fields: Sequence[Any]) -> Record:
        """Read the hash fields, in the order of `scripts.FIELDS`. Raise Damaged if any is bad."""
        try:
            fence, ttl_ms, granted_ms, expires_ms, beats = map(int, fields[3:8])
            lease = Lease(
                issue=issue,
                run=fields[0],
                holder=fields[1],
                stage=fields[2],
                fence=Fence(fence),
                ttl=timedelta(milliseconds=ttl_ms),
                granted_at=moment(granted_ms),
                expires_at=moment(expires_ms),
                beats=beats,
            )
            outcome, following, note, painted, revoked_by, revoked_why, revoked_now = fields[8:]
            return grants.stored_record(
                lease,
                moment(now_ms),
                outcome=outcome,
                following=following,
                note=note,
                painted=painted != "0",
                revoked_by=revoked_by,
                revoked_why=revoked_why,
                revoked_now=revoked_now == "1",
            )
        except (TypeError, ValueError) as failure:
            raise Damaged(
                f"{self.name}: the record of {issue} is not whole; look at the hash "
                f"{self._record_key(issue)}"
            ) from failure
