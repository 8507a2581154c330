"""How a lease is written down in etcd, and what a reading of an issue's keys means.

    PREFIX/issues/REPO/KEY/held  the run, attached to an etcd lease: while it exists, ours is live
    PREFIX/issues/REPO/KEY/open  the record of a lease that is live, expired, or not yet painted
    PREFIX/issues/REPO/KEY/done  the record of the last one whose ending is painted
    PREFIX/live/STAGE/REPO/KEY   the record once more, attached like `held`: for lists and limits
    PREFIX/floor                 what is added to etcd's revision to make a fence

An issue without `open` is free, whatever came before: that is what a bid compares without having
read anything. All four change in one transaction. The fence is the revision that created `held`
plus the floor of that time; a grant cannot write its own revision down, so its records leave the
fence out, and later ones spell it. No I/O here.

The etcd leases of one client: each is asked for once and serves everybody for a while.

An etcd lease is asked for a little longer than is wanted, and taken for every grant and renewal as
long as what is left of it still covers a whole ttl. So a key may live that little longer than was
asked for, and never shorter. Nothing is kept alive and nothing given back: an etcd lease
that is no longer taken runs out by itself, and refused bids and crashed clients leave none behind.

`KeepAlive` is not used: the leader answers it without asking the others, and one that was deposed
while it hung may promise time that the cluster does not give (etcd issue 15247).
"""

import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from math import ceil
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.etcd.gateway import Gateway, Json, KeyValue
from dibs.adapters.wrappers.leases import plain_name
from dibs.core.errors import Damaged, Unavailable
from dibs.core.ids import (
    Fence,
    HolderId,
    IssueRef,
    LocalTime,
    RunId,
    ServerTime,
    StageName,
    server_time,
)
from dibs.core.lease import Ending, Lease, Outcome, Record, Revocation
from dibs.ports.system import Clock

_MOMENT = timedelta(microseconds=1)


class _Ending(msgspec.Struct, omit_defaults=True):
    outcome: Outcome
    next: str | None = None
    note: str = ""


class _Revocation(msgspec.Struct, omit_defaults=True):
    by: str
    reason: str
    force: bool = False


