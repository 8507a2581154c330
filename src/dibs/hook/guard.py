"""Checking the issues that a push would close, before the push goes out.

Makes two requests for a hundred issues: one for their cards, one for their pull requests. An issue
that the answer leaves out is read alone. The result lists what could not be checked; the caller
decides whether to push in such a case.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.errors import DibsError, IssueHidden, NoSuchIssue, Outage, Unavailable
from dibs.core.following import LinkedPull, PullFate
from dibs.core.ids import IssueRef
from dibs.core.pipeline import Pipeline
from dibs.hook.rules import (
    Objection,
    Pusher,
    closed_by_commit,
    closed_by_pull,
    judge_push,
    named_by_pull,
    tracked_issue,
)
from dibs.ports.leases import ShownLeases
from dibs.ports.system import Clock, Threads
from dibs.ports.tracker import Tracker, haste
from dibs.services.backlog import Granting
from dibs.services.reading import follows_pulls, read_each

MOST_ISSUES = 100
_MOST_BRANCHES = 5
_MOST_AGAIN = 20
_STEPS = 50
_Answer = TypeVar("_Answer")


class Guarded(Struct, frozen=True):
    issues: tuple[IssueRef, ...] = ()
    """The issues that the push would close and that were checked."""
    objections: tuple[Objection, ...] = ()
    remarks: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    """Descriptions of the checks that could not be made."""


class Guarding(Struct, frozen=True):
    """Finds the issues that a push would close, and judges the push for each of them."""

    tracker: Tracker
    leases: ShownLeases
    pipeline: Pipeline
    granting: Granting
    grace: timedelta

    @haste()
    def judge(
        self, messages: Sequence[str], bodies: Sequence[str], pusher: Pusher, numbered: str | None
    ) -> Guarded:
        """Judge a push by the texts of its commits and pull requests.

        `bodies`: texts of pull requests. `numbered`: the repository of bare numbers, or None.
        """
        # Which issues would the push close? Open pull requests from its branches count as well.
        pulls = follows_pulls(self.tracker)
        not_all = pulls and pusher.repo and len(pusher.branches) > _MOST_BRANCHES
        own_texts, unchecked = _texts_of_pulls(pulls, pusher)
        tracked = self.tracker.traits.repos or (self.tracker.traits.repo,)
        closed = (
            *(ref for message in messages for ref in closed_by_commit(message)),
            *(ref for text in (*bodies, *own_texts) for ref in closed_by_pull(text)),
        )
        issues = tuple(dict.fromkeys(_tracked(closed, tracked, numbered)))
        named = (ref for text in own_texts for ref in named_by_pull(text))
        # Any of them may be named by a pull request from a branch that was not looked at.
        pulls_for = issues if not_all else _tracked(named, tracked, numbered)
        pusher = replace(pusher, pulls_for=frozenset(pulls_for))
        if len(issues) > MOST_ISSUES:
            unchecked.append(f"it closes {len(issues)} issues; only {MOST_ISSUES} were looked at")
        issues = issues[:MOST_ISSUES]
        if not issues:
            return Guarded(unchecked=tuple(unchecked))

        snapshots = {snapshot.issue.ref: snapshot for snapshot in read_each(self.tracker, issues)}
        if elsewhere := self.granting.objections():  # on GitHub, read together with the issues
            return Guarded(unchecked=(*unchecked, elsewhere[0].text))

        # May this pusher close them?
        linked = None if pulls is None else pulls.pulls_of(tuple(snapshots))
        checked: list[IssueRef] = []
        objections: list[Objection] = []
        remarks: list[str] = []
        for ref, snapshot in snapshots.items():
            if not snapshot.complete:
                unchecked.append(f"{ref}: not all its comments could be read")
                continue
            if linked is not None and ref not in linked:
                unchecked.append(f"{ref}: its pull requests cannot be read")
            else:
                checked.append(ref)
            # The issue itself names its open pull requests, but not their branches.
            opened_at = snapshot.issue.created_at
            named_by_issue = tuple(
                LinkedPull(
                    pull.ref, pull.author, PullFate.OPEN, opened_at, by_writer=pull.by_writer
                )
                for pull in snapshot.issue.pulls
            )
            of_issue = (linked or {}).get(ref, named_by_issue)
            standing = self.leases.standing(snapshot)
            judged = judge_push(snapshot, standing, of_issue, self.pipeline, self.grace, pusher)
            objections += judged.objections
            remarks += judged.remarks
        absent, unread = self._look_again([ref for ref in issues if ref not in snapshots])
        unchecked += unread
        return Guarded(tuple(checked), tuple(objections), (*remarks, *absent), tuple(unchecked))

    def _look_again(self, left_out: Sequence[IssueRef]) -> tuple[list[str], list[str]]:
        """Sort what a reading of many issues left out: what is not there, and what is unread."""
        absent: list[str] = []
        unread: list[str] = []
        for ref in left_out[:_MOST_AGAIN]:
            try:
                self.tracker.read(ref)
                unread.append(f"{ref} was there at a second look only")
            except IssueHidden as hidden:
                unread.append(f"{ref} cannot be read: {hidden.why}")
            except NoSuchIssue as flaw:
                absent.append(str(flaw))
            except Outage as failure:
                unread.append(f"{ref} cannot be read: {failure}")
        if (more := len(left_out) - _MOST_AGAIN) > 0:
            unread.append(f"{more} more issues were not found")
        return absent, unread


def _texts_of_pulls(pulls: Tracker | None, pusher: Pusher) -> tuple[list[str], list[str]]:
    """The texts of open pull requests from the pushed branches, and what was not looked at."""
    texts: list[str] = []
    unchecked: list[str] = []
    if pulls is None or not pusher.repo:
        return texts, unchecked
    if (pushed := len(pusher.branches)) > _MOST_BRANCHES:
        unchecked.append(f"only {_MOST_BRANCHES} of its {pushed} branches were looked at")
    for branch in sorted(pusher.branches)[:_MOST_BRANCHES]:
        try:
            texts += pulls.pull_texts(pusher.repo, branch)
        except Outage as failure:
            unchecked.append(f"the pull requests of {branch} cannot be read: {failure}")
    return texts, unchecked


def _tracked(
    named: Iterable[IssueRef], tracked: Sequence[str], numbered: str | None
) -> Iterator[IssueRef]:
    found = (tracked_issue(ref, tracked, numbered) for ref in named)
    return (ref for ref in found if ref is not None)


def in_time(work: Callable[[], _Answer], seconds: float, clock: Clock, threads: Threads) -> _Answer:
    """The answer of `work`. Raises `Unavailable` after `seconds`; the work's thread goes on.

    The wait is made in steps. A step of more than its length is the delay of a busy or sleeping
    machine, not of the tracker, and does not count.
    """
    done = threading.Event()
    answers: list[_Answer] = []
    failure: DibsError = Unavailable("the tracker could not be asked")

    def run() -> None:
        nonlocal failure
        try:
            answers.append(work())
        except DibsError as flaw:
            failure = flaw
        finally:
            done.set()

    threads.start(run, "dibs-guarding")
    if not any(clock.wait(done, seconds / _STEPS) for _ in range(_STEPS)):
        raise Unavailable(f"the tracker did not answer within {seconds:g} s")
    if not answers:
        raise failure
    return answers[0]
