"""Files: whole replacement, locks, journals, and hints between the processes of a folder.

A replaced file has its old content or its new content, never a part. A lock on a file ends with its
process. A journal is a file with one JSON object per line, a list in memory, or nothing.

A hint is a change of a file. A waiting process compares the file's status and never reads the file.
`FileWaker` replaces the file instead of writing into it, so two hints within one tick of the clock
are two changes: the second hint is another file.
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
    """Raise Unwritable, with the path, in place of an OSError."""
    try:
        yield
    except OSError as flaw:
        raise Unwritable(f"{path}: {flaw.strerror or flaw}") from flaw


def replace_whole(path: Path, data: bytes) -> None:
    """Replace the file's content; a crash leaves the old or the new. For one writer at a time."""
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
    """Open and lock the file. None if the file is locked, missing or replaced.

    Without `create`, also None if the file may not be opened.

    The lock belongs to the open file, so the kernel removes the lock when the last process that
    has the file open ends.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
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


class NoJournal:
    def append(self, event: Event) -> None:
        pass


class MemoryJournal:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, event: Event) -> None:
        self.events.append(event)


class FileJournal:
    """A file to which every process of the fleet appends: each line whole, by a single write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._warned = False

    def append(self, event: Event) -> None:
        # The same spaces as json.dumps, for texts and whole numbers, without the import of json,
        # which would slow every start.
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
        """Open the file again for each line: an operator may move the file away at any time."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(self._path, flags, 0o644)
        except FileNotFoundError:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self._path, flags, 0o644)


def describe(event: Event) -> dict[str, object]:
    """The event as plain data, without empty fields. `logged_at` is for people."""
    fields = {
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
    # A name from the command line may hold bytes that are no UTF-8.
    return {
        key: value.encode(errors="replace").decode() if isinstance(value, str) else value
        for key, value in fields.items()
        if value is not None
    }


_EVERY_S = 1.0

_FileStatus = tuple[int, int, int]
"""The inode, the time of the last change, and the length."""


class FileHints:
    """The receiving side: whether another process has hinted since the last look."""

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

    def _look(self) -> _FileStatus | None:
        """None before the first hint, or if the file cannot be looked at: polling goes on."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


class FileWaker:
    """The sending side: `wake` hints to all processes that watch the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wake(self) -> None:
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # A random length, because the new file may get the inode of an earlier one.
            part.write_bytes(b"." * (1 + os.urandom(1)[0]))
            part.replace(self._path)
        except OSError as flaw:
            raise Unwritable(f"{self._path}: {flaw.strerror or flaw}") from flaw
