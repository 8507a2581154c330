"""A process that makes working trees with the git program itself, and waits to be killed."""

import sys
from pathlib import Path

from dibs.worktrees import MultiWorktree, WorktreeRequest

if __name__ == "__main__":
    root, repo = map(Path, sys.argv[1:])
    with MultiWorktree([WorktreeRequest(repo.name, repo)], "batman", "42", root):
        print("made", flush=True)
