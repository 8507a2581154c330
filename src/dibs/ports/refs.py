"""Refs of a git repository as registers that many machines swap.

Refs, and commits with a message; the meaning of a message is the caller's business.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""The id of the tree without files: in every repository, git has it built in."""


class Move(Struct, frozen=True):
    """A change of a ref: the ref, the new commit, and the commit expected before."""

    ref: str
    to: str | None
    """The new commit; None: the ref is deleted."""
    expected: str | None = None
    """The commit the ref must point to before; None: the ref must not exist."""
    guarded: bool = True
    """Whether `expected` is checked."""


class SwapRefused(Struct, frozen=True):
    """No ref was moved: another machine was first, or the server refused."""

    why: str
    sure: bool = True
    """False: our own move, sent twice on a bad connection, may have been in the way."""
    locked: str = ""
    """A lock file that was in the way, in words; empty if none was."""


class Refs(Protocol):
    """The refs of a repository. Every call is bounded in time and raises no error but Outage."""

    name: str
    identity: str
    """Different for every repository, and without secrets: a key for remembered facts."""
    atomic: bool
    """Whether several moves happen all or none."""
    guesses: bool
    """Whether a refused swap is so cheap that a swap is tried before a read."""

    def tips(self, folders: Sequence[str]) -> Mapping[str, str]:
        """Every ref in the folders (`refs/a/b/`) by its full name, and the commit of each."""
        ...

    def messages(self, commits: Iterable[str]) -> Mapping[str, str]:
        """The messages of commits which `tips` returned."""
        ...

    def commit(self, message: str, parent: str | None) -> str | None:
        """Make a commit without a ref. None if the parent is no longer available."""
        ...

    def swap(self, moves: Sequence[Move]) -> SwapRefused | None:
        """Move the refs, if every guarded ref is at its expected commit.

        After Unavailable the refs may have moved or not: read them, and compare with the commit.
        """
        ...

    def close(self) -> None: ...
