"""The system around a worker: clock, threads, journal, handlers, hints, working trees, git.

Local time (`Clock`) is monotonic and counts suspend; it serves only to decide when to stop trusting
a lease. `Threads` starts work that runs beside its caller: renewals, watches, jobs. In a simulation
these are no threads. `Observer` takes events; a journal that cannot be written must not stop the
work. `Runner` runs the handler of a stage so that it can be stopped in any state of the worker.

A hint (`Hints`, `Waker`, `Deliveries`) says that the tracker may have changed: worth a look, and
never a fact to build on. A hint that is lost, late, repeated or made up costs a look at most, and
polling goes on beside it.

`Workplaces` gives a run a place of its own, made before its handler starts and cleared when the run
is over. `Git` is the git program as users of a working tree see it: some words, a folder, a result.
It is the same call as the published `GitRunner`, so that a runner written for that can be used.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from dibs.core.events import Event
from dibs.core.ids import IssueRef, LocalTime, RunId
from dibs.core.lease import Lease
from dibs.core.pipeline import BundleWorktree, Command, Env, OneWorktree, PythonCallable


class Clock(Protocol):
    def now(self) -> LocalTime: ...

    def sleep(self, seconds: float) -> None: ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Sleep until the event is set or the time is over; True if it was set."""
        ...


class StartedThread(Protocol):
    """A thread of the operating system, or its stand-in in a simulation."""

    def join(self) -> None:
        """Wait for the end of the thread. A thread which joins itself returns at once."""
        ...


class Threads(Protocol):
    def start(self, work: Callable[[], None], name: str) -> StartedThread: ...

    def start_within(
        self, seconds: float, work: Callable[[], None], name: str, otherwise: Callable[[], None]
    ) -> StartedThread:
        """Start the work at any time within so many seconds; never, if it is joined before.

        For work that begins with a wait and is mostly joined before the wait is over: then it costs
        no thread. `otherwise` is called in another thread if no thread can be started by then.
        """
        ...


class Observer(Protocol):
    """Takes the events of the services: a journal, metrics, notifications."""

    def observe(self, event: Event) -> None:
        """Take an event. Must return soon; what fails must not stop the work."""
        ...


class Assignment(Struct, frozen=True):
    """Everything a runner needs to run a handler once."""

    run: RunId
    handler: Command | PythonCallable
    stdin: bytes
    environment: Mapping[str, str] = field(default_factory=dict)
    env: Env = Env.LISTED
    """What the handler gets of our own environment."""
    pass_env: tuple[str, ...] = ()
    """Names of further variables that the handler gets."""
    run_as: str = ""
    """The user as whom the handler runs; empty for our own."""
    stop_within: timedelta = timedelta(seconds=5)
    """The time between SIGTERM and SIGKILL."""
    in_sight: bool = False
    """The handler uses our own input and output, instead of files in the folder of its run."""
    as_typed: bool = False
    """A person's own command: runs in the current folder, and its names in `pass_env` count."""
    folder: Path | None = None
    """The folder to start in; None: the folder of all handlers."""
    shared: tuple[int, ...] = ()
    """File descriptors to keep open until the whole process group has ended, also if we die."""
    lease: Lease | None = None
    """The lease that another worker of this machine may end, if we die when the handler has
    finished; None if no other may.
    """


class Exited(Struct, frozen=True):
    code: int


class Stopped(Struct, frozen=True):
    """We ended the handler: lease lost, time limit over, or the worker is leaving."""

    why: str


RunEnd = Exited | Stopped


class RunningHandler(Protocol):
    """A handler which was started, with all its processes: the group."""

    def trust_until(self, moment: LocalTime) -> None:
        """Let the handler run until `moment`. After it, the handler is stopped, even if we hang."""
        ...

    def poll(self, seconds: float) -> RunEnd | None:
        """Wait at most `seconds` for the end. None: the handler still runs."""
        ...

    def stop(self, why: str) -> None:
        """Ask the whole group to end; kill it after `stop_within`."""
        ...

    def kill(self) -> None:
        """End the whole group now."""
        ...

    def answers(self) -> tuple[bytes, bytes]:
        """The contents of the files DIBS_RESULT and DIBS_PLAN; empty without a file.

        Raises OSError, ValueError.
        """
        ...

    def last_words(self) -> str:
        """The end of the handler's output as a short line for people, without secrets; or empty."""
        ...


class FinishedRun(Struct, frozen=True):
    """A handler exited with 0, and its worker died before it wrote the ending."""

    lease: Lease
    """As the lease was when the handler started."""
    result: bytes
    """The content of the file DIBS_RESULT; empty without a file."""
    plan: bytes = b""
    """The content of the file DIBS_PLAN."""


