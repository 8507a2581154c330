"""Local time: monotonic, counting suspend, good only for deciding when to stop trusting.

What runs beside its caller: renewals, watches, jobs. In a simulation they are no threads.

Where events go. A journal that cannot be written must not stop the work.

Running a stage's handler so that it can be stopped, whatever state the worker is in.

That something may have changed: worth a look, and never a fact to build on.

Nothing depends on a hint. One that is lost, late, repeated or made up costs a look at most, and
polling goes on beside it.

A place of its own for a run: made before its handler starts, cleared when the run is over.

The git program, as what needs a working tree sees it: some words, a folder, an answer.

The same call as the published `GitRunner`, so that what was written for that one can be handed in.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from dibs.core.events import Event
from dibs.core.ids import IssueRef, LocalTime, RunId
from dibs.core.pipeline import BundleWorktree, Command, OneWorktree, PythonCallable


class Clock(Protocol):
    def now(self) -> LocalTime: ...

    def sleep(self, seconds: float) -> None: ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Sleep until the event is set or the time is over; True if it was set."""
        ...


class Thread(Protocol):
    def join(self) -> None:
        """Wait for its end. One that joins itself returns at once."""
        ...


class Threads(Protocol):
    def start(self, work: Callable[[], None], name: str) -> Thread: ...


class Journal(Protocol):
    def append(self, event: Event) -> None: ...


class Assignment(Struct, frozen=True):
    """One run of a handler."""

    run: RunId
    handler: Command | PythonCallable
    stdin: bytes
    environment: Mapping[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    """Names of secrets that this handler is trusted with."""
    stop_within: timedelta = timedelta(seconds=5)
    """From SIGTERM to SIGKILL."""
    in_sight: bool = False
    """Reads and writes where we do, instead of in its run's folder."""
    as_typed: bool = False
    """A person's own command: in the folder where they are, with the environment they have."""
    folder: Path | None = None
    """Where it starts, if not where all handlers do."""
    shared: tuple[int, ...] = ()
    """Open files to keep open until the whole group has ended, also if we die."""


class Exited(Struct, frozen=True):
    code: int


class Stopped(Struct, frozen=True):
    """We ended it: the lease was lost, the time limit was over, the worker is leaving."""

    why: str


RunEnd = Exited | Stopped


class Running(Protocol):
    def trust_until(self, moment: LocalTime) -> None:
        """The handler may run until then; beyond it, it is stopped even if we are frozen."""
        ...

    def poll(self, seconds: float) -> RunEnd | None:
        """Wait at most so long for the end."""
        ...

    def stop(self, why: str) -> None:
        """Ask the whole group to end, then make it."""
        ...

    def kill(self) -> None:
        """End the whole group now."""
        ...

    def result(self) -> bytes:
        """What the handler left in DIBS_RESULT; empty if nothing. Raises OSError or ValueError."""
        ...


class Runner(Protocol):
    def check(self, handler: Command | PythonCallable, *, elsewhere: bool = False) -> None:
        """Raises HandlerUnusable if it cannot possibly start.

        `elsewhere`: it will start in a folder that is not there yet.
        """
        ...

    def start(self, assignment: Assignment, trusted_until: LocalTime) -> Running: ...


class Happening(Struct, frozen=True):
    """What a tracker says has happened, in its own words."""

    event: str
    """What it happened to: `issues`, `issue_comment`, `label`, `pull_request`, `repository`; or
    `ping`, which says only that somebody is there.
    """
    action: str = ""
    repo: str = ""
    """Empty where nothing but the event is known, because nobody here has a use for it."""
    repo_id: int = 0
    """Stays the same if the repository gets another name."""
    was_repo: str = ""
    """The repository's name before, if that is what changed."""
    issue: IssueRef | None = None
    on_pull: bool = False
    """It is about a pull request, which trackers number among the issues."""
    label: str = ""
    comment: str = ""


class Rubbish(ValueError):
    """It says that it comes from the tracker, and cannot be read."""


class Deliveries(Protocol):
    """What a tracker sends by itself. Headers are named in lower case."""

    def vouched_for(self, body: bytes, headers: Mapping[str, str]) -> bool:
        """Whether it comes from the tracker. To be asked before anything else is read."""
        ...

    def number(self, headers: Mapping[str, str]) -> str:
        """The tracker's own name of the delivery: the same if it comes again. May be empty."""
        ...

    def read(self, body: bytes, headers: Mapping[str, str]) -> Happening:
        """Raises Rubbish."""
        ...


class Hints(Protocol):
    @property
    def every_s(self) -> float:
        """How often it is worth asking."""
        ...

    def heard(self) -> bool:
        """Whether anybody hinted since it was last asked. Cheap, and never fails."""
        ...


class Waker(Protocol):
    def wake(self) -> None:
        """Hint to every worker of this folder that something may have changed."""
        ...


class PlaceWish(Struct, frozen=True):
    """What a run wants."""

    run: RunId
    name: str
    """What it is about, for names that people read: an issue, or a bundle."""
    worktree: OneWorktree | BundleWorktree
    repos: tuple[str, ...] = ()
    """For a bundle: the repositories of its issues, the one to start in first."""


class Workplace(Struct):
    folder: Path
    """Where the handler starts."""
    folders: Mapping[str, Path]
    """Every working tree, by its repository."""
    branch: str
    """The same in all of them."""
    shared: tuple[int, ...] = ()
    """Open files that whatever ends the handler keeps open: the place is in use until then."""
    kept: list[str] = field(default_factory=list)
    """Once it is left: where work is that would have gone with it, and what was not cleared."""


class Workplaces(Protocol):
    def check(self, worktree: OneWorktree | BundleWorktree, repos: tuple[str, ...]) -> None:
        """Raises HandlerUnusable if no place of this kind can possibly be made here."""
        ...

    def recover(self) -> None:
        """Clear what dead processes left, keeping its work. The log says where work is kept."""
        ...

    def open(self, wish: PlaceWish) -> AbstractContextManager[Workplace]:
        """A place, until the context is left; whatever it then has that nobody else has is kept.

        Entering raises WorktreeUnavailable if it may work later, HandlerUnusable if it will not.
        """
        ...


class GitResult(Struct, frozen=True):
    """How a command ended, and what it said."""

    returncode: int
    stdout: str = ""
    stderr: str = ""


class Git(Protocol):
    def __call__(
        self,
        args: Sequence[str],
        *,
        cwd: Path,
        timeout: float = 60,
        env: Mapping[str, str] = ...,
    ) -> GitResult:
        """Run git with these words in this folder, for so many seconds at most.

        A command that fails is a result. Raises Unavailable if there was no answer in time, and
        then it no longer runs. `env` is handed over only where a command needs it.
        """
        ...
