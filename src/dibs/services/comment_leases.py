"""The comment lease: claim cards on any tracker, by the protocol in docs/concepts/protocol.md.

A weak lease store, but visible to everybody: the server orders the cards, the fold names the
holder, and no bidder wins on doubt. `core.fold` decides which cards count; this module posts,
waits, reads and edits, and edits no card but its own.

`OwnCards` is the only writer of our own cards, and remembers edits which got no answer. An edit
replaces the text of the card whenever the edit takes effect, even after its sender has given up. A
renewal still under way when the ending is written would erase the ending. `OwnCards` therefore
remembers, for as long as the tracker's traits say, that such an edit may still take effect.

`CardEndings` ends a lease: first one edit of our own card decides the ending, then the labels show
the ending. The fold of the comments read with the edit shows whether the ending counts; no label is
touched before. Any worker that finds an unpainted ending paints it; a painter that was late takes
back its own changes.
"""

import logging
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.bounded import Bounded
from dibs.core.card import Card, CardState, render_card, render_revoke, render_shown, same_mark
from dibs.core.durations import UNANSWERED_PAINTING, UNANSWERED_WRITE, UNSEEN_WRITE
from dibs.core.errors import (
    NoSuchComment,
    NotPermitted,
    Outage,
    RateLimited,
    Unavailable,
    Unconfirmed,
)
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
from dibs.core.issue import Comment, Snapshot
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
from dibs.services.effects import EndingState, apply, in_one_request, roll_forward
from dibs.services.reading import walk_snapshots

_log = logging.getLogger("dibs.leases.comments")
_MOST_RUNS_REMEMBERED = 1024
_FRESH_S = 5.0
"""A snapshot of this age is read again before anything is painted on it."""


class Fate(StrEnum):
    """Whether the ending which we wrote, or tried to write, has landed."""

    NONE = "none"
    IN_DOUBT = "in doubt"
    ENDED = "ended"


class Written(Struct, frozen=True):
    """An edit that took effect."""

    at: ServerTime
    seen: Snapshot | None = None
    """The issue right after the edit, if the reply shows it."""


class _RunMemory(Struct):
    """The facts about one run of ours which its card does not show."""

    fate: Fate = Fate.NONE
    runs_until: LocalTime | None = None
    """The lease does not expire before this time. None: this process never confirmed it."""
    unanswered_until: LocalTime | None = None
    """No edit which got no answer takes effect after this time."""
    beats: int = -1
    """The number of the last renewal that was written or attempted."""

    def outlasts(self, until: LocalTime, spare: timedelta) -> bool:
        """Whether the lease runs longer than `until` plus `spare`; True for an unknown expiry."""
        return self.runs_until is None or local_after(until, spare) < self.runs_until


