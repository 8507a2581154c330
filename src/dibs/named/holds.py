"""Holds: a named lease, or one of N slots of a name, kept as long as its holder works.

With one slot it is a mutex, with several a limit on what runs at once. A slot is a lease like any
other, so slot and lease are one atomic step, a dead holder's slot frees itself, and the fence of
the slot can be checked where something is written.

The local mutex before the distributed lease: threads of one process queue among themselves.

Only as many of them as there are slots ask the store at all, so a process with fifty threads costs
the store no more than one with one. The map holds names in use and nothing else.
"""

import logging
import random
import threading
from collections.abc import Callable
from datetime import timedelta
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
from dibs.ports.leases import LeaseStore, acquire_patiently
from dibs.ports.system import Clock, Journal, Threads
from dibs.ports.tracker import Tracker
from dibs.services.claiming import Granting
from dibs.services.keeping import Grant, InHand, Keeper, Supervision
from dibs.services.resuming import Waiting


class Turns:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[str, int] = {}

    def enter(self, name: str, slots: int, left_s: Callable[[], float]) -> bool:
        """Wait for a turn; False if the time is over. Every turn is left again."""
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

    def __len__(self) -> int:
        """How many names are in use."""
        return len(self._inside)


_log = logging.getLogger("dibs.holds")
_DOUBT_S = 0.1


class HoldWish(Struct, frozen=True):
    name: str
    holder: HolderId
    slots: int = 1
    ttl: timedelta = timedelta(seconds=30)
    wait_s: float = 0.0


class NotHeld(Struct, frozen=True):
    """Others have all the slots."""

    name: str
    by: tuple[Record, ...]
    why: str = ""


class Hold(InHand):
    """A slot in our hands, renewed in the background until it is released or lost.

    Its fence rises with every grant of this slot; with one slot, of the name.
    """

    def __init__(
        self, store: LeaseStore, keeper: Keeper, supervision: Supervision, leave: Callable[[], None]
    ) -> None:
        self._store, self._keeper, self._supervision, self._leave = (
            store,
            keeper,
            supervision,
            leave,
        )
        self._released = False

    @property
    def keeper(self) -> Keeper:
        return self._keeper

    def release(self) -> None:
        """Give the slot back. Idempotent; if the store cannot be asked, the slot expires."""
        if self._released:
            return
        self._released = True
        try:
            self._keeper.begin_finishing()
            self._supervision.stop()
            give_back(self._store, self._keeper.lease)
        finally:  # local turns in reverse order: the store first
            self._leave()


def give_back(store: LeaseStore, lease: Lease) -> None:
    """Best effort: what cannot be given back expires, and whatever was done is done."""
    try:
        store.release(lease, Ending(Outcome.CONCEDED))
    except Outage as failure:
        _log.warning("%s: its lease stays until it expires: %s", lease.issue, failure)


def refusal_of(granting: Granting, store: LeaseStore, lease: Lease) -> Reason | None:
    """Look who grants once more, now that we have something; what may not be used goes back."""
    try:
        against = granting.refusal_of(lease.fence)
    except BaseException:
        give_back(store, lease)
        raise
    if against is not None:
        give_back(store, lease)
    return against


