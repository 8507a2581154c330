"""The issue tracker, as narrow as the services can live with.

Adapters raise the errors of `core.errors` (`NoSuchIssue`, `Unavailable`, `RateLimited`,
`NotPermitted`, `Damaged`) and nothing else. Adding a label that is there and removing one that is
not are both successes.

What a tracker can do is written in its traits. `OneAtATime` does everything that takes several
calls through the calls for one issue and one effect, for trackers that have no better way.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from enum import StrEnum
from typing import Protocol, assert_never

from msgspec import Struct

from dibs.core.errors import NoSuchIssue, Outage
from dibs.core.events import Reached, Step, unwatched
from dibs.core.following import LinkedPull
from dibs.core.ids import ZERO, IssueRef, ServerTime
from dibs.core.issue import Comment, Draft, Issue, Thread
from dibs.core.labels import AddLabels, CloseIssue, EditComment, Effect, PostComment, RemoveLabels


class Applies(StrEnum):
    """How the effects of one `Tracker.apply` happen."""

    ONE_BY_ONE = "one by one"
    """A call for each, and then a reading."""
    IN_ONE_REQUEST = "in one request"
    """In their order, each by itself: if one fails, any other may have happened."""
    IN_ONE_STEP = "in one step"
    """All or none of them, and only if the issue is unchanged."""


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
    applies: Applies = Applies.ONE_BY_ONE
    """How the effects of one `apply` happen."""
    reads_together: int = 1
    """How many issues with their comments one request reads now; 1: each takes a request."""
    shortlists: bool = False
    """Whether a worker reads one list for many claims, because asking for each claim costs."""
    accounts: bool = False
    """Whether it has accounts, permissions and labels that `dibs doctor` asks about."""
    checks_itself: bool = False
    """Whether it can inspect its own storage for damage."""
    pulls: bool = False
    """Whether it knows which pull requests an issue has."""

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

    # Reading

    def find(self, query: IssueQuery) -> Found: ...

    def find_threads(self, queries: Sequence[IssueQuery]) -> tuple[FoundThreads, ...]:
        """An answer with comments to each query, in the order of the queries."""
        ...

    def read(self, issue: IssueRef) -> Thread:
        """The issue with all its comments, in the server's order."""
        ...

    def read_many(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Thread]:
        """The issues with their comments; those that are gone are left out."""
        ...

    def tally(self, labels: Sequence[str], *, closed_too: bool = False) -> Mapping[str, int]:
        """How many open issues carry each label; or how many at all."""
        ...

    def pulls_of(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, tuple[LinkedPull, ...]]:
        """The pull requests, open or over, that say they close each of these issues.

        An issue that is gone, or whose pull requests cannot be seen, is left out.
        """
        ...

    def pull_texts(self, repo: str, branch: str) -> tuple[str, ...]:
        """Title and text of each open pull request from this branch of this repository."""
        ...

    # Writing

    def create(self, draft: Draft) -> Issue: ...

    def apply(
        self,
        issue: IssueRef,
        effects: Sequence[Effect],
        *,
        if_unchanged: Issue | None = None,
        reached: Reached = unwatched,
    ) -> Thread | None:
        """Do the effects in their order, and return the issue as it is afterwards.

        `if_unchanged`: do nothing and return None if the issue is not as it was seen. Only a
        tracker that applies in one step keeps this strictly; one by one, the issue may change
        between the look and the first effect, and in one request nobody looks at all.
        `reached` is called after each effect that is a call of its own.
        Raises what the first effect that failed raises. The returned issue shows what these
        effects wrote, even if readings lag.
        """
        ...

    def comment(self, issue: IssueRef, body: str) -> Comment: ...

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment: ...

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None: ...

    def close(self, issue: IssueRef) -> None: ...

    def prepare(self, labels: Sequence[str]) -> None:
        """Make sure the labels exist, where a tracker wants them made."""
        ...

    # About itself

    def login(self) -> str | None:
        """The account's name; None if unknown. At most one request in a process's life."""
        ...

    def standpoint(self) -> Standpoint:
        """What our account may do here; asked only of a tracker with accounts."""
        ...

    def missing_labels(self, labels: Sequence[str]) -> tuple[str, ...]:
        """The labels that the tracker wants made and that are not there."""
        ...

    def flaws(self) -> tuple[str, ...]:
        """What is damaged in the tracker's own storage, in words."""
        ...


class OneAtATime:
    """The calls for many issues and many effects, made of the calls for one.

    A tracker inherits it and overrides what it can do better; its traits say which that is.
    """

    def read_many(self: Tracker, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Thread]:
        found: dict[IssueRef, Thread] = {}
        for issue in issues:
            try:
                found[issue] = self.read(issue)
            except NoSuchIssue:
                continue
        return found

    def find_threads(self: Tracker, queries: Sequence[IssueQuery]) -> tuple[FoundThreads, ...]:
        answers = []
        for query in queries:
            found = self.find(query)
            read = self.read_many([issue.ref for issue in found.issues])
            threads = tuple(read[issue.ref] for issue in found.issues if issue.ref in read)
            answers.append(FoundThreads(threads, found.now, found.more))
        return tuple(answers)

    def apply(
        self: Tracker,
        issue: IssueRef,
        effects: Sequence[Effect],
        *,
        if_unchanged: Issue | None = None,
        reached: Reached = unwatched,
    ) -> Thread | None:
        if if_unchanged is not None and self.read(issue).issue != if_unchanged:
            return None
        for effect in effects:
            apply_one(self, issue, effect, reached)
        return self.read(issue)

    def pulls_of(
        self,
        issues: Sequence[IssueRef],  # noqa: ARG002 - there are none
    ) -> Mapping[IssueRef, tuple[LinkedPull, ...]]:
        return {}

    def pull_texts(self, repo: str, branch: str) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def login(self) -> str | None:
        return None

    def standpoint(self) -> Standpoint:
        return Standpoint(believed="everybody who can write to the tracker")

    def missing_labels(self, labels: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def flaws(self) -> tuple[str, ...]:
        return ()


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
