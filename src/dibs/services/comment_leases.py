"""The comment lease: claim cards on any tracker, by the protocol in docs/concepts/protocol.md.

A weak lease store, but one that everybody can see: the server orders the cards, the fold names the
holder, and nobody wins on doubt. Which cards count is decided in `core.fold`; this module posts,
waits, reads and edits, and touches no card but its own.

How a lease in comments ends: decided in its card first, shown by its labels after that.

The decision is one edit of our own card, and the fold of what is read with it says whether it
counts. No label is touched before that is known. Whoever finds an ending that nobody has painted
paints it; a painter that was late puts right what came of it.

The one writer of our own cards, and its memory of edits that nobody answered.

An edit replaces what the card says whenever it takes effect, even if its sender has given up on it
meanwhile. So a renewal that is still under way when the ending is written would erase the ending.
What may still be under way is therefore remembered here, for as long as the tracker says that it
may be. Refuses to know who holds an issue: that is `core.fold`.
"""

import logging
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.card import Card, CardState, render_card, render_revoke, render_shown, same_mark
from dibs.core.errors import NoSuchComment, NotPermitted, Outage, RateLimited, Unavailable
from dibs.core.events import Reached, Step, unwatched
from dibs.core.fold import (
    FoldRules,
    LostTo,
    NoProof,
    PostedCard,
    Won,
    card_of,
    fold,
    lease_of,
    prove,
    read_marks,
    standing_on_comments,
)
from dibs.core.ids import Fence, IssueRef, LocalTime, RunId, ServerTime, later, local_after
from dibs.core.issue import Comment, Thread
from dibs.core.labels import EditComment, Effect, PostComment
from dibs.core.lease import (
    AcquireResult,
    Bid,
    Busy,
    Ending,
    Granted,
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
    StopAsked,
    Unproven,
)
from dibs.ports.leases import Guarantee, Painter
from dibs.ports.system import Clock
from dibs.ports.tracker import IssueQuery, Tracker
from dibs.services.effects import apply, in_one_request, paint_ending, repair_labels
from dibs.services.reading import walk_threads

_REMEMBERED = 1024


class Fate(StrEnum):
    """What became of the ending that we wrote, or tried to write."""

    NONE = "none"
    IN_DOUBT = "in doubt"
    ENDED = "ended"


class Written(Struct, frozen=True):
    """An edit that took effect."""

    at: ServerTime
    seen: Thread | None = None
    """The issue right after it, if the reply shows it."""


class _Memory(Struct):
    """What is known of one run beyond its card."""

    fate: Fate = Fate.NONE
    runs_until: LocalTime | None = None
    """The lease does not end by itself before this."""
    astray_until: LocalTime | None = None
    """No edit that was given up on takes effect after this."""
    beats: int = -1
    """The last that was written, or was to be."""

    def outlasts(self, until: LocalTime, spare: timedelta) -> bool:
        """Whether the lease leaves so much time after that; it does where nobody knows better."""
        return self.runs_until is None or local_after(until, spare) < self.runs_until