class Written(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A record as JSON, to be read with etcdctl."""

    repo: str
    key: str
    run: str
    holder: str
    stage: str
    fence: int = 0
    """0: the revision of the grant, plus the floor."""
    floor: int = 0
    ttl: timedelta
    granted_at: datetime
    expires_at: datetime
    beats: int = 0
    ending: _Ending | None = None
    painted: bool = True
    revocation: _Revocation | None = None


def write(record: Record, *, floor: int = 0) -> bytes:
    """With the fence of the record; a grant has none yet, and says what to add to its revision."""
    lease, ended, revoked = record.lease, record.ending, record.revocation
    return msgspec.json.encode(
        Written(
            repo=lease.issue.repo,
            key=lease.issue.key,
            run=lease.run,
            holder=lease.holder,
            stage=lease.stage,
            fence=lease.fence,
            floor=floor,
            ttl=lease.ttl,
            granted_at=lease.granted_at,
            expires_at=lease.expires_at,
            beats=lease.beats,
            ending=_Ending(ended.outcome, ended.next, ended.note) if ended else None,
            painted=record.painted,
            revocation=_Revocation(revoked.by, revoked.reason, revoked.force) if revoked else None,
        )
    )


def read(pair: KeyValue, granted_in: int) -> Record:
    """As of its grant. `granted_in`: the revision of the grant, if no fence is spelt out."""
    try:
        written = msgspec.json.decode(pair.value, type=Written)
    except msgspec.MsgspecError as failure:
        raise Damaged(f"the record at {pair.key!r} in etcd cannot be read: {failure}") from failure
    ended, revoked = written.ending, written.revocation
    lease = Lease(
        issue=IssueRef(written.repo, written.key),
        run=RunId(written.run),
        holder=HolderId(written.holder),
        stage=StageName(written.stage),
        fence=Fence(written.fence or written.floor + granted_in),
        ttl=written.ttl,
        granted_at=server_time(written.granted_at),
        expires_at=server_time(written.expires_at),
        beats=written.beats,
    )
    return Record(
        lease,
        as_of=lease.granted_at,
        ending=Ending(
            ended.outcome, StageName(ended.next) if ended.next is not None else None, ended.note
        )
        if ended
        else None,
        painted=written.painted,
        revocation=Revocation(lease.run, revoked.by, revoked.reason, force=revoked.force)
        if revoked
        else None,
    )


def read_floor(pairs: Sequence[KeyValue]) -> tuple[int, int]:
    """The number, and the revision that wrote it; nothing as long as nobody needed one."""
    for pair in pairs:
        if not pair.value.isdigit():
            raise Damaged(f"the floor at {pair.key!r} in etcd is not a number: {pair.value!r}")
        return int(pair.value), pair.mod_revision
    return 0, 0


def as_of(record: Record, moment: ServerTime, *, held: bool) -> Record:
    """The record, told at that moment by etcd's clock, which ticks in seconds and expires late.

    Whether the lease is live is said by the key; the time that goes with it never contradicts.
    """
    lease = record.lease
    if not held:
        return replace(record, as_of=max(moment, lease.expires_at))
    last = ServerTime(lease.expires_at - _MOMENT)
    return replace(record, as_of=max(lease.granted_at, min(moment, last)))


class Reading(Struct, frozen=True):
    """What an issue's keys said at one revision, and what must still be so for a swap to count."""

    revision: int = 0
    held: int = 0
    """The revision that created the key `held`; 0: the lease is not live."""
    open: int = 0
    """The revision that wrote the key `open`; 0: there is none."""
    record: Record | None = None
    done: Fence = Fence(0)
    """The fence of the last lease that was wrapped up."""

    def told_at(self, moment: ServerTime) -> Record | None:
        return as_of(self.record, moment, held=self.held > 0) if self.record is not None else None

    @property
    def free(self) -> bool:
        return not self.held and not (self.record is not None and self.record.unpainted)

    @property
    def fence(self) -> Fence:
        """The highest that was ever granted on the issue, as far as its keys tell."""
        return max(self.record.lease.fence if self.record is not None else Fence(0), self.done)

    @property
    def outranked(self) -> bool:
        """A grant whose fence was there before, since revisions began again. It never counts."""
        return self.held > 0 and self.fence == self.done


class Keys:
    """Where things are, below one prefix. Any text may name a repository, an issue or a stage."""

    def __init__(self, prefix: str) -> None:
        self.floor = f"{prefix}/floor".encode()
        self.live = f"{prefix}/live/".encode()
        self.issues = f"{prefix}/issues/".encode()

    def issue(self, issue: IssueRef) -> bytes:
        return self.issues + f"{_quoted(issue.repo)}/{_quoted(issue.key)}/".encode()

    def held(self, issue: IssueRef) -> bytes:
        return self.issue(issue) + b"held"

    def open(self, issue: IssueRef) -> bytes:
        return self.issue(issue) + b"open"

    def done(self, issue: IssueRef) -> bytes:
        return self.issue(issue) + b"done"

    def stage(self, stage: str) -> bytes:
        return self.live + f"{_quoted(stage)}/".encode()

    def in_stage(self, lease: Lease) -> bytes:
        issue = lease.issue
        return self.stage(lease.stage) + f"{_quoted(issue.repo)}/{_quoted(issue.key)}".encode()

    def reading(self, issue: IssueRef, found: Sequence[KeyValue], revision: int) -> Reading:
        keys = {bytes(pair.key): pair for pair in found}
        held = keys.get(self.held(issue))
        opened, done = keys.get(self.open(issue)), keys.get(self.done(issue))
        if held is not None and opened is None:
            raise Damaged(f"etcd holds {issue} without its record; look at {self.issue(issue)!r}")
        last = opened or done
        return Reading(
            revision,
            held=held.create_revision if held is not None else 0,
            open=opened.mod_revision if opened is not None else 0,
            record=read(last, last.mod_revision) if last is not None else None,
            done=read(done, done.mod_revision).lease.fence if done is not None else Fence(0),
        )


@lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    return quote(plain_name(text), safe="")


def end_of(prefix: bytes) -> bytes:
    """The first key after all that begin with the prefix, which never ends in the last byte."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


# The parts of a transaction


def put(key: bytes, value: bytes, lease: int | None = 0) -> Json:
    """Attached to a lease of etcd's, to none (0), or to the one it is attached to (None)."""
    kept: Json = {"ignore_lease": True} if lease is None else {"lease": lease}
    return {"request_put": {"key": key, "value": value, **kept}}


def delete(key: bytes) -> Json:
    return {"request_delete_range": {"key": key}}


def find(key: bytes, **options: object) -> Json:
    return {"request_range": {"key": key, **options}}


def find_all(prefix: bytes, **options: object) -> Json:
    return find(prefix, range_end=end_of(prefix), **options)


def created_in(key: bytes, revision: int) -> Json:
    return {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": revision}


def written_in(key: bytes, revision: int) -> Json:
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision}


def none_created_after(prefix: bytes, revision: int) -> Json:
    return {
        "key": prefix,
        "range_end": end_of(prefix),
        "target": "CREATE",
        "result": "LESS",
        "create_revision": revision + 1,
    }


_MOST = 64
_LONGER, _MOST_LONGER_S = 0.1, 30.0


def seconds_for(ttl: timedelta) -> int:
    """What etcd is asked for: whole seconds, and more, so that one lease serves many grants."""
    ttl_s = ttl.total_seconds()
    return ceil(ttl_s + min(ttl_s * _LONGER, _MOST_LONGER_S))


class _Term(Struct, frozen=True):
    lease: int
    covers_until: LocalTime
    """At least, on our own clock: counted from before it was asked for."""


class Terms:
    def __init__(self, gateway: Gateway, clock: Clock) -> None:
        self._gateway, self._clock = gateway, clock
        self._lock = threading.Lock()
        self._terms: dict[int, _Term] = {}
        """By the seconds asked for."""

    def begin(self, ttl: timedelta, until: LocalTime) -> tuple[int, ServerTime]:
        """An etcd lease that will not be over before a whole ttl from now; and the server's now."""
        ttl_s, seconds = ttl.total_seconds(), seconds_for(ttl)
        # One thread asks, the others wait for what it gets, but no longer than they may.
        if not self._lock.acquire(timeout=max(0.0, until - self._clock.now())):
            raise Unavailable("etcd did not grant a lease in time; it may be slow or away")
        try:
            now = self._clock.now()
            term = self._terms.get(seconds)
            if term is None or term.covers_until < now + ttl_s:
                return self._ask(seconds, until)
        finally:
            self._lock.release()
        return term.lease, self._gateway.now(until)

    def forget(self, lease: int) -> None:
        """The server says that it is gone: an operator revoked it, or its clock ran ahead."""
        with self._lock:
            self._terms = {
                seconds: term for seconds, term in self._terms.items() if term.lease != lease
            }

    def _ask(self, seconds: int, until: LocalTime) -> tuple[int, ServerTime]:
        asked = self._clock.now()
        lease, granted_s, at = self._gateway.grant(until, seconds)
        if len(self._terms) >= _MOST:
            self._terms.clear()  # forgetting only makes us ask again
        self._terms[seconds] = _Term(lease, LocalTime(asked + granted_s))
        return lease, at
