"""What services share: the `Backlog`, and how they ask, write and report through it.

`Granting` tells whether the store of this process may grant. `OneStep` makes store and tracker
change together where both are in one database. `Observers` hands events to every observer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.eligibility import Reason, regressed
from dibs.core.errors import GrantedElsewhere, Unavailable
from dibs.core.events import Event, Reached, Step, unwatched
from dibs.core.granter import Appointed, Granter, keeps_house, objection
from dibs.core.ids import Fence, LocalTime, RunId
from dibs.core.pipeline import Pipeline

if TYPE_CHECKING:
    from dibs.core.issue import Issue
    from dibs.core.lease import AcquireResult, Bid
    from dibs.ports.leases import Granters, LeaseStore, Pauses, ShownLeases
    from dibs.ports.system import Clock, Observer, Threads
    from dibs.ports.tracker import Tracker


class GranterLook(Struct, frozen=True):
    """One read of the granter record, judged for the store of this process."""

    objections: tuple[Reason, ...]
    """Why this store may not grant; empty if it may."""
    floor: Fence
    """A new grant must have a fence above this one."""


class Granting:
    """Whether the store of this process may grant. The first store that grants is appointed."""

    def __init__(self, granters: Granters, store: str) -> None:
        self._granters = granters
        self.store = store

    @property
    def granter(self) -> Granter | None:
        """The granter, up to some seconds old. `refusal_of` reads it again after each grant."""
        return self._granters.lately()

    def look(self) -> GranterLook:
        """Read the granter once, and judge it. Writes nothing."""
        granter = self.granter
        if granter is None:
            return GranterLook((), Fence(0))
        against = objection(granter, self.store)
        return GranterLook((against,) if against is not None else (), granter.floor)

    def objections(self) -> tuple[Reason, ...]:
        """Why this store may not grant now; empty if it may."""
        return self.look().objections

    def refusal_of(self, fence: Fence, *, since: LocalTime | None = None) -> Reason | None:
        """Why a new grant may not be used; None if it may. Call this after every grant.

        A mover of leases writes the granter first and then looks for live grants. So a bidder reads
        the granter after its grant; a read at `since` or later will do. If no store grants yet,
        this store is appointed.
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
        """Whether this store's records may be used to repair labels."""
        granter = self.granter
        return granter is None or keeps_house(granter, self.store)

    def insist(self) -> None:
        """Raise GrantedElsewhere if this store's records may not be used to repair labels."""
        if not self.keeps_house():
            raise GrantedElsewhere("; ".join(reason.text for reason in self.objections()))


class OneStep:
    """Makes store and tracker change together, and reports what happened once it is written.

    Steps and events inside are reported after the transaction is written, and not at all if it is
    undone. So no observer runs while the database is locked.
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
        """Wrap the observer: it gets the events of a step after the step is written."""
        return _Later(lambda event: self._report(partial(observer.observe, event)))

    def _report(self, report: Callable[[], None]) -> None:
        if self._reports is None:
            report()
        else:
            self._reports.append(report)

    @property
    def _reports(self) -> list[Callable[[], None]] | None:
        """The reports that this thread's open step holds back; None outside of a step."""
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


def without_known_shapes(text: str) -> str:
    from dibs.core.words import masked

    return masked(text)


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
    mask: Callable[[str], str] = without_known_shapes
    """Takes secrets out of words that others will read: notes, questions and reasons."""


def acquire_patiently(store: LeaseStore, bid: Bid) -> AcquireResult:
    """Acquire; after a lost reply ask once more. The same run gets the same grant.

    Without the second call, a grant whose reply was lost would block the issue for a whole ttl.
    """
    try:
        return store.acquire(bid)
    except Unavailable:
        return store.acquire(bid)


def with_ourselves(pipeline: Pipeline, tracker: Tracker, issue: Issue) -> Pipeline:
    """The pipeline to judge the issue by: with our own account among the accounts of the fleet.

    The tracker is asked for our account only if the issue has an assignee or a pull request which
    may be ours: the question may cost a request.
    """
    people = pipeline.people
    if not people.assigned(issue) and not people.pulling(issue):
        return pipeline
    login = tracker.login() if tracker.traits.accounts else None
    return replace(pipeline, people=people.and_of_the_fleet([login])) if login else pipeline
