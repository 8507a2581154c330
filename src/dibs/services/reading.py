"""Reading many issues, in as few requests as the tracker can do it.

Where a tracker reads many at once, a hundred issues cost one request; where it does not, each costs
one. A thread that came incomplete is read by itself, once: whether it is complete then is for the
caller to judge. Issues that vanished since they were listed are left out.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec.structs import replace

from dibs.core.errors import NoSuchIssue
from dibs.core.ids import IssueRef
from dibs.core.issue import Issue, Thread
from dibs.core.pipeline import Pipeline
from dibs.ports.tracker import IssueQuery, Tracker

_PAGE = 200
AT_ONCE = 100
"""How many issues with their comments one request may ask for."""


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


def read_each(tracker: Tracker, refs: Iterable[IssueRef]) -> Iterator[Thread]:
    """The issues in the order they were named, asked for as they are consumed."""
    named = iter(refs)
    while page := tuple(islice(named, AT_ONCE if tracker.traits.reads_together > 1 else 1)):
        if len(page) == 1:
            yield from _read(tracker, page[0])
            continue
        found = tracker.read_many(page)
        for ref in page:
            if ref in found:
                yield from _completed(tracker, found[ref])


def walk_threads(tracker: Tracker, *queries: IssueQuery) -> Iterator[Thread]:
    """The issues that the queries find, each query up to its limit, with the comments.

    A tracker that reads many answers the first pages of all queries in one request, the second
    pages in another; an issue that two queries find comes twice.
    """
    if tracker.traits.reads_together == 1:
        for query in queries:
            yield from read_each(tracker, (issue.ref for issue in walk(tracker, query)))
        return
    left = [query for query in queries if query.limit > 0]
    while left:
        pages = tracker.find_threads([replace(one, limit=min(one.limit, AT_ONCE)) for one in left])
        rest = []
        for query, page in zip(left, pages, strict=True):
            for thread in page.threads:
                yield from _completed(tracker, thread)
            still = query.limit - len(page.threads)
            if page.more and page.threads and still > 0:
                last = page.threads[-1].issue.ref
                rest.append(replace(query, limit=still, after=last, skip=0))
        left = rest


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


def with_ourselves(pipeline: Pipeline, tracker: Tracker, issue: Issue) -> Pipeline:
    """The pipeline as it judges this issue: our own account is of the fleet.

    Our account is asked for only if the issue has an assignee or a pull request that may be ours:
    asking may cost a request.
    """
    people = pipeline.people
    if not people.assigned(issue) and not people.pulling(issue):
        return pipeline
    login = tracker.login() if tracker.traits.accounts else None
    return replace(pipeline, people=people.and_of_the_fleet([login])) if login else pipeline


def follows_pulls(tracker: Tracker) -> Tracker | None:
    """The tracker, if it knows of pull requests."""
    return tracker if tracker.traits.pulls else None
