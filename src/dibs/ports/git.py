"""The git program, as what needs a working tree sees it: some words, a folder, an answer.

The same call as the published `GitRunner`, so that what was written for that one can be handed in.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct


class GitResult(Struct, frozen=True):
    """How a command ended, and what it said."""

    returncode: int
    stdout: str = ""
    stderr: str = ""


class Git(Protocol):
    def __call__(
        self,
        args: Sequence[str],
        *,
        cwd: Path,
        timeout: float = 60,
        env: Mapping[str, str] = ...,
    ) -> GitResult:
        """Run git with these words in this folder, for so many seconds at most.

        A command that fails is a result. Raises Unavailable if there was no answer in time, and
        then it no longer runs. `env` is handed over only where a command needs it.
        """
        ...
