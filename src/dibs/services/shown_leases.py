"""Any atomic lease store, made visible on the tracker: the same labels, the same card.

The store decides; the tracker shows. A tracker that cannot be reached delays the picture and never
ends a lease that the store renewed. An ending is decided in the store first, painted second and
acknowledged last, so that any worker can finish an ending that a crash left half shown. It is
acknowledged only once every reader is sure to see it: from then on the store grants the issue
again, and the next holder judges by what it reads.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dibs.core.card import CardState, render_card, render_revoke
from dibs.core.durations import UNANSWERED_WRITE
from dibs.core.errors import NoSuchComment, NoSuchIssue, Outage
from dibs.core.events import Reached, Step, unwatched
from dibs.core.fold import (
    FoldRules,
    card_of,
    highest_fence,
    read_marks,
    tries_on_picture,
    without_run,
)
from dibs.core.ids import Fence, IssueRef, RunId
from dibs.core.issue import Snapshot
from dibs.core.labels import EditComment, Effect, PostComment
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
from dibs.services.effects import EndingState, apply, roll_forward

if TYPE_CHECKING:
    import logging


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
        one_step: Callable[[], AbstractContextManager[object]] | None = None,
    ) -> None:
        """`one_step` makes store and tracker change together, where both are in one database."""
        self._store = store
        self._tracker = tracker
        self._clock = clock
        self._rules = rules
        self._reached = reached
        assert one_step is not nullcontext, "None: store and tracker change apart"
        self._one_step = one_step or nullcontext
        self._at_once = one_step is not None
        # Every reader sees a transaction whole and at once: there is nothing to wait for.
        self._settle_s = 0.0 if one_step else rules.settle.total_seconds()

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
        card = _card(lease, CardState.HELD)
        snapshot = apply(self._tracker, lease.issue, (*paint, PostComment(card)))
        self._reached(Step.CLAIM_CONFIRMED)
        posted = snapshot.comments[-1] if snapshot.comments else None
        ours = posted is not None and posted.body == card  # in no other dialect, and unsigned
        number = posted.id if posted and ours else _card_of(snapshot, lease.run, self._rules)
        return Renewed(replace(lease, card=number), snapshot)

    def renew(self, lease: Lease) -> RenewResult:
        result = self._store.renew(lease)
        self._reached(Step.RENEW_STORED)
        if not isinstance(result, Renewed):
            return result
        lease, seen = result.lease, None
        try:
            if lease.card is None:
                seen = self._tracker.read(lease.issue)
            else:
                edit = EditComment(lease.card, _card(lease, CardState.HELD))
                seen = apply(self._tracker, lease.issue, (edit,))
        except (Outage, NoSuchComment, NoSuchIssue) as failure:
            _log().warning("%s: renewed, but the card does not show it: %s", lease.issue, failure)
        return Renewed(lease, seen)

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
                if self._at_once and lease.card is not None and not result.record.painted:
                    self._paint(record, lease.card, painter)
                else:
                    self.roll_forward(record, painter)
            except Outage as failure:
                waits = "%s: decided, but its labels wait for a sweep: %s"
                _log().warning(waits, lease.issue, failure)
                return Released(record)
            return Released(replace(record, painted=True))

    def _paint(self, record: Record, card: int, painter: Painter) -> None:
        """Paint an ending in the deciding transaction: the issue cannot have changed since."""
        issue, edit = record.lease.issue, _card(record.lease, CardState.RELEASED, record.ending)
        paint = painter(record, self._tracker.read(issue))
        try:
            effects = (*paint.showing, EditComment(card, edit), *paint.letting_go)
            apply(self._tracker, issue, effects)
        except NoSuchComment:  # the store has the ending, and the labels show it without a card
            apply(self._tracker, issue, (*paint.showing, *paint.letting_go))
        self._reached(Step.FINISH_PAINTED)
        self._store.acknowledge(record)
        self._reached(Step.FINISH_ACKNOWLEDGED)

    def roll_forward(self, record: Record, painter: Painter) -> None:
        with self._one_step():
            roll_forward(
                self._tracker,
                self._clock,
                _StoredEnding(self._store, self._clock, self._rules, self._settle_s, record),
                painter,
                settle_s=self._settle_s,
                retries=UNANSWERED_WRITE,
                reached=self._reached,
            )

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        record = self._store.revoke(issue, revocation)
        if record is not None:
            self._tracker.comment(issue, render_revoke(revocation))
        return record

    def standing(self, snapshot: Snapshot, *, apart_from: RunId | None = None) -> Standing:
        record = self._store.read(snapshot.issue.ref)
        marks = without_run(read_marks(snapshot.comments, self._rules), apart_from)
        tries = tries_on_picture(marks, record)
        if record is not None and record.lease.run == apart_from:
            record = None
        if record is not None:
            card = _card_of(snapshot, record.lease.run, self._rules)
            record = replace(record, lease=replace(record.lease, card=card))
        return Standing(record, tries, highest=highest_fence(marks))

    def mine(self, snapshot: Snapshot, run: RunId) -> Lease | None:
        record = self._store.read(snapshot.issue.ref)
        if record is None or record.lease.run != run or not record.live:
            return None
        return replace(record.lease, card=_card_of(snapshot, run, self._rules))

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        return self._store.live(stage, limit)

    def highest(self) -> Fence:
        return self._store.highest()


def _card_of(snapshot: Snapshot, run: RunId, rules: FoldRules) -> int | None:
    """The id of the comment with the run's card, if the snapshot shows it."""
    naming_it = (comment for comment in snapshot.comments if run in comment.body)
    cards = read_marks(naming_it, rules).cards
    return next((posted.id for posted in cards if posted.card.run == run), None)


