"""Fenced writes of files that several processes may write, on one machine or a shared folder.

A file is replaced as a whole: prepared beside it, synced, renamed over it. Beside it is a folder,
`NAME.fence`:

    8               an empty file: the highest of such numbers is the highest fence seen
    8.step          the last step under it, if steps are used
    8.lock          writers under this fence take turns by it
    8-5f0c.part     what a writer has prepared

Raising a fence makes the file of its number, and then removes all that is lower, prepared files
too. A writer prepares first, looks for a higher fence second and renames last. So either it sees
the higher fence, or the one who raised it saw what it had prepared and took it away, and the rename
has nothing to rename. No lock takes part in that: a frozen holder neither keeps a new one waiting
nor gets through when it wakes up, even if a network file system has given its locks away.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dibs.core.errors import Damaged
from dibs.core.ids import Fence
from dibs.fencing.values import (
    Applied,
    Conflict,
    Mark,
    Missing,
    Outcome,
    Reading,
    Stale,
    check,
    other_version,
)

__all__ = ["guarded_write", "read", "stamp"]

_NUMBERED = re.compile(r"([0-9]+)(?:\.step|\.lock|-[0-9a-f]+\.part)?")


def guarded_write(
    path: str | Path,
    data: bytes,
    fence: int,
    *,
    version: str | None = None,
    step: int | None = None,
    create: bool = True,
) -> Outcome:
    """Replace the file, if no higher fence has been here.

    With `version`, only if the file still has the content that was read; with `create=False`, only
    if there is one. Waits while another writes under the same fence.
    """
    check(fence, step)
    place = _Place(Path(path).resolve())
    if (seen := place.seen()) > fence:
        return Stale(seen)
    with place.prepared(fence, data) as prepared, place.turn(fence):
        told: Outcome | None = place.raised(fence)  # after preparing, and before looking at content
        if told is not None:
            return told
        found, record = place.digest(), place.record(fence)
        told = record.mark(fence, found).refusal(fence, step)
        told = told or _missed(found, version, create=create)
        if told is not None:
            return told
        new = _digest(data)
        try:
            place.note(fence, record, record.after(found, step, new))
            place.rename(prepared)
        except FileNotFoundError:
            if (seen := place.seen()) > fence:
                return Stale(seen)  # who raised the fence took away what was prepared
            raise
        return Applied(new)


def stamp(path: str | Path, fence: int) -> Applied | Stale:
    """Raise the file's fence and leave its content: right after the lease was granted."""
    check(fence)
    place = _Place(Path(path).resolve())
    return place.raised(fence) or Applied(place.digest())


def read(path: str | Path) -> Reading[bytes] | None:
    """The file's content, with its fence and its version."""
    place = _Place(Path(path).resolve())
    try:
        data = place.path.read_bytes()
    except FileNotFoundError:
        return None
    return Reading(data, place.seen(), _digest(data))


@dataclass(frozen=True, slots=True)
class _Record:
    """The last step under a fence, noted before the file is renamed.

    It counts if the file has the content that it announced; else the writer died in between, and
    the step known before is the last one.
    """

    step: int = 0
    known: int = 0
    digest: str = ""

    def mark(self, fence: int, found: str | None) -> Mark:
        return Mark(fence, self.step if found == self.digest else self.known)

    def after(self, found: str | None, step: int | None, digest: str) -> "_Record":
        last = self.mark(1, found).step
        return _Record(last, last) if step is None else _Record(step, last, digest)


@dataclass(frozen=True, slots=True)
class _Place:
    path: Path

    @property
    def sidecar(self) -> Path:
        return self.path.with_name(f"{self.path.name}.fence")

    def digest(self) -> str | None:
        try:
            return _digest(self.path.read_bytes())
        except FileNotFoundError:
            return None

    def seen(self) -> Fence:
        """The highest fence that has been here."""
        try:
            names = [entry.name for entry in self.sidecar.iterdir()]
        except FileNotFoundError:
            return Fence(0)
        return Fence(max((int(name) for name in names if name.isdecimal()), default=0))

    def raised(self, fence: int) -> Stale | None:
        """Be the highest fence here, or be told of the one that is."""
        if (seen := self.seen()) > fence:
            return Stale(seen)
        if seen < fence:
            self.sidecar.mkdir(exist_ok=True)
            (self.sidecar / str(fence)).touch()
            _sync_folder(self.sidecar)
            # The folder may be new, whoever made it: what is in it lasts only if its name does.
            _sync_folder(self.path.parent)
        self._remove_lower(fence)
        return Stale(seen) if (seen := self.seen()) > fence else None

    def _remove_lower(self, fence: int) -> None:
        for entry in self.sidecar.iterdir():
            if (match := _NUMBERED.fullmatch(entry.name)) and int(match[1]) < fence:
                entry.unlink(missing_ok=True)

    @contextlib.contextmanager
    def prepared(self, fence: int, data: bytes) -> Iterator[Path]:
        self.sidecar.mkdir(exist_ok=True)
        part = self.sidecar / f"{fence}-{secrets.token_hex(8)}.part"
        try:
            _write_synced(part, data)
            yield part
        finally:
            part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def turn(self, fence: int) -> Iterator[None]:
        with (self.sidecar / f"{fence}.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield  # closing it lets go

    def record(self, fence: int) -> _Record:
        place = self.sidecar / f"{fence}.step"
        try:
            return _Record(**json.loads(place.read_text("ascii")))
        except FileNotFoundError:
            return _Record()
        except (ValueError, TypeError) as flaw:
            raise Damaged(f"{place} is not what dibs wrote there ({flaw})") from flaw

    def note(self, fence: int, known: _Record, new: _Record) -> None:
        if new == known:
            return
        with self.prepared(fence, json.dumps(asdict(new)).encode()) as part:
            part.replace(self.sidecar / f"{fence}.step")
        _sync_folder(self.sidecar)

    def rename(self, prepared: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            prepared.chmod(self.path.stat().st_mode & 0o7777)
        prepared.replace(self.path)
        _sync_folder(self.path.parent)


def _missed(found: str | None, version: str | None, *, create: bool) -> Outcome | None:
    if found is None and (version is not None or not create):
        return Missing()
    if version is not None and version != found:
        return Conflict(other_version(found, version))
    return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write_synced(place: Path, data: bytes) -> None:
    with place.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """A new name, of a file or a folder, is durable once the folder that it is in is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
