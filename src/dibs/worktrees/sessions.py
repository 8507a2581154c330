"""Who is at work in which working trees: a file for each session, locked while its process lives.

A file is written once, before the first working tree is made, and says what will be made. So
whatever a process leaves behind when it dies is in its file, and that it is dead is the kernel's
word, which took the lock off: no process number, no clock and no host name takes part. The lock is
handed on to the git commands that make and remove working trees, so a session is not over while
one of them still runs.

A polite request to end (SIGTERM, SIGHUP) becomes an exit that clean-ups see.

Only where nobody else has decided what these signals do, and only in the main thread, which is the
only one that Python lets decide it. While a clean-up runs, the request waits until it is done.
"""

import contextlib
import fcntl
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec

from dibs.adapters.files import locked, sync_folder, written
from dibs.adapters.system import SystemClock
from dibs.core.errors import Damaged, Unavailable
from dibs.worktrees.values import WorktreeSpec

FOLDER = ".dibs-sessions"
_TURN_S = 30.0
_POLL_S = 0.01


class Entry(msgspec.Struct, frozen=True):
    """One working tree of a session, as it is meant to be."""

    repo_name: str
    gh_repo: str
    checkout: str
    repository: str
    path: str
    branch: str
    start: str
    """The commit that the branch starts from: what is in it is nobody's unpushed work."""
    new_branch: bool
    """Whether the branch is made with it, and so may go with it."""

    @property
    def spec(self) -> WorktreeSpec:
        return WorktreeSpec(
            repo_name=self.repo_name,
            worktree_path=Path(self.path),
            branch_name=self.branch,
            gh_repo=self.gh_repo,
            checkout_path=Path(self.checkout),
        )


class Record(msgspec.Struct, frozen=True):
    """What is in a session's file."""

    agent: str
    feature_id: str
    epoch: int
    entries: tuple[Entry, ...]
    pid: int
    """For people who look; takes part in no decision."""
    version: int = 1


@dataclass(frozen=True, slots=True)
class Session:
    """A session whose file is open and locked by this process."""

    record: Record
    path: Path
    descriptor: int

    def forget(self) -> None:
        """Nothing of it is left."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def close(self) -> None:
        os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions whose working trees are under one folder."""

    root: Path

    @property
    def _folder(self) -> Path:
        return self.root / FOLDER

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Alone while names are chosen: two sessions never mean the same folder."""
        with written(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = self._awaited(self._folder / "turn.lock")
        try:
            yield
        finally:
            os.close(descriptor)

    def _awaited(self, path: Path) -> int:
        clock, never = SystemClock(), threading.Event()
        until = clock.now() + _TURN_S
        while clock.now() < until:
            with written(path):
                descriptor = locked(path, create=True)
            if descriptor is not None:
                return descriptor
            clock.wait(never, _POLL_S)
        raise Unavailable(f"{path} is locked by another process for more than {_TURN_S:g} s")

    def begin(self, name: str, record: Record) -> Session:
        """In the turn. The file has its name only when it is whole and locked."""
        path = self._folder / f"{name}-{secrets.token_hex(4)}.json"
        part = path.with_suffix(".part")
        with written(path):
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(descriptor, msgspec.json.format(msgspec.json.encode(record)) + b"\n")
                os.fsync(descriptor)
                part.rename(path)
                sync_folder(self._folder)
            except BaseException:
                os.close(descriptor)
                raise
        return Session(record, path, descriptor)

    def meant(self) -> frozenset[str]:
        """Every folder that some session means, whether it lives or not."""
        return frozenset(entry.path for _, record in self._records() for entry in record.entries)

    def dead(self) -> Iterator[Session]:
        """Those whose process is gone, each locked by us now; the caller closes them."""
        for path, record in self._records():
            with written(path):
                descriptor = locked(path)
            if descriptor is not None:
                yield Session(record, path, descriptor)
        self._sweep_parts()

    def unreadable(self) -> Iterator[tuple[Path, str]]:
        """Files that say nothing, and what is wrong with them."""
        for path in sorted(self._folder.glob("*.json")):
            try:
                _read(path)
            except FileNotFoundError:
                pass
            except Damaged as flaw:
                yield path, str(flaw)

    def _records(self) -> Iterator[tuple[Path, Record]]:
        for path in sorted(self._folder.glob("*.json")):
            try:
                record = _read(path)
            except (FileNotFoundError, Damaged):  # it ended just now; see `unreadable`
                continue
            yield path, record

    def _sweep_parts(self) -> None:
        """What died before it had a name: it made nothing."""
        for part in self._folder.glob("*.part"):
            descriptor = locked(part)
            if descriptor is not None:
                with contextlib.suppress(FileNotFoundError):
                    part.unlink()
                os.close(descriptor)


def _read(path: Path) -> Record:
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except msgspec.MsgspecError as flaw:
        raise Damaged(f"{path} does not say which working trees it is about: {flaw}") from flaw
    if record.version != 1:
        raise Damaged(f"{path} is of version {record.version}, which this dibs does not know")
    return record


_POLITE = (signal.SIGTERM, signal.SIGHUP)


class PoliteExit:
    def __init__(self) -> None:
        self._before: dict[signal.Signals, signal.Handlers] = {}
        self._waiting = False
        self._asked: int | None = None

    def watch(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _POLITE:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._before[number] = signal.SIG_DFL
                signal.signal(number, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._asked = number
        if not self._waiting:
            raise SystemExit(128 + number)

    def wait(self) -> None:
        """From here on a request waits."""
        self._waiting, self._asked = True, None

    def end(self) -> None:
        """As it was before; exits now if that was asked for while it had to wait."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        asked, self._before, self._waiting, self._asked = self._asked, {}, False, None
        if asked is not None:
            raise SystemExit(128 + asked)
