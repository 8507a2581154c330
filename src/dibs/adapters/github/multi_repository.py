"""Several repositories as one backlog, searched in the order of the settings.

An issue number without a repository may name an issue in each of them, so it is refused. New
issues are made in the first repository, whose control issue also has the fleet's log.
"""

from collections import ChainMap, Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from dibs.adapters.github.tracker import GithubTracker
from dibs.core.errors import BadReference, NoSuchIssue
from dibs.core.events import Reached, unwatched
from dibs.core.following import LinkedPull
from dibs.core.ids import IssueRef, ServerTime
from dibs.core.issue import Comment, Draft, Issue, Snapshot
from dibs.core.labels import Effect, LabelLook
from dibs.ports.tracker import Found, FoundSnapshots, IssueQuery, Standpoint, TrackerTraits


class SeveralRepositories:
    """A tracker over several `GithubTracker`s. Safe for many threads."""

    def __init__(self, trackers: Sequence[GithubTracker]) -> None:
        self._trackers = tuple(trackers)
        self._by_name = {tracker.traits.repo: tracker for tracker in trackers}
        names = tuple(self._by_name)
        self._traits = replace(
            trackers[0].traits, name=f"github:{','.join(names)}", repo="", repos=names
        )

    @property
    def traits(self) -> TrackerTraits:
        together = min(tracker.traits.reads_together for tracker in self._trackers)
        return replace(self._traits, reads_together=together)

    def _tracker_of(self, issue: IssueRef) -> GithubTracker:
        """The tracker of the issue's repository; raises BadReference or NoSuchIssue."""
        if not issue.repo:
            names = " and ".join(self._by_name)
            raise BadReference(str(issue), f"may be an issue in each of {names}")
        tracker = self._by_name.get(issue.repo)
        if tracker is None:
            raise NoSuchIssue(issue)
        return tracker

    # Finding: in the order of the repositories, from the one where the last search ended

    def find(self, query: IssueQuery) -> Found:
        taken: list[Issue] = []
        now: ServerTime | None = None
        more = False
        for tracker in self._trackers_from(query):
            wanted = _still_wanted(query, taken)
            found = tracker.find(self._part_for(query, tracker, wanted))
            now, more = found.now, found.more or (not wanted and bool(found.issues))
            taken += found.issues[:wanted]
            if more:
                break
        assert now is not None, "there is at least one repository"
        return Found(tuple(taken[query.skip :]), now, more)

    def find_snapshots(self, queries: Sequence[IssueQuery]) -> tuple[FoundSnapshots, ...]:
        taken: list[list[Snapshot]] = [[] for _ in queries]
        answers: list[FoundSnapshots | None] = [None for _ in queries]
        for tracker in self._trackers:
            asked = [
                place
                for place, query in enumerate(queries)
                if tracker in self._trackers_from(query) and _still_wanted(query, taken[place])
            ]
            parts = [
                self._part_for(queries[place], tracker, _still_wanted(queries[place], taken[place]))
                for place in asked
            ]
            for place, found in zip(asked, tracker.find_snapshots(parts), strict=True):
                taken[place] += found.snapshots
                # The repositories behind this one were not asked, and may have matching issues.
                last = tracker is self._trackers[-1]
                more = found.more or (not last and not _still_wanted(queries[place], taken[place]))
                wanted = tuple(taken[place][queries[place].skip :])
                answers[place] = FoundSnapshots(wanted, found.now, more)
        return tuple(answer for answer in answers if answer is not None)

    def _trackers_from(self, query: IssueQuery) -> tuple[GithubTracker, ...]:
        """The trackers to search: all, or from the repository of `query.after` on."""
        if query.after is None:
            return self._trackers
        return self._trackers[self._trackers.index(self._tracker_of(query.after)) :]

    def _part_for(self, query: IssueQuery, tracker: GithubTracker, left: int) -> IssueQuery:
        """The query for a repository: for at least one issue, to see whether any is left."""
        here = query.after is not None and query.after.repo == tracker.traits.repo
        return replace(query, skip=0, limit=max(1, left), after=query.after if here else None)

    def tally(self, labels: Sequence[str], *, closed_too: bool = False) -> Mapping[str, int]:
        counted: Counter[str] = Counter(dict.fromkeys(labels, 0))
        for tracker in self._trackers:
            counted.update(tracker.tally(labels, closed_too=closed_too))
        return dict(counted)

    def read_many(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Snapshot]:
        found: dict[IssueRef, Snapshot] = {}
        for tracker, mine in self._by_tracker(issues):
            found |= tracker.read_many(mine)
        return {issue: found[issue] for issue in issues if issue in found}

    def pulls_of(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, tuple[LinkedPull, ...]]:
        found: dict[IssueRef, tuple[LinkedPull, ...]] = {}
        for tracker, mine in self._by_tracker(issues):
            found |= tracker.pulls_of(mine)
        return found

    def pulls_named(self, pulls: Sequence[IssueRef]) -> Mapping[IssueRef, LinkedPull]:
        found: dict[IssueRef, LinkedPull] = {}
        for tracker, mine in self._by_tracker(pulls):
            found |= tracker.pulls_named(mine)
        return found

    def _by_tracker(
        self, issues: Sequence[IssueRef]
    ) -> Iterator[tuple[GithubTracker, list[IssueRef]]]:
        for tracker in self._trackers:
            mine = [issue for issue in issues if self._tracker_of(issue) is tracker]
            if mine:
                yield tracker, mine

    def pull_texts(self, repo: str, branch: str) -> tuple[str, ...]:
        """The pull requests into `repo`, or into the first repository if `repo` is not ours."""
        tracker = self._by_name.get(repo, self._trackers[0])
        return tracker.pull_texts(repo, branch)

    # One issue

    def read(self, issue: IssueRef) -> Snapshot:
        return self._tracker_of(issue).read(issue)

    def with_authors(self, snapshot: Snapshot) -> Snapshot:
        return self._tracker_of(snapshot.issue.ref).with_authors(snapshot)

    def create(self, draft: Draft) -> Issue:
        return self._trackers[0].create(draft)

    def comment(self, issue: IssueRef, body: str) -> Comment:
        return self._tracker_of(issue).comment(issue, body)

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        return self._tracker_of(issue).edit_comment(issue, comment, body)

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        self._tracker_of(issue).edit_labels(issue, add=add, remove=remove)

    def close(self, issue: IssueRef) -> None:
        self._tracker_of(issue).close(issue)

    def apply(
        self,
        issue: IssueRef,
        effects: Sequence[Effect],
        *,
        if_unchanged: Issue | None = None,
        reached: Reached = unwatched,
    ) -> Snapshot:
        return self._tracker_of(issue).apply(
            issue, effects, if_unchanged=if_unchanged, reached=reached
        )

    def archive(self, issue: IssueRef, comments: Collection[int]) -> None:
        self._tracker_of(issue).archive(issue, comments)

    def read_whole(self, issue: IssueRef) -> Snapshot:
        return self._tracker_of(issue).read_whole(issue)

    def rest(self, issue: Issue, until: ServerTime, rules: str) -> None:
        self._tracker_of(issue.ref).rest(issue, until, rules)

    # All of them

    def prepare(self, labels: Sequence[str], looks: Mapping[str, LabelLook] | None = None) -> None:
        for tracker in self._trackers:
            tracker.prepare(labels, looks)

    def flaws(self) -> tuple[str, ...]:
        return tuple(flaw for tracker in self._trackers for flaw in tracker.flaws())

    def missing_labels(self, labels: Sequence[str]) -> tuple[str, ...]:
        missing = (tracker.missing_labels(labels) for tracker in self._trackers)
        return tuple(dict.fromkeys(chain.from_iterable(missing)))

    def misspelt_labels(self, labels: Sequence[str]) -> Mapping[str, str]:
        return ChainMap(*(dict(tracker.misspelt_labels(labels)) for tracker in self._trackers))

    def login(self) -> str | None:
        return self._trackers[0].login()

    def standpoint(self) -> Standpoint:
        """Of the first repository without write access for us, or of the first of all.

        With the first doubt of any repository.
        """
        standpoints = [tracker.standpoint() for tracker in self._trackers]
        worst = next((point for point in standpoints if point.may_write is False), standpoints[0])
        return replace(worst, doubt=next((point.doubt for point in standpoints if point.doubt), ""))


def _still_wanted(query: IssueQuery, taken: Sequence[object]) -> int:
    """How many more issues the query wants, including the issues to skip."""
    return query.skip + query.limit - len(taken)
