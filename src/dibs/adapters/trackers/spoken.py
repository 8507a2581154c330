"""Any tracker on which our cards are spelt as runners of the issue-claim state machine read them.

Only what goes out is spelt anew: every reader of cards reads this dialect anyway. A card that says
that its ending is shown goes out with a release beside it, since those runners know of no card that
changes. The optional capabilities are there exactly if the tracker within has them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, cast

from dibs.core.agent_dialect import release_beside, spell
from dibs.core.durations import format_instant
from dibs.core.ids import IssueRef
from dibs.core.issue import Comment, Draft, Issue, Thread
from dibs.core.plan import EditComment, Effect, PostComment
from dibs.ports.following import FollowsPulls
from dibs.ports.tracker import (
    Batching,
    Found,
    IssueQuery,
    OneTrip,
    ReadsMany,
    SelfChecking,
    Tracker,
    TrackerTraits,
)
from dibs.ports.whoami import Inspectable, Whoami

Now = Callable[[], datetime]
"""Time of day, for people to read."""


class SpokenTracker:
    def __init__(self, inner: Tracker, now: Now) -> None:
        self._inner = inner
        self._now = now

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
        return self._inner.comment(issue, spell(body, self._ts()))

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        ts = self._ts()
        edited = self._inner.edit_comment(issue, comment, spell(body, ts))
        if (release := release_beside(body, ts)) is not None:
            self._inner.comment(issue, release)
        return edited

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        self._inner.edit_labels(issue, add=add, remove=remove)

    def close(self, issue: IssueRef) -> None:
        self._inner.close(issue)

    def prepare(self, labels: Sequence[str]) -> None:
        self._inner.prepare(labels)

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


def _handing_through(*names: str) -> type[SpokenTracker]:
    """A capability that writes no comments."""

    def method(name: str) -> Callable[..., Any]:
        def call(self: SpokenTracker, *args: Any, **kwargs: Any) -> Any:
            return getattr(self._inner, name)(*args, **kwargs)

        return call

    return type("_HandingThrough", (SpokenTracker,), {name: method(name) for name in names})


_PARTS: tuple[tuple[type, type[SpokenTracker]], ...] = (
    (Batching, _SpokenBatching),
    (OneTrip, _SpokenOneTrip),
    (ReadsMany, _handing_through("threads", "find_threads")),
    (SelfChecking, _handing_through("flaws")),
    (Whoami, _handing_through("login")),
    (Inspectable, _handing_through("standpoint", "missing_labels")),
    (FollowsPulls, _handing_through("pulls_of", "pull_texts")),
)


def spoken(tracker: Tracker, now: Now) -> Tracker:
    """The tracker, with cards that those runners read."""
    parts = tuple(part for capability, part in _PARTS if isinstance(tracker, capability))
    return _made_of(parts)(tracker, now)


@cache
def _made_of(parts: tuple[type[SpokenTracker], ...]) -> type[SpokenTracker]:
    return type("SpokenTracker", parts or (SpokenTracker,), {})
