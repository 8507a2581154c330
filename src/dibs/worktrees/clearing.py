"""Clearing working trees: save the work in them under refs, then remove them.

`Tree` decides what counts as work: files changed, staged or new and not ignored; commits that are
on no remote-tracking branch; commits set aside by an unfinished merge or rebase. Work that cannot
be saved for certain raises an error, and then the working tree stays.

`end` and `clear` remove what one session made. Every step may be the last before a crash, and
doing all steps again from the beginning gives the same result. In doubt a working tree stays, and
the result has the reason. `recover` clears the working trees of dead processes.
"""

import dataclasses
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.git.program import GitProgram
from dibs.adapters.system import same_content, worktrees_folder
from dibs.core.errors import DibsError
from dibs.ports.system import Git, GitResult
from dibs.worktrees.apart import (
    SET_ASIDE,
    UNFINISHED,
    bring,
    git_folder,
    head_in,
    is_as_cloned,
    is_repository,
    stand_in,
    stand_in_for_tree,
    take_back,
)
from dibs.worktrees.repository import (
    CHECKOUT_S,
    HALF_MADE,
    QUIETLY,
    Repository,
    refused,
    run_with,
)
from dibs.worktrees.sessions import Entry, OpenSession, Sessions
from dibs.worktrees.values import (
    CleanUp,
    Excluded,
    Kept,
    Left,
    Unsaveable,
    ignored,
    recovery_ref,
)

_ADD_SETTINGS = ("-c", "core.safecrlf=false", "-c", "advice.addEmbeddedRepo=false")
_GITLINK = "160000 "
_DEEPEST = 8
_NAMES_PER_COMMAND = 200
_SNAPSHOTS = 3
_MADE = "dibs-made"
"""A file in git's folder of a working tree, made when the files had been checked out."""
_SAVED = "dibs-saved"
"""A file in the same folder, made before anything is deleted: the commit with all files."""
_NO_ENV: Mapping[str, str] = {}


class TreeSnapshot(Struct, frozen=True):
    """The content of a working tree at one moment; two are equal if no work has changed."""

    head: str | None
    staged: str | None
    """The tree that the index would give; None while the index has conflicts."""
    files: str
    """The tree of all files in the folder, except ignored ones."""
    aside: tuple[str, ...]
    """Commits named by an unfinished merge or rebase."""
    links: tuple[str, ...]
    """Paths of repositories inside the working tree: submodules, and clones made by users."""
    strays: tuple[str, ...]
    """Commits that only refs of the working tree's own repository name."""


