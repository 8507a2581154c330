"""Keeping a lease: renewal in the background, and the moment to stop trusting it.

`Keeper.beat` is one step of the decision and touches no thread; `Supervision` is the thin shell
that calls it. Trust is counted on the local clock from before each request was sent. Once trust is
over, the lease object is dead for ever, even if a late reply says yes.

`InHand` is the part of a lease that its user sees, the same for the lease on an issue, a slot of a
name and the claim of a firing. Its subclasses add how the lease is taken and ended.

`LeaseGroup` is several leases under one piece of work: trusted until the first of them ends, lost
together. A group of one lease, the usual case, costs no more than the lease alone.
"""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol, assert_never

from msgspec import Struct

from dibs.core.durations import REFUSED, LeaseTerms, format_duration
from dibs.core.eligibility import vetoed
from dibs.core.errors import LeaseLost, NoSuchIssue, Outage, Unconfirmed
from dibs.core.events import EventKind, Reached, Step, about, unwatched
from dibs.core.ids import Fence, IssueRef, LocalTime, RunId, StageName, local_after
from dibs.core.issue import Snapshot
from dibs.core.labels import RemoveLabels, claim_effects
from dibs.core.lease import Lease, Lost, Renewed, RenewResult, StopAsked
from dibs.core.pipeline import Pipeline, Stage
from dibs.ports.system import Clock, Hints, Observer, StartedThread, Threads
from dibs.ports.tracker import Tracker
from dibs.services.claiming import Claimed
from dibs.services.effects import apply, put_back

if TYPE_CHECKING:
    import logging


_SHORTEST_PAUSE_S = 0.02
_HINTS_APART_S = 2.0
"""A keeper follows two hints at least so long apart; a hint that comes sooner is followed then."""


class Holding(Struct, frozen=True):
    """The lease is ours, and trusted until `trusted_until` on the local clock."""


class Overdue(Struct, frozen=True):
    """The lease is still ours, but held longer than `max_hold`: the work is wedged and failed."""

    why: str


Condition = Holding | StopAsked | Overdue | Lost


class NotRenewed(Struct, frozen=True):
    """The store did not answer. Trust goes on until `trusted_until`."""

    failure: Outage


class Grant(Struct, frozen=True):
    """A lease on a name instead of an issue: no labels to show, and no issue to read."""

    lease: Lease
    stage: Stage
    terms: LeaseTerms
    asked_at: LocalTime
    failed_attempts: int = 0


class Renewing(Protocol):
    """The part of a lease store which a keeper needs."""

    def renew(self, lease: Lease) -> RenewResult: ...


