"""The issue tracker, as narrow as the services can live with, and the budgets of its server.

Adapters raise the errors of `core.errors` (`NoSuchIssue`, `Unavailable`, `RateLimited`,
`NotPermitted`, `Damaged`) and no others. Adding a label that is there and removing one that is not
are both successes.

The traits of a tracker say what it can do. `OneAtATime` builds every call for many issues or
effects from the calls for one issue and one effect, for trackers that have no better way.
"""

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
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
from dibs.core.issue import Comment, Draft, Issue, Snapshot
from dibs.core.labels import (
    AddLabels,
    CloseIssue,
    EditComment,
    Effect,
    LabelLook,
    PostComment,
    RemoveLabels,
)


class Applies(StrEnum):
    """How the effects of one `Tracker.apply` happen."""

    ONE_BY_ONE = "one by one"
    """A call for each effect, and then a read."""
    IN_ONE_REQUEST = "in one request"
    """In their order, each by itself: if one fails, any of the others may have happened."""
    IN_ONE_STEP = "in one step"
    """All or none of them, and only if the issue is unchanged."""


class Standpoint(Struct, frozen=True):
    """The rights of our account on the tracker, as far as the tracker reports them."""

    believed: str
    """Whose cards are believed, in words."""
    permission: str = ""
    """Our permission, in the tracker's own word."""
    may_write: bool | None = None
    """Whether we may write comments and labels; None if the tracker does not say."""
    ours_count: bool | None = None
    """Whether cards by our own account are believed; None if unknown."""
    doubt: str = ""
    """Why another reader may believe different authors; empty if all readers judge alike."""


class TrackerTraits(Struct, frozen=True):
    """The abilities and delays of a tracker. The protocol's waits and margins depend on them."""

    name: str
    repo: str = ""
    """The repository of its issues; empty if there are several, or none with a name."""
    repos: tuple[str, ...] = ()
    """All repositories, if there are several."""
    settle: timedelta = ZERO
    """How long after a write every reader is sure to see it."""
    grain: timedelta = timedelta(milliseconds=1)
    """The step of its timestamps."""
    cheap_reads: bool = False
    """Whether reading an issue costs next to nothing, so that looking before bidding pays."""
    in_flight: timedelta | None = None
    """How long after its sending a request may still take effect; None if unknown."""
    applies: Applies = Applies.ONE_BY_ONE
    """How the effects of one `apply` happen."""
    reads_together: int = 1
    """How many issues with their comments one request reads now; 1: each takes a request."""
    shortlists: bool = False
    """Whether a worker reads one list for many claims, because a query for each claim costs."""
    accounts: bool = False
    """Whether it has accounts, permissions and labels, which `dibs doctor` asks about."""
    checks_itself: bool = False
    """Whether it can inspect its own storage for damage."""
    pulls: bool = False
    """Whether it can list the pull requests of an issue."""
    long_thread: int = 0
    """How many comments make a thread long, so that outlived cards are archived; 0: never."""
    most_comments: int | None = None
    """How many comments an issue takes; None: any number."""
    label_history: bool = False
    """Whether an issue says who put a label on, and when (`Issue.labelled`)."""
    keeps_rests: bool = False
    """Whether it remembers rests (`Tracker.rest`), and leaves resting issues out of a query."""

    @property
    def patience(self) -> timedelta:
        """How long the next write of a worker may take to follow the last, and to be seen."""
        return self.settle + (self.in_flight or ZERO)


class IssueQuery(Struct, frozen=True):
    """Asks for open issues with all of `labels` and none of `without`, oldest first."""

    labels: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    limit: int = 100
    after: IssueRef | None = None
    """Continue after this issue."""
    skip: int = 0
    """Leave out so many of the first matches: how a crowd of workers spreads."""
    closed_too: bool = False
    awake_by: str = ""
    """Leave out the issues that rest by these rules; a tracker that keeps no rests ignores it."""


class Found(Struct, frozen=True):
    """The answer to a query, up to its limit."""

    issues: tuple[Issue, ...]
    now: ServerTime
    more: bool = False


class FoundSnapshots(Struct, frozen=True):
    """The answer to a query, with comments. A snapshot with too many comments is not complete."""

    snapshots: tuple[Snapshot, ...]
    now: ServerTime
    more: bool = False


