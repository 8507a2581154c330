"""Refs of a git repository as registers that many machines swap.

Refs and commits with a message; what a message means is not theirs to know.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""The tree without files: git knows it without being told."""


class Move(Struct, frozen=True):
    """One ref, where it shall point, and what it must be found at."""

    ref: str
    to: str | None
    """None: the ref goes."""
    expected: str | None = None
    """The commit it must be at; None: it must not be there."""
    guarded: bool = True
    """Whether it matters what it is found at."""


class Refused(Struct, frozen=True):
    """Nothing was moved: somebody else was first, or the server would not."""

    why: str
    sure: bool = True
    """False: it may be our own move that was in the way, sent twice on a bad connection."""


class Refs(Protocol):
    """One repository. Every call is bounded in time and raises nothing but an Outage."""

    name: str
    identity: str
    """Told from every other repository's, with nothing secret in it: for what is remembered."""
    atomic: bool
    """Whether several moves are done together or not at all."""
    guesses: bool
    """Whether a refused swap is cheap enough to try one without having looked."""

    def tips(self, folders: Sequence[str]) -> Mapping[str, str]:
        """Every ref in these folders (`refs/a/b/`) by its full name, and the commit it is at."""
        ...

    def messages(self, commits: Iterable[str]) -> Mapping[str, str]:
        """Of commits that were found at a tip."""
        ...

    def commit(self, message: str, parent: str | None) -> str | None:
        """A new commit that no ref points at yet; None if its parent is not at hand any more."""
        ...

    def swap(self, moves: Sequence[Move]) -> Refused | None:
        """Move the refs if all that are guarded are found where they are expected.

        Unavailable leaves it open whether that was done: look, and compare with the commit.
        """
        ...

    def close(self) -> None: ...
