"""Any tracker with signed marks: what we write is signed, and what nobody signed is not believed.

A mark without a signature that holds is handed on as a comment by somebody without write access, so
every rule that asks who wrote it applies to it as well.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from msgspec.structs import replace

from dibs.adapters.wrapping import Parts, WrappedTracker, wrapper
from dibs.core.ids import IssueRef
from dibs.core.issue import Comment, Issue, Thread
from dibs.core.plan import EditComment, Effect, PostComment
from dibs.core.signing import Keyring, believing, sign
from dibs.ports.tracker import Batching, FoundThreads, IssueQuery, OneTrip, ReadsMany, Tracker


class SignedTracker(WrappedTracker):
    def __init__(self, inner: Tracker, keyring: Keyring) -> None:
        super().__init__(inner)
        self._keyring = keyring

    def read(self, issue: IssueRef) -> Thread:
        return self._believing(self._inner.read(issue))

    def comment(self, issue: IssueRef, body: str) -> Comment:
        return self._inner.comment(issue, sign(body, issue, self._keyring))

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        return self._inner.edit_comment(issue, comment, sign(body, issue, self._keyring))

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


_PARTS: Parts = {
    Batching: _SignedBatching,
    OneTrip: _SignedOneTrip,
    ReadsMany: _SignedReadsMany,
}


def signed(tracker: Tracker, keyring: Keyring) -> Tracker:
    """The tracker, with marks that carry a signature."""
    return wrapper(SignedTracker, _PARTS, tracker)(tracker, keyring)
