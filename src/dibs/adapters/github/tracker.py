"""A GitHub repository as a tracker: REST and GraphQL as one, each for what it does in one request.

Lists, bids and single edits go over REST, where an unchanged list is free; readings of whole issues
and several changes at once go over GraphQL. Where GraphQL is not there, or its budget is spent, all
of it goes over REST, in more requests. Whose comments count is the same for every reader; a comment
of our own that would not count is an error and not a bid.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from msgspec.structs import replace

from dibs.adapters.github.batch import Trips, purpose_of, under_way
from dibs.adapters.github.cache import Known
from dibs.adapters.github.client import Purpose, Transport
from dibs.adapters.github.connections import REPLY_S
from dibs.adapters.github.control_log import ControlReadings
from dibs.adapters.github.graphql import FindingThreads, OverGraphql, Pulls
from dibs.adapters.github.replies import NoGraphql
from dibs.adapters.github.repository import RepositoryDoor
from dibs.adapters.github.rest import OverRest
from dibs.adapters.github.shapes import RestIssue, Translator, folded, rest_login
from dibs.adapters.github.trust import Believing, Judging, Viewer, is_mark
from dibs.core.card import Card, CardState, parse_mark
from dibs.core.errors import NoSuchIssue, NotPermitted, RateLimited
from dibs.core.events import Reached, unwatched
from dibs.core.following import LinkedPull
from dibs.core.ids import IssueRef
from dibs.core.issue import Comment, Draft, Issue, Thread
from dibs.core.labels import Effect, LabelLook
from dibs.core.signing import Keyring
from dibs.ports.tracker import (
    Applies,
    Found,
    FoundThreads,
    IssueQuery,
    Standpoint,
    TrackerTraits,
    apply_one,
)

_SETTLE = timedelta(seconds=2)
_GRAIN = timedelta(seconds=1)
_ENDED_BY_GITHUB = timedelta(seconds=10)
"""After so long GitHub gives up a request; it may have begun when we stopped waiting."""

Answer = TypeVar("Answer")


class GithubTracker:
    """One repository, for one token. Safe for many threads."""

    def __init__(
        self,
        transport: Transport,
        repository: str,
        *,
        looks: Mapping[str, LabelLook] | None = None,
        trusted: Collection[str] = (),
        graphql: bool = True,
        reply_s: float = REPLY_S,
        home: ControlReadings | None = None,
        keyring: Keyring | None = None,
        minds_pulls: bool = False,
    ) -> None:
        """`looks`: the labels of the pipeline, spelt as the settings spell them.

        `home`: of several repositories, the first one's control issue. `keyring`: for its log, and
        for telling which cards are nobody's; they are signed and verified outside. `minds_pulls`:
        others' pull requests keep us off an issue.
        """
        looks = looks or {}
        self._traits = TrackerTraits(
            name=f"github:{repository}",
            repo=repository,
            settle=_SETTLE,
            grain=_GRAIN,
            in_flight=timedelta(seconds=reply_s) + _ENDED_BY_GITHUB,
            applies=Applies.IN_ONE_REQUEST,
            shortlists=True,
            accounts=True,
            checks_itself=True,
            pulls=True,
        )
        self._transport = transport
        self._translator = Translator(repository, labels=looks, trusted=trusted)
        self._known = Known()
        self._wants_graphql, self._minds_pulls = graphql, minds_pulls
        door = RepositoryDoor(transport, repository)
        self._believing = believing = Believing(door, self._translator, keyring)
        self.control_readings = ControlReadings(self._translator, believing, keyring)
        self.rest = OverRest(transport, self._translator, self._known, looks, door, believing)
        self._graphql = OverGraphql(
            transport,
            self._translator,
            self._known,
            self.rest,
            believing,
            own=self.control_readings,
            home=home or self.control_readings,
            labels=tuple(looks),
        )
        self._finding = FindingThreads(self._graphql)
        self._trips = Trips(transport, self._translator, self._known, self.rest, self._graphql)
        self._pulls = Pulls(door, self._graphql, self._translator)
        self._viewer = Viewer(transport, door, self._translator, believing)

    @property
    def traits(self) -> TrackerTraits:
        together = self._graphql.at_once if self._has_graphql() else 1
        return replace(self._traits, reads_together=together)

    # Reading

    def find(self, query: IssueQuery) -> Found:
        return self.rest.find(query)

    def read(self, issue: IssueRef) -> Thread:
        ours = self._known.ours(self.rest.number(issue), self._transport.clock.now())
        # What is read of an issue that we bid for decides whether we hold it.
        purpose = Purpose.LOOK if ours is None else Purpose.HOLD
        return self._read(issue, purpose, holding=ours is CardState.HELD)

    def _read(self, issue: IssueRef, purpose: Purpose, *, holding: bool) -> Thread:
        judging = self._believing.judging(purpose, holding=holding)
        return self._either(
            lambda: self._graphql.read(issue, judging), lambda: self.rest.read(issue, judging)
        )

    def tally(self, labels: Sequence[str], *, closed_too: bool = False) -> Mapping[str, int]:
        if not labels:
            return {}
        return self._either(
            lambda: self._graphql.tally(labels, closed_too=closed_too),
            lambda: self.rest.tally(labels, closed_too=closed_too),
        )

    def read_many(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Thread]:
        return self._either(
            lambda: self._graphql.threads(issues), lambda: self._each_thread(issues)
        )

    def _has_graphql(self) -> bool:
        return self._speaks_graphql and self._transport.graphql_left()

    @property
    def _speaks_graphql(self) -> bool:
        """Whether it is there at all, spent or not."""
        there = self._graphql.understood and not self._transport.graphql_gone
        return self._wants_graphql and there

    def _each_thread(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Thread]:
        found: dict[IssueRef, Thread] = {}
        for issue in dict.fromkeys(issues):
            try:
                found[issue] = self.rest.read(issue, self._believing.judging(Purpose.DISCOVER))
            except NoSuchIssue:
                continue
        return found

    def find_threads(self, queries: Sequence[IssueQuery]) -> tuple[FoundThreads, ...]:
        if self._speaks_graphql:
            try:
                return self._finding.find_threads(
                    queries, [self.rest.position(query.after) for query in queries]
                )
            except NoGraphql:
                pass
        # Not where it is only spent: a hundred requests are no substitute for one point.
        return tuple(self._find_each_thread(query) for query in queries)

    def _find_each_thread(self, query: IssueQuery) -> FoundThreads:
        found = self.rest.find(query)
        read = self._each_thread([issue.ref for issue in found.issues])
        threads = tuple(read[issue.ref] for issue in found.issues if issue.ref in read)
        return FoundThreads(threads, found.now, found.more)

    def pulls_of(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, tuple[LinkedPull, ...]]:
        return self._either(lambda: self._pulls.of(issues), dict)

    def pull_texts(self, repo: str, branch: str) -> tuple[str, ...]:
        return self._pulls.texts(repo, branch)

    def _either(self, asked: Callable[[], Answer], instead: Callable[[], Answer]) -> Answer:
        """Over GraphQL, or over REST where it is not to be had. Nothing was done in that case."""
        if self._has_graphql():
            try:
                return asked()
            except NoGraphql:
                pass
            except RateLimited:
                if self._transport.graphql_left():
                    raise
        return instead()

    # Writing

    def create(self, draft: Draft) -> Issue:
        return self.rest.create(draft)

    def comment(self, issue: IssueRef, body: str) -> Comment:
        # Bids wait for the words of people and of those who hold, and not the other way round.
        bids = isinstance(parse_mark(body), Card)
        purpose = Purpose.CLAIM if bids else Purpose.FINISH
        if bids:
            self._insist_pulls_can_be_seen()
        if self._known.issue(self.rest.number(issue)) is None:
            # A pull request would take it, too: only what was seen as an issue is written on.
            self.rest.issue(issue, purpose)
        posted = self.rest.comment(issue, body, purpose)
        with under_way(issue):
            self._insist_believed(posted, purpose)
        return posted

    def _insist_pulls_can_be_seen(self) -> None:
        """A worker that waits is cheaper than two at work: REST does not tell of pull requests, so
        nothing new is begun while GraphQL is spent. What is held goes on.
        """
        wait_s = self._transport.graphql_back_in() if self._speaks_graphql else None
        if self._minds_pulls and wait_s is not None:
            raise RateLimited(
                f"{self._traits.repo}: whether somebody has a pull request for it cannot be seen, "
                "since nothing is left of the token's GraphQL budget",
                retry_after_s=max(wait_s, 1.0),
            )

    def _insist_believed(self, posted: Comment, purpose: Purpose) -> None:
        (judged,), _ = self._believing.judging(purpose).comments((posted,))
        if not judged.by_writer or (is_mark(posted.body) and self._others_know_better()):
            raise self.not_believed(posted.author)

    def _others_know_better(self) -> bool:
        """A token that is not told who may write may be one that may not: what GitHub says with our
        own comments proves nothing then, since all others look us up.
        """
        return self._believing.in_the_dark and self._viewer.may_write() is False

    def insist_made_counts(self, made: RestIssue) -> None:
        """Raises if an issue that we made would count for nothing."""
        if not self.rest.believes(made, Purpose.FINISH) or self._others_know_better():
            raise self.not_believed(rest_login(made.user))

    def believed(self, posted: Comment) -> Comment:
        """An entry of the control issue, if it counts."""
        self._insist_believed(posted, Purpose.FINISH)
        return replace(posted, by_writer=True)

    def judging(self, purpose: Purpose) -> Judging:
        return self._believing.judging(purpose)

    def not_believed(self, author: str) -> NotPermitted:
        """What we write ourselves would count for nothing."""
        how = (
            "is not among those that [github] trusted names"
            if self._translator.trusts_by_name
            else "may not write to the repository, as far as GitHub tells"
        )
        return NotPermitted(
            f"what {author!r} writes counts for nothing in {self._traits.repo}: the account "
            f"{how}, so its cards would be a stranger's; give it write access, or name all "
            "accounts of the fleet in [github] trusted of every worker's dibs.toml"
        )

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        return self.rest.edit_comment(issue, comment, body)

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        self.rest.edit_labels(issue, add, remove)

    def close(self, issue: IssueRef) -> None:
        self.rest.close(issue)

    def prepare(self, labels: Sequence[str]) -> None:
        self.rest.prepare(labels)

    def apply(
        self,
        issue: IssueRef,
        effects: Sequence[Effect],
        *,
        if_unchanged: Issue | None = None,  # noqa: ARG002 - a look before costs as much again
        reached: Reached = unwatched,  # noqa: ARG002 - they are one request
    ) -> Thread:
        purpose = purpose_of(effects)
        if not effects:
            return self._read(issue, purpose, holding=False)
        return self._either(
            lambda: self._trips.trip(
                issue,
                effects,
                look=lambda: self._read(issue, purpose, holding=True),
                judging=self._believing.judging(purpose, holding=True),
                insist_believed=self._insist_believed,
            ),
            lambda: self._one_by_one(issue, effects, purpose),
        )

    def _one_by_one(self, issue: IssueRef, effects: Sequence[Effect], purpose: Purpose) -> Thread:
        first, *others = effects
        apply_one(self, issue, first)
        with under_way(issue):
            for effect in others:
                apply_one(self, issue, effect)
            return self._read(issue, purpose, holding=True)

    # The control issue

    def find_control(self) -> None:
        """One request instead of three, where GraphQL is to be had; what it finds is kept."""
        self._either(self._graphql.read_control, lambda: None)

    # About itself

    def login(self) -> str | None:
        return self._viewer.login()

    def standpoint(self) -> Standpoint:
        return self._viewer.standpoint()

    def missing_labels(self, labels: Sequence[str]) -> tuple[str, ...]:
        there = {folded(label.name) for label in self.rest.labels()}
        return tuple(label for label in labels if folded(label) not in there)

    def flaws(self) -> tuple[str, ...]:
        """What keeps the repository from being a backlog, or makes it a dear one."""
        found = self._viewer.flaws()
        if self._wants_graphql and not (
            self._graphql.understood and self._transport.graphql_left()
        ):
            dear = (
                f"{self._traits.repo}: GraphQL is not to be had, so every reading takes several "
                "requests over REST, and linked pull requests are not seen"
            )
            return (*found, dear)
        return found
