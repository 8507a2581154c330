"""The machine and this process: clocks, threads, idle connections, failpoints, folders, files.

Of all modules only this one and the warden read a clock. Threads are the interpreter's own, and
none of them keeps the process alive.

`DIBS_FAILPOINT=claim.granted` or `claim.granted:3` kills this process at that step, the first or
the third time: for the tests that prove that a crash anywhere does no harm, and for operators'
drills.

The state folders hold data that belongs to a person's machine and to no project. A fleet that ran
on the published system goes on where it was: in `ALFRED_HOME`, or in `~/.alfred` if that folder
exists. Every other fleet's data is where the desktop's rules put data that must survive a restart.

A replaced file has its old content or its new content, never a part. A lock on a file ends with its
process. A journal is a file with one JSON object per line, a list in memory, or nothing. Every
folder and file that dibs makes for itself is made by `make_folder` and `open_file`: closed to other
users from its first moment, whatever the umask.

Words that leave the process go through `mask`, which knows the secrets of the environment and those
that the process has read from files.

A hint is a change of a file. A waiting process compares the file's status and never reads the file.
`FileWaker` replaces the file instead of writing into it, so two hints within one tick of the clock
are two changes: the second hint is another file. A hint about one issue is a file with the issue in
its name, which the issue's holder removes. A running worker is a locked file.
"""

import contextlib
import errno
import fcntl
import fnmatch
import io
import os
import re
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from dibs.core.durations import format_instant
from dibs.core.errors import BadConfiguration, Unwritable
from dibs.core.events import Event, Reached, Step, unwatched
from dibs.core.ids import ZERO, IssueRef, LocalTime, ServerTime
from dibs.ports.system import Present, StartedThread

if TYPE_CHECKING:
    from dibs.core.lease import Granted, Lease, Unproven
    from dibs.ports.leases import LeaseStore
    from dibs.ports.system import Clock

T = TypeVar("T")
_LARGEST_SMALL_FILE = 65_536
_PIECE = 1 << 20
SECRETS_IN_FILES = (
    *("DIBS_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN", "GH_ENTERPRISE_TOKEN"),
    *("GITHUB_ENTERPRISE_TOKEN", "GITHUB_WEBHOOK_SECRET", "DIBS_LEASES", "DIBS_SIGNING_KEY"),
)
"""The variables whose text may be in a file instead."""


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


_LATEST_S = 1.0


_JUMP_S, _JUMP_SHARE = 1.0, 0.01
"""How far a server's clock may run ahead of ours between two replies, while it is slewed."""


class ServerPace:
    """Notices a server's clock that jumps forward, and pauses the grants of this process.

    For a store that judges by its server's time of day, which an operator may set. By a jump leases
    expire early, while the holders count the ttl on their own clocks and trust their leases. After
    a pause of the longest ttl that this process has seen, no holder trusts a lease with this or a
    shorter ttl from before the jump unless the server has renewed the lease. Any two
    replies are compared: the server's time between them against the local time from the sending of
    the first request to the second reply. A process without an earlier reply notices nothing. Safe
    for many threads.
    """

    def __init__(self, name: str, clock: "Clock") -> None:
        self._name, self._clock = name, clock
        self._lock = threading.Lock()
        self._last: tuple[LocalTime, ServerTime] | None = None
        self._longest = ZERO
        self._resumes_at = LocalTime(0.0)
        self._ahead_s = 0.0

    def sending(self) -> LocalTime:
        return self._clock.now()

    def saw(self, now: ServerTime, sent_at: LocalTime, ttl: timedelta) -> None:
        """Take the server's time and a lease's ttl from the reply to the request of `sent_at`."""
        with self._lock:
            at, last = self._clock.now(), self._last
            self._longest, self._last = max(self._longest, ttl), (sent_at, now)
            if last is None:
                return
            passed_s = at - last[0]
            ahead_s = (now - last[1]).total_seconds() - passed_s
            if ahead_s <= _JUMP_S + passed_s * _JUMP_SHARE:
                return
            self._ahead_s = ahead_s
            self._resumes_at = LocalTime(at + self._longest.total_seconds())
        import logging

        logging.getLogger("dibs.stores").warning("%s", self._words(at))

    def pause(self) -> "Unproven | None":
        """The answer to a bid while grants pause; None if they do not."""
        from dibs.core.lease import Unproven

        at = self._clock.now()
        return Unproven(self._words(at)) if at < self._resumes_at else None

    def _words(self, at: LocalTime) -> str:
        return (
            f"the clock of {self._name} jumped forward by {self._ahead_s:.0f} s, so leases seem to "
            "be over which holders trust; this process takes no lease for another "
            f"{self._resumes_at - at:.0f} s"
        )

    def accept(self, store: "LeaseStore", lease: "Lease") -> "Granted | Unproven":
        """A new or repeated grant; given back if the reply shows that the server's clock jumped."""
        from dibs.core.errors import Outage
        from dibs.core.lease import Ending, Granted, Outcome

        paused = self.pause()
        if paused is None:
            return Granted(lease)
        with contextlib.suppress(Outage):  # then it ends by itself
            store.release(lease, Ending(Outcome.CONCEDED))
        return paused


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

    def start_within(
        self,
        seconds: float,  # noqa: ARG002 - at once is within any time
        work: Callable[[], None],
        name: str,
        otherwise: Callable[[], None],  # noqa: ARG002 - the caller gets the failure
    ) -> StartedThread:
        return SystemThread(work, name)


