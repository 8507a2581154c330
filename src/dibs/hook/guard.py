"""Looking at the issues that a push would close, before it goes out.

Two requests for a hundred issues: their cards, and their pull requests. What cannot be found out is
said, and is neither a yes nor a no: whoever asks decides what a doubt is worth.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from msgspec import Struct

from dibs.core.errors import DibsError, Outage, Unavailable
from dibs.core.following import LinkedPull, PullFate
from dibs.core.ids import IssueRef
from dibs.core.issue import Thread
from dibs.core.pipeline import Pipeline
from dibs.hook.rules import (
    Judged,
    Objection,
    Pusher,
    closed_by_commit,
    closed_by_pull,
    judge_push,
    tracked_issue,
)
from dibs.ports.leases import ShownLeases
from dibs.ports.system import Clock, Threads
from dibs.ports.tracker import Tracker, TrackerTraits
from dibs.services.claiming import Granting
from dibs.services.reading import follows_pulls, read_each

MOST_ISSUES = 100
_MOST_BRANCHES = 5
_Answer = TypeVar("_Answer")


class Guarded(Struct, frozen=True):
    """What came of looking."""

    issues: tuple[IssueRef, ...] = ()
    objections: tuple[Objection, ...] = ()
    remarks: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    """What could not be found out."""


def tracked_by(traits: TrackerTraits) -> tuple[str, ...]:
    """The repositories of a backlog; one without a name where it has none."""
    return traits.repos or (traits.repo,)


class Guarding:
    def __init__(
        self,
        tracker: Tracker,
        leases: ShownLeases,
        pipeline: Pipeline,
        *,
        granting: Granting,
        grace: timedelta,
    ) -> None:
        self._tracker = tracker
        self._leases = leases
        self._pipeline = pipeline
        self._granting = granting
        self._grace = grace

    def judge(
        self, messages: Sequence[str], bodies: Sequence[str], pusher: Pusher, numbered: str | None
    ) -> Guarded:
        """`numbered` is the repository that a bare number is in, if it is one of ours."""
        unchecked: list[str] = []
        texts = [*bodies, *self._open_texts(pusher, unchecked)]
        issues = tuple(self._closed(messages, texts, numbered))
        if len(issues) > MOST_ISSUES:
            unchecked.append(f"it closes {len(issues)} issues; only {MOST_ISSUES} were looked at")
        issues = issues[:MOST_ISSUES]
        if not issues:
            return Guarded(unchecked=tuple(unchecked))
        threads = {thread.issue.ref: thread for thread in read_each(self._tracker, issues)}
        if elsewhere := self._granting.objections():  # on GitHub that came with the issues
            return Guarded(issues, unchecked=(*unchecked, elsewhere[0].text))
        judged = list(self._judged(threads, pusher, unchecked))
        return Guarded(
            issues,
            tuple(objection for one in judged for objection in one.objections),
            tuple(remark for one in judged for remark in one.remarks),
            tuple(unchecked),
        )

    def _closed(
        self, messages: Sequence[str], texts: Sequence[str], numbered: str | None
    ) -> Iterator[IssueRef]:
        tracked = tracked_by(self._tracker.traits)
        named = (
            *(ref for message in messages for ref in closed_by_commit(message)),
            *(ref for text in texts for ref in closed_by_pull(text)),
        )
        meant = (tracked_issue(ref, tracked, numbered) for ref in named)
        yield from dict.fromkeys(ref for ref in meant if ref is not None)

    def _open_texts(self, pusher: Pusher, unchecked: list[str]) -> Iterator[str]:
        """Of the pull requests that are open from the branches which are pushed to."""
        pulls = follows_pulls(self._tracker)
        if pulls is None or not pusher.repo:
            return
        for branch in sorted(pusher.branches)[:_MOST_BRANCHES]:
            try:
                yield from pulls.pull_texts(pusher.repo, branch)
            except Outage as failure:
                unchecked.append(f"the pull requests of {branch} cannot be read: {failure}")

    def _judged(
        self, threads: Mapping[IssueRef, Thread], pusher: Pusher, unchecked: list[str]
    ) -> Iterator[Judged]:
        pulls = follows_pulls(self._tracker)
        known = None if pulls is None else self._pulls(pulls, tuple(threads))
        for ref, thread in threads.items():
            if not thread.complete:
                unchecked.append(f"{ref}: not all its comments could be read")
                continue
            linked = None if known is None else known.get(ref)
            if known is not None and linked is None:
                unchecked.append(f"{ref}: its pull requests cannot be read")
            standing = self._leases.standing(thread)
            linked = linked if linked is not None else _open_pulls(thread)
            yield judge_push(thread, standing, linked, self._pipeline, self._grace, pusher)

    @staticmethod
    def _pulls(pulls: Tracker, refs: Sequence[IssueRef]) -> dict[IssueRef, tuple[LinkedPull, ...]]:
        return dict(pulls.pulls_of(refs))


def _open_pulls(thread: Thread) -> tuple[LinkedPull, ...]:
    """As far as the reading tells: nothing of their branches."""
    opened_at = thread.issue.created_at
    return tuple(
        LinkedPull(pull.ref, pull.author, PullFate.OPEN, opened_at) for pull in thread.issue.pulls
    )


def in_time(work: Callable[[], _Answer], seconds: float, clock: Clock, threads: Threads) -> _Answer:
    """The answer, if it comes in time; raises Unavailable if not, and leaves the work to itself."""
    done = threading.Event()
    answers: list[_Answer] = []
    failures: list[DibsError] = []

    def run() -> None:
        try:
            answers.append(work())
        except DibsError as failure:
            failures.append(failure)
        finally:
            done.set()

    threads.start(run, "dibs-guarding")
    if not clock.wait(done, seconds):
        raise Unavailable(f"the tracker did not answer within {seconds:g} s")
    if failures:
        raise failures[0]
    if not answers:
        raise Unavailable("the tracker could not be asked")
    return answers[0]
