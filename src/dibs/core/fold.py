"""The fold: who holds an issue, from its cards alone; and the proof that a bid has won.

`fold` and `expiry` are pure functions of the complete list of comments, so every reader comes to
the same verdict. They look at server times and comment ids only; no worker's clock takes part.
(docs/concepts/protocol.md, sections 3 and 8.)

`prove` lets a bid win only on proof, never on doubt. (The protocol's section 4, step 4.)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from dibs.core.agent_dialect import key_of, others_release
from dibs.core.card import Card, CardState, ExcuseMark, RevokeMark, ShownMark, parse_mark
from dibs.core.ids import ZERO, Fence, IssueRef, RunId, ServerTime, later
from dibs.core.issue import Comment, Snapshot
from dibs.core.lease import Ending, Lease, Outcome, Record, Revocation, Standing, Try


class FoldRules(Struct, frozen=True):
    """The settings on which all readers must agree."""

    max_ttl: timedelta = timedelta(days=1)
    """A card with a longer ttl is not a card."""
    settle: timedelta = ZERO
    """How late a reader may see a write; a graceful revoke gives notice of a ttl plus this."""


ANY_TTL = FoldRules(max_ttl=timedelta.max)
"""For readers of an issue's past: what a card asked for does not matter any more."""


class PostedCard(Struct, frozen=True):
    """A card with the id and the times which the server gave its comment."""

    card: Card
    id: int
    created_at: ServerTime
    updated_at: ServerTime


class PostedRevoke(Struct, frozen=True):
    mark: RevokeMark
    created_at: ServerTime


class Marks(Struct, frozen=True):
    """The marks in a list of comments which count: cards in the server's order, revokes by run."""

    cards: tuple[PostedCard, ...]
    revokes: Mapping[RunId, tuple[PostedRevoke, ...]]
    shown: Mapping[RunId, ServerTime] = field(default_factory=dict)
    """Time of the last shown mark for a run: another worker has painted its ending."""
    excused: frozenset[RunId] = frozenset()
    """The runs whose failure does not count."""

    @property
    def leases(self) -> tuple[PostedCard, ...]:
        """The cards of confirmed leases."""
        return tuple(posted for posted in self.cards if confirmed(posted.card))


def read_marks(comments: Iterable[Comment], rules: FoldRules) -> Marks:
    """Collect the marks which count: well formed, by a writer, ttl above zero and within `max_ttl`.

    Each card gets the highest floor among itself and all earlier cards. The fence of a card for an
    atomic store's lease is a floor for later cards: a later bid by comment must outrank the leases
    of the store.
    """
    cards: list[PostedCard] = []
    revokes: dict[RunId, tuple[PostedRevoke, ...]] = {}
    shown: dict[RunId, ServerTime] = {}
    excused: set[RunId] = set()
    floor = 0
    for comment in sorted(comments, key=lambda comment: (comment.created_at, comment.id)):
        if not comment.by_writer:
            continue
        mark = parse_mark(comment.body)
        if isinstance(mark, Card) and ZERO < mark.ttl <= rules.max_ttl:
            floor = max(floor, mark.floor)
            card = mark if mark.floor == floor else replace(mark, floor=floor)
            cards.append(PostedCard(card, comment.id, comment.created_at, comment.updated_at))
            floor = max(floor, mark.fence)
        elif isinstance(mark, RevokeMark):
            run = mark.revocation.run
            revokes[run] = (*revokes.get(run, ()), PostedRevoke(mark, comment.created_at))
        elif isinstance(mark, ShownMark):
            shown[mark.run] = comment.created_at
        elif isinstance(mark, ExcuseMark):
            excused.add(mark.run)
        elif mark is None:
            for revoke in _revokes_in_release(comment, cards):
                run = revoke.mark.revocation.run
                revokes[run] = (*revokes.get(run, ()), revoke)
    return Marks(tuple(cards), revokes, shown, frozenset(excused))


