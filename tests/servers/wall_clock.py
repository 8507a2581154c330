"""A wrong time of day for one process, by libfaketime: fixed, or stepped while the process runs.

The process's monotonic clocks stay right: they only run, and nobody can set them.
"""

from pathlib import Path

import libfaketime

LIBRARY = Path(libfaketime.__file__).parent / "vendor/libfaketime/src/libfaketime.so.1"


def _preloaded() -> dict[str, str]:
    assert LIBRARY.is_file(), f"{LIBRARY} is missing"
    return {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",  # or every compiled module looks out of date
    }


def faked_clock(hours: int) -> dict[str, str]:
    """An environment in which the time of day is wrong."""
    return {**_preloaded(), "FAKETIME": f"{hours * 3600:+d}s"}


class WallClock:
    """The time of day of all processes with this environment; right until its first step."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0.0)

    def set(self, ahead_s: float) -> None:
        """Make it wrong by so many seconds, from now on."""
        self.ahead_s = ahead_s
        new = self._file.with_suffix(".new")
        new.write_text(f"{ahead_s:+.3f}s\n", encoding="ascii")
        new.chmod(0o644)  # PostgreSQL runs as another account
        new.replace(self._file)

    def step(self, seconds: float) -> None:
        self.set(self.ahead_s + seconds)

    def environment(self) -> dict[str, str]:
        # Read anew whenever a process asks for the time.
        return {
            **_preloaded(),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
        }
