"""Working trees of several repositories on one branch: all of them or none, gone when you leave.

Leaving keeps first what only they have, whatever the reason was to leave; what a dead process left
is found and cleared by the next one. Which work counts is decided in `saving`, who is dead in
`sessions`.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from dibs.adapters.clocks import wall_clock
from dibs.adapters.git_program import GitProgram
from dibs.adapters.homes import worktrees_folder
from dibs.core.errors import Misuse
from dibs.ports.git import Git
from dibs.worktrees.choosing import Choice, chosen
from dibs.worktrees.clearing import Reached, WorktreeStep, end, sharing, unwatched
from dibs.worktrees.leaving import PoliteExit
from dibs.worktrees.naming import BRANCH, Naming, without_doubles
from dibs.worktrees.recovering import recover
from dibs.worktrees.repository import Repository
from dibs.worktrees.sessions import Record, Session, Sessions
from dibs.worktrees.values import CleanUp, WorktreeRequest, WorktreeSpec

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
