"""Leases in the refs of a git repository: any remote that the team already pushes to.

One ref for each issue points at a commit without files, whose message is the record. Whoever wants
to change it pushes a new commit and says which one it expects to replace; the server compares and
moves in one step, and of several that expect the same, one is first.

A git server has no clock that a push could ask. So a lease is over when somebody has *watched* it
be over: each grant and each renewal carries a new pulse, and whoever has seen one pulse unchanged
for the whole ttl, on its own monotonic clock, may write that the lease expired, or take the issue,
with a push that is refused if the record has changed. Durations cross machines, times of day never
decide. A holder trusts its lease from before it pushed; a watcher counts from after it looked; so
the watcher is always the later one.

Whoever sees first that a lease is over writes it down before saying so: those who have not watched
read it there, and nothing revives the lease, for the late holder's push is refused.

A new commit's parent is the one it replaces. So every change is a fast-forward, which servers that
refuse forced pushes take, and which is all that GitHub's API can compare; and `git log` tells the
history of an issue. It grows by some 200 bytes with each write, on the server: readers fetch the
last commit only.

How many leases of a stage are in flight, and the ref that each grant under a limit moves.

The leases themselves are counted, so no slot can be lost. Moving the stage's ref together with the
grant makes sure that nobody else was granted under a limit since the counting began.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import NoReturn, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.git.records import (
    NOTHING,
    Kept,
    Known,
    Records,
    Slot,
    new_nonce,
    read_slots,
    write_slots,
)
from dibs.adapters.git.refs import GitRemote, Names, folder_of
from dibs.adapters.system import SystemClock, wall_clock
from dibs.adapters.wrappers.leases import MemoryObservations, Observations
from dibs.core import grants
from dibs.core.errors import BadConfiguration, Unavailable
from dibs.core.ids import Fence, IssueRef, ServerTime
from dibs.core.lease import (
    AcquireResult,
    Bid,
    Ending,
    Full,
    Granted,
    Lease,
    Record,
    Released,
    ReleaseResult,
    Renewed,
    RenewResult,
    Revocation,
    Unproven,
)
from dibs.ports.leases import Guarantee
from dibs.ports.refs import Move, Refs
from dibs.ports.system import Clock


class Turn(Struct, frozen=True):
    """The grants under a limit, as the stage's ref told of them."""

    stage: str
    commit: str | None
    slots: tuple[Slot, ...] = ()


class Slots:
    def __init__(self, refs: Refs, records: Records, names: Names) -> None:
        self._refs, self._records, self._names = refs, records, names

    def turn(self, stage: str, tips: Mapping[str, str]) -> Turn:
        ref = self._names.slots(stage)
        if (commit := tips.get(ref)) is None:
            return Turn(stage, None)
        return Turn(stage, commit, tuple(read_slots(self._refs.messages([commit])[commit], ref)))

    def taken(self, turn: Turn, tips: Mapping[str, str], mine: str) -> set[str]:
        """The records of the stage that are held, apart from the bidder's own.

        A push moves several refs in one step, but whoever looks meanwhile may see only some of
        them moved. So a slot whose record is not there yet is taken.
        """
        entries = {
            entry: commit
            for entry, commit in tips.items()
            if self._names.record_of(entry) not in (None, mine)
        }
        held = self._records.held(entries)
        taken = {ref for ref, known in held.items() if _of_stage(known, turn.stage)}
        unlisted = [slot for slot in turn.slots if slot.record not in {*taken, mine}]
        found = self._records.look({folder_of(slot.record) for slot in unlisted})
        for slot in unlisted:
            known = found.get(slot.record, NOTHING)
            unseen = known.kept is None or known.kept.lease.fence < slot.fence
            if unseen or (known.held and _of_stage(known, turn.stage)):
                taken.add(slot.record)
        return taken

    def move(self, turn: Turn, taken: set[str], mine: Slot) -> Move | None:
        """None if what it replaces is not at hand any more."""
        slots = [*(slot for slot in turn.slots if slot.record in taken), mine]
        commit = self._refs.commit(write_slots(turn.stage, slots), turn.commit)
        if commit is None:
            return None
        return Move(self._names.slots(turn.stage), commit, turn.commit)


def _of_stage(known: Known, stage: str) -> bool:
    return known.kept is not None and known.kept.lease.stage == stage


