"""A process that makes working trees, works in them, and dies where it is told to.

    python -m tests.worktrees.doomed_worktrees ROOT (step:NAME:N | call:N | body | none) REPO...

`step` dies at the N-th passing of a step, `call` instead of running the N-th command of git.
Without a repository it only clears what others left.
"""

import os
import signal
import sys
from pathlib import Path

from tests.servers.git_repository import git

from dibs.worktrees import GitProgram, MultiWorktree, WorktreeRequest, recover

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
    with MultiWorktree(requests, "batman", "42", Path(root), counting, 17, reached=reached) as made:
        first, *others = [one.worktree_path for one in made.specs]
        commit(first, "committed")
        write(first, "not committed")
        for other in others:
            commit(other, "pushed")
            git(other, "push", "--quiet", "origin", "HEAD")
        print("worked", flush=True)
        if kind == "body":
            die()
    print("calls", counting.calls, *made.cleanup.told, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