class LateThread:
    """Work to start at `at`, unless it is joined before."""

    def __init__(
        self, at: LocalTime, work: Callable[[], None], name: str, otherwise: Callable[[], None]
    ) -> None:
        self.at, self._name, self._otherwise = at, name, otherwise
        self._work = [work]
        """Whoever takes the work decides: a pop of a list is atomic."""
        self._decided: threading.Event | None = None
        self._thread: SystemThread | None = None

    def __lt__(self, other: "LateThread") -> bool:
        return self.at < other.at

    def start(self) -> None:
        decided = self._decided = threading.Event()  # before the work is taken: see `join`
        try:
            self._thread = SystemThread(self._work.pop(), self._name)
        except IndexError:
            pass  # it was joined before
        except RuntimeError:  # no more threads
            self._otherwise()
        finally:
            decided.set()

    def join(self) -> None:
        with contextlib.suppress(IndexError):
            self._work.pop()
            return
        if self._decided is not None:
            self._decided.wait()
        if self._thread is not None:
            self._thread.join()


class LateThreads:
    """Starts late work when due, by a single waiting thread.

    Most leases end within a moment, before renewal is due: then no thread is started for the lease.
    The waiting thread ends when no work is left to start.
    """

    def __init__(self, clock: SystemClock) -> None:
        self._clock = clock
        self._forget()

    def _forget(self) -> None:
        self._pid, self._lock, self._sooner = os.getpid(), threading.Lock(), threading.Event()
        self._waiting: list[LateThread] = []
        self._looks_at: LocalTime | None = None
        """When the thread that starts the work looks again; None: there is no such thread."""

    def start(self, work: Callable[[], None], name: str) -> StartedThread:
        return SystemThread(work, name)

    def start_within(
        self, seconds: float, work: Callable[[], None], name: str, otherwise: Callable[[], None]
    ) -> StartedThread:
        # Soon in any case: work that was joined is forgotten when its time comes, and not before.
        seconds = min(seconds, _LATEST_S)
        if seconds <= 0:
            return SystemThread(work, name)
        if self._pid != os.getpid():  # a child of a fork has no threads: all are its parent's
            self._forget()
        import heapq

        late = LateThread(LocalTime(self._clock.now() + seconds), work, name, otherwise)
        with self._lock:
            if self._looks_at is None:
                SystemThread(self._start_in_time, "dibs-late-threads")
            elif late.at < self._looks_at:
                self._sooner.set()
            self._looks_at = min(self._looks_at or late.at, late.at)
            heapq.heappush(self._waiting, late)
        return late

    def _start_in_time(self) -> None:
        import heapq

        while True:
            due = []
            with self._lock:
                self._sooner.clear()
                now = self._clock.now()
                while self._waiting and self._waiting[0].at <= now:
                    due.append(heapq.heappop(self._waiting))
                looks_at = self._looks_at = self._waiting[0].at if self._waiting else None
            for late in due:
                late.start()
            if looks_at is None:
                return
            self._clock.wait(self._sooner, looks_at - self._clock.now())