_TURNS = 5
_QUEUE_S = 30.0
_PROMISED = Guarantee.ATOMIC | Guarantee.FENCED | Guarantee.IDEMPOTENT | Guarantee.DURABLE

Answer = TypeVar("Answer")


def _give_up(why: str) -> NoReturn:
    raise Unavailable(why)


class GitLeases:
    def __init__(
        self, refs: Refs, observations: Observations, clock: Clock, *, prefix: str = "refs/dibs"
    ) -> None:
        self._refs = refs
        self._names = Names(prefix)
        self._records = Records(refs, observations, clock, self._names)
        self._slots = Slots(refs, self._records, self._names)
        self._queue = Lock()
        self.name = refs.name
        self.guarantees = _PROMISED | (Guarantee.COUNTED if refs.atomic else Guarantee.NONE)

    @classmethod
    def connect(
        cls,
        place: str,
        folder: Path,
        observations: Observations | None = None,
        clock: Clock | None = None,
        *,
        root: Path | None = None,
        prefix: str = "refs/dibs",
        timeout_s: float = 20.0,
    ) -> Self:
        """`git:REMOTE`. Asks the remote nothing yet.

        `folder` is ours to keep objects in; `root` is where relative paths and remotes' names are
        looked up. Sightings are this process's own, unless some are handed in.
        """
        clock = SystemClock() if clock is None else clock
        seen = MemoryObservations(clock) if observations is None else observations
        scheme, _, remote = place.partition(":")
        if scheme != "git":
            raise BadConfiguration("leases in git refs are git:REMOTE or git+github:OWNER/REPO")
        refs = GitRemote(remote, folder, root or Path.cwd(), timeout_s=timeout_s)
        return cls(refs, seen, clock, prefix=prefix)

    def close(self) -> None:
        self._refs.close()

    # The operations

    def acquire(self, bid: Bid) -> AcquireResult:
        if bid.limit is not None and Guarantee.COUNTED in self.guarantees:
            return self._queue_within(bid, bid.limit)

        def decide(known: Known) -> Kept | AcquireResult:
            told = grants.refusal(known.record, bid)
            if isinstance(told, Granted):
                return _once_more(known)
            return told if told is not None else _granted(bid, known)

        def tell(record: Record) -> AcquireResult:
            return Granted(record.lease)

        def outrun(_: str) -> AcquireResult:
            return Unproven(f"{bid.issue} changed hands faster than it could be taken")

        return self._change(bid.issue, decide, tell, outrun, guess=self._refs.guesses)

    def renew(self, lease: Lease) -> RenewResult:
        def decide(known: Known) -> Kept | RenewResult:
            made = grants.renewal(known.record, lease, _now(known))
            return Kept.of(made, new_nonce()) if isinstance(made, Record) else made

        def tell(record: Record) -> RenewResult:
            return Renewed(replace(record.lease, card=lease.card))

        return self._change(lease.issue, decide, tell)

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        def decide(known: Known) -> Kept | ReleaseResult:
            made = grants.ending(known.record, lease, ending, _now(known))
            return _after(known, made) if isinstance(made, Record) else made

        def tell(record: Record) -> ReleaseResult:
            return Released(record)

        return self._change(lease.issue, decide, tell)

    def acknowledge(self, record: Record) -> None:
        def decide(known: Known) -> Kept | None:
            made = grants.acknowledgement(known.record, record)
            return _after(known, made) if made is not None else None

        self._change(record.lease.issue, decide, lambda _: None)

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        def decide(known: Known) -> Kept | Record | None:
            made = grants.revoked(known.record, revocation, _now(known))
            return _after(known, made) if made is not None else None

        return self._change(issue, decide, lambda record: record)

    def read(self, issue: IssueRef) -> Record | None:
        def decide(known: Known) -> Kept | Record | None:
            return known.record

        return self._change(issue, decide, lambda record: record)

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        held = self._records.held(self._refs.tips([self._names.held])).values()
        live = [
            known.record
            for known in held
            if known.record is not None
            and known.record.live
            and stage in (None, known.record.lease.stage)
        ]
        live.sort(key=lambda record: (record.lease.granted_at, record.lease.issue))
        return tuple(live[: max(0, limit)])

    def highest(self) -> Fence:
        found = self._records.look([self._names.leases]).values()
        return max((known.kept.lease.fence for known in found if known.kept), default=Fence(0))

    # One record

    def _change(
        self,
        issue: IssueRef,
        decide: Callable[[Known], Kept | Answer],
        tell: Callable[[Record], Answer],
        outrun: Callable[[str], Answer] = _give_up,
        *,
        guess: bool = True,
    ) -> Answer:
        """Write what is decided over the record, or give the answer that needs no writing.

        What is written is compared by the server, so it may be decided on what we remember. An
        answer is given only on what was looked up, and on an expiry only once it is written down.
        """
        ref, refused, fresh = self._names.record(issue), "", False
        known = self._records.remembered(ref) if guess else None
        for _ in range(_TURNS):
            if known is None:
                known, fresh = self._records.find(ref), True
            made = decide(known)
            if isinstance(made, Kept):
                written = self._records.replace(ref, known, made)
                if isinstance(written, Known):
                    return tell(_found(written))
            elif not fresh:
                known = None
                continue
            elif known.silent:
                written = self._records.expire(ref, known)
            else:
                return made
            if isinstance(written, Known):
                known = written
            else:
                known, refused = None, written.why
        return outrun(f"{self.name}: {issue} could not be written in {_TURNS} turns: {refused}")

    # A limit

    def _queue_within(self, bid: Bid, limit: int) -> AcquireResult:
        """One thread at a time: those of one process need not outrun each other at the server."""
        if not self._queue.acquire(timeout=_QUEUE_S):
            return Unproven(f"others of this process bid for stage {bid.stage!r}, and are not done")
        try:
            return self._acquire_within(bid, limit)
        finally:
            self._queue.release()

    def _acquire_within(self, bid: Bid, limit: int) -> AcquireResult:
        """Look at the stage's slots and at what is in flight, count, then push grant and slots.

        Whoever is granted under a limit meanwhile has moved the slots, and we count again. Leases
        that end meanwhile only leave room; one that is granted without a limit meanwhile could as
        well have come after us.
        """
        ref, slots_ref = self._names.record(bid.issue), self._names.slots(bid.stage)
        folders = (folder_of(ref), folder_of(slots_ref), self._names.held)
        for _ in range(_TURNS):
            tips = self._refs.tips(folders)
            known = self._records.read({ref: tips[ref]})[ref] if ref in tips else NOTHING
            told = grants.refusal(known.record, bid)
            if isinstance(told, Granted):
                if isinstance(self._records.replace(ref, known, _once_more(known)), Known):
                    return told
                continue
            if told is not None:
                return told
            turn = self._slots.turn(bid.stage, tips)
            taken = self._slots.taken(turn, tips, ref)
            if len(taken) >= limit:
                return Full(len(taken))
            kept = _granted(bid, known)
            move = self._slots.move(turn, taken, Slot(ref, kept.lease.fence))
            if move is not None:
                written = self._records.replace(ref, known, kept, [move])
                if isinstance(written, Known):
                    return Granted(_found(written).lease)
        return Unproven(f"too many bid for stage {bid.stage!r} at once")


def _granted(bid: Bid, known: Known) -> Kept:
    record = grants.grant(bid, grants.next_fence(known.record, bid), _now(NOTHING))
    return Kept.of(record, new_nonce())


def _once_more(known: Known) -> Kept:
    """The same grant for the same run, with a new pulse and nothing else: whoever is told that it
    holds may count a ttl from its asking, so others have to begin their watch anew.
    """
    assert known.kept is not None, "there is a grant"
    return replace(known.kept, pulse=new_nonce())


def _after(known: Known, decided: Record) -> Kept:
    assert known.kept is not None, "there is nothing to decide about nothing"
    return known.kept.after(decided)


def _found(known: Known) -> Record:
    assert known.record is not None, "it was just written"
    return known.record


def _now(known: Known) -> ServerTime:
    """A stamp for people. A time of day that was set back does not take time from a lease."""
    wall = wall_clock()
    now = ServerTime(wall.replace(microsecond=wall.microsecond // 1000 * 1000))
    if known.kept is None or not known.held:
        return now
    lease = known.kept.lease
    return max(now, ServerTime(lease.expires_at - lease.ttl))