class OwnCards:
    def __init__(self, tracker: Tracker, clock: Clock) -> None:
        self._tracker = tracker
        self._clock = clock
        self._runs: dict[RunId, _Memory] = {}
        self._lock = threading.Lock()

    @property
    def in_one_request(self) -> bool:
        """Whether an edit of the card and the labels are one request, which returns the issue."""
        return in_one_request(self._tracker)

    def concede(self, lease: Lease) -> None:
        self._edit(lease, card(lease, CardState.CONCEDED))

    def hold(self, lease: Lease, paint: Sequence[Effect]) -> Written:
        """Confirm or renew. In one trip, `paint` goes along; otherwise it is left to the caller.

        Each time it says something else: nobody promises that an edit which changes nothing moves
        the comment's time, and one that is sent again would be trusted for longer than it counts.
        """
        memory, asked_at = self._of(lease.run), self._clock.now()
        memory.beats = max(lease.beats, memory.beats + 1)
        wanted = replace(card(lease, CardState.HELD), beats=memory.beats)
        written = self._write(lease, wanted, paint)
        memory.runs_until = local_after(asked_at, lease.ttl)
        return written

    def end(self, lease: Lease, ending: Ending) -> Written:
        """Write the ending. Until the caller has judged what came of it, it is in doubt."""
        memory = self._of(lease.run)
        before, memory.fate = memory.fate, Fate.IN_DOUBT
        try:
            return self._write(lease, card(lease, CardState.RELEASED, ending), ())
        except (RateLimited, NotPermitted):
            memory.fate = before  # the server has not done it, and says so
            raise

    def fate(self, run: RunId) -> Fate:
        return self._of(run).fate

    def held_here(self, run: RunId) -> bool:
        """Whether we confirmed or renewed it ourselves, and not another process of this run."""
        return self._of(run).runs_until is not None

    def ended(self, run: RunId) -> None:
        """It is known to have been written: nothing of ours may be written over it any more."""
        self._of(run).fate = Fate.ENDED

    def outwait_strays(self, lease: Lease) -> bool:
        """Until nothing that was given up on can undo an ending that is written now.

        A renewal would erase it; an ending would come too late, and count as late. False if there
        was nothing to wait for. Raises Unavailable if the lease leaves no time for it: it has to be
        renewed before, or an ending that is in doubt already has to be left at that. Where there is
        no time for a renewal either, there is no better moment: erased is only what is not painted.
        """
        memory, traits = self._of(lease.run), self._tracker.traits
        now, until = self._clock.now(), memory.astray_until
        if until is None or until <= now or traits.in_flight is None:
            return False
        if memory.outlasts(until, min(traits.in_flight, lease.ttl / 10) + traits.grain):
            self._clock.sleep(until - now)
            return True
        if memory.fate is Fate.IN_DOUBT:  # whoever tries again looks whether it has landed
            self._clock.sleep(min(until - now, traits.in_flight.total_seconds() / 4))
        elif not memory.outlasts(now, lease.ttl / 3):
            return False
        raise Unavailable(f"{lease.issue}: what was not answered may still take effect")

    def _write(self, lease: Lease, wanted: Card, paint: Sequence[Effect]) -> Written:
        try:
            if not self.in_one_request:
                return Written(self._edit(lease, wanted).updated_at)
            return self._write_with_labels(lease, wanted, paint)
        except Unavailable:
            self._of(lease.run).astray_until = self._gone_by(lease.ttl)
            raise

    def _write_with_labels(self, lease: Lease, wanted: Card, paint: Sequence[Effect]) -> Written:
        edit = EditComment(own_card(lease), render_card(wanted))
        thread = apply(self._tracker, lease.issue, (edit, *paint))
        shown = next((one for one in thread.comments if one.id == own_card(lease)), None)
        if shown is None and thread.complete:
            raise NoSuchComment(lease.issue, own_card(lease))
        if shown is None or not same_mark(shown.body, edit.body):
            raise Unavailable(f"{lease.issue}: the reply does not show what was written")
        return Written(shown.updated_at, thread)

    def _edit(self, lease: Lease, wanted: Card) -> Comment:
        return self._tracker.edit_comment(lease.issue, own_card(lease), render_card(wanted))

    def _gone_by(self, ttl: timedelta) -> LocalTime | None:
        """Counted from now, because nobody knows when in the call it was sent.

        None where nobody can say, and where a lease is too short to wait for it.
        """
        in_flight = self._tracker.traits.in_flight
        if in_flight is None or 2 * in_flight > ttl:
            return None
        return local_after(self._clock.now(), in_flight)

    def _of(self, run: RunId) -> _Memory:
        with self._lock:
            known = self._runs.get(run)
            if known is None:
                known = self._runs[run] = _Memory()
                while len(self._runs) > _REMEMBERED:
                    del self._runs[next(iter(self._runs))]
            return known


def own_card(lease: Lease) -> int:
    assert lease.card is not None, "a comment lease always has its card"
    return lease.card


def card(lease: Lease, state: CardState, ending: Ending | None = None) -> Card:
    """The lease as its card says it, against the expiry we know of."""
    return replace(card_of(lease, state, ending), floor=lease.fence - own_card(lease))


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
        return not self._cards.in_one_request or not ours

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
            seen = thread if self._cards.in_one_request and thread.complete else None
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
                if not in_one_request(self._tracker) or tried_on is None or tries == _PATIENCE:
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
                repair_labels(self._tracker, thread, plan, tried_on)
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


