"""The records of issues in refs: found, watched, replaced in one step, and listed while held.

Decides how a record is replaced and what may be said of one that was found. What is written into
it, and why, is the store's business.

A lease as the message of a commit: a line for people, then the record, letter for letter.

`git log` and `git show` tell who holds an issue; a program reads the JSON. Every message carries a
nonce, so that no two attempts to write make the same commit.
"""

import json
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.git.refs import Names, folder_of
from dibs.adapters.wrappers.leases import Observations
from dibs.core.errors import Damaged, NotPermitted, Outage, Unavailable
from dibs.core.ids import Fence, HolderId, IssueRef, LocalTime, RunId, StageName, later, server_time
from dibs.core.lease import Ending, Lease, Outcome, Record, Revocation
from dibs.ports.refs import Move, Refs, Refused
from dibs.ports.system import Clock

_LONGEST_HEADLINE = 120


class Kept(Struct, frozen=True):
    """What is kept of an issue: its last lease, and the sign of life by which it is watched."""

    lease: Lease
    pulse: str
    """New with each grant and each renewal, and with nothing else: a revoke gives no more time."""
    ending: Ending | None = None
    painted: bool = True
    revocation: Revocation | None = None
    expired: bool = False
    """Somebody watched it for a ttl, and wrote that down: nothing revives it."""

    @classmethod
    def of(cls, record: Record, pulse: str) -> Self:
        return cls(record.lease, pulse, record.ending, record.painted, record.revocation)

    @property
    def held(self) -> bool:
        """Not ended, not forced out, and nobody has written that it expired."""
        forced = self.revocation is not None and self.revocation.force
        return self.ending is None and not self.expired and not forced

    @property
    def version(self) -> str:
        """What a watcher watches: it changes with every sign of life, and at the end."""
        return self.pulse if self.held else f"{self.pulse} over"

    def reading(self, age: timedelta) -> Record:
        """The record, for somebody who has known this version of it for so long.

        The stamps are of the writer's time of day, so `as_of` is reckoned from them: the record is
        live exactly if it is held and was not watched for a ttl.
        """
        watched = age - self.lease.ttl if self.held else age
        return Record(
            self.lease,
            later(self.lease.expires_at, watched),
            self.ending,
            painted=self.painted,
            revocation=self.revocation,
        )

    def after(self, record: Record) -> Self:
        """The same sign of life, with what somebody decided."""
        return replace(
            self,
            lease=record.lease,
            ending=record.ending,
            painted=record.painted,
            revocation=record.revocation,
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


class _SlotFields(msgspec.Struct):
    record: str
    fence: int


class _StageFields(msgspec.Struct):
    dibs: int
    stage: str
    slots: list[_SlotFields]
    nonce: str = ""


def new_nonce() -> str:
    return secrets.token_hex(8)


def write_record(kept: Kept) -> str:
    lease, ending, revocation = kept.lease, kept.ending, kept.revocation
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
        pulse=kept.pulse,
        beats=lease.beats,
        outcome=ending.outcome.value if ending else None,
        next=ending.next if ending else None,
        note=ending.note if ending else "",
        painted=kept.painted,
        revoked_by=revocation.by if revocation else None,
        revoked_why=revocation.reason if revocation else "",
        forced=revocation.force if revocation else False,
        expired=kept.expired,
        nonce=new_nonce(),
    )
    return _message(_headline(kept), fields)


def read_record(message: str, ref: str) -> Kept:
    """Raises Damaged if the commit is none of ours."""
    fields = _body(message, _Fields, ref)
    try:
        lease = Lease(
            issue=IssueRef(fields.repo, fields.key),
            run=RunId(fields.run),
            holder=HolderId(fields.holder),
            stage=StageName(fields.stage),
            fence=Fence(fields.fence),
            ttl=timedelta(milliseconds=fields.ttl_ms),
            granted_at=server_time(fields.granted_at),
            expires_at=server_time(fields.expires_at),
            beats=fields.beats,
        )
        return Kept(
            lease,
            fields.pulse,
            _ending(fields),
            painted=fields.painted,
            revocation=_revocation(fields),
            expired=fields.expired,
        )
    except (ValueError, OverflowError) as flaw:
        raise _damaged(ref) from flaw


def write_slots(stage: str, slots: list[Slot]) -> str:
    fields = _StageFields(
        dibs=1,
        stage=stage,
        slots=[_SlotFields(slot.record, slot.fence) for slot in slots],
        nonce=new_nonce(),
    )
    return _message(f"stage {stage}: {len(slots)} in flight under a limit", fields)


