"""How a lease in comments ends: decided in its card first, shown by its labels after that.

The decision is one edit of our own card, and the fold of what is read with it says whether it
counts. No label is touched before that is known. Whoever finds an ending that nobody has painted
paints it; a painter that was late puts right what came of it.
"""

import logging
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.own_cards import Fate, OwnCards, Written, card, own_card
from dibs.core.card import CardState, render_card, render_shown
from dibs.core.errors import NoSuchComment, Outage, Unavailable
from dibs.core.fold import FoldRules, fold, read_marks, standing_on_comments
from dibs.core.ids import LocalTime, RunId
from dibs.core.issue import Thread
from dibs.core.lease import Ending, Lease, Lost, Outcome, Record, Released, ReleaseResult
from dibs.core.plan import EditComment, Effect, PostComment
from dibs.core.steps import Reached, Step
from dibs.ports.applying import paint_ending, put_right, trips_of
from dibs.ports.clock import Clock
from dibs.ports.leases import Painter
from dibs.ports.tracker import Tracker

_log = logging.getLogger("dibs.leases.comments")
_PAUSE_S = 0.5
_TRIES = 3
_PAINTINGS = 20
_PATIENCE = 6
"""How often a painter tries again that knows that part of it may have happened."""
_FRESH_S = 5.0
"""Whoever slept for longer since it looked looks again before it paints."""


class _Decided(Struct, frozen=True):
    """Our ending counts."""

    record: Record
    seen: Thread | None = None
    """The reading that says so, where it was made with the edit."""
    asked_at: LocalTime = LocalTime(0.0)


