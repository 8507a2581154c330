"""Real repositories with real remotes, in folders whose names are a nuisance."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.servers.git_repository import ALONE, bare_repository, git

from dibs.worktrees import WorktreeRequest

WITH_SPACES = "wörk tree's"


@dataclass(frozen=True)
class Clone:
    """A clone and the bare repository that it pushes to."""

    name: str
    path: Path
    remote: Path

    def __call__(self, *words: str, check: bool = True) -> str:
        return git(self.path, *words, check=check)

    @property
    def request(self) -> WorktreeRequest:
        return WorktreeRequest(self.name, self.path, gh_repo=f"acme/{self.name}")

    @property
    def branches(self) -> set[str]:
        return set(self("for-each-ref", "--format=%(refname:short)", "refs/heads").split("\n"))

    @property
    def recovered(self) -> dict[str, str]:
        said = self("for-each-ref", "--format=%(refname) %(objectname)", "refs/dibs")
        return dict(line.split(" ") for line in said.splitlines())

    @property
    def worktrees(self) -> list[str]:
        said = self("worktree", "list", "--porcelain")
        return [
            line.removeprefix("worktree ")
            for line in said.splitlines()
            if line.startswith("worktree ")
        ][1:]

    def show(self, commit: str, path: str) -> str:
        return self("show", f"{commit}:{path}")


def clone(root: Path, name: str, *, bare: bool = False) -> Clone:
    remote = bare_repository(root / f"{name} remote.git")
    path = root / (f"{name}.git" if bare else name)
    git(root, "clone", "--quiet", *(["--bare"] if bare else []), str(remote), str(path))
    git(path, "config", "user.name", "an agent")
    git(path, "config", "user.email", "agent@localhost")
    return Clone(name, path, remote)


def write(folder: Path, name: str, text: str = "work\n") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def commit(folder: Path, name: str, text: str = "work\n") -> str:
    write(folder, name, text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", f"add {name}")
    return git(folder, "rev-parse", "HEAD")


def child(module: str, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A process of its own that runs one of our scripts."""
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.worktrees.{module}", *words],
        env={**os.environ, **ALONE, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
