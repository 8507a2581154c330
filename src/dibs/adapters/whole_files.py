"""Files that are there as a whole or not at all, and locks on files that die with their process."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from dibs.core.errors import Unwritable


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