class Runner(Protocol):
    def check(
        self,
        handler: Command | PythonCallable,
        *,
        elsewhere: bool = False,
        run_as: str = "",
        env: Env = Env.LISTED,
        pass_env: tuple[str, ...] = (),
    ) -> None:
        """Raises HandlerUnusable if the handler cannot possibly start.

        `elsewhere`: the handler will start in a folder which does not exist yet. The rest is as in
        an assignment.
        """
        ...

    def start(self, assignment: Assignment, trusted_until: LocalTime) -> RunningHandler: ...

    def settle(self, run: RunId) -> None:
        """The run is over for the caller, with or without an ending: no heir ends the run.

        Without the call, a worker may end a finished run once the caller's process has ended.
        """
        ...

    def finished_by_the_dead(self) -> Iterator[FinishedRun]:
        """The finished runs of dead workers of this machine, each for one caller only.

        A run is forgotten when the next one is asked for, and kept if the caller stops before.
        """
        ...


class Happening(Struct, frozen=True):
    """An event, as reported by a tracker in its own words."""

    event: str
    """The kind of event: `issues`, `issue_comment`, `label`, `pull_request`, `repository`; or
    `ping`, a test of the connection.
    """
    action: str = ""
    repo: str = ""
    """Empty for events that dibs has no use for: then only `event` is filled in."""
    repo_id: int = 0
    """Stays the same when the repository is renamed."""
    was_repo: str = ""
    """The old name of the repository, if the event is its renaming."""
    issue: IssueRef | None = None
    on_pull: bool = False
    """Whether the event is about a pull request, which trackers number among the issues."""
    label: str = ""
    comment: str = ""


class Rubbish(ValueError):
    """A delivery which claims to come from the tracker, but cannot be read."""


class Deliveries(Protocol):
    """Reads the deliveries of a tracker (webhooks). Header names are in lower case."""

    def vouched_for(self, body: bytes, headers: Mapping[str, str]) -> bool:
        """Whether the delivery comes from the tracker. Ask before any other method."""
        ...

    def number(self, headers: Mapping[str, str]) -> str:
        """The tracker's id of the delivery, the same for a repetition. May be empty."""
        ...

    def read(self, body: bytes, headers: Mapping[str, str]) -> Happening:
        """The event in the delivery. Raises Rubbish."""
        ...


class Hints(Protocol):
    @property
    def every_s(self) -> float:
        """Seconds between two questions worth asking."""
        ...

    def heard(self) -> bool:
        """Whether a hint came since the last question. Cheap, and never fails."""
        ...

    def about(self, issue: IssueRef) -> "Hints":
        """The hints to the holder of this issue alone."""
        ...


class Waker(Protocol):
    def wake(self, issue: IssueRef | None = None) -> None:
        """Hint to all idle workers of the folder: the tracker may have changed.

        With `issue`: hint to the holder of the issue: the issue or the lease may have changed.
        Raises Unwritable.
        """
        ...


class Present(Struct, frozen=True):
    """The stages that running workers of this machine serve."""

    served: frozenset[str] = frozenset()
    handled: frozenset[str] = frozenset()
    """Those of them for which a worker has a handler, from the settings or its own."""


class Presence(Protocol):
    def announce(self, present: Present) -> Callable[[], None]:
        """Tell the other processes of the folder which stages a worker of ours serves.

        It counts until the returned function is called, or our process ends. Never fails.
        """
        ...

    def present(self) -> Present:
        """The stages of all workers that run now."""
        ...


class PlaceWish(Struct, frozen=True):
    """The working trees which a run needs."""

    run: RunId
    name: str
    """An issue or a bundle, for names that people read."""
    worktree: OneWorktree | BundleWorktree
    repos: tuple[str, ...] = ()
    """For a bundle: the repositories of its issues, the one to start in first."""
    run_as: str | None = None
    """The user to whom the working trees belong; None: the worker's."""


class Workplace(Struct):
    """The working trees of a run."""

    folder: Path
    """Where the handler starts."""
    folders: Mapping[str, Path]
    """Every working tree, by its repository."""
    branch: str
    """The branch, the same in all working trees."""
    shared: tuple[int, ...] = ()
    """File descriptors to keep open until the handler has ended: they mark the place as in use."""
    kept: list[str] = field(default_factory=list)
    """Filled in at the end: where unsaved work was kept, and folders that could not be cleared."""


class Workplaces(Protocol):
    def check(self, worktree: OneWorktree | BundleWorktree, repos: tuple[str, ...]) -> None:
        """Raises HandlerUnusable if a place of such a kind cannot possibly be made here."""
        ...

    def recover(self) -> None:
        """Clear the places of dead processes; keep their work, and log where the work is kept."""
        ...

    def open(self, wish: PlaceWish) -> AbstractContextManager[Workplace]:
        """Make a place, and clear it when the context is left. Work found only there is kept.

        Entering raises WorktreeUnavailable if a later try may succeed, HandlerUnusable if none can.
        """
        ...


class GitResult(Struct, frozen=True):
    """The exit code and the output of a command."""

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
    ) -> GitResult:
        """Run git with the words `args` in the folder `cwd`, for `timeout` seconds at most.

        A command which fails is a result. Raises Unavailable after the timeout; git has been ended
        then.
        """
        ...
