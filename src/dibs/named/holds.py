"""Holds: a lease on a name, or on one of N slots of a name, renewed while its holder works.

With one slot, a hold is a mutex; with several, a limit on how much runs at once. A slot is a lease
like any other: taking a slot is one atomic step, the slot of a dead holder becomes free by itself,
and its fence can be checked where the holder writes.

`Turns` is a local lock in front of the lease store: threads of one process queue among themselves,
and only as many of them as there are slots ask the store. So a process with fifty threads costs the
store no more than a process with one.
"""

import logging
import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import lru_cache
from typing import assert_never

from msgspec import Struct

from dibs.core.durations import LeaseTerms, format_duration, terms_for
from dibs.core.eligibility import Reason
from dibs.core.errors import BadTtl, Misuse, Outage
from dibs.core.events import EventKind, about
from dibs.core.ids import HolderId, RunId
from dibs.core.lease import Bid, Busy, Ending, Full, Granted, Lease, Outcome, Record, Unproven
from dibs.core.named import HOLD_STAGE, checked_name, hold_ref
from dibs.core.pipeline import Pipeline, Stage
from dibs.ports.leases import LeaseStore
from dibs.ports.system import Clock, Observer, Threads
from dibs.ports.tracker import Tracker
from dibs.services.backlog import Granting, acquire_patiently
from dibs.services.keeping import Grant, InHand, Keeper, Supervision
from dibs.services.resuming import LeaseWaiter

_terms = lru_cache(maxsize=64)(terms_for)


@lru_cache(maxsize=64)
def _stage(terms: LeaseTerms) -> Stage:
    return Stage(HOLD_STAGE, label=HOLD_STAGE, terms=terms)