class IdlePool(list[T]):
    """The idle connections of a process, at most `most`; the last one kept is lent first.

    A child of a fork begins with none and closes none: the parent goes on using its connections,
    and its server would notice even a close. No lock is needed: a list's append and pop are atomic.
    """

    def __init__(self, most: int, close: Callable[[T], object]) -> None:
        super().__init__()
        self._most, self._close_one = most, close
        self._pid = os.getpid()
        self.closed = False

    def take(self) -> T | None:
        if self._pid != os.getpid():
            self.clear()
            self._pid = os.getpid()
        try:
            return self.pop()
        except IndexError:
            return None

    def keep(self, connection: T) -> None:
        """Keep the connection, or close it if there is no room or the pool was closed."""
        if len(self) < self._most:
            self.append(connection)
        else:
            self._close_one(connection)
        if self.closed:
            self.drop()

    def drop(self) -> None:
        while (connection := self.take()) is not None:
            self._close_one(connection)

    def close(self) -> None:
        self.closed = True
        self.drop()


def environment() -> Mapping[str, str]:
    """The variables of our environment, and the secrets from files.

    A secret `NAME` comes from the variable, or from the file with the path in `NAME_FILE`, or from
    the file `NAME` among systemd's credentials. A secret from a file reaches no environment of a
    process. Raises BadConfiguration for a file without readable text.
    """
    found = {}
    credentials = os.environ.get("CREDENTIALS_DIRECTORY", "")
    for name in SECRETS_IN_FILES:
        if os.environ.get(name):
            continue
        if named := os.environ.get(f"{name}_FILE", ""):
            found[name] = _secret_in(named, f"{name}_FILE")
        elif credentials and os.path.exists(f"{credentials}/{name}"):  # noqa: PTH110
            found[name] = _secret_in(f"{credentials}/{name}", "CREDENTIALS_DIRECTORY")
    for name, secret in found.items():
        learn_secret(name, secret)
    return {**os.environ, **found} if found else os.environ


@lru_cache(maxsize=64)
def _secret_in(path: str, named_by: str) -> str:
    """Read a file once: the text behind a descriptor, as in /dev/fd/3, can be read only once."""
    try:
        with Path(path).expanduser().open("rb") as file:
            text = file.read(_LARGEST_SMALL_FILE).decode().strip()
    except (OSError, ValueError) as flaw:
        why = flaw.strerror if isinstance(flaw, OSError) else "it is not text"
        raise BadConfiguration(f"{named_by}: {path} cannot be read: {why}") from None
    if not text:
        raise BadConfiguration(f"{named_by}: {path} is empty")
    return text


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


_SHORTEST_SECRET, _SHORTEST_WORD = 6, 16
_learned: frozenset[str] = frozenset()


def learn_secret(name: str, value: str) -> None:
    """Mask this value from now on, as if it were in the variable: it came from a file."""
    from dibs.core.words import secrets_in

    global _learned  # noqa: PLW0603 - of the process, as its environment is
    _learned = _learned.union(secrets_in({name: value}))


def mask(text: str) -> str:
    """The text without the secrets of this process, and without what has the shape of a secret."""
    if len(text) < _SHORTEST_SECRET or (
        len(text) < _SHORTEST_WORD and text.islower() and text.isalpha()
    ):
        return text  # a count, or the name of a stage: no pattern needs to be loaded
    from dibs.core.words import masker_of, secrets_in

    return masker_of(_learned.union(secrets_in(os.environ)))(text)


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
_GIT_VARIABLES = (
    r"GIT_(DIR|WORK_TREE|INDEX_FILE|OBJECT_DIRECTORY|ALTERNATE_OBJECT_DIRECTORIES|COMMON_DIR"
    r"|NAMESPACE|PREFIX|QUARANTINE_PATH|SHALLOW_FILE|GRAFT_FILE|REPLACE_REF_BASE|DEFAULT_HASH"
    r"|TRACE\w*|CURL_VERBOSE|INTERNAL\w*)"
)


