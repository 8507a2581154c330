"""What services share: the `Backlog`, and how they ask, write and report through it.

`Granting` tells whether the store of this process may grant, and `OwnedStore` whether the store's
namespace is this backlog's. `OneStep` makes store and tracker change together where both are in one
database. `Observers` hands events to every observer. `Rests` tells the tracker which issues
rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.eligibility import (
    Reason,
    Surroundings,
    judge,
    regressed,
    rest_rules,
    rests_until,
)
from dibs.core.errors import BadConfiguration, GrantedElsewhere, Misuse, Outage, Unavailable
from dibs.core.events import Event, Reached, Step, unwatched
from dibs.core.granter import Appointed, Granter, Moving, Owner, keeps_house, objection
from dibs.core.ids import ZERO, Fence, HolderId, IssueRef, LocalTime, RunId, ServerTime, StageName
from dibs.core.lease import Bid, Busy, Ending, Granted, Outcome, Record, Unproven
from dibs.core.pipeline import Pipeline
from dibs.ports.leases import Lingering, Waking

if TYPE_CHECKING:
    from dibs.core.issue import Issue
    from dibs.core.lease import (
        AcquireResult,
        Lease,
        ReleaseResult,
        RenewResult,
        Revocation,
    )
    from dibs.ports.leases import Granters, Guarantee, LeaseStore, Pauses, ShownLeases
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
        self._last: GranterLook | None = None

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

    def last_look(self) -> GranterLook:
        """The look at the last grant, if the store might grant then; else a new look.

        For a bidder who bids in vain if the store may no longer grant: `refusal_of` finds out.
        """
        return self._last or self.look()

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
            against = regressed(fence, granter.floor)
        self._last = GranterLook((), granter.floor) if against is None else None
        return against

    def keeps_house(self) -> bool:
        """Whether this store's records may be used to repair labels."""
        granter = self.granter
        return granter is None or keeps_house(granter, self.store)

    def insist(self) -> None:
        """Raise GrantedElsewhere if this store's records may not be used to repair labels."""
        if not self.keeps_house():
            raise GrantedElsewhere("; ".join(reason.text for reason in self.objections()))


ISSUES, NAMES = IssueRef("~owner", "issues"), IssueRef("~owner", "names")
_STAGE, _TTL = StageName("~owner"), timedelta(seconds=10)
_GREETED_S = 10.0
"""So soon a running worker of a former owner is refused."""


