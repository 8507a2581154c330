"""Who holds an issue, from its cards alone: the expiry rule and the fold of the claim protocol.

A pure function of the complete list of comments: its verdict is the same for every reader. It looks
at server times and ids only; no worker's clock takes part. (docs/concepts/protocol.md, sections 3
and 8.)

Whether a bid has won: only on proof, never on doubt. (The protocol's section 4, step 4.)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from dibs.core.agent_dialect import key_of, others_release
from dibs.core.card import Card, CardState, RevokeMark, ShownMark, parse_mark
from dibs.core.ids import ZERO, Fence, IssueRef, RunId, ServerTime, later
from dibs.core.issue import Comment, Thread
from dibs.core.lease import Ending, Lease, Outcome, Record, Revocation, Standing, Try


class FoldRules(Struct, frozen=True):
    """What every reader must agree on."""

    max_ttl: timedelta = timedelta(days=1)
    """A card that asks for more is not a card."""
    settle: timedelta = ZERO


class PostedCard(Struct, frozen=True):
    card: Card
    id: int
    created_at: ServerTime
    updated_at: ServerTime


class PostedRevoke(Struct, frozen=True):
    mark: RevokeMark
    created_at: ServerTime


class Marks(Struct, frozen=True):
    """The believable marks of a thread: cards in the server's order, revokes by run."""

    cards: tuple[PostedCard, ...]
    revokes: Mapping[RunId, tuple[PostedRevoke, ...]]
    shown: Mapping[RunId, ServerTime] = field(default_factory=dict)
    """When somebody else last said that a run's ending is painted."""


def read_marks(comments: Iterable[Comment], rules: FoldRules) -> Marks:
    """Pick out what counts: well formed, by an author with write access, within the maximum ttl."""
    cards: list[PostedCard] = []
    revokes: dict[RunId, tuple[PostedRevoke, ...]] = {}
    shown: dict[RunId, ServerTime] = {}
    floor = 0
    for comment in sorted(comments, key=lambda one: (one.created_at, one.id)):
        if not comment.by_writer:
            continue
        mark = parse_mark(comment.body)
        if isinstance(mark, Card) and ZERO < mark.ttl <= rules.max_ttl:
            floor = max(floor, mark.floor)
            card = mark if mark.floor == floor else replace(mark, floor=floor)
            cards.append(PostedCard(card, comment.id, comment.created_at, comment.updated_at))
            floor = max(
                floor, mark.fence
            )  # whoever bids by comment after a store has to outrank it
        elif isinstance(mark, RevokeMark):
            run = mark.revocation.run
            revokes[run] = (*revokes.get(run, ()), PostedRevoke(mark, comment.created_at))
        elif isinstance(mark, ShownMark):
            shown[mark.run] = comment.created_at
        elif mark is None:
            for taken in _taken_away(comment, cards):
                run = taken.mark.revocation.run
                revokes[run] = (*revokes.get(run, ()), taken)
    return Marks(tuple(cards), revokes, shown)


def _taken_away(comment: Comment, cards: Sequence[PostedCard]) -> Iterator[PostedRevoke]:
    """A runner of the issue-claim state machine released a lease of ours: it swept it by its age.

    It takes the issue for free from then on. Heard like any revoke, the holder stops; and whoever
    reads cards leaves it the time to.
    """
    released = others_release(comment.body)
    if released is None:
        return
    key, said = released
    for posted in cards:
        if key_of(posted.card.holder, posted.card.run) == key:
            by, reason = said.get("swept_by", key[0]), said.get("outcome", "released")
            revocation = Revocation(posted.card.run, by, reason)
            yield PostedRevoke(RevokeMark(revocation), comment.created_at)


def highest_fence(marks: Marks) -> Fence:
    """The highest that any lease shown on the issue had: no store may grant it again."""
    leases = (posted for posted in marks.cards if confirmed(posted.card))
    fences = (posted.card.fence or posted.card.floor + posted.id for posted in leases)
    return Fence(max(fences, default=0))


def without_run(marks: Marks, run: RunId | None) -> Marks:
    """The marks as if this run had never bid."""
    if run is None:
        return marks
    return replace(marks, cards=tuple(posted for posted in marks.cards if posted.card.run != run))


def counted_in_time(posted: PostedCard) -> bool:
    """Whether the card's last edit landed before the expiry it was written against.

    The edit that says `shown` comes after the end and repeats an ending that counted.
    """
    prev = posted.card.prev
    return prev is None or posted.card.shown or posted.updated_at < prev


