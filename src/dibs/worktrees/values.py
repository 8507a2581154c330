"""What goes in and what comes out: working trees that are wanted, made, and cleared away."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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
