"""Reading many issues, in as few requests as the tracker can do it.

Where a tracker reads many issues at once, a hundred cost one request; elsewhere each issue costs
one. A snapshot without all comments is replaced by a read of that issue alone, once; the caller
checks whether the second snapshot is complete. Issues that vanished since the listing are left out.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec.structs import replace

from dibs.core.errors import NoSuchIssue
from dibs.core.ids import IssueRef
from dibs.core.issue import Issue, Snapshot
from dibs.ports.tracker import IssueQuery, Tracker

_PAGE = 200
AT_ONCE = 100
"""How many issues with their comments one request may ask for."""


def walk(tracker: Tracker, query: IssueQuery, first: int = _PAGE) -> Iterator[Issue]:
    """Yield the issues of the query, `query.limit` at most. Pages are fetched as needed.

    The first page has `first` issues, and each page after it twice as many, up to a full page.
    """
    page = first
    while query.limit > 0:
        found = tracker.find(replace(query, limit=min(query.limit, page)))
        page = min(2 * page, _PAGE)
        yield from found.issues
        if not found.more or not found.issues:
            return
        last = found.issues[-1].ref
        query = replace(query, limit=query.limit - len(found.issues), after=last, skip=0)


def read_each(tracker: Tracker, refs: Iterable[IssueRef]) -> Iterator[Snapshot]:
    """Yield a snapshot of each issue, in the given order. Pages are fetched as needed."""
    named = iter(refs)
    if not tracker.traits.shortlists:
        for ref in named:
            yield from _read_unless_gone(tracker, ref)
        return
    while page := tuple(islice(named, AT_ONCE)):
        found = tracker.read_many(page)
        for ref in page:
            if ref in found:
                yield from _completed_snapshot(tracker, found[ref])


def walk_snapshots(tracker: Tracker, *queries: IssueQuery) -> Iterator[Snapshot]:
    """Yield snapshots of the issues which the queries find, each query up to its limit.

    A tracker that shortlists answers the first pages of all queries in one request,
    the second pages in the next. An issue found by two queries comes twice.
    """
    if not tracker.traits.shortlists:
        for query in queries:
            yield from read_each(tracker, (issue.ref for issue in walk(tracker, query)))
        return
    left = [query for query in queries if query.limit > 0]
    while left:
        pages = tracker.find_snapshots(
            [replace(query, limit=min(query.limit, AT_ONCE)) for query in left]
        )
        unfinished = []
        for query, page in zip(left, pages, strict=True):
            for snapshot in page.snapshots:
                yield from _completed_snapshot(tracker, snapshot)
            limit = query.limit - len(page.snapshots)
            if page.more and page.snapshots and limit > 0:
                last = page.snapshots[-1].issue.ref
                unfinished.append(replace(query, limit=limit, after=last, skip=0))
        left = unfinished


def _completed_snapshot(tracker: Tracker, snapshot: Snapshot) -> Iterator[Snapshot]:
    if snapshot.complete:
        yield snapshot
    else:
        yield from _read_unless_gone(tracker, snapshot.issue.ref)


def _read_unless_gone(tracker: Tracker, ref: IssueRef) -> Iterator[Snapshot]:
    try:
        snapshot = tracker.read(ref)
    except NoSuchIssue:
        return
    yield snapshot


def follows_pulls(tracker: Tracker) -> Tracker | None:
    """The tracker, if its traits include pull requests; else None."""
    return tracker if tracker.traits.pulls else None
