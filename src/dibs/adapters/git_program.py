"""The git program in somebody's own repository: their settings and hooks count, prompts do not.

What leases in refs need of git is in `git_process`: there, nothing of the user's repository takes
part. Here it is the user's repository, and git behaves as it does for them, but for what could
wait for an answer that nobody gives.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from dibs.adapters.git_process import bounded, inherited
from dibs.core.errors import BadConfiguration
from dibs.ports.git import GitResult

_SET = {
    "LC_ALL": "C.UTF-8",  # its messages are read; names of files are not ours to re-encode
    "LANGUAGE": "",
    "GIT_TERMINAL_PROMPT": "0",
    "GCM_INTERACTIVE": "never",
    "GIT_OPTIONAL_LOCKS": "0",  # looking must not get in the way of somebody at work
}
_NOTHING: Mapping[str, str] = {}


class GitProgram(Struct, frozen=True):
    """A `Git`: each command is bounded in time and ended with all that it started."""

    shared: tuple[int, ...] = ()
    """Open files that every command keeps open, so that a lock on one lasts as long as it runs."""

    def __call__(
        self,
        args: Sequence[str],
        *,
        cwd: Path,
        timeout: float = 60,
        env: Mapping[str, str] = _NOTHING,
    ) -> GitResult:
        program = shutil.which("git")
        if program is None:
            raise BadConfiguration("worktrees need git, which is not installed here")
        ran = bounded(
            [program, *args],
            place=cwd,
            env={**inherited(), **_SET, **env},
            given=b"",
            timeout_s=timeout,
            name=f"git {_verb(args)} in {cwd}",
            shared=self.shared,
        )
        return GitResult(ran.code, os.fsdecode(ran.out), ran.err)


def _verb(args: Sequence[str]) -> str:
    """Which command it is: an error never repeats the other words, which may be anything."""
    words = iter(args)
    for word in words:
        if word == "-c":
            next(words, None)
        elif not word.startswith("-"):
            return word
    return ""
