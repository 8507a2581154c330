"""Which pull requests an issue has, where a tracker has pull requests."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from dibs.core.following import LinkedPull
from dibs.core.ids import IssueRef
from dibs.ports.tracker import Tracker

PULLS_AT_ONCE = 100
"""Of how many issues one request may ask for the pull requests."""


@runtime_checkable
class FollowsPulls(Protocol):
    """Optional: what became of the pull requests that say they close an issue."""

    def pulls_of(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, tuple[LinkedPull, ...]]:
        """Open or over, of as many issues as one request can ask about at a time.

        An issue that is gone, or of which nobody can say, is left out.
        """
        ...

    def pull_texts(self, repo: str, branch: str) -> tuple[str, ...]:
        """Title and text of each open pull request from this branch of this repository."""
        ...


def follows_pulls(tracker: Tracker) -> FollowsPulls | None:
    """The tracker, if it knows of pull requests."""
    able: object = tracker
    return able if isinstance(able, FollowsPulls) else None