def read_slots(message: str, ref: str) -> list[Slot]:
    fields = _body(message, _StageFields, ref)
    return [Slot(slot.record, Fence(slot.fence)) for slot in fields.slots]


def _ending(fields: _Fields) -> Ending | None:
    if fields.outcome is None:
        return None
    following = StageName(fields.next) if fields.next is not None else None
    return Ending(Outcome(fields.outcome), following, fields.note)


def _revocation(fields: _Fields) -> Revocation | None:
    if fields.revoked_by is None:
        return None
    run = RunId(fields.run)
    return Revocation(run, fields.revoked_by, fields.revoked_why, force=fields.forced)


def _headline(kept: Kept) -> str:
    lease = kept.lease
    match kept:
        case Kept(ending=Ending(outcome=outcome)):
            what = f"{outcome.value} by {lease.holder}"
        case Kept(expired=True):
            what = f"the lease of {lease.holder} expired"
        case Kept(revocation=Revocation(force=True, by=by)):
            what = f"taken from {lease.holder} by {by}"
        case Kept(revocation=Revocation(by=by)):
            what = f"held by {lease.holder}, asked to stop by {by}"
        case _:
            what = f"held by {lease.holder}"
    return f"{lease.issue}: {what} (stage {lease.stage}, fence {lease.fence}, run {lease.run})"


def _message(headline: str, fields: msgspec.Struct) -> str:
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in headline).split())
    values = msgspec.to_builtins(fields)
    body = json.dumps(values, ensure_ascii=False, indent=1)
    if not _writable(body):
        body = json.dumps(values, indent=1)  # half a character: only escaped can it be written
    return f"{line[:_LONGEST_HEADLINE]}\n\n{body}\n"


def _writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
_LITTER = timedelta(minutes=10)


class Known(Struct, frozen=True):
    """A record as it was found, and what we may say of it; all None if there is none."""

    commit: str | None = None
    kept: Kept | None = None
    record: Record | None = None

    @property
    def held(self) -> bool:
        return self.kept is not None and self.kept.held

    @property
    def live(self) -> bool:
        return self.record is not None and self.record.live

    @property
    def silent(self) -> bool:
        """Watched for a ttl, and nobody has written that down yet."""
        return self.held and not self.live


NOTHING = Known()


