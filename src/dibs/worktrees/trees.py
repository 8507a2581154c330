"""Working trees of several repositories on one branch: all of them or none, removed on leaving.

`Choice` decides where each branch starts, and chooses free names. `MultiWorktree` makes the
working trees; leaving saves work that exists nowhere but in them, for whatever reason the block
is left, and removes them. Working trees of a dead process are cleared by the next one. `clearing`
decides what counts as work, `sessions` decides which process is dead.

`WorktreePlaces` makes working trees for the runs of a worker: it decides which repositories a run
gets, how its branch is named, and whether a failure is an outage or the handler's configuration.
"""

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, assert_never

from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.git.program import GitProgram
from dibs.adapters.system import wall_clock, worktrees_folder
from dibs.core.errors import DibsError, HandlerUnusable, Misuse, Outage, WorktreeUnavailable
from dibs.core.pipeline import BundleWorktree, OneWorktree
from dibs.ports.system import Git, PlaceWish, Workplace
from dibs.worktrees.apart import Apart, add_apart
from dibs.worktrees.clearing import Reached, WorktreeStep, end, note_made, recover, sharing
from dibs.worktrees.repository import Repository
from dibs.worktrees.sessions import Entry, OpenSession, PoliteExit, SessionRecord, Sessions
from dibs.worktrees.values import (
    BRANCH,
    BadWorktree,
    BranchTaken,
    CleanUp,
    Naming,
    WorktreeRequest,
    WorktreeSpec,
    fit_for_a_branch,
    ignored,
    remote_branch,
    without_doubles,
)

_EPOCHS = 1000


class LocatedRequest(Struct, frozen=True):
    """A request, the repository found for it, and the commit from which the branch starts."""

    request: WorktreeRequest
    repo: Repository
    start: str
    remote: str
    """The remote of the base; empty if the base is no branch of a remote."""


class Choice(Struct, frozen=True):
    """Chooses commits and names for the working trees of one session.

    Reads the repositories, and fetches if `fetch` is set; makes no working tree. Every refusal
    which can be foreseen is raised here, before the first working tree is made.
    """

    naming: Naming
    requests: tuple[WorktreeRequest, ...]
    root: Path
    git: Git
    fetch: bool

    def locate(self) -> tuple[LocatedRequest, ...]:
        """Find the repository and start commit of each request.

        Raises if two requests would check out the same branch of the same repository.
        """
        located = tuple(self._locate(request) for request in self.requests)
        names: dict[tuple[Path, str], str] = {}
        for repo in (found.repo for found in located):
            earlier = names.setdefault((repo.folder, self.naming.branch(repo.name, 0)), repo.name)
            if earlier != repo.name:
                raise BadWorktree(
                    f"{earlier} and {repo.name} are the same repository, {repo.folder}, "
                    "and a branch can be checked out there once"
                )
        return located

    def _locate(self, request: WorktreeRequest) -> LocatedRequest:
        checkout = request.checkout_path.expanduser().resolve()
        repo = Repository.at(request.repo_name, checkout, self.git)
        remote, branch = remote_branch(request.base, repo.remotes()) or ("", "")
        if self.fetch and remote:
            repo.fetch(remote, branch, checkout)
            if not self.naming.always_new:
                with suppress(BadWorktree):  # the branch is not on the remote yet
                    repo.fetch(remote, self.naming.branch(repo.name, 0), checkout)
        start = _start_commit(repo, request.base)
        for ref, commit in repo.recovered():
            # Saved commits which are on a remote branch by now need no ref any more.
            if not repo.has_unpushed(commit):
                repo.forget(ref, commit)
        return LocatedRequest(request, repo, start, remote)

    def entries(self, located: tuple[LocatedRequest, ...], epoch: int) -> Iterator[Entry]:
        """The plan for each working tree, with the names of this epoch."""
        for found in located:
            request, repo, start = found.request, found.repo, found.start
            branch = self.naming.branch(repo.name, epoch)
            existing = repo.commit(f"refs/heads/{branch}")
            if existing is None and not self.naming.always_new and found.remote:
                # An earlier session may have pushed the branch before its local branch was deleted.
                start = repo.commit(f"refs/remotes/{found.remote}/{branch}") or start
            yield Entry(
                repo_name=repo.name,
                gh_repo=request.gh_repo,
                checkout=str(request.checkout_path.expanduser().resolve()),
                repository=str(repo.folder),
                path=str(self.root / self.naming.folder(repo.name, epoch)),
                branch=branch,
                start=start,
                new_branch=existing is None,
            )


