"""Issues that follow their pull requests: merged moves them on, closed unmerged moves them back.

Found by reading state, whoever merged or closed: one list of a stage's issues and one request about
the pull requests of a hundred of them. The move itself is made under a lease, like any other: of
two that see the same merge one makes it, nobody moves what somebody holds, and a card says why.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from dibs.core.eligibility import ReasonCode
from dibs.core.errors import IssueLocked, NoSuchComment, NoSuchIssue, NotPermitted
from dibs.core.following import (
    LinkedPull,
    PullFate,
    decided_by,
    entered_at,
    opened_by_a_run,
    undecided,
)
from dibs.core.ids import HolderId, IssueRef
from dibs.core.issue import Issue, Thread
from dibs.core.pipeline import FollowsPull, Stage
from dibs.ports.tracker import PULLS_AT_ONCE, IssueQuery, Tracker
from dibs.services.claiming import Claimed, Claiming, ClaimOptions
from dibs.services.ending import Advancing, Finished
from dibs.services.keeping import Keeper
from dibs.services.reading import follows_pulls, walk

if TYPE_CHECKING:
    from dibs.services.backlog import Backlog

_log = logging.getLogger("dibs.following")
_MOST_REMEMBERED = 10_000

BOOKKEEPING_OVERLOOKS = frozenset(
    {
        ReasonCode.CLOSED,
        ReasonCode.PARKED,
        ReasonCode.BLOCKED,
        ReasonCode.ASSIGNED,
        ReasonCode.PULL_OPEN,
        ReasonCode.BACKING_OFF,
        ReasonCode.ATTEMPTS_SPENT,
        ReasonCode.WIP_LIMIT,
        ReasonCode.UNPROTECTED,
    }
)
"""What keeps workers from working an issue need not keep it from showing what has happened.

A merge closes the issue. A pause is obeyed, and so is whoever has the issue in hand.
"""


class Follow(StrEnum):
    MOVED_ON = "moved_on"
    MOVED_BACK = "moved_back"
    LABELLED = "labelled"
    """A pull request got the label of those that the fleet opens."""
    LEFT = "left"
    """Somebody has it, or a person said hands off."""


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
    """Where the next pass goes on in each stage, if this one ended at its limit."""

    @property
    def changed(self) -> tuple[Followed, ...]:
        return tuple(entry for entry in self.followed if entry.changed)


class _Watch(Struct, frozen=True):
    """One stage, and on whose behalf it is looked at."""

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
        self._not_ours: set[IssueRef] = set()
        """Pull requests that were looked at: no run opened them."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Those that follow pull requests, where the tracker has any."""
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
        """Look at `limit` issues of each such stage; `after` goes on where a pass ended."""
        stages, pulls = self.stages, follows_pulls(self._tracker)
        if not stages or pulls is None or not self._granting.keeps_house():
            return FollowReport()
        looked_at = 0
        followed: list[Followed] = []
        resume: dict[str, IssueRef] = {}
        for stage in stages:
            watch = _Watch(stage, holder, dry_run)
            issues = self._listed(stage, limit, after.get(stage.name) if after else None)
            looked_at += len(issues)
            for place in range(0, len(issues), PULLS_AT_ONCE):
                followed += self._page(issues[place : place + PULLS_AT_ONCE], watch, pulls)
            if len(issues) == limit:
                resume[stage.name] = issues[-1].ref
        return FollowReport(looked_at, tuple(followed), resume or None)

    def _listed(self, stage: Stage, limit: int, after: IssueRef | None) -> list[Issue]:
        """Closed ones too: a merge closes them."""
        query = IssueQuery((stage.label,), limit=limit, after=after, closed_too=True)
        return list(walk(self._tracker, query))

    def _page(self, issues: Sequence[Issue], watch: _Watch, pulls: Tracker) -> Iterator[Followed]:
        known = pulls.pulls_of([issue.ref for issue in issues])
        for issue in issues:
            try:
                yield from self._one(issue, known.get(issue.ref, ()), watch)
            except (NoSuchIssue, NoSuchComment, IssueLocked) as refusal:  # the others go on
                yield Followed(issue.ref, Follow.LEFT, str(refusal))

    def _one(self, issue: Issue, pulls: Sequence[LinkedPull], watch: _Watch) -> Iterator[Followed]:
        unlabelled = [pull for pull in pulls if self._may_be_ours(pull, watch.follows.authored)]
        if decided_by(pulls, None, issue_open=issue.open) is None and not unlabelled:
            return  # the cards need not be read to know that nothing is to be done
        thread = self._tracker.read(issue.ref)
        for pull in unlabelled:
            yield from self._label(pull, thread, watch)
        since = entered_at(watch.stage.name, thread.comments)
        left = undecided(pulls, watch.stage.name, thread.comments)
        ended = decided_by(left, since, issue_open=thread.issue.open)
        if ended is not None:
            yield self._move(thread, ended, watch)

    # Moving

    def _move(self, thread: Thread, pull: LinkedPull, watch: _Watch) -> Followed:
        ref, stage, merged = thread.issue.ref, watch.stage, pull.fate is PullFate.MERGED
        target = stage.next[0] if merged else watch.follows.back
        action = Follow.MOVED_ON if merged else Follow.MOVED_BACK
        note = f"{pull.ref} was {'merged' if merged else 'closed and not merged'}"
        if watch.dry_run:
            return Followed(ref, action, f"{note}; it goes to {target}")
        options = ClaimOptions(watch.holder, overlook=BOOKKEEPING_OVERLOOKS, seen=thread)
        claimed = self._claiming.claim(ref, stage, options)
        if not isinstance(claimed, Claimed):
            _log.info("%s: %s, and it is not free: %s", ref, note, claimed)
            return Followed(ref, Follow.LEFT, f"{note}, but it is not free to be moved")
        done = self._advancing.advance(self._keep(claimed), target, note)
        if not isinstance(done, Finished):
            return Followed(ref, Follow.LEFT, f"{note}, but the lease was lost: {done.why}")
        return Followed(ref, action, f"{note}; it went to {target}")

    # The fleet's own pull requests

    def _may_be_ours(self, pull: LinkedPull, authored: str) -> bool:
        wanted = bool(authored) and pull.fate is PullFate.OPEN and authored not in pull.labels
        return wanted and pull.ref not in self._not_ours

    def _label(self, pull: LinkedPull, thread: Thread, watch: _Watch) -> Iterator[Followed]:
        """Whose account it is proves little, since a person may share it: a run has to have been
        at work on the issue when it was opened.
        """
        label = watch.follows.authored
        if not (self._by_the_fleet(pull) and opened_by_a_run(pull, thread.comments)):
            self._leave(pull)
            return
        try:
            if not watch.dry_run:
                self._tracker.edit_labels(pull.ref, add=(label,))
        except (NoSuchIssue, NotPermitted) as refusal:  # none of our repositories, or not for us
            _log.info("%s gets no label: %s", pull.ref, refusal)
            self._leave(pull)
            return
        text = f"{pull.ref} is the fleet's own: it carries {label!r}"
        yield Followed(thread.issue.ref, Follow.LABELLED, text)

    def _leave(self, pull: LinkedPull) -> None:
        if len(self._not_ours) >= _MOST_REMEMBERED:
            self._not_ours.clear()
        self._not_ours.add(pull.ref)

    def _by_the_fleet(self, pull: LinkedPull) -> bool:
        login, tracker = pull.author.login.casefold(), self._tracker
        if login in self._pipeline.people.fleet:
            return True
        ours = tracker.login()
        return ours is not None and ours.casefold() == login
