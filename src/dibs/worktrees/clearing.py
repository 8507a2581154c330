"""Removing what a session made: keep its work, see that it still stands so, remove, let go.

Every step may be the last before a crash, and doing all of them again from the beginning ends the
same way. In doubt a working tree stays where it is, and the reason is told.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from msgspec.structs import replace

from dibs.adapters.git_program import GitProgram
from dibs.core.errors import DibsError
from dibs.ports.git import Git
from dibs.worktrees.repository import Registered, Repository
from dibs.worktrees.saving import Tree
from dibs.worktrees.sessions import Entry, Session
from dibs.worktrees.values import CleanUp, Kept, Left, together

_LOOKS = 3


class WorktreeStep(StrEnum):
    """The points at which a crash must lose nothing, in the order in which they are passed."""

    RECORDED = "worktrees.recorded"
    ADDED = "worktrees.added"
    KEPT = "worktrees.kept"
    REMOVED = "worktrees.removed"
    BRANCH_DROPPED = "worktrees.branch_dropped"
    FORGOTTEN = "worktrees.forgotten"


Reached = Callable[[WorktreeStep], None]


def unwatched(step: WorktreeStep) -> None:
    """Nobody watches: passing a step does nothing."""


def end(session: Session, git: Git, reached: Reached = unwatched) -> CleanUp:
    """All of a session's, last first; it is forgotten if nothing of it is left."""
    git = sharing(git, session)
    record = session.record
    found = [clear(entry, record.epoch, git, reached) for entry in reversed(record.entries)]
    cleanup = together(found)
    if not cleanup.left:
        session.forget()
        reached(WorktreeStep.FORGOTTEN)
    return cleanup


def sharing(git: Git, session: Session) -> Git:
    """A git whose commands are part of the session: it is not over while one of them runs."""
    if isinstance(git, GitProgram):
        return replace(git, shared=(*git.shared, session.descriptor))
    return git


def clear(entry: Entry, epoch: int, git: Git, reached: Reached = unwatched) -> CleanUp:
    """One working tree, wherever its making or its removal was cut off."""
    path = Path(entry.path)
    try:
        repo = Repository(entry.repo_name, Path(entry.repository), git)
        if not repo.folder.is_dir():
            return _without_repository(entry)
        cleanup = _removed(entry, repo, epoch, reached)
        if not cleanup.left:
            _drop_branch(entry, repo)
            reached(WorktreeStep.BRANCH_DROPPED)
    except (DibsError, OSError) as flaw:
        return CleanUp(left=(Left(entry.repo_name, path, str(flaw)),))
    return cleanup


def _without_repository(entry: Entry) -> CleanUp:
    """Its repository was deleted: then there is nowhere to keep anything."""
    path = Path(entry.path)
    if not path.exists():
        return CleanUp()
    return CleanUp(left=(Left(entry.repo_name, path, f"{entry.repository} is gone"),))


def _removed(entry: Entry, repo: Repository, epoch: int, reached: Reached) -> CleanUp:
    path = Path(entry.path)
    match repo.worktree(path):
        case None:
            return _unregistered(entry)
        case Registered(half_made=True):
            _remove(repo, path, half_made=True)  # nobody was ever let into it
            return CleanUp(removed=(path,))
        case Registered(locked=str(reason)):
            why = f"it is locked: {reason}" if reason else "it is locked"
            return CleanUp(left=(Left(entry.repo_name, path, why),))
        case Registered() as found:
            return _kept_and_removed(entry, repo, found, epoch, reached)


def _unregistered(entry: Entry) -> CleanUp:
    path = Path(entry.path)
    with suppress(OSError):
        path.rmdir()  # if it is empty
    if not path.exists():
        return CleanUp()
    why = "its repository knows nothing of it any more"
    return CleanUp(left=(Left(entry.repo_name, path, why),))


def _kept_and_removed(
    entry: Entry, repo: Repository, found: Registered, epoch: int, reached: Reached
) -> CleanUp:
    path = Path(entry.path)
    admin = repo.admin_folder(path)
    if admin is None or not path.exists():
        kept: tuple[Kept, ...] | None = _kept_without_files(entry, repo, found, epoch)
        reached(WorktreeStep.KEPT)
    else:
        kept = _kept_while_still(Tree(repo, path, admin), entry, epoch, reached)
    if kept is None:
        why = "somebody is still writing in it"
        return CleanUp(left=(Left(entry.repo_name, path, why),))
    _remove(repo, path)
    reached(WorktreeStep.REMOVED)
    return CleanUp(removed=(path,), kept=kept)


def _kept_without_files(
    entry: Entry, repo: Repository, found: Registered, epoch: int
) -> tuple[Kept, ...]:
    """Somebody deleted the folder: what it had committed on no branch would go now."""
    tree = Tree(repo, Path(entry.path), repo.folder)
    return tree.keep_commits(found.head or None, entry.branch, entry.start, epoch)


def _kept_while_still(
    tree: Tree, entry: Entry, epoch: int, reached: Reached
) -> tuple[Kept, ...] | None:
    """None if it never looked twice the same: then somebody is at work in it."""
    before = tree.snapshot()
    for _ in range(_LOOKS):
        kept = tree.keep(before, entry.branch, entry.start, epoch)
        reached(WorktreeStep.KEPT)
        after = tree.snapshot()
        if after == before:
            return kept
        before = after
    return None


def _remove(repo: Repository, path: Path, *, half_made: bool = False) -> None:
    if path.exists() and not (path / ".git").exists():
        # A removal that was cut off: git refuses to go on with it, and all was kept before.
        shutil.rmtree(path)
    repo.remove(path, half_made=half_made)


def _drop_branch(entry: Entry, repo: Repository) -> None:
    """If it was made for this and has nothing that only it has."""
    name = f"refs/heads/{entry.branch}"
    if not entry.new_branch or repo.commit(name) is None:
        return
    if not repo.only_here([name], but=[entry.start]):
        repo.drop_branch(entry.branch)