class Tree(Struct, frozen=True):
    """A working tree, and the folder with its index and HEAD."""

    repo: Repository
    path: Path
    admin: Path
    strays: tuple[str, ...] = ()
    """Commits that only refs of its own repository name, if it has one."""
    checkout_ns: tuple[int, int] = (0, 0)
    """When checking out its files began and ended, by the file system's time; 0 if unknown."""
    saved: str | None = None
    """The commit with all its files, if a part of the tree may have been deleted since."""

    @property
    def _scratch(self) -> Path:
        """An index of our own: the real index may be locked, torn, or in use."""
        return self.admin / "dibs-index"

    def _ask(self, *words: str, env: Mapping[str, str] = _NO_ENV, timeout: float = 60) -> GitResult:
        # Both folders are given: if `.git` is missing, git must not find a repository above.
        all_words = (f"--git-dir={self.admin}", f"--work-tree={self.path}", *QUIETLY, *words)
        if env:
            return run_with(self.repo.git, all_words, env, cwd=self.path, timeout=timeout)
        return self.repo.git(all_words, cwd=self.path, timeout=timeout)

    def _output(self, *words: str, env: Mapping[str, str] = _NO_ENV, timeout: float = 60) -> str:
        answer = self._ask(*words, env=env, timeout=timeout)
        if answer.returncode:
            raise refused(answer, f"{self.repo.name}: what is in {self.path} cannot be kept")
        return answer.stdout

    def _commits(self, *names: str) -> list[str]:
        """The commits that the names stand for; a name may stand for none."""
        asked = (
            self._ask("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}") for name in names
        )
        return [found.stdout.strip() for found in asked if found.returncode == 0]

    # Taking a snapshot

    def snapshot(self) -> TreeSnapshot:
        """The present content, read through a scratch index: git objects are written, no refs.

        If the user's index cannot be read, or a part of the tree was deleted, the files are
        compared with a commit instead, and a file that is absent counts as unchanged.
        """
        head = next(iter(self._commits("HEAD")), None)
        # Of a partial clone, no file that the working tree never had is fetched.
        env = {"GIT_INDEX_FILE": str(self._scratch), "GIT_NO_LAZY_FETCH": "1"}
        staged: str | None = None
        try:
            if self.saved is not None:
                raise Unsaveable("its index names files that were deleted")
            self._empty_scratch()
            # With its time stamp: git uses it to choose the entries to compare by content.
            shutil.copy2(self.admin / "index", self._scratch)
            index_tree = self._ask("write-tree", env=env)
            self._unhide(env)
            files = self._all_files(env)
            staged = index_tree.stdout.strip() if index_tree.returncode == 0 else None
        except (DibsError, FileNotFoundError):
            self._empty_scratch()
            if (known := self.saved or head) is not None:
                self._output("read-tree", known, env=env)
                names = self._output("ls-files", "-z", env=env).split("\0")
                absent = [name for name in names if not os.path.lexists(self.path / name)]
                self._mark("--skip-worktree", absent, env)
            files = self._all_files(env)
        entries = self._output("ls-files", "--stage", "-z", env=env).split("\0")
        found = [entry.split("\t", 1)[1] for entry in entries if entry.startswith(_GITLINK)]
        links = tuple(dict.fromkeys((*found, *self._repositories())))
        aside = self._commits(*UNFINISHED)
        for name in SET_ASIDE:
            with suppress(OSError):
                # A torn file names no commit; saving it then fails, and the working tree stays.
                aside.append((self.admin / name).read_text("ascii", errors="replace").strip())
        return TreeSnapshot(head, staged, files, tuple(aside), links, self.strays)

    def _empty_scratch(self) -> None:
        """Delete the scratch index, and its lock if git was killed: only dibs uses them."""
        self._scratch.unlink(missing_ok=True)
        self._scratch.with_name(f"{self._scratch.name}.lock").unlink(missing_ok=True)

    def _all_files(self, env: Mapping[str, str]) -> str:
        """Add all files to the scratch index, and return the resulting tree.

        Git would run `git status` in each nested repository of the index, by the settings of the
        nested repository. So nested repositories are left out, and their commits are set here.
        """
        listed = self._output("ls-files", "--stage", "-z", env=env).split("\0")
        links = [entry.split("\t", 1)[1] for entry in listed if entry.startswith(_GITLINK)]
        links = [link for link in links if os.path.lexists(self.path / link / ".git")]
        but = [f":(exclude,literal){link}" for link in links]
        words = ("add", "--all", "--sparse", "--", ".", *but)
        self._output(*_ADD_SETTINGS, *words, env=env, timeout=CHECKOUT_S)
        for link in links:
            within = (self.path, self.admin, self.repo.folder)
            folder = git_folder(self.path / link, within=within)
            if (head := head_in(folder, within=within)) is not None:
                entry = f"{_GITLINK.strip()},{head},{link}"
                self._output("update-index", "--cacheinfo", entry, env=env)
        self._restore_bytes(env)
        return self._output("write-tree", env=env).strip()

    def _restore_bytes(self, env: Mapping[str, str]) -> None:
        """Enter files byte for byte as on disk, if git would check out different bytes.

        Filters and settings for line ends change the content on entry, and some drop a part of the
        content. Files untouched since the checkout are as git would check them out. A clock may go
        back, so a file that was touched before the checkout began counts as touched since.
        """
        begun_ns, made_ns = self.checkout_ns
        attributes = (":(exclude,attr:!filter)", ":(exclude,attr:-filter)")
        filtered = set(self._output("ls-files", "-z", "--", *attributes, env=env).split("\0"))
        tree = self._output("write-tree", env=env).strip()
        touched: dict[str, int] = {}
        """Sizes of the files on disk that were changed, or may have been."""
        for entry in self._output("ls-files", "--stage", "-z", env=env).split("\0"):
            facts, _, name = entry.partition("\t")
            with suppress(OSError):  # left out of a sparse working tree
                if facts.startswith("100"):
                    seen = (self.path / name).lstat()
                    if not begun_ns <= seen.st_ctime_ns < made_ns:
                        touched[name] = seen.st_size
        altered: dict[str, str] = {}
        """Modes of the files of which git has entered other bytes, or may have."""
        names = list(touched)
        for at in range(0, len(names), _NAMES_PER_COMMAND):
            # Only of these is the size asked: git would fetch what a partial clone lacks.
            some = names[at : at + _NAMES_PER_COMMAND]
            words = ("ls-tree", "-r", "-l", "-z", "--full-tree", tree, "--", *some)
            for entry in self._output("--literal-pathspecs", *words, env=env).split("\0")[:-1]:
                facts, _, name = entry.partition("\t")
                mode, _, _, size = facts.split()
                if name in filtered or size != str(touched[name]):
                    altered[name] = mode
        names = list(altered)
        for some in (
            names[at : at + _NAMES_PER_COMMAND] for at in range(0, len(names), _NAMES_PER_COMMAND)
        ):
            with TemporaryDirectory(dir=self.admin) as made:
                # A filter that fails checks out nothing: then the file on disk counts.
                words = ("checkout-index", "--quiet", f"--prefix={made}/", "--", *some)
                self._ask(*words, env=env, timeout=CHECKOUT_S)
                lossy = [
                    name for name in some if not same_content(Path(made, name), self.path / name)
                ]
            if not lossy:
                continue
            words = ("hash-object", "-w", "--no-filters", "--", *lossy)
            hashes = self._output(*words, timeout=CHECKOUT_S).split()
            infos = (
                f"{altered[name]},{blob},{name}" for name, blob in zip(lossy, hashes, strict=True)
            )
            words = tuple(word for info in infos for word in ("--cacheinfo", info))
            self._output("update-index", *words, env=env)

    def _repositories(self) -> Iterator[str]:
        """Paths of all repositories inside the working tree, in ignored folders as well.

        Raises `Unsaveable` for a folder that cannot be read.
        """

        def unreadable(flaw: OSError) -> None:
            if not isinstance(flaw, FileNotFoundError):
                raise Unsaveable(f"{flaw.filename} cannot be read: {flaw.strerror}")

        for top, folders, files in os.walk(self.path, onerror=unreadable):
            if ".git" in folders:
                folders.remove(".git")
            elif ".git" not in files:
                continue
            if (place := os.path.relpath(top, self.path)) != ".":
                yield place

    def excluded(self) -> tuple[str, ...]:
        """Files and folders that `info/exclude` names, which no `.gitignore` need name."""
        place = self.path / self._output("rev-parse", "--git-path", "info/exclude").rstrip("\n")
        lines = place.read_text(errors="replace").splitlines() if place.is_file() else ()
        if not any(line.strip() and not line.startswith("#") for line in lines):
            return ()
        words = ("ls-files", "--others", "--ignored", "--directory", "-z")
        env = {"GIT_INDEX_FILE": str(self._scratch)}
        listed = self._output(*words, f"--exclude-from={place}", env=env)
        return tuple(name for name in listed.split("\0") if name)

    def _unhide(self, env: Mapping[str, str]) -> None:
        """Clear the assume-unchanged and skip-worktree flags: changes in such files are work too.

        A skip-worktree entry without a file keeps its flag: the file was not deleted.
        """
        listed = self._output("ls-files", "-v", "-z", env=env).split("\0")
        assumed = [line[2:] for line in listed if line[:1].islower()]
        skipped = [
            line[2:]
            for line in listed
            if line[:1] in {"S", "s"} and os.path.lexists(self.path / line[2:])
        ]
        self._mark("--no-assume-unchanged", assumed, env)
        self._mark("--no-skip-worktree", skipped, env)

    def _mark(self, flag: str, names: Sequence[str], env: Mapping[str, str]) -> None:
        for start in range(0, len(names), _NAMES_PER_COMMAND):
            some = names[start : start + _NAMES_PER_COMMAND]
            self._output("update-index", flag, "--", *some, env=env)

    # Saving the work

    def keep(self, now: TreeSnapshot, branch: str, start: str, epoch: int) -> tuple[Kept, ...]:
        """Save uncommitted and unpushed work under refs; saving the same work twice adds no ref.

        Raises `Unsaveable` if a nested repository has unsaved work: removing the working tree would
        remove the nested work too, and no ref of the outer repository can save nested work.
        """
        env = {"GIT_INDEX_FILE": str(self._scratch)}
        for link in now.links:
            # Exit code 1: not ignored; 128: not known, for instance inside of a submodule.
            ignored = self._ask("check-ignore", "--quiet", "--", link, env=env).returncode == 0
            if (
                nested := self._nested_work(self.path / link, _DEEPEST, ignored=ignored)
            ) is not None:
                raise Unsaveable(f"the repository {nested} in it has work of its own")
        base = [] if now.head is None else [now.head]
        # `mktree` without input gives the empty tree.
        known = self.saved or now.head
        words = ("mktree",) if known is None else ("rev-parse", f"{known}^{{tree}}")
        unchanged = self._output(*words).strip()
        aside = [commit for commit in now.aside if self.repo.has_unpushed(commit, but=base)]
        if now.files == unchanged and now.staged in {None, unchanged} and not aside:
            return self.keep_commits(now.head, branch, start, epoch)
        parents = [*base, *aside]
        if now.staged not in {None, now.files, unchanged}:
            parents.append(self._commit(str(now.staged), base, "what was staged", epoch))
        text = f"what was not committed in {self.path}"
        made = self._commit(now.files, parents, text, epoch)
        saved = self._save(made, branch, epoch, uncommitted=True)
        return (saved, *self.keep_commits(now.head, branch, start, epoch, but=[made]))

    def keep_commits(
        self, head: str | None, branch: str, start: str, epoch: int, *, but: Sequence[str] = ()
    ) -> tuple[Kept, ...]:
        """Save the checked-out commit and the branch, if no remote has them.

        Commits reachable from `start` or from `but` need no ref.
        """
        found: list[Kept] = []
        named = (head, self.repo.commit(f"refs/heads/{branch}"), *self._commits(*self.strays))
        for commit in dict.fromkeys(named):
            elsewhere = [start, *but, *(kept.commit for kept in found)]
            if commit is not None and self.repo.has_unpushed(commit, but=elsewhere):
                found.append(self._save(commit, branch, epoch, uncommitted=False))
        return tuple(found)

    def _save(self, commit: str, branch: str, epoch: int, *, uncommitted: bool) -> Kept:
        ref = recovery_ref(branch, epoch, commit)
        self.repo.keep(ref, commit)
        return Kept(self.repo.name, self.repo.folder, ref, commit, self.path, uncommitted)

    def _commit(self, tree: str, parents: Sequence[str], text: str, epoch: int) -> str:
        """Commit a tree. The same work gives the same hash, so a crash repeats no commit."""
        words = [word for parent in parents for word in ("-p", parent)]
        us = {"NAME": "dibs", "EMAIL": "dibs@localhost", "DATE": f"@{epoch} +0000"}
        who = {
            f"GIT_{role}_{field}": value
            for role in ("AUTHOR", "COMMITTER")
            for field, value in us.items()
        }
        setting = ("-c", "i18n.commitEncoding=UTF-8")
        made = self._output(*setting, "commit-tree", tree, *words, "-m", f"dibs: {text}", env=who)
        return made.strip()

    def _nested_work(self, place: Path, deeper: int, *, ignored: bool) -> Path | None:
        """The first repository at or below `place` with work of its own; None if there is none.

        Work: uncommitted changes, commits that no remote has, or a stash. If a git command fails,
        or `deeper` levels are not enough, the repository counts as having work.

        In an ignored folder, as a dependency is, untracked files are no work, and neither are
        commits if none was made since the clone.
        """
        if not os.path.lexists(place / ".git") or (ignored and not is_repository(place)):
            return None
        within = (self.path, self.admin, self.repo.folder)
        with TemporaryDirectory(dir=self.admin) as made:
            try:
                folder = git_folder(place, within=within)
                stand = stand_in(folder, Path(made, "git"), self.repo, within=within, known=None)
            except Unsaveable:
                return place
            ask = stand.repo.ask
            status = ("status", "--porcelain", "--ignore-submodules=all")
            untracked = "no" if ignored else "normal"
            words = (f"--work-tree={place}", *QUIETLY, *status, f"--untracked-files={untracked}")
            found = [ask(*words)]
            if not (ignored and is_as_cloned(folder, stand.refs)):
                commits = ("rev-list", "--max-count=1", "HEAD", "--branches", "--tags", "--not")
                found.append(ask(*QUIETLY, *commits, "--remotes"))
            entries = ask("ls-files", "--stage", "-z").stdout.split("\0")
        if "refs/stash" in stand.refs or any(one.returncode or one.stdout.strip() for one in found):
            return place
        links = [entry.split("\t", 1) for entry in entries if entry.startswith(_GITLINK)]
        populated = [(kind, link) for kind, link in links if os.path.lexists(place / link / ".git")]
        if populated and deeper == 0:
            return place
        for kind, link in populated:
            if (nested := self._nested_work(place / link, deeper - 1, ignored=ignored)) is not None:
                return nested
            folder = git_folder(place / link, within=within)
            if head_in(folder, within=within) != kind.split(" ")[1]:
                return place
        return None


