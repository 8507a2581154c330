"""Adding issues: each is reported as it is made, and none is made twice.

A tracker takes issues one by one, and no step covers several. So what was made is told at once, and
an addition that broke off is repeated with `once`: a title that an issue has already is left out.
A new issue whose reply was lost is looked for before it is sent again, like any other write.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from msgspec import Struct

from dibs.core.durations import UNANSWERED_WRITE
from dibs.core.errors import RateLimited, Unavailable
from dibs.core.ids import IssueRef, LocalTime, ServerTime, later
from dibs.core.issue import Draft, Issue
from dibs.ports.system import Clock
from dibs.ports.tracker import IssueQuery, Tracker
from dibs.services.reading import walk

Waits = Callable[[float, str], None]
"""Called before each wait for a limit of the tracker, with the seconds and the reason."""


class Added(Struct, frozen=True):
    issue: Issue
    made: bool
    """False: the issue was there before."""


class Adding:
    def __init__(self, tracker: Tracker, clock: Clock, settle: timedelta) -> None:
        self._tracker, self._clock, self._settle_s = tracker, clock, settle.total_seconds()

    def add(
        self, drafts: Sequence[Draft], *, once: bool, patience_s: float, waits: Waits
    ) -> Iterator[Added]:
        """Make the issues in order, and yield each issue as soon as the tracker has confirmed it.

        `once`: leave out a draft if an issue has the title already, open or closed; costs a list of
        all issues. `patience_s`: how long to wait for the tracker's limits in all.
        """
        known: dict[str, Issue] = {}
        if once:
            everything = IssueQuery(limit=sys.maxsize, closed_too=True)
            known = {issue.title: issue for issue in walk(self._tracker, everything)}
        until = LocalTime(self._clock.now() + patience_s)
        ours: set[IssueRef] = set()
        for draft in drafts:
            if once and (there := known.get(draft.title)) is not None:
                yield Added(there, made=False)
                continue
            known[draft.title] = made = self._make(draft, ours, until, waits)
            ours.add(made.ref)
            yield Added(made, made=True)

    def _make(self, draft: Draft, ours: set[IssueRef], until: LocalTime, waits: Waits) -> Issue:
        """Make an issue, when the limits allow; after a lost reply, find it or make it again.

        `ours`: the issues made before, which may have the same title.
        """
        tries = UNANSWERED_WRITE.most
        while True:
            asked_at = self._clock.now()
            try:
                return self._tracker.create(draft)
            except RateLimited as limit:
                if asked_at + limit.retry_after_s > until:
                    raise
                waits(limit.retry_after_s, str(limit))
                self._clock.sleep(limit.retry_after_s)
                continue
            except Unavailable:
                tries -= 1
                if not tries:
                    raise
            self._clock.sleep(self._settle_s + UNANSWERED_WRITE.pause_s)
            if (found := self._find(draft, ours, asked_at)) is not None:
                return found

    def _find(self, draft: Draft, ours: set[IssueRef], asked_at: LocalTime) -> Issue | None:
        """An issue with the draft's title and text, made since we asked, and not one of `ours`.

        A worker may have changed its labels and closed it by now.
        """
        traits = self._tracker.traits
        now = self._tracker.find(IssueQuery(limit=1)).now
        passed = timedelta(seconds=self._clock.now() - asked_at)
        since: ServerTime = later(now, -(passed + traits.grain))
        alike = (
            issue
            for issue in walk(self._tracker, IssueQuery(limit=sys.maxsize, closed_too=True))
            if issue.title == draft.title and issue.body == draft.body
        )
        return next((one for one in alike if one.created_at >= since and one.ref not in ours), None)
