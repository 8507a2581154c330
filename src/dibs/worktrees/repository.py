"""One repository through git: what is checked out where, which commits only it has, refs.

Knows how git is asked and how it answers, and decides nothing about work. Every command names the
repository's own folder, so that none of them depends on a working tree being there.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dibs.adapters.git.program import Ran, outage, spoken
from dibs.core.errors import DibsError
from dibs.ports.system import Git, GitResult
from dibs.worktrees.values import RECOVERED, BadWorktree

FETCH_S = 300.0
CHECKOUT_S = 600.0
_TRIES = 10
# Nothing stays running after a command: it would keep open what the command keeps open.
_ALONE = ("-c", "core.fsmonitor=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false")
# For what only we need: nothing of the user's listens in either.
QUIETLY = (*_ALONE, "-c", "core.hooksPath=/dev/null")
# Asking again would not help, and nobody's access or storage is at fault.
_ASKED = re.compile(
    r"not a git repository|already (exists|checked out|used by worktree)|invalid reference"
    r"|cannot lock ref '[^']*': '[^']*' exists|not a valid|couldn't find remote ref"
    r"|ambiguous argument|unknown revision",
    re.IGNORECASE,
)
_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Registered:
    """A working tree that a repository knows of."""

    path: Path
    head: str
    """Its commit; empty if it has none yet."""
    branch: str
    """Without `refs/heads/`; empty if it is on none."""
    locked: str | None
    """Why it is locked; None if it is not."""

    @property
    def half_made(self) -> bool:
        """Git locks one with this word while it is making it."""
        return self.locked == "initializing"


@dataclass(frozen=True, slots=True)
class Repository:
    name: str
    folder: Path
    """Where git keeps it: shared by all of its working trees."""
    git: Git

    @classmethod
    def at(cls, name: str, checkout: Path, git: Git) -> "Repository":
        if not checkout.is_dir():
            raise BadWorktree(f"{name}: there is no folder {checkout}")
        found = git(["rev-parse", "--git-common-dir"], cwd=checkout)
        if found.returncode:
            raise refused(found, f"{name}: {checkout} is no git repository")
        return cls(name, (checkout / found.stdout.rstrip("\n")).resolve(), git)

    def ask(self, *words: str, timeout: float = 60, env: Mapping[str, str] = _NOTHING) -> GitResult:
        words = (f"--git-dir={self.folder}", *words)
        if env:
            return self.git(words, cwd=self.folder, timeout=timeout, env=env)
        return self.git(words, cwd=self.folder, timeout=timeout)

    def told(self, *words: str, doing: str, timeout: float = 60) -> str:
        """What git answers; an error of ours if it refuses."""
        answer = self.ask(*words, timeout=timeout)
        if answer.returncode:
            raise refused(answer, f"{self.name}: {doing}")
        return answer.stdout

    # Commits and refs

    def commit(self, name: str) -> str | None:
        """The commit that something names; None if there is no such."""
        if name.startswith("-"):
            return None
        found = self.ask("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return found.stdout.strip() or None if found.returncode == 0 else None

    def bare(self) -> bool:
        return self.ask("rev-parse", "--is-bare-repository").stdout.strip() == "true"

    def remotes(self) -> tuple[str, ...]:
        return tuple(self.told("remote", doing="its remotes cannot be listed").splitlines())

    def fetch(self, remote: str, branch: str, checkout: Path) -> None:
        """Into the usual ref, which a bare clone does not have by itself.

        From the clone, because the address may be a path that is meant from there. Others may be
        fetching into the same ref: who comes too late has nothing to add, and looks again.
        """
        refspec = f"+refs/heads/{branch}:refs/remotes/{remote}/{branch}"
        words = (*_ALONE, "fetch", "--quiet", "--no-tags", remote, refspec)
        answer = self.git(words, cwd=checkout, timeout=FETCH_S)
        for _ in range(_TRIES):
            if not answer.returncode or "cannot lock ref" not in answer.stderr:
                break
            answer = self.git(words, cwd=checkout, timeout=FETCH_S)
        if answer.returncode:
            raise refused(answer, f"{self.name}: {branch} cannot be fetched from {remote}")

    def only_here(self, commits: Sequence[str], *, but: Sequence[str] = ()) -> bool:
        """Whether one of the commits is on no remote's branch that we know of, nor in `but`."""
        if not commits:
            return False
        said = self.told(
            "rev-list",
            "--max-count=1",
            *commits,
            "--not",
            "--remotes",
            *but,
            doing="its commits cannot be compared with its remotes'",
        )
        return bool(said.strip())

    def keep(self, ref: str, commit: str) -> None:
        self.told(*QUIETLY, "update-ref", ref, commit, doing=f"{ref} cannot be written")

    def recovered(self) -> tuple[tuple[str, str], ...]:
        """Ref and commit of all that was ever kept here."""
        said = self.told(
            "for-each-ref", "--format=%(objectname) %(refname)", RECOVERED, doing="no refs"
        )
        pairs = (line.split(" ", 1) for line in said.splitlines())
        return tuple((ref, commit) for commit, ref in pairs)

    def forget(self, ref: str, commit: str) -> None:
        """Only if it is still that commit's."""
        self.ask(*QUIETLY, "update-ref", "-d", ref, commit)

    def drop_branch(self, branch: str) -> None:
        """If it is checked out nowhere; if git will not, it stays."""
        self.ask(*QUIETLY, "branch", "--quiet", "-D", "--", branch)

    # Working trees

    def worktrees(self) -> tuple[Registered, ...]:
        said = self.told(
            "worktree", "list", "--porcelain", doing="its working trees cannot be listed"
        )
        blocks = (_fields(block) for block in said.split("\n\n"))
        return tuple(_registered(fields) for fields in blocks if "worktree" in fields)

    def worktree(self, path: Path) -> Registered | None:
        return next((one for one in self.worktrees() if one.path == path), None)

    def holder_of(self, branch: str) -> Registered | None:
        return next((one for one in self.worktrees() if one.branch == branch), None)

    def add(self, path: Path, branch: str, start: str, *, new: bool) -> None:
        how = ("-b", branch, "--no-track") if new else ()
        self.told(
            *_ALONE,
            "worktree",
            "add",
            "--quiet",
            *how,
            str(path),
            start if new else branch,
            doing=f"no working tree could be made at {path}",
            timeout=CHECKOUT_S,
        )

    def remove(self, path: Path, *, half_made: bool = False) -> None:
        """With whatever is in it. A locked one stays, unless git was killed while making it."""
        self.told(
            *QUIETLY,
            "worktree",
            "remove",
            *(["--force"] * (2 if half_made else 1)),
            str(path),
            doing=f"{path} could not be removed",
            timeout=CHECKOUT_S,
        )

    def admin_folder(self, path: Path) -> Path | None:
        """Where git keeps what belongs to this one working tree: its index, its HEAD."""
        for pointer in sorted(self.folder.glob("worktrees/*/gitdir")):
            named = pointer.read_text("utf-8", errors="surrogateescape").rstrip("\n")
            # Newer gits can be told to write it relative to where it is written.
            if (pointer.parent / named).resolve().parent == path:
                return pointer.parent
        return None


def refused(answer: GitResult, doing: str) -> DibsError:
    """What git said no to: what was asked, or something with the storage, access or the way."""
    if _ASKED.search(answer.stderr):
        return BadWorktree(f"{doing}: {spoken(answer.stderr)}")
    return outage(Ran(answer.returncode, b"", answer.stderr), doing)


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(" ") for line in block.splitlines())
    return {name: value for name, _, value in pairs if name}


def _registered(fields: Mapping[str, str]) -> Registered:
    head = fields.get("HEAD", "")
    return Registered(
        path=Path(fields["worktree"]),
        head=head if head.strip("0") else "",
        branch=fields.get("branch", "").removeprefix("refs/heads/"),
        locked=fields.get("locked"),
    )