class WorktreeStep(StrEnum):
    """The points at which a crash must lose no work, in the order in which they are reached."""

    RECORDED = "worktrees.recorded"
    ADDED = "worktrees.added"
    KEPT = "worktrees.kept"
    REMOVED = "worktrees.removed"
    BRANCH_DROPPED = "worktrees.branch_dropped"
    FORGOTTEN = "worktrees.forgotten"


Reached = Callable[[WorktreeStep], None]


def end(session: OpenSession, git: Git, reached: Reached = ignored) -> CleanUp:
    """Clear all working trees of a session, last one first.

    Deletes the session's file if every working tree was cleared.
    """
    git = sharing(git, session)
    cleanup = CleanUp()
    for entry in reversed(session.record.entries):
        cleanup += clear(entry, session.record.epoch, git, reached)
    if not cleanup.left:
        session.forget()
        reached(WorktreeStep.FORGOTTEN)
    return cleanup


def sharing(git: Git, session: OpenSession) -> Git:
    """A git whose commands inherit the session's lock: the session lasts until they end."""
    if isinstance(git, GitProgram):
        return replace(git, shared=(*git.shared, session.descriptor))
    return git


def clear(entry: Entry, epoch: int, git: Git, reached: Reached = ignored) -> CleanUp:
    """Save the work of one working tree, then remove the working tree and its branch.

    Making or removing the working tree may have been cut off at any point. The branch is deleted
    only if it was made for the session and has no unpushed commits. Any error leaves the working
    tree in place.
    """
    path = Path(entry.path)
    try:
        repo = Repository(entry.repo_name, Path(entry.repository), git)
        if not repo.folder.is_dir():
            # There is no repository to save work in.
            gone = Left(entry.repo_name, path, f"{entry.repository} is gone")
            return CleanUp(left=(gone,) if path.exists() else ())
        cleanup = _keep_and_remove(entry, repo, epoch, reached)
        name = f"refs/heads/{entry.branch}"
        made_and_present = entry.new_branch and repo.commit(name) is not None
        if made_and_present and not repo.has_unpushed(name, but=[entry.start]):
            repo.drop_branch(entry.branch)
        reached(WorktreeStep.BRANCH_DROPPED)
    except Exception as flaw:  # noqa: BLE001 - a git of the user's may raise anything
        why = str(flaw) if isinstance(flaw, DibsError | OSError) else repr(flaw)
        return CleanUp(left=(Left(entry.repo_name, path, why),))
    return cleanup


