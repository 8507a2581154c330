"""One value for everything that services share, and whether this process's store may grant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from dibs.core.eligibility import Reason, regressed
from dibs.core.errors import GrantedElsewhere, Unavailable
from dibs.core.events import Event, Reached, Step, unwatched
from dibs.core.granter import Appointed, Granter, keeps_house, objection
from dibs.core.ids import Fence, LocalTime, RunId
from dibs.core.pipeline import Pipeline

if TYPE_CHECKING:
    from dibs.core.lease import AcquireResult, Bid
    from dibs.ports.leases import Granters, LeaseStore, Pauses, ShownLeases
    from dibs.ports.system import Clock, Observer, Threads
    from dibs.ports.tracker import Tracker


class GranterLook(Struct, frozen=True):
    """What follows from who grants, as it was read at one time."""

    objections: tuple[Reason, ...]
    """Why nothing may be granted by this store; empty if it may."""
    floor: Fence
    """Every fence has to be above it."""


class Granting:
    """One store's view of who grants. The first store that grants anything is appointed by it."""

    def __init__(self, granters: Granters, store: str) -> None:
        self._granters = granters
        self.store = store

    @property
    def granter(self) -> Granter | None:
        """As it was lately: nothing is granted before `refusal_of` has looked again."""
        return self._granters.lately()

    def look(self) -> GranterLook:
        """Read who grants, once for everything that follows from it. Writes nothing."""
        granter = self.granter
        if granter is None:
            return GranterLook((), Fence(0))
        against = objection(granter, self.store)
        return GranterLook((against,) if against is not None else (), granter.floor)

    def objections(self) -> tuple[Reason, ...]:
        """Why nothing may be granted here now."""
        return self.look().objections

    def refusal_of(self, fence: Fence, *, since: LocalTime | None = None) -> Reason | None:
        """Why a grant that was just made may not be used. To be asked after every grant.

        A mover writes first and looks second, so whoever was granted something looks after it was:
        now, or with something that was read `since` then. If there was no granter, this store is.
        """
        granter = self._granters.granter(since=since) or self._granters.appoint(
            Appointed(self.store), instead_of=None
        )
        against = objection(granter, self.store)
        if against is None and fence <= granter.floor:
            # The floor rose while we asked: leases were moved away and back again.
            return regressed(fence, granter.floor)
        return against

    def keeps_house(self) -> bool:
        """Whether this store's word may be used to bring labels back to the truth."""
        granter = self.granter
        return granter is None or keeps_house(granter, self.store)

    def insist(self) -> None:
        """Before this store's word is taken for the truth. Raises GrantedElsewhere."""
        if not self.keeps_house():
            raise GrantedElsewhere("; ".join(reason.text for reason in self.objections()))


class OneStep:
    """Makes store and tracker change together, and reports what happened once it is written.

    A step or an event inside happened only when the whole is written: it is reported then, and not
    at all if the whole is undone. No observer runs while the database is locked.
    """

    def __init__(
        self, together: Callable[[], AbstractContextManager[object]], reached: Reached
    ) -> None:
        self._together, self._reached = together, reached
        self._thread = threading.local()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self._reports is not None:  # a part of a step that is open already
            yield
            return
        reports: list[Callable[[], None]] = []
        self._thread.reports = reports
        try:
            with self._together():
                yield
        finally:
            self._thread.reports = None
        for report in reports:
            report()

    def reached(self, step: Step) -> None:
        self._report(partial(self._reached, step))

    def observer(self, observer: Observer) -> Observer:
        """The observer, told of events inside a step when the step is written."""
        return _Later(lambda event: self._report(partial(observer.observe, event)))

    def _report(self, report: Callable[[], None]) -> None:
        if self._reports is None:
            report()
        else:
            self._reports.append(report)

    @property
    def _reports(self) -> list[Callable[[], None]] | None:
        """What this thread reports when its step is written; None outside of a step."""
        reports: list[Callable[[], None]] | None = getattr(self._thread, "reports", None)
        return reports


class _Later(Struct, frozen=True):
    observe: Callable[[Event], None]


class Observers:
    """Hands each event to every observer. An observer that raises is logged and stops nothing."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def observe(self, event: Event) -> None:
        for observer in self._observers:
            try:
                observer.observe(event)
            except Exception:
                import logging

                text = "an observer failed at %s of %s"
                logging.getLogger("dibs.observers").exception(text, event.kind, event.issue)


class Backlog(Struct, frozen=True):
    """A tracker with its leases, as configured. Built once and handed to every service."""

    tracker: Tracker
    leases: ShownLeases
    pipeline: Pipeline
    pauses: Pauses
    observer: Observer
    clock: Clock
    threads: Threads
    granting: Granting
    new_run: Callable[[], RunId]
    grace: timedelta
    """How long after its expiry a lease is left to its holder."""
    settle: timedelta
    """How long after a write every reader is sure to see it, as configured."""
    max_ttl: timedelta
    reached: Reached = unwatched
    one_step: Callable[[], AbstractContextManager[object]] = nullcontext
    """Makes tracker and leases change together or not at all, where both are in one database."""


def acquire_patiently(store: LeaseStore, bid: Bid) -> AcquireResult:
    """Ask once more after a lost reply: the run is the same, so the grant is, too.

    Otherwise the store would keep for a whole ttl what nobody knows to have.
    """
    try:
        return store.acquire(bid)
    except Unavailable:
        return store.acquire(bid)