class CardEndings:
    def __init__(
        self, tracker: Tracker, clock: Clock, rules: FoldRules, cards: OwnCards, reached: Reached
    ) -> None:
        self._tracker = tracker
        self._clock = clock
        self._rules = rules
        self._cards = cards
        self._reached = reached

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        decided = self._decide(lease, ending)
        return decided if isinstance(decided, Lost) else Released(decided.record)

    def finish(self, lease: Lease, ending: Ending, painter: Painter) -> ReleaseResult:
        decided = self._decide(lease, ending)
        if isinstance(decided, Lost):
            return decided
        self._reached(Step.FINISH_DECIDED)
        record, seen = decided.record, decided.seen
        if self._clock.now() - decided.asked_at >= _FRESH_S:
            seen = None
        try:
            if not self._paint(record, painter, EditComment(own_card(lease), _shown(record)), seen):
                return Lost("the lease had been ended by an operator before")
        except Outage as failure:
            _log.warning("%s: decided, but its labels wait for a sweep: %s", lease.issue, failure)
            return Released(record)
        return Released(replace(record, painted=True))

    def roll_forward(self, record: Record, painter: Painter) -> None:
        self._paint(record, painter, PostComment(shown_by_another(record)))

    # Deciding

    def _decide(self, lease: Lease, ending: Ending) -> _Decided | Lost:
        """Write the ending into our card, and look whether it counts. Late is lost.

        Where the reply shows no more than the card, it is verified before. Writing into our own
        card harms nobody, so where it shows the issue, that one look does for both.
        """
        for left in reversed(range(_TRIES)):
            if (known := self._known_before(lease, ending)) is not None:
                return known
            asked_at = self._clock.now()
            try:
                written = self._cards.end(lease, ending)
            except NoSuchComment:
                return self._lost(lease, "the card was deleted")
            except Unavailable:
                if not left:
                    raise
            else:
                if (known := self._judged(lease, ending, written, asked_at)) is not None:
                    return known
            self._let_settle()
        raise Unavailable(f"{lease.issue}: it is not known whether its ending landed")

    def _known_before(self, lease: Lease, ending: Ending) -> _Decided | Lost | None:
        """What is known without writing anything, once nothing of ours is under way any more."""
        known = self._looked_up(lease) if self._must_look(lease.run) else None
        if known is not None or ending.outcome is not Outcome.ADVANCED:
            return known  # any other ending that is undone costs time and no more
        return self._looked_up(lease) if self._cards.outwait_strays(lease) else None

    def _must_look(self, run: RunId) -> bool:
        """Whether writing right away could undo an ending: of ours, or of our run elsewhere."""
        ours = self._cards.held_here(run) and self._cards.fate(run) is Fate.NONE
        return self._cards.one_trip is None or not ours

    def _looked_up(self, lease: Lease) -> _Decided | Lost | None:
        """Whether an ending of ours has landed already, or is too late to be written."""
        asked_at = self._clock.now()
        known = self._known(lease, self._tracker.read(lease.issue), asked_at)
        if known is None:
            self._reached(Step.FINISH_VERIFIED)
        return known

    def _judged(
        self, lease: Lease, ending: Ending, written: Written, asked_at: LocalTime
    ) -> _Decided | Lost | None:
        """What came of an ending that was written. None if that cannot be seen."""
        if written.at >= lease.expires_at:
            return self._lost(lease, "the ending landed after the lease had expired")
        if written.seen is None:
            self._cards.ended(lease.run)
            ended = replace(lease, expires_at=written.at)
            return _Decided(Record(ended, written.at, ending, painted=False))
        if not written.seen.complete:
            return None
        return self._known(lease, written.seen, asked_at)

    def _known(self, lease: Lease, thread: Thread, asked_at: LocalTime) -> _Decided | Lost | None:
        """None if the lease is still ours, and not ended."""
        record = standing_on_comments(thread, self._rules).record
        if record is not None and record.lease.run == lease.run and record.ending is not None:
            self._cards.ended(lease.run)
            seen = thread if self._cards.one_trip is not None and thread.complete else None
            return _Decided(record, seen, asked_at)
        why = self._not_ours(lease, thread)
        return None if why is None else self._lost(lease, why)

    def _not_ours(self, lease: Lease, thread: Thread) -> str | None:
        if not thread.complete:
            raise Unavailable(f"{lease.issue}: not all comments could be read")
        folded = fold(read_marks(thread.comments, self._rules), self._rules)
        if folded.current is None or folded.current.card.run != lease.run:
            return "another run's card is in force"
        return None if folded.live(thread.now) else "the lease has expired"

    def _lost(self, lease: Lease, why: str) -> Lost:
        if self._cards.fate(lease.run) is Fate.IN_DOUBT:
            self._cards.ended(lease.run)
        return Lost(why)

    # Painting

    def _paint(
        self, record: Record, painter: Painter, mark: Effect, seen: Thread | None = None
    ) -> bool:
        """False if the ending does not count, because an operator had ended the lease before."""
        tried_on: Thread | None = None
        tries = 0
        for _ in range(_PAINTINGS):
            looked: Thread | None = None
            try:
                looked, seen = seen or self._tracker.read(record.lease.issue), None
                done = self._paint_on(looked, record, painter, mark, tried_on)
            except NoSuchComment:
                return True  # our card was deleted, and the ending with it
            except Unavailable:
                # Any part of a trip may have happened, so it is not left like that.
                tried_on, tries = tried_on or looked, tries + 1
                if trips_of(self._tracker) is None or tried_on is None or tries == _PATIENCE:
                    raise
                self._let_settle(_PAUSE_S * 2**tries)
                continue
            if done is not None:
                return done
        raise Unavailable(f"{record.lease.issue}: its ending could not be painted")

    def _paint_on(
        self,
        thread: Thread,
        record: Record,
        painter: Painter,
        mark: Effect,
        tried_on: Thread | None,
    ) -> bool | None:
        """Painted only while the card in force is still this one. None: look again."""
        if not thread.complete or self._lags(thread, record):
            self._clock.sleep(_PAUSE_S)
            return None
        plan = partial(painter, record)
        known = standing_on_comments(thread, self._rules).record
        if known is None or known.lease.run != record.lease.run:
            if tried_on is not None:
                put_right(self._tracker, thread, plan, tried_on)
            return True
        if known.ending is None or (known.painted and tried_on is None):
            return known.ending is not None
        painted = paint_ending(
            self._tracker, thread, plan, (mark,), self._reached, tried_on=tried_on
        )
        if painted is None:
            return None
        self._reached(Step.FINISH_PAINTED)
        self._reached(Step.FINISH_ACKNOWLEDGED)
        return True

    def _lags(self, thread: Thread, record: Record) -> bool:
        """Whether a reading is older than an ending that is known: it says nothing of labels."""
        return any(
            posted.id == record.lease.card and posted.card.state is not CardState.RELEASED
            for posted in read_marks(thread.comments, self._rules).cards
        )

    def _let_settle(self, and_s: float = _PAUSE_S) -> None:
        self._clock.sleep(self._rules.settle.total_seconds() + and_s)


def _shown(record: Record) -> str:
    """The ended card once more, now that its labels show it."""
    return render_card(replace(card(record.lease, CardState.RELEASED, record.ending), shown=True))


def shown_by_another(record: Record) -> str:
    """Who held it and how it ended is said for readers of other dialects."""
    return render_shown(record.lease.run, record.lease.holder, record.ending)
