"""Which working trees a session will make: where each starts from, and names that are free.

Looks, and fetches if it is told to; makes nothing. All that can be refused is refused here, before
the first working tree is there.
"""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dibs.ports.git import Git
from dibs.worktrees.naming import Naming, fit_for_a_branch, remote_branch
from dibs.worktrees.repository import Repository
from dibs.worktrees.sessions import Entry
from dibs.worktrees.values import BadWorktree, BranchTaken, WorktreeRequest

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
