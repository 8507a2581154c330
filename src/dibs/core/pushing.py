"""What git tells a pre-push hook, and which issues a text means that is pushed somewhere.

Decides how git's lines are read, in which repository a bare number is, and who a commit says made
it. Refuses to know what is in the commits: git does.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from dibs.core.ids import IssueRef

_OBJECT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://(?:[^/@]*@)?([^/:]*)(?::[0-9]*)?/(.*)", re.IGNORECASE)
_SCP = re.compile(r"(?:[^@/:]+@)?([^/:]{2,}):(?!//)(.*)")  # one letter would be a drive
_NAMED = re.compile(r"(?:^|/)([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+?)(?:\.git)?/*$")
_TRAILER = re.compile(r"^Agent-(Codename|Firing-Id):[ \t]{0,20}(\S{1,200})[ \t]*$", re.MULTILINE)
_BRANCH = "refs/heads/"


class NotGits(ValueError):
    """It is not what git writes to a pre-push hook."""


class RefUpdate(Struct, frozen=True):
    """One line of what is pushed."""

    source: str
    """Our name for it, as it was typed; empty if it is to be deleted."""
    commit: str
    target: str
    """The ref on the remote."""
    before: str
    """What the remote has there now."""

    @property
    def deletes(self) -> bool:
        return not self.commit.strip("0")

    @property
    def creates(self) -> bool:
        return not self.before.strip("0")

    @property
    def branch(self) -> str | None:
        """The branch on the remote that is written; None for tags and the like."""
        written = self.target.startswith(_BRANCH) and not self.deletes
        return self.target.removeprefix(_BRANCH) if written else None


def parse_updates(said: bytes) -> tuple[RefUpdate, ...]:
    """Git's lines. Raises NotGits for anything else."""
    lines = said.decode("utf-8", "surrogateescape").split("\n")
    if lines.pop():
        raise NotGits("the last line has no end")
    return tuple(_update(line) for line in lines)


def _update(line: str) -> RefUpdate:
    # What was typed may have spaces in it, as ":/some words" has; the rest cannot.
    words = line.rsplit(" ", 3)
    if len(words) != 4 or not all(_OBJECT.fullmatch(words[at]) for at in (1, 3)):
        raise NotGits(f"{line[:80]!r} is not a line about a ref")
    return RefUpdate(*words)


# Which issues are meant


def repository_at(address: str) -> str | None:
    """The `owner/repo` that a remote's address ends in; None for a folder of this machine."""
    place = _ADDRESS.match(address) or _SCP.match(address)
    if place is None or not place[1]:
        return None
    named = _NAMED.search(place[2].rstrip("/"))
    return named[1] if named else ""


def numbered_in(address: str, tracked: Sequence[str]) -> str | None:
    """In which of the tracked repositories a bare number is that is pushed there.

    In the one that is pushed to, or that it is a fork of by its name: what is pushed to a fork ends
    up there. A folder says nothing, so it is the only one that is tracked. None if it is in none.
    """
    only = tracked[0] if len(tracked) == 1 else None
    if only == "":
        return only  # a backlog that has no repositories
    named = repository_at(address)
    if named is None:
        return only
    alike = [one for one in tracked if one.casefold() == named.casefold()]
    forked = [one for one in tracked if _bare(one) == _bare(named)]
    found = alike or (forked if len(forked) == 1 else [])
    return found[0] if found else None


def _bare(repo: str) -> str:
    return repo.rpartition("/")[2].casefold()


def tracked_issue(ref: IssueRef, tracked: Sequence[str], numbered: str | None) -> IssueRef | None:
    """The issue as the tracker names it; None if it is not the tracker's."""
    if not ref.repo:
        return IssueRef(numbered, ref.key) if numbered is not None else None
    for repo in tracked:
        if repo.casefold() == ref.repo.casefold():
            return IssueRef(repo, ref.key)
    return None


# Who a commit says made it


def firing_in(message: str) -> tuple[str, str] | None:
    """Codename and firing id out of the trailers that a runner of the state machine writes."""
    said = {match[1]: match[2] for match in _TRAILER.finditer(message)}
    return (said["Codename"], said["Firing-Id"]) if len(said) > 1 else None