def _revokes_in_release(comment: Comment, cards: Sequence[PostedCard]) -> Iterator[PostedRevoke]:
    """Read a release of our leases by a runner of the issue-claim state machine as revokes.

    The runner swept a lease of ours by its age and takes the issue for free from now on. As with
    any graceful revoke, the holder stops, and readers of cards give the holder time to stop.
    """
    released = others_release(comment.body)
    if released is None:
        return
    key, fields = released
    for posted in cards:
        if key_of(posted.card.holder, posted.card.run) == key:
            by, reason = fields.get("swept_by", key[0]), fields.get("outcome", "released")
            revocation = Revocation(posted.card.run, by, reason)
            yield PostedRevoke(RevokeMark(revocation), comment.created_at)


def tries_by_cards(snapshot: Snapshot) -> tuple[Try, ...]:
    """The tries by the cards alone, without a question to a store, which might not answer."""
    marks = read_marks(snapshot.comments, ANY_TTL)
    if any(posted.card.fence for posted in marks.cards):
        return tries_on_picture(marks, None)
    return tries_on_comments(marks, ANY_TTL, snapshot.now)


def highest_fence(marks: Marks) -> Fence:
    """The highest fence of the leases shown on the issue: a store may only grant higher fences."""
    fences = (posted.card.fence or posted.card.floor + posted.id for posted in marks.leases)
    return Fence(max(fences, default=0))


def without_run(marks: Marks, run: RunId | None) -> Marks:
    """The marks as if this run had never bid."""
    if run is None:
        return marks
    return replace(marks, cards=tuple(posted for posted in marks.cards if posted.card.run != run))


def counted_in_time(posted: PostedCard) -> bool:
    """Whether the card's last edit landed before `prev`, the expiry at the time of the edit.

    A card without an edit counts. The edit which adds `shown` always counts: the edit comes after
    the end of the lease and repeats an ending which counted.
    """
    prev = posted.card.prev
    return prev is None or posted.card.shown or posted.updated_at < prev


def landed_at(posted: PostedCard) -> ServerTime:
    """When the card's state was written. With `shown`: the end of the lease, which `prev` records,
    and at the latest the edit which added `shown`.
    """
    card = posted.card
    if card.shown and card.prev is not None:
        return min(card.prev, posted.updated_at)
    return posted.updated_at


def expiry(posted: PostedCard, revokes: Sequence[PostedRevoke], rules: FoldRules) -> ServerTime:
    """When the card stops being in force, by server times only.

    A forced revoke ends the card at once; a graceful one after the ttl and the settle time.
    """
    ends_at = _expiry_without_revokes(posted)
    for revoke in revokes:
        if revoke.mark.revocation.force:
            ends_at = min(ends_at, revoke.created_at)
        else:
            ends_at = min(ends_at, later(revoke.created_at, posted.card.ttl + rules.settle))
    return ends_at


def _expiry_without_revokes(posted: PostedCard) -> ServerTime:
    card = posted.card
    if card.prev is None:
        return later(posted.created_at, card.ttl)
    if not counted_in_time(posted):
        return card.prev
    match card.state:
        case CardState.RELEASED | CardState.CONCEDED:
            return landed_at(posted)
        case CardState.BID | CardState.HELD:
            return later(posted.updated_at, card.ttl)


def ending_of(
    posted: PostedCard, revokes: Sequence[PostedRevoke], rules: FoldRules
) -> Ending | None:
    """The holder's ending, if the ending landed while the lease was in force.

    A forced revoke no later than the ending voids the ending: at equal times the revoke wins.
    """
    if posted.card.state is not CardState.RELEASED or not counted_in_time(posted):
        return None
    ended_at = landed_at(posted)
    if expiry(posted, revokes, rules) < ended_at:
        return None
    if any(one.mark.revocation.force and one.created_at <= ended_at for one in revokes):
        return None
    return posted.card.ending or Ending(Outcome.RETURNED)


def confirmed(card: Card) -> bool:
    """Whether the bidder ever proved a win (held or released). A conceded card never was a win."""
    return card.state in (CardState.HELD, CardState.RELEASED)


