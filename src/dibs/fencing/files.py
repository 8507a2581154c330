"""Fenced writes of files that several processes may write, on one machine or a shared folder.

A write replaces the whole file: it prepares a new file, syncs it, and renames it over the old one.
Beside the file is a folder, `NAME.fence`:

    8               an empty file: the highest of such numbers is the highest fence seen
    8.step          the last step under this fence, if steps are used
    8.lock          the lock by which writers under this fence take turns
    8-5f0c.part     a file prepared by a writer

Raising a fence makes the file of its number, and then removes all files of lower numbers, prepared
ones too. A writer first prepares, then looks for a higher fence, then renames. So either the writer
sees the higher fence, or the process that raised the fence saw the prepared file and removed it,
and the rename fails. No lock takes part in this: a frozen holder neither keeps a new holder waiting
nor gets through when it wakes up, even if a network file system has given its locks away.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

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
    """Replace the file, unless a higher fence was seen.

    With `version`, only if the file still has the content of that version; with `create=False`,
    only if the file exists. Waits while another process writes under the same fence.
    """
    check(fence, step)
    place = _FencedFile(Path(path).resolve())
    if (seen := place.seen()) > fence:
        return Stale(seen)
    with place.prepared(fence, data) as prepared, place.turn(fence):
        if (raised := place.raised(fence)) is not None:  # after preparing, before reading content
            return raised
        found, record = place.digest(), place.record(fence)
        if (refusal := record.mark(fence, found).refusal(fence, step)) is not None:
            return refusal
        if found is None and (version is not None or not create):
            return Missing()
        if version is not None and version != found:
            return Conflict(other_version(found, version))
        new = _digest(data)
        try:
            place.note(fence, record, record.after(found, step, new))
            place.rename(prepared)
        except FileNotFoundError:
            if (seen := place.seen()) > fence:
                return Stale(seen)  # the process that raised the fence removed the prepared file
            raise
        return Applied(new)


def stamp(path: str | Path, fence: int) -> Applied | Stale:
    """Raise the file's fence without changing the content; call right after getting a lease."""
    check(fence)
    place = _FencedFile(Path(path).resolve())
    return place.raised(fence) or Applied(place.digest())


def read(path: str | Path) -> Reading[bytes] | None:
    """The file's content, fence and version; None if the file does not exist."""
    place = _FencedFile(Path(path).resolve())
    try:
        data = place.path.read_bytes()
    except FileNotFoundError:
        return None
    return Reading(data, place.seen(), _digest(data))


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last step under a fence, written before the file is renamed.

    `step` counts if the file has the announced `digest`. Otherwise the writer died before the
    rename, and the earlier step, `known`, is the last one.
    """

    step: int = 0
    known: int = 0
    digest: str = ""

    def mark(self, fence: int, found: str | None) -> Mark:
        return Mark(fence, self.step if found == self.digest else self.known)

    def after(self, found: str | None, step: int | None, digest: str) -> "_Record":
        last = self.mark(1, found).step
        return _Record(last, last) if step is None else _Record(step, last, digest)


class _FencedFile(msgspec.Struct, frozen=True):
    """A file, and the folder beside it with the fences."""

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
        """The highest fence seen; 0 if none."""
        try:
            names = [entry.name for entry in self.sidecar.iterdir()]
        except FileNotFoundError:
            return Fence(0)
        return Fence(max((int(name) for name in names if name.isdecimal()), default=0))

    def raised(self, fence: int) -> Stale | None:
        """Make `fence` the highest fence and remove the files of lower ones, or return `Stale`."""
        if (seen := self.seen()) > fence:
            return Stale(seen)
        if seen < fence:
            self.sidecar.mkdir(exist_ok=True)
            (self.sidecar / str(fence)).touch()
            _sync_folder(self.sidecar)
            # Another process may just have made the folder: its name must be durable as well.
            _sync_folder(self.path.parent)
        for entry in self.sidecar.iterdir():
            if (match := _NUMBERED.fullmatch(entry.name)) and int(match[1]) < fence:
                entry.unlink(missing_ok=True)
        return Stale(seen) if (seen := self.seen()) > fence else None

    @contextlib.contextmanager
    def prepared(self, fence: int, data: bytes) -> Iterator[Path]:
        """A synced temporary file with the data; deleted on leaving unless it was renamed."""
        self.sidecar.mkdir(exist_ok=True)
        part = self.sidecar / f"{fence}-{secrets.token_hex(8)}.part"
        try:
            with part.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield part
        finally:
            part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def turn(self, fence: int) -> Iterator[None]:
        """Wait until no other process writes under this fence."""
        with (self.sidecar / f"{fence}.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield  # closing the file releases the lock

    def record(self, fence: int) -> _Record:
        place = self.sidecar / f"{fence}.step"
        try:
            return msgspec.json.decode(place.read_bytes(), type=_Record)
        except FileNotFoundError:
            return _Record()
        except ValueError as flaw:
            raise Damaged(f"{place} is not what dibs wrote there ({flaw})") from flaw

    def note(self, fence: int, present: _Record, new: _Record) -> None:
        """Write the new record, if it differs from the present one."""
        if new == present:
            return
        with self.prepared(fence, msgspec.json.encode(new)) as part:
            part.replace(self.sidecar / f"{fence}.step")
        _sync_folder(self.sidecar)

    def rename(self, prepared: Path) -> None:
        """Replace the file by the prepared one, with the same permissions."""
        with contextlib.suppress(FileNotFoundError):
            prepared.chmod(self.path.stat().st_mode & 0o7777)
        prepared.replace(self.path)
        _sync_folder(self.path.parent)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make the names of new files and folders in this folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