class Holds:
    def __init__(
        self,
        store: LeaseStore,
        tracker: Tracker,
        pipeline: Pipeline,
        granting: Granting,
        journal: Journal,
        clock: Clock,
        threads: Threads,
        *,
        new_run: Callable[[], RunId],
        dice: random.Random,
        turns: Turns,
    ) -> None:
        self._store, self._tracker, self._pipeline = store, tracker, pipeline
        self._granting, self._journal = granting, journal
        self._clock, self._threads = clock, threads
        self._new_run, self._dice, self._turns = new_run, dice, turns

    def take(self, wish: HoldWish) -> Hold | NotHeld:
        """A slot of the name, waited for as long as the wish says."""
        terms, until = _terms(wish), self._clock.now() + wish.wait_s

        def left_s() -> float:
            return until - self._clock.now()

        # The local mutex first: of our own threads only as many ask the store as could be granted.
        if not self._turns.enter(wish.name, wish.slots, left_s):
            return NotHeld(wish.name, (), "other threads of this process hold it")
        leave = _once(lambda: self._turns.leave(wish.name))
        try:
            taken = self._ask(wish, terms, left_s)
            if isinstance(taken, Grant):
                return self._keep(taken, leave)
        except BaseException:
            leave()
            raise
        leave()
        return taken

    def holders(self) -> tuple[Record, ...]:
        """Everything that is held by name, the oldest first."""
        return self._store.live(HOLD_STAGE)

    def _ask(
        self, wish: HoldWish, terms: LeaseTerms, left_s: Callable[[], float]
    ) -> Grant | NotHeld:
        run, waiting = self._new_run(), Waiting(self._store, self._clock, self._dice)
        while True:
            asked = self._ask_once(wish, run, terms, left_s)
            if isinstance(asked, Grant):
                return asked
            if left_s() <= 0:
                return asked
            first = min(asked.by, key=lambda record: record.remaining, default=None)
            if first is not None:
                waiting.pause(first.lease.issue, first.remaining, left_s())
            else:  # it changed hands too fast to say whose it is: it will again
                self._clock.sleep(min(self._dice.uniform(0, _DOUBT_S), left_s()))

    def _ask_once(
        self, wish: HoldWish, run: RunId, terms: LeaseTerms, left_s: Callable[[], float]
    ) -> Grant | NotHeld:
        """A store that is out of reach for a moment is worth the patience that there is."""
        try:
            if against := self._granting.objections():
                return NotHeld(wish.name, (), against[0].text)
            return self._each_slot(wish, run, terms)
        except Outage as failure:
            if not failure.retryable or left_s() <= 0:
                raise
            return NotHeld(wish.name, (), str(failure))

    def _each_slot(self, wish: HoldWish, run: RunId, terms: LeaseTerms) -> Grant | NotHeld:
        slots = list(range(1, wish.slots + 1))
        self._dice.shuffle(slots)
        others, doubt = [], ""
        for slot in slots:
            asked_at = self._clock.now()
            ref = hold_ref(wish.name, slot)
            bid = Bid(ref, run, wish.holder, HOLD_STAGE, terms.ttl, None, self._granting.floor())
            match acquire_patiently(self._store, bid):
                case Granted(lease):
                    if (against := refusal_of(self._granting, self._store, lease)) is not None:
                        return NotHeld(wish.name, (), against.text)
                    self._journal.append(about(EventKind.CLAIMED, lease))
                    stage = Stage(HOLD_STAGE, label=HOLD_STAGE, terms=terms)
                    return Grant(lease, stage, terms, asked_at)
                case Busy(record):
                    others.append(record)
                case Unproven(why):
                    doubt = why
                case Full():
                    raise AssertionError("no limit was given")
                case never:
                    assert_never(never)
        return NotHeld(wish.name, tuple(others), "" if others else doubt)

    def _keep(self, grant: Grant, leave: Callable[[], None]) -> Hold:
        try:
            keeper = Keeper(
                grant, self._store, self._tracker, self._pipeline, self._clock, self._journal
            )
            supervision = Supervision(keeper, self._clock, self._threads)
        except BaseException:  # no more threads, an interrupt: nobody would renew it
            give_back(self._store, grant.lease)
            raise
        return Hold(self._store, keeper, supervision, leave)


def _terms(wish: HoldWish) -> LeaseTerms:
    checked_name(wish.name)
    if wish.slots < 1:
        raise Misuse(f"{wish.name}: slots must be at least 1")
    try:
        return terms_for(wish.ttl)
    except ValueError as flaw:
        raise BadTtl(f"{wish.name}: {format_duration(wish.ttl)}: {flaw}") from flaw


def _once(action: Callable[[], None]) -> Callable[[], None]:
    done = False

    def act() -> None:
        nonlocal done
        if not done:
            done = True
            action()

    return act
