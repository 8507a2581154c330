"""Any tracker with signed marks: what we write is signed, and what nobody signed is not believed.

A mark without a signature that holds is handed on as a comment by somebody without write access, so
every rule that asks who wrote it applies to it as well. The optional capabilities are there exactly
if the tracker within has them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import cast

from dibs.core.following import LinkedPull
from dibs.core.ids import IssueRef
from dibs.core.issue import Comment, Draft, Issue, Thread
from dibs.core.plan import EditComment, Effect, PostComment
from dibs.core.signing import Keyring, believing, sign
from dibs.ports.following import FollowsPulls
from dibs.ports.tracker import (
    Batching,
    Found,
    FoundThreads,
    IssueQuery,
    OneTrip,
    ReadsFewer,
    ReadsMany,
    SelfChecking,
    Tracker,
    TrackerTraits,
)
from dibs.ports.whoami import Inspectable, Standpoint, Whoami


class SignedTracker:
    def __init__(self, inner: Tracker, keyring: Keyring) -> None:
        self._inner = inner
        self._keyring = keyring

    @property
    def traits(self) -> TrackerTraits:
        return self._inner.traits

    def find(self, query: IssueQuery) -> Found:
        return self._inner.find(query)

    def read(self, issue: IssueRef) -> Thread:
        return self._believing(self._inner.read(issue))

    def tally(self, labels: Sequence[str], *, closed_too: bool = False) -> Mapping[str, int]:
        return self._inner.tally(labels, closed_too=closed_too)

    def create(self, draft: Draft) -> Issue:
        return self._inner.create(draft)

    def comment(self, issue: IssueRef, body: str) -> Comment:
        return self._inner.comment(issue, sign(body, issue, self._keyring))

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        return self._inner.edit_comment(issue, comment, sign(body, issue, self._keyring))

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        self._inner.edit_labels(issue, add=add, remove=remove)

    def close(self, issue: IssueRef) -> None:
        self._inner.close(issue)

    def prepare(self, labels: Sequence[str]) -> None:
        self._inner.prepare(labels)

    def _believing(self, thread: Thread) -> Thread:
        return believing(thread, self._keyring)

    def _signed(self, issue: IssueRef, effects: Sequence[Effect]) -> tuple[Effect, ...]:
        return tuple(
            replace(effect, body=sign(effect.body, issue, self._keyring))
            if isinstance(effect, PostComment | EditComment)
            else effect
            for effect in effects
        )


class _SignedBatching(SignedTracker):
    def apply(
        self, issue: IssueRef, effects: Sequence[Effect], *, seen: Issue | None = None
    ) -> Thread | None:
        inner = cast("Batching", self._inner)
        thread = inner.apply(issue, self._signed(issue, effects), seen=seen)
        return None if thread is None else self._believing(thread)


class _SignedOneTrip(SignedTracker):
    def trip(self, issue: IssueRef, effects: Sequence[Effect]) -> Thread:
        inner = cast("OneTrip", self._inner)
        return self._believing(inner.trip(issue, self._signed(issue, effects)))


class _SignedReadsMany(SignedTracker):
    def threads(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Thread]:
        found = cast("ReadsMany", self._inner).threads(issues)
        return {issue: self._believing(thread) for issue, thread in found.items()}

    def find_threads(self, queries: Sequence[IssueQuery]) -> tuple[FoundThreads, ...]:
        answers = cast("ReadsMany", self._inner).find_threads(queries)
        return tuple(
            replace(answer, threads=tuple(self._believing(thread) for thread in answer.threads))
            for answer in answers
        )


# What says nothing of comments is handed through.


class _SignedSelfChecking(SignedTracker):
    def flaws(self) -> tuple[str, ...]:
        return cast("SelfChecking", self._inner).flaws()


class _SignedReadsFewer(SignedTracker):
    def at_once(self) -> int:
        return cast("ReadsFewer", self._inner).at_once()


class _SignedWhoami(SignedTracker):
    def login(self) -> str | None:
        return cast("Whoami", self._inner).login()


class _SignedInspectable(SignedTracker):
    def standpoint(self) -> Standpoint:
        return cast("Inspectable", self._inner).standpoint()

    def missing_labels(self, labels: Sequence[str]) -> tuple[str, ...]:
        return cast("Inspectable", self._inner).missing_labels(labels)


class _SignedFollowsPulls(SignedTracker):
    def pulls_of(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, tuple[LinkedPull, ...]]:
        return cast("FollowsPulls", self._inner).pulls_of(issues)

    def pull_texts(self, repo: str, branch: str) -> tuple[str, ...]:
        return cast("FollowsPulls", self._inner).pull_texts(repo, branch)


_PARTS: tuple[tuple[type, type[SignedTracker]], ...] = (
    (Batching, _SignedBatching),
    (OneTrip, _SignedOneTrip),
    (ReadsMany, _SignedReadsMany),
    (ReadsFewer, _SignedReadsFewer),
    (SelfChecking, _SignedSelfChecking),
    (Whoami, _SignedWhoami),
    (Inspectable, _SignedInspectable),
    (FollowsPulls, _SignedFollowsPulls),
)


def signed(tracker: Tracker, keyring: Keyring) -> Tracker:
    """The tracker, with marks that carry a signature."""
    parts = tuple(part for capability, part in _PARTS if isinstance(tracker, capability))
    return _made_of(parts)(tracker, keyring)


@cache
def _made_of(parts: tuple[type[SignedTracker], ...]) -> type[SignedTracker]:
    return type("SignedTracker", parts or (SignedTracker,), {})