def without_git_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Drop the variables that would change where or how git works."""
    return {
        name: text for name, text in environment.items() if not re.fullmatch(_GIT_VARIABLES, name)
    }


# What git needs to work, and to reach a remote. Everything else may be a secret, whatever its name.
_GIT_NEEDS = (
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TERM|TZ|TMPDIR|XDG_\w+|GNUPGHOME"
    r"|PASSWORD_STORE_DIR|DBUS_SESSION_BUS_ADDRESS|KRB5CCNAME|GH_CONFIG_DIR|SSH_AUTH_SOCK|SSL_CERT_(FILE|DIR)|CURL_CA_BUNDLE|(?i:(https?|all|no)_proxy)"
    r"|GIT_(CONFIG_(GLOBAL|SYSTEM|NOSYSTEM)|CEILING_DIRECTORIES|EXEC_PATH|SSL_\w+"
    r"|(AUTHOR|COMMITTER)_\w+|SSH|SSH_COMMAND|SSH_VARIANT|ASKPASS|PROXY_COMMAND)"
)


def git_environment(
    environment: Mapping[str, str] = os.environ, *, named: bool = False
) -> dict[str, str]:
    """The environment for a git command, without secrets.

    An agent may have named programs in the settings of the repository, and git runs them. `named`:
    with the variables which the operator lists in `DIBS_GIT_ENV`. Of the settings in variables
    (`GIT_CONFIG_COUNT`), `safe.directory` and `user.*` stay: they name no program and no secret.
    """
    listed = environment.get("DIBS_GIT_ENV", "").split(",") if named else []
    needed = {
        name: text
        for name, text in without_git_variables(environment).items()
        if re.fullmatch(_GIT_NEEDS, name)
        or any(fnmatch.fnmatchcase(name, word.strip()) for word in listed)
    }
    count = environment.get("GIT_CONFIG_COUNT", "")
    if "GIT_CONFIG_COUNT" in needed or not re.fullmatch(r"[0-9]{1,4}", count):
        return needed
    given = [
        (key, environment.get(f"GIT_CONFIG_VALUE_{number}", ""))
        for number in range(int(count))
        if re.fullmatch(
            r"(?i:safe\.directory|user\..+)", key := environment.get(f"GIT_CONFIG_KEY_{number}", "")
        )
    ]
    for number, (key, value) in enumerate(given):
        needed |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return needed | ({"GIT_CONFIG_COUNT": str(len(given))} if given else {})


class WorkingTree(msgspec.Struct, frozen=True):
    """A git working tree, found by its files: a start of git costs more than most commands."""

    top: Path
    git_dir: Path
    """The working tree's own git folder; a linked working tree has one inside the repository's."""

    @property
    def repository_dir(self) -> Path:
        """The repository's git folder, which all its working trees share."""
        try:
            shared = small_text(self.git_dir / "commondir", errors="surrogateescape")
        except (OSError, ValueError):  # not a linked working tree
            return self.git_dir
        return Path(os.path.normpath(self.git_dir / shared.rstrip("\n")))

    @property
    def main(self) -> Path | None:
        """The main working tree of a linked working tree.

        None for a main working tree itself, a submodule, a bare repository, and a repository with a
        git folder which is not called `.git`: then the main working tree cannot be found.
        """
        shared = self.repository_dir
        if shared == self.git_dir or shared.name != ".git" or not shared.is_dir():
            return None
        for name in ("config", "config.worktree"):
            with contextlib.suppress(OSError, ValueError):
                if re.search(_BARE, small_text(shared / name, errors="surrogateescape")):
                    return None
        return shared.parent

    @property
    def is_submodule(self) -> bool:
        """Whether the working tree around this one keeps its git folder."""
        if self.git_dir.name == ".git" or (around := working_tree(self.top.parent)) is None:
            return False
        modules = os.path.normpath(around.git_dir / "modules")
        return Path(os.path.normpath(self.git_dir)).is_relative_to(modules)


_BARE = r"(?im)^\s*bare\s*=\s*true\s*$"
_POINTER = "gitdir: "
_LARGEST_TEXT = 4 * 1024 * 1024


def working_tree(folder: Path) -> WorkingTree | None:
    """The git working tree around a folder; None outside of any."""
    for top in (folder, *folder.parents):
        dot_git = top / ".git"
        if dot_git.is_dir():
            if (dot_git / "HEAD").exists():
                return WorkingTree(top, dot_git)
            continue
        if not dot_git.is_file():
            continue
        # In a linked working tree, `.git` is a file with the path of the git folder.
        try:
            text = small_text(dot_git, errors="surrogateescape")
        except (OSError, ValueError):
            continue
        if text.startswith(_POINTER) and (pointed := text.removeprefix(_POINTER).rstrip("\n")):
            return WorkingTree(top, top / pointed)
    return None


def small_text(path: Path, *, errors: str = "strict", newline: str | None = None) -> str:
    """The text of a regular file of at most four megabytes; an OSError for any other file."""
    return small_file(path, errors=errors, newline=newline)[0]


