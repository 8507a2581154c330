"""Any tracker on which our cards are spelt as runners of the issue-claim state machine read them.

Only what goes out is spelt anew: every reader of cards reads this dialect anyway. A card that says
that its ending is shown goes out with a release beside it, since those runners know of no card that
changes.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import cast

from dibs.adapters.wrapping import Parts, WrappedTracker, wrapper
from dibs.core.agent_dialect import release_beside, spell
from dibs.core.durations import format_instant
from dibs.core.ids import IssueRef
from dibs.core.issue import Comment, Issue, Thread
from dibs.core.plan import EditComment, Effect, PostComment
from dibs.ports.tracker import Batching, OneTrip, Tracker

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


_PARTS: Parts = {Batching: _SpokenBatching, OneTrip: _SpokenOneTrip}


def spoken(tracker: Tracker, now: Now) -> Tracker:
    """The tracker, with cards that those runners read."""
    return wrapper(SpokenTracker, _PARTS, tracker)(tracker, now)
