"""Claims that this process holds: renewed in the background until they are released.

So age means silence: a claim that is worked for a day is as fresh as one of a minute ago, and the
claim of a process that died grows old from its last renewal.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from dibs.core.agent_dialect import (
    CLAIM_PREFIX,
    RELEASE_PREFIX,
    fields_of,
    firing_holder,
    firing_of,
)
from dibs.core.errors import LeaseLost
from dibs.core.ids import Fence, HolderId, RunId
from dibs.core.issue import Thread
from dibs.core.lease import Ending, Lease, Lost, Outcome, RenewResult
from dibs.label_state.backlogs import Backlog
from dibs.ports.leases import Guarantee
from dibs.services.claiming import Claimed
from dibs.services.ending import FinishResult
from dibs.services.keeping import InHand, Keeper, Supervision
from dibs.wiring.services import Services


@dataclass(frozen=True, slots=True)
class FiringKey:
    """Who claims, in the state machine's words."""

    codename: str
    firing_id: str

    def holder(self, turn: int = 1) -> HolderId:
        """Its name on a card. A firing that claims an issue again is another one to its readers:
        one release would count for both.
        """
        again = f"~{turn}" if turn > 1 else ""
        return firing_holder(self.codename, self.firing_id, again)

    def is_holder(self, name: str) -> bool:
        known, mine = firing_of(name), firing_of(self.holder())
        return known is not None and mine in (known, _first_turn(known))


def _first_turn(key: tuple[str, str]) -> tuple[str, str]:
    codename, firing_id = key
    first, again, turn = firing_id.rpartition("~")
    return (codename, first) if again and turn.isdigit() else key


class LookingFirst:
    """A card has one writer, and here it has two: who renews it, and another process that knows the
    key and releases it. A renewal would write over that. So it looks before, where a card is all
    that there is: the release is a comment of its own, which no renewal takes back.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._alone = Guarantee.ATOMIC not in services.leases.guarantees

    def renew(self, lease: Lease) -> RenewResult:
        if self._alone and self._released(lease):
            return Lost("it was released elsewhere, or taken away")
        return self._services.leases.renew(lease)

    def _released(self, lease: Lease) -> bool:
        thread = self._services.tracker.read(lease.issue)
        if not thread.complete:
            return False  # the renewal looks as well, and will say so
        return self._services.leases.mine(thread, lease.run) is None or any(
            fields_of(comment.body).get("run") == lease.run
            for comment in thread.comments
            if comment.by_writer and comment.body.startswith(RELEASE_PREFIX)
        )


class Firing(InHand):
    """One claim in our hands."""

    def __init__(self, services: Services, claimed: Claimed, *, renewed: bool) -> None:
        self._services = services
        self._keeper = Keeper(
            claimed,
            LookingFirst(services),
            services.tracker,
            services.pipeline,
            services.adapters.clock,
            services.adapters.journal,
            services.reached,
        )
        self._ended = False
        self._supervision: Supervision | None = None
        if renewed:
            self._supervision = services.supervise(self._keeper)

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
        """Be told why, once, in a thread of its own: it may take its time, and release the claim.
        The renewing thread could do neither.
        """

        def tell(why: str) -> None:
            name = f"dibs-lost-{self._keeper.issue}"
            threading.Thread(target=watcher, args=(why,), name=name, daemon=True).start()

        super().on_lost(tell)

    def end(self, ending: Ending) -> FinishResult:
        """Raises IllegalMove, and whatever the tracker does: then the claim is still ours, and may
        be ended again until it expires. Who ends it works no more, so nobody renews it from now on.
        """
        try:
            result = self._finish(ending)
        finally:
            self.let_go()
        self._ended = True
        return result

    def _finish(self, ending: Ending) -> FinishResult:
        advancing, keeper = self._services.advancing, self._keeper
        match ending.outcome:
            case Outcome.ADVANCED:
                return advancing.advance(keeper, ending.next, ending.note)
            case Outcome.FAILED:
                return advancing.fail(keeper, ending.note)
            case Outcome.PARKED:
                return advancing.park(keeper, ending.note)
            case Outcome.RETURNED | Outcome.CONCEDED:
                return advancing.give_back(keeper, ending.note)
            case _:
                assert_never(ending.outcome)

    def let_go(self) -> None:
        """Renew it no more."""
        if self._supervision is not None:
            self._supervision.stop()


class Rehearsed(Firing):
    """What a dry run holds: nothing, and nobody takes it away."""

    def __init__(self) -> None:
        self._ended = False

    run, fence, stage = RunId("dry-run"), Fence(0), "implement"
    remaining_s, lost = float("inf"), False

    def check(self) -> None:
        """Nothing is lost."""

    def on_lost(self, watcher: Callable[[str], None]) -> None:
        """Nobody is told anything."""


class Held:
    """What this process holds, by repository, issue and key.

    Not what it held before it was forked off: whose threads renew it is another process. Its child
    releases as any other process does, by the key.
    """

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._firings: dict[tuple[str, int, FiringKey], Firing] = {}

    def keep(self, backlog: Backlog, number: int, key: FiringKey, claimed: Claimed) -> Firing:
        firing = Firing(backlog.services, claimed, renewed=True)
        with self._lock:
            self._firings[_place(backlog, number, key)] = firing
        return firing

    def find(self, backlog: Backlog, number: int, key: FiringKey) -> Firing | None:
        with self._lock:
            return self._firings.get(_place(backlog, number, key))

    def drop(self, backlog: Backlog, number: int, key: FiringKey) -> None:
        with self._lock:
            self._firings.pop(_place(backlog, number, key), None)

    def let_all_go(self) -> None:
        """Renew nothing any more: what is held expires."""
        with self._lock:
            firings, self._firings = self._firings, {}
        for firing in firings.values():
            firing.let_go()


held = Held()


def _place(backlog: Backlog, number: int, key: FiringKey) -> tuple[str, int, FiringKey]:
    return (backlog.services.tracker.traits.name + backlog.repo.casefold(), int(number), key)


def turns_taken(thread: Thread, key: FiringKey) -> int:
    """How often this firing has claimed the issue before, by what its comments say."""
    said = [
        fields_of(comment.body)
        for comment in thread.comments
        if comment.by_writer and comment.body.lstrip().startswith(CLAIM_PREFIX)
    ]
    mine = firing_of(key.holder())
    keys = [(one.get("codename", ""), one.get("firing_id", "")) for one in said]
    return sum(mine in (one, _first_turn(one)) for one in keys)
