"""Sessions: one file for each process that uses working trees, locked while the process lives.

The file is written once, before the first working tree is made, and lists every working tree that
will be made. So the file of a dead process names everything the process left behind. A process is
dead if its lock is free, because the kernel releases the lock: no process number, no clock and no
host name takes part. The git commands that make and remove working trees inherit the lock, so a
session is not over while one of them still runs.

`PoliteExit` turns SIGTERM and SIGHUP into an exit during which clean-ups run.
"""

import contextlib
import fcntl
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import msgspec

from dibs.adapters.system import (
    SystemClock,
    locked,
    make_folder,
    open_file,
    sync_folder,
    written,
)
from dibs.core.errors import Damaged, Unavailable
from dibs.worktrees.values import WorktreeSpec

FOLDER = ".dibs-sessions"
_LOCK_WAIT_S = 30.0
_POLL_S = 0.01


class Entry(msgspec.Struct, frozen=True):
    """The plan for a working tree of a session."""

    repo_name: str
    gh_repo: str
    checkout: str
    repository: str
    path: str
    branch: str
    start: str
    """The commit from which the branch starts; commits reachable from here need not be saved."""
    new_branch: bool
    """Whether the branch is made with the working tree, and so may be deleted with it."""
    apart: bool = False
    """Whether the working tree has a repository of its own."""
    run_as: str | None = None
    """The user to whom the working tree is given; None: the user of the process."""

    @property
    def spec(self) -> WorktreeSpec:
        return WorktreeSpec(
            repo_name=self.repo_name,
            worktree_path=Path(self.path),
            branch_name=self.branch,
            gh_repo=self.gh_repo,
            checkout_path=Path(self.checkout),
        )


class SessionRecord(msgspec.Struct, frozen=True):
    """The content of a session's file."""

    agent: str
    feature_id: str
    epoch: int
    entries: tuple[Entry, ...]
    pid: int
    """For people who read the file; no decision depends on it."""
    version: int = 1


class OpenSession(msgspec.Struct, frozen=True):
    """A session with its file open and locked by the current process."""

    record: SessionRecord
    path: Path
    descriptor: int

    def forget(self) -> None:
        """Delete the session's file: none of its working trees is left."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self.descriptor)


class Sessions(msgspec.Struct, frozen=True):
    """All sessions with their working trees under one root folder."""

    root: Path

    @property
    def _folder(self) -> Path:
        return self.root / FOLDER

    @contextlib.contextmanager
    def naming_lock(self) -> Iterator[None]:
        """Let a single session at a time choose names: no two sessions choose the same folder."""
        with written(self._folder):
            # Handlers work below, also as another user; no other user may list what is there.
            self.root.mkdir(0o711, parents=True, exist_ok=True)
            make_folder(self._folder)
        path, clock = self._folder / "turn.lock", SystemClock()
        until = clock.now() + _LOCK_WAIT_S
        with written(path):
            while (descriptor := locked(path, create=True)) is None:
                if clock.now() >= until:
                    waited = f"{_LOCK_WAIT_S:g} s"
                    raise Unavailable(f"{path} is locked by another process for more than {waited}")
                clock.sleep(_POLL_S)
        try:
            yield
        finally:
            os.close(descriptor)

    def begin(self, name: str, record: SessionRecord) -> OpenSession:
        """Write and lock the session's file; call this under `naming_lock`.

        The file gets its final name only after its content is complete and the lock is taken.
        """
        path = self._folder / f"{name}-{secrets.token_hex(4)}.json"
        part = path.with_suffix(".part")
        with written(path):
            descriptor = open_file(part, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(descriptor, msgspec.json.format(msgspec.json.encode(record)) + b"\n")
                os.fsync(descriptor)
                part.rename(path)
                sync_folder(self._folder)
            except BaseException:
                os.close(descriptor)
                raise
        return OpenSession(record, path, descriptor)

    def recorded_paths(self) -> frozenset[str]:
        """Working tree folders of all sessions, of living and of dead processes."""
        return frozenset(entry.path for _, record in self._records() for entry in record.entries)

    def dead(self) -> Iterator[OpenSession]:
        """Sessions of dead processes, each locked by the current process; the caller closes them.

        After the last session, also deletes `.part` files whose process died before the file got
        its final name: no working tree was made for them.
        """
        for path, record in self._records():
            with written(path):
                descriptor = locked(path)
            if descriptor is not None:
                yield OpenSession(record, path, descriptor)
        for part in self._folder.glob("*.part"):
            descriptor = locked(part)
            if descriptor is not None:
                part.unlink(missing_ok=True)
                os.close(descriptor)

    def unreadable(self) -> Iterator[tuple[Path, str]]:
        """Session files which cannot be read, each with the error text."""
        return ((path, str(read)) for path, read in self._read() if isinstance(read, Damaged))

    def _records(self) -> Iterator[tuple[Path, SessionRecord]]:
        return ((path, read) for path, read in self._read() if not isinstance(read, Damaged))

    def _read(self) -> Iterator[tuple[Path, SessionRecord | Damaged]]:
        for path in sorted(self._folder.glob("*.json")):
            try:
                record = msgspec.json.decode(path.read_bytes(), type=SessionRecord)
            except FileNotFoundError:  # just ended
                continue
            except msgspec.MsgspecError as flaw:
                text = f"{path} does not say which working trees it is about: {flaw}"
                yield path, Damaged(text)
            else:
                text = f"{path} is of version {record.version}, which this dibs does not know"
                yield path, record if record.version == 1 else Damaged(text)


_POLITE = (signal.SIGTERM, signal.SIGHUP)


class PoliteExit:
    """Turns SIGTERM and SIGHUP into `SystemExit`, so clean-ups run before the process ends.

    Only for signals still handled by the system's default, and only in the main thread: Python
    allows no other thread to set a signal handler. After `wait`, a signal is only noted; `end`
    then exits.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, signal.Handlers] = {}
        self._waiting = False
        self._signal: int | None = None

    def watch(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _POLITE:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._before[number] = signal.SIG_DFL
                signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._signal = number
        if not self._waiting:
            raise SystemExit(128 + number)

    def wait(self) -> None:
        """Delay signals from here on until `end`."""
        self._waiting, self._signal = True, None

    def end(self) -> None:
        """Restore the former handlers; exit now if a signal came since `wait`."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        received, self._before, self._waiting, self._signal = self._signal, {}, False, None
        if received is not None:
            raise SystemExit(128 + received)