class Tracker(Protocol):
    @property
    def traits(self) -> TrackerTraits: ...

    # Reading

    def find(self, query: IssueQuery) -> Found: ...

    def find_snapshots(self, queries: Sequence[IssueQuery]) -> tuple[FoundSnapshots, ...]:
        """Answer each query with snapshots, in the order of the queries."""
        ...

    def read(self, issue: IssueRef) -> Snapshot:
        """The issue with all its comments, in the server's order."""
        ...

    def read_many(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Snapshot]:
        """Snapshots of the issues; issues which are gone are left out."""
        ...

    def with_authors(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with `public` set, and `by_writer` of the issue and of every comment.

        For the input of a handler: a read judges only the authors of marks. May cost requests, and
        raises no Outage: an author who cannot be looked up keeps the verdict of the read.
        """
        ...

    def tally(self, labels: Sequence[str], *, closed_too: bool = False) -> Mapping[str, int]:
        """The number of open issues with each label; with `closed_too`, of all issues."""
        ...

    def pulls_of(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, tuple[LinkedPull, ...]]:
        """The pull requests, open or over, which announce to close the issue, for each issue.

        An issue which is gone, or whose pull requests cannot be seen, is left out.
        """
        ...

    def pulls_named(self, pulls: Sequence[IssueRef]) -> Mapping[IssueRef, LinkedPull]:
        """These pull requests, without those which do not exist or cannot be seen."""
        ...

    def pull_texts(self, repo: str, branch: str) -> tuple[str, ...]:
        """Title and text of each open pull request from the branch of the repository."""
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
    ) -> Snapshot | None:
        """Apply the effects in their order, and return a snapshot of the issue afterwards.

        `if_unchanged`: change no issue and return None if the issue is not as given. Only a tracker
        which applies in one step keeps the condition strictly; one by one, the issue may change
        between the look and the first effect, and in one request nobody looks at all.
        `reached` is called after each effect which is a call of its own.
        Raises the error of the first effect which failed. The snapshot shows the changes of the
        effects, even if reads lag.
        """
        ...

    def comment(self, issue: IssueRef, body: str) -> Comment: ...

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment: ...

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None: ...

    def close(self, issue: IssueRef) -> None: ...

    def archive(self, issue: IssueRef, comments: Collection[int]) -> None:
        """Take the comments off the thread of the issue, all of them in one step.

        No reading but `read_whole` has archived comments, and none counts them; the tracker does
        not use the ids again. To archive a comment twice, or a missing comment, is a success.
        """
        ...

    def read_whole(self, issue: IssueRef) -> Snapshot:
        """The issue with its archived comments, in the server's order: for people."""
        ...

    def rest(self, issue: Issue, until: ServerTime, rules: str) -> None:
        """Remember for `IssueQuery.awake_by` until when, by `rules`, no worker may claim the issue.

        An index of judgements, which only saves reading the issue: a change of the issue, the time
        and a query with different rules end the rest. Ignored if the issue is not as given.
        """
        ...

    def prepare(self, labels: Sequence[str], looks: Mapping[str, LabelLook] | None = None) -> None:
        """Create the missing labels, where labels must exist before use.

        `looks`: the looks of labels that are not to look as the tracker's settings say.
        """
        ...

    # About itself

    def login(self) -> str | None:
        """The name of our account; None if unknown. At most one request per process."""
        ...

    def standpoint(self) -> Standpoint:
        """The rights of our account; asked only of a tracker with accounts."""
        ...

    def missing_labels(self, labels: Sequence[str]) -> tuple[str, ...]:
        """The labels which do not exist yet, where labels must exist before use."""
        ...

    def misspelt_labels(self, labels: Sequence[str]) -> Mapping[str, str]:
        """The labels which the tracker spells in another case, with the tracker's spelling."""
        ...

    def flaws(self) -> tuple[str, ...]:
        """Damages of the tracker's own storage, in words."""
        ...


class OneAtATime:
    """The calls for many issues and effects, built from the calls for a single issue or effect.

    A tracker inherits from the class and overrides the calls with a better way; its traits name
    the better ways.
    """

    def read_many(self: Tracker, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Snapshot]:
        found: dict[IssueRef, Snapshot] = {}
        for issue in issues:
            try:
                found[issue] = self.read(issue)
            except NoSuchIssue:
                continue
        return found

    def find_snapshots(self: Tracker, queries: Sequence[IssueQuery]) -> tuple[FoundSnapshots, ...]:
        answers = []
        for query in queries:
            found = self.find(query)
            read = self.read_many([issue.ref for issue in found.issues])
            snapshots = tuple(read[issue.ref] for issue in found.issues if issue.ref in read)
            answers.append(FoundSnapshots(snapshots, found.now, found.more))
        return tuple(answers)

    def apply(
        self: Tracker,
        issue: IssueRef,
        effects: Sequence[Effect],
        *,
        if_unchanged: Issue | None = None,
        reached: Reached = unwatched,
    ) -> Snapshot | None:
        if if_unchanged is not None and self.read(issue).issue != if_unchanged:
            return None
        for effect in effects:
            apply_one(self, issue, effect, reached)
        return self.read(issue)

    def with_authors(self, snapshot: Snapshot) -> Snapshot:
        return snapshot

    def archive(self, issue: IssueRef, comments: Collection[int]) -> None:
        """Do nothing: a tracker without an archive has no `long_thread`."""

    def read_whole(self: Tracker, issue: IssueRef) -> Snapshot:
        return self.read(issue)

    def rest(self, issue: Issue, until: ServerTime, rules: str) -> None:
        """Do nothing: a tracker without an index finds resting issues like any other."""

    def pulls_of(
        self,
        issues: Sequence[IssueRef],  # noqa: ARG002 - there are none
    ) -> Mapping[IssueRef, tuple[LinkedPull, ...]]:
        return {}

    def pulls_named(self, pulls: Sequence[IssueRef]) -> Mapping[IssueRef, LinkedPull]:  # noqa: ARG002
        return {}

    def pull_texts(self, repo: str, branch: str) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def login(self) -> str | None:
        return None

    def standpoint(self) -> Standpoint:
        return Standpoint(believed="every account that can write to the tracker")

    def missing_labels(self, labels: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def misspelt_labels(self, labels: Sequence[str]) -> Mapping[str, str]:  # noqa: ARG002
        return {}

    def flaws(self) -> tuple[str, ...]:
        return ()


def apply_one(
    tracker: Tracker, issue: IssueRef, effect: Effect, reached: Reached = unwatched
) -> None:
    """Apply an effect with a call of its own, even if the tracker could apply several at once."""
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


class ProbeVerdict(StrEnum):
    """What a probe found of an assumption about the server."""

    HOLDS = "holds"
    DIFFERS = "differs"
    """It does not hold, and dibs is prepared for that, at some cost."""
    BREAKS = "breaks"
    """It does not hold, and claims depend on it."""
    UNKNOWN = "unknown"


class Probed(Struct, frozen=True):
    probe: str
    verdict: ProbeVerdict
    text: str


class Lag(Struct, frozen=True):
    """How long after the replies to writes a reader saw each of them."""

    over: str
    """By which API it read."""
    seconds: tuple[float, ...]


class Probing(Protocol):
    """Tries the adapter's assumptions about the server, on a scratch issue."""

    @property
    def plan(self) -> str:
        """What a run will write, for a person, before it does."""
        ...

    def run(self) -> Generator[Probed | Lag]:
        """Make the scratch issue, run the probes, and clean up, also if the run is broken off."""
        ...


class Allowance(Struct, frozen=True):
    """A limit for a span of time which the server counts itself, over all machines."""

    name: str
    limit: int
    used: int
    remaining: int
    resets_at: ServerTime


class LocalLimit(Struct, frozen=True):
    """A limit which the processes of the machine count and keep to, because the server does not."""

    name: str
    used: int
    most: int | None
    """None: the requests are only counted."""


class Shut(Struct, frozen=True):
    """No requests are sent to the server for now."""

    why: str
    wait_s: float


class BudgetReport(Struct, frozen=True):
    """The limits of a token, and the requests made with it."""

    place: str
    """The server."""
    now: ServerTime | None
    """None if the server was not asked, or did not answer."""
    allowances: tuple[Allowance, ...]
    """Empty if the server does not count, or did not answer."""
    kept: tuple[LocalLimit, ...]
    counted: Mapping[str, int]
    """The requests of this machine in the last hour, by their kind."""
    shut: Shut | None
    shared: bool
    """Whether all processes of this machine are counted, or this one alone."""
    trouble: Outage | None = None
    """Why the server did not answer."""


class Budgeted(Protocol):
    def budgets(self) -> tuple[BudgetReport, ...]:
        """A report for each token in use."""
        ...


_for_a_person: ContextVar[bool] = ContextVar("a person's word", default=False)


@contextmanager
def persons_word() -> Iterator[None]:
    """Mark the requests of the current thread, inside the context, as made for a person."""
    before = _for_a_person.set(True)
    try:
        yield
    finally:
        _for_a_person.reset(before)


def is_persons_word() -> bool:
    """Whether the current thread is inside `persons_word`: then a request need not wait in line."""
    return _for_a_person.get()


_in_haste: ContextVar[bool] = ContextVar("in haste", default=False)


@contextmanager
def haste() -> Iterator[None]:
    """Mark the requests of the current thread, inside the context, as of a caller who cannot wait.

    A refusal that may be a mistake is then raised at once, as Unconfirmed.
    """
    before = _in_haste.set(True)
    try:
        yield
    finally:
        _in_haste.reset(before)


def is_in_haste() -> bool:
    """Whether the current thread is inside `haste`."""
    return _in_haste.get()


PULLS_AT_ONCE = 100
"""For how many issues one request may ask for the pull requests."""
