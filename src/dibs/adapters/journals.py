"""Journals: a file of one JSON object per line, a list in memory, or nowhere."""

import os
import threading
from pathlib import Path

import msgspec

from dibs.adapters.clocks import wall_clock
from dibs.core.durations import format_instant
from dibs.core.events import Event


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
