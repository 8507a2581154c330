"""What became of an issue's pull requests, and where the issue goes after them.

Decides by the state of the pull requests that say they close the issue, and by its cards: a pull
request that ended before the run began which led the issue here belongs to an earlier life of it.
Refuses to know how a tracker tells which pull requests these are.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from enum import StrEnum

from msgspec import Struct

from dibs.core.card import CardState
from dibs.core.fold import (
    FoldRules,
    PostedCard,
    confirmed,
    counted_in_time,
    landed_at,
    read_marks,
)
from dibs.core.ids import IssueRef, ServerTime, StageName, later
from dibs.core.issue import Comment, Person
from dibs.core.lease import Outcome


class PullFate(StrEnum):
    OPEN = "open"
    MERGED = "merged"
    UNMERGED = "unmerged"
    """Closed, and nothing of it was merged."""


class LinkedPull(Struct, frozen=True):
    """A pull request that says it closes an issue, whatever became of it."""

    ref: IssueRef
    author: Person
    fate: PullFate
    opened_at: ServerTime
    ended_at: ServerTime | None = None
    """When it was merged or closed; None while it is open."""
    head: str = ""
    """The branch it comes from."""
    foreign: bool = False
    """That branch is in another repository than the pull request."""
    labels: frozenset[str] = frozenset()


def entered_at(stage: StageName, comments: Iterable[Comment]) -> ServerTime | None:
    """When the run began that last led the issue into the stage.

    None if no run did: then a person must have put it there.
    """
    led = [
        posted.created_at
        for posted in _advances(comments)
        if posted.card.ending is not None and posted.card.ending.next == stage
    ]
    return led[-1] if led else None


def undecided(
    pulls: Sequence[LinkedPull], stage: StageName, comments: Iterable[Comment]
) -> tuple[LinkedPull, ...]:
    """Those that did not end before a run led the issue out of the stage.

    An end decides once: whoever then puts the issue back by hand has said something else.
    """
    out = [posted.created_at for posted in _advances(comments) if posted.card.stage == stage]
    return tuple(
        pull for pull in pulls if not out or pull.ended_at is None or pull.ended_at > out[-1]
    )


def decided_by(
    pulls: Sequence[LinkedPull], since: ServerTime | None, *, issue_open: bool
) -> LinkedPull | None:
    """The pull request that decides where the issue goes; None while nothing is decided.

    A merged one decides, unless another is still open that the issue waits for: a merge that closed
    the issue leaves nothing to wait for. If none was merged, the one that was closed last decides,
    and only for an open issue: whoever closed the issue itself has said the last word.
    """
    over = [pull for pull in pulls if pull.ended_at is not None and _counts(pull.ended_at, since)]
    merged = [pull for pull in over if pull.fate is PullFate.MERGED]
    waiting = any(pull.fate is PullFate.OPEN for pull in pulls)
    if merged and not (waiting and issue_open):
        return max(merged, key=_end)
    if merged or waiting or not issue_open:
        return None
    return max(over, key=_end, default=None)


def opened_by_a_run(pull: LinkedPull, comments: Iterable[Comment]) -> bool:
    """Whether it was opened while a run was at work on the issue."""
    return any(
        posted.created_at <= pull.opened_at <= _over_at(posted) for posted in _leases(comments)
    )


def _advances(comments: Iterable[Comment]) -> Iterator[PostedCard]:
    return (
        posted
        for posted in _leases(comments)
        if counted_in_time(posted)
        and posted.card.ending is not None
        and posted.card.ending.outcome is Outcome.ADVANCED
    )


def _leases(comments: Iterable[Comment]) -> Iterator[PostedCard]:
    marks = read_marks(comments, FoldRules(max_ttl=timedelta.max))
    return (posted for posted in marks.cards if confirmed(posted.card))


def _over_at(posted: PostedCard) -> ServerTime:
    ended = posted.card.state is CardState.RELEASED
    return landed_at(posted) if ended else later(posted.updated_at, posted.card.ttl)


def _counts(ended_at: ServerTime, since: ServerTime | None) -> bool:
    return since is None or ended_at >= since


def _end(pull: LinkedPull) -> tuple[ServerTime, IssueRef]:
    assert pull.ended_at is not None, "only what is over is compared"
    return pull.ended_at, pull.ref
