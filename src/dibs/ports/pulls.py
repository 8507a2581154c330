"""Pull requests of a host, as far as a chain of them needs: find, open, rewrite the text.

A text cannot be changed with compare-and-swap here, because no host offers it: an editor reads the
text right before, and changes only its own part.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct


class PullState(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    MERGED = "merged"


class PullRequest(Struct, frozen=True):
    repo: str
    """As `owner/repo`."""
    number: int
    url: str
    head: str
    """The branch it comes from."""
    base: str
    """The branch it goes into."""
    body: str
    state: PullState = PullState.OPEN
    labels: frozenset[str] = frozenset()


class PullRequests(Protocol):
    def find(self, repo: str, *, head: str) -> Sequence[PullRequest]:
        """Every pull request from the branch `head` of the repository, open or not, newest first.

        Raises Outage, also if the answer may be incomplete; never returns an empty answer then.
        """
        ...

    def create(self, repo: str, *, title: str, body: str, head: str, base: str) -> PullRequest:
        """Open a pull request. An empty base means the repository's default branch.

        If the host has an open pull request from `head` into `base` already, return it unchanged.
        """
        ...

    def add_labels(self, pull: PullRequest, labels: Sequence[str]) -> None:
        """Add the missing labels to the pull request. Creates labels which the repository lacks."""
        ...

    def edit_body(self, pull: PullRequest, *, body: str) -> None:
        """Replace the whole text."""
        ...
