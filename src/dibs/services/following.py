"""Issues that follow their pull requests: merged moves them on, closed unmerged moves them back.

A pass reads state, so any account may have merged or closed the pull request. It costs one list of
a stage's issues, and one request about the pull requests of each hundred issues. The move is made
under a lease, like every move: of two workers that see the same merge only one moves the issue, an
issue with a holder stays, and a card gives the reason.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.bounded import Bounded
from dibs.core.eligibility import reasons_with
from dibs.core.errors import IssueLocked, NoSuchComment, NoSuchIssue, NotPermitted
from dibs.core.following import (
    LinkedPull,
    PullFate,
    decided_by,
    entered_at,
    heeded,
    named_pull,
    opened_by_a_run,
    undecided,
)
from dibs.core.ids import HolderId, IssueRef, ServerTime
from dibs.core.issue import Issue, Snapshot
from dibs.core.pipeline import FollowsPull, Stage
from dibs.ports.tracker import PULLS_AT_ONCE, IssueQuery
from dibs.services.claiming import Claimed, Claiming, ClaimOptions
from dibs.services.ending import Advancing, Finished
from dibs.services.keeping import Keeper
from dibs.services.reading import follows_pulls, walk

if TYPE_CHECKING:
    from dibs.services.backlog import Backlog

_log = logging.getLogger("dibs.following")
_MOST_REMEMBERED = 10_000
_Pulls = tuple[LinkedPull, ...]

BOOKKEEPING_OVERLOOKS = reasons_with(lambda meaning: meaning.bookkeeping)
"""Reasons that stop work on an issue, but not a move that only shows what has happened.