class OwnCards:
    """The only writer of our own cards."""

    def __init__(self, tracker: Tracker, clock: Clock) -> None:
        self._tracker = tracker
        self._clock = clock
        self._runs: Bounded[RunId, _RunMemory] = Bounded(_MOST_RUNS_REMEMBERED)
        self._lock = threading.Lock()

    @property
    def in_one_request(self) -> bool:
        """Whether an edit of the card and the labels are one request, which returns the issue."""
        return in_one_request(self._tracker)

    def concede(self, lease: Lease) -> None:
        body = render_card(card(lease, CardState.CONCEDED))
        self._tracker.edit_comment(lease.issue, own_card(lease), body)

    def hold(self, lease: Lease, paint: Sequence[Effect]) -> Written:
        """Confirm or renew. If card and labels are one request, `paint` goes along; if not, the
        caller paints.

        Each edit gets a new number of beats and therefore a new text. No tracker promises to move
        the comment's time for an edit without a change, and the holder would then trust the lease
        for longer than the lease counts.
        """
        memory, asked_at = self._memory_of(lease.run), self._clock.now()
        memory.beats = max(lease.beats, memory.beats + 1)
        wanted = replace(card(lease, CardState.HELD), beats=memory.beats)
        written = self._write(lease, wanted, paint)
        memory.runs_until = local_after(asked_at, lease.ttl)
        return written

    def end(self, lease: Lease, ending: Ending) -> Written:
        """Write the ending. The ending is in doubt until the caller has judged the result."""
        memory = self._memory_of(lease.run)
        before, memory.fate = memory.fate, Fate.IN_DOUBT
        try:
            return self._write(lease, card(lease, CardState.RELEASED, ending), ())
        except (RateLimited, NotPermitted, Unconfirmed):
            memory.fate = before  # the server refused the edit, so the edit did not happen
            raise

    def fate(self, run: RunId) -> Fate:
        return self._memory_of(run).fate

    def must_look_before_ending(self, run: RunId) -> bool:
        """Whether to read the issue before an ending is written.

        To write at once could undo an ending by an earlier try of ours, or by another process of
        the same run. Where card and labels are two requests, the reply does not show the issue, and
        only a read before the edit can verify the lease.
        """
        memory = self._memory_of(run)
        held_here = memory.runs_until is not None
        return not self.in_one_request or not held_here or memory.fate is not Fate.NONE

    def mark_ended(self, run: RunId) -> None:
        """The run's lease has ended: from now on no edit of ours may overwrite the card."""
        self._memory_of(run).fate = Fate.ENDED

    def wait_for_unanswered_edits(self, lease: Lease) -> bool:
        """Wait until no timed-out edit of ours can still land and overwrite a new ending.

        A late renewal would erase the ending. A late copy of the ending would land after the expiry
        and make the ending count as late.

        Returns whether the method has waited. Raises Unavailable if the lease ends too soon for
        the wait: then the caller must renew first, or leave an ending in doubt as it is. If the
        time is too short for a renewal too, the method returns False at once, because no better
        moment will come; a late renewal can erase only an ending which is not painted yet.
        """
        memory, traits = self._memory_of(lease.run), self._tracker.traits
        now, until = self._clock.now(), memory.unanswered_until
        if until is None or until <= now or traits.in_flight is None:
            return False
        if memory.outlasts(until, min(traits.in_flight, lease.ttl / 10) + traits.grain):
            self._clock.sleep(until - now)
            return True
        if memory.fate is Fate.IN_DOUBT:  # the next try looks whether the ending has landed
            self._clock.sleep(min(until - now, traits.in_flight.total_seconds() / 4))
        elif not memory.outlasts(now, lease.ttl / 3):
            return False
        raise Unavailable(f"{lease.issue}: what was not answered may still take effect")

    def _write(self, lease: Lease, wanted: Card, paint: Sequence[Effect]) -> Written:
        """Edit our card. If the edit gets no answer, remember how long it may still take effect.

        The time is counted from now, because the moment of sending inside the call is unknown. No
        time is remembered where the tracker names none, or where the lease is too short to wait.
        """
        try:
            return self._send_edit(lease, wanted, paint)
        except Unconfirmed:
            raise  # the server refused the edit
        except Unavailable:
            in_flight, until = self._tracker.traits.in_flight, None
            if in_flight is not None and 2 * in_flight <= lease.ttl:
                until = local_after(self._clock.now(), in_flight)
            self._memory_of(lease.run).unanswered_until = until
            raise

    def _send_edit(self, lease: Lease, wanted: Card, paint: Sequence[Effect]) -> Written:
        """Edit our card, with `paint` if card and labels are one request."""
        number, body = own_card(lease), render_card(wanted)
        if not self.in_one_request:
            return Written(self._tracker.edit_comment(lease.issue, number, body).updated_at)
        snapshot = apply(self._tracker, lease.issue, (EditComment(number, body), *paint))
        shown = next((comment for comment in snapshot.comments if comment.id == number), None)
        if shown is None or not same_mark(shown.body, body):
            raise Unavailable(f"{lease.issue}: the reply does not show what was written")
        return Written(shown.updated_at, snapshot)

    def _memory_of(self, run: RunId) -> _RunMemory:
        with self._lock:
            memory = self._runs.get(run)
            if memory is None:
                memory = self._runs[run] = _RunMemory()
            return memory


def own_card(lease: Lease) -> int:
    """The id of the comment with the lease's card."""
    assert lease.card is not None, "a comment lease always has its card"
    return lease.card


def card(lease: Lease, state: CardState, ending: Ending | None = None) -> Card:
    """The lease's card in this state; `prev` is the expiry known to the holder."""
    return replace(card_of(lease, state, ending), floor=lease.fence - own_card(lease))


def why_lost(snapshot: Snapshot, lease: Lease, rules: FoldRules) -> str | None:
    """Why the lease is no longer ours, by its cards; None if it is."""
    if not snapshot.complete:
        raise Unavailable(f"{lease.issue}: not all comments could be read")
    folded = fold(read_marks(snapshot.comments, rules), rules)
    if folded.current is None or folded.current.card.run != lease.run:
        return "another run's card is in force"
    return (
        None if folded.live(snapshot.now) else "the lease has expired or was ended by an operator"
    )


