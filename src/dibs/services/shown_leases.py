"""Any atomic lease store, made visible on the tracker: the same labels, the same card.

The store decides; the tracker shows. A tracker that cannot be reached delays the picture and never
ends a lease that the store renewed. An ending is decided in the store first, painted second and
acknowledged last, so that whoever comes next can finish what a crash left half shown. It is
acknowledged only once every reader is sure to see it: the store grants from then on, and who is
granted judges by a reading.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dibs.core.card import CardState, render_card, render_revoke
from dibs.core.errors import NoSuchComment, NoSuchIssue, Outage, Unavailable
from dibs.core.events import Reached, Step, unwatched
from dibs.core.fold import (
    FoldRules,
    Marks,
    card_of,
    highest_fence,
    read_marks,
    tries_on_picture,
    without_run,
)
from dibs.core.ids import Fence, IssueRef, RunId
from dibs.core.issue import Snapshot
from dibs.core.labels import EditComment, Effect, Painting, PostComment
from dibs.core.lease import (
    AcquireResult,
    Bid,
    Ending,
    Lease,
    Lost,
    Outcome,
    Record,
    Released,
    ReleaseResult,
    Renewed,
    RenewResult,
    Revocation,
    Standing,
)
from dibs.ports.leases import Guarantee, LeaseStore, Painter
from dibs.ports.system import Clock
from dibs.ports.tracker import Tracker
from dibs.services.backlog import acquire_patiently
from dibs.services.effects import apply, in_one_request, paint_ending, repair_labels

if TYPE_CHECKING:
    import logging

_PAINTINGS = 20
_TRIES = 3
_PAUSE_S = 0.5


class _Done(Enum):
    """What the store knows of an ending that is not to be painted any more."""

    PAINTED = auto()
    AND_GONE_ON = auto()


class Showing:
    """A `LeaseStore` and a `Tracker` as `ShownLeases`."""

    def __init__(
        self,
        store: LeaseStore,
        tracker: Tracker,
        clock: Clock,
        *,
        rules: FoldRules,
        reached: Reached = unwatched,
        one_step: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`one_step` makes store and tracker change together, where both are in one database."""
        self._store = store
        self._tracker = tracker
        self._clock = clock
        self._rules = rules
        self._reached = reached
        self._one_step = one_step
        # What is written in one transaction is seen by every reader at once: nothing to wait for.
        together = one_step is not nullcontext
        self._settle_s = 0.0 if together else rules.settle.total_seconds()

    @property
    def name(self) -> str:
        return self._store.name

    @property
    def guarantees(self) -> Guarantee:
        return self._store.guarantees

    def acquire(self, bid: Bid) -> AcquireResult:
        result = acquire_patiently(self._store, bid)
        self._reached(Step.CLAIM_BID)
        return result

    def show(self, lease: Lease, paint: Sequence[Effect]) -> RenewResult:
        card = PostComment(_card(lease, CardState.HELD))
        snapshot = apply(self._tracker, lease.issue, (*paint, card))
        self._reached(Step.CLAIM_CONFIRMED)
        return Renewed(replace(lease, card=self._card_of(snapshot, lease.run)), snapshot)

    def renew(self, lease: Lease) -> RenewResult:
        result = self._store.renew(lease)
        self._reached(Step.RENEW_STORED)
        if not isinstance(result, Renewed):
            return result
        return Renewed(result.lease, self._show_beat(result.lease))

    def _show_beat(self, lease: Lease) -> Snapshot | None:
        """Show the renewal on the card and read the issue. None if that fails: it is renewed."""
        try:
            if lease.card is None:
                return self._tracker.read(lease.issue)
            edit = EditComment(lease.card, _card(lease, CardState.HELD))
            return apply(self._tracker, lease.issue, (edit,))
        except (Outage, NoSuchComment, NoSuchIssue) as failure:
            _log().warning("%s: renewed, but the card does not show it: %s", lease.issue, failure)
            return None

    def concede(self, lease: Lease) -> None:
        try:
            self._store.release(lease, Ending(Outcome.CONCEDED))
        except Outage as failure:
            _log().warning("%s: the grant stays until it expires: %s", lease.issue, failure)

    def finish(self, lease: Lease, ending: Ending, painter: Painter) -> ReleaseResult:
        self._reached(Step.FINISH_VERIFIED)
        with self._one_step():
            result = self._store.release(lease, ending)
            if isinstance(result, Lost):
                return result
            self._reached(Step.FINISH_DECIDED)
            record = replace(result.record, lease=replace(result.record.lease, card=lease.card))
            try:
                self.roll_forward(record, painter)
            except Outage as failure:
                waits = "%s: decided, but its labels wait for a sweep: %s"
                _log().warning(waits, lease.issue, failure)
                return Released(record)
            return Released(replace(record, painted=True))

    def roll_forward(self, record: Record, painter: Painter) -> None:
        """Paint the ending: stage labels, then the card, then take `claimed` off; acknowledge last.

        Paint only while the store says that the ending is not painted and the issue is unchanged:
        a process that slept here must not undo later changes.
        """
        with self._one_step():
            self._roll_forward(record, painter)

    def _roll_forward(self, record: Record, painter: Painter) -> None:
        plan, tries, has_card = partial(painter, record), 0, True
        tried_on: Snapshot | None = None
        for _ in range(_PAINTINGS):
            snapshot = self._tracker.read(record.lease.issue)
            if (since := self._done(record)) is not None:
                if tried_on is not None:
                    self._put_right(since, plan, tried_on)
                return
            if not snapshot.complete:  # its card may be on the page that is missing
                self._clock.sleep(_PAUSE_S)
                continue
            mark = self._card_edit(record, snapshot) if has_card else ()
            try:
                painted = paint_ending(
                    self._tracker, snapshot, plan, mark, self._reached, tried_on=tried_on
                )
            except NoSuchComment:
                has_card = False  # somebody deleted the card: it shows without one
                continue
            except Unavailable:
                tried_on, tries = tried_on or snapshot, tries + 1
                if not in_one_request(self._tracker) or tries == _TRIES:
                    raise
                continue  # any part of a trip may have happened, so it is not left like that
            if painted is not None:
                if in_one_request(self._tracker) and (since := self._done(record)):
                    # In one trip nobody looks before the card is written, and all write the same.
                    self._put_right(since, plan, snapshot)
                self._reached(Step.FINISH_PAINTED)
                self._acknowledge(record)
                return
        raise Unavailable(f"{record.lease.issue} changes faster than it can be painted")

    def _acknowledge(self, record: Record) -> None:
        """Acknowledge the ending after the settle time: only then every reader sees the labels."""
        self._clock.sleep(self._settle_s)
        self._store.acknowledge(record)
        self._reached(Step.FINISH_ACKNOWLEDGED)

    def _done(self, record: Record) -> _Done | None:
        """Whether another process painted the ending, as the store records it. None: not yet."""
        known = self._store.read(record.lease.issue)
        if known is None or known.lease.run != record.lease.run:
            return _Done.AND_GONE_ON
        return _Done.PAINTED if known.painted else None

    def _put_right(
        self, since: _Done, plan: Callable[[Snapshot], Painting], before: Snapshot
    ) -> None:
        """If a later lease exists, take back the labels that we painted late.

        Wait for the settle time first: a read may not show the newest cards yet.
        """
        if since is _Done.AND_GONE_ON:
            self._clock.sleep(self._settle_s)
            snapshot = self._tracker.read(before.issue.ref)
            repair_labels(self._tracker, snapshot, plan, before)

    def _card_edit(self, record: Record, snapshot: Snapshot) -> tuple[Effect, ...]:
        """The edit that shows the ending on the run's card; empty if the run has no card.

        A read that lags may not show the card: then the lease's own note of the card is used.
        """
        card = self._card_of(snapshot, record.lease.run) or record.lease.card
        if card is None:
            return ()
        return (EditComment(card, _card(record.lease, CardState.RELEASED, record.ending)),)

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        record = self._store.revoke(issue, revocation)
        if record is not None:
            self._tracker.comment(issue, render_revoke(revocation))
        return record

    def standing(self, snapshot: Snapshot, *, apart_from: RunId | None = None) -> Standing:
        record = self._store.read(snapshot.issue.ref)
        marks = without_run(self._marks(snapshot), apart_from)
        tries = tries_on_picture(marks, record)
        if record is not None and record.lease.run == apart_from:
            record = None
        if record is not None:
            card = self._card_of(snapshot, record.lease.run)
            record = replace(record, lease=replace(record.lease, card=card))
        return Standing(record, tries, highest=highest_fence(marks))

    def mine(self, snapshot: Snapshot, run: RunId) -> Lease | None:
        record = self._store.read(snapshot.issue.ref)
        if record is None or record.lease.run != run or not record.live:
            return None
        return replace(record.lease, card=self._card_of(snapshot, run))

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        return self._store.live(stage, limit)

    def highest(self) -> Fence:
        return self._store.highest()

    def _marks(self, snapshot: Snapshot) -> Marks:
        return read_marks(snapshot.comments, self._rules)

    def _card_of(self, snapshot: Snapshot, run: RunId) -> int | None:
        mine = [posted.id for posted in self._marks(snapshot).cards if posted.card.run == run]
        return mine[0] if mine else None


def _card(lease: Lease, state: CardState, ending: Ending | None = None) -> str:
    """The card only shows what the store decided, so once it says ended, that is shown."""
    return render_card(
        replace(
            card_of(lease, state, ending),
            shown=state is CardState.RELEASED,
            fence=lease.fence,
        )
    )


def _log() -> "logging.Logger":
    import logging  # when there is something to log: most commands have nothing

    return logging.getLogger("dibs.showing")
