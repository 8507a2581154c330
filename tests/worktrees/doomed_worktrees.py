"""A process that makes working trees, works in them, and dies where it is told to.

    python -m tests.worktrees.doomed_worktrees ROOT (step:NAME:N | call:N | file:N | body | none)
        REPO...

`step` dies at the N-th passing of a step, `call` instead of running the N-th command of git, `file`
instead of the N-th time that Python itself makes, writes or removes a file.
Without a repository it only clears what others left. With APART in the environment, the working
trees have repositories of their own.
"""

import os
import signal
import sys
from pathlib import Path

from tests.servers.git_repository import git

from dibs.worktrees import Apart, GitProgram, MultiWorktree, WorktreeRequest, recover

from .places import commit, write


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Counting:
    def __init__(self, fatal: int) -> None:
        self.calls, self.fatal = 0, fatal

    def __call__(self, args, *, cwd, timeout=60, env=None):
        self.calls += 1
        if self.calls == self.fatal:
            die()
        return GitProgram()(args, cwd=cwd, timeout=timeout, env=env or {})


CHANGES = {"os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.utime", "open"}


class Watching:
    """Counts the changes that Python makes to files at or below some folders."""

    def __init__(self, fatal: int, *folders: str) -> None:
        self.changes, self.fatal, self.folders = 0, fatal, folders
        self.working = False  # the agent's own changes are not counted

    def __call__(self, event: str, args: tuple) -> None:
        if self.working or event not in CHANGES or (event == "open" and not int(args[2]) & (1 | 2)):
            return
        # Removing a whole folder names its files without their folders.
        inside = event in {"os.remove", "os.rmdir"} or str(args[0]).startswith(self.folders)
        self.changes += inside
        if inside and self.changes == self.fatal:
            die()


def main(root: str, where: str, *repos: str) -> None:
    kind, _, rest = where.partition(":")
    name, _, times = rest.rpartition(":")
    passed = []

    def reached(step) -> None:
        passed.append(step)
        if kind == "step" and step.value == name and passed.count(step) == int(times):
            die()

    counting = Counting(int(rest) if kind == "call" else 0)
    if not repos:
        recover(Path(root), git=counting)
        return
    requests = [WorktreeRequest(Path(one).name, Path(one)) for one in repos]
    watching = Watching(int(rest) if kind == "file" else 0, root, *repos)
    sys.addaudithook(watching)
    apart = Apart() if os.environ.get("APART") else None
    trees = MultiWorktree(
        requests, "batman", "42", Path(root), counting, 17, reached=reached, apart=apart
    )
    with trees as made:
        watching.working = True
        first, *others = [one.worktree_path for one in made.specs]
        commit(first, "committed")
        write(first, "not committed")
        for other in others:
            commit(other, "pushed")
            git(other, "push", "--quiet", "origin", "HEAD")
        print("worked", flush=True)
        watching.working = False
        if kind == "body":
            die()
    print("calls", counting.calls, "changes", watching.changes, *made.cleanup.told, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