For example, a merge closes the issue. A pause is obeyed, and a present holder keeps the issue.
"""


class Follow(StrEnum):
    MOVED_ON = "moved_on"
    MOVED_BACK = "moved_back"
    LABELLED = "labelled"
    """A pull request of the fleet got the label for such pull requests (`authored`)."""
    LEFT = "left"
    """The issue could not be moved: held, paused, locked, deleted, or its lease was lost."""


class Followed(Struct, frozen=True):
    issue: IssueRef
    action: Follow
    text: str

    @property
    def changed(self) -> bool:
        return self.action is not Follow.LEFT


class FollowReport(Struct, frozen=True):
    looked_at: int = 0
    followed: tuple[Followed, ...] = ()
    resume_after: Mapping[str, IssueRef] | None = None
    """For each stage whose pass ended at the limit, the issue after which the next pass starts."""

    @property
    def changed(self) -> tuple[Followed, ...]:
        return tuple(entry for entry in self.followed if entry.changed)


class _Watch(Struct, frozen=True):
    """A stage which follows pull requests, and the holder which moves the issues."""

    stage: Stage
    holder: HolderId
    dry_run: bool

    @property
    def follows(self) -> FollowsPull:
        assert isinstance(self.stage.follows, FollowsPull), "only such stages are looked at"
        return self.stage.follows


class Following:
    def __init__(
        self,
        backlog: "Backlog",
        claiming: Claiming,
        keep: Callable[[Claimed], Keeper],
        advancing: Advancing,
    ) -> None:
        self._tracker = backlog.tracker
        self._pipeline = backlog.pipeline
        self._claiming = claiming
        self._keep = keep
        self._advancing = advancing
        self._granting = backlog.granting
        self._settled: set[IssueRef] = set()
        """Pull requests that get no label from us: labelled already, not ours, or not permitted."""
        self._named: Bounded[IssueRef, tuple[ServerTime, IssueRef | None]] = Bounded(
            _MOST_REMEMBERED
        )
        """Of issues that were read for it: which pull request a release names, as of when."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages with `follows` set; empty if the tracker has no pull requests."""
        if follows_pulls(self._tracker) is None:
            return ()
        return tuple(one for one in self._pipeline.stages if isinstance(one.follows, FollowsPull))

    def follow(
        self,
        holder: HolderId,
        *,
        limit: int = 1000,
        dry_run: bool = False,
        after: Mapping[str, IssueRef] | None = None,
    ) -> FollowReport:
        """Look at up to `limit` issues of each stage in `stages`.

        `after` is the `resume_after` of the pass before. `dry_run` reports the moves, makes none.
        """
        stages = self.stages
        if not stages or not self._granting.keeps_house():
            return FollowReport()
        looked_at = 0
        followed: list[Followed] = []
        resume: dict[str, IssueRef] = {}
        for stage in stages:
            watch = _Watch(stage, holder, dry_run)
            start = after.get(stage.name) if after else None
            # Closed issues as well: a merge closes them.
            query = IssueQuery((stage.label,), limit=limit, after=start, closed_too=True)
            issues = list(walk(self._tracker, query))
            looked_at += len(issues)
            for place in range(0, len(issues), PULLS_AT_ONCE):
                page = issues[place : place + PULLS_AT_ONCE]
                linked = self._linked(page)
                for issue in page:
                    try:
                        followed += self._follow_issue(issue, linked.get(issue.ref, ()), watch)
                    except (NoSuchIssue, NoSuchComment, IssueLocked) as refusal:
                        # Entries before the refusal stay, and the next issue is looked at.
                        followed.append(Followed(issue.ref, Follow.LEFT, str(refusal)))
            if len(issues) == limit:
                resume[stage.name] = issues[-1].ref
        return FollowReport(looked_at, tuple(followed), resume or None)

    def _linked(self, page: Sequence[Issue]) -> Mapping[IssueRef, _Pulls]:
        """The pull requests which announce to close each issue, as far as they are heeded; if none
        is open or decides, also the pull request named by the newest release on the issue.

        Such an issue is read, once until the issue changes.
        """
        found = self._tracker.pulls_of([issue.ref for issue in page])
        linked = {ref: heeded(pulls, self._pipeline.people) for ref, pulls in found.items()}
        alone: dict[IssueRef, Issue] = {}
        for issue in page:
            pulls = linked.get(issue.ref, ())
            waits = any(pull.fate is PullFate.OPEN for pull in pulls)
            decided = decided_by(pulls, None, issue_open=issue.open) is not None
            if issue.comment_count and not waits and not decided:
                alone[issue.ref] = issue
        unread = [
            ref
            for ref, issue in alone.items()
            if ref not in self._named or self._named[ref][0] != issue.updated_at
        ]
        for ref, snapshot in (self._tracker.read_many(unread) if unread else {}).items():
            self._named[ref] = (snapshot.issue.updated_at, named_pull(snapshot.comments))
        named = {ref: self._named[ref][1] for ref in alone if ref in self._named}
        return self._with_named(linked, named)

    def _with_named(
        self, linked: Mapping[IssueRef, _Pulls], named: Mapping[IssueRef, IssueRef | None]
    ) -> Mapping[IssueRef, _Pulls]:
        """The linked pull requests of each issue, and the one that its newest release names, if it
        is heeded and in a repository of the backlog.
        """
        repos = self._tracker.traits.repos or (self._tracker.traits.repo,)
        spelt = {repo.casefold(): repo for repo in repos}
        wanted: dict[IssueRef, IssueRef] = {}
        for ref, named_ref in named.items():
            if named_ref is not None and named_ref.repo.casefold() in spelt:
                pull = IssueRef(spelt[named_ref.repo.casefold()], named_ref.key)
                if all(one.ref != pull for one in linked.get(ref, ())):
                    wanted[ref] = pull
        found = self._tracker.pulls_named(tuple(set(wanted.values()))) if wanted else {}
        both = dict(linked)
        for ref, pull in wanted.items():
            if pull in found:
                one = replace(found[pull], elsewhere=pull.repo != ref.repo)
                both[ref] = (*linked.get(ref, ()), *heeded([one], self._pipeline.people))
        return both

    def _follow_issue(self, issue: Issue, pulls: _Pulls, watch: _Watch) -> Iterator[Followed]:
        """Label the fleet's open pull requests, then move the issue if a pull request decides."""
        stage = watch.stage
        unlabelled = self._unlabelled(pulls, watch)
        if decided_by(pulls, None, issue_open=issue.open) is None and not unlabelled:
            return  # nothing to do, and known without a request for the cards
        snapshot = self._tracker.read(issue.ref)
        named = {issue.ref: named_pull(snapshot.comments)}
        pulls = self._with_named({issue.ref: pulls}, named)[issue.ref]
        for pull in self._unlabelled(pulls, watch):
            yield from self._label(pull, snapshot, watch)
        since = entered_at(stage.name, snapshot.comments)
        left = undecided(pulls, stage.name, snapshot.comments)
        ended = decided_by(left, since, issue_open=snapshot.issue.open)
        if ended is None:
            return
        ref, merged = snapshot.issue.ref, ended.fate is PullFate.MERGED
        target = stage.next[0] if merged else watch.follows.back
        action = Follow.MOVED_ON if merged else Follow.MOVED_BACK
        note = f"{ended.ref} was {'merged' if merged else 'closed and not merged'}"
        if watch.dry_run:
            yield Followed(ref, action, f"{note}; it goes to {target}")
            return
        options = ClaimOptions(watch.holder, overlook=BOOKKEEPING_OVERLOOKS, seen=snapshot)
        claimed = self._claiming.claim(ref, stage, options)
        if not isinstance(claimed, Claimed):
            _log.info("%s: %s, and it is not free: %s", ref, note, claimed)
            yield Followed(ref, Follow.LEFT, f"{note}, but it is not free to be moved")
            return
        done = self._advancing.advance(self._keep(claimed), target, note)
        if isinstance(done, Finished):
            yield Followed(ref, action, f"{note}; it went to {target}")
        else:
            yield Followed(ref, Follow.LEFT, f"{note}, but the lease was lost: {done.why}")

    def _unlabelled(self, pulls: _Pulls, watch: _Watch) -> _Pulls:
        """The open pull requests which may have to get the label `authored`."""
        authored = watch.follows.authored
        return tuple(
            pull
            for pull in pulls
            if authored and pull.fate is PullFate.OPEN and authored not in pull.labels
            if pull.ref not in self._settled
        )

    def _label(self, pull: LinkedPull, snapshot: Snapshot, watch: _Watch) -> Iterator[Followed]:
        """Label a pull request that a run of the fleet opened.

        The author's account alone proves little, since a person may share the account: a run must
        have held the issue when the pull request was opened.
        """
        label, login = watch.follows.authored, pull.author.login.casefold()
        ours = login in self._pipeline.people.fleet
        if not ours:
            account = self._tracker.login()
            ours = account is not None and account.casefold() == login
        if not (ours and opened_by_a_run(pull, snapshot.comments)):
            self._remember(pull)
            return
        try:
            if not watch.dry_run:
                self._tracker.edit_labels(pull.ref, add=(label,))
                self._remember(pull)  # the tracker may not list the labels of each
        except (NoSuchIssue, NotPermitted) as refusal:  # not our repository, or no permission
            _log.info("%s gets no label: %s", pull.ref, refusal)
            self._remember(pull)
            return
        text = f"{pull.ref} is the fleet's own: it carries {label!r}"
        yield Followed(snapshot.issue.ref, Follow.LABELLED, text)

    def _remember(self, pull: LinkedPull) -> None:
        if len(self._settled) >= _MOST_REMEMBERED:
            self._settled.clear()
        self._settled.add(pull.ref)
