"""Which issues to try next, and how a crowd of workers keeps out of its own way.

Oldest first, the most urgent before that, later stages before earlier ones so that work in progress
is finished first. A worker that lost a race reaches at random into a wide window, and narrows it
again with every win: with N workers waiting for one store, a window of W lets about N/2W of the
bids collide.

This is the scan of a tracker that is cheap to ask: one question for each claim. Where asking costs
something, `services.shortlisting` does the same with fewer questions.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from dibs.core.ids import ServerTime
from dibs.core.issue import Issue, Thread
from dibs.core.pipeline import Pipeline, Stage
from dibs.ports.clock import Clock
from dibs.ports.tracker import IssueQuery, Tracker
from dibs.services.resting import Resting

if TYPE_CHECKING:
    from random import Random

WIDEST_WINDOW = 512
_NARROWING = 8
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0


class Candidate(Struct, frozen=True):
    issue: Issue
    stage: Stage
    now: ServerTime
    thread: Thread | None = None
    """The reading it was chosen by, where there was one."""

    @property
    def untouched(self) -> bool:
        """Nobody ever wrote on it, so there is nothing to read before bidding."""
        return self.issue.comment_count == 0


def urgency(issue: Issue, pipeline: Pipeline) -> int:
    """Its place in the queue before its age: the lower, the sooner."""
    for rank, label in enumerate(pipeline.priorities):
        if label in issue.labels:
            return rank
    return len(pipeline.priorities)


class Spread:
    """How far down the list to reach: the top while alone, anywhere in a crowd."""

    def __init__(
        self, dice: "Random", *, widest: int = WIDEST_WINDOW, narrowing: int = _NARROWING
    ) -> None:
        self._dice = dice
        self._widest = widest
        self._narrowing = narrowing
        self._window = 1
        self._losses = 0
        self.holding = 0
        """How many issues this worker holds itself: they are no crowd."""

    @property
    def window(self) -> int:
        return self._window

    @property
    def in_a_crowd(self) -> bool:
        return self._window > 1

    def lost(self) -> None:
        """At once as wide as it gets: a whole fleet that starts together loses only once."""
        self._window = self._widest
        self._losses += 1

    def met(self) -> None:
        """Somebody else is at it, and it cost nothing to find out."""
        self._window = self._widest

    def won(self) -> None:
        self._losses = 0
        self._window = max(1, self._window - self._narrowing)

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
    arrival_s = 0.1
    """Over how long workers that are started together spread their first look."""

    def __init__(self, tracker: Tracker, pipeline: Pipeline, clock: Clock) -> None:
        self._tracker = tracker
        self._pipeline = pipeline
        self.resting = Resting(clock)

    @staticmethod
    def new_spread(dice: "Random") -> Spread:
        return Spread(dice)

    def next_candidate(self, stages: Iterable[Stage], spread: Spread) -> Candidate | None:
        """One issue that looks free, from the last stage that has any."""
        self.resting.forget_what_is_over()
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
        skip, limit = spread.skip(), 1 + len(self.resting)
        found = self._tracker.find(IssueQuery(wanted, without, limit=limit, skip=skip))
        free = [issue for issue in found.issues if not self.resting.leaves_alone(issue)]
        if free:
            return Candidate(free[0], stage, found.now)
        if skip == 0:
            return None
        found = self._tracker.find(IssueQuery(wanted, without, limit=WIDEST_WINDOW + limit))
        free = [issue for issue in found.issues if not self.resting.leaves_alone(issue)]
        return Candidate(spread.pick(free), stage, found.now) if free else None

    def look_anew(self) -> None:
        """Nothing is kept from one question to the next."""

    def anything_left(self, stages: Iterable[Stage]) -> bool:
        """Whether an issue of these stages may still need us: free, held by others, or resting."""
        marks = self._pipeline.labels
        without = (marks.paused, marks.parked, *sorted(self._pipeline.blockers))
        for stage in stages:
            limit = 1 + self.resting.hopeless
            wanted = [stage.entry_labels]
            wanted += [self._pipeline.held_labels(stage)] if stage.gives_way else []
            for labels in wanted:
                found = self._tracker.find(IssueQuery(labels, without, limit=limit))
                if any(not self.resting.is_hopeless(issue) for issue in found.issues):
                    return True
        return False
