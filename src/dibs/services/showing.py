"""Any atomic lease store, made visible on the tracker: the same labels, the same card.

The store decides; the tracker shows. A tracker that cannot be reached delays the picture and never
ends a lease that the store renewed. An ending is decided in the store first, painted second and
acknowledged last, so that whoever comes next can finish what a crash left half shown.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dibs.core.card import CardState, render_card, render_revoke
from dibs.core.errors import NoSuchComment, NoSuchIssue, Outage, Unavailable
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
from dibs.core.issue import Thread
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
from dibs.core.plan import EditComment, Effect, PostComment
from dibs.core.steps import Reached, Step, unwatched
from dibs.ports.applying import apply, paint_ending, put_right, trips_of
from dibs.ports.guarantees import Guarantee
from dibs.ports.leases import LeaseStore, Painter, acquire_patiently
from dibs.ports.tracker import Tracker

_log = logging.getLogger("dibs.showing")
_PAINTINGS = 20
_TRIES = 3


class Showing:
    """A `LeaseStore` and a `Tracker` as `ShownLeases`."""

    def __init__(
        self,
        store: LeaseStore,
        tracker: Tracker,
        *,
        rules: FoldRules,
        reached: Reached = unwatched,
    ) -> None:
        self._store = store
        self._tracker = tracker
        self._rules = rules
        self._reached = reached

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
        thread = apply(self._tracker, lease.issue, (*paint, card))
        self._reached(Step.CLAIM_CONFIRMED)
        return Renewed(replace(lease, card=self._card_of(thread, lease.run)), thread)

    def renew(self, lease: Lease) -> RenewResult:
        result = self._store.renew(lease)
        self._reached(Step.RENEW_STORED)
        if not isinstance(result, Renewed):
            return result
        return Renewed(result.lease, self._show_beat(result.lease))

    def _show_beat(self, lease: Lease) -> Thread | None:
        """Show the renewal and look at the issue. The store has spoken, so this may fail."""
        try:
            if lease.card is None:
                return self._tracker.read(lease.issue)
            edit = EditComment(lease.card, _card(lease, CardState.HELD))
            return apply(self._tracker, lease.issue, (edit,))
        except (Outage, NoSuchComment, NoSuchIssue) as failure:
            _log.warning("%s: renewed, but the card does not show it: %s", lease.issue, failure)
            return None

    def concede(self, lease: Lease) -> None:
        try:
            self._store.release(lease, Ending(Outcome.CONCEDED))
        except Outage as failure:
            _log.warning("%s: the grant stays until it expires: %s", lease.issue, failure)

    def finish(self, lease: Lease, ending: Ending, painter: Painter) -> ReleaseResult:
        self._reached(Step.FINISH_VERIFIED)
        result = self._store.release(lease, ending)
        if isinstance(result, Lost):
            return result
        self._reached(Step.FINISH_DECIDED)
        record = replace(result.record, lease=replace(result.record.lease, card=lease.card))
        try:
            self.roll_forward(record, painter)
        except Outage as failure:
            _log.warning("%s: decided, but its labels wait for a sweep: %s", lease.issue, failure)
            return Released(record)
        return Released(replace(record, painted=True))

    def roll_forward(self, record: Record, painter: Painter) -> None:
        """The stage's labels, then the card, then `claimed` off, and the acknowledgement last.

        Painted only while the issue is as it was when the store still said that this is to be done:
        a sleeper that wakes up here must not undo what came after it.
        """
        plan, tries = partial(painter, record), 0
        tried_on: Thread | None = None
        for _ in range(_PAINTINGS):
            thread = self._tracker.read(record.lease.issue)
            if self._is_done(record):
                if tried_on is not None:
                    put_right(self._tracker, thread, plan, tried_on)
                return
            mark = self._card_edit(record, thread)
            try:
                painted = paint_ending(
                    self._tracker, thread, plan, mark, self._reached, tried_on=tried_on
                )
            except NoSuchComment:
                continue  # somebody deleted the card: it shows without one
            except Unavailable:
                tried_on, tries = tried_on or thread, tries + 1
                if trips_of(self._tracker) is None or tries == _TRIES:
                    raise
                continue  # any part of a trip may have happened, so it is not left like that
            if painted is not None:
                if trips_of(self._tracker) is not None and self._is_done(record):
                    # In one trip nobody looks before the card is written, and all write the same.
                    put_right(self._tracker, painted, plan, thread)
                self._reached(Step.FINISH_PAINTED)
                self._store.acknowledge(record)
                self._reached(Step.FINISH_ACKNOWLEDGED)
                return
        raise Unavailable(f"{record.lease.issue} changes faster than it can be painted")

    def _is_done(self, record: Record) -> bool:
        """Whether somebody else has painted it, by the store's word."""
        known = self._store.read(record.lease.issue)
        return known is None or known.lease.run != record.lease.run or known.painted

    def _card_edit(self, record: Record, thread: Thread) -> tuple[Effect, ...]:
        """Show the ending on the run's card, if it has one: a reading that lagged may have hidden
        it from its own holder, and somebody may have deleted it.
        """
        card = self._card_of(thread, record.lease.run)
        if card is None:
            return ()
        return (EditComment(card, _card(record.lease, CardState.RELEASED, record.ending)),)

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        record = self._store.revoke(issue, revocation)
        if record is not None:
            self._tracker.comment(issue, render_revoke(revocation))
        return record

    def standing(self, thread: Thread, *, apart_from: RunId | None = None) -> Standing:
        record = self._store.read(thread.issue.ref)
        marks = without_run(self._marks(thread), apart_from)
        tries = tries_on_picture(marks, record)
        if record is not None and record.lease.run == apart_from:
            record = None
        if record is not None:
            card = self._card_of(thread, record.lease.run)
            record = replace(record, lease=replace(record.lease, card=card))
        return Standing(record, tries, highest=highest_fence(marks))

    def mine(self, thread: Thread, run: RunId) -> Lease | None:
        record = self._store.read(thread.issue.ref)
        if record is None or record.lease.run != run or not record.live:
            return None
        return replace(record.lease, card=self._card_of(thread, run))

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        return self._store.live(stage, limit)

    def highest(self) -> Fence:
        return self._store.highest()

    def _marks(self, thread: Thread) -> Marks:
        return read_marks(thread.comments, self._rules)

    def _card_of(self, thread: Thread, run: RunId) -> int | None:
        mine = [posted.id for posted in self._marks(thread).cards if posted.card.run == run]
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
