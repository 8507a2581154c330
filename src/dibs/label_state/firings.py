"""Claims that this process holds, renewed in the background until they are released.

Because of the renewals, the age of a claim is the time since its last renewal: a claim that has
been worked for a day is as fresh as a new one, and the claim of a dead process grows old.
"""

import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from dibs.core.agent_dialect import (
    CLAIM_PREFIX,
    RELEASE_PREFIX,
    fields_of,
    firing_holder,
    firing_of,
    first_turn,
)
from dibs.core.errors import LeaseLost
from dibs.core.ids import Fence, HolderId, RunId
from dibs.core.issue import Snapshot
from dibs.core.lease import Lease, Lost, RenewResult
from dibs.ports.leases import Guarantee
from dibs.services.claiming import Claimed
from dibs.services.ending import FinishResult
from dibs.services.keeping import InHand, Keeper
from dibs.wiring.services import Services


class FiringKey(NamedTuple):
    """Codename and firing id: the state machine's name for a claimant."""

    codename: str
    firing_id: str

    def holder(self, turn: int = 1) -> HolderId:
        """The holder's name on a card.

        A firing that claims the same issue again gets `~2`, `~3` and higher: readers of the state
        machine apply a release to every claim with the same key.
        """
        return firing_holder(*self, f"~{turn}" if turn > 1 else "")

    def claimed_as(self, firing: tuple[str, str] | None) -> bool:
        """Whether a card or a comment with this codename and firing id is ours, in any turn."""
        mine = firing_of(self.holder())
        return firing is not None and mine in (firing, first_turn(firing))


def key_in(claim: str) -> FiringKey | None:
    """The key in a claim comment; None for any other comment."""
    if not claim.lstrip().startswith(CLAIM_PREFIX):
        return None
    fields = fields_of(claim)
    return FiringKey(fields.get("codename", ""), fields.get("firing_id", ""))


class LookingFirst(Struct, frozen=True):
    """Renews a lease, but checks for a release by another process first.

    Two processes may write the card of a claim: the process with the lease renews, and any process
    with the key may release. A renewal would overwrite the release. Stores that decide atomically
    refuse the late renewal. Where the card is the lease, the issue is read before each renewal: the
    release is also a separate comment, which a renewal cannot overwrite.
    """

    services: Services

    def renew(self, lease: Lease) -> RenewResult:
        leases = self.services.leases
        if Guarantee.ATOMIC not in leases.guarantees and self._released(lease):
            return Lost("it was released elsewhere, or taken away")
        return leases.renew(lease)

    def _released(self, lease: Lease) -> bool:
        snapshot = self.services.tracker.read(lease.issue)
        if not snapshot.complete:
            return False  # the renewal reads the comments too, and reports the failure
        return self.services.leases.mine(snapshot, lease.run) is None or any(
            fields_of(comment.body).get("run") == lease.run
            for comment in snapshot.comments
            if comment.by_writer and comment.body.startswith(RELEASE_PREFIX)
        )


class Firing(InHand):
    """A claim that this process may end; with `renewed`, a thread renews the lease until then."""

    def __init__(self, services: Services, claimed: Claimed, *, renewed: bool) -> None:
        self._keeper = Keeper(
            claimed,
            LookingFirst(services),
            services.tracker,
            services.pipeline,
            services.adapters.clock,
            services.observer,
            services.reached,
        )
        self._ended = False
        self._supervision = services.supervise(self._keeper) if renewed else None

    @property
    def stage(self) -> str:
        return self._keeper.stage_name

    @property
    def lost(self) -> bool:
        return self._ended or super().lost

    def check(self) -> None:
        """Call before every side effect. Raises LeaseLost when the work must stop."""
        if self._ended:
            raise LeaseLost(self._keeper.issue, fence=self.fence, why="it was released")
        super().check()

    def on_lost(self, watcher: Callable[[str], None]) -> None:
        """Call `watcher` once with the reason, in a thread of its own, if the lease is lost.

        In that thread the watcher may be slow and may release the claim; the renewing thread, which
        notices the loss, must do neither.
        """

        def start_watcher(why: str) -> None:
            name = f"dibs-lost-{self._keeper.issue}"
            threading.Thread(target=watcher, args=(why,), name=name, daemon=True).start()

        super().on_lost(start_watcher)

    def end(self, finish: Callable[[Keeper], FinishResult]) -> FinishResult:
        """End the claim with `finish`, and stop the renewals in any case: the work has stopped.

        Raises IllegalMove and the errors of the tracker. After an error the claim is still ours,
        and may be ended again until the lease expires.
        """
        try:
            result = finish(self._keeper)
        finally:
            if self._supervision is not None:
                self._supervision.stop()
        self._ended = True
        return result


class Rehearsed(Firing):
    """The lease of a dry run: it holds no issue and is never lost."""

    def __init__(self) -> None:
        self._ended = False

    run, fence, stage = RunId("dry-run"), Fence(0), "implement"
    remaining_s, lost = float("inf"), False

    def check(self) -> None:
        """Never raises."""

    def on_lost(self, watcher: Callable[[str], None]) -> None:
        """Never calls the watcher."""


held: dict[tuple[str, int, FiringKey], Firing] = {}
"""The claims that this process holds, by repository, issue and key.

A forked child starts with none, because the renewing threads are the parent's. The child releases a
claim by the firing's key, like any process that did not make the claim.
"""
os.register_at_fork(after_in_child=held.clear)


def turns_taken(snapshot: Snapshot, key: FiringKey) -> int:
    """How many claim comments of this firing the issue already has."""
    return sum(
        key.claimed_as(key_in(comment.body)) for comment in snapshot.comments if comment.by_writer
    )