_READINGS = 4
_READING_PAUSE_S = 0.5
_SENDINGS = 3
_MOST_CLAIMED = 10_000


class CommentLeases:
    guarantees = Guarantee.FENCED | Guarantee.SERVER_CLOCK | Guarantee.DURABLE

    def __init__(
        self,
        tracker: Tracker,
        clock: Clock,
        *,
        rules: FoldRules,
        claimed_label: str,
        reached: Reached = unwatched,
    ) -> None:
        self._tracker = tracker
        self._clock = clock
        self._rules = rules
        self._claimed = claimed_label
        self._reached = reached
        self._cards = OwnCards(tracker, clock)
        self._endings = CardEndings(tracker, clock, rules, self._cards, self._report)
        self.name = f"comments on {tracker.traits.name}"

    def _report(self, step: Step) -> None:
        self._reached(step)

    # Claiming

    def acquire(self, bid: Bid) -> AcquireResult:
        posted = self._post(bid)
        self._reached(Step.CLAIM_BID)
        self._clock.sleep(self._rules.settle.total_seconds())
        doubt = ""
        for reading in range(_READINGS):
            if reading:
                self._clock.sleep(_READING_PAUSE_S)
            asked_at = self._clock.now()
            try:
                thread = self._tracker.read(bid.issue)
            except Unavailable as failure:
                doubt = str(failure)
                continue
            except Outage:
                self.concede(_bidding(bid, posted))
                raise
            self._reached(Step.CLAIM_SETTLED)
            match prove(thread, bid.run, self._rules):
                case Won(lease):
                    return Granted(lease, thread, asked_at)
                case LostTo(record):
                    self.concede(_bidding(bid, posted))
                    return Busy(record)
                case NoProof(why):
                    doubt = why
        self.concede(_bidding(bid, posted))
        return Unproven(doubt)

    def _post(self, bid: Bid) -> Comment:
        """Post the bid. If the reply was lost, look it up by its run before repeating."""
        body = render_card(_bid_card(bid))
        for sending in range(_SENDINGS):
            try:
                return self._tracker.comment(bid.issue, body)
            except Unavailable:
                if sending == _SENDINGS - 1:
                    raise
                self._clock.sleep(self._rules.settle.total_seconds() + _READING_PAUSE_S)
                if (landed := self._find_card(bid.issue, bid.run)) is not None:
                    return landed
        raise AssertionError("the last sending returns or raises")

    def _find_card(self, issue: IssueRef, run: RunId) -> Comment | None:
        thread = self._tracker.read(issue)
        mine = {
            posted.id
            for posted in read_marks(thread.comments, self._rules).cards
            if posted.card.run == run
        }
        return next((comment for comment in thread.comments if comment.id in mine), None)

    def concede(self, lease: Lease) -> None:
        """Withdraw. Best effort: a bid that cannot be withdrawn expires by itself."""
        try:
            self._cards.concede(lease)
        except (Outage, NoSuchComment) as failure:
            _log.info(
                "%s: the bid of run %s stays until it expires: %s", lease.issue, lease.run, failure
            )

    # Holding

    def show(self, lease: Lease, paint: Sequence[Effect]) -> RenewResult:
        """Confirm the won bid, then paint, then look."""
        return self._confirm(lease, paint, Step.CLAIM_CONFIRMED)

    def renew(self, lease: Lease) -> RenewResult:
        return self._confirm(replace(lease, beats=lease.beats + 1), (), Step.RENEW_STORED)

    def _confirm(self, lease: Lease, paint: Sequence[Effect], done: Step) -> RenewResult:
        match self._cards.fate(lease.run):
            case Fate.ENDED:
                return Lost("we ended it ourselves")
            case Fate.IN_DOUBT:  # it would write `held` over our own ending
                raise Unavailable(f"{lease.issue}: it is not known yet whether its ending landed")
            case Fate.NONE:
                pass
            case never:
                assert_never(never)
        try:
            written = self._cards.hold(lease, paint)
        except NoSuchComment:
            return Lost("the card was deleted")
        self._reached(done)
        if written.at >= lease.expires_at:
            return Lost("the renewal landed after the lease had expired")
        held = replace(lease, expires_at=later(written.at, lease.ttl))
        looked = self._look(held, written.seen or apply(self._tracker, lease.issue, paint))
        if isinstance(looked, Lost):
            self._cards.ended(lease.run)  # what is lost is looked at again before it is ended
        return looked

    def _look(self, lease: Lease, thread: Thread) -> RenewResult:
        """A renewal that did not look is not a renewal."""
        if not thread.complete:
            raise Unavailable(f"{lease.issue}: not all comments could be read")
        marks = read_marks(thread.comments, self._rules)
        folded = fold(marks, self._rules)
        if folded.current is None or folded.current.card.run != lease.run:
            return Lost("another run's card is in force")
        if not folded.live(thread.now):
            return Lost("the lease has expired or was ended by an operator")
        if revokes := marks.revokes.get(lease.run):
            said = revokes[-1].mark.revocation
            return StopAsked(f"revoked by {said.by or 'an operator'}: {said.reason}")
        return Renewed(lease, thread)

    # Ending

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        return self._endings.release(lease, ending)

    def finish(self, lease: Lease, ending: Ending, painter: Painter) -> ReleaseResult:
        return self._endings.finish(lease, ending, painter)

    def roll_forward(self, record: Record, painter: Painter) -> None:
        self._endings.roll_forward(record, painter)

    def acknowledge(self, record: Record) -> None:
        """Said in a comment of its own: nobody edits another's card."""
        self._tracker.comment(record.lease.issue, shown_by_another(record))

    # Operators and onlookers

    def revoke(self, issue: IssueRef, revocation: Revocation) -> Record | None:
        record = self.read(issue)
        if record is None or not record.live or record.lease.run != revocation.run:
            return None
        self._tracker.comment(issue, render_revoke(revocation))
        return self.read(issue)

    def read(self, issue: IssueRef) -> Record | None:
        return self.standing(self._tracker.read(issue)).record

    def standing(self, thread: Thread, *, apart_from: RunId | None = None) -> Standing:
        return standing_on_comments(thread, self._rules, apart_from=apart_from)

    def mine(self, thread: Thread, run: RunId) -> Lease | None:
        record = self.standing(thread).record
        return record.lease if record and record.live and record.lease.run == run else None

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        """Reads every claimed issue: the price of a store without an index."""
        query = IssueQuery(labels=(self._claimed,), limit=_MOST_CLAIMED)
        records = [self.standing(thread).record for thread in walk_threads(self._tracker, query)]
        live = [
            record
            for record in records
            if record is not None and record.live and stage in (None, record.lease.stage)
        ]
        live.sort(key=lambda record: (record.lease.granted_at, record.lease.fence))
        return tuple(live[:limit])

    def highest(self) -> Fence:
        """Reads every issue there ever was.

        Every comment counts, whoever wrote it: ids only rise, so a card that was deleted is below.
        """
        everything = IssueQuery(limit=sys.maxsize, closed_too=True)
        threads = walk_threads(self._tracker, everything)
        return Fence(max((self._highest_on(thread) for thread in threads), default=0))

    def _highest_on(self, thread: Thread) -> Fence:
        if not thread.complete:
            raise Unavailable(f"{thread.issue.ref}: not all comments could be read")
        cards = read_marks(thread.comments, self._rules).cards
        floor = max((max(one.card.floor, one.card.fence) for one in cards), default=0)
        return Fence(floor + max((comment.id for comment in thread.comments), default=0))


def _bid_card(bid: Bid) -> Card:
    return Card(run=bid.run, ttl=bid.ttl, holder=bid.holder, stage=bid.stage, floor=int(bid.floor))


def _bidding(bid: Bid, posted: Comment) -> Lease:
    """Our own bid as a lease, to be conceded."""
    mine = PostedCard(_bid_card(bid), posted.id, posted.created_at, posted.updated_at)
    return lease_of(bid.issue, mine, later(posted.created_at, bid.ttl))