class Folded(Struct, frozen=True):
    """The result of `fold`: the current card and its expiry; both None without a card."""

    current: PostedCard | None
    expires_at: ServerTime | None

    def live(self, now: ServerTime) -> bool:
        return self.expires_at is not None and now < self.expires_at


def fold(marks: Marks, rules: FoldRules) -> Folded:
    """Find the current card.

    A card replaces the current card if the current card had ended when the card was created, or if
    the card is confirmed. So an unconfirmed card, posted while another was in force, never counts.
    """
    current: PostedCard | None = None
    ends_at: ServerTime | None = None
    for posted in marks.cards:
        if ends_at is None or posted.created_at >= ends_at or confirmed(posted.card):
            current = posted
            ends_at = expiry(posted, marks.revokes.get(posted.card.run, ()), rules)
    return Folded(current, ends_at)


def tries_on_comments(marks: Marks, rules: FoldRules, now: ServerTime) -> tuple[Try, ...]:
    """The confirmed leases in order, judged by the times of their cards.

    A lease is excused by an excuse, and if a revoke came before the expiry which its card would
    have had alone.
    """
    tries = []
    for posted in marks.leases:
        revokes = marks.revokes.get(posted.card.run, ())
        ends_at = expiry(posted, revokes, rules)
        ending = ending_of(posted, revokes, rules)
        over = ending is not None or now >= ends_at
        tries.append(
            Try(
                run=posted.card.run,
                stage=posted.card.stage,
                ended_at=ends_at if over else None,
                outcome=ending.outcome if ending else None,
                excused=posted.card.run in marks.excused
                or any(one.created_at < _expiry_without_revokes(posted) for one in revokes),
            )
        )
    return tuple(tries)


def tries_on_picture(marks: Marks, record: Record | None) -> tuple[Try, ...]:
    """The confirmed leases in order, where an atomic store decides and cards only show its leases.

    The store's record counts more than the card of the same run: the holder may have died between
    its decision and the edit of the card.
    """
    tries = []
    for posted in marks.leases:
        ending, running = posted.card.ending, False
        if record is not None and record.lease.run == posted.card.run:
            ending, running = ending or record.ending, record.live
        tries.append(
            Try(
                run=posted.card.run,
                stage=posted.card.stage,
                ended_at=None if running else posted.updated_at,
                outcome=ending.outcome if ending else None,
                excused=posted.card.run in marks.revokes or posted.card.run in marks.excused,
            )
        )
    return tuple(tries)


def shows_ending(comments: Iterable[Comment], run: RunId) -> bool:
    """Whether the run's card, or a shown mark by another worker, marks the ending as shown."""
    return said_shown_at(comments, run) is not None


def said_shown_at(comments: Iterable[Comment], run: RunId) -> ServerTime | None:
    """When the run's ending was last marked as shown; None if never.

    The last time, not the first: a caller who waits from then on waits rather too long than too
    short.
    """
    marks = read_marks(comments, ANY_TTL)
    times = [
        at
        for posted in marks.cards
        if posted.card.run == run
        and posted.card.state is CardState.RELEASED
        and _is_shown(posted, marks)
        for at in (posted.updated_at if posted.card.shown else None, marks.shown.get(run))
        if at is not None
    ]
    return max(times, default=None)


def cards_that_counted(comments: Iterable[Comment]) -> tuple[Card, ...]:
    """The cards of confirmed leases with the last edit in time, in the server's order: the path of
    the issue through the stages.
    """
    leases = read_marks(comments, ANY_TTL).leases
    return tuple(posted.card for posted in leases if counted_in_time(posted))


def card_of(lease: Lease, state: CardState, ending: Ending | None = None) -> Card:
    """The card of a lease in this state; `prev` is the expiry known to the holder."""
    return Card(
        run=lease.run,
        ttl=lease.ttl,
        state=state,
        holder=lease.holder,
        stage=lease.stage,
        prev=lease.expires_at,
        beats=lease.beats,
        ending=ending,
    )


