"""Which issues to try next, and how a crowd of workers keeps out of its own way.

Oldest first, the most urgent before that, later stages before earlier ones so that work in progress
is finished first. A worker that lost a race reaches at random into a wide window, and narrows it
again with every win: with N workers waiting for one store, a window of W lets about N/2W of the
bids collide.
"""

import random
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.ids import ZERO, IssueRef, LocalTime, ServerTime
from dibs.core.issue import Issue
from dibs.core.pipeline import Pipeline, Stage
from dibs.ports.clock import Clock
from dibs.ports.tracker import IssueQuery, Tracker

WIDEST_WINDOW = 512
_NARROWING = 8
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0
_MOST_RETURNS = 10_000
_PASSING_S = 0.2
_LASTING_S = 30.0
_LONGEST_REST_S = 900.0
_LASTING = frozenset(
    {
        ReasonCode.CLOSED,
        ReasonCode.NO_STAGE,
        ReasonCode.SEVERAL_STAGES,
        ReasonCode.FINAL_STAGE,
        ReasonCode.PAUSED,
        ReasonCode.PARKED,
        ReasonCode.BLOCKED,
        ReasonCode.GATE_SHUT,
    }
)
"""Only a person lifts these, so a draining worker does not wait for them."""


@dataclass(frozen=True, slots=True)
class Candidate:
    issue: Issue
    stage: Stage
    now: ServerTime

    @property
    def untouched(self) -> bool:
        """Nobody ever wrote on it, so there is nothing to read before bidding."""
        return self.issue.comment_count == 0


class Spread:
    """How far down the list to reach: the top while alone, anywhere in a crowd."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._window = 1
        self._losses = 0

    @property
    def window(self) -> int:
        return self._window

    def lost(self) -> None:
        """At once as wide as it gets: a whole fleet that starts together loses only once."""
        self._window = WIDEST_WINDOW
        self._losses += 1

    def won(self) -> None:
        self._losses = 0
        self._window = max(1, self._window - _NARROWING)

    def pause_s(self) -> float:
        """Losses in a row mean that few issues are left: let the winners work them off."""
        longest_s = min(_FIRST_PAUSE_S * (1 << min(self._losses, 10)), _LONGEST_PAUSE_S)
        return self._dice.uniform(0.0, longest_s)

    def skip(self) -> int:
        """How many of the foremost to leave to others."""
        return self._dice.randrange(self._window)

    def pick(self, issues: list[Issue]) -> Issue:
        return self._dice.choice(issues)


class Scanning:
    def __init__(self, tracker: Tracker, pipeline: Pipeline, clock: Clock) -> None:
        self._tracker = tracker
        self._pipeline = pipeline
        self._clock = clock
        self._not_before: dict[IssueRef, LocalTime] = {}
        self._hopeless: set[IssueRef] = set()
        self._returns: Counter[IssueRef] = Counter()
        self._lock = threading.Lock()
        """Jobs that give back write here while the loop scans."""

    def next_candidate(self, stages: Iterable[Stage], spread: Spread) -> Candidate | None:
        """One issue that looks free, from the last stage that has any."""
        self._forget_what_is_over()
        marks = self._pipeline.labels
        without = (marks.claimed, marks.paused, marks.parked, *sorted(self._pipeline.blockers))
        for stage in stages:
            for urgent in (*((label,) for label in self._pipeline.priorities), ()):
                wanted = (*stage.entry_labels, *urgent)
                if (found := self._reach(stage, wanted, without, spread)) is not None:
                    return found
        return None

    def _reach(
        self, stage: Stage, wanted: tuple[str, ...], without: tuple[str, ...], spread: Spread
    ) -> Candidate | None:
        """One step into the list where it is long; any of the few that are left where it is not."""
        skip, limit = spread.skip(), 1 + len(self._not_before)
        found = self._tracker.find(IssueQuery(wanted, without, limit=limit, skip=skip))
        free = [issue for issue in found.issues if issue.ref not in self._not_before]
        if free:
            return Candidate(free[0], stage, found.now)
        if skip == 0:
            return None
        found = self._tracker.find(IssueQuery(wanted, without, limit=WIDEST_WINDOW + limit))
        free = [issue for issue in found.issues if issue.ref not in self._not_before]
        return Candidate(spread.pick(free), stage, found.now) if free else None

    def anything_left(self, stages: Iterable[Stage]) -> bool:
        """Whether an issue of these stages may still need us: free, held by others, or resting."""
        marks = self._pipeline.labels
        without = (marks.paused, marks.parked, *sorted(self._pipeline.blockers))
        for stage in stages:
            limit = 1 + len(self._hopeless)
            found = self._tracker.find(IssueQuery(stage.entry_labels, without, limit=limit))
            if any(issue.ref not in self._hopeless for issue in found.issues):
                return True
        return False

    def _forget_what_is_over(self) -> None:
        """Most issues that rest are finished by somebody else and never seen again."""
        now = self._clock.now()
        with self._lock:
            over = [issue for issue, until in self._not_before.items() if until <= now]
            for issue in over:
                del self._not_before[issue]
                self._hopeless.discard(issue)
            if len(self._returns) > _MOST_RETURNS:
                self._returns.clear()

    def rest(self, issue: IssueRef, seconds: float) -> None:
        """Leave the issue alone for a while."""
        with self._lock:
            self._not_before[issue] = LocalTime(self._clock.now() + seconds)

    def returned(self, issue: IssueRef, seconds: float) -> None:
        """Our own handler gave it back: leave it to others, longer each time it happens."""
        with self._lock:
            self._returns[issue] += 1
            doublings = min(self._returns[issue] - 1, 10)
        self.rest(issue, min(seconds * (1 << doublings), _LONGEST_REST_S))

    def refused(self, candidate: Candidate, reasons: tuple[Reason, ...]) -> None:
        """Come back when the reasons have lifted, or much later if only a person can lift them."""
        ref = candidate.issue.ref
        if any(reason.code in _LASTING for reason in reasons):
            with self._lock:
                self._hopeless.add(ref)
            self.rest(ref, _LASTING_S)
            return
        waits = [reason.until - candidate.now for reason in reasons if reason.until is not None]
        self.rest(ref, max(max(waits, default=ZERO).total_seconds(), _PASSING_S))

    def forget(self, issue: IssueRef) -> None:
        with self._lock:
            self._not_before.pop(issue, None)
            self._hopeless.discard(issue)