class Turns:
    """Counts the threads of this process with a turn, by name; holds only names in use."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[str, int] = {}

    def enter(self, name: str, slots: int, left_s: Callable[[], float]) -> bool:
        """Wait for a turn; False if the time is over. The caller calls `leave` for each turn."""
        with self._changed:
            while self._inside.get(name, 0) >= slots:
                if (seconds := left_s()) <= 0 or not self._changed.wait(seconds):
                    return False
            self._inside[name] = self._inside.get(name, 0) + 1
            return True

    def leave(self, name: str) -> None:
        with self._changed:
            self._inside[name] -= 1
            if not self._inside[name]:
                del self._inside[name]
            self._changed.notify_all()


_log = logging.getLogger("dibs.holds")
_UNPROVEN_PAUSE_S = 0.1


class HoldWish(Struct, frozen=True):
    """A request for a slot; `wait_s` is how long to wait for a free slot."""

    name: str
    holder: HolderId
    slots: int = 1
    ttl: timedelta = timedelta(seconds=30)
    wait_s: float = 0.0


class HoldRefused(Struct, frozen=True):
    """No slot was granted: other holders have all slots, or `why` has the reason."""

    name: str
    by: tuple[Record, ...]
    why: str = ""


class Hold(InHand):
    """A slot held by this process, renewed in the background until released or lost.

    The fence rises with every grant of the slot; with a single slot, with every grant of the name.
    """

    def __init__(
        self, holds: "Holds", keeper: Keeper, supervision: Supervision, leave: Callable[[], None]
    ) -> None:
        self._holds, self._keeper, self._supervision = holds, keeper, supervision
        self._leave = leave
        self._released = False

    @property
    def keeper(self) -> Keeper:
        return self._keeper

    def release(self) -> None:
        """Give the slot back. Idempotent; if the store is unreachable, the slot expires."""
        if self._released:
            return
        self._released = True
        try:
            self._keeper.begin_finishing()
            self._supervision.stop()
            self._holds.give_back(self._keeper.lease)
        finally:  # in the reverse order of taking: the store first, then the local turn
            self._leave()


class NamedLeases(Struct, eq=False):
    """Leases on names in a store: what holds and loops have in common."""

    store: LeaseStore
    tracker: Tracker
    pipeline: Pipeline
    granting: Granting
    observer: Observer
    clock: Clock
    threads: Threads
    new_run: Callable[[], RunId]
    dice: random.Random

    def keeper(self, grant: Grant) -> Keeper:
        return Keeper(grant, self.store, self.tracker, self.pipeline, self.clock, self.observer)

    def give_back(self, lease: Lease) -> None:
        """Release a lease. If the store is unreachable, log a warning: the lease will expire."""
        try:
            self.store.release(lease, Ending(Outcome.CONCEDED))
        except Outage as failure:
            _log.warning("%s: its lease stays until it expires: %s", lease.issue, failure)

    def refusal_of(self, lease: Lease) -> Reason | None:
        """Check after a grant whether the store may still grant leases.

        If not, give the lease back and return the reason.
        """
        with ExitStack() as undo:
            undo.callback(self.give_back, lease)
            refusal = self.granting.refusal_of(lease.fence)
            if refusal is None:
                undo.pop_all()
            return refusal


class Holds(NamedLeases, eq=False):
    turns: Turns

    def take(self, wish: HoldWish) -> Hold | HoldRefused:
        """Take a slot of the name; wait for a slot as long as the wish allows."""
        checked_name(wish.name)
        if wish.slots < 1:
            raise Misuse(f"{wish.name}: slots must be at least 1")
        try:
            terms = _terms(wish.ttl)
        except ValueError as flaw:
            raise BadTtl(f"{wish.name}: {format_duration(wish.ttl)}: {flaw}") from flaw
        until = self.clock.now() + wish.wait_s

        def left_s() -> float:
            return until - self.clock.now()

        # The local turn first: only as many threads of this process ask as there are slots.
        if not self.turns.enter(wish.name, wish.slots, left_s):
            return HoldRefused(wish.name, (), "other threads of this process hold it")
        with ExitStack() as turn:
            turn.callback(self.turns.leave, wish.name)
            run, waiting = self.new_run(), LeaseWaiter(self.store, self.clock, self.dice)
            while isinstance(taken := self._ask_each_slot(wish, run, terms, left_s), HoldRefused):
                if left_s() <= 0:
                    return taken
                first = min(taken.by, key=lambda record: record.remaining, default=None)
                if first is not None:
                    waiting.pause(first.lease.issue, first.remaining, left_s())
                else:  # no holder is known: the slot changed hands too fast, and will do so again
                    self.clock.sleep(min(self.dice.uniform(0, _UNPROVEN_PAUSE_S), left_s()))
            try:
                keeper = self.keeper(taken)
                supervision = Supervision(keeper, self.clock, self.threads)
            except BaseException:  # no more threads, or an interrupt: no thread would renew it
                self.give_back(taken.lease)
                raise
            return Hold(self, keeper, supervision, turn.pop_all().close)

    def holders(self) -> tuple[Record, ...]:
        """All live holds, the oldest first."""
        return self.store.live(HOLD_STAGE)

    def _ask_each_slot(
        self, wish: HoldWish, run: RunId, terms: LeaseTerms, left_s: Callable[[], float]
    ) -> Grant | HoldRefused:
        """Ask the store for each slot once, in random order, until a slot is granted.

        While time is left, a store that is unreachable for a moment counts as a refusal.
        """
        busy, unproven = [], ""
        try:
            slots = list(range(1, wish.slots + 1))
            self.dice.shuffle(slots)
            for slot in slots:
                look, asked_at = self.granting.last_look(), self.clock.now()
                if look.objections:
                    return HoldRefused(wish.name, (), look.objections[0].text)
                ref = hold_ref(wish.name, slot)
                bid = Bid(ref, run, wish.holder, HOLD_STAGE, terms.ttl, None, look.floor)
                match acquire_patiently(self.store, bid):
                    case Granted(lease):
                        if (refusal := self.refusal_of(lease)) is not None:
                            return HoldRefused(wish.name, (), refusal.text)
                        waited = {"waited": max(0.0, wish.wait_s - left_s())}
                        self.observer.observe(about(EventKind.CLAIMED, lease, spans=waited))
                        return Grant(lease, _stage(terms), terms, asked_at)
                    case Busy(record):
                        busy.append(record)
                    case Unproven(why):
                        unproven = why
                    case Full():
                        raise AssertionError("no limit was given")
                    case never:
                        assert_never(never)
        except Outage as failure:
            if not failure.retryable or left_s() <= 0:
                raise
            return HoldRefused(wish.name, (), str(failure))
        return HoldRefused(wish.name, tuple(busy), "" if busy else unproven)
