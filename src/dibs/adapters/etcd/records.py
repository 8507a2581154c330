"""How a lease is written in etcd: the keys, the records, and the etcd leases under the keys.

    PREFIX/issues/REPO/KEY/held  the run, attached to an etcd lease: our lease is live while the
                                 key exists
    PREFIX/issues/REPO/KEY/open  the record of a lease that is live, expired, or not yet painted
    PREFIX/issues/REPO/KEY/done  the record of the last lease whose ending is painted
    PREFIX/live/STAGE/REPO/KEY   a second copy of the record, attached like `held`: for lists and
                                 limits
    PREFIX/floor                 the number to add to etcd's revision to make a fence

An issue without `open` is free, whatever happened before. So a bid can compare with "no `open`"
without having read the issue. An operation changes all of an issue's keys in one transaction. The
fence is the revision that created `held`, plus the floor at the time of the grant. A grant does not
know its own revision when it is written, so the records of a grant leave the fence out; later
records contain it. This part does no I/O.

`Terms` gets the etcd leases of one client: a client asks for an etcd lease once and uses it for all
its grants for a while. It asks for a little more time than is wanted, and uses the same etcd lease
for every grant and renewal while the time left still covers a whole ttl. So a key may live a little
longer than was asked for, and never shorter. A client keeps no etcd lease alive and gives none
back: an etcd lease that is no longer used runs out by itself, and refused bids and crashed clients
leave no etcd lease behind.

`KeepAlive` is not used: the leader answers it without asking the other members. A leader that was
deposed while it hung may promise time that the cluster does not give (etcd issue 15247).
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
from dibs.core.errors import Damaged, Unavailable
from dibs.core.grants import plain_name
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
from dibs.core.lease import Ending, Lease, Record, Revocation
from dibs.ports.system import Clock

_MOMENT = timedelta(microseconds=1)


class _Revocation(msgspec.Struct, omit_defaults=True):
    by: str
    reason: str
    force: bool = False


class RecordJson(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A record as JSON, readable with etcdctl."""

    repo: str
    key: str
    run: str
    holder: str
    stage: str
    fence: int = 0
    """0: the fence is the revision of the grant, plus `floor`."""
    floor: int = 0
    ttl: timedelta
    granted_at: datetime
    expires_at: datetime
    beats: int = 0
    ending: Ending | None = None
    painted: bool = True
    revocation: _Revocation | None = None


def write(record: Record, *, floor: int = 0) -> bytes:
    """Encode the record with its fence. A new grant has fence 0 and gives the `floor` instead."""
    lease, revoked = record.lease, record.revocation
    return msgspec.json.encode(
        RecordJson(
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
            ending=record.ending,
            painted=record.painted,
            revocation=_Revocation(revoked.by, revoked.reason, revoked.force) if revoked else None,
        )
    )


def read(pair: KeyValue, granted_in: int) -> Record:
    """Decode a record, as of the time of the grant.

    `granted_in`: the revision of the grant, which gives the fence if the record contains none.
    """
    try:
        written = msgspec.json.decode(pair.value, type=RecordJson)
    except msgspec.MsgspecError as failure:
        raise Damaged(f"the record at {pair.key!r} in etcd cannot be read: {failure}") from failure
    revoked = written.revocation
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
        ending=written.ending,
        painted=written.painted,
        revocation=Revocation(lease.run, revoked.by, revoked.reason, force=revoked.force)
        if revoked
        else None,
    )


def read_floor(pairs: Sequence[KeyValue]) -> tuple[int, int]:
    """The floor, and the revision that wrote the floor; zeros if the key does not exist yet."""
    for pair in pairs:
        if not pair.value.isdigit():
            raise Damaged(f"the floor at {pair.key!r} in etcd is not a number: {pair.value!r}")
        return int(pair.value), pair.mod_revision
    return 0, 0


def as_of(record: Record, moment: ServerTime, *, held: bool) -> Record:
    """The record with an `as_of` near `moment`, which agrees with `held`.

    The key `held` decides whether the lease is live. `moment`, a time of etcd's clock, could
    contradict the key: the clock ticks in whole seconds, and etcd expires keys late.
    """
    lease = record.lease
    if not held:
        return replace(record, as_of=max(moment, lease.expires_at))
    last = ServerTime(lease.expires_at - _MOMENT)
    return replace(record, as_of=max(lease.granted_at, min(moment, last)))


