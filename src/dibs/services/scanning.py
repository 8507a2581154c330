"""Which issues to try next, and how a crowd of workers keeps out of its own way.

Oldest first, the most urgent before that, later stages before earlier ones so that work in progress
is finished first. A worker that lost a race picks at random from a wide window, and narrows it
again with every win.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.ids import ZERO, IssueRef, LocalTime, ServerTime
from dibs.core.issue import Issue
from dibs.core.pipeline import ApprovalGate, Pipeline, Stage
from dibs.ports.clock import Clock
from dibs.ports.tracker import IssueQuery, Tracker

WIDEST_WINDOW = 64
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
    """How far down the list to look: one place while alone, many in a crowd."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._window = 1

    @property
    def window(self) -> int:
        return self._window

    def lost(self) -> None:
        self._window = WIDEST_WINDOW

    def won(self) -> None:
        self._window = max(1, self._window - 1)

    def choose(self, candidates: list[Candidate]) -> Candidate:
        """One of the first `window`. The list is not empty."""
        return candidates[self._dice.randrange(min(self._window, len(candidates)))]


class Scanning:
    def __init__(self, tracker: Tracker, pipeline: Pipeline, clock: Clock) -> None:
        self._tracker = tracker
        self._pipeline = pipeline
        self._clock = clock
        self._not_before: dict[IssueRef, LocalTime] = {}
        self._hopeless: set[IssueRef] = set()
        self._returns: Counter[IssueRef] = Counter()

    def candidates(self, stages: Iterable[Stage]) -> list[Candidate]:
        """The issues of one stage that look free: the last stage that has any."""
        marks = self._pipeline.labels
        without = (marks.claimed, marks.paused, marks.parked, *sorted(self._pipeline.blockers))
        for stage in stages:
            found = [
                candidate
                for candidate in self._in_order(stage, without)
                if self._may_try(candidate.issue.ref)
            ]
            if found:
                return found
        return []

    def _in_order(self, stage: Stage, without: tuple[str, ...]) -> Iterator[Candidate]:
        wanted = _labels(stage)
        seen: set[IssueRef] = set()
        for urgent in (*((label,) for label in self._pipeline.priorities), ()):
            found = self._tracker.find(
                IssueQuery((*wanted, *urgent), without, limit=WIDEST_WINDOW + len(self._not_before))
            )
            for issue in found.issues:
                if issue.ref not in seen:
                    seen.add(issue.ref)
                    yield Candidate(issue, stage, found.now)

    def anything_left(self, stages: Iterable[Stage]) -> bool:
        """Whether an issue of these stages may still need us: free, held by others, or resting."""
        marks = self._pipeline.labels
        without = (marks.paused, marks.parked, *sorted(self._pipeline.blockers))
        for stage in stages:
            limit = 1 + len(self._hopeless)
            found = self._tracker.find(IssueQuery(_labels(stage), without, limit=limit))
            if any(issue.ref not in self._hopeless for issue in found.issues):
                return True
        return False

    def _may_try(self, issue: IssueRef) -> bool:
        until = self._not_before.get(issue)
        if until is None:
            return True
        if self._clock.now() < until:
            return False
        del self._not_before[issue]
        return True

    def rest(self, issue: IssueRef, seconds: float) -> None:
        """Leave the issue alone for a while."""
        self._not_before[issue] = LocalTime(self._clock.now() + seconds)

    def returned(self, issue: IssueRef, seconds: float) -> None:
        """Our own handler gave it back: leave it to others, longer each time it happens."""
        self._returns[issue] += 1
        self.rest(issue, min(seconds * (1 << min(self._returns[issue] - 1, 10)), _LONGEST_REST_S))

    def refused(self, candidate: Candidate, reasons: tuple[Reason, ...]) -> None:
        """Come back when the reasons have lifted, or much later if only a person can lift them."""
        ref = candidate.issue.ref
        if any(reason.code in _LASTING for reason in reasons):
            self._hopeless.add(ref)
            self.rest(ref, _LASTING_S)
            return
        waits = [reason.until - candidate.now for reason in reasons if reason.until is not None]
        self.rest(ref, max(max(waits, default=ZERO).total_seconds(), _PASSING_S))

    def forget(self, issue: IssueRef) -> None:
        self._not_before.pop(issue, None)
        self._hopeless.discard(issue)


def _labels(stage: Stage) -> tuple[str, ...]:
    gate = stage.gate
    return (stage.label, gate.label) if isinstance(gate, ApprovalGate) else (stage.label,)