def shown_by_another(record: Record) -> str:
    """The text of a shown mark. Readers of another dialect need the holder and the ending too."""
    return render_shown(record.lease.run, record.lease.holder, record.ending)


class _Decided(Struct, frozen=True):
    """Our ending counts."""

    record: Record
    seen: Snapshot | None = None
    """The snapshot which shows the ending, if it was read in one request with the edit."""
    asked_at: LocalTime = LocalTime(0.0)


class _CardEnding:
    """An ending which a card decided. `effect` marks it as shown: on our own card, or by a post."""

    def __init__(self, record: Record, effect: Effect, rules: FoldRules) -> None:
        self.record = record
        self._effect = effect
        self._rules = rules

    def state(self, snapshot: Snapshot, *, tried: bool) -> EndingState:
        # A snapshot older than the ending does not show the labels of today.
        outdated = any(
            posted.id == self.record.lease.card and posted.card.state is not CardState.RELEASED
            for posted in read_marks(snapshot.comments, self._rules).cards
        )
        if outdated or not snapshot.complete:
            return EndingState.UNCLEAR
        current = standing_on_comments(snapshot, self._rules).record
        if current is None or current.lease.run != self.record.lease.run:
            return EndingState.SUPERSEDED
        if current.ending is None:
            return EndingState.VOID
        return EndingState.PAINTED if current.painted and not tried else EndingState.UNPAINTED

    def mark(self, _snapshot: Snapshot) -> tuple[Effect, ...]:
        return (self._effect,)

    def went_with_card(self) -> bool:
        return True

    def acknowledge(self) -> None:
        """Nothing to do: the mark on the issue is the acknowledgement."""


class CardEndings:
    """Ends leases: the card decides, then the labels show the ending."""

    def __init__(
        self, tracker: Tracker, clock: Clock, rules: FoldRules, cards: OwnCards, reached: Reached
    ) -> None:
        self._tracker = tracker
        self._clock = clock
        self._rules = rules
        self._cards = cards
        self._reached = reached

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        """Decide the ending and paint no label."""
        decided = self._decide(lease, ending)
        return decided if isinstance(decided, Lost) else Released(decided.record)

    def finish(self, lease: Lease, ending: Ending, painter: Painter) -> ReleaseResult:
        """Decide the ending, then paint it. If the painting fails, the next sweep paints."""
        decided = self._decide(lease, ending)
        if isinstance(decided, Lost):
            return decided
        self._reached(Step.FINISH_DECIDED)
        record, seen = decided.record, decided.seen
        if self._clock.now() - decided.asked_at >= _FRESH_S:
            seen = None
        shown = replace(card(record.lease, CardState.RELEASED, record.ending), shown=True)
        mark = EditComment(own_card(lease), render_card(shown))
        try:
            if not self._paint(_CardEnding(record, mark, self._rules), painter, seen):
                return Lost("the lease had been ended by an operator before")
        except Outage as failure:
            _log.warning("%s: decided, but its labels wait for a sweep: %s", lease.issue, failure)
            return Released(record)
        return Released(replace(record, painted=True))

    def roll_forward(self, record: Record, painter: Painter) -> None:
        """Paint the ending of another run, and post a shown mark: its card is not ours to edit."""
        mark = PostComment(shown_by_another(record))
        self._paint(_CardEnding(record, mark, self._rules), painter)

    def _paint(self, ending: "_CardEnding", painter: Painter, seen: Snapshot | None = None) -> bool:
        return roll_forward(
            self._tracker,
            self._clock,
            ending,
            painter,
            settle_s=self._rules.settle.total_seconds(),
            retries=UNANSWERED_PAINTING,
            reached=self._reached,
            seen=seen,
        )

    # Deciding

    def _decide(self, lease: Lease, ending: Ending) -> _Decided | Lost:
        """Write the ending into our card, and check whether the ending counts. Late is lost.

        Where the reply to the edit shows the card alone, the lease is verified by a read before the
        edit. Where the reply shows the issue, the reply verifies the lease as well: to write into
        our own card does no harm.
        """
        for left in reversed(range(UNANSWERED_WRITE.most)):
            must_look = self._cards.must_look_before_ending(lease.run)
            if must_look and (verdict := self._look_up(lease)) is not None:
                return verdict
            # Only an advance waits: if any other ending is undone, the loss is time and no more.
            advances = ending.outcome is Outcome.ADVANCED
            waited = advances and self._cards.wait_for_unanswered_edits(lease)
            if waited and (verdict := self._look_up(lease)) is not None:
                return verdict
            asked_at = self._clock.now()
            try:
                written = self._cards.end(lease, ending)
            except NoSuchComment:
                return self._lost(lease, "the card was deleted")
            except Unavailable:
                if not left:
                    raise
            else:
                verdict = self._judge_written(lease, ending, written, asked_at)
                if verdict is not None:
                    return verdict
            self._clock.sleep(self._rules.settle.total_seconds() + UNANSWERED_WRITE.pause_s)
        raise Unavailable(f"{lease.issue}: it is not known whether its ending landed")

    def _look_up(self, lease: Lease) -> _Decided | Lost | None:
        """Read the issue: has an ending of ours landed, or is the lease lost? None: neither."""
        asked_at = self._clock.now()
        verdict = self._judge(lease, self._tracker.read(lease.issue), asked_at)
        if verdict is None:
            self._reached(Step.FINISH_VERIFIED)
        return verdict

    def _judge_written(
        self, lease: Lease, ending: Ending, written: Written, asked_at: LocalTime
    ) -> _Decided | Lost | None:
        """Whether the ending which was written counts. None: the reply does not show enough."""
        if written.at >= lease.expires_at:
            return self._lost(lease, "the ending landed after the lease had expired")
        if written.seen is None:
            self._cards.mark_ended(lease.run)
            ended = replace(lease, expires_at=written.at)
            return _Decided(Record(ended, written.at, ending, painted=False))
        if not written.seen.complete:
            return None
        return self._judge(lease, written.seen, asked_at)

    def _judge(
        self, lease: Lease, snapshot: Snapshot, asked_at: LocalTime
    ) -> _Decided | Lost | None:
        """Whether our lease has ended or is lost. None: the lease is still ours and not ended."""
        record = standing_on_comments(snapshot, self._rules).record
        if record is not None and record.lease.run == lease.run and record.ending is not None:
            self._cards.mark_ended(lease.run)
            seen = snapshot if self._cards.in_one_request and snapshot.complete else None
            return _Decided(record, seen, asked_at)
        why = why_lost(snapshot, lease, self._rules)
        return None if why is None else self._lost(lease, why)

    def _lost(self, lease: Lease, why: str) -> Lost:
        """The lease is lost. An ending in doubt is in doubt no longer."""
        if self._cards.fate(lease.run) is Fate.IN_DOUBT:
            self._cards.mark_ended(lease.run)
        return Lost(why)


