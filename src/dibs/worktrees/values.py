"""What goes in and what comes out: working trees that are wanted, made, and cleared away.

Names of branches, folders, refs and files for one piece of work in several repositories.

Decides how a name is spelled; whether it is free, the caller finds out. Nothing here reads or
writes anything.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from urllib.parse import quote

from dibs.core.errors import Misuse


@dataclass(frozen=True, slots=True)
class WorktreeRequest:
    """One working tree that is wanted."""

    repo_name: str
    """What you call the repository; part of the folder's name, and the key of everything."""
    checkout_path: Path
    """A clone of it on this machine: with or without files of its own (bare)."""
    gh_repo: str = ""
    """`owner/repo`, for whoever opens pull requests; not used here."""
    base: str = "origin/main"
    """What the branch starts from."""


@dataclass(frozen=True, slots=True)
class WorktreeSpec:
    """A working tree that was made."""

    repo_name: str
    worktree_path: Path
    branch_name: str
    gh_repo: str
    checkout_path: Path


@dataclass(frozen=True, slots=True)
class Kept:
    """Work that would have gone with its working tree, and the ref that it is under now."""

    repo_name: str
    repository: Path
    """The folder that git keeps the repository in: the ref is there."""
    ref: str
    commit: str
    worktree_path: Path
    uncommitted: bool
    """Whether the commit was made to keep what nobody had committed."""

    def __str__(self) -> str:
        what = "what was not committed" if self.uncommitted else "what was not pushed"
        return (
            f"{self.repo_name}: {what} in {self.worktree_path} is kept as {self.ref} "
            f"in {self.repository}"
        )


@dataclass(frozen=True, slots=True)
class Left:
    """A working tree that was not removed, and why. Nothing in it was touched."""

    repo_name: str
    worktree_path: Path
    why: str

    def __str__(self) -> str:
        return f"{self.repo_name}: {self.worktree_path} was left as it is: {self.why}"


@dataclass(frozen=True, slots=True)
class CleanUp:
    """What became of working trees that nobody needs any more."""

    removed: tuple[Path, ...] = ()
    kept: tuple[Kept, ...] = ()
    left: tuple[Left, ...] = ()

    def __add__(self, other: "CleanUp") -> "CleanUp":
        return CleanUp(self.removed + other.removed, self.kept + other.kept, self.left + other.left)

    @property
    def told(self) -> tuple[str, ...]:
        """What somebody has to know, a line each."""
        return tuple(map(str, (*self.kept, *self.left)))


def together(cleanups: Iterable[CleanUp]) -> CleanUp:
    return sum(cleanups, CleanUp())


class BadWorktree(Misuse):
    """A working tree cannot be made there, or not like that."""

    code = "BAD_WORKTREE"
    hint = "look at what is there with: git worktree list"


class BranchTaken(BadWorktree):
    """The branch is checked out in another working tree."""

    code = "BRANCH_TAKEN"

    def __init__(self, repo_name: str, branch: str, where: Path) -> None:
        self.repo_name, self.branch, self.where = repo_name, branch, where
        super().__init__(f"{repo_name}: the branch {branch!r} is checked out at {where}")


BRANCH = "{agent}/{feature}-{epoch}"
"""The default: one name in every repository, new each time."""
RECOVERED = "refs/dibs/recovered"
"""Where work is kept that would have gone with its working tree."""

_FIELDS = frozenset({"agent", "feature", "repo", "epoch"})
# What `git check-ref-format` refuses, and what shells and people trip over.
_UNFIT = re.compile(r"[\x00-\x20\x7f~^:?*\[\]\\'\"`$&;|<>()!#{}/@]+")
_LONGEST = 100


@dataclass(frozen=True, slots=True)
class Naming:
    """How everything of one piece of work is called."""

    agent: str
    feature: str
    template: str = BRANCH

    def __post_init__(self) -> None:
        if not self.agent.strip() or not self.feature.strip():
            raise Misuse("a worktree is named after an agent and a feature; one of them is empty")
        try:
            named = {field for _, field, _, _ in Formatter().parse(self.template) if field}
            self.branch("repo", 0)
        except (ValueError, IndexError, KeyError, AttributeError) as flaw:
            named = {str(flaw)}
        if not named <= _FIELDS:
            raise Misuse(
                f"the branch {self.template!r} has fields other than {', '.join(sorted(_FIELDS))}"
            )
        if not fit_for_a_branch(self.branch("repo", 0)):
            raise Misuse(f"{self.template!r} is not a name that git has for a branch")

    @property
    def always_new(self) -> bool:
        """Whether a branch of this name is never one that is there already."""
        return "{epoch}" in self.template

    def branch(self, repo: str, epoch: int) -> str:
        return self.template.format(
            agent=part(self.agent), feature=part(self.feature), repo=part(repo), epoch=epoch
        )

    def folder(self, repo: str, epoch: int) -> str:
        return f"{part(self.agent)}-{part(repo)}-{part(self.feature)}-{epoch}"

    def session(self, epoch: int) -> str:
        return f"{part(self.agent)}-{part(self.feature)}-{epoch}"


def part(text: str) -> str:
    """A piece of a name, in every name the same: what does not fit becomes a dash."""
    plain = _UNFIT.sub("-", text.strip())
    plain = re.sub(r"\.{2,}|\.lock(?=$|/)", "-", plain).strip(".-")
    return plain[:_LONGEST].rstrip(".-") or "unnamed"


def fit_for_a_branch(name: str) -> bool:
    """Whether git would have it, so that a bad name is a clear error and no command line option."""
    pieces = name.split("/")
    return (
        bool(name)
        and not name.startswith("-")
        and name != "HEAD"
        and not re.search(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{", name)
        and not name.endswith(".")
        and all(one and not one.startswith(".") and not one.endswith(".lock") for one in pieces)
    )


def recovery_ref(branch: str, epoch: int, commit: str) -> str:
    """The same for the same work: keeping it twice keeps it once."""
    return f"{RECOVERED}/{branch}/{epoch}-{commit[:12]}"


def file_name(identifier: str) -> str:
    """An identifier as the name of a file: plain ones are themselves, and no two are the same."""
    spelled = quote(identifier, safe="")
    return f"%2E{spelled[1:]}" if spelled.startswith(".") else spelled


def without_doubles(requests: Iterable[WorktreeRequest]) -> tuple[WorktreeRequest, ...]:
    """The requests, if each has a name of its own, also once it is part of a folder's name."""
    found: dict[str, WorktreeRequest] = {}
    for one in requests:
        other = found.setdefault(part(one.repo_name), one)
        if other is not one:
            raise Misuse(
                f"two worktrees are asked for as {other.repo_name!r} and {one.repo_name!r}"
            )
    if not found:
        raise Misuse("no repository is given to make a worktree of")
    return tuple(found.values())


def remote_branch(base: str, remotes: Iterable[str]) -> tuple[str, str] | None:
    """The remote and its branch that a base such as `origin/main` names; None if it is no such."""
    # The longest first: the name of a remote may have slashes, and begin with another's.
    for remote in sorted(remotes, key=len, reverse=True):
        if base.startswith(f"{remote}/") and len(base) > len(remote) + 1:
            return remote, base[len(remote) + 1 :]
    return None
