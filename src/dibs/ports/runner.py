"""Running a stage's handler so that it can be stopped, whatever state the worker is in."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from dibs.core.ids import LocalTime, RunId
from dibs.core.pipeline import Command, PythonCallable


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