class Keeper:
    """Renews our lease on an issue or a name, and decides when its user must stop."""

    def __init__(
        self,
        claimed: Claimed | Grant,
        leases: Renewing,
        tracker: Tracker,
        pipeline: Pipeline,
        clock: Clock,
        observer: Observer,
        reached: Reached = unwatched,
        hints: Hints | None = None,
    ) -> None:
        """`hints`: those about the issue; None: the lease is looked at with each renewal only."""
        self.stage, self.terms, self.failed_attempts = (
            claimed.stage,
            claimed.terms,
            claimed.failed_attempts,
        )
        self._lease = claimed.lease
        self._leases, self._tracker, self._pipeline = leases, tracker, pipeline
        self._clock, self._observer, self._reached = clock, observer, reached
        self.hints = hints
        self._lock = threading.RLock()
        self._renewing = threading.Lock()
        self._condition: Condition = Holding()
        self._finishing = False
        self._asked_at = self._since = claimed.asked_at
        self._trusted_until = claimed.terms.trusted_until(claimed.asked_at)
        self._hold_until = local_after(claimed.asked_at, claimed.terms.max_hold)
        self._renew_at = local_after(claimed.asked_at, claimed.terms.renew_every)
        self._watchers: list[Callable[[str], None]] = []
        self.over = threading.Event()
        """Set when the work must stop, for any reason."""

    @property
    def held_s(self) -> float:
        """How long ago the claim was asked for, on the local clock."""
        return self._clock.now() - self._since

    @property
    def lease(self) -> Lease:
        with self._lock:
            return self._lease

    @property
    def condition(self) -> Condition:
        """The condition of the lease now. If trust has run out, the lease is lost from now on."""
        with self._lock:
            holding = isinstance(self._condition, Holding)
            expired = holding and self._clock.now() >= self._trusted_until
        if expired:
            self._end(Lost("it was not renewed in time"))
        return self._condition

    @property
    def trusted_until(self) -> LocalTime:
        with self._lock:
            return self._trusted_until

    @property
    def asked_at(self) -> LocalTime:
        """When we sent the request which counts now: the claim, or the last successful renewal."""
        with self._lock:
            return self._asked_at

    def remaining_s(self) -> float:
        """Seconds of trust left; zero when the work must stop."""
        if not isinstance(self.condition, Holding):
            return 0.0
        return max(0.0, self.trusted_until - self._clock.now())

    def ours_s(self) -> float:
        """Seconds left in which the lease can be ended properly, also if the work has to stop."""
        if isinstance(self.condition, Lost):
            return 0.0
        return max(0.0, self.trusted_until - self._clock.now())

    def check(self) -> None:
        """Call before every side effect. Raises LeaseLost when the work must stop."""
        match self.condition:
            case Holding():
                return
            case StopAsked(why) | Overdue(why) | Lost(why):
                raise LeaseLost(self.lease.issue, fence=self.lease.fence, why=why)
            case never:
                assert_never(never)

    def ensure(self, seconds: float) -> None:
        """Call before a step which cannot be interrupted for so many seconds.

        Renews the lease if too little trust is left. Raises LeaseLost if the work must stop, or if
        too little trust is left even so.
        """
        self.check()
        if self.remaining_s() < seconds:
            self.renew_now()
            self.check()
        if (left := self.remaining_s()) < seconds:
            why = f"{seconds:.1f} s are needed and only {left:.1f} s can be trusted"
            raise LeaseLost(self.lease.issue, fence=self.lease.fence, why=why)

    def on_lost(self, watcher: Callable[[str], None]) -> None:
        """Call `watcher(why)` once when the work must stop, from the thread which notices first."""
        with self._lock:
            self._watchers.append(watcher)

    def beat(self) -> float | None:
        """Renew if the time has come. Returns the seconds until the next beat; None at the end."""
        if self._finishing:
            return self._retry_s
        if not isinstance(self.condition, Holding):
            return None
        now = self._clock.now()
        if now >= self._hold_until:
            limit = format_duration(self.terms.max_hold)
            self._end(Overdue(f"it was held longer than max_hold {limit}"))
            return None
        if now >= self._renew_at:
            self.renew_now()
        if not isinstance(self._condition, Holding):
            return None
        with self._lock:
            next_at = min(self._renew_at, self._trusted_until, self._hold_until)
        return max(next_at - self._clock.now(), _SHORTEST_PAUSE_S)

    @property
    def first_beat_s(self) -> float:
        """Seconds until the first beat has something to do; negative if it is late."""
        return min(self._renew_at, self._hold_until) - self._clock.now()

    def renew_now(self) -> NotRenewed | None:
        """Renew once; renewals never overlap. After an Outage, beats retry until trust ends."""
        with self._renewing:
            if self._finishing or not isinstance(self.condition, Holding):
                return None
            asked_at = self._clock.now()
            self._reached(Step.RENEW_STARTED)
            try:
                result = self._leases.renew(self.lease)
            except Outage as failure:
                _log().warning("%s: renewal failed, will retry: %s", self.lease.issue, failure)
                doubtful = isinstance(failure, Unconfirmed)  # and soon known
                pause_s = min(self._retry_s, REFUSED.pause_s) if doubtful else self._retry_s
                with self._lock:
                    self._renew_at = LocalTime(self._clock.now() + pause_s)
                return NotRenewed(failure)
            except NoSuchIssue as gone:  # deleted or transferred: nothing is left to hold
                self._end(Lost(str(gone)))
                return None
            self._reached(Step.RENEW_SHOWN)
            self._take_reply(result, asked_at)
            return None

    def heed_hint(self) -> None:
        """Renew with the next beat: the issue or its lease may have changed.

        A renewal shows a revoke, a pause and a closed issue. After a failed renewal the time of the
        next try stays as it is: a server may have asked for it.
        """
        with self._lock:
            if self._renew_at == local_after(self._asked_at, self.terms.renew_every):
                self._renew_at = self._clock.now()

    def _take_reply(self, result: Renewed | StopAsked | Lost, asked_at: LocalTime) -> None:
        """Extend or end the trust. A reply which comes after the end of trust revives no lease."""
        if not isinstance(self.condition, Holding):
            return
        match result:
            case Renewed(lease, snapshot):
                now = self._clock.now()
                spans = {"took": now - asked_at, "margin": self._trusted_until - now}
                with self._lock:
                    self._lease, self._asked_at = lease, asked_at
                    self._trusted_until = self.terms.trusted_until(asked_at)
                    self._renew_at = local_after(asked_at, self.terms.renew_every)
                beats = str(lease.beats)
                self._observer.observe(about(EventKind.RENEWED, lease, spans=spans, beats=beats))
                if snapshot is not None:
                    self._heed_picture(snapshot)
            case StopAsked() | Lost():
                self._end(result)
            case never:
                assert_never(never)

    def _heed_picture(self, snapshot: Snapshot) -> None:
        """Stop the work if a person vetoed the issue; else repaint the labels of our lease."""
        if (why := vetoed(snapshot.issue, self._pipeline)) is not None:
            self._end(StopAsked(why))
            return
        repaint = claim_effects(self._pipeline, self.stage, snapshot.issue.labels)
        if repaint:
            try:
                apply(self._tracker, snapshot.issue.ref, repaint)
                if any(isinstance(effect, RemoveLabels) for effect in repaint):
                    put_back(self._tracker, self._clock, self._pipeline, self.stage, self.issue)
            except (Outage, NoSuchIssue) as failure:
                _log().info("%s: labels not repainted: %s", snapshot.issue.ref, failure)

    @property
    def _retry_s(self) -> float:
        return max(self.terms.renew_every.total_seconds() / 5, _SHORTEST_PAUSE_S)

    def _end(self, condition: StopAsked | Overdue | Lost) -> None:
        with self._lock:
            if not isinstance(self._condition, Holding):
                return
            self._condition = condition
            watchers = list(self._watchers)
        self.over.set()
        held = {"held": self.held_s}
        for watcher in watchers:  # first: what stops the work waits for no observer
            watcher(condition.why)
        event = about(EventKind.LEASE_LOST, self._lease, spans=held, why=condition.why)
        self._observer.observe(event)

    def give_up(self, why: str) -> None:
        """Stop trusting the lease now."""
        self._end(Lost(why))

    def ask_to_stop(self, why: str) -> None:
        """End the work. The lease stays ours until the lease is ended."""
        self._end(StopAsked(why))

    def begin_finishing(self) -> None:
        """Stop the renewals, and wait for a renewal under way: a card has one writer at a time."""
        with self._renewing:
            self._finishing = True

    def keep_on(self) -> None:
        """Renew again, after finishing failed before a decision: the caller may retry."""
        with self._renewing:
            self._finishing = False

    def watch(self) -> float | None:
        """Notice the end of trust, even while a renewal hangs.

        Returns the seconds until the next look; None: no more looks.
        """
        if self._finishing:  # the work is over, and the store judges whether the ending is late
            return self._retry_s
        if not isinstance(self.condition, Holding):
            return None
        return max(self.trusted_until - self._clock.now(), _SHORTEST_PAUSE_S)

    # Fields of the lease

    @property
    def issue(self) -> IssueRef:
        return self._lease.issue

    @property
    def run(self) -> RunId:
        return self._lease.run

    @property
    def fence(self) -> Fence:
        return self._lease.fence

    @property
    def stage_name(self) -> StageName:
        return self._lease.stage


