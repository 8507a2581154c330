"""The fate of an issue's pull requests, and which of them decides where the issue goes.

Decides by the state of the pull requests that will close the issue, and by the issue's cards: a
pull request belongs to an earlier pass of the issue if it ended before the start of the run that
led the issue into its stage. A pull request by an account that may not write decides nothing,
unless a writer merged it: anybody may open one that names every issue. Refuses to know how a
tracker finds these pull requests.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from dibs.core.agent_dialect import CLAIM_PREFIX, RELEASE_PREFIX, fields_of
from dibs.core.card import CardState
from dibs.core.fold import ANY_TTL, PostedCard, counted_in_time, landed_at, read_marks
from dibs.core.ids import IssueRef, ServerTime, StageName, later
from dibs.core.issue import Comment, Person
from dibs.core.lease import Outcome
from dibs.core.pipeline import People


class PullFate(StrEnum):
    OPEN = "open"
    MERGED = "merged"
    UNMERGED = "unmerged"
    """Closed without a merge."""


class LinkedPull(Struct, frozen=True):
    """A pull request which closes an issue when merged: open, merged or closed without a merge."""

    ref: IssueRef
    author: Person
    fate: PullFate
    opened_at: ServerTime
    ended_at: ServerTime | None = None
    """When it was merged or closed; None while it is open."""
    head: str = ""
    """The branch of the pull request."""
    foreign: bool = False
    """The branch is in another repository than the pull request."""
    elsewhere: bool = False
    """The pull request is in another repository than the issue."""
    labels: frozenset[str] = frozenset()
    by_writer: bool = True
    """Whether the author may write to the repository."""


def heeded(pulls: Iterable[LinkedPull], people: People) -> tuple[LinkedPull, ...]:
    """The pull requests which may decide where the issue goes.

    The author is of the fleet or may write, or a writer has merged the pull request: one in another
    repository may have been merged by an account that may write only there.
    """
    return tuple(
        pull
        for pull in pulls
        if people.heeds(by_writer=pull.by_writer)
        or (pull.fate is PullFate.MERGED and not pull.elsewhere)
        or pull.author.login.casefold() in people.fleet
    )


_ADDRESS = re.compile(r"https?://[^/\s]+/([\w.-]+/[\w.-]+)/pull/([1-9][0-9]{0,17})", re.ASCII)


def named_pull(comments: Iterable[Comment]) -> IssueRef | None:
    """The pull request named by the newest release; the pull request's text may not name the issue.

    For the releases of the issue-claim state machine, also by runners of the published one.
    """
    release = _naming_release(comments)
    return None if release is None else release[0]


def _naming_release(comments: Iterable[Comment]) -> tuple[IssueRef, ServerTime] | None:
    """The pull request named by the newest release, and the start of the run: the claim with the
    release's key, or the release itself, if no claim has the key.
    """
    believed = (comment for comment in comments if comment.by_writer)
    newest_first = sorted(believed, key=lambda comment: comment.id, reverse=True)
    for place, comment in enumerate(newest_first):
        if comment.body.lstrip().startswith(RELEASE_PREFIX):
            found = _ADDRESS.match(fields_of(comment.body).get("pr", ""))
            if found is not None:
                earlier = newest_first[place + 1 :]
                claims = (one for one in earlier if one.body.lstrip().startswith(CLAIM_PREFIX))
                start = next((one for one in claims if _firing(one) == _firing(comment)), comment)
                return IssueRef(found[1], found[2]), start.created_at
    return None


def _firing(comment: Comment) -> tuple[str | None, str | None]:
    fields = fields_of(comment.body)
    return fields.get("codename"), fields.get("firing_id")


def entered_at(stage: StageName, comments: Sequence[Comment]) -> ServerTime | None:
    """Start of the last run which advanced the issue into the stage.

    If no card of dibs did, the start of the run whose release names a pull request. None without
    either: then a person must have moved the issue.
    """
    starts = [
        posted.created_at
        for posted in _advances(comments)
        if posted.card.ending is not None and posted.card.ending.next == stage
    ]
    if starts:
        return starts[-1]
    release = _naming_release(comments)
    return None if release is None else release[1]


def undecided(
    pulls: Sequence[LinkedPull], stage: StageName, comments: Iterable[Comment]
) -> tuple[LinkedPull, ...]:
    """The pull requests which are open, or ended after the start of the last run to advance the
    issue out of the stage.

    The end of a pull request decides once: if a person puts the issue back into the stage by hand,
    the person's word counts.
    """
    exits = [posted.created_at for posted in _advances(comments) if posted.card.stage == stage]
    return tuple(
        pull for pull in pulls if not exits or pull.ended_at is None or pull.ended_at > exits[-1]
    )


def decided_by(
    pulls: Sequence[LinkedPull], since: ServerTime | None, *, issue_open: bool
) -> LinkedPull | None:
    """The pull request which decides where the issue goes; None while the decision is open.

    Only pull requests which ended at or after `since` decide. The last merged pull request decides,
    but an open issue waits until no pull request is open; a closed issue need not wait, since a
    merge has closed the issue. If none was merged, the last closed pull request decides, and only
    for an open issue: a person who closed the issue has decided already.
    """
    over = [
        pull
        for pull in pulls
        if pull.ended_at is not None and (since is None or pull.ended_at >= since)
    ]
    merged = [pull for pull in over if pull.fate is PullFate.MERGED]
    waiting = any(pull.fate is PullFate.OPEN for pull in pulls)
    if merged and not (waiting and issue_open):
        return max(merged, key=_end)
    if merged or waiting or not issue_open:
        return None
    return max(over, key=_end, default=None)


def opened_by_a_run(pull: LinkedPull, comments: Iterable[Comment]) -> bool:
    """Whether the pull request was opened between start and end of a lease on the issue.

    A lease without an ending ends a ttl after the last edit of its card.
    """
    for posted in read_marks(comments, ANY_TTL).leases:
        ended = posted.card.state is CardState.RELEASED
        over_at = landed_at(posted) if ended else later(posted.updated_at, posted.card.ttl)
        if posted.created_at <= pull.opened_at <= over_at:
            return True
    return False


def _advances(comments: Iterable[Comment]) -> Iterator[PostedCard]:
    return (
        posted
        for posted in read_marks(comments, ANY_TTL).leases
        if counted_in_time(posted)
        and posted.card.ending is not None
        and posted.card.ending.outcome is Outcome.ADVANCED
    )


def _end(pull: LinkedPull) -> tuple[ServerTime, IssueRef]:
    assert pull.ended_at is not None, "only what is over is compared"
    return pull.ended_at, pull.ref