def small_file(
    path: Path, *, errors: str = "strict", newline: str | None = None
) -> tuple[str, os.stat_result]:
    """The text of a regular file of at most four megabytes, and the status of that very file.

    Raises an OSError for any other file. The file may be a stranger's, who unpacked or cloned it
    here: a pipe, a device or the kernel's log would keep the reader waiting, and a file with holes
    would fill the memory.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    data = b""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        while part := os.read(descriptor, _LARGEST_TEXT + 1 - len(data)):
            data += part
            if len(data) > _LARGEST_TEXT:
                raise OSError(f"{path} is larger than {_LARGEST_TEXT} bytes")
    finally:
        os.close(descriptor)
    return io.TextIOWrapper(io.BytesIO(data), "utf-8", errors, newline).read(), status


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """Raise Unwritable, with the path, in place of an OSError."""
    try:
        yield
    except OSError as flaw:
        raise Unwritable(f"{path}: {flaw.strerror or flaw}") from flaw


class Sharing(StrEnum):
    """The users who may open the folders and files of dibs."""

    NONE = "none"
    """The user who runs dibs."""
    GROUP = "group"
    """Every member of the folder's group, too: several users work one backlog."""

    @property
    def folder_mode(self) -> int:
        """For a group, with the bit that gives new files the group of their folder."""
        return 0o2770 if self is Sharing.GROUP else 0o700

    @property
    def file_mode(self) -> int:
        return 0o660 if self is Sharing.GROUP else 0o600


def share_around(path: Path) -> Sharing:
    """How the folder around the path is shared."""
    try:
        mode = path.parent.stat().st_mode
    except OSError:
        return Sharing.NONE
    return Sharing.GROUP if mode & stat.S_ISGID and mode & stat.S_IWGRP else Sharing.NONE


def make_folder(path: Path, share: Sharing | None = None, *, sticky: bool = False) -> None:
    """Make a folder and its missing parents; an existing folder keeps its mode.

    Without `share`, a new folder is shared like the folder around. From a `sticky` folder, each
    member of the group removes only their own files.
    """
    if path.is_dir():
        return
    make_folder(path.parent, share)
    wanted = (share or share_around(path)).folder_mode
    try:
        path.mkdir(0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    if wanted != 0o700:  # mkdir heeds the umask, and ignores the bits for the group
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        _set_mode(descriptor, wanted | (stat.S_ISVTX if sticky else 0))
        os.close(descriptor)


def open_file(path: Path, flags: int, share: Sharing | None = None) -> int:
    """Open a file by the flags of `os.open`; with O_CREAT, make a missing file.

    Without `share`, a new file is shared like the folder around. Symbolic links are not followed: a
    repository or another user may have made the link, and the write would change any file of ours.
    Links in /dev belong to the machine, and are followed.
    """
    flags |= os.O_CLOEXEC | (0 if path.is_relative_to("/dev") else os.O_NOFOLLOW)
    if not flags & os.O_CREAT:
        return os.open(path, flags)
    if not flags & os.O_EXCL:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags & ~os.O_CREAT)
    try:
        descriptor = os.open(path, flags | os.O_EXCL, 0o600)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return os.open(path, flags & ~os.O_CREAT)  # another process was faster
    _set_mode(descriptor, (share or share_around(path)).file_mode)
    return descriptor


def _set_mode(descriptor: int, mode: int) -> None:
    """Set the mode of a file or folder which this process has made."""
    with contextlib.suppress(PermissionError):  # a file system without modes
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
            os.fchmod(descriptor, mode)


def replace_whole(path: Path, data: bytes) -> None:
    """Replace the file's content; a crash leaves the old or the new. For one writer at a time."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)  # left by a crash; or a link or a pipe that came with an archive
    with os.fdopen(open_file(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def read_regular(
    name: str | Path, most: int, folder: int | None = None, owner: int | None = None
) -> bytes:
    """The first bytes of a regular file, at most `most`; the last bytes, if `most` is negative.

    With `owner`, the file must belong to the user: a hard link may lead to any file.
    """
    with os.fdopen(open_regular(name, os.O_RDONLY, folder), "rb") as file:
        status = os.fstat(file.fileno())
        if owner is not None and status.st_uid != owner:
            raise ValueError("it belongs to another user")
        file.seek(max(0, status.st_size + most) if most < 0 else 0)
        return file.read(min(abs(most), status.st_size))


def open_regular(name: str | Path, flags: int, folder: int | None = None) -> int:
    """Open a regular file in a folder which a handler can write, without any trust in the file.

    Follows no link, and waits for no reader or writer of a pipe. Raises ValueError for everything
    but a regular file.
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        opened = os.open(name, flags, 0o600, dir_fd=folder)
    except OSError as refusal:
        if refusal.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise ValueError("it is not a regular file") from refusal
        raise
    if stat.S_ISREG(os.fstat(opened).st_mode):
        return opened
    os.close(opened)
    raise ValueError("it is not a regular file")