def landed_at(posted: PostedCard) -> ServerTime:
    """When the state it is in was written; never after the edit that repeats it."""
    card = posted.card
    if card.shown and card.prev is not None:
        return min(card.prev, posted.updated_at)
    return posted.updated_at


def expiry(posted: PostedCard, revokes: Sequence[PostedRevoke], rules: FoldRules) -> ServerTime:
    """When the card stops being in force. Server times only."""
    ends_at = _expiry_by_itself(posted)
    for revoke in revokes:
        if revoke.mark.revocation.force:
            ends_at = min(ends_at, revoke.created_at)
        else:
            ends_at = min(ends_at, later(revoke.created_at, posted.card.ttl + rules.settle))
    return ends_at


def _expiry_by_itself(posted: PostedCard) -> ServerTime:
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
    """What its holder decided, if that landed while the lease was still in force."""
    if posted.card.state is not CardState.RELEASED or not counted_in_time(posted):
        return None
    if expiry(posted, revokes, rules) < landed_at(posted) or _forestalled(posted, revokes):
        return None
    return posted.card.ending or Ending(Outcome.RETURNED)


def _forestalled(posted: PostedCard, revokes: Sequence[PostedRevoke]) -> bool:
    """By force, and that counts from its own instant on: of two equal times it is the first."""
    forced = (one.created_at for one in revokes if one.mark.revocation.force)
    return any(at <= landed_at(posted) for at in forced)


def confirmed(card: Card) -> bool:
    """Whether its bidder ever proved a win. A conceded card never was."""
    return card.state in (CardState.HELD, CardState.RELEASED)


class Folded(Struct, frozen=True):
    current: PostedCard | None
    expires_at: ServerTime | None

    def live(self, now: ServerTime) -> bool:
        return self.expires_at is not None and now < self.expires_at


def fold(marks: Marks, rules: FoldRules) -> Folded:
    """Which card is current. A card created while another was in force never counts."""
    current: PostedCard | None = None
    ends_at: ServerTime | None = None
    for posted in marks.cards:
        if ends_at is None or posted.created_at >= ends_at or confirmed(posted.card):
            current = posted
            ends_at = expiry(posted, marks.revokes.get(posted.card.run, ()), rules)
    return Folded(current, ends_at)


def tries_on_comments(marks: Marks, rules: FoldRules, now: ServerTime) -> tuple[Try, ...]:
    """The confirmed leases in order, judged by the cards' own times."""
    found = []
    for posted in marks.cards:
        if not confirmed(posted.card):
            continue
        revokes = marks.revokes.get(posted.card.run, ())
        ends_at = expiry(posted, revokes, rules)
        said = ending_of(posted, revokes, rules)
        over = said is not None or now >= ends_at
        found.append(
            Try(
                run=posted.card.run,
                stage=posted.card.stage,
                ended_at=ends_at if over else None,
                outcome=said.outcome if said else None,
                excused=any(one.created_at < _expiry_by_itself(posted) for one in revokes),
            )
        )
    return tuple(found)


def tries_on_picture(marks: Marks, record: Record | None) -> tuple[Try, ...]:
    """The same for cards that only show what an atomic store decided: the store's word counts."""
    shown = (posted for posted in marks.cards if confirmed(posted.card))
    return tuple(_pictured(posted, marks, record) for posted in shown)


def _pictured(posted: PostedCard, marks: Marks, record: Record | None) -> Try:
    said = posted.card.ending
    running = False
    if record is not None and record.lease.run == posted.card.run:
        # The holder may have died between its decision and the card that shows it.
        said = said or record.ending
        running = record.live
    return Try(
        run=posted.card.run,
        stage=posted.card.stage,
        ended_at=None if running else posted.updated_at,
        outcome=said.outcome if said else None,
        excused=posted.card.run in marks.revokes,
    )


def shows_ending(comments: Iterable[Comment], run: RunId) -> bool:
    """Whether this run's card, or somebody for it, says that its ending is painted."""
    return said_shown_at(comments, run) is not None


def said_shown_at(comments: Iterable[Comment], run: RunId) -> ServerTime | None:
    """When that was last said; None if nobody has.

    The last, not the first: whoever counts from it waits too long rather than not long enough.
    """
    marks = read_marks(comments, FoldRules(max_ttl=timedelta.max))
    said = [
        at
        for posted in marks.cards
        if posted.card.run == run
        and posted.card.state is CardState.RELEASED
        and _said_to_be_shown(posted, marks)
        for at in (posted.updated_at if posted.card.shown else None, marks.shown.get(run))
        if at is not None
    ]
    return max(said, default=None)


