"""A tracker around a tracker: what a wrapper does not change is handed on to the one within.

The optional capabilities are there exactly if the tracker within has them, so that whoever asks a
wrapped tracker what it can do gets the same answer. Those that write comments are not here: what
becomes of a comment is what wrappers differ in.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

from dibs.core.following import LinkedPull
from dibs.core.ids import IssueRef
from dibs.core.issue import Comment, Draft, Issue, Thread
from dibs.ports.following import FollowsPulls
from dibs.ports.tracker import (
    Found,
    FoundThreads,
    IssueQuery,
    ReadsFewer,
    ReadsMany,
    SelfChecking,
    Tracker,
    TrackerTraits,
)
from dibs.ports.whoami import Inspectable, Standpoint, Whoami


class WrappedTracker:
    def __init__(self, inner: Tracker) -> None:
        self._inner = inner

    @property
    def traits(self) -> TrackerTraits:
        return self._inner.traits

    def find(self, query: IssueQuery) -> Found:
        return self._inner.find(query)

    def read(self, issue: IssueRef) -> Thread:
        return self._inner.read(issue)

    def tally(self, labels: Sequence[str], *, closed_too: bool = False) -> Mapping[str, int]:
        return self._inner.tally(labels, closed_too=closed_too)

    def create(self, draft: Draft) -> Issue:
        return self._inner.create(draft)

    def comment(self, issue: IssueRef, body: str) -> Comment:
        return self._inner.comment(issue, body)

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        return self._inner.edit_comment(issue, comment, body)

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        self._inner.edit_labels(issue, add=add, remove=remove)

    def close(self, issue: IssueRef) -> None:
        self._inner.close(issue)

    def prepare(self, labels: Sequence[str]) -> None:
        self._inner.prepare(labels)


class _ReadingMany(WrappedTracker):
    def threads(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Thread]:
        return cast("ReadsMany", self._inner).threads(issues)

    def find_threads(self, queries: Sequence[IssueQuery]) -> tuple[FoundThreads, ...]:
        return cast("ReadsMany", self._inner).find_threads(queries)


class _ReadingFewer(WrappedTracker):
    def at_once(self) -> int:
        return cast("ReadsFewer", self._inner).at_once()


class _CheckingItself(WrappedTracker):
    def flaws(self) -> tuple[str, ...]:
        return cast("SelfChecking", self._inner).flaws()


class _KnowingWho(WrappedTracker):
    def login(self) -> str | None:
        return cast("Whoami", self._inner).login()


class _Inspected(WrappedTracker):
    def standpoint(self) -> Standpoint:
        return cast("Inspectable", self._inner).standpoint()

    def missing_labels(self, labels: Sequence[str]) -> tuple[str, ...]:
        return cast("Inspectable", self._inner).missing_labels(labels)


class _FollowingPulls(WrappedTracker):
    def pulls_of(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, tuple[LinkedPull, ...]]:
        return cast("FollowsPulls", self._inner).pulls_of(issues)

    def pull_texts(self, repo: str, branch: str) -> tuple[str, ...]:
        return cast("FollowsPulls", self._inner).pull_texts(repo, branch)


Parts = Mapping[Any, type[WrappedTracker]]
"""A capability, and the class that has it around a tracker which has it."""

HANDED_ON: Parts = {
    ReadsMany: _ReadingMany,
    ReadsFewer: _ReadingFewer,
    SelfChecking: _CheckingItself,
    Whoami: _KnowingWho,
    Inspectable: _Inspected,
    FollowsPulls: _FollowingPulls,
}

Kind = TypeVar("Kind", bound=WrappedTracker)


def wrapper(kind: type[Kind], parts: Parts, tracker: Tracker) -> type[Kind]:
    """`kind` with every capability of the tracker: by its own `parts`, or else handed on."""
    all_parts = {**HANDED_ON, **parts}
    chosen = [part for capability, part in all_parts.items() if isinstance(tracker, capability)]
    chosen.sort(key=lambda part: not issubclass(part, kind))  # before what is only handed on
    return cast("type[Kind]", _made_of((*chosen, kind)))


@cache
def _made_of(parts: tuple[type[WrappedTracker], ...]) -> type[WrappedTracker]:
    return type(parts[-1].__name__, parts, {"__module__": parts[-1].__module__})