def same_content(one: Path, other: Path) -> bool:
    """Whether two files have the same bytes; False if one of them is no regular file."""
    with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(os.fdopen(open_regular(path, os.O_RDONLY), "rb"))
            for path in (one, other)
        ]
        while (first := opened[0].read(_PIECE)) == opened[1].read(_PIECE):
            if not first:
                return True
    return False


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def locked(path: Path, *, create: bool = False, share: Sharing | None = None) -> int | None:
    """Open and lock the file. None if the file is locked, missing or replaced.

    Without `create`, also None if the file may not be opened.

    The lock belongs to the open file, so the kernel removes the lock when the last process that
    has the file open ends.
    """
    try:
        descriptor = open_file(path, os.O_RDWR | (os.O_CREAT if create else 0), share)
    except FileNotFoundError:
        return None
    except PermissionError:
        if create:
            raise
        return None  # the file of another user
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


class MemoryJournal:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def observe(self, event: Event) -> None:
        self.events.append(event)


class FileJournal:
    """A file to which every process of the fleet appends: each line whole, by a single write."""

    def __init__(self, path: Path, share: Sharing | None = None) -> None:
        self._path, self._share = path, share
        self._name = os.fspath(path)
        self._lock = threading.Lock()
        self._file: tuple[int, tuple[int, int]] | None = None
        self._warned = False

    def observe(self, event: Event) -> None:
        # The same spaces as json.dumps, for texts and whole numbers, without the import of json,
        # which would slow every start.
        line = msgspec.json.format(msgspec.json.encode(describe(event)), indent=0) + b"\n"
        try:
            with self._lock:
                os.write(self._open(), line)
        except OSError as failure:
            if not self._warned:
                import logging

                self._warned = True
                logging.getLogger("dibs.journal").warning(
                    "the journal %s cannot be written: %s", self._path, failure
                )

    def _open(self) -> int:
        """Open the file, or use it again if the path still leads to it.

        An operator may move the file away at any time, and a program may close all files of its
        process. Without blocking: a pipe that nobody reads is an error instead of a wait without
        end.
        """
        if self._file is not None:
            file, known = self._file
            try:
                if known == _identity(os.lstat(self._name)) == _identity(os.fstat(file)):
                    return file
            except OSError:
                pass
            self.close()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
        try:
            file = open_file(self._path, flags, self._share)
        except FileNotFoundError:
            make_folder(self._path.parent, self._share)
            file = open_file(self._path, flags, self._share)
        self._file = file, _identity(os.fstat(file))
        return file

    def close(self) -> None:
        """Close the file, unless it is another's by now. The next event opens it again."""
        if self._file is not None:
            (file, known), self._file = self._file, None
            with contextlib.suppress(OSError):
                if _identity(os.fstat(file)) == known:
                    os.close(file)

    def __del__(self) -> None:
        self.close()


def _identity(file: os.stat_result) -> tuple[int, int]:
    return file.st_dev, file.st_ino


def describe(event: Event) -> dict[str, object]:
    """The event as plain data, without empty fields. `logged_at` is for people."""
    fields: dict[str, object] = {
        "event": event.kind.value,
        "logged_at": format_instant(wall_clock()),
        "at": format_instant(event.at) if event.at else None,
        "issue": str(event.issue) if event.issue else None,
        "stage": event.stage,
        "run": event.run,
        "holder": event.holder,
        "fence": event.fence,
        "pid": os.getpid(),
    }
    for key, words in event.detail.items():
        fields[key] = mask(words)
    for name, seconds in event.spans.items():
        fields[f"{name}_s"] = round(seconds, 3)
    for key, value in tuple(fields.items()):
        if value is None:
            del fields[key]
        elif isinstance(value, str) and not value.isascii():
            # A name from the command line may hold bytes that are no UTF-8.
            fields[key] = value.encode(errors="replace").decode()
    return fields


