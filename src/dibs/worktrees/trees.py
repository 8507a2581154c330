"""Working trees of several repositories on one branch: all of them or none, gone when you leave.

Leaving keeps first what only they have, whatever the reason was to leave; what a dead process left
is found and cleared by the next one. Which work counts is decided in `saving`, who is dead in
`sessions`.

Which working trees a session will make: where each starts from, and names that are free.

Looks, and fetches if it is told to; makes nothing. All that can be refused is refused here, before
the first working tree is there.

Working trees as the places of a worker's runs.

Decides which repositories a run gets, how its branch is called, and whose fault it is if there is
none. Making them, keeping work and clearing up is `MultiWorktree`'s.
"""

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, assert_never

from dibs.adapters.git.program import GitProgram
from dibs.adapters.system import wall_clock, worktrees_folder
from dibs.core.errors import DibsError, HandlerUnusable, Misuse, Outage, WorktreeUnavailable
from dibs.core.pipeline import BundleWorktree, OneWorktree
from dibs.ports.system import Git, PlaceWish, Workplace
from dibs.worktrees.clearing import Reached, WorktreeStep, end, recover, sharing, unwatched
from dibs.worktrees.repository import Repository
from dibs.worktrees.sessions import Entry, PoliteExit, Record, Session, Sessions
from dibs.worktrees.values import (
    BRANCH,
    BadWorktree,
    BranchTaken,
    CleanUp,
    Naming,
    WorktreeRequest,
    WorktreeSpec,
    fit_for_a_branch,
    remote_branch,
    without_doubles,
)

_EPOCHS = 1000


@dataclass(frozen=True, slots=True)
class Found:
    """A request whose repository is there, and the commit that its branch starts from."""

    request: WorktreeRequest
    repo: Repository
    start: str
    remotes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    naming: Naming
    requests: tuple[WorktreeRequest, ...]
    root: Path
    git: Git
    fetch: bool

    def found(self) -> tuple[Found, ...]:
        found = tuple(self._find(one) for one in self.requests)
        names: dict[tuple[Path, str], str] = {}
        for one in found:
            where = (one.repo.folder, self.naming.branch(one.repo.name, 0))
            other = names.setdefault(where, one.repo.name)
            if other != one.repo.name:
                raise BadWorktree(
                    f"{other} and {one.repo.name} are the same repository, {one.repo.folder}, "
                    "and a branch can be checked out there once"
                )
        return found

    def _find(self, request: WorktreeRequest) -> Found:
        checkout = request.checkout_path.expanduser().resolve()
        repo = Repository.at(request.repo_name, checkout, self.git)
        remotes = repo.remotes()
        if self.fetch:
            self._fetch(request, repo, remotes)
        start = _start(repo, request.base)
        if start is None:
            raise BadWorktree(f"{repo.name}: {repo.folder} has no {request.base!r} to start from")
        _forget_what_was_pushed(repo)
        return Found(request, repo, start, remotes)

    def _fetch(self, request: WorktreeRequest, repo: Repository, remotes: Collection[str]) -> None:
        named = remote_branch(request.base, remotes)
        if named is None:
            return
        checkout = request.checkout_path.expanduser().resolve()
        repo.fetch(*named, checkout)
        if not self.naming.always_new:
            with suppress(BadWorktree):  # nobody has pushed it yet
                repo.fetch(named[0], self.naming.branch(repo.name, 0), checkout)

    def entries(self, found: tuple[Found, ...], epoch: int) -> tuple[Entry, ...]:
        return tuple(self._entry(one, epoch) for one in found)

    def _entry(self, one: Found, epoch: int) -> Entry:
        branch = self.naming.branch(one.repo.name, epoch)
        known, start = one.repo.commit(f"refs/heads/{branch}"), one.start
        if known is None and not self.naming.always_new:
            start = _pushed(one, branch) or start
        return Entry(
            repo_name=one.repo.name,
            gh_repo=one.request.gh_repo,
            checkout=str(one.request.checkout_path.expanduser().resolve()),
            repository=str(one.repo.folder),
            path=str(self.root / self.naming.folder(one.repo.name, epoch)),
            branch=branch,
            start=start,
            new_branch=known is None,
        )


def chosen(
    choice: Choice, found: tuple[Found, ...], meant: Collection[str], epoch: int
) -> tuple[int, tuple[Entry, ...]]:
    """The first moment from this one on whose names are free everywhere."""
    for moment in range(epoch, epoch + _EPOCHS):
        entries = choice.entries(found, moment)
        folders_free = all(one.path not in meant and not Path(one.path).exists() for one in entries)
        branches_free = not choice.naming.always_new or all(one.new_branch for one in entries)
        if folders_free and branches_free:
            for one, entry in zip(found, entries, strict=True):
                _check_branch(one.repo, entry.branch)
            return moment, entries
    raise BadWorktree(f"no free name for {choice.naming.session(epoch)} in {choice.root}")


