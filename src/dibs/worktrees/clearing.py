"""Removing what a session made: keep its work, see that it still stands so, remove, let go.

Every step may be the last before a crash, and doing all of them again from the beginning ends the
same way. In doubt a working tree stays where it is, and the reason is told.

What dead processes left behind: found, kept, cleared.

Keeping what a working tree has that nothing else has, under a ref, before it is removed.

Decides what counts as work: what is changed, staged or new and not ignored; commits that are on no
remote's branch that we know of; what a merge or a rebase has set aside. Whatever cannot be kept
with certainty raises, and then the working tree stays.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from msgspec.structs import replace

from dibs.adapters.git.program import GitProgram
from dibs.adapters.system import worktrees_folder
from dibs.core.errors import DibsError
from dibs.ports.system import Git, GitResult
from dibs.worktrees.repository import CHECKOUT_S, QUIETLY, Registered, Repository, refused
from dibs.worktrees.sessions import Entry, Session, Sessions
from dibs.worktrees.values import CleanUp, Kept, Left, recovery_ref, together

_NAME = "dibs"
_ADDRESS = "dibs@localhost"
# A merge, a pick or a rebase that was not finished: commits that only this working tree names.
_UNFINISHED = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "MERGE_AUTOSTASH")
_SET_ASIDE = ("rebase-merge/autostash", "rebase-apply/autostash", "rebase-merge/orig-head")
_AS_IT_IS = ("-c", "core.safecrlf=false", "-c", "advice.addEmbeddedRepo=false")
_LINK = "160000 "
_DEEPEST = 8
_AT_ONCE = 200
_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A working tree at one moment: equal if nothing that counts has changed."""

    head: str | None
    staged: str | None
    """The tree that the index would be; None while it has conflicts."""
    files: str
    aside: tuple[str, ...]
    """Commits that an unfinished merge or rebase names."""
    links: tuple[str, ...]
    """Other repositories in it: submodules, and clones that somebody made."""


class Unsaveable(DibsError):
    """There is work in it that no ref of this repository can keep."""

    code = "UNSAVEABLE"
    hint = "look at it there; nothing was removed"


