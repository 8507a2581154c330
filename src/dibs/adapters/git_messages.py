"""A lease as the message of a commit: a line for people, then the record, letter for letter.

`git log` and `git show` tell who holds an issue; a program reads the JSON. Every message carries a
nonce, so that no two attempts to write make the same commit.
"""

import json
import secrets
from datetime import datetime, timedelta
from typing import Any, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dibs.core.errors import Damaged
from dibs.core.ids import Fence, HolderId, IssueRef, RunId, StageName, later, server_time
from dibs.core.lease import Ending, Lease, Outcome, Record, Revocation

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
