"""Any tracker with its optional capabilities hidden, so that the plain path can be exercised."""

from collections.abc import Mapping, Sequence

from dibs.core.ids import IssueRef
from dibs.core.issue import Comment, Draft, Issue, Thread
from dibs.ports.tracker import Found, IssueQuery, Tracker, TrackerTraits


class PlainTracker:
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
