"""Refs of a git repository as registers that many machines swap: their names, and the port.

`GitRemote` reaches a repository with git itself, `GithubRefs` through GitHub's API. Both know refs
and commits with a message; what a message means is not theirs to know.
"""

import hashlib
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from dibs.core.ids import IssueRef
from dibs.core.lease import Lease

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""The tree without files: git knows it without being told."""

_PLAIN = frozenset(string.ascii_letters + string.digits + "_-")
_LONGEST_PART = 80


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


class Names:
    """Where things are kept. Each ref has a folder of its own, so that it can be asked for alone.

    `leases/REPO/KEY/record` is the record of an issue and is never deleted. While a lease is held,
    `held/REPO/KEY/FENCE-RUN` says so: what is in flight can be listed without all that ever was.
    `stages/STAGE/slots` is moved by each grant under a limit.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.leases = f"{prefix}/leases/"
        self.held = f"{prefix}/held/"
        self._entry = re.compile(re.escape(self.held) + r"([^/]+/[^/]+)/[^/]+")

    def record(self, issue: IssueRef) -> str:
        return f"{self.leases}{_path(issue)}/record"

    def is_record(self, ref: str) -> bool:
        return ref.startswith(self.leases) and ref.endswith("/record")

    def entry(self, lease: Lease) -> str:
        return f"{self.held}{_path(lease.issue)}/{lease.fence}-{quoted(lease.run)}"

    def record_of(self, entry: str) -> str | None:
        """The record that an entry under `held` is about; None if it is none of ours."""
        found = self._entry.fullmatch(entry)
        return f"{self.leases}{found[1]}/record" if found else None

    def slots(self, stage: str) -> str:
        return f"{self.prefix}/stages/{quoted(stage)}/slots"


def folder_of(ref: str) -> str:
    return ref.rpartition("/")[0] + "/"


def quoted(text: str) -> str:
    """Any text as one part of a ref's name: legible where it can be, and never the same for two.

    Only letters, digits, `_` and `-` stand for themselves. Git forbids much of the rest somewhere
    (dots, `@{`, `~`), and a percent sign would have to be quoted again in an address.
    """
    if not text:
        return "="
    raw = text.encode("utf-8", "surrogatepass")
    name = "".join(sign if (sign := chr(byte)) in _PLAIN else f"={byte:02X}" for byte in raw)
    if len(name) <= _LONGEST_PART:
        return name
    # A file system takes names of so many bytes only. No short name has two signs in a row.
    return f"{name[:_LONGEST_PART]}=={hashlib.sha256(raw).hexdigest()}"


def _path(issue: IssueRef) -> str:
    return f"{quoted(issue.repo)}/{quoted(issue.key)}"
