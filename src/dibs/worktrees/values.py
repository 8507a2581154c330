"""Values of the package: working trees requested, made and cleared away, and how they are named.

The names are those of branches, folders, refs and files. This module decides how a name is
spelled; the caller checks whether the name is free. Pure: nothing here reads or writes anything.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from urllib.parse import quote

from dibs.core.errors import DibsError, Misuse


@dataclass(frozen=True, slots=True)
class WorktreeRequest:
    """A request for a working tree of a repository."""

    repo_name: str
    """Your name for the repository: part of the folder's name, and the key in every result."""
    checkout_path: Path
    """A clone of the repository on this machine; may be bare."""
    gh_repo: str = ""
    """`owner/repo`, passed on to the code that opens pull requests; not used here."""
    base: str = "origin/main"
    """The commit or branch from which the new branch starts."""


@dataclass(frozen=True, slots=True)
class WorktreeSpec:
    """A working tree after it was made."""

    repo_name: str
    worktree_path: Path
    branch_name: str
    gh_repo: str
    checkout_path: Path


@dataclass(frozen=True, slots=True)
class Kept:
    """Work saved under a ref before its working tree was removed."""

    repo_name: str
    repository: Path
    """The repository's git folder, which contains the ref."""
    ref: str
    commit: str
    worktree_path: Path
    uncommitted: bool
    """Whether dibs made the commit, from files that were not committed."""

    def __str__(self) -> str:
        what = "what was not committed" if self.uncommitted else "what was not pushed"
        return (
            f"{self.repo_name}: {what} in {self.worktree_path} is kept as {self.ref} "
            f"in {self.repository}"
        )


@dataclass(frozen=True, slots=True)
class Left:
    """A working tree which was not removed, and the reason. Its work is in it, or kept."""

    repo_name: str
    worktree_path: Path
    why: str

    def __str__(self) -> str:
        return f"{self.repo_name}: {self.worktree_path} was not removed: {self.why}"


@dataclass(frozen=True, slots=True)
class Excluded:
    """Files that went with their working tree because `info/exclude` of the clone names them.

    Files named by a `.gitignore` go without a word: the project itself ignores them.
    """

    repo_name: str
    worktree_path: Path
    names: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.names) - _MOST_NAMED} more" if len(self.names) > _MOST_NAMED else ""
        return (
            f"{self.repo_name}: {', '.join(self.names[:_MOST_NAMED])}{more} in "
            f"{self.worktree_path} was not kept: info/exclude names it"
        )


_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class CleanUp:
    """The result of clearing working trees: removed, saved under refs, or left in place."""

    removed: tuple[Path, ...] = ()
    kept: tuple[Kept, ...] = ()
    left: tuple[Left, ...] = ()
    excluded: tuple[Excluded, ...] = ()

    def __add__(self, other: "CleanUp") -> "CleanUp":
        return CleanUp(
            self.removed + other.removed,
            self.kept + other.kept,
            self.left + other.left,
            self.excluded + other.excluded,
        )

    @property
    def told(self) -> tuple[str, ...]:
        """One line of text for each entry of `kept`, `left` and `excluded`, for the user."""
        return tuple(map(str, (*self.kept, *self.left, *self.excluded)))


def ignored(*_: object) -> None:
    """The default for callbacks: does nothing."""


class BadWorktree(Misuse, RuntimeError):
    """A working tree cannot be made at this path, or not with these arguments."""

    code = "BAD_WORKTREE"
    hint = "look at what is there with: git worktree list"


class BranchTaken(BadWorktree):
    """The branch is checked out in another working tree."""

    code = "BRANCH_TAKEN"

    def __init__(self, repo_name: str, branch: str, where: Path) -> None:
        self.repo_name, self.branch, self.where = repo_name, branch, where
        super().__init__(f"{repo_name}: the branch {branch!r} is checked out at {where}")


class Unsaveable(DibsError):
    """The working tree must stay: removing it could lose work."""

    code = "UNSAVEABLE"
    hint = "look at it there; nothing was removed"


BRANCH = "{agent}/{feature}-{epoch}"
"""The default template: the same branch name in every repository, new each time."""
RECOVERED = "refs/dibs/recovered"
"""The refs under which work is saved before its working tree is removed."""

_FIELDS = frozenset({"agent", "feature", "repo", "epoch"})
# Characters refused by `git check-ref-format`, and characters special to a shell.
_UNFIT = re.compile(r"[\x00-\x20\x7f~^:?*\[\]\\'\"`$&;|<>()!#{}/@]+")
_LONGEST = 100


@dataclass(frozen=True, slots=True)
class Naming:
    """Names for the branches, folders and session of an agent's work on a feature."""

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
        """Whether the template has `{epoch}`: then an existing branch is never reused."""
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
    """The text as part of a name: each run of unsuitable characters becomes a dash."""
    plain = _UNFIT.sub("-", text.strip())
    plain = re.sub(r"\.{2,}|\.lock(?=$|/)", "-", plain).strip(".-")
    return plain[:_LONGEST].rstrip(".-") or "unnamed"


def fit_for_a_branch(name: str) -> bool:
    """Whether git accepts the name for a branch.

    Checked before git is called: a bad name gives a clear error, and a name with a leading dash
    never becomes a command line option.
    """
    pieces = name.split("/")
    return (
        bool(name)
        and not name.startswith("-")
        and name != "HEAD"
        and not re.search(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{", name)
        and not name.endswith(".")
        and all(
            piece and not piece.startswith(".") and not piece.endswith(".lock") for piece in pieces
        )
    )


def recovery_ref(branch: str, epoch: int, commit: str) -> str:
    """The ref for saved work; the same work gets the same ref, so saving twice adds no ref."""
    return f"{RECOVERED}/{branch}/{epoch}-{commit[:12]}"


def file_name(identifier: str) -> str:
    """A file name for the identifier; two identifiers never get the same file name.

    An identifier of plain letters and digits is its own file name.
    """
    spelled = quote(identifier, safe="")
    return f"%2E{spelled[1:]}" if spelled.startswith(".") else spelled


def without_doubles(requests: Iterable[WorktreeRequest]) -> tuple[WorktreeRequest, ...]:
    """The requests as a tuple. Raises if none is given, or if two names give one folder name."""
    by_folder: dict[str, WorktreeRequest] = {}
    for request in requests:
        earlier = by_folder.setdefault(part(request.repo_name), request)
        if earlier is not request:
            raise Misuse(
                f"two worktrees are asked for as {earlier.repo_name!r} and {request.repo_name!r}"
            )
    if not by_folder:
        raise Misuse("no repository is given to make a worktree of")
    return tuple(by_folder.values())


def remote_branch(base: str, remotes: Iterable[str]) -> tuple[str, str] | None:
    """Split a base such as `origin/main` into remote and branch; None: no remote matches."""
    # Longest remote first: its name may contain slashes, and start with another remote's name.
    for remote in sorted(remotes, key=len, reverse=True):
        if base.startswith(f"{remote}/") and len(base) > len(remote) + 1:
            return remote, base[len(remote) + 1 :]
    return None
