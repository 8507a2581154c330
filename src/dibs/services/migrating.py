"""Moving leases from one store to another under a running fleet: never two granters.

First it is written down that nobody grants. Then what the origin has granted is waited for: running
work ends as it would have, endings are painted, bids run out. Only when nothing of it is left is
the target appointed, above every fence that was ever handed out. A worker reads who grants after
each grant and before it shows it, so a grant is either seen here or given back there.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct

from dibs.core.errors import CannotMove, NoSuchIssue
from dibs.core.granter import Appointed, Granter, Moving
from dibs.core.ids import Fence, IssueRef
from dibs.ports.leases import Granters
from dibs.ports.tracker import IssueQuery
from dibs.services.claiming import Claiming
from dibs.services.reading import walk

if TYPE_CHECKING:
    from dibs.services.backlog import Backlog

_LOOK_EVERY_S = 1.0


class Waiting(Struct, frozen=True):
    """Nobody grants; so many issues of the origin are not over yet."""

    issues: tuple[str, ...]


class Moved(Struct, frozen=True):
    granter: Appointed


class GaveUp(Struct, frozen=True):
    """It took too long, and the origin grants again."""

    issues: tuple[str, ...]


Progress = Waiting | Moved | GaveUp


class Migrating:
    def __init__(self, backlog: "Backlog", claiming: Claiming, granters: Granters) -> None:
        self._tracker, self._origin = backlog.tracker, backlog.leases
        self._claiming, self._granters, self._clock = claiming, granters, backlog.clock
        self._new_run = backlog.new_run
        self._settle_s = backlog.settle.total_seconds()
        self._shown = Fence(0)
        """The highest fence on any card: a store that has forgotten it must not grant it again."""

    def migrate(self, origin: str, target: str, *, patience_s: float) -> Iterator[Progress]:
        """Tells how far it is; the last word is Moved or GaveUp."""
        moving = self._stop_granting(origin, target)
        over = False
        try:
            for progress in self._drain(moving, patience_s):
                yield progress
                over = isinstance(progress, Moved)
        finally:
            if not over:  # also when the caller was interrupted: let the origin go on
                self._granters.appoint(Appointed(origin, moving.floor), instead_of=moving)

    def _drain(self, moving: Moving, patience_s: float) -> Iterator[Progress]:
        until = self._clock.now() + patience_s
        self._clock.sleep(self._settle_s)  # a bid that was made before shows after that
        left = self._unfinished(self._refs())
        while held := self._held(left):
            if self._clock.now() >= until:
                yield GaveUp(held)
                return
            yield Waiting(held)
            self._clock.sleep(_LOOK_EVERY_S)
            left = self._unfinished(left)
        floor = Fence(max(moving.floor, self._origin.highest(), self._shown))
        granter = self._granters.appoint(Appointed(moving.target, floor), instead_of=moving)
        if not isinstance(granter, Appointed) or granter.store != moving.target:
            raise CannotMove("somebody else is moving the leases, too")
        yield Moved(granter)

    def _stop_granting(self, origin: str, target: str) -> Moving:
        known = self._granters.granter()
        floor = _checked_floor(known, origin)
        moving = Moving(origin, target, floor, self._new_run())
        if self._granters.appoint(moving, instead_of=known) != moving:
            raise CannotMove("somebody else is moving the leases at this moment")
        return moving

    def _refs(self) -> Iterator[IssueRef]:
        """Closed ones, too: somebody may hold one, and it may be opened again."""
        for issue in walk(self._tracker, IssueQuery(limit=sys.maxsize, closed_too=True)):
            yield issue.ref

    def _unfinished(self, refs: Iterator[IssueRef] | list[IssueRef]) -> list[IssueRef]:
        return [ref for ref in dict.fromkeys(refs) if not self._finished(ref)]

    def _finished(self, ref: IssueRef) -> bool:
        """Nobody holds it, nobody may still confirm a bid for it, and its labels tell the truth."""
        with suppress(NoSuchIssue):
            thread = self._tracker.read(ref)
            standing = self._origin.standing(thread)
            self._shown = max(self._shown, standing.highest)
            if standing.unpainted is not None and thread.complete:
                self._claiming.roll_forward(standing.unpainted)
                return False  # looked at once more
            bidding = standing.bidding_until is not None and thread.now < standing.bidding_until
            return standing.live is None and not bidding and thread.complete
        return True

    def _held(self, left: list[IssueRef]) -> tuple[str, ...]:
        """What is waited for: issues, and whatever else is leased by name."""
        named = {record.lease.issue for record in self._origin.live()} - set(left)
        return tuple(str(ref) for ref in (*left, *sorted(named)))


def _checked_floor(known: Granter | None, origin: str) -> Fence:
    match known:
        case None:
            return Fence(0)
        case Appointed(store, floor) if store == origin:
            return floor
        case Moving(start, _, floor) if start == origin:
            return floor
        case Appointed(store):
            raise CannotMove(f"leases are granted by {store}, not by {origin}")
        case Moving(start, goal):
            raise CannotMove(f"leases are on the move from {start} to {goal}, not from {origin}")
        case never:
            assert_never(never)