def _check_branch(repo: Repository, branch: str) -> None:
    if not fit_for_a_branch(branch):
        raise BadWorktree(f"{repo.name}: {branch!r} is not a name that git has for a branch")
    holder = repo.holder_of(branch)
    if holder is None:
        return
    if holder.path.exists() or holder.locked is not None:
        raise BranchTaken(repo.name, branch, holder.path)
    repo.remove(holder.path)  # a registration that outlived its folder; the branch has its commits


def _start(repo: Repository, base: str) -> str | None:
    found = repo.commit(base)
    if found is None and repo.bare():
        # A bare clone has the branches of its remote as its own.
        found = repo.commit(f"refs/heads/{base.partition('/')[2]}")
    return found


def check_base(repo: Repository, base: str) -> None:
    """Raises if nothing has this name, and no remote could. Without asking the remote."""
    if _start(repo, base) is None and remote_branch(base, repo.remotes()) is None:
        raise BadWorktree(f"{repo.name}: {repo.folder} has no {base!r} to start from")


def _pushed(one: Found, branch: str) -> str | None:
    """Where an earlier session got to, if it pushed and its local branch is gone."""
    named = remote_branch(one.request.base, one.remotes)
    return None if named is None else one.repo.commit(f"refs/remotes/{named[0]}/{branch}")


def _forget_what_was_pushed(repo: Repository) -> None:
    """A ref that keeps commits has done its part once a remote's branch has them."""
    for ref, commit in repo.recovered():
        if not repo.only_here([commit]):
            repo.forget(ref, commit)


_log = logging.getLogger("dibs.worktrees")


@dataclass
class MultiWorktree:
    """A context manager: inside it, each repository has a working tree of its own on the branch.

    `branch` may have the fields agent, feature, repo and epoch. With `{epoch}` it is a new branch
    each time; without, a branch of that name is gone on with if it is there.
    """

    requests: Sequence[WorktreeRequest]
    agent: str
    feature_id: str
    worktree_root: Path = field(default_factory=worktrees_folder)
    git: Git = field(default_factory=GitProgram)
    now: float | None = None
    branch: str = field(default=BRANCH, kw_only=True)
    fetch: bool = field(default=True, kw_only=True)
    reached: Reached = field(default=unwatched, kw_only=True, repr=False)
    cleanup: CleanUp = field(default=CleanUp(), init=False)
    """What became of them once they are left: which work is kept where, and what stayed."""
    _session: Session | None = field(default=None, init=False, repr=False)
    _exit: PoliteExit = field(default_factory=PoliteExit, init=False, repr=False)
    _owner: int = field(default=0, init=False, repr=False)

    @property
    def specs(self) -> list[WorktreeSpec]:
        """The working trees, in the order of the requests."""
        return [] if self._session is None else [one.spec for one in self._session.record.entries]

    @property
    def shared(self) -> tuple[int, ...]:
        """Open files that are the session's lock: whoever keeps one open is part of it."""
        return () if self._session is None else (self._session.descriptor,)

    def __enter__(self) -> Self:
        if self._session is not None:
            raise Misuse("these worktrees are there already")
        naming = Naming(self.agent, self.feature_id, self.branch)
        requests = without_doubles(self.requests)
        root = self.worktree_root.expanduser().resolve()
        self.cleanup, self._owner = CleanUp(), os.getpid()
        recover(root, git=self.git)
        self._exit.watch()
        try:
            choice = Choice(naming, requests, root, self.git, fetch=self.fetch)
            self._session = self._begun(choice, naming, Sessions(root))
            self.reached(WorktreeStep.RECORDED)
            self._add_all(self._session)
        except BaseException as failure:
            self._leave(failure)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A fork that leaves the block by its own way out must not clear its parent's.
        if os.getpid() == self._owner:
            self._leave(failure)

    def _begun(self, choice: Choice, naming: Naming, sessions: Sessions) -> Session:
        found = choice.found()
        epoch = int(self.now if self.now is not None else wall_clock().timestamp())
        with sessions.turn():
            epoch, entries = chosen(choice, found, sessions.meant(), epoch)
            record = Record(self.agent, self.feature_id, epoch, entries, os.getpid())
            return sessions.begin(naming.session(epoch), record)

    def _add_all(self, session: Session) -> None:
        git = sharing(self.git, session)
        for entry in session.record.entries:
            repo = Repository(entry.repo_name, Path(entry.repository), git)
            repo.add(Path(entry.path), entry.branch, entry.start, new=entry.new_branch)
            self.reached(WorktreeStep.ADDED)

    def _leave(self, failure: BaseException | None) -> None:
        self._exit.wait()
        try:
            if self._session is not None:
                self.cleanup = end(self._session, self.git, self.reached)
                _tell(self.cleanup, failure)
        finally:
            if self._session is not None:
                self._session.close()
            self._session = None
            self._exit.end()