_MOST_CLAIMED = 10_000


class CommentLeases:
    """Both a `LeaseStore` and `ShownLeases`: here the cards are the leases."""

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
        self._endings = CardEndings(tracker, clock, rules, self._cards, reached)
        self.name = f"comments on {tracker.traits.name}"

    # Claiming

    def acquire(self, bid: Bid) -> AcquireResult:
        """Post a bid, wait until every reader sees it, and read whether the bid has won.

        Without a proof read again, a bounded number of times, then concede.
        """
        posted = self._post(bid)
        self._reached(Step.CLAIM_BID)
        self._clock.sleep(self._rules.settle.total_seconds())
        doubt = ""
        for pause_s in UNSEEN_WRITE.pauses():
            if pause_s:
                self._clock.sleep(pause_s)
            asked_at = self._clock.now()
            try:
                snapshot = self._tracker.read(bid.issue)
            except Unavailable as failure:
                doubt = str(failure)
                continue
            except Outage:
                self.concede(_lease_of_bid(bid, posted))
                raise
            self._reached(Step.CLAIM_SETTLED)
            match prove(snapshot, bid.run, self._rules):
                case Won(lease):
                    return Granted(lease, snapshot, asked_at)
                case LostTo(record):
                    self.concede(_lease_of_bid(bid, posted))
                    return Busy(record)
                case NoProof(why):
                    doubt = why
        self.concede(_lease_of_bid(bid, posted))
        return Unproven(doubt)

    def _post(self, bid: Bid) -> Comment:
        """Post the bid. If the reply was lost, look for the card of our run before a repetition."""
        body = render_card(_bid_card(bid))
        for left in reversed(range(UNANSWERED_WRITE.most)):
            try:
                return self._tracker.comment(bid.issue, body)
            except Unavailable:
                if not left:
                    raise
            self._clock.sleep(self._rules.settle.total_seconds() + UNANSWERED_WRITE.pause_s)
            snapshot = self._tracker.read(bid.issue)
            cards = read_marks(snapshot.comments, self._rules).cards
            ours = {posted.id for posted in cards if posted.card.run == bid.run}
            for comment in snapshot.comments:
                if comment.id in ours:
                    return comment
        raise AssertionError("the last sending returns or raises")

    def concede(self, lease: Lease) -> None:
        """Withdraw the bid if possible. A bid which cannot be withdrawn expires."""
        try:
            self._cards.concede(lease)
        except (Outage, NoSuchComment) as failure:
            _log.info(
                "%s: the bid of run %s stays until it expires: %s", lease.issue, lease.run, failure
            )

    # Holding

    def show(self, lease: Lease, paint: Sequence[Effect]) -> RenewResult:
        """Confirm the won bid, paint the labels, and check the lease against the issue."""
        return self._confirm(lease, paint, Step.CLAIM_CONFIRMED)

    def renew(self, lease: Lease) -> RenewResult:
        return self._confirm(replace(lease, beats=lease.beats + 1), (), Step.RENEW_STORED)

    def _confirm(self, lease: Lease, paint: Sequence[Effect], done: Step) -> RenewResult:
        """Edit our card to `held`, and check the lease against the issue as it is after the edit.

        Never while an ending of ours is in doubt: the edit would overwrite the ending.
        """
        match self._cards.fate(lease.run):
            case Fate.ENDED:
                return Lost("we ended it ourselves")
            case Fate.IN_DOUBT:
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
        snapshot = written.seen or apply(self._tracker, lease.issue, paint)
        result = self._check_held(held, snapshot)
        if isinstance(result, Lost):
            self._cards.mark_ended(lease.run)  # from now on the issue is read before an ending
        return result

    def _check_held(self, lease: Lease, snapshot: Snapshot) -> RenewResult:
        """Whether our card is in force, live and not revoked. Without the check, a renewal does not
        count as a renewal.
        """
        if (why := why_lost(snapshot, lease, self._rules)) is not None:
            return Lost(why)
        if revokes := read_marks(snapshot.comments, self._rules).revokes.get(lease.run):
            last = revokes[-1].mark.revocation
            return StopAsked(f"revoked by {last.by or 'an operator'}: {last.reason}")
        return Renewed(lease, snapshot)

    # Ending

    def release(self, lease: Lease, ending: Ending) -> ReleaseResult:
        return self._endings.release(lease, ending)

    def finish(self, lease: Lease, ending: Ending, painter: Painter) -> ReleaseResult:
        return self._endings.finish(lease, ending, painter)

    def roll_forward(self, record: Record, painter: Painter) -> None:
        self._endings.roll_forward(record, painter)

    def acknowledge(self, record: Record) -> None:
        """Post a shown mark, a comment of our own: no worker edits the card of another."""
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

    def standing(self, snapshot: Snapshot, *, apart_from: RunId | None = None) -> Standing:
        return standing_on_comments(snapshot, self._rules, apart_from=apart_from)

    def mine(self, snapshot: Snapshot, run: RunId) -> Lease | None:
        record = self.standing(snapshot).record
        return record.lease if record and record.live and record.lease.run == run else None

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        """Reads every claimed issue, because the store has no index."""
        query = IssueQuery(labels=(self._claimed,), limit=_MOST_CLAIMED)
        records = [
            self.standing(snapshot).record for snapshot in walk_snapshots(self._tracker, query)
        ]
        live = [
            record
            for record in records
            if record is not None and record.live and stage in (None, record.lease.stage)
        ]
        live.sort(key=lambda record: (record.lease.granted_at, record.lease.fence))
        return tuple(live[:limit])

    def highest(self) -> Fence:
        """Reads every issue, open or closed.

        Every comment counts, by any author: ids only rise, so a deleted card had a lower id.
        """
        highest = 0
        for snapshot in walk_snapshots(
            self._tracker, IssueQuery(limit=sys.maxsize, closed_too=True)
        ):
            if not snapshot.complete:
                raise Unavailable(f"{snapshot.issue.ref}: not all comments could be read")
            cards = read_marks(snapshot.comments, self._rules).cards
            floor = max((max(posted.card.floor, posted.card.fence) for posted in cards), default=0)
            last = max((comment.id for comment in snapshot.comments), default=0)
            highest = max(highest, floor + last)
        return Fence(highest)


def _bid_card(bid: Bid) -> Card:
    return Card(run=bid.run, ttl=bid.ttl, holder=bid.holder, stage=bid.stage, floor=int(bid.floor))


def _lease_of_bid(bid: Bid, posted: Comment) -> Lease:
    """Our own bid as a lease, for `concede`."""
    mine = PostedCard(_bid_card(bid), posted.id, posted.created_at, posted.updated_at)
    return lease_of(bid.issue, mine, later(posted.created_at, bid.ttl))