class OwnedStore(Struct):
    """A `LeaseStore` whose namespace serves a single backlog: the first to grant is the owner.

    Two backlogs in one namespace would use one lease for two issues, because both backlogs may have
    an issue 1, and would finish issues without running a handler. Hence the store keeps the owner
    of the namespace, and every process compares the owner before the first use, and before a grant
    if it compared more than ten seconds ago: the owner may have been replaced. Issues and names
    (holds and loops) have separate owners: backlogs may share names knowingly, never issues.

    The owner is kept as the ending of a lease. No worker ever paints this ending, and no store
    grants a lease whose ending is not painted: so the first owner stays.
    """

    store: LeaseStore
    granters: Granters
    granter_name: str
    """The name of the store in the granter record."""
    shared_names: str
    """The name under which several backlogs share holds and loops; empty: they share none."""
    new_run: Callable[[], RunId]
    clock: Clock
    _greeted: dict[IssueRef, LocalTime] = {}
    """When the owner of the issues or names was last found to be this backlog."""

    @property
    def name(self) -> str:
        return self.store.name

    @property
    def guarantees(self) -> Guarantee:
        return self.store.guarantees

    def acquire(self, bid: Bid) -> AcquireResult:
        self._greet(_kind(bid.issue), bid.issue, granting=True)
        return self.store.acquire(bid)

    def renew(self, lease: Lease) -> RenewResult:
        return self.store.renew(lease)

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        return self.store.release(lease, ending)

    def acknowledge(self, record: Record) -> None:
        self.store.acknowledge(record)

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        self._greet(_kind(issue), issue)
        return self.store.revoke(issue, revocation)

    def read(self, issue: IssueRef) -> Record | None:
        self._greet(_kind(issue), issue)
        return self.store.read(issue)

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        self._greet(ISSUES)
        return self.store.live(stage, limit)

    def highest(self) -> Fence:
        self._greet(ISSUES)
        return self.store.highest()

    def lingers(self, ttl: timedelta) -> timedelta:
        return self.store.lingers(ttl) if isinstance(self.store, Lingering) else ZERO

    # Who owns the namespace

    def owner(self, kind: IssueRef) -> Owner | None:
        """The owner of the namespace's issues or names; None if nobody owns them yet."""
        record = self.store.read(kind)
        if record is None or record.ending is None or not record.ending.note:
            return None
        return Owner(record.ending.note, record.lease.holder)

    def adopt(self, instead_of: str = "") -> tuple[IssueRef, ...]:
        """Make the backlog the owner of issues and names which nobody or `instead_of` owns.

        Returns `ISSUES` and `NAMES` as far as newly owned. Raises BadConfiguration if another
        backlog owns the issues, or the names and no kind is adopted; or if `instead_of` still has
        live leases: then another backlog is at work in the namespace.
        """
        owners = {kind: self.owner(kind) for kind in (ISSUES, NAMES)}
        adopted = tuple(
            kind
            for kind, owner in owners.items()
            if (owner.id == instead_of if owner is not None else not instead_of)
        )
        for kind, owner in owners.items():
            foreign = owner is not None and owner.id not in {instead_of, self._ours(kind).id}
            if owner is not None and foreign and (kind == ISSUES or not adopted):
                raise self._belongs_to(owner, kind)
        live = [
            str(record.lease.issue)
            for record in (self.store.live() if instead_of else ())
            if record.lease.stage != _STAGE and _kind(record.lease.issue) in adopted
        ]
        if live:
            raise BadConfiguration(
                f"{self.name}: leases of {instead_of} are live: {', '.join(live[:5])}",
                hint="if no worker of that backlog runs, they end by themselves; see dibs list",
            )
        for kind in adopted:
            self._own(kind, instead_of)
        return adopted

    def _ours(self, kind: IssueRef) -> Owner:
        if kind == NAMES and self.shared_names:
            return Owner(f"shared {self.shared_names}", f"backlog = {self.shared_names!r}")
        return self.granters.owner()

    def _greet(
        self, kind: IssueRef, issue: IssueRef | None = None, *, granting: bool = False
    ) -> None:
        """Compare the owner with this backlog. The first that grants becomes the owner."""
        now, greeted_at = self.clock.now(), self._greeted.get(kind)
        if greeted_at is not None and (not granting or now - greeted_at < _GREETED_S):
            return
        owner = self.owner(kind)
        if owner is None and self._has_unknown(kind, issue):
            owner = self.owner(kind)  # of a process that started with ours, and granted since
            if owner is None:
                raise BadConfiguration(
                    f"{self.name} has leases in this namespace, and does not know of which backlog",
                    hint="if they are this backlog's, see dibs leases adopt --help; else use "
                    "another namespace",
                )
        if owner is None:
            if not granting:
                return
            issues = self.owner(ISSUES) if kind == NAMES and not self.shared_names else None
            if issues is not None and issues.id != self.granters.owner().id:
                raise self._belongs_to(issues, ISSUES)  # whose holds and loops it would take
            owner = self._own(kind)
        elif kind == NAMES and self.shared_names and owner.id == self.granters.owner().id:
            # The names were this backlog's alone until it got the setting `backlog`.
            owner = self._own(kind, owner.id)
        if owner.id != self._ours(kind).id:
            raise self._belongs_to(owner, kind)
        self._greeted[kind] = now

    def _own(self, kind: IssueRef, instead_of: str = "") -> Owner:
        """Make the backlog the owner, if there is none but `instead_of`. Returns the owner."""
        from random import Random

        from dibs.services.resuming import LeaseWaiter

        ours, waiter = self._ours(kind), LeaseWaiter(self.store, self.clock, Random())
        patience_s = self.clock.now() + 3 * _TTL.total_seconds()
        while True:
            bid = Bid(kind, self.new_run(), HolderId(ours.name), _STAGE, _TTL)
            match acquire_patiently(self.store, bid):
                case Granted(lease):
                    self.store.release(lease, Ending(Outcome.PARKED, note=ours.id))
                    remaining = ZERO
                case Busy(Record(ending=None) as record):  # a process that started with ours
                    remaining = record.remaining
                case Busy(record) if record.ending and record.ending.note == instead_of != ours.id:
                    self.store.acknowledge(record)
                    continue
                case Unproven(why):
                    raise Unavailable(f"{self.name}: {why}")
                case _:
                    remaining = ZERO
            if (owner := self.owner(kind)) is not None:
                return owner
            left_s = patience_s - self.clock.now()
            if left_s <= 0:
                raise Unavailable(f"{self.name}: another process is about to own it; try again")
            waiter.pause(kind, remaining, left_s)

    def _has_unknown(self, kind: IssueRef, issue: IssueRef | None) -> bool:
        """Whether the namespace has leases, and nobody knows of which backlog.

        A backlog whose leases this store granted before goes on: an earlier dibs kept no owners.
        Only live leases and the record of the issue itself are looked at: the fence of the whole
        store says nothing, since some stores begin far above 0.
        """
        match self.granters.granter():
            case Appointed(store) | Moving(store) if store == self.granter_name:
                return False
            case Moving(_, target) if target == self.granter_name:
                return False
        live = (record for record in self.store.live(limit=3) if record.lease.stage != _STAGE)
        if not any(live) and (issue is None or self.store.read(issue) is None):
            return False
        # Read after the leases: an owner is written before its first lease.
        return self.owner(NAMES if kind == ISSUES else ISSUES) is None

    def _belongs_to(self, owner: Owner, kind: IssueRef) -> BadConfiguration:
        ours = self._ours(kind)
        what = "issues" if kind == ISSUES else "holds and loops"
        sharing = "" if kind == ISSUES else "; to share them, give both the same backlog setting"
        return BadConfiguration(
            f"{self.name}: the {what} in this namespace are those of {owner.name} (id {owner.id}), "
            f"and this is {ours.name} (id {ours.id})",
            hint=f"give each backlog a namespace, database or repository of its own{sharing}",
        )


