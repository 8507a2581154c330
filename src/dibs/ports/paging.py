"""Walking a query's answer page by page, however long it is."""

from collections.abc import Iterator
from dataclasses import replace

from dibs.core.issue import Issue
from dibs.ports.tracker import IssueQuery, Tracker

_PAGE = 200


def walk(tracker: Tracker, query: IssueQuery) -> Iterator[Issue]:
    """The query's issues, `query.limit` at most, asked for as they are consumed."""
    left, after = query.limit, query.after
    while left > 0:
        found = tracker.find(replace(query, limit=min(left, _PAGE), after=after))
        yield from found.issues
        if not found.more:
            return
        left -= len(found.issues)
        after = found.issues[-1].ref
