"""Several repositories as one backlog: each issue in its own, all of them searched in their order.

A number alone names an issue in every one of them, so it is refused. New issues are made in the
first repository, which is also where the fleet's own log is kept.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from dibs.adapters.github.tracker import GithubTracker
from dibs.core.errors import BadReference, NoSuchIssue
from dibs.core.events import Reached, unwatched
from dibs.core.following import LinkedPull
from dibs.core.ids import IssueRef, ServerTime
from dibs.core.issue import Comment, Draft, Issue, Thread
from dibs.core.labels import Effect
from dibs.ports.tracker import Found, FoundThreads, IssueQuery, Standpoint, TrackerTraits


class SeveralRepositories:
    """Safe for many threads, as its parts are."""

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

    def _of(self, issue: IssueRef) -> GithubTracker:
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
        for tracker in self._from(query):
            found = tracker.find(self._part(query, tracker, _left(query, taken)))
            now, more = found.now, found.more or (not _left(query, taken) and bool(found.issues))
            taken += found.issues[: _left(query, taken)]
            if more:
                break
        assert now is not None, "there is at least one repository"
        return Found(tuple(taken[query.skip :]), now, more)

    def find_threads(self, queries: Sequence[IssueQuery]) -> tuple[FoundThreads, ...]:
        taken: list[list[Thread]] = [[] for _ in queries]
        answers: list[FoundThreads | None] = [None for _ in queries]
        for tracker in self._trackers:
            asked = [
                place
                for place, query in enumerate(queries)
                if tracker in self._from(query) and _left(query, taken[place])
            ]
            parts = [
                self._part(queries[place], tracker, _left(queries[place], taken[place]))
                for place in asked
            ]
            for place, found in zip(asked, tracker.find_threads(parts), strict=True):
                taken[place] += found.threads
                # Repositories that were not asked any more may have some.
                last = tracker is self._trackers[-1]
                more = found.more or (not last and not _left(queries[place], taken[place]))
                wanted = tuple(taken[place][queries[place].skip :])
                answers[place] = FoundThreads(wanted, found.now, more)
        return tuple(answer for answer in answers if answer is not None)

    def _from(self, query: IssueQuery) -> tuple[GithubTracker, ...]:
        if query.after is None:
            return self._trackers
        return self._trackers[self._trackers.index(self._of(query.after)) :]

    def _part(self, query: IssueQuery, tracker: GithubTracker, left: int) -> IssueQuery:
        """What is asked of one repository: at least one, to see whether there is more."""
        here = query.after is not None and query.after.repo == tracker.traits.repo
        return replace(query, skip=0, limit=max(1, left), after=query.after if here else None)

    def tally(self, labels: Sequence[str], *, closed_too: bool = False) -> Mapping[str, int]:
        counted: Counter[str] = Counter(dict.fromkeys(labels, 0))
        for tracker in self._trackers:
            counted.update(tracker.tally(labels, closed_too=closed_too))
        return dict(counted)

    def read_many(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Thread]:
        found: dict[IssueRef, Thread] = {}
        for tracker in self._trackers:
            mine = [issue for issue in issues if self._of(issue) is tracker]
            if mine:
                found |= tracker.read_many(mine)
        return {issue: found[issue] for issue in issues if issue in found}

    def pulls_of(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, tuple[LinkedPull, ...]]:
        found: dict[IssueRef, tuple[LinkedPull, ...]] = {}
        for tracker in self._trackers:
            found |= tracker.pulls_of([one for one in issues if self._of(one) is tracker])
        return found

    def pull_texts(self, repo: str, branch: str) -> tuple[str, ...]:
        """The pull requests into that repository, or into the first if it is none of ours."""
        tracker = self._by_name.get(repo, self._trackers[0])
        return tracker.pull_texts(repo, branch)

    # One issue

    def read(self, issue: IssueRef) -> Thread:
        return self._of(issue).read(issue)

    def create(self, draft: Draft) -> Issue:
        return self._trackers[0].create(draft)

    def comment(self, issue: IssueRef, body: str) -> Comment:
        return self._of(issue).comment(issue, body)

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        return self._of(issue).edit_comment(issue, comment, body)

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        self._of(issue).edit_labels(issue, add=add, remove=remove)

    def close(self, issue: IssueRef) -> None:
        self._of(issue).close(issue)

    def apply(
        self,
        issue: IssueRef,
        effects: Sequence[Effect],
        *,
        if_unchanged: Issue | None = None,
        reached: Reached = unwatched,
    ) -> Thread:
        return self._of(issue).apply(issue, effects, if_unchanged=if_unchanged, reached=reached)

    # All of them

    def prepare(self, labels: Sequence[str]) -> None:
        for tracker in self._trackers:
            tracker.prepare(labels)

    def flaws(self) -> tuple[str, ...]:
        return self._all(lambda tracker: tracker.flaws())

    def missing_labels(self, labels: Sequence[str]) -> tuple[str, ...]:
        missing = self._all(lambda tracker: tracker.missing_labels(labels))
        return tuple(dict.fromkeys(missing))

    def _all(self, told: Callable[[GithubTracker], tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(one for tracker in self._trackers for one in told(tracker))

    def login(self) -> str | None:
        return self._trackers[0].login()

    def standpoint(self) -> Standpoint:
        """The worst of them."""
        told = [tracker.standpoint() for tracker in self._trackers]
        worst = next((one for one in told if one.may_write is False), told[0])
        return replace(worst, doubt=next((one.doubt for one in told if one.doubt), ""))


def _left(query: IssueQuery, taken: Sequence[object]) -> int:
    return query.skip + query.limit - len(taken)
