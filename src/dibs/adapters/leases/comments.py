"""The comment lease: claim cards on any tracker, by the protocol in docs/concepts/protocol.md.

A weak lease store, but one that everybody can see: the server orders the cards, the fold names the
holder, and nobody wins on doubt. Which cards count is decided in `core.fold`; this module posts,
waits, reads and edits, and touches no card but its own.
"""

import logging
import sys
from collections.abc import Sequence
from typing import assert_never

from msgspec.structs import replace

from dibs.adapters.card_endings import CardEndings, shown_by_another
from dibs.adapters.own_cards import Fate, OwnCards
from dibs.core.card import Card, render_card, render_revoke
from dibs.core.errors import NoSuchComment, Outage, Unavailable
from dibs.core.fold import (
    FoldRules,
    PostedCard,
    fold,
    lease_of,
    read_marks,
    standing_on_comments,
)
from dibs.core.ids import Fence, IssueRef, RunId, later
from dibs.core.issue import Comment, Thread
from dibs.core.lease import (
    AcquireResult,
    Bid,
    Busy,
    Ending,
    Granted,
    Lease,
    Lost,
    Record,
    ReleaseResult,
    Renewed,
    RenewResult,
    Revocation,
    Standing,
    StopAsked,
    Unproven,
)
from dibs.core.plan import Effect
from dibs.core.proof import LostTo, NoProof, Won, prove
from dibs.core.steps import Reached, Step, unwatched
from dibs.ports.applying import apply
from dibs.ports.clock import Clock
from dibs.ports.guarantees import Guarantee
from dibs.ports.leases import Painter
from dibs.ports.reading import walk_threads
from dibs.ports.tracker import IssueQuery, Tracker

_log = logging.getLogger("dibs.leases.comments")
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