def _keep_and_remove(entry: Entry, repo: Repository, epoch: int, reached: Reached) -> CleanUp:
    """Save the work of a working tree, then remove the tree; raise if the tree must stay."""
    path = Path(entry.path)
    registered = next((tree for tree in repo.worktrees() if tree.path == path), None)
    if registered is None:
        with suppress(OSError):
            path.rmdir()  # succeeds only if the folder is empty
        if path.exists():
            raise Unsaveable("its repository knows nothing of it any more")
        return CleanUp()
    if registered.locked not in {None, HALF_MADE}:
        reason = registered.locked
        raise Unsaveable(f"it is locked: {reason}" if reason else "it is locked")
    if path.is_symlink():
        raise Unsaveable("it is a link by now")
    if entry.run_as is not None and path.exists():
        take_back(path, entry.run_as)
    admin = repo.admin_folder(path)
    if registered.locked == HALF_MADE:  # being made, or removed: no work of a user is in it
        return _remove(repo, entry, admin)
    if admin is None and path.exists():
        raise Unsaveable("its repository has no index of it")
    if admin is None or not path.exists():
        # The folder was deleted; commits on no branch would be lost with the registration.
        tree = Tree(repo, path, repo.folder)
        kept = tree.keep_commits(registered.head or None, entry.branch, entry.start, epoch)
        cleanup = CleanUp(kept=kept)
        reached(WorktreeStep.KEPT)
    else:
        cleanup = _keep(entry, repo, admin, epoch, reached)
    if admin is not None:
        # Removing takes several steps: from here on, no work is in the working tree.
        (admin / "locked").write_text(HALF_MADE, "ascii")
    cleanup += _remove(repo, entry, admin)
    reached(WorktreeStep.REMOVED)
    return cleanup


