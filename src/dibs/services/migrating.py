"""Moving leases from one store to another under a running fleet: never two granters.

First the move reads every issue while the fleet works. Then the granter record is set to "moving",
so no store grants, and only issues that changed since, or were not settled, are read again. Then
the move waits until every lease of the origin is over: running work ends as usual, endings are
painted, bids run out. Then the target is appointed, with the highest fence that was ever granted as
its floor. A worker reads the granter record after each grant and before the grant is shown: either
the move sees the grant, or the worker gives the lease back.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec import Struct

from dibs.core.errors import CannotMove, NoSuchIssue
from dibs.core.granter import Appointed, Moving
from dibs.core.ids import Fence, IssueRef, ServerTime
from dibs.core.issue import Issue, Snapshot
from dibs.core.lease import Standing
from dibs.ports.leases import Granters
from dibs.ports.tracker import IssueQuery
from dibs.services.claiming import Claiming
from dibs.services.reading import walk

if TYPE_CHECKING:
    from dibs.services.backlog import Backlog

_LOOK_EVERY_S = 1.0
_EVERYTHING = IssueQuery(limit=sys.maxsize, closed_too=True)
"""Closed issues as well: a run may hold a closed issue, and it may be opened again."""
_FRESH = timedelta(seconds=5)
"""An issue that changed so shortly before it was read may change again within the same second."""


class Draining(Struct, frozen=True):
    """No store grants; leases of the origin on these issues and names are not over yet."""

    issues: tuple[str, ...]


class Moved(Struct, frozen=True):
    granter: Appointed


class GaveUp(Struct, frozen=True):
    """Draining took longer than the caller's patience; the origin grants again."""

    issues: tuple[str, ...]


Progress = Draining | Moved | GaveUp


class Migrating:
    def __init__(self, backlog: "Backlog", claiming: Claiming, granters: Granters) -> None:
        self._tracker, self._origin = backlog.tracker, backlog.leases
        self._claiming, self._granters, self._clock = claiming, granters, backlog.clock
        self._new_run = backlog.new_run
        self._settle_s = backlog.settle.total_seconds()
        self._shown = Fence(0)
        """The highest fence on any card: a store that lost its data must not grant it again."""

    def migrate(self, origin: str, target: str, *, patience_s: float) -> Iterator[Progress]:
        """Move the leases, reporting progress; the last report is Moved or GaveUp."""
        settled = frozenset[_Trace]()
        if not isinstance(self._granters.lately(), Moving):  # else no store grants already
            settled = frozenset(self._settled())
        present = self._granters.granter()
        if isinstance(present, Appointed) and present.store != origin:
            raise CannotMove(f"leases are granted by {present.store}, not by {origin}")
        if isinstance(present, Moving) and present.origin != origin:
            course = f"from {present.origin} to {present.target}"
            raise CannotMove(f"leases are on the move {course}, not from {origin}")
        # From here on no store grants. An unfinished move from the same origin is taken over.
        floor = Fence(0) if present is None else present.floor
        moving = Moving(origin, target, floor, self._new_run())
        if self._granters.appoint(moving, instead_of=present) != moving:
            raise CannotMove("another process is moving the leases at this moment")
        over = False
        try:
            until = self._clock.now() + patience_s
            self._clock.sleep(self._settle_s)  # a bid from before the stop is visible after this
            listed = walk(self._tracker, _EVERYTHING)
            left = self._unfinished(issue.ref for issue in listed if _trace(issue) not in settled)
            while True:
                named = {record.lease.issue for record in self._origin.live()} - set(left)
                held = tuple(str(ref) for ref in (*left, *sorted(named)))
                if not held:
                    break
                if self._clock.now() >= until:
                    yield GaveUp(held)
                    return
                yield Draining(held)
                self._clock.sleep(_LOOK_EVERY_S)
                left = self._unfinished(left)
            floor = Fence(max(moving.floor, self._origin.highest(), self._shown))
            granter = self._granters.appoint(Appointed(target, floor), instead_of=moving)
            if not isinstance(granter, Appointed) or granter.store != target:
                raise CannotMove("another process is moving the leases, too")
            yield Moved(granter)
            over = True
        finally:
            if not over:  # also when the caller was interrupted: let the origin go on
                self._granters.appoint(Appointed(origin, moving.floor), instead_of=moving)

    def _settled(self) -> Iterator["_Trace"]:
        """The issues without anything to wait for, as they are now.

        Whatever could change that leaves a trace on the issue: a lease is shown by labels and a
        card, and a bid is a comment. A lease that is not shown yet is one of the origin's `live`.
        """
        for issue in walk(self._tracker, _EVERYTHING):
            with suppress(NoSuchIssue):
                snapshot, standing = self._look(issue.ref)
                fresh = snapshot.now - snapshot.issue.updated_at <= _FRESH
                if not (fresh or standing.unpainted or _unsettled(snapshot, standing)):
                    yield _trace(snapshot.issue)

    def _look(self, ref: IssueRef) -> tuple[Snapshot, Standing]:
        snapshot = self._tracker.read(ref)
        standing = self._origin.standing(snapshot)
        self._shown = max(self._shown, standing.highest)
        return snapshot, standing

    def _unfinished(self, refs: Iterable[IssueRef]) -> list[IssueRef]:
        """Issues with a live lease, an open bid, an unpainted ending or unread comments.

        Paints the unpainted endings; their issues are read again on the next call.
        """
        left: list[IssueRef] = []
        for ref in dict.fromkeys(refs):
            with suppress(NoSuchIssue):
                snapshot, standing = self._look(ref)
                if standing.unpainted is not None and snapshot.complete:
                    self._claiming.roll_forward(standing.unpainted)
                    left.append(ref)
                elif _unsettled(snapshot, standing):
                    left.append(ref)
        return left


_Trace = tuple[IssueRef, ServerTime, frozenset[str], int]


def _trace(issue: Issue) -> _Trace:
    """What is different on an issue after any lease or bid, or after the ending of one."""
    return issue.ref, issue.updated_at, issue.labels, issue.comment_count


def _unsettled(snapshot: Snapshot, standing: Standing) -> bool:
    """Whether the issue has a live lease, an open bid or comments that were not read."""
    bidding = standing.bidding_until is not None and snapshot.now < standing.bidding_until
    return standing.live is not None or bidding or not snapshot.complete
