"""What dead processes left behind: found, kept, cleared."""

import logging
from pathlib import Path

from dibs.adapters.git_program import GitProgram
from dibs.adapters.homes import worktrees_folder
from dibs.ports.git import Git
from dibs.worktrees.clearing import end
from dibs.worktrees.repository import Repository
from dibs.worktrees.sessions import Sessions
from dibs.worktrees.values import CleanUp, Left

_log = logging.getLogger("dibs.worktrees")


def recover(worktree_root: Path | None = None, *, git: Git | None = None) -> CleanUp:
    """Clear what sessions left whose process is gone. Work that only they had is kept first.

    Sessions whose process lives are not touched. Nothing that goes wrong with one is in the way of
    the others.
    """
    root = (worktree_root or worktrees_folder()).expanduser().resolve()
    sessions, found = Sessions(root), CleanUp()
    for session in sessions.dead():
        try:
            found += end(session, git or GitProgram())
        finally:
            session.close()
    found += CleanUp(left=tuple(Left("", path, why) for path, why in sessions.unreadable()))
    for line in found.told:
        _log.warning("%s", line)
    return found


def recovered(checkout_path: Path, *, git: Git | None = None) -> tuple[tuple[str, str], ...]:
    """Ref and commit of all work that is kept in this repository."""
    return Repository.at(checkout_path.name, checkout_path, git or GitProgram()).recovered()