def cards_that_counted(comments: Iterable[Comment]) -> tuple[Card, ...]:
    """The cards of leases that were held, in the server's order: where an issue has been."""
    marks = read_marks(comments, FoldRules(max_ttl=timedelta.max))
    return tuple(
        posted.card for posted in marks.cards if confirmed(posted.card) and counted_in_time(posted)
    )


def card_of(lease: Lease, state: CardState, ending: Ending | None = None) -> Card:
    """The lease as its card says it, against the expiry its holder knows of."""
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
    """The current card as a lease: its comment id, counted from its floor, is the fence."""
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
    thread: Thread, rules: FoldRules, *, apart_from: RunId | None = None
) -> Standing:
    """An issue's standing where the cards themselves are the lease.

    A bidder looks at what was before its own card: `apart_from` leaves that one out.
    """
    marks = without_run(read_marks(thread.comments, rules), apart_from)
    folded = fold(marks, rules)
    tries = tries_on_comments(marks, rules, thread.now)
    if folded.current is None or folded.expires_at is None:
        return Standing(record=None, tries=tries)
    posted = folded.current
    if not confirmed(posted.card):
        waiting = posted.card.state is CardState.BID and folded.live(thread.now)
        return Standing(
            record=_record_before(thread, marks, rules),
            tries=tries,
            bidding_until=folded.expires_at if waiting else None,
        )
    record = _record(thread, posted, marks, folded.expires_at, rules)
    return Standing(record=record, tries=tries)


def _said_to_be_shown(posted: PostedCard, marks: Marks) -> bool:
    """By its own card, or by somebody after it had ended: said before, it means nothing."""
    said_at = marks.shown.get(posted.card.run)
    return posted.card.shown or (said_at is not None and said_at >= landed_at(posted))


def _record(
    thread: Thread,
    posted: PostedCard,
    marks: Marks,
    expires_at: ServerTime,
    rules: FoldRules,
) -> Record:
    revokes = marks.revokes.get(posted.card.run, ())
    said = ending_of(posted, revokes, rules)
    return Record(
        lease=lease_of(thread.issue.ref, posted, expires_at),
        as_of=thread.now,
        ending=said,
        # Only the cards say it. `claimed` is no sign: a sweep that slept may have taken it off.
        painted=said is None or _said_to_be_shown(posted, marks),
        revocation=revokes[-1].mark.revocation if revokes else None,
    )


def _record_before(thread: Thread, marks: Marks, rules: FoldRules) -> Record | None:
    """The last confirmed lease, where only unconfirmed bids came after it."""
    for posted in reversed(marks.cards):
        if confirmed(posted.card):
            ends_at = expiry(posted, marks.revokes.get(posted.card.run, ()), rules)
            return _record(thread, posted, marks, ends_at, rules)
    return None


class Won(Struct, frozen=True):
    lease: Lease


class LostTo(Struct, frozen=True):
    """Another run was in force when we bid."""

    record: Record


class NoProof(Struct, frozen=True):
    """The reading decides nothing; read again."""

    why: str


Proof = Won | LostTo | NoProof


def prove(thread: Thread, run: RunId, rules: FoldRules) -> Proof:
    """A win needs the complete list, our card in it, and the fold to name it current and live."""
    if not thread.complete:
        return NoProof(
            f"{len(thread.comments)} of {thread.issue.comment_count} comments were readable"
        )
    marks = read_marks(thread.comments, rules)
    if all(posted.card.run != run for posted in marks.cards):
        return NoProof("our own card is not in the list yet")
    folded = fold(marks, rules)
    assert folded.current is not None, "a list with a card in it has a current one"
    assert folded.expires_at is not None, "a current card has an expiry"
    if folded.current.card.run == run:
        if not folded.live(thread.now):
            return NoProof("our own bid has expired before it could be confirmed")
        return Won(lease_of(thread.issue.ref, folded.current, folded.expires_at))
    if not confirmed(folded.current.card):
        rival = lease_of(thread.issue.ref, folded.current, folded.expires_at)
        return LostTo(Record(lease=rival, as_of=thread.now))
    record = standing_on_comments(thread, rules, apart_from=run).record
    assert record is not None, "a confirmed current card is the record"
    return LostTo(record)
