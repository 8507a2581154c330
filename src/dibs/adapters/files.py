"""Files that are there as a whole or not at all, and locks on files that die with their process.

Journals: a file of one JSON object per line, a list in memory, or nowhere.

Hints between processes of one folder: a file that changes whenever somebody hints.

Whoever waits compares what the file system says of it; nobody reads it. Replaced and not written
into, so that two hints within one tick of the clock are two: the second is another file.
"""

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dibs.adapters.system import wall_clock
from dibs.core.durations import format_instant
from dibs.core.errors import Unwritable
from dibs.core.events import Event


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """What the file system says against it, as an error of ours."""
    try:
        yield
    except OSError as flaw:
        raise Unwritable(f"{path}: {flaw.strerror or flaw}") from flaw


def replace_whole(path: Path, data: bytes) -> None:
    """The old content or the new, whatever crashes in between. One writer at a time."""
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def locked(path: Path, *, create: bool = False) -> int | None:
    """The open file, if nobody else has it locked and it is still the one of that name.

    The lock is on the open file, so the kernel takes it off when its last process is gone.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
    except FileNotFoundError:
        return None
    except PermissionError:
        if create:
            raise
        return None  # somebody else's
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


class NoJournal:
    def append(self, event: Event) -> None:
        pass


class MemoryJournal:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, event: Event) -> None:
        self.events.append(event)


class FileJournal:
    """Appended to by every process of the fleet; one write per line keeps lines whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._warned = False

    def append(self, event: Event) -> None:
        # Texts and whole numbers, spaced as json.dumps does it, without importing json at a start.
        line = msgspec.json.format(msgspec.json.encode(describe(event)), indent=0) + b"\n"
        try:
            with self._lock:
                file = self._open()
                try:
                    os.write(file, line)
                finally:
                    os.close(file)
        except OSError as failure:
            if not self._warned:
                import logging

                self._warned = True
                logging.getLogger("dibs.journal").warning(
                    "the journal %s cannot be written: %s", self._path, failure
                )

    def _open(self) -> int:
        """Anew for each line, so that the file may be moved away at any time."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(self._path, flags, 0o644)
        except FileNotFoundError:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self._path, flags, 0o644)


def describe(event: Event) -> dict[str, object]:
    """An event as plain data, without what is not known. `logged_at` is for people."""
    known = {
        "event": event.kind.value,
        "logged_at": format_instant(wall_clock()),
        "at": format_instant(event.at) if event.at else None,
        "issue": str(event.issue) if event.issue else None,
        "stage": event.stage,
        "run": event.run,
        "holder": event.holder,
        "fence": event.fence,
        "pid": os.getpid(),
        **event.detail,
    }
    return {key: _writable(value) for key, value in known.items() if value is not None}


def _writable(value: object) -> object:
    """A name from the command line may hold bytes that are no UTF-8."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


_EVERY_S = 1.0

_Seen = tuple[int, int, int]


class FileHints:
    """One process's ear."""

    every_s = _EVERY_S

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._look()

    def heard(self) -> bool:
        seen = self._look()
        if seen is None or seen == self._seen:
            return False
        self._seen = seen
        return True

    def _look(self) -> _Seen | None:
        """None where nobody ever hinted, or it cannot be told: polling goes on."""
        try:
            told = self._path.stat()
        except OSError:
            return None
        return told.st_ino, told.st_mtime_ns, told.st_size


class FileWaker:
    """One process's voice."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wake(self) -> None:
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Its length differs from time to time as well: the same inode may be given out again.
            part.write_bytes(b"." * (1 + os.urandom(1)[0]))
            part.replace(self._path)
        except OSError as flaw:
            raise Unwritable(f"{self._path}: {flaw.strerror or flaw}") from flaw
