"""Working trees as the places of a worker's runs.

Decides which repositories a run gets, how its branch is called, and whose fault it is if there is
none. Making them, keeping work and clearing up is `MultiWorktree`'s.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from dibs.adapters.git_program import GitProgram
from dibs.adapters.homes import worktrees_folder
from dibs.core.errors import DibsError, HandlerUnusable, Outage, WorktreeUnavailable
from dibs.core.worktrees import BundleWorktree, OneWorktree
from dibs.ports.git import Git
from dibs.ports.workplaces import PlaceWish, Workplace
from dibs.worktrees.choosing import check_base
from dibs.worktrees.multi import MultiWorktree
from dibs.worktrees.recovering import recover
from dibs.worktrees.repository import Repository
from dibs.worktrees.values import WorktreeRequest

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