def note_made(repo: Repository, path: Path) -> None:
    """Note in the clone when the files of a working tree were checked out."""
    if (admin := repo.admin_folder(path)) is not None:
        (admin / _MADE).touch()


def _keep(entry: Entry, repo: Repository, admin: Path, epoch: int, reached: Reached) -> CleanUp:
    """Save the work of a working tree until two looks at it find the same."""
    path, made = Path(entry.path), admin / _MADE
    checkout_ns = (0, 0)
    with TemporaryFile(dir=admin) as now:
        # Git writes `commondir` first. A time in the future was taken from a wrong clock.
        made_ns = made.stat().st_mtime_ns if made.exists() else 0
        if made_ns <= os.fstat(now.fileno()).st_mtime_ns:
            checkout_ns = ((admin / "commondir").stat().st_mtime_ns, made_ns)
    noted = admin / _SAVED
    saved = noted.read_text("ascii") if noted.exists() else None

    def look() -> tuple[Tree, TreeSnapshot]:
        tree = Tree(repo, path, admin, checkout_ns=checkout_ns, saved=saved)
        if entry.apart:
            stand = stand_in_for_tree(entry, repo, admin)
            tree = Tree(stand.repo, path, stand.repo.folder, stand.strays, checkout_ns, saved)
        return tree, tree.snapshot()

    tree, before = look()
    for _ in range(_SNAPSHOTS):
        kept = tree.keep(before, entry.branch, entry.start, epoch)
        if entry.apart and kept:
            bring(tree.repo, repo, entry.branch)
            kept = tuple(dataclasses.replace(one, repository=repo.folder) for one in kept)
            branch = tree.repo.commit(f"refs/heads/{entry.branch}")
            if branch is not None and tree.repo.has_unpushed(branch, but=[entry.start]):
                repo.keep(f"refs/heads/{entry.branch}", branch)
        reached(WorktreeStep.KEPT)
        tree, after = look()
        if after == before:
            newest = next((one.commit for one in kept if one.uncommitted), saved or after.head)
            noted.write_text(newest or entry.start, "ascii")
            names = tree.excluded()
            excluded = (Excluded(entry.repo_name, path, names),) if names else ()
            return CleanUp(kept=kept, excluded=excluded)
        before = after
    raise Unsaveable("somebody is still writing in it")


