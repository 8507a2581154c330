"""Where a stage's handler works: where it always does, or in working trees made for the run.

Decides what may be asked for. How a working tree is made, kept and cleared is `dibs.worktrees`.
"""

from msgspec import Struct

BASE = "origin/main"


class NoWorktree(Struct, frozen=True):
    """In the folder of the configuration, like every run."""


class OneWorktree(Struct, frozen=True):
    """In a working tree of this repository, a new one for each run."""

    repository: str
    """A path, from the folder of the configuration."""
    base: str = BASE
    """What the run's branch starts from."""


class BundleWorktree(Struct, frozen=True):
    """In a working tree for each repository of the bundle that the issue is in, on one branch.

    Issues with the same bundle label are claimed and ended together.
    """

    base: str = BASE


Worktree = NoWorktree | OneWorktree | BundleWorktree
