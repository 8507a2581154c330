"""The issue tracker, as narrow as the services can live with.

Adapters raise the errors of `core.errors` (`NoSuchIssue`, `Unavailable`, `RateLimited`,
`NotPermitted`, `Damaged`) and nothing else. Adding a label that is there and removing one that is
not are both successes.

Reading many issues with their comments, in as few requests as the tracker can do it.

Where a tracker reads many at once, a hundred cost one request; where it does not, each costs one.
A thread that came incomplete is read by itself, once: what is still missing then is for the caller
to judge. Issues that vanished since they were listed are left out.

Walking a query's answer page by page, however long it is.

Which account a tracker is used with, where it can tell.

What is left of a tracker's patience, for people to see: trackers that count have one.

Whether what is being done is a person's word: a pause, a revoke, and the readings they need.

Where requests are scarce, such a word must not wait behind the workers that it is to stop. What
follows from it is the adapter's; who says it is known only here above.

Which pull requests an issue has, where a tracker has pull requests.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from itertools import islice
from typing import Protocol, assert_never, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.errors import NoSuchIssue, Outage
from dibs.core.events import Reached, Step, unwatched
from dibs.core.following import LinkedPull
from dibs.core.ids import ZERO, IssueRef, ServerTime
from dibs.core.issue import Comment, Draft, Issue, Thread
from dibs.core.labels import AddLabels, CloseIssue, EditComment, Effect, PostComment, RemoveLabels
from dibs.core.pipeline import Pipeline


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


def apply_one(
    tracker: Tracker, issue: IssueRef, effect: Effect, reached: Reached = unwatched
) -> None:
    """One call, whatever the tracker could do at once."""
    match effect:
        case AddLabels(labels):
            tracker.edit_labels(issue, add=labels)
            reached(Step.FINISH_LABEL_ADDED)
        case RemoveLabels(labels):
            tracker.edit_labels(issue, remove=labels)
            reached(Step.FINISH_LABEL_REMOVED)
        case PostComment(body):
            tracker.comment(issue, body)
            reached(Step.FINISH_SHOWN)
        case EditComment(comment, body):
            tracker.edit_comment(issue, comment, body)
            reached(Step.FINISH_SHOWN)
        case CloseIssue():
            tracker.close(issue)
            reached(Step.FINISH_CLOSED)
        case _:
            assert_never(effect)


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


@runtime_checkable
class Whoami(Protocol):
    """Optional: whose token it is."""

    def login(self) -> str | None:
        """The account's name; None if nobody can say. One request in a process's life, at most."""
        ...


class Standpoint(Struct, frozen=True):
    """What our account is to the tracker, as far as it says."""

    believed: str
    """Whose cards are believed, in words."""
    permission: str = ""
    """What we may do there, in the tracker's word."""
    may_write: bool | None = None
    """Whether we may write comments and labels; None if it does not say."""
    ours_count: bool | None = None
    """Whether cards by our own account are believed; None if nobody can say."""
    doubt: str = ""
    """Why others may believe somebody else; empty if everybody judges alike."""


@runtime_checkable
class Inspectable(Protocol):
    """Optional: what `dibs doctor` asks a tracker that has accounts and labels of its own."""

    def standpoint(self) -> Standpoint: ...

    def missing_labels(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Those that the tracker wants made and that nobody has made."""
        ...


def with_ourselves(pipeline: Pipeline, tracker: Tracker, issue: Issue) -> Pipeline:
    """The pipeline as it judges this issue: our own account is of the fleet.

    Asked for only if somebody stands on the issue who might be us: it may cost a request.
    """
    people = pipeline.people
    if not people.assigned(issue) and not people.pulling(issue):
        return pipeline
    login = tracker.login() if isinstance(tracker, Whoami) else None
    return replace(pipeline, people=people.and_of_the_fleet([login])) if login else pipeline


class Allowance(Struct, frozen=True):
    """What the server grants for a span of time, and counts itself, over all machines."""

    name: str
    limit: int
    used: int
    remaining: int
    resets_at: ServerTime


class Kept(Struct, frozen=True):
    """A limit that the server does not count for us: kept to by the processes of this machine."""

    name: str
    used: int
    most: int | None
    """None: it is only counted."""


class Shut(Struct, frozen=True):
    """The server is left alone for now."""

    why: str
    wait_s: float


class BudgetReport(Struct, frozen=True):
    """One token's."""

    place: str
    """The server."""
    now: ServerTime | None
    """None if the server was not asked, or did not answer."""
    allowances: tuple[Allowance, ...]
    """Empty where the server does not count, or was not heard."""
    kept: tuple[Kept, ...]
    counted: Mapping[str, int]
    """The requests of this machine in the last hour, by their kind."""
    shut: Shut | None
    shared: bool
    """Whether all processes of this machine are counted, or this one alone."""
    trouble: Outage | None = None
    """Why the server was not heard."""


class Budgeted(Protocol):
    def budgets(self) -> tuple[BudgetReport, ...]:
        """One for each token that is used."""
        ...


_said: ContextVar[bool] = ContextVar("a person's word", default=False)


@contextmanager
def persons_word() -> Iterator[None]:
    """Whatever this thread asks of an adapter inside is for a person who steers."""
    before = _said.set(True)
    try:
        yield
    finally:
        _said.reset(before)


def is_persons_word() -> bool:
    return _said.get()


PULLS_AT_ONCE = 100
"""Of how many issues one request may ask for the pull requests."""


@runtime_checkable
class FollowsPulls(Protocol):
    """Optional: what became of the pull requests that say they close an issue."""

    def pulls_of(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, tuple[LinkedPull, ...]]:
        """Open or over, of as many issues as one request can ask about at a time.

        An issue that is gone, or of which nobody can say, is left out.
        """
        ...

    def pull_texts(self, repo: str, branch: str) -> tuple[str, ...]:
        """Title and text of each open pull request from this branch of this repository."""
        ...


def follows_pulls(tracker: Tracker) -> FollowsPulls | None:
    """The tracker, if it knows of pull requests."""
    able: object = tracker
    return able if isinstance(able, FollowsPulls) else None