@dataclass(frozen=True, slots=True)
class Tree:
    """A working tree and the folder that git keeps its index and HEAD in."""

    repo: Repository
    path: Path
    admin: Path

    @property
    def _scratch(self) -> Path:
        return self.admin / "dibs-index"

    def _ask(
        self, *words: str, env: Mapping[str, str] = _NOTHING, timeout: float = 60
    ) -> GitResult:
        # Named outright: if its `.git` is gone, git must not find some other repository above.
        all_words = (f"--git-dir={self.admin}", f"--work-tree={self.path}", *QUIETLY, *words)
        if env:
            return self.repo.git(all_words, cwd=self.path, timeout=timeout, env=env)
        return self.repo.git(all_words, cwd=self.path, timeout=timeout)

    def _told(self, *words: str, env: Mapping[str, str] = _NOTHING, timeout: float = 60) -> str:
        answer = self._ask(*words, env=env, timeout=timeout)
        if answer.returncode:
            raise refused(answer, f"{self.repo.name}: what is in {self.path} cannot be kept")
        return answer.stdout

    def head(self) -> str | None:
        found = self._ask("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        return found.stdout.strip() if found.returncode == 0 else None

    # One moment

    def snapshot(self) -> Snapshot:
        """Through an index of our own: the real one may be locked, torn, or looked at."""
        head = self.head()
        env = {"GIT_INDEX_FILE": str(self._scratch)}
        try:
            staged, files = self._from_their_index(env)
        except DibsError:
            staged, files = None, self._from_the_commit(env, head)
        entries = self._told("ls-files", "--stage", "-z", env=env)
        links = tuple(
            entry.split("\t", 1)[1] for entry in entries.split("\0") if entry.startswith(_LINK)
        )
        return Snapshot(head, staged, files, tuple(self._aside()), links)

    def _empty_scratch(self) -> None:
        """With the lock of a git that was killed: nobody else uses this one."""
        self._scratch.unlink(missing_ok=True)
        self._scratch.with_name(f"{self._scratch.name}.lock").unlink(missing_ok=True)

    def _from_their_index(self, env: Mapping[str, str]) -> tuple[str | None, str]:
        self._empty_scratch()
        with suppress(FileNotFoundError):
            # With its time: git tells by it which entries to look at twice.
            shutil.copy2(self.admin / "index", self._scratch)
        staged = self._ask("write-tree", env=env)
        self._unhide(env)
        files = self._all_files(env)
        return (staged.stdout.strip() if staged.returncode == 0 else None), files

    def _from_the_commit(self, env: Mapping[str, str], head: str | None) -> str:
        self._empty_scratch()
        if head is not None:
            self._told("read-tree", head, env=env)
        return self._all_files(env)

    def _all_files(self, env: Mapping[str, str]) -> str:
        self._told(*_AS_IT_IS, "add", "--all", "--sparse", env=env, timeout=CHECKOUT_S)
        return self._told("write-tree", env=env).strip()

    def _unhide(self, env: Mapping[str, str]) -> None:
        """Files that git was told not to look at are looked at: changes in them are work too."""
        listed = self._told("ls-files", "-v", "-z", env=env).split("\0")
        assumed = [line[2:] for line in listed if line[:1].islower()]
        skipped = [
            line[2:]
            for line in listed
            if line[:1] in {"S", "s"} and os.path.lexists(self.path / line[2:])
        ]
        for flag, names in (("--no-assume-unchanged", assumed), ("--no-skip-worktree", skipped)):
            for start in range(0, len(names), _AT_ONCE):
                self._told("update-index", flag, "--", *names[start : start + _AT_ONCE], env=env)

    def _aside(self) -> Iterator[str]:
        for name in _UNFINISHED:
            found = self._ask("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
            if found.returncode == 0:
                yield found.stdout.strip()
        for name in _SET_ASIDE:
            with suppress(OSError):
                # What is torn names no commit, and then nothing is removed.
                yield (self.admin / name).read_text("ascii", errors="replace").strip()

    # Keeping it

    def keep(self, now: Snapshot, branch: str, start: str, epoch: int) -> tuple[Kept, ...]:
        """Under refs of the repository. Keeping the same once more adds nothing."""
        self._refuse_nested(now.links)
        made = self._committed(now, epoch)
        found = [] if made is None else [self._under_a_ref(made, branch, epoch, uncommitted=True)]
        return (*found, *self.keep_commits(now.head, branch, start, epoch, but=_just(made)))

    def keep_commits(
        self, head: str | None, branch: str, start: str, epoch: int, *, but: Sequence[str] = ()
    ) -> tuple[Kept, ...]:
        """Of what is checked out and of the branch, what nobody else has."""
        found: list[Kept] = []
        for commit in dict.fromkeys((head, self.repo.commit(f"refs/heads/{branch}"))):
            elsewhere = [start, *but, *(one.commit for one in found)]
            if commit is not None and self.repo.only_here([commit], but=elsewhere):
                found.append(self._under_a_ref(commit, branch, epoch, uncommitted=False))
        return tuple(found)

    def _under_a_ref(self, commit: str, branch: str, epoch: int, *, uncommitted: bool) -> Kept:
        ref = recovery_ref(branch, epoch, commit)
        self.repo.keep(ref, commit)
        return Kept(self.repo.name, self.repo.folder, ref, commit, self.path, uncommitted)

    def _committed(self, now: Snapshot, epoch: int) -> str | None:
        """A commit of all that is not committed; None if there is nothing."""
        unchanged = self._tree_of(now.head)
        aside = [one for one in now.aside if self.repo.only_here([one], but=_just(now.head))]
        if now.files == unchanged and now.staged in {None, unchanged} and not aside:
            return None
        parents = [*_just(now.head), *aside]
        if now.staged not in {None, now.files, unchanged}:
            parents.append(self._commit(str(now.staged), _just(now.head), "what was staged", epoch))
        return self._commit(now.files, parents, f"what was not committed in {self.path}", epoch)

    def _tree_of(self, head: str | None) -> str:
        if head is not None:
            return self._told("rev-parse", f"{head}^{{tree}}").strip()
        return self._told("mktree").strip()

    def _commit(self, tree: str, parents: Sequence[str], text: str, epoch: int) -> str:
        """The same commit for the same work, so that a crash between two steps repeats itself."""
        words = [word for one in parents for word in ("-p", one)]
        who = {
            f"GIT_{role}_{field}": value
            for role in ("AUTHOR", "COMMITTER")
            for field, value in (
                ("NAME", _NAME),
                ("EMAIL", _ADDRESS),
                ("DATE", f"@{epoch} +0000"),
            )
        }
        setting = ("-c", "i18n.commitEncoding=UTF-8")
        return self._told(
            *setting, "commit-tree", tree, *words, "-m", f"dibs: {text}", env=who
        ).strip()

    # Repositories within it

    def _refuse_nested(self, links: Sequence[str]) -> None:
        """They go with the working tree, and no ref here can keep what only they have."""
        for link in links:
            if (found := self._work_in(self.path / link, _DEEPEST)) is not None:
                raise Unsaveable(f"the repository {found} in it has work of its own")

    def _work_in(self, place: Path, deeper: int) -> Path | None:
        if not os.path.lexists(place / ".git"):
            return None
        git = self.repo.git
        changed = git([*QUIETLY, "status", "--porcelain"], cwd=place)
        words = ("rev-list", "--max-count=1", "--branches", "--tags", "--not", "--remotes")
        commits = git(words, cwd=place)
        loose = git(("rev-list", "--max-count=1", "HEAD", "--not", "--remotes"), cwd=place)
        stash = git(("rev-parse", "--verify", "--quiet", "refs/stash"), cwd=place)
        answers = (changed, commits, loose)
        if any(one.returncode or one.stdout.strip() for one in answers) or not stash.returncode:
            return place
        entries = git(("ls-files", "--stage", "-z"), cwd=place).stdout.split("\0")
        links = [entry.split("\t", 1)[1] for entry in entries if entry.startswith(_LINK)]
        if links and deeper == 0:
            return place
        found = (self._work_in(place / link, deeper - 1) for link in links)
        return next((one for one in found if one is not None), None)


def _just(commit: str | None) -> list[str]:
    return [] if commit is None else [commit]


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
