"""A tracker around a tracker: what a wrapper does not change is handed on to the one within.

The optional capabilities are there exactly if the tracker within has them, so that whoever asks a
wrapped tracker what it can do gets the same answer. Those that write comments are not here: what
becomes of a comment is what wrappers differ in.

Any tracker with its optional capabilities hidden, so that the plain path can be exercised.

Any tracker with signed marks: what we write is signed, and what nobody signed is not believed.

A mark without a signature that holds is handed on as a comment by somebody without write access, so
every rule that asks who wrote it applies to it as well.

Any tracker on which our cards are spelt as runners of the issue-claim state machine read them.

Only what goes out is spelt anew: every reader of cards reads this dialect anyway. A card that says
that its ending is shown goes out with a release beside it, since those runners know of no card that
changes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from dibs.core.agent_dialect import release_beside, spell
from dibs.core.durations import format_instant
from dibs.core.following import LinkedPull
from dibs.core.ids import IssueRef
from dibs.core.issue import Comment, Draft, Issue, Thread
from dibs.core.labels import EditComment, Effect, PostComment
from dibs.core.signing import Keyring, believing, sign
from dibs.ports.tracker import (
    Batching,
    FollowsPulls,
    Found,
    FoundThreads,
    Inspectable,
    IssueQuery,
    OneTrip,
    ReadsFewer,
    ReadsMany,
    SelfChecking,
    Standpoint,
    Tracker,
    TrackerTraits,
    Whoami,
)


class WrappedTracker:
    def __init__(self, inner: Tracker) -> None:
        self._inner = inner

    @property
    def traits(self) -> TrackerTraits:
        return self._inner.traits

    def find(self, query: IssueQuery) -> Found:
        return self._inner.find(query)

    def read(self, issue: IssueRef) -> Thread:
        return self._inner.read(issue)

    def tally(self, labels: Sequence[str], *, closed_too: bool = False) -> Mapping[str, int]:
        return self._inner.tally(labels, closed_too=closed_too)

    def create(self, draft: Draft) -> Issue:
        return self._inner.create(draft)

    def comment(self, issue: IssueRef, body: str) -> Comment:
        return self._inner.comment(issue, body)

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        return self._inner.edit_comment(issue, comment, body)

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        self._inner.edit_labels(issue, add=add, remove=remove)

    def close(self, issue: IssueRef) -> None:
        self._inner.close(issue)

    def prepare(self, labels: Sequence[str]) -> None:
        self._inner.prepare(labels)


class _ReadingMany(WrappedTracker):
    def threads(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Thread]:
        return cast("ReadsMany", self._inner).threads(issues)

    def find_threads(self, queries: Sequence[IssueQuery]) -> tuple[FoundThreads, ...]:
        return cast("ReadsMany", self._inner).find_threads(queries)


class _ReadingFewer(WrappedTracker):
    def at_once(self) -> int:
        return cast("ReadsFewer", self._inner).at_once()


class _CheckingItself(WrappedTracker):
    def flaws(self) -> tuple[str, ...]:
        return cast("SelfChecking", self._inner).flaws()


class _KnowingWho(WrappedTracker):
    def login(self) -> str | None:
        return cast("Whoami", self._inner).login()


class _Inspected(WrappedTracker):
    def standpoint(self) -> Standpoint:
        return cast("Inspectable", self._inner).standpoint()

    def missing_labels(self, labels: Sequence[str]) -> tuple[str, ...]:
        return cast("Inspectable", self._inner).missing_labels(labels)


class _FollowingPulls(WrappedTracker):
    def pulls_of(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, tuple[LinkedPull, ...]]:
        return cast("FollowsPulls", self._inner).pulls_of(issues)

    def pull_texts(self, repo: str, branch: str) -> tuple[str, ...]:
        return cast("FollowsPulls", self._inner).pull_texts(repo, branch)


Parts = Mapping[Any, type[WrappedTracker]]
"""A capability, and the class that has it around a tracker which has it."""

HANDED_ON: Parts = {
    ReadsMany: _ReadingMany,
    ReadsFewer: _ReadingFewer,
    SelfChecking: _CheckingItself,
    Whoami: _KnowingWho,
    Inspectable: _Inspected,
    FollowsPulls: _FollowingPulls,
}

Kind = TypeVar("Kind", bound=WrappedTracker)


def wrapper(kind: type[Kind], parts: Parts, tracker: Tracker) -> type[Kind]:
    """`kind` with every capability of the tracker: by its own `parts`, or else handed on."""
    all_parts = {**HANDED_ON, **parts}
    chosen = [part for capability, part in all_parts.items() if isinstance(tracker, capability)]
    chosen.sort(key=lambda part: not issubclass(part, kind))  # before what is only handed on
    return cast("type[Kind]", _made_of((*chosen, kind)))


@cache
def _made_of(parts: tuple[type[WrappedTracker], ...]) -> type[WrappedTracker]:
    return type(parts[-1].__name__, parts, {"__module__": parts[-1].__module__})


class PlainTracker(WrappedTracker):
    """What `Tracker` asks for, and no more."""


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


_SIGNED_PARTS: Parts = {
    Batching: _SignedBatching,
    OneTrip: _SignedOneTrip,
    ReadsMany: _SignedReadsMany,
}


def signed(tracker: Tracker, keyring: Keyring) -> Tracker:
    """The tracker, with marks that carry a signature."""
    return wrapper(SignedTracker, _SIGNED_PARTS, tracker)(tracker, keyring)


Now = Callable[[], datetime]
"""Time of day, for people to read."""


class SpokenTracker(WrappedTracker):
    def __init__(self, inner: Tracker, now: Now) -> None:
        super().__init__(inner)
        self._now = now

    def comment(self, issue: IssueRef, body: str) -> Comment:
        return self._inner.comment(issue, spell(body, self._ts()))

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        ts = self._ts()
        edited = self._inner.edit_comment(issue, comment, spell(body, ts))
        if (release := release_beside(body, ts)) is not None:
            self._inner.comment(issue, release)
        return edited

    def _ts(self) -> str:
        return format_instant(self._now().replace(microsecond=0))

    def _spelt(self, effects: Sequence[Effect]) -> Iterator[Effect]:
        ts = self._ts()
        for effect in effects:
            match effect:
                case PostComment(body):
                    yield PostComment(spell(body, ts))
                case EditComment(comment, body):
                    yield EditComment(comment, spell(body, ts))
                    if (release := release_beside(body, ts)) is not None:
                        yield PostComment(release)
                case _:
                    yield effect


class _SpokenBatching(SpokenTracker):
    def apply(
        self, issue: IssueRef, effects: Sequence[Effect], *, seen: Issue | None = None
    ) -> Thread | None:
        inner = cast("Batching", self._inner)
        return inner.apply(issue, tuple(self._spelt(effects)), seen=seen)


class _SpokenOneTrip(SpokenTracker):
    def trip(self, issue: IssueRef, effects: Sequence[Effect]) -> Thread:
        return cast("OneTrip", self._inner).trip(issue, tuple(self._spelt(effects)))


_SPOKEN_PARTS: Parts = {Batching: _SpokenBatching, OneTrip: _SpokenOneTrip}


def spoken(tracker: Tracker, now: Now) -> Tracker:
    """The tracker, with cards that those runners read."""
    return wrapper(SpokenTracker, _SPOKEN_PARTS, tracker)(tracker, now)