def choose_names(
    choice: Choice, located: tuple[LocatedRequest, ...], taken: Collection[str], epoch: int
) -> tuple[int, tuple[Entry, ...]]:
    """Find the first epoch, from `epoch` on, with free names in every repository.

    `taken` are the folders of other sessions. Raises `BranchTaken` if a branch is checked out
    in another working tree.
    """
    for candidate in range(epoch, epoch + _EPOCHS):
        entries = tuple(choice.entries(located, candidate))
        folders_free = all(
            entry.path not in taken and not Path(entry.path).exists() for entry in entries
        )
        branches_free = not choice.naming.always_new or all(entry.new_branch for entry in entries)
        if folders_free and branches_free:
            break
    else:
        raise BadWorktree(f"no free name for {choice.naming.session(epoch)} in {choice.root}")
    for found, entry in zip(located, entries, strict=True):
        repo, branch = found.repo, entry.branch
        if not fit_for_a_branch(branch):
            raise BadWorktree(f"{repo.name}: {branch!r} is not a name that git has for a branch")
        holder = next((tree for tree in repo.worktrees() if tree.branch == branch), None)
        if holder is not None:
            if holder.path.exists() or holder.locked is not None:
                raise BranchTaken(repo.name, branch, holder.path)
            # The folder was deleted but is still registered; the branch has its commits.
            repo.remove(holder.path)
    return candidate, entries


def _start_commit(repo: Repository, base: str) -> str:
    found = repo.commit(base)
    if found is None and repo.ask("rev-parse", "--is-bare-repository").stdout.strip() == "true":
        # A bare clone has the branches of its remote as its own branches.
        found = repo.commit(f"refs/heads/{base.partition('/')[2]}")
    if found is None:
        raise BadWorktree(f"{repo.name}: {repo.folder} has no {base!r} to start from")
    return found


_log = logging.getLogger("dibs.worktrees")


@dataclass
class MultiWorktree:
    """A context manager: inside the block, each repository has a working tree on the branch.

    `branch` may have the fields agent, feature, repo and epoch. With `{epoch}` the branch is new
    each time; without, an existing branch of the same name is continued.
    """

    requests: Sequence[WorktreeRequest]
    agent: str
    feature_id: str
    worktree_root: Path = field(default_factory=worktrees_folder)
    git: Git = field(default_factory=GitProgram)
    now: float | None = None
    branch: str = field(default=BRANCH, kw_only=True)
    fetch: bool = field(default=True, kw_only=True)
    reached: Reached = field(default=ignored, kw_only=True, repr=False)
    apart: Apart | None = field(default=None, kw_only=True)
    """Give each working tree a repository of its own; None: the working trees share the clone's."""
    cleanup: CleanUp = field(default=CleanUp(), init=False)
    """Set on leaving: work saved under refs, and working trees that were not removed."""
    _session: OpenSession | None = field(default=None, init=False, repr=False)
    _exit: PoliteExit = field(default_factory=PoliteExit, init=False, repr=False)
    _owner: int = field(default=0, init=False, repr=False)

    @property
    def specs(self) -> list[WorktreeSpec]:
        """The working trees, in the order of the requests."""
        entries = () if self._session is None else self._session.record.entries
        return [entry.spec for entry in entries]

    @property
    def shared(self) -> tuple[int, ...]:
        """Descriptors of the session's lock: a process with one open keeps the session alive."""
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
            located, sessions = choice.locate(), Sessions(root)
            epoch = int(self.now if self.now is not None else wall_clock().timestamp())
            with sessions.naming_lock():
                epoch, entries = choose_names(choice, located, sessions.recorded_paths(), epoch)
                if (apart := self.apart) is not None:
                    entries = tuple(
                        replace(one, apart=True, run_as=apart.run_as) for one in entries
                    )
                record = SessionRecord(self.agent, self.feature_id, epoch, entries, os.getpid())
                self._session = sessions.begin(naming.session(epoch), record)
            self.reached(WorktreeStep.RECORDED)
            git = sharing(self.git, self._session)
            for entry in entries:
                repo = Repository(entry.repo_name, Path(entry.repository), git)
                if self.apart is None:
                    repo.add(Path(entry.path), entry.branch, entry.start, new=entry.new_branch)
                else:
                    add_apart(repo, entry, self.apart)
                note_made(repo, Path(entry.path))
                self.reached(WorktreeStep.ADDED)
        except BaseException as failure:
            self._leave(failure)
            raise
        return self

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        # A forked child that leaves the block must not clear its parent's working trees.
        if os.getpid() == self._owner:
            self._leave(failure)

    def _leave(self, failure: BaseException | None) -> None:
        """Clear the working trees; log where work was saved, and add it as notes to `failure`."""
        self._exit.wait()
        try:
            if self._session is not None:
                self.cleanup = end(self._session, self.git, self.reached)
                for line in self.cleanup.told:
                    _log.warning("%s", line)
                    if failure is not None:
                        failure.add_note(line)
        except Exception as flaw:
            if failure is None:
                raise
            failure.add_note(f"the working trees could not be cleared: {flaw}")
        finally:
            if self._session is not None:
                self._session.close()
            self._session = None
            self._exit.end()


