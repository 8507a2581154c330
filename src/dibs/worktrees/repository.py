"""One repository through git commands: working trees, refs, and commits that no remote has.

This module builds the command lines and parses the answers; it does not decide what happens to
work. Every command names the repository's git folder, so no command needs a working tree.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from dibs.adapters.git.program import GitProgram, Ran, outage, spoken
from dibs.core.durations import LOST_RACE
from dibs.core.errors import DibsError
from dibs.ports.system import Git, GitResult
from dibs.worktrees.values import RECOVERED, BadWorktree

HALF_MADE = "initializing"
"""Git locks a working tree with this reason while making it: no user worked in it yet."""
FETCH_S = 300.0
CHECKOUT_S = 600.0
# No git daemon or background job stays running after a command: it would inherit the open files
# of the command, and with them the lock of the session.
_ALONE = ("-c", "core.fsmonitor=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false")
# For commands that serve dibs only: the user's hooks are not run either.
QUIETLY = (*_ALONE, "-c", "core.hooksPath=/dev/null")
# A remote may name programs neither by its address nor by the refs that its store of objects has.
_FETCH = (
    *QUIETLY,
    *("-c", "protocol.ext.allow=never", "-c", "core.alternateRefsCommand=true"),
    "fetch",
)
# The request itself is wrong: a retry would not help, and neither access nor storage failed.
_BAD_REQUEST = re.compile(
    r"not a git repository|already (exists|checked out|used by worktree)|invalid reference"
    r"|cannot lock ref '[^']*': '[^']*' exists|not a valid|couldn't find remote ref"
    r"|ambiguous argument|unknown revision|invalid path",
    re.IGNORECASE,
)


def run_with(
    git: Git, words: Sequence[str], env: Mapping[str, str], *, cwd: Path, timeout: float
) -> GitResult:
    """Run a git command on named folders, with variables in its environment.

    The published interface of a git takes no variables: there an alias of git's sets them.
    """
    if isinstance(git, GitProgram):
        return git(words, cwd=cwd, timeout=timeout, env=env)
    folders = [word for word in words if word.startswith(("--git-dir=", "--work-tree="))]
    pairs = [f"{name}={value}" for name, value in env.items()]
    alias = ("-c", "alias.dibs-with=!env", "dibs-with")
    return git([*folders, *alias, *pairs, "git", *words], cwd=cwd, timeout=timeout)


class Registered(Struct, frozen=True):
    """A working tree as `git worktree list` shows it."""

    path: Path
    head: str
    """The checked-out commit; empty if there is none yet."""
    branch: str
    """Without `refs/heads/`; empty if no branch is checked out."""
    locked: str | None
    """The reason given for the lock; None if the working tree is not locked."""


class Repository(Struct, frozen=True):
    name: str
    folder: Path
    """The git folder, shared by all working trees of the repository."""
    git: Git

    @classmethod
    def at(cls, name: str, checkout: Path, git: Git) -> "Repository":
        if not checkout.is_dir():
            raise BadWorktree(f"{name}: there is no folder {checkout}")
        found = git(["rev-parse", "--git-common-dir"], cwd=checkout)
        if found.returncode:
            raise refused(found, f"{name}: {checkout} is no git repository")
        return cls(name, (checkout / found.stdout.rstrip("\n")).resolve(), git)

    def ask(self, *words: str, timeout: float = 60) -> GitResult:
        """Run a git command on the repository; the caller checks the exit code."""
        words = (f"--git-dir={self.folder}", *words)
        return self.git(words, cwd=self.folder, timeout=timeout)

    def output(self, *words: str, doing: str, timeout: float = 60) -> str:
        """Standard output of a git command; raises a `DibsError` if the command fails."""
        answer = self.ask(*words, timeout=timeout)
        if answer.returncode:
            raise refused(answer, f"{self.name}: {doing}")
        return answer.stdout

    # Commits and refs

    def commit(self, name: str) -> str | None:
        """The commit hash for a ref or revision; None if it names no commit."""
        if name.startswith("-"):  # git would read it as an option
            return None
        found = self.ask("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return found.stdout.strip() or None if found.returncode == 0 else None

    def remotes(self) -> tuple[str, ...]:
        return tuple(self.output("remote", doing="its remotes cannot be listed").splitlines())

    def fetch(self, remote: str, branch: str, checkout: Path) -> None:
        """Fetch a branch into `refs/remotes/REMOTE/BRANCH`, which a bare clone lacks by default.

        Runs in the clone's folder, because the remote's address may be a path relative to the
        clone. Another process may be fetching into the same ref; then git cannot lock the ref, and
        the fetch is tried again.
        """
        refspec = f"+refs/heads/{branch}:refs/remotes/{remote}/{branch}"
        words = (*_FETCH, "--quiet", "--no-tags", "--no-recurse-submodules", remote, refspec)
        answer = self.git(words, cwd=checkout, timeout=FETCH_S)
        for _ in range(LOST_RACE.most):
            if not answer.returncode or "cannot lock ref" not in answer.stderr:
                break
            answer = self.git(words, cwd=checkout, timeout=FETCH_S)
        if answer.returncode:
            raise refused(answer, f"{self.name}: {branch} cannot be fetched from {remote}")

    def has_unpushed(self, commit: str, *, but: Sequence[str] = ()) -> bool:
        """Whether the commit is in no remote-tracking branch and not reachable from `but`."""
        words = ("rev-list", "--max-count=1", commit, "--not", "--remotes", *but)
        listed = self.output(*words, doing="its commits cannot be compared with its remotes'")
        return bool(listed.strip())

    def keep(self, ref: str, commit: str) -> None:
        self.output(*QUIETLY, "update-ref", ref, commit, doing=f"{ref} cannot be written")

    def recovered(self) -> tuple[tuple[str, str], ...]:
        """Ref and commit of all work saved in this repository."""
        words = ("for-each-ref", "--format=%(objectname) %(refname)", RECOVERED)
        listed = self.output(*words, doing="no refs")
        pairs = (line.split(" ", 1) for line in listed.splitlines())
        return tuple((ref, commit) for commit, ref in pairs)

    def forget(self, ref: str, commit: str) -> None:
        """Delete the ref if it still points to the commit."""
        self.ask(*QUIETLY, "update-ref", "-d", ref, commit)

    def drop_branch(self, branch: str) -> None:
        """Delete a branch. Git refuses while the branch is checked out; then the branch stays."""
        self.ask(*QUIETLY, "branch", "--quiet", "-D", "--", branch)

    # Working trees

    def worktrees(self) -> Iterator[Registered]:
        """All registered working trees, the main one included."""
        listed = self.output(
            "worktree", "list", "--porcelain", doing="its working trees cannot be listed"
        )
        for block in listed.split("\n\n"):
            pairs = (line.partition(" ") for line in block.splitlines())
            fields = {name: value for name, _, value in pairs if name}
            if "worktree" in fields:
                head = fields.get("HEAD", "")
                yield Registered(
                    path=Path(fields["worktree"]),
                    head=head if head.strip("0") else "",
                    branch=fields.get("branch", "").removeprefix("refs/heads/"),
                    locked=fields.get("locked"),
                )

    def add(self, path: Path, branch: str, start: str, *, new: bool) -> None:
        """Make a working tree: on a new branch from `start`, or on the existing branch."""
        how = ("-b", branch, "--no-track") if new else ()
        words = ("worktree", "add", "--quiet", *how, str(path), start if new else branch)
        doing = f"no working tree could be made at {path}"
        self.output(*_ALONE, *words, doing=doing, timeout=CHECKOUT_S)

    def register(self, path: Path, branch: str, start: str, *, new: bool) -> None:
        """Make a working tree without files, locked as half made; no hook runs."""
        how = ("-b", branch, "--no-track") if new else ()
        lock = ("--no-checkout", "--lock", "--reason", HALF_MADE)
        words = ("worktree", "add", "--quiet", *lock, *how, str(path), start if new else branch)
        self.output(*QUIETLY, *words, doing=f"no working tree could be made at {path}")

    def remove(self, path: Path, *, half_made: bool = False) -> None:
        """Remove a working tree with all files in it. Git refuses if the working tree is locked.

        With `half_made`, the lock is overridden: git was killed while making the working tree.
        """
        words = ("worktree", "remove", *["--force"] * (2 if half_made else 1), str(path))
        doing = f"{path} could not be removed"
        self.output(*QUIETLY, *words, doing=doing, timeout=CHECKOUT_S)

    def admin_folder(self, path: Path) -> Path | None:
        """The folder with the index and HEAD of one linked working tree; None if not found."""
        for pointer in sorted(self.folder.glob("worktrees/*/gitdir")):
            named = pointer.read_text("utf-8", errors="surrogateescape").rstrip("\n")
            # Newer versions of git can write the path relative to the folder of this file.
            # What the path ends in, `.git`, may be a link that an agent made.
            if (pointer.parent / named).parent.resolve() == path:
                return pointer.parent
        return None


def refused(answer: GitResult, doing: str) -> DibsError:
    """The error for a failed git command.

    `BadWorktree` if the request itself was wrong; otherwise an outage of storage, access or
    network.
    """
    if _BAD_REQUEST.search(answer.stderr):
        return BadWorktree(f"{doing}: {spoken(answer.stderr)}")
    return outage(Ran(answer.returncode, b"", answer.stderr), doing)
