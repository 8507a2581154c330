"""Which cards no judgement needs any more, so that a tracker may take them off an issue's thread.

An issue that many runs worked has many cards, and every reading of the issue parses all of them.
The fold needs the last lease only: a confirmed card ends the force of all cards before it. The
other judgements need a few of the older cards, by which they count failed attempts, know where the
issue has been, and compare fences. `outlived` names the rest.

Every reader may still read the whole thread, or the thread without any of the outlived cards: the
verdict is the same, now and after any later comment. A late edit of an outlived card changes
nothing either, because its holder was superseded. (docs/concepts/protocol.md, section 3.)
"""

from collections.abc import Sequence

from dibs.core.card import ExcuseMark, RevokeMark, ShownMark, parse_mark
from dibs.core.fold import FoldRules, PostedCard, counted_in_time, read_marks
from dibs.core.issue import Comment
from dibs.core.lease import Outcome, Try

TAIL = 6
"""So many of the last leases stay in any case, with all bids among them."""
_STARTS_AFRESH = (Outcome.ADVANCED, Outcome.PARKED)


def outlived(
    comments: Sequence[Comment], tries: Sequence[Try], rules: FoldRules, tail: int = TAIL
) -> frozenset[int]:
    """The ids of the comments which no judgement needs: cards, and the marks about their runs.

    `tries` are the tries of the issue's standing by these comments, one for each lease. None are
    outlived if two cards name the same run: then their order matters.
    """
    marks = read_marks(comments, rules)
    cards, leases = marks.cards, marks.leases
    runs = {posted.card.run for posted in cards}
    if len(leases) <= tail or len(runs) < len(cards) or len(leases) != len(tries):
        return frozenset()
    first_kept = cards.index(leases[-tail])
    old, old_leases = cards[:first_kept], leases[:-tail]
    kept = (*_last_failures(old_leases, tries), *_landmarks(old_leases), *_highest_floor(old))
    needed = {posted.id for posted in kept}
    gone = {posted.card.run: posted.id for posted in old if posted.id not in needed}
    about = {
        comment.id
        for comment in comments
        if comment.by_writer
        and isinstance(mark := parse_mark(comment.body), RevokeMark | ShownMark | ExcuseMark)
        and (mark.revocation.run if isinstance(mark, RevokeMark) else mark.run) in gone
    }
    return frozenset(gone.values()) | about


def _last_failures(leases: Sequence[PostedCard], tries: Sequence[Try]) -> list[PostedCard]:
    """The failures that may still count, the lease before them, and the last lease.

    The count of a stage starts afresh after a try in another stage, an advance and a parking.
    """
    last = tries[len(leases) - 1]
    kept = [leases[-1]]
    for lease, attempt in zip(reversed(leases), reversed(tries[: len(leases)]), strict=True):
        if attempt.stage != last.stage or attempt.outcome in _STARTS_AFRESH:
            return [*kept, lease]
        if attempt.outcome in (Outcome.FAILED, None) and not attempt.excused:
            kept.append(lease)
    return kept


def _landmarks(leases: Sequence[PostedCard]) -> list[PostedCard]:
    """The last lease for each stage and each move out of it, and the one with the highest fence.

    Whether an ending landed in time matters where cards are the leases, and not where they only
    show the leases of a store.
    """
    moves: dict[tuple[object, ...], PostedCard] = {}
    for posted in leases:
        ending = posted.card.ending
        led_to = ending.next if ending is not None else None
        moves[posted.card.stage, led_to, counted_in_time(posted)] = posted
    granted = max(leases, key=lambda posted: posted.card.fence or posted.card.floor + posted.id)
    return [*moves.values(), granted]


def _highest_floor(cards: Sequence[PostedCard]) -> list[PostedCard]:
    """The first card with the highest floor for later cards, if there is a floor at all."""
    first = max(cards, key=lambda posted: max(posted.card.floor, posted.card.fence))
    return [first] if first.card.floor or first.card.fence else []
