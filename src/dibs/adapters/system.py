"""The only module that reads a clock.

The interpreter's own threads, none of which keeps the process alive.

Dying on purpose: `DIBS_FAILPOINT=claim.granted` or `claim.granted:3` kills this process there.

For the tests that prove a crash anywhere does no harm, and for operators' own drills.

Where things are kept that belong to a person's machine and to no project.

A fleet that ran on the published system goes on where it was: in `ALFRED_HOME`, or in `~/.alfred`
if that is there. Everybody else's is where the desktop's rules put what must survive a restart.
"""

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from dibs.core.errors import BadConfiguration
from dibs.core.events import Reached, Step, unwatched
from dibs.core.ids import LocalTime


class SystemClock:
    """Monotonic time that goes on during suspend, so that a sleeping laptop loses its leases."""

    # Linux: CLOCK_MONOTONIC stops while suspended, CLOCK_BOOTTIME does not. Elsewhere the plain
    # one is the best there is (on macOS it counts suspend).
    _source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now(self) -> LocalTime:
        return LocalTime(time.clock_gettime(self._source))

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(max(0.0, seconds))


def uptime_ms() -> int:
    """How long the machine has been up, suspend included: the same for all that have one BOOT."""
    return int(SystemClock().now() * 1000)


def _boot() -> str:
    return " ".join([_start(), *_time_namespace()])


def _start() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"  # then only a smaller uptime tells that there was a reboot


def _time_namespace() -> list[str]:
    """A container may have an uptime of its own, which says nothing of anybody else's.

    The number of a namespace that is gone may be given to another, so what it adds is told too.
    """
    told: list[str] = []
    with contextlib.suppress(OSError):  # not Linux, or one without them
        told.append(str(Path("/proc/self/ns/time").readlink()))
    with contextlib.suppress(OSError):
        told.extend(Path("/proc/self/timens_offsets").read_text(encoding="utf-8").split())
    return told


BOOT = _boot()
"""Which start of the machine this is, and whose uptime: only where it is the same can uptimes be
compared."""


def wall_clock() -> datetime:
    """Time of day, for people to read. Takes part in no decision."""
    return datetime.now(UTC)


class SystemThread:
    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join()


class SystemThreads:
    def start(self, work: Callable[[], None], name: str) -> SystemThread:
        return SystemThread(work, name)


def from_environment(value: str) -> Reached:
    """An observer that kills the process the n-th time it passes the named step."""
    if not value:
        return unwatched
    name, _, count = value.partition(":")
    try:
        return _killing(Step(name), int(count or "1"))
    except ValueError as flaw:
        known = ", ".join(Step)
        raise BadConfiguration(f"DIBS_FAILPOINT={value!r} is not a step; steps: {known}") from flaw


def _killing(fatal: Step, times: int) -> Reached:
    left = times
    lock = threading.Lock()

    def reached(step: Step) -> None:
        nonlocal left
        if step is not fatal:
            return
        with lock:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return reached


__all__ = ["chains_folder", "state_folder", "worktrees_folder"]


def state_folder(environment: Mapping[str, str]) -> Path:
    if named := environment.get("DIBS_STATE"):
        return Path(named).absolute()
    xdg = environment.get("XDG_STATE_HOME", "")
    if xdg.startswith("/"):  # others are to be ignored, says the standard
        return Path(xdg) / "dibs"
    return Path(environment.get("HOME") or "/") / ".local" / "state" / "dibs"


def worktrees_folder() -> Path:
    return (_published() or state_folder(os.environ)) / "worktrees"


def chains_folder() -> Path:
    published = _published()
    return (published / "state" if published else state_folder(os.environ)) / "pr-chains"


def _published() -> Path | None:
    if named := os.environ.get("ALFRED_HOME"):
        return Path(named).expanduser()
    usual = Path.home() / ".alfred"
    return usual if usual.is_dir() and not os.environ.get("DIBS_STATE") else None


# What git sets for its own children, and what would change where or how our calls work.
_GIT_VARIABLES = re.compile(
    r"GIT_(DIR|WORK_TREE|INDEX_FILE|OBJECT_DIRECTORY|ALTERNATE_OBJECT_DIRECTORIES|COMMON_DIR"
    r"|NAMESPACE|PREFIX|QUARANTINE_PATH|SHALLOW_FILE|GRAFT_FILE|REPLACE_REF_BASE|DEFAULT_HASH"
    r"|TRACE\w*|CURL_VERBOSE|INTERNAL\w*)"
)


def without_git_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment, ours, without what would change where or how a git in it works."""
    return {name: text for name, text in environment.items() if not _GIT_VARIABLES.fullmatch(name)}
