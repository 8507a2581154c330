"""A GitHub repository as a tracker, over REST and GraphQL: each call takes the cheaper way.

Lists, bids and single edits go over REST, where an unchanged list is free. Readings of whole issues
and trips go over GraphQL. If GraphQL is missing, or its budget is spent, all calls go over REST, in
more requests; only lists with comments do not while the budget is spent. The same authors count for
every reader; if a comment of our own would not count, to post it is an error and not a bid.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

from msgspec.structs import replace

from dibs.adapters.github.batch import Trips, purpose_of, under_way
from dibs.adapters.github.client import Purpose, Transport
from dibs.adapters.github.connections import REPLY_S
from dibs.adapters.github.graphql import ControlReadings, FindingSnapshots, OverGraphql, Pulls
from dibs.adapters.github.replies import NoGraphql
from dibs.adapters.github.rest import OverRest
from dibs.adapters.github.shapes import RestIssue, Translator, folded, rest_login
from dibs.adapters.github.trust import Judging, RepositoryDoor, Viewer, WriterTrust, is_mark
from dibs.core.card import Card, CardState, parse_mark
from dibs.core.errors import NoSuchIssue, Outage, RateLimited
from dibs.core.events import Reached, unwatched
from dibs.core.following import LinkedPull
from dibs.core.ids import IssueRef
from dibs.core.issue import Comment, Issue, Snapshot
from dibs.core.labels import Effect, LabelLook
from dibs.core.signing import Keyring
from dibs.ports.tracker import (
    Applies,
    FoundSnapshots,
    IssueQuery,
    Standpoint,
    TrackerTraits,
    apply_one,
)

_SETTLE = timedelta(seconds=5)
"""GitHub promises nothing here. Others saw their own comments missing two seconds after the post,
and waited 5 to 10 s; in rare cases minutes, which no wait covers. `dibs doctor --live` measures."""
_GRAIN = timedelta(seconds=1)
MOST_COMMENTS = 2500
_ENDED_BY_GITHUB = timedelta(seconds=10)
"""GitHub gives up a request after this time, counted from when GitHub began with it, which may have
been as late as when we stopped waiting."""

Answer = TypeVar("Answer")


class GithubTracker(OverRest):
    """The tracker of a repository, with one token. Safe for many threads.

    Every call that is not here goes over REST.
    """

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
        minds_people: bool = False,
    ) -> None:
        """`looks`: the labels of the pipeline, spelt as in the settings.

        `home`: the control issue of the first of several repositories. `keyring`: to sign and
        verify the control issue's log, and to see which marks have no valid signature; marks on
        issues are signed and verified outside. `minds_people`: pull requests or edits of other
        accounts keep workers off, so no issue is claimed while neither can be read.
        """
        translator = Translator(repository, labels=looks or (), trusted=trusted)
        super().__init__(WriterTrust(RepositoryDoor(transport, translator), keyring), looks or {})
        self._traits = TrackerTraits(
            name=f"github:{repository}",
            repo=repository,
            settle=_SETTLE,
            grain=_GRAIN,
            in_flight=timedelta(seconds=reply_s) + _ENDED_BY_GITHUB,
            applies=Applies.IN_ONE_REQUEST,
            shortlists=True,
            accounts=True,
            label_history=True,
            checks_itself=True,
            pulls=True,
            most_comments=MOST_COMMENTS,
        )
        self._wants_graphql, self._minds_people = graphql, minds_people
        self.control_readings = own = ControlReadings(self.trust)
        self._graphql = OverGraphql(self, own=own, home=home or own)
        self._finding = FindingSnapshots(self._graphql)
        self._trips = Trips(self._graphql)
        self._pulls = Pulls(self._graphql)
        self._viewer = Viewer(self.trust, self._ask_for_reader)

    @property
    def traits(self) -> TrackerTraits:
        together = self._graphql.at_once if self._has_graphql() else 1
        return replace(self._traits, reads_together=together)

    # Reading

    def read(self, issue: IssueRef) -> Snapshot:
        own_card = self._ids.own_card(self.number(issue), self._transport.clock.now())
        # A reading of an issue that we bid for decides whether we hold it.
        purpose = Purpose.LOOK if own_card is None else Purpose.HOLD
        return self._read(issue, purpose, holding=own_card is CardState.HELD)

    def _read(self, issue: IssueRef, purpose: Purpose, *, holding: bool) -> Snapshot:
        judging = Judging(self.trust, purpose, holding=holding)
        return self._either(
            lambda: self._graphql.read(issue, judging), lambda: self.read_pages(issue, judging)
        )

    def tally(self, labels: Sequence[str], *, closed_too: bool = False) -> Mapping[str, int]:
        if not labels:
            return {}
        return self._either(
            lambda: self._graphql.tally(labels, closed_too=closed_too),
            lambda: OverRest.tally(self, labels, closed_too=closed_too),
        )

    def read_whole(self, issue: IssueRef) -> Snapshot:
        return self.read(issue)

    def read_many(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Snapshot]:
        return self._either(
            lambda: self._graphql.snapshots(issues), lambda: self._each_snapshot(issues)
        )

    def with_authors(self, snapshot: Snapshot) -> Snapshot:
        judged = Judging(self.trust, Purpose.HOLD, holding=True).everybody(snapshot)
        if self.door.private is None:  # only a GraphQL reading tells
            with suppress(Outage):
                self.door.told()
        return replace(judged, public=not self.door.private)

    def _has_graphql(self) -> bool:
        return self._speaks_graphql and self._transport.graphql_left()

    @property
    def _speaks_graphql(self) -> bool:
        """Whether the server has GraphQL and the settings want GraphQL, even without budget."""
        offered = self._graphql.understood and not self._transport.graphql_gone
        return self._wants_graphql and offered

    def _each_snapshot(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Snapshot]:
        found: dict[IssueRef, Snapshot] = {}
        for issue in dict.fromkeys(issues):
            with suppress(NoSuchIssue):
                found[issue] = self.read_pages(issue, Judging(self.trust, Purpose.DISCOVER))
        return found

    def find_snapshots(self, queries: Sequence[IssueQuery]) -> tuple[FoundSnapshots, ...]:
        if self._speaks_graphql:
            with suppress(NoGraphql):
                positions = [self.position(query.after) for query in queries]
                return self._finding.find_snapshots(queries, positions)
        # Over REST only if GraphQL is missing, not if its budget is spent: a hundred requests are
        # no substitute for one point.
        answers = []
        for query in queries:
            found = self.find(query)
            read = self._each_snapshot([issue.ref for issue in found.issues])
            snapshots = tuple(read[issue.ref] for issue in found.issues if issue.ref in read)
            answers.append(FoundSnapshots(snapshots, found.now, found.more))
        return tuple(answers)

    def pulls_of(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, tuple[LinkedPull, ...]]:
        return self._either(lambda: self._pulls.of(issues), dict)

    def pulls_named(self, pulls: Sequence[IssueRef]) -> Mapping[IssueRef, LinkedPull]:
        return self._either(lambda: self._pulls.named(pulls), dict)

    def pull_texts(self, repo: str, branch: str) -> tuple[str, ...]:
        return self._pulls.texts(repo, branch)

    def _either(
        self, over_graphql: Callable[[], Answer], over_rest: Callable[[], Answer]
    ) -> Answer:
        """Over GraphQL; over REST if GraphQL is missing or the GraphQL budget is spent.

        After NoGraphql or RateLimited no change was made, and REST may begin from the start.
        """
        if self._has_graphql():
            try:
                return over_graphql()
            except NoGraphql:
                pass
            except RateLimited:
                if self._transport.graphql_left():
                    raise
        return over_rest()

    # Writing

    def comment(self, issue: IssueRef, body: str) -> Comment:
        # Bids have a lower priority than comments by people and by holders.
        bids = isinstance(parse_mark(body), Card)
        purpose = Purpose.CLAIM if bids else Purpose.FINISH
        if bids and self._minds_people and self._speaks_graphql:
            # REST returns neither pull requests nor edits, so no bid is made while the GraphQL
            # budget is spent: a worker that waits is cheaper than two at work. Leases already held
            # go on.
            wait_s = self._transport.graphql_back_in()
            if wait_s is not None:
                raise RateLimited(
                    f"{self._traits.repo}: open pull requests and edits cannot be read, since "
                    "nothing is left of the token's GraphQL budget",
                    retry_after_s=max(wait_s, 1.0),
                )
        if bids:
            self._viewer.insist_counts()  # before the first comment: nobody would clean it up
        if self._ids.issue(self.number(issue)) is None:
            # The same path also comments on a pull request, so make sure that this is an issue.
            self.issue(issue, purpose)
        posted = self.post_comment(issue, body, purpose)
        with under_way(issue):
            self._insist_believed(posted, purpose)
        return posted

    def _insist_believed(self, posted: Comment, purpose: Purpose) -> None:
        """Raises NotPermitted if the comment that we posted does not count."""
        (judged,), _ = Judging(self.trust, purpose).comments((posted,))
        if not judged.by_writer or (is_mark(posted.body) and self._cannot_write_after_all()):
            raise self._viewer.not_believed(posted.author)

    def _cannot_write_after_all(self) -> bool:
        """Whether GitHub refused our lookup and our account may not write.

        Then the association on our own comments proves no right to write, since readers with
        another token look our account up.
        """
        return self.trust.lookups_refused and self._viewer.may_write() is False

    def insist_made_counts(self, made: RestIssue) -> None:
        """Raises NotPermitted if an issue that we made does not count, since we may not write."""
        if not self.believes(made, Purpose.FINISH) or self._cannot_write_after_all():
            raise self._viewer.not_believed(rest_login(made.user))

    def believed(self, posted: Comment) -> Comment:
        """Our entry on the control issue, with `by_writer` set; NotPermitted if we do not count."""
        self._insist_believed(posted, Purpose.FINISH)
        return replace(posted, by_writer=True)

    def apply(
        self,
        issue: IssueRef,
        effects: Sequence[Effect],
        *,
        if_unchanged: Issue | None = None,  # noqa: ARG002 - a look before costs as much again
        reached: Reached = unwatched,  # noqa: ARG002 - they are one request
    ) -> Snapshot:
        purpose = purpose_of(effects)
        if not effects:
            return self._read(issue, purpose, holding=False)

        def one_by_one() -> Snapshot:
            first, *later = effects
            apply_one(self, issue, first)
            with under_way(issue):
                for effect in later:
                    apply_one(self, issue, effect)
                return self._read(issue, purpose, holding=True)

        return self._either(
            lambda: self._trips.trip(
                issue,
                effects,
                look=lambda: self._read(issue, purpose, holding=True),
                judging=Judging(self.trust, purpose, holding=True),
                insist_believed=self._insist_believed,
            ),
            one_by_one,
        )

    # The control issue

    def find_control(self) -> None:
        """Read the control issue's log into `control_readings`, if GraphQL is to be had.

        One request; over REST the same takes three.
        """
        self._either(self._graphql.read_control, lambda: None)

    # About itself

    def _ask_for_reader(self) -> None:
        self._either(self._graphql.read_reader, lambda: None)

    def login(self) -> str | None:
        return self._viewer.login()

    def standpoint(self) -> Standpoint:
        return self._viewer.standpoint()

    def missing_labels(self, labels: Sequence[str]) -> tuple[str, ...]:
        existing = {folded(label.name) for label in self.labels()}
        return tuple(label for label in labels if folded(label) not in existing)

    def misspelt_labels(self, labels: Sequence[str]) -> Mapping[str, str]:
        self.labels()
        spelt = {label: self._ids.spelling(label) for label in labels}
        return {label: other for label, other in spelt.items() if other != label}

    def flaws(self) -> tuple[str, ...]:
        """Why the repository cannot be a backlog, or is an expensive backlog."""
        found = self._viewer.flaws()
        if self._wants_graphql and not self._has_graphql():
            dear = (
                f"{self._traits.repo}: GraphQL is not to be had, so every reading takes several "
                "requests over REST, and linked pull requests are not seen"
            )
            return (*found, dear)
        return found
