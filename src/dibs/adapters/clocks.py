"""The only module that reads a clock."""

import contextlib
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from dibs.core.ids import LocalTime


class SystemClock:
    """Monotonic time that goes on during suspend, so that a sleeping laptop loses its leases."""

    # Linux: CLOCK_MONOTONIC stops while suspended, CLOCK_BOOTTIME does not. Elsewhere the plain
    # one is the best there is (on macOS it counts suspend).
    _source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now(self) -> LocalTime:
        return LocalTime(time.clock_gettime(self._source))

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(max(0.0, seconds))


def uptime_ms() -> int:
    """How long the machine has been up, suspend included: the same for all that have one BOOT."""
    return int(SystemClock().now() * 1000)


def _boot() -> str:
    return " ".join([_start(), *_time_namespace()])


def _start() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"  # then only a smaller uptime tells that there was a reboot


def _time_namespace() -> list[str]:
    """A container may have an uptime of its own, which says nothing of anybody else's.

    The number of a namespace that is gone may be given to another, so what it adds is told too.
    """
    told: list[str] = []
    with contextlib.suppress(OSError):  # not Linux, or one without them
        told.append(str(Path("/proc/self/ns/time").readlink()))
    with contextlib.suppress(OSError):
        told.extend(Path("/proc/self/timens_offsets").read_text(encoding="utf-8").split())
    return told


BOOT = _boot()
"""Which start of the machine this is, and whose uptime: only where it is the same can uptimes be
compared."""


def wall_clock() -> datetime:
    """Time of day, for people to read. Takes part in no decision."""
    return datetime.now(UTC)
