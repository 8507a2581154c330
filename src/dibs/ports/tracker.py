"""The issue tracker, as narrow as the services can live with.

Adapters raise the errors of `core.errors` (`NoSuchIssue`, `Unavailable`, `RateLimited`,
`NotPermitted`, `Damaged`) and nothing else. Adding a label that is there and removing one that is
not are both successes.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol, runtime_checkable

from msgspec import Struct

from dibs.core.ids import ZERO, IssueRef, ServerTime
from dibs.core.issue import Comment, Draft, Issue, Thread
from dibs.core.plan import Effect


class TrackerTraits(Struct, frozen=True):
    """What a tracker is like; the protocol's waits and margins follow from it."""

    name: str
    repo: str = ""
    """The repository of its issues; empty where it has several, or none that has a name."""
    repos: tuple[str, ...] = ()
    """All of them, where there are several."""
    settle: timedelta = ZERO
    """How long after a write every reader is sure to see it."""
    grain: timedelta = timedelta(milliseconds=1)
    """The step of its timestamps."""
    cheap_reads: bool = False
    """Whether reading an issue costs next to nothing, so that looking before bidding pays."""
    in_flight: timedelta | None = None
    """How long after it was sent a request may still take effect; None if nobody can say."""

    @property
    def patience(self) -> timedelta:
        """How long somebody's next write may take to follow the last one, and to be seen."""
        return self.settle + (self.in_flight or ZERO)


class IssueQuery(Struct, frozen=True):
    """Open issues that carry all of `labels` and none of `without`, oldest first."""

    labels: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    limit: int = 100
    after: IssueRef | None = None
    """Continue behind this issue."""
    skip: int = 0
    """Leave out the first so many that match: how a crowd of workers spreads."""
    closed_too: bool = False


class Found(Struct, frozen=True):
    issues: tuple[Issue, ...]
    now: ServerTime
    more: bool = False


class FoundThreads(Struct, frozen=True):
    """One query's answer with the comments. A thread that is too long is not complete: read it."""

    threads: tuple[Thread, ...]
    now: ServerTime
    more: bool = False


class Tracker(Protocol):
    @property
    def traits(self) -> TrackerTraits: ...

    def find(self, query: IssueQuery) -> Found: ...

    def read(self, issue: IssueRef) -> Thread:
        """The issue with all its comments, in the server's order."""
        ...

    def tally(self, labels: Sequence[str], *, closed_too: bool = False) -> Mapping[str, int]:
        """How many open issues carry each label; or how many at all."""
        ...

    def create(self, draft: Draft) -> Issue: ...

    def comment(self, issue: IssueRef, body: str) -> Comment: ...

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment: ...

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None: ...

    def close(self, issue: IssueRef) -> None: ...

    def prepare(self, labels: Sequence[str]) -> None:
        """Make sure the labels exist, where a tracker wants them made."""
        ...


@runtime_checkable
class Batching(Protocol):
    """Optional: several effects and a reading in one trip. Correctness never depends on it."""

    def apply(
        self, issue: IssueRef, effects: Sequence[Effect], *, seen: Issue | None = None
    ) -> Thread | None:
        """With `seen`: only if the issue is still as it was seen; None if it is not."""
        ...


@runtime_checkable
class OneTrip(Protocol):
    """Optional: several effects and then a reading in one request, but not in one step.

    The effects happen in their order and each by itself: if one fails, any other may have happened.
    """

    def trip(self, issue: IssueRef, effects: Sequence[Effect]) -> Thread:
        """The issue as it is after the effects. Raises what the first that failed would raise.

        Whatever else lags: the reading shows what these effects wrote.
        """
        ...


@runtime_checkable
class ReadsMany(Protocol):
    """Optional: many issues with their comments in one request."""

    def threads(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Thread]:
        """Those of them that are still there."""
        ...

    def find_threads(self, queries: Sequence[IssueQuery]) -> tuple[FoundThreads, ...]:
        """An answer to each query, in its order."""
        ...


@runtime_checkable
class ReadsFewer(Protocol):
    """Optional, for one that reads many: at times it may have to read them one by one."""

    def at_once(self) -> int:
        """How many issues with their comments are one request now; 1: each is one or more."""
        ...


@runtime_checkable
class SelfChecking(Protocol):
    """Optional: an adapter that can inspect its own storage for damage."""

    def flaws(self) -> tuple[str, ...]: ...
