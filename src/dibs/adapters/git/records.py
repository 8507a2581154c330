"""The records of issues in git refs: their format, and how they are read, watched and replaced.

A record is the message of a commit: a headline for people, then the fields as JSON. So `git log`
and `git show` show who holds an issue, and a program reads the JSON. Every message contains a
nonce, so that no two attempts to write make the same commit.

`Records` reads records, observes how long each has been unchanged, replaces a record in one step,
and keeps a list of the held leases. It decides how a record is replaced, and whether a record that
was found is live. The store (`leases`) decides what is written into a record, and why.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.git.refs import Names, folder_of
from dibs.adapters.wrappers.leases import Observations, Recent, new_nonce
from dibs.core.errors import Damaged, NotPermitted, Outage, RateLimited, Unavailable
from dibs.core.grants import stored_record
from dibs.core.ids import Fence, IssueRef, LocalTime, later, server_time
from dibs.core.lease import Ending, Lease, Record, Revocation
from dibs.ports.refs import Move, Refs, SwapRefused
from dibs.ports.system import Clock

_LONGEST_HEADLINE = 120


class StoredLease(Struct, frozen=True):
    """The stored record of an issue: the last lease, and the pulse by which clients watch it."""

    lease: Lease
    pulse: str
    """New with each grant and each renewal, and only then: a revoke gives no more time."""
    ending: Ending | None = None
    painted: bool = True
    revocation: Revocation | None = None
    expired: bool = False
    """A client watched the lease for a ttl and wrote the expiry down: nothing revives the lease."""

    @classmethod
    def of(cls, record: Record, pulse: str) -> Self:
        return cls(record.lease, pulse, record.ending, record.painted, record.revocation)

    @property
    def held(self) -> bool:
        """Whether no ending, no forced revocation and no expiry is written."""
        forced = self.revocation is not None and self.revocation.force
        return self.ending is None and not self.expired and not forced

    @property
    def version(self) -> str:
        """The value that a watcher observes: new with every pulse, and when the lease ends."""
        return self.pulse if self.held else f"{self.pulse} over"

    def record(self, age: timedelta) -> Record:
        """The record for a client that has known the version for `age`.

        The stamps are of the writer's time of day, hence `as_of` is computed from them and the age:
        the record is live exactly if the lease is held and `age` is less than a ttl.
        """
        watched = age - self.lease.ttl if self.held else age
        return Record(
            self.lease,
            later(self.lease.expires_at, watched),
            self.ending,
            painted=self.painted,
            revocation=self.revocation,
        )


class Slot(Struct, frozen=True):
    """One grant under a limit."""

    record: str
    """The ref of its record."""
    fence: Fence


class _Fields(msgspec.Struct, omit_defaults=True):
    dibs: int
    repo: str
    key: str
    run: str
    holder: str
    stage: str
    fence: int
    ttl_ms: int
    granted_at: datetime
    expires_at: datetime
    pulse: str
    beats: int = 0
    outcome: str | None = None
    next: str | None = None
    note: str = ""
    painted: bool = True
    revoked_by: str | None = None
    revoked_why: str = ""
    forced: bool = False
    expired: bool = False
    nonce: str = ""


class _StageFields(msgspec.Struct):
    dibs: int
    stage: str
    slots: list[Slot]
    nonce: str = ""


def write_record(stored: StoredLease) -> str:
    lease, ending, revocation = stored.lease, stored.ending, stored.revocation
    fields = _Fields(
        dibs=1,
        repo=lease.issue.repo,
        key=lease.issue.key,
        run=lease.run,
        holder=lease.holder,
        stage=lease.stage,
        fence=lease.fence,
        ttl_ms=lease.ttl // timedelta(milliseconds=1),
        granted_at=lease.granted_at,
        expires_at=lease.expires_at,
        pulse=stored.pulse,
        beats=lease.beats,
        outcome=ending.outcome.value if ending else None,
        next=ending.next if ending else None,
        note=ending.note if ending else "",
        painted=stored.painted,
        revoked_by=revocation.by if revocation else None,
        revoked_why=revocation.reason if revocation else "",
        forced=revocation.force if revocation else False,
        expired=stored.expired,
        nonce=new_nonce(),
    )
    return _message(_headline(stored), fields)


def read_record(message: str, ref: str) -> StoredLease:
    """Raises Damaged if dibs did not write the message. `ref` is named in the error."""
    fields = _body(message, _Fields, ref)
    try:
        ttl = timedelta(milliseconds=fields.ttl_ms)
        times = (ttl, server_time(fields.granted_at), server_time(fields.expires_at))
        issue, run, holder = IssueRef(fields.repo, fields.key), fields.run, fields.holder
        lease = Lease(issue, run, holder, fields.stage, fields.fence, *times, fields.beats)
        record = stored_record(
            lease,
            times[2],
            outcome=fields.outcome,
            following=fields.next,
            note=fields.note,
            painted=fields.painted,
            revoked_by=fields.revoked_by,
            revoked_why=fields.revoked_why,
            revoked_now=fields.forced,
        )
        return replace(StoredLease.of(record, fields.pulse), expired=fields.expired)
    except (ValueError, OverflowError) as flaw:
        raise _damaged(ref) from flaw


def write_slots(stage: str, slots: list[Slot]) -> str:
    fields = _StageFields(dibs=1, stage=stage, slots=slots, nonce=new_nonce())
    return _message(f"stage {stage}: {len(slots)} in flight under a limit", fields)


def read_slots(message: str, ref: str) -> tuple[Slot, ...]:
    return tuple(_body(message, _StageFields, ref).slots)


def _headline(stored: StoredLease) -> str:
    lease = stored.lease
    match stored:
        case StoredLease(ending=Ending(outcome=outcome)):
            what = f"{outcome.value} by {lease.holder}"
        case StoredLease(expired=True):
            what = f"the lease of {lease.holder} expired"
        case StoredLease(revocation=Revocation(force=True, by=by)):
            what = f"taken from {lease.holder} by {by}"
        case StoredLease(revocation=Revocation(by=by)):
            what = f"held by {lease.holder}, asked to stop by {by}"
        case _:
            what = f"held by {lease.holder}"
    return f"{lease.issue}: {what} (stage {lease.stage}, fence {lease.fence}, run {lease.run})"


def _message(headline: str, fields: msgspec.Struct) -> str:
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in headline).split())
    values = msgspec.to_builtins(fields)
    body = json.dumps(values, ensure_ascii=False, indent=1)
    try:
        body.encode()
    except UnicodeEncodeError:  # a lone surrogate can be written only as an escape
        body = json.dumps(values, indent=1)
    return f"{line[:_LONGEST_HEADLINE]}\n\n{body}\n"


def _body(message: str, shape: type[Any], ref: str) -> Any:
    try:
        fields = msgspec.convert(json.loads(message.partition("\n\n")[2]), shape)
    except (ValueError, msgspec.ValidationError, RecursionError) as flaw:
        raise _damaged(ref) from flaw
    if fields.dibs != 1:
        raise Damaged(f"the commit at {ref} was written by a newer dibs (format {fields.dibs})")
    return fields


def _damaged(ref: str) -> Damaged:
    return Damaged(f"the commit at {ref} is not a record of dibs; look at it with git show")


_MOST_REMEMBERED = 10_000
_MOST_AT_ONCE = 50
_STRAY_AFTER = timedelta(minutes=10)


class FoundRecord(Struct, frozen=True):
    """A record as it was found in a ref, and as we judge it; all None if the ref does not exist."""

    commit: str | None = None
    stored: StoredLease | None = None
    record: Record | None = None

    @property
    def held(self) -> bool:
        return self.stored is not None and self.stored.held

    @property
    def silent(self) -> bool:
        """Whether we have watched the lease for a ttl, and the expiry is not written yet."""
        return self.held and not (self.record is not None and self.record.live)


NOTHING = FoundRecord()


class Records:
    """The records under a prefix in a repository, with a memory of the last state of each."""

    def __init__(self, refs: Refs, observations: Observations, clock: Clock, names: Names) -> None:
        self._refs, self._observations, self._clock, self._names = refs, observations, clock, names
        self._last: Recent[str, tuple[str, StoredLease]] = Recent(_MOST_REMEMBERED)

    # Reading

    def remembered(self, ref: str) -> FoundRecord:
        """The record as we last saw it: good enough to expect in a write, never for an answer."""
        last = self._last.get(ref)
        return self._judge(ref, *last) if last is not None else NOTHING

    def look_up(self, ref: str) -> FoundRecord:
        return self.look_in([folder_of(ref)]).get(ref, NOTHING)

    def look_in(self, folders: Iterable[str]) -> dict[str, FoundRecord]:
        """All records in these folders, by ref."""
        asked = sorted(folders)
        tips = self._refs.tips(asked) if asked else {}
        return self.read({ref: at for ref, at in tips.items() if self._names.is_record(ref)})

    def read(self, tips: Mapping[str, str]) -> dict[str, FoundRecord]:
        """The records in the commits of `tips`, by ref."""
        messages = self._refs.messages(tips.values())
        found: dict[str, FoundRecord] = {}
        for ref, commit in tips.items():
            stored = read_record(messages[commit], ref)
            if self._names.record(stored.lease.issue) != ref:
                raise Damaged(f"{self._refs.name}: {ref} tells of {stored.lease.issue}")
            self._last.put(ref, (commit, stored))
            found[ref] = self._judge(ref, commit, stored)
        return found

    def _judge(self, ref: str, commit: str, stored: StoredLease) -> FoundRecord:
        """The record, live or not by how long we have observed its version."""
        age = self._observations.age(self._observed_as(ref), stored.version)
        return FoundRecord(commit, stored, stored.record(age))

    def _observed_as(self, ref: str) -> str:
        return f"{self._refs.identity} {ref}"

    # Replacing a record

    def replace(
        self, ref: str, found: FoundRecord, stored: StoredLease, others: Iterable[Move] = ()
    ) -> FoundRecord | SwapRefused:
        """Write `stored` over the record `found`, and make the `others` moves in the same push.

        Returns the new record; SwapRefused if the ref is no longer at the commit of `found`.
        """
        sent_at = self._clock.now()
        commit = self._refs.commit(write_record(stored), found.commit)
        if commit is None:
            return SwapRefused("what it replaces is not at hand any more")
        entries = self._entry_moves(found.stored, stored, commit)
        refused = self._push([Move(ref, commit, found.commit), *others, *entries])
        if refused is not None:
            return refused
        return self._note_written(ref, found, commit, stored, sent_at)

    def expire(self, ref: str, found: FoundRecord) -> FoundRecord | SwapRefused:
        """Write down the expiry of a lease that we have watched for a ttl.

        A client without permission to write gets the expired record as well: the client has watched
        the lease all the same.
        """
        assert found.stored is not None, "what expired is there"
        stored = replace(found.stored, expired=True)
        try:
            return self.replace(ref, found, stored)
        except NotPermitted:
            return FoundRecord(found.commit, stored, found.record)

    def _push(self, moves: list[Move]) -> SwapRefused | None:
        """Move the refs. If the reply is lost or unsure, look up whether the moves were done."""
        try:
            refused = self._refs.swap(moves)
        except Unavailable as lost:
            return self._refused_by_now(moves[0], lost)
        if refused is None or refused.sure:
            return refused
        return refused if self._refused_by_now(moves[0], None) is not None else None

    def _refused_by_now(self, move: Move, lost: Unavailable | None) -> SwapRefused | None:
        """Look up where the ref is. None: the move was done.

        Raises `lost` if the ref has not moved at all, because the move may still be done later.
        """
        try:
            found = self._refs.tips([folder_of(move.ref)]).get(move.ref)
        except RateLimited as refusal:  # nobody looked: the move may have been done
            raise lost or refusal from refusal
        if found == move.to:
            return None
        if lost is not None and found == move.expected:
            raise lost
        return SwapRefused("the reply was lost, and the record has changed since")

    def _note_written(
        self, ref: str, before: FoundRecord, commit: str, stored: StoredLease, sent_at: LocalTime
    ) -> FoundRecord:
        """Remember our own write, and observe a new version from `sent_at` on.

        No holder can trust its own pulse from an earlier time than `sent_at`.
        """
        self._last.put(ref, (commit, stored))
        if before.stored is None or before.stored.version != stored.version:
            ago = timedelta(seconds=self._clock.now() - sent_at)
            with suppress(Outage):  # then we only watch it for longer; the write stands
                self._observations.note(self._observed_as(ref), stored.version, ago)
        return self._judge(ref, commit, stored)

    def _entry_moves(
        self, before: StoredLease | None, after: StoredLease, commit: str
    ) -> list[Move]:
        """The moves that keep the list of held leases right: a lease has an entry while held."""
        old = self._names.entry(before.lease) if before is not None and before.held else None
        new = self._names.entry(after.lease) if after.held else None
        if old == new:
            return []
        removed = [Move(old, None, guarded=False)] if old is not None else []
        return [*removed, Move(new, commit, guarded=False)] if new is not None else removed

    # The list of held leases

    def held(self, entries: Mapping[str, str]) -> dict[str, FoundRecord]:
        """The held records among the records that the entries name, by ref.

        Entries only show where to look. Expiries are written on the way, many at once; if a
        write fails, the next client that looks does the same.
        """
        about = {entry: self._names.record_of(entry) for entry in entries}
        found = self.look_in({folder_of(ref) for ref in about.values() if ref is not None})
        confirmed = {
            self._names.entry(record.stored.lease)
            for record in found.values()
            if record.stored is not None and record.stored.held
        }
        self._delete_stray({entry: at for entry, at in entries.items() if entry not in confirmed})
        silent = [ref for ref, record in found.items() if record.silent][:_MOST_AT_ONCE]
        groups = [silent] if self._refs.atomic else [[ref] for ref in silent]
        with suppress(Outage):
            for group in filter(None, groups):
                found |= self._expire_together({ref: found[ref] for ref in group})
        return {ref: record for ref, record in found.items() if record.held}

    def _expire_together(self, silent: Mapping[str, FoundRecord]) -> dict[str, FoundRecord]:
        """Write the expiry of several leases in one push. Returns the new records, if any."""
        sent_at = self._clock.now()
        moves: list[Move] = []
        expired: list[tuple[str, str, StoredLease]] = []
        for ref, found in silent.items():
            assert found.stored is not None, "what is silent is there"
            stored = replace(found.stored, expired=True)
            commit = self._refs.commit(write_record(stored), found.commit)
            if commit is not None:
                moves.append(Move(ref, commit, found.commit))
                moves += self._entry_moves(found.stored, stored, commit)
                expired.append((ref, commit, stored))
        if not moves or self._refs.swap(moves) is not None:
            return {}
        return {
            ref: self._note_written(ref, silent[ref], commit, stored, sent_at)
            for ref, commit, stored in expired
        }

    def _delete_stray(self, entries: Mapping[str, str]) -> None:
        """Delete old entries that no record confirms, left by a lost bid or an unfinished ending.

        Young entries stay: where an entry is written before its record, the record may be about to
        confirm the entry.
        """
        old = [
            Move(entry, None, guarded=False)
            for entry, commit in entries.items()
            if self._observations.age(self._observed_as(entry), commit) > _STRAY_AFTER
        ]
        if old:
            with suppress(Outage):
                self._refs.swap(old[:_MOST_AT_ONCE])