class WorkerFiles:
    """Which stages the running workers of a folder serve: a file for each worker.

    A worker locks its file as long as it runs, so the file of a killed worker does not count.
    """

    def __init__(self, folder: Path, share: Sharing | None = None) -> None:
        self._folder, self._share = folder, share

    def announce(self, present: Present) -> Callable[[], None]:
        descriptor = None
        try:
            make_folder(self._folder, self._share)
            for path in self._files():  # of killed workers
                if (descriptor := locked(path)) is not None:
                    path.unlink(missing_ok=True)
                    os.close(descriptor)
            for _ in range(3):  # another process may try the lock of a file that is new
                path = self._folder / f"{os.getpid()}-{os.urandom(4).hex()}.json"
                if (descriptor := locked(path, create=True, share=self._share)) is not None:
                    break
        except OSError:  # nothing but `dibs why` and `dibs approve` goes by these files
            pass
        if descriptor is None:
            return lambda: None
        with contextlib.suppress(OSError):
            os.write(descriptor, msgspec.json.encode(present))

        def end() -> None:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            os.close(descriptor)

        return end

    def present(self) -> Present:
        found = []
        for path in self._files():
            if (descriptor := locked(path)) is not None:
                os.close(descriptor)  # its worker was killed
                continue
            with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
                found.append(
                    msgspec.json.decode(read_regular(path, _LARGEST_SMALL_FILE), type=Present)
                )
        return Present(
            frozenset[str]().union(*(one.served for one in found)),
            frozenset[str]().union(*(one.handled for one in found)),
        )

    def _files(self) -> list[Path]:
        try:
            # Files of dead workers are removed: no file that a worker could not have made.
            return list(self._folder.glob(f"[0-9]*-{'[0-9a-f]' * 8}.json"))
        except OSError:
            return []


_OLD_HINT_S = 60.0
"""A holder looks for a hint every second, so nobody waits for one that is so old."""
_FileStatus = tuple[int, int, int]
"""The inode, the time of the last change, and the length."""


class FileHints:
    """The receiving side: whether another process has hinted since the last look."""

    every_s = 1.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._look()

    def heard(self) -> bool:
        seen = self._look()
        if seen is None or seen == self._seen:
            return False
        self._seen = seen
        return True

    def about(self, issue: IssueRef) -> "FileIssueHints":
        return FileIssueHints(self._path, issue)

    def _look(self) -> _FileStatus | None:
        """None before the first hint, or if the file cannot be looked at: polling goes on."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


class FileIssueHints:
    """The receiving side for an issue: a hint makes the file, and the holder removes the file.

    An issue has a single holder at a time, so a single process waits for the file. An old file
    costs a new holder a single look.
    """

    every_s = 1.0

    def __init__(self, wake_file: Path, issue: IssueRef) -> None:
        self._wake_file, self._issue = wake_file, issue

    def heard(self) -> bool:
        try:
            _hint_about(self._wake_file, self._issue).unlink()
        except OSError:
            return False
        return True

    def about(self, issue: IssueRef) -> "FileIssueHints":  # noqa: ARG002 - it is about one already
        return self


def _hint_about(wake_file: Path, issue: IssueRef) -> Path:
    # A delivery may spell the repository in another case than the settings.
    name = str(issue).replace("/", "+").casefold()
    return wake_file.with_name(f"{wake_file.name}-{name}")


class FileWaker:
    """The sending side: `wake` hints to all processes that watch the file, or an issue's file."""

    def __init__(self, path: Path, share: Sharing | None = None) -> None:
        self._path, self._share = path, share

    def wake(self, issue: IssueRef | None = None) -> None:
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with written(self._path):
            make_folder(self._path.parent, self._share)
            if issue is not None:
                # Leave the hint, and remove old ones: no holder was there to hear them.
                hint = _hint_about(self._path, issue)
                with os.fdopen(
                    open_file(hint, os.O_WRONLY | os.O_CREAT, self._share), "wb"
                ) as file:
                    os.utime(file.fileno())
                with contextlib.suppress(FileNotFoundError):  # a holder was faster
                    now = hint.stat().st_mtime
                    for old in self._path.parent.glob(f"{self._path.name}-*"):
                        if now - old.stat().st_mtime > _OLD_HINT_S:
                            old.unlink()
                return
            # A random length, because the new file may get the inode of an earlier one.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            with os.fdopen(open_file(part, flags, self._share), "wb") as file:
                file.write(b"." * (1 + os.urandom(1)[0]))
            part.replace(self._path)
