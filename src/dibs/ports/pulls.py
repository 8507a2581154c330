"""Pull requests of a host, as far as a chain of them needs: find, open, rewrite the text.

There is no compare-and-swap on a text here, because no host has one: whoever edits reads right
before, and changes only what is theirs.
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
        """Every pull request from this branch of this repository, open or not, newest first.

        Raises Outage; an answer that may not be whole is an Outage too, never an empty one.
        """
        ...

    def create(self, repo: str, *, title: str, body: str, head: str, base: str) -> PullRequest:
        """Open one. An empty base is the repository's default branch.

        If there is an open one from that branch into that base already, it is returned as it is.
        """
        ...

    def add_labels(self, pull: PullRequest, labels: Sequence[str]) -> None:
        """Those that it does not have. Labels that the repository does not have are made."""
        ...

    def edit_body(self, pull: PullRequest, *, body: str) -> None:
        """Replace the whole text."""
        ...
