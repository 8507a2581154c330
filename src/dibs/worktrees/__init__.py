"""One piece of work in several repositories: working trees, and pull requests that belong together.

`MultiWorktree` gives each repository a working tree on one branch and loses no work on the way out.
`CrossRepoPRChain` pushes, opens and links the pull requests, and goes on after a crash.
"""

from dibs.adapters.git.program import GitProgram
from dibs.ports.pulls import PullRequest, PullRequests, PullState
from dibs.ports.system import Git, GitResult
from dibs.worktrees.apart import Apart
from dibs.worktrees.chains import (
    BadChain,
    ChainFiles,
    ChainState,
    ChainStates,
    ChainStep,
    CrossRepoPRChain,
    Open,
    Plan,
    Push,
    Refresh,
    RepoTarget,
    Result,
)
from dibs.worktrees.clearing import WorktreeStep, recover, recovered
from dibs.worktrees.trees import MultiWorktree, iter_worktree_paths, verify_worktree_clean
from dibs.worktrees.values import (
    BadWorktree,
    BranchTaken,
    CleanUp,
    Excluded,
    Kept,
    Left,
    WorktreeRequest,
    WorktreeSpec,
)

GitRunner = Git
"""The published name."""

__all__ = [
    "Apart",
    "BadChain",
    "BadWorktree",
    "BranchTaken",
    "ChainFiles",
    "ChainState",
    "ChainStates",
    "ChainStep",
    "CleanUp",
    "CrossRepoPRChain",
    "Excluded",
    "Git",
    "GitProgram",
    "GitResult",
    "GitRunner",
    "Kept",
    "Left",
    "MultiWorktree",
    "Open",
    "Plan",
    "PullRequest",
    "PullRequests",
    "PullState",
    "Push",
    "Refresh",
    "RepoTarget",
    "Result",
    "WorktreeRequest",
    "WorktreeSpec",
    "WorktreeStep",
    "iter_worktree_paths",
    "recover",
    "recovered",
    "verify_worktree_clean",
]
