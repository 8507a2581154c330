"""The machine and this process: clocks, threads, failpoints, state folders, git's variables.

Of all modules only this one and the warden read a clock. Threads are the interpreter's own, and
none of them keeps the process alive.

`DIBS_FAILPOINT=claim.granted` or `claim.granted:3` kills this process at that step, the first or
the third time: for the tests that prove that a crash anywhere does no harm, and for operators'
drills.

The state folders hold data that belongs to a person's machine and to no project. A fleet that ran
on the published system goes on where it was: in `ALFRED_HOME`, or in `~/.alfred` if that folder
exists. Every other fleet's data is where the desktop's rules put data that must survive a restart.
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
    """Monotonic time that goes on during suspend: the leases of a sleeping laptop expire."""

    # On Linux CLOCK_MONOTONIC stops while suspended and CLOCK_BOOTTIME does not. Elsewhere
    # CLOCK_MONOTONIC is the best there is (on macOS it counts suspend).
    _source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now(self) -> LocalTime:
        return LocalTime(time.clock_gettime(self._source))

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(max(0.0, seconds))


def uptime_ms() -> int:
    """Milliseconds since the machine started, suspend included.

    Two processes can compare their uptimes only if their BOOT is equal.
    """
    return int(SystemClock().now() * 1000)


def _boot() -> str:
    """The kernel's boot id, and the process's time namespace.

    A container may have its own uptime, unrelated to the uptime of every process outside. The
    number of a deleted namespace may return, and therefore the offsets are included.
    """
    try:
        words = [Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()]
    except OSError:
        words = ["unknown"]  # then only a smaller uptime reveals a reboot
    with contextlib.suppress(OSError):  # not Linux, or a kernel without time namespaces
        words.append(str(Path("/proc/self/ns/time").readlink()))
    with contextlib.suppress(OSError):
        words.extend(Path("/proc/self/timens_offsets").read_text(encoding="utf-8").split())
    return " ".join(words)


BOOT = _boot()
"""Identifies the start of the machine and the time namespace: uptimes can be compared only if it is
equal."""


def wall_clock() -> datetime:
    """The time of day, for people to read. Takes part in no decision."""
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
    """An observer that kills the process at the n-th pass of the named step."""
    if not value:
        return unwatched
    name, _, count = value.partition(":")
    try:
        fatal, left = Step(name), int(count or "1")
    except ValueError as flaw:
        known = ", ".join(Step)
        raise BadConfiguration(f"DIBS_FAILPOINT={value!r} is not a step; steps: {known}") from flaw
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


def state_folder(environment: Mapping[str, str]) -> Path:
    if named := environment.get("DIBS_STATE"):
        return Path(named).absolute()
    xdg = environment.get("XDG_STATE_HOME", "")
    if xdg.startswith("/"):  # the standard says to ignore relative paths
        return Path(xdg) / "dibs"
    return Path(environment.get("HOME") or "/") / ".local" / "state" / "dibs"


def worktrees_folder() -> Path:
    return (_published_home() or state_folder(os.environ)) / "worktrees"


def chains_folder() -> Path:
    published = _published_home()
    return (published / "state" if published else state_folder(os.environ)) / "pr-chains"


def _published_home() -> Path | None:
    if named := os.environ.get("ALFRED_HOME"):
        return Path(named).expanduser()
    usual = Path.home() / ".alfred"
    return usual if usual.is_dir() and not os.environ.get("DIBS_STATE") else None


# The variables that git sets for its children, and those that change where or how git works.
_GIT_VARIABLES = re.compile(
    r"GIT_(DIR|WORK_TREE|INDEX_FILE|OBJECT_DIRECTORY|ALTERNATE_OBJECT_DIRECTORIES|COMMON_DIR"
    r"|NAMESPACE|PREFIX|QUARANTINE_PATH|SHALLOW_FILE|GRAFT_FILE|REPLACE_REF_BASE|DEFAULT_HASH"
    r"|TRACE\w*|CURL_VERBOSE|INTERNAL\w*)"
)


def without_git_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Drop the variables that would change where or how git works."""
    return {name: text for name, text in environment.items() if not _GIT_VARIABLES.fullmatch(name)}
