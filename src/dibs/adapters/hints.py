"""Hints between processes of one folder: a file that changes whenever somebody hints.

Whoever waits compares what the file system says of it; nobody reads it. Replaced and not written
into, so that two hints within one tick of the clock are two: the second is another file.
"""

import os
from pathlib import Path

from dibs.core.errors import Unwritable

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
