"""Walking a query's answer page by page, however long it is."""

from collections.abc import Iterator

from msgspec.structs import replace

from dibs.core.issue import Issue
from dibs.ports.tracker import IssueQuery, Tracker

_PAGE = 200


def walk(tracker: Tracker, query: IssueQuery) -> Iterator[Issue]:
    """The query's issues, `query.limit` at most, asked for as they are consumed."""
    left = query
    while left.limit > 0:
        found = tracker.find(replace(left, limit=min(left.limit, _PAGE)))
        yield from found.issues
        if not found.more or not found.issues:
            return
        last = found.issues[-1].ref
        left = replace(left, limit=left.limit - len(found.issues), after=last, skip=0)
