"""One piece of work in several repositories: working trees, and pull requests that belong together.

`MultiWorktree` gives each repository a working tree on one branch and loses no work on the way out.
`CrossRepoPRChain` pushes, opens and links the pull requests, and goes on after a crash.
"""

from dibs.adapters.git_program import GitProgram
from dibs.ports.git import Git, GitResult
from dibs.ports.pulls import PullRequest, PullRequests, PullState
from dibs.worktrees.chain import ChainStep, CrossRepoPRChain, Result
from dibs.worktrees.chain_plan import BadChain, Open, Plan, Push, Refresh, RepoTarget
from dibs.worktrees.chain_state import ChainFiles, ChainState, ChainStates
from dibs.worktrees.clearing import WorktreeStep
from dibs.worktrees.multi import MultiWorktree, iter_worktree_paths, verify_worktree_clean
from dibs.worktrees.recovering import recover, recovered
from dibs.worktrees.values import (
    BadWorktree,
    BranchTaken,
    CleanUp,
    Kept,
    Left,
    WorktreeRequest,
    WorktreeSpec,
)

GitRunner = Git
"""The published name."""

__all__ = [
    "BadChain",
    "BadWorktree",
    "BranchTaken",
    "ChainFiles",
    "ChainState",
    "ChainStates",
    "ChainStep",
    "CleanUp",
    "CrossRepoPRChain",
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
