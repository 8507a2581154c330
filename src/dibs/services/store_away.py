"""Leases for onlookers as the cards on the tracker show them.

For the time in which the lease store cannot be reached, or another store has the leases.

A card shows what the store had decided when the card was last written. Only reading is different
here: every write still needs the store, and fails without it.
"""

from msgspec.structs import replace

from dibs.core.fold import FoldRules, read_marks
from dibs.core.ids import Fence, RunId
from dibs.core.issue import Snapshot
from dibs.core.lease import Record, Standing
from dibs.ports.leases import EVERY_GUARANTEE, LeaseStore
from dibs.ports.system import Clock
from dibs.ports.tracker import Tracker
from dibs.services.comment_leases import CommentLeases
from dibs.services.shown_leases import Showing


class ShownByCards(Showing):
    """The leases of a store, read from their cards."""

    guarantees = EVERY_GUARANTEE

    def __init__(
        self, store: LeaseStore, tracker: Tracker, clock: Clock, *, rules: FoldRules, claimed: str
    ) -> None:
        super().__init__(store, tracker, clock, rules=rules)
        self._cards = _StoreCards(tracker, clock, rules=rules, claimed_label=claimed)

    def standing(self, snapshot: Snapshot, *, apart_from: RunId | None = None) -> Standing:
        return self._cards.standing(snapshot, apart_from=apart_from)

    def live(self, stage: str | None = None, limit: int = 1000) -> tuple[Record, ...]:
        return self._cards.live(stage, limit)


class _StoreCards(CommentLeases):
    """Cards that show the leases of a store: the fence is the store's, not the comment's."""

    def standing(self, snapshot: Snapshot, *, apart_from: RunId | None = None) -> Standing:
        found = super().standing(snapshot, apart_from=apart_from)
        if (record := found.record) is None:
            return found
        cards = (posted.card for posted in read_marks(snapshot.comments, self._rules).cards)
        fence = next(card.fence for card in cards if card.run == record.lease.run)
        if not fence:  # a lease of the comment store, which granted before
            return found
        lease = replace(record.lease, fence=Fence(fence))
        return replace(found, record=replace(record, lease=lease))