def _tell(cleanup: CleanUp, failure: BaseException | None) -> None:
    """Where the work is, in the log, and with the reason for leaving."""
    for line in cleanup.told:
        _log.warning("%s", line)
        if failure is not None:
            failure.add_note(line)


def verify_worktree_clean(wt_path: Path, *, git: Git | None = None) -> bool:
    """Whether git finds nothing that is not committed there; False too if it cannot be asked."""
    answer = (git or GitProgram())(["status", "--short"], cwd=wt_path, timeout=60)
    return answer.returncode == 0 and not answer.stdout.strip()


def iter_worktree_paths(specs: Iterable[WorktreeSpec]) -> Iterator[Path]:
    return (one.worktree_path for one in specs)


_AGENT = "dibs"
_LONGEST_NAME = 60
_OWN = "here"
"""What the embedded tracker's only repository is called, which has no name."""


@dataclass(frozen=True)
class WorktreePlaces:
    root: Path
    """The folder that paths of the configuration start from."""
    repos: Mapping[str, Path]
    """Where the repositories of bundles are."""
    worktree_root: Path = field(default_factory=worktrees_folder)
    git: Git = field(default_factory=GitProgram)

    def check(self, worktree: OneWorktree | BundleWorktree, repos: tuple[str, ...]) -> None:
        for request in self._requests(worktree, repos):
            try:
                repo = Repository.at(request.repo_name, request.checkout_path, self.git)
                check_base(repo, request.base)
            except (DibsError, OSError) as flaw:
                raise HandlerUnusable(f"no worktree can be made: {flaw}") from flaw

    def recover(self) -> None:
        recover(self.worktree_root, git=self.git)

    @contextmanager
    def open(self, wish: PlaceWish) -> Iterator[Workplace]:
        requests = self._requests(wish.worktree, wish.repos)
        # The run is in the name: no two runs have one branch, on whatever machines they are.
        named = f"{wish.name.lstrip('#')[:_LONGEST_NAME]}-{wish.run}"
        trees = MultiWorktree(requests, _AGENT, named, self.worktree_root, self.git)
        kept: list[str] = []
        with ExitStack() as stack:
            stack.callback(lambda: kept.extend(trees.cleanup.told))  # when they are cleared
            try:
                stack.enter_context(trees)
            except (DibsError, OSError) as flaw:
                raise _not_made(flaw) from flaw
            specs = trees.specs
            yield Workplace(
                folder=specs[0].worktree_path,
                folders={one.gh_repo: one.worktree_path for one in specs},
                branch=specs[0].branch_name,
                shared=trees.shared,
                kept=kept,
            )

    def _requests(
        self, worktree: OneWorktree | BundleWorktree, repos: tuple[str, ...]
    ) -> tuple[WorktreeRequest, ...]:
        match worktree:
            case OneWorktree(repository, base):
                path = Path(os.path.abspath(self.root / repository))  # noqa: PTH100 - no `..` in it
                return (WorktreeRequest(path.name, path, gh_repo=path.name, base=base),)
            case BundleWorktree(base):
                return tuple(self._of_bundle(repo, base) for repo in repos)
            case never:
                assert_never(never)

    def _of_bundle(self, repo: str, base: str) -> WorktreeRequest:
        path = {name.casefold(): path for name, path in self.repos.items()}.get(repo.casefold())
        if path is None:
            shown = repr(repo) if repo else "the tracker's own repository, whose name is ''"
            raise HandlerUnusable(f"[repos] does not say where {shown} is on this machine")
        return WorktreeRequest(repo or _OWN, path, gh_repo=repo, base=base)


def _not_made(flaw: Exception) -> DibsError:
    """Whether to try again later is the error's own word; nothing says anything of the issue."""
    if isinstance(flaw, HandlerUnusable):
        return flaw
    if isinstance(flaw, Outage) and flaw.retryable:
        return WorktreeUnavailable(f"no worktree could be made: {flaw}")
    return HandlerUnusable(f"no worktree can be made: {flaw}")