class Supervision:
    """The two threads which keep a lease while the work runs.

    The first renews, sooner if a hint about the issue comes. The second watches trust run out: the
    first may be waiting for a store which does not answer, and the work has to stop in time. A
    lease that ends before there is anything to do costs no thread.
    """

    def __init__(self, keeper: Keeper, clock: Clock, threads: Threads) -> None:
        self._keeper = keeper
        self._clock, self._threads = clock, threads
        self._stop = threading.Event()
        self._follow_from = LocalTime(0.0)
        self._watching: StartedThread | None = None
        # Nothing is to be done before the first beat, or before the first look for a hint.
        first_s = keeper.first_beat_s
        self._keeping = threads.start_within(
            first_s if keeper.hints is None else min(first_s, keeper.hints.every_s),
            self._keep,
            f"dibs-keeper-{keeper.issue}",
            otherwise=partial(keeper.give_up, "no thread could be started to renew it"),
        )

    def _keep(self) -> None:
        keeper = self._keeper
        try:
            watch = partial(self._run, keeper.watch, None)
            self._watching = self._threads.start(watch, f"dibs-watch-{keeper.issue}")
        except RuntimeError:  # no more threads
            keeper.give_up("no thread could be started to watch it")
        self._run(keeper.beat, keeper.hints)

    def _run(self, step: Callable[[], float | None], hints: Hints | None) -> None:
        try:
            while (pause_s := step()) is not None:
                self._wait(pause_s, hints)
                if self._stop.is_set():
                    return
        except Exception:  # noqa: BLE001 - the work must learn of any failure
            self._keeper.give_up("its keeper failed")
            _log().exception("%s: the keeper failed", self._keeper.issue)

    def _wait(self, seconds: float, hints: Hints | None) -> None:
        """Wait for the end of the supervision or a hint to follow, at most `seconds`."""
        until, heard = self._clock.now() + seconds, False
        every_s = seconds if hints is None else hints.every_s
        while (left_s := until - self._clock.now()) > 0:
            if self._clock.wait(self._stop, max(min(left_s, every_s), _SHORTEST_PAUSE_S)):
                return
            heard = heard or (hints is not None and hints.heard())
            if heard and (now := self._clock.now()) >= self._follow_from:
                self._follow_from = LocalTime(now + _HINTS_APART_S)
                self._keeper.heed_hint()
                return

    def stop(self) -> None:
        """Stop both threads, and wait for a renewal under way: a card has one writer at a time."""
        self._stop.set()
        self._keeping.join()
        if self._watching is not None:
            self._watching.join()