def lease_of(issue: IssueRef, posted: PostedCard, expires_at: ServerTime) -> Lease:
    """The current card as a lease. The fence is the card's floor plus the id of the comment."""
    return Lease(
        issue=issue,
        run=posted.card.run,
        holder=posted.card.holder,
        stage=posted.card.stage,
        fence=Fence(posted.card.floor + posted.id),
        ttl=posted.card.ttl,
        granted_at=posted.created_at,
        expires_at=expires_at,
        beats=posted.card.beats,
        card=posted.id,
    )


def standing_on_comments(
    snapshot: Snapshot, rules: FoldRules, *, apart_from: RunId | None = None
) -> Standing:
    """The standing of an issue where the cards themselves are the lease.

    `apart_from` leaves out a run: a bidder looks at the standing before its own card. The record is
    of the last confirmed card, which is the current card, unless that is a later bid.
    """
    marks = without_run(read_marks(snapshot.comments, rules), apart_from)
    folded, record = fold(marks, rules), None
    if marks.leases:
        record = _record(snapshot, marks.leases[-1], marks, rules)
    current = folded.current
    bid = current is not None and current.card.state is CardState.BID
    return Standing(
        record=record,
        tries=tries_on_comments(marks, rules, snapshot.now),
        bidding_until=folded.expires_at if bid and folded.live(snapshot.now) else None,
    )


def _is_shown(posted: PostedCard, marks: Marks) -> bool:
    """Whether the card, or a shown mark from after the ending, marks the ending as shown.

    A shown mark from before the ending does not count.
    """
    marked_at = marks.shown.get(posted.card.run)
    return posted.card.shown or (marked_at is not None and marked_at >= landed_at(posted))


def _record(
    snapshot: Snapshot,
    posted: PostedCard,
    marks: Marks,
    rules: FoldRules,
) -> Record:
    revokes = marks.revokes.get(posted.card.run, ())
    expires_at = expiry(posted, revokes, rules)
    ending = ending_of(posted, revokes, rules)
    return Record(
        lease=lease_of(snapshot.issue.ref, posted, expires_at),
        as_of=snapshot.now,
        ending=ending,
        # Only the marks count here, not the label `claimed`: a late sweep may have taken it off.
        painted=ending is None or _is_shown(posted, marks),
        revocation=revokes[-1].mark.revocation if revokes else None,
    )


class Won(Struct, frozen=True):
    lease: Lease


class LostTo(Struct, frozen=True):
    """Another run was in force when we bid."""

    record: Record


class NoProof(Struct, frozen=True):
    """The snapshot proves neither a win nor a loss; read again."""

    why: str


Proof = Won | LostTo | NoProof


def prove(snapshot: Snapshot, run: RunId, rules: FoldRules) -> Proof:
    """Whether our bid has won.

    A win needs the complete list of comments, our card in the list, and a fold in which our card is
    current and live.
    """
    if not snapshot.complete:
        return NoProof(
            f"{len(snapshot.comments)} of {snapshot.issue.comment_count} comments were readable"
        )
    marks = read_marks(snapshot.comments, rules)
    if all(posted.card.run != run for posted in marks.cards):
        return NoProof("our own card is not in the list yet")
    folded = fold(marks, rules)
    assert folded.current is not None, "a list with a card in it has a current one"
    assert folded.expires_at is not None, "a current card has an expiry"
    if folded.current.card.run == run:
        if not folded.live(snapshot.now):
            return NoProof("our own bid has expired before it could be confirmed")
        return Won(lease_of(snapshot.issue.ref, folded.current, folded.expires_at))
    if not confirmed(folded.current.card):
        rival = lease_of(snapshot.issue.ref, folded.current, folded.expires_at)
        return LostTo(Record(lease=rival, as_of=snapshot.now))
    record = standing_on_comments(snapshot, rules, apart_from=run).record
    assert record is not None, "a confirmed current card is the record"
    return LostTo(record)
