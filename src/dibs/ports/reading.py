"""Reading many issues with their comments, in as few requests as the tracker can do it.

Where a tracker reads many at once, a hundred cost one request; where it does not, each costs one.
A thread that came incomplete is read by itself, once: what is still missing then is for the caller
to judge. Issues that vanished since they were listed are left out.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec.structs import replace

from dibs.core.errors import NoSuchIssue
from dibs.core.ids import IssueRef
from dibs.core.issue import Thread
from dibs.ports.paging import walk
from dibs.ports.tracker import FoundThreads, IssueQuery, ReadsFewer, ReadsMany, Tracker

AT_ONCE = 100
"""How many issues with their comments one request may ask for."""


def reads_many(tracker: Tracker) -> ReadsMany | None:
    """The tracker, if it can read many issues in one request."""
    able: object = tracker
    return able if isinstance(able, ReadsMany) else None


def looks_ahead(tracker: Tracker) -> ReadsMany | None:
    """The tracker, if looking at many issues at once is worth more than looking at one each time.

    Where reading costs next to nothing, the freshest look is the best one.
    """
    return None if tracker.traits.cheap_reads else reads_many(tracker)


def at_once(many: ReadsMany) -> int:
    """How many issues it is worth looking at while at it."""
    able: object = many
    return able.at_once() if isinstance(able, ReadsFewer) else AT_ONCE


def read_each(tracker: Tracker, refs: Iterable[IssueRef]) -> Iterator[Thread]:
    """The issues in the order they were named, asked for as they are consumed."""
    many = reads_many(tracker)
    if many is None:
        for ref in refs:
            yield from _read(tracker, ref)
        return
    named = iter(refs)
    while page := tuple(islice(named, AT_ONCE)):
        found = many.threads(page)
        for ref in page:
            if ref in found:
                yield from _completed(tracker, found[ref])


def walk_threads(tracker: Tracker, *queries: IssueQuery) -> Iterator[Thread]:
    """What the queries find, each up to its limit, with the comments.

    With a tracker that reads many, the first pages of all queries are one request, the second
    pages another; so an issue that two queries find comes twice.
    """
    many = reads_many(tracker)
    if many is None:
        for query in queries:
            yield from read_each(tracker, (issue.ref for issue in walk(tracker, query)))
        return
    left = [query for query in queries if query.limit > 0]
    while left:
        pages = many.find_threads([replace(one, limit=min(one.limit, AT_ONCE)) for one in left])
        for page in pages:
            for thread in page.threads:
                yield from _completed(tracker, thread)
        left = [rest for one, page in zip(left, pages, strict=True) for rest in _rest(one, page)]


def _rest(query: IssueQuery, page: FoundThreads) -> Iterator[IssueQuery]:
    left = query.limit - len(page.threads)
    if page.more and page.threads and left > 0:
        yield replace(query, limit=left, after=page.threads[-1].issue.ref, skip=0)


def _completed(tracker: Tracker, thread: Thread) -> Iterator[Thread]:
    if thread.complete:
        yield thread
    else:
        yield from _read(tracker, thread.issue.ref)


def _read(tracker: Tracker, ref: IssueRef) -> Iterator[Thread]:
    try:
        thread = tracker.read(ref)
    except NoSuchIssue:
        return
    yield thread
