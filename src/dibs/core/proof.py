"""Whether a bid has won: only on proof, never on doubt. (The protocol's section 4, step 4.)"""

from msgspec import Struct

from dibs.core.fold import FoldRules, confirmed, fold, lease_of, read_marks, standing_on_comments
from dibs.core.ids import RunId
from dibs.core.issue import Thread
from dibs.core.lease import Lease, Record


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