class _StoredEnding:
    """An ending which the store decided; the card on the tracker only shows it."""

    def __init__(
        self, store: LeaseStore, clock: Clock, rules: FoldRules, settle_s: float, record: Record
    ) -> None:
        self.record = record
        self._store = store
        self._clock = clock
        self._rules = rules
        self._settle_s = settle_s
        self._has_card = True

    def state(self, snapshot: Snapshot, *, tried: bool) -> EndingState:  # noqa: ARG002 - the store knows
        known = self._store.read(self.record.lease.issue)
        if known is None or known.lease.run != self.record.lease.run:
            return EndingState.SUPERSEDED
        if known.painted:
            return EndingState.PAINTED
        # The card may be on the page that is missing.
        return EndingState.UNPAINTED if snapshot.complete else EndingState.UNCLEAR

    def mark(self, snapshot: Snapshot) -> tuple[Effect, ...]:
        """The edit that shows the ending on the run's card; empty if the run has no card.

        The lease's own note of the card comes first: a read that lags may not show the card.
        """
        lease = self.record.lease
        card = lease.card or _card_of(snapshot, lease.run, self._rules)
        if card is None or not self._has_card:
            return ()
        return (EditComment(card, _card(lease, CardState.RELEASED, self.record.ending)),)

    def went_with_card(self) -> bool:
        """No: the store has the ending, and the labels show it without a card."""
        self._has_card = False
        return False

    def acknowledge(self) -> None:
        """Acknowledge the ending after the settle time: only then every reader sees the labels."""
        if self._settle_s:
            self._clock.sleep(self._settle_s)
        self._store.acknowledge(self.record)


def _card(lease: Lease, state: CardState, ending: Ending | None = None) -> str:
    """The text of the card. A card in state RELEASED counts as shown: the store has decided."""
    card = card_of(lease, state, ending)
    return render_card(replace(card, shown=state is CardState.RELEASED, fence=lease.fence))


def _log() -> "logging.Logger":
    import logging  # when there is something to log: most commands have nothing

    return logging.getLogger("dibs.showing")