def _remove(repo: Repository, entry: Entry, admin: Path | None) -> CleanUp:
    """Delete a working tree after saving the work, and then the registration.

    A tree of which something cannot be deleted stays registered, without the lock: the next
    recovery saves what was written there since, and tries again.
    """
    path = Path(entry.path)
    try:
        if path.exists():
            with suppress(PermissionError):
                shutil.rmtree(path)
        for folder, *_ in os.walk(path):  # what is left, with read-only folders of our own
            mode = stat.S_IMODE(Path(folder).lstat().st_mode)
            if not mode & stat.S_IWUSR:
                Path(folder).chmod(mode | stat.S_IWUSR)
        if path.exists():
            shutil.rmtree(path)
    except OSError as flaw:
        if entry.apart:  # half of a git folder is none
            shutil.rmtree(path / ".git", ignore_errors=True)
        if admin is not None:
            (admin / "locked").unlink(missing_ok=True)
        why = f"its work is kept, but only a part of it could be deleted: {flaw}"
        return CleanUp(left=(Left(entry.repo_name, path, why),))
    repo.remove(path, half_made=True)
    return CleanUp(removed=(path,))


_log = logging.getLogger("dibs.worktrees")


def recover(worktree_root: Path | None = None, *, git: Git | None = None) -> CleanUp:
    """Clear the working trees of dead processes, after saving work which only they had.

    Sessions of living processes are not touched. A failure in one session does not stop the
    others.
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
    """Ref and commit of all work saved in this repository."""
    return Repository.at(checkout_path.name, checkout_path, git or GitProgram()).recovered()