def _kind(issue: IssueRef) -> IssueRef:
    """What the issue or name belongs to: names have a sign in front that no repository has."""
    return NAMES if issue.repo.startswith("~") else ISSUES


class WakingOwnedStore(OwnedStore):
    """The same for a store that can report the end of a lease."""

    def await_end(self, issue: IssueRef, seconds: float) -> None:
        assert isinstance(self.store, Waking), "chosen for a store that wakes"
        self.store.await_end(issue, seconds)


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


class Rests:
    """Lets issues rest which no worker may claim for a while, so that a search skips them.

    The core judges, and the tracker only remembers until when the judgement holds: `Tracker.rest`.
    A query with `rules` leaves resting issues out; a claim of a named issue, and every listing for
    people, reads the issue as always.
    """

    def __init__(self, backlog: Backlog) -> None:
        self._tracker, self._leases = backlog.tracker, backlog.leases
        self._pipeline = backlog.pipeline
        self.rules = rest_rules(backlog.pipeline, backlog.max_ttl)
        self.hide_held = backlog.tracker.traits.keeps_rests and backlog.one_step is not nullcontext
        """Whether held issues rest, too: where no lease changes but in one step with the issue."""

    def note(self, issue: Issue, reasons: Sequence[Reason]) -> None:
        """Let the issue rest for as long as the reasons against a claim hold for sure."""
        until = rests_until(reasons, held_too=self.hide_held)
        if until is not None and self._tracker.traits.keeps_rests:
            with suppress(Outage):  # the next search is refused the issue as well
                self._tracker.rest(issue, until, self.rules)

    def note_held(self, issue: Issue, until: ServerTime) -> None:
        """Let a held issue rest until the lease expires."""
        if self.hide_held:
            self._tracker.rest(issue, until, self.rules)

    def note_failed(self, ref: IssueRef) -> None:
        """Let a failed issue rest. After an outage the next search judges the issue instead."""
        if not self._tracker.traits.keeps_rests:
            return
        with suppress(Outage, Misuse):
            snapshot = self._tracker.read(ref)
            standing = self._leases.standing(snapshot)
            verdict = judge(snapshot, standing, self._pipeline, Surroundings())
            self.note(snapshot.issue, verdict.reasons)


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
    if not (people.assigned(issue) or people.delegated(issue) or people.pulling(issue)):
        return pipeline
    login = tracker.login() if tracker.traits.accounts else None
    return replace(pipeline, people=people.and_of_the_fleet([login])) if login else pipeline