class IssueReading(Struct, frozen=True):
    """The contents of an issue's keys at one revision.

    A write compares `held` and `open`, and counts only if both are unchanged.
    """

    revision: int = 0
    held: int = 0
    """The revision that created the key `held`; 0: the lease is not live."""
    open: int = 0
    """The revision that wrote the key `open`; 0: there is none."""
    record: Record | None = None
    done: Fence = Fence(0)
    """The fence of the last lease whose ending is painted."""

    def record_at(self, moment: ServerTime) -> Record | None:
        return as_of(self.record, moment, held=self.held > 0) if self.record is not None else None

    @property
    def free(self) -> bool:
        return not self.held and not (self.record is not None and self.record.unpainted)

    @property
    def fence(self) -> Fence:
        """The highest fence granted on the issue, as far as the keys show."""
        return max(self.record.lease.fence if self.record is not None else Fence(0), self.done)

    @property
    def outranked(self) -> bool:
        """Whether the fence of the live grant is no higher than the fence of an earlier lease.

        Happens if etcd's revisions began again at a lower number. Such a grant never counts.
        """
        return self.held > 0 and self.fence == self.done


class EtcdKeys:
    """The names of the keys below a prefix.

    Any text may be the name of a repository, an issue or a stage: names are quoted.
    """

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

    def reading(self, issue: IssueRef, found: Sequence[KeyValue], revision: int) -> IssueReading:
        keys = {bytes(pair.key): pair for pair in found}
        held = keys.get(self.held(issue))
        opened, done = keys.get(self.open(issue)), keys.get(self.done(issue))
        if held is not None and opened is None:
            raise Damaged(f"etcd holds {issue} without its record; look at {self.issue(issue)!r}")
        last = opened or done
        return IssueReading(
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
    """The first key after all keys with the prefix. The prefix must not end in the byte 255."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


# The parts of a transaction


def put(key: bytes, value: bytes, lease: int | None = 0) -> Json:
    """Attach the key to an etcd lease, to none (0), or leave the key's etcd lease alone (None)."""
    attached: Json = {"ignore_lease": True} if lease is None else {"lease": lease}
    return {"request_put": {"key": key, "value": value, **attached}}


def delete(key: bytes) -> Json:
    return {"request_delete_range": {"key": key}}


def get(key: bytes, **options: object) -> Json:
    return {"request_range": {"key": key, **options}}


def get_prefix(prefix: bytes, **options: object) -> Json:
    return get(prefix, range_end=end_of(prefix), **options)


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


_MOST_TERMS = 64
_LONGER, _MOST_LONGER_S = 0.1, 30.0


def seconds_for(ttl: timedelta) -> int:
    """The seconds to ask of etcd: whole, and more than the ttl, to use a lease for many grants."""
    ttl_s = ttl.total_seconds()
    return ceil(ttl_s + min(ttl_s * _LONGER, _MOST_LONGER_S))


class _Term(Struct, frozen=True):
    lease: int
    covers_until: LocalTime
    """The earliest end on our own clock: counted from before we asked for the etcd lease."""


class Terms:
    """The etcd leases of one client, for many threads."""

    def __init__(self, gateway: Gateway, clock: Clock) -> None:
        self._gateway, self._clock = gateway, clock
        self._lock = threading.Lock()
        self._terms: dict[int, _Term] = {}
        """By the seconds asked for."""

    def begin(self, ttl: timedelta, until: LocalTime) -> tuple[int, ServerTime]:
        """An etcd lease that lasts for at least a whole ttl from now, and the server's time."""
        ttl_s, seconds = ttl.total_seconds(), seconds_for(ttl)
        # One thread asks for an etcd lease, the others wait for its lease until their deadline.
        if not self._lock.acquire(timeout=max(0.0, until - self._clock.now())):
            raise Unavailable("etcd did not grant a lease in time; it may be slow or away")
        try:
            now = self._clock.now()
            term = self._terms.get(seconds)
            if term is None or term.covers_until < now + ttl_s:
                lease, granted_s, at = self._gateway.grant(until, seconds)
                if len(self._terms) >= _MOST_TERMS:
                    self._terms.clear()  # forgetting an etcd lease only makes us ask again
                self._terms[seconds] = _Term(lease, LocalTime(now + granted_s))
                return lease, at
        finally:
            self._lock.release()
        return term.lease, self._gateway.now(until)

    def forget(self, lease: int) -> None:
        """Stop using an etcd lease, since the server reports the lease as gone.

        An operator revoked the etcd lease, or the server's clock ran ahead.
        """
        with self._lock:
            self._terms = {
                seconds: term for seconds, term in self._terms.items() if term.lease != lease
            }