def _log() -> "logging.Logger":
    import logging  # imported late: most commands log nothing

    return logging.getLogger("dibs.keeping")


class InHand:
    """A lease for the code under the lease: methods to check the lease and to notice the loss."""

    _keeper: Keeper

    @property
    def run(self) -> RunId:
        return self._keeper.run

    @property
    def fence(self) -> Fence:
        """Send the fence with every write; the receiver must refuse lower fences."""
        return self._keeper.fence

    @property
    def remaining_s(self) -> float:
        """Seconds for which the lease can be trusted without another renewal."""
        return self._keeper.remaining_s()

    @property
    def lost(self) -> bool:
        return self._keeper.over.is_set() or self.remaining_s == 0.0

    def check(self) -> None:
        """Call before every side effect. Raises LeaseLost when you must stop."""
        self._keeper.check()

    def ensure(self, seconds: float) -> None:
        """Call before a step which cannot be interrupted for so many seconds.

        Renews the lease if too little trust is left. Raises LeaseLost if the work must stop, or if
        too little trust is left even so.
        """
        self._keeper.ensure(seconds)

    def on_lost(self, watcher: Callable[[str], None]) -> None:
        """Call `watcher(why)` once when you must stop, from the thread which notices first."""
        self._keeper.on_lost(watcher)


class LeaseGroup:
    """Several leases under one piece of work."""

    def __init__(self, keepers: tuple[Keeper, ...]) -> None:
        self.keepers = keepers
        self.lead = keepers[0]
        """The keeper of the lease that the work is named after."""
        if len(keepers) > 1:
            for keeper in keepers:
                keeper.on_lost(partial(self._stop_others, keeper))

    def __iter__(self) -> Iterator[Keeper]:
        return iter(self.keepers)

    def _stop_others(self, lost: Keeper, why: str) -> None:
        for keeper in self.keepers:
            if keeper is not lost:
                keeper.ask_to_stop(f"the lease on {lost.issue} is over: {why}")

    @property
    def trusted_until(self) -> LocalTime:
        """Until when the work may go on without a renewal, even if our process freezes."""
        return min(keeper.trusted_until for keeper in self.keepers)

    def check(self) -> None:
        """Raises LeaseLost when the work must stop."""
        for keeper in self.keepers:
            keeper.check()

    def on_lost(self, watcher: Callable[[str], None]) -> None:
        """Call `watcher` once when any lease is lost: then all leases of the group must stop."""
        self.lead.on_lost(watcher)

    @property
    def over(self) -> bool:
        return any(keeper.over.is_set() for keeper in self.keepers)

    @property
    def overdue(self) -> Overdue | None:
        """The condition of the first lease which was held for longer than `max_hold`, if any."""
        conditions = (keeper.condition for keeper in self.keepers)
        return next((found for found in conditions if isinstance(found, Overdue)), None)

    @property
    def all_ours(self) -> bool:
        """Whether every lease can still be ended properly, by our own clock."""
        return all(keeper.ours_s() > 0 for keeper in self.keepers)
