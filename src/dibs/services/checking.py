"""Bringing the picture back to the truth, issue by issue: `dibs fsck`."""

import sys
from collections.abc import Iterator

from msgspec import Struct

from dibs.core.diagnosis import Flaw, FlawCode, diagnose
from dibs.core.ids import IssueRef
from dibs.core.issue import Thread
from dibs.core.pipeline import Pipeline
from dibs.ports.applying import apply
from dibs.ports.leases import ShownLeases
from dibs.ports.reading import walk_threads
from dibs.ports.tracker import IssueQuery, Tracker
from dibs.services.claiming import Claiming
from dibs.services.granting import Granting


class Finding(Struct, frozen=True):
    flaw: Flaw
    repaired: bool


class Checking:
    def __init__(
        self,
        tracker: Tracker,
        leases: ShownLeases,
        pipeline: Pipeline,
        claiming: Claiming,
        granting: Granting,
    ) -> None:
        self._tracker = tracker
        self._leases = leases
        self._pipeline = pipeline
        self._claiming = claiming
        self._granting = granting

    def check(self, *, repair: bool) -> Iterator[Finding]:
        """Every open issue and every claimed one, as they are found. Repairs are idempotent.

        Raises GrantedElsewhere where this store knows nothing of what is held.
        """
        self._granting.insist()
        seen: set[IssueRef] = set()
        for thread in self._threads():
            if thread.issue.ref not in seen:
                seen.add(thread.issue.ref)
                yield from self._one(thread, repair=repair)

    def _threads(self) -> Iterator[Thread]:
        """Every open issue, and closed ones that still look claimed."""
        yield from walk_threads(self._tracker, IssueQuery(limit=sys.maxsize))
        claimed = (self._pipeline.labels.claimed,)
        stuck = IssueQuery(labels=claimed, limit=sys.maxsize, closed_too=True)
        yield from walk_threads(self._tracker, stuck)

    def _one(self, thread: Thread, *, repair: bool) -> Iterator[Finding]:
        ref = thread.issue.ref
        standing = self._leases.standing(thread)
        for flaw in diagnose(thread, standing, self._pipeline):
            mend = repair and (bool(flaw.repair) or flaw.code is FlawCode.UNPAINTED_ENDING)
            if mend and standing.unpainted is not None:
                self._claiming.roll_forward(standing.unpainted)
            elif mend:
                apply(self._tracker, ref, flaw.repair)
            yield Finding(flaw, repaired=mend)