def verify_worktree_clean(wt_path: Path, *, git: Git | None = None) -> bool:
    """Whether the working tree has no uncommitted changes; False if `git status` fails."""
    answer = (git or GitProgram())(["status", "--short"], cwd=wt_path, timeout=60)
    return answer.returncode == 0 and not answer.stdout.strip()


def iter_worktree_paths(specs: Iterable[WorktreeSpec]) -> Iterator[Path]:
    return (spec.worktree_path for spec in specs)


_AGENT = "dibs"
_LONGEST_NAME = 60
_OWN_REPOSITORY = "the tracker's own repository, whose name is ''"
_UNNAMED_REPO = "here"
"""Name for the embedded tracker's only repository, which has no name of its own."""


@dataclass(frozen=True)
class WorktreePlaces:
    """Working trees as the places of a worker's runs."""

    root: Path
    """The folder to which paths in the configuration are relative."""
    repos: Mapping[str, Path]
    """The clones of the repositories of bundles, by repository name."""
    worktree_root: Path = field(default_factory=worktrees_folder)
    git: Git = field(default_factory=GitProgram)

    def check(self, worktree: OneWorktree | BundleWorktree, repos: tuple[str, ...]) -> None:
        """Raise `HandlerUnusable` if a repository or its base is missing.

        Does not ask a remote whether it has the branch.
        """
        for request in self._requests(worktree, repos):
            try:
                repo = Repository.at(request.repo_name, request.checkout_path, self.git)
                if remote_branch(request.base, repo.remotes()) is None:
                    _start_commit(repo, request.base)
            except (DibsError, OSError) as flaw:
                raise HandlerUnusable(f"no worktree can be made: {flaw}") from flaw

    def recover(self) -> None:
        recover(self.worktree_root, git=self.git)

    @contextmanager
    def open(self, wish: PlaceWish) -> Iterator[Workplace]:
        """Make the working trees of a run; remove them on leaving.

        Raises `WorktreeUnavailable` if a later try may succeed, otherwise `HandlerUnusable`.
        Neither error counts against the issue.
        """
        requests = self._requests(wish.worktree, wish.repos)
        # The run is part of the name: no two runs share a branch, even on different machines.
        named = f"{wish.name.lstrip('#')[:_LONGEST_NAME]}-{wish.run}"
        apart = Apart(wish.run_as)
        trees = MultiWorktree(requests, _AGENT, named, self.worktree_root, self.git, apart=apart)
        kept: list[str] = []
        with ExitStack() as stack:
            stack.callback(lambda: kept.extend(trees.cleanup.told))  # runs after the clean-up
            try:
                stack.enter_context(trees)
            except HandlerUnusable:
                raise
            except (DibsError, OSError) as flaw:
                if isinstance(flaw, Outage) and flaw.retryable:
                    raise WorktreeUnavailable(f"no worktree could be made: {flaw}") from flaw
                raise HandlerUnusable(f"no worktree can be made: {flaw}") from flaw
            specs = trees.specs
            yield Workplace(
                folder=specs[0].worktree_path,
                folders={spec.gh_repo: spec.worktree_path for spec in specs},
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
                requests = []
                clones = {name.casefold(): path for name, path in self.repos.items()}
                for repo in repos:
                    clone = clones.get(repo.casefold())
                    if clone is None:
                        name = repr(repo) if repo else _OWN_REPOSITORY
                        raise HandlerUnusable(
                            f"[repos] does not say where {name} is on this machine"
                        )
                    name = repo or _UNNAMED_REPO
                    requests.append(WorktreeRequest(name, clone, gh_repo=repo, base=base))
                return tuple(requests)
            case never:
                assert_never(never)
