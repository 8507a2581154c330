"""Leases in the refs of a git repository: any remote that the team already pushes to.

Each issue has a ref that points at a commit without files; the message of the commit is the record.
To change the record, a client pushes a new commit and names the commit that it expects to replace.
The server compares and moves the ref in one step, so if several clients expect the same commit,
only the first succeeds.

A git server has no clock that a push could ask. So a lease is over when a client has *watched* it
be over. Each grant and each renewal writes a new pulse. A client that has seen the same pulse
unchanged for the whole ttl, on its own monotonic clock, may write that the lease expired, or take
the issue; the push is refused if the record has changed. Only durations cross machines; times of
day never decide. A holder counts the ttl from before it pushed, a watcher from after it read the
pulse. So the watcher's ttl always ends after the holder's.

The first client that sees that a lease is over writes the expiry before it answers. Clients that
have not watched read the expiry there, and nothing revives the lease: the late holder's push is
refused.

The parent of a new commit is the commit that it replaces. So every change is a fast-forward.
Servers that refuse forced pushes accept it, and it is all that GitHub's API can compare; and `git
log` shows the history of an issue. The history grows by some 200 bytes with each write, on the
server only: readers fetch the last commit.

Under a limit, the leases themselves are counted, so no slot can be lost. The stage's ref lists the
grants under a limit, and such a grant moves the ref in the same push; so the push is refused if
another client was granted a lease under a limit since the counting began.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Self

from msgspec.structs import replace

from dibs.adapters.git.records import (
    NOTHING,
    FoundRecord,
    Records,
    Slot,
    StoredLease,
    read_slots,
    write_slots,
)
from dibs.adapters.git.refs import GitRemote, Names, folder_of
from dibs.adapters.system import SystemClock
from dibs.adapters.wrappers.leases import (
    Answer,
    MemoryObservations,
    Observations,
    WholeRecords,
    new_nonce,
    time_of_day,
)
from dibs.core import grants
from dibs.core.durations import LOST_PUSH
from dibs.core.errors import BadConfiguration, Unavailable
from dibs.core.ids import Fence, IssueRef, ServerTime
from dibs.core.lease import AcquireResult, Bid, Full, Granted, Record, Unproven
from dibs.ports.leases import Guarantee
from dibs.ports.refs import Move, Refs, SwapRefused
from dibs.ports.system import Clock

_QUEUE_S = 30.0
_PROMISED = Guarantee.ATOMIC | Guarantee.FENCED | Guarantee.IDEMPOTENT | Guarantee.DURABLE


class GitLeases(WholeRecords):
    def __init__(
        self, refs: Refs, observations: Observations, clock: Clock, *, prefix: str = "refs/dibs"
    ) -> None:
        self._refs = refs
        self._names = Names(prefix)
        self._records = Records(refs, observations, clock, self._names)
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
        """Open the store at `git:REMOTE`. Sends the remote no request yet.

        git objects are kept in `folder`. Relative paths and names of remotes are looked up in
        `root`. Without `observations`, the store keeps its own in memory.
        """
        clock = SystemClock() if clock is None else clock
        observations = MemoryObservations(clock) if observations is None else observations
        scheme, _, remote = place.partition(":")
        if scheme != "git":
            raise BadConfiguration("leases in git refs are git:REMOTE or git+github:OWNER/REPO")
        refs = GitRemote(remote, folder, root or Path.cwd(), timeout_s=timeout_s)
        return cls(refs, observations, clock, prefix=prefix)

    def close(self) -> None:
        self._refs.close()

    # The operations

    def acquire(self, bid: Bid) -> AcquireResult:
        if bid.limit is not None and Guarantee.COUNTED in self.guarantees:
            # One thread at a time: threads of one process need not race each other at the server.
            if not self._queue.acquire(timeout=_QUEUE_S):
                return Unproven(
                    f"others of this process bid for stage {bid.stage!r}, and are not done"
                )
            try:
                return self._acquire_within(bid, bid.limit)
            finally:
                self._queue.release()

        def decide(found: FoundRecord) -> StoredLease | AcquireResult:
            refusal = grants.refusal(found.record, bid)
            if isinstance(refusal, Granted):
                return _repeat_grant(found)
            return refusal if refusal is not None else _new_grant(bid, found)

        outrun = Unproven(f"{bid.issue} changed hands faster than it could be taken")
        made: Record | AcquireResult
        made = self._swap(bid.issue, decide, outrun, guess=self._refs.guesses)
        return Granted(made.lease) if isinstance(made, Record) else made

    def read(self, issue: IssueRef) -> Record | None:
        return self._swap(issue, lambda found: found.record)

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        held = self._records.held(self._refs.tips([self._names.held])).values()
        live = grants.live_records((found.record for found in held), stage)
        return tuple(live[: max(0, limit)])

    def highest(self) -> Fence:
        records = self._records.look_in([self._names.leases]).values()
        fences = (found.stored.lease.fence for found in records if found.stored is not None)
        return max(fences, default=Fence(0))

    # One record

    def _change(
        self,
        issue: IssueRef,
        decide: Callable[[Record | None, ServerTime], Record | Answer],
        *,
        renewing: bool = False,
    ) -> Record | Answer:
        def stored(found: FoundRecord) -> StoredLease | Answer:
            before, now = found.stored, time_of_day()
            if before is not None and before.held:
                # A time of day that was set back takes no time from a held lease.
                now = max(now, ServerTime(before.lease.expires_at - before.lease.ttl))
            made = decide(found.record, now)
            if not isinstance(made, Record):
                return made
            assert before is not None, "there is nothing to decide about nothing"
            return StoredLease.of(made, new_nonce() if renewing else before.pulse)

        return self._swap(issue, stored)

    def _swap(
        self,
        issue: IssueRef,
        decide: Callable[[FoundRecord], StoredLease | Answer],
        outrun: Answer | None = None,
        *,
        guess: bool = True,
    ) -> Record | Answer:
        """Write the lease that `decide` makes over the record, or return its answer.

        `outrun` is the answer if rivals were faster in every turn; without `outrun`, and if a lock
        file was in the way, Unavailable is raised.

        With `guess`, the first decision is based on the remembered record: the server compares
        before a write. An answer without a write is returned only if the record was looked up
        during the call, and an expired lease only after the expiry is written.
        """
        ref, refused, fresh = self._names.record(issue), SwapRefused(""), False
        found = self._records.remembered(ref) if guess else None
        for _ in range(LOST_PUSH.most):
            if found is None:
                found, fresh = self._records.look_up(ref), True
            made = decide(found)
            if isinstance(made, StoredLease):
                written = self._records.replace(ref, found, made)
                if isinstance(written, FoundRecord):
                    assert written.record is not None, "it was just written"
                    return written.record
            elif not fresh:
                found = None
                continue
            elif found.silent:
                written = self._records.expire(ref, found)
            else:
                return made
            if isinstance(written, FoundRecord):
                found = written
            else:
                found, refused = None, written
        if outrun is not None and not refused.locked:
            return outrun
        raise Unavailable(
            f"{self.name}: {issue} could not be written in {LOST_PUSH.most} turns: "
            f"{refused.locked or refused.why}"
        )

    # A limit

    def _acquire_within(self, bid: Bid, limit: int) -> AcquireResult:
        """Read the stage's slots and the held leases, count, then push the grant and the slots.

        If another client is granted a lease under a limit after our read, the client has moved the
        slots: our push is refused, and we count again. Leases that end after our read only leave
        room. A lease that is granted without a limit after our read could as well have come after
        ours.
        """
        ref, slots_ref = self._names.record(bid.issue), self._names.slots(bid.stage)
        folders = (folder_of(ref), folder_of(slots_ref), self._names.held)
        locked = ""
        for _ in range(LOST_PUSH.most):
            tips = self._refs.tips(folders)
            found = self._records.read({ref: tips[ref]})[ref] if ref in tips else NOTHING
            refusal = grants.refusal(found.record, bid)
            if isinstance(refusal, Granted):
                written = self._records.replace(ref, found, _repeat_grant(found))
                if isinstance(written, FoundRecord):
                    return refusal
                locked = written.locked
                continue
            if refusal is not None:
                return refusal
            turn, slots = tips.get(slots_ref), tuple[Slot, ...]()
            if turn is not None:
                slots = read_slots(self._refs.messages([turn])[turn], slots_ref)
            taken = self._taken(bid.stage, slots, tips, ref)
            if len(taken) >= limit:
                return Full(len(taken))
            grant = _new_grant(bid, found)
            kept = [slot for slot in slots if slot.record in taken]
            text = write_slots(bid.stage, [*kept, Slot(ref, grant.lease.fence)])
            commit = self._refs.commit(text, turn)
            if commit is not None:  # else the commit to replace was pruned locally
                written = self._records.replace(ref, found, grant, [Move(slots_ref, commit, turn)])
                if isinstance(written, FoundRecord):
                    return Granted(grant.lease)
                locked = written.locked
        if locked:
            raise Unavailable(f"{self.name}: {bid.issue} could not be written: {locked}")
        return Unproven(f"too many bid for stage {bid.stage!r} at once")

    def _taken(
        self, stage: str, slots: Sequence[Slot], tips: Mapping[str, str], mine: str
    ) -> set[str]:
        """The refs of the stage's held records, without the bidder's own record `mine`.

        A push moves several refs in one step, but a client that reads at the same time may see only
        some of the moves. So a slot counts as taken if the record of the slot's grant is not
        visible yet.
        """
        entries = {
            entry: commit
            for entry, commit in tips.items()
            if self._names.record_of(entry) not in (None, mine)
        }
        held = self._records.held(entries)
        taken = {ref for ref, found in held.items() if _of_stage(found, stage)}
        unlisted = [slot for slot in slots if slot.record not in {*taken, mine}]
        records = self._records.look_in({folder_of(slot.record) for slot in unlisted})
        for slot in unlisted:
            found = records.get(slot.record, NOTHING)
            unseen = found.stored is None or found.stored.lease.fence < slot.fence
            if unseen or (found.held and _of_stage(found, stage)):
                taken.add(slot.record)
        return taken


def _of_stage(found: FoundRecord, stage: str) -> bool:
    return found.stored is not None and found.stored.lease.stage == stage


def _new_grant(bid: Bid, found: FoundRecord) -> StoredLease:
    record = grants.grant(bid, grants.next_fence(found.record, bid), time_of_day())
    return StoredLease.of(record, new_nonce())


def _repeat_grant(found: FoundRecord) -> StoredLease:
    """The grant with a new pulse and no further change, for a run that asks again.

    The holder may count a ttl from the repeated request, hence watchers must begin anew.
    """
    assert found.stored is not None, "there is a grant"
    return replace(found.stored, pulse=new_nonce())