class Records:
    """Every record under one prefix of one repository, as this client knows it."""

    def __init__(self, refs: Refs, observations: Observations, clock: Clock, names: Names) -> None:
        self._refs, self._seen, self._clock, self._names = refs, observations, clock, names
        self._lock = Lock()
        self._last: OrderedDict[str, tuple[str, Kept]] = OrderedDict()

    # Looking

    def remembered(self, ref: str) -> Known:
        """What was last found there. Good enough to expect, and never to answer with."""
        with self._lock:
            last = self._last.get(ref)
        return self._known(ref, *last) if last is not None else NOTHING

    def find(self, ref: str) -> Known:
        return self.look([folder_of(ref)]).get(ref, NOTHING)

    def look(self, folders: Iterable[str]) -> dict[str, Known]:
        asked = sorted(folders)
        tips = self._refs.tips(asked) if asked else {}
        return self.read({ref: at for ref, at in tips.items() if self._names.is_record(ref)})

    def read(self, tips: Mapping[str, str]) -> dict[str, Known]:
        messages = self._refs.messages(tips.values())
        return {ref: self._taken_in(ref, at, messages[at]) for ref, at in tips.items()}

    def _taken_in(self, ref: str, commit: str, message: str) -> Known:
        kept = read_record(message, ref)
        if self._names.record(kept.lease.issue) != ref:
            raise Damaged(f"{self._refs.name}: {ref} tells of {kept.lease.issue}")
        self._remember(ref, commit, kept)
        return self._known(ref, commit, kept)

    def _known(self, ref: str, commit: str, kept: Kept) -> Known:
        age = self._seen.age(self._watched(ref), kept.version)
        return Known(commit, kept, kept.reading(age))

    def _remember(self, ref: str, commit: str, kept: Kept) -> None:
        with self._lock:
            self._last[ref] = commit, kept
            self._last.move_to_end(ref)
            while len(self._last) > _MOST_REMEMBERED:
                self._last.popitem(last=False)

    def _watched(self, ref: str) -> str:
        return f"{self._refs.identity} {ref}"

    # Replacing one

    def replace(
        self, ref: str, known: Known, kept: Kept, others: Iterable[Move] = ()
    ) -> Known | Refused:
        """The record as it stands now, unless it was not the known one any more."""
        sent_at = self._clock.now()
        commit = self._refs.commit(write_record(kept), known.commit)
        if commit is None:
            return Refused("what it replaces is not at hand any more")
        entries = self._entries(known.kept, kept, commit)
        refused = self._push([Move(ref, commit, known.commit), *others, *entries])
        if refused is not None:
            return refused
        return self._written(ref, known, commit, kept, sent_at)

    def expire(self, ref: str, known: Known) -> Known | Refused:
        """Write down that it was watched for a ttl. Whoever may not write has watched it too."""
        assert known.kept is not None, "what expired is there"
        kept = replace(known.kept, expired=True)
        try:
            return self.replace(ref, known, kept)
        except NotPermitted:
            return Known(known.commit, kept, known.record)

    def _push(self, moves: list[Move]) -> Refused | None:
        """If the reply is lost, what came of it is looked up: it may well have been done."""
        try:
            refused = self._refs.swap(moves)
        except Unavailable as lost:
            return self._looked_up(moves[0], lost)
        if refused is None or refused.sure:
            return refused
        return refused if self._looked_up(moves[0], None) is not None else None

    def _looked_up(self, move: Move, lost: Unavailable | None) -> Refused | None:
        found = self._refs.tips([folder_of(move.ref)]).get(move.ref)
        if found == move.to:
            return None
        if lost is not None and found == move.expected:
            raise lost  # and it may still come to pass
        return Refused("the reply was lost, and the record has changed since")

    def _written(
        self, ref: str, before: Known, commit: str, kept: Kept, sent_at: LocalTime
    ) -> Known:
        self._remember(ref, commit, kept)
        if before.kept is None or before.kept.version != kept.version:
            # Known from before it was sent: no holder trusts its own pulse from earlier on.
            ago = timedelta(seconds=self._clock.now() - sent_at)
            with suppress(Outage):  # then we only watch it for longer; what was written stands
                self._seen.note(self._watched(ref), kept.version, ago)
        return self._known(ref, commit, kept)

    def _entries(self, before: Kept | None, after: Kept, commit: str) -> list[Move]:
        """A lease is listed while it is held."""
        old = self._names.entry(before.lease) if before is not None and before.held else None
        new = self._names.entry(after.lease) if after.held else None
        if old == new:
            return []
        gone = [Move(old, None, guarded=False)] if old is not None else []
        return [*gone, Move(new, commit, guarded=False)] if new is not None else gone

    # Those that are listed

    def held(self, entries: Mapping[str, str]) -> dict[str, Known]:
        """The records that these entries are about and that are held, by their refs.

        The entries only say where to look. Expiries are written down on the way.
        """
        about = {entry: self._names.record_of(entry) for entry in entries}
        found = self.look({folder_of(ref) for ref in about.values() if ref is not None})
        confirmed = {
            self._names.entry(one.kept.lease)
            for one in found.values()
            if one.kept is not None and one.kept.held
        }
        self._clear({entry: at for entry, at in entries.items() if entry not in confirmed})
        self._expire_many(found)
        return {ref: known for ref, known in found.items() if known.held}

    def _expire_many(self, found: dict[str, Known]) -> None:
        """As many at once as can be; what cannot be written is left to the next who looks."""
        silent = [ref for ref, known in found.items() if known.silent][:_MOST_AT_ONCE]
        groups = [silent] if self._refs.atomic else [[ref] for ref in silent]
        with suppress(Outage):
            for group in filter(None, groups):
                found |= self._expire_together({ref: found[ref] for ref in group})

    def _expire_together(self, silent: Mapping[str, Known]) -> dict[str, Known]:
        sent_at = self._clock.now()
        moves: list[Move] = []
        over: list[tuple[str, str, Kept]] = []
        for ref, known in silent.items():
            assert known.kept is not None, "what is silent is there"
            kept = replace(known.kept, expired=True)
            commit = self._refs.commit(write_record(kept), known.commit)
            if commit is not None:
                moves.append(Move(ref, commit, known.commit))
                moves += self._entries(known.kept, kept, commit)
                over.append((ref, commit, kept))
        if not moves or self._refs.swap(moves) is not None:
            return {}
        return {
            ref: self._written(ref, silent[ref], commit, kept, sent_at)
            for ref, commit, kept in over
        }

    def _clear(self, litter: Mapping[str, str]) -> None:
        """Entries that no record confirms: of a bid that lost, or of an end that was cut short.

        Where an entry is written before its record, a young one may be about to be confirmed.
        """
        old = [
            Move(entry, None, guarded=False)
            for entry, commit in litter.items()
            if self._seen.age(self._watched(entry), commit) > _LITTER
        ]
        if old:
            with suppress(Outage):
                self._refs.swap(old[:_MOST_AT_ONCE])
