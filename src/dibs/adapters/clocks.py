"""The only module that reads a clock."""

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
    """How long the machine has been up, suspend included: the same for all its processes."""
    return int(SystemClock().now() * 1000)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"  # then only a smaller uptime tells that there was a reboot


BOOT = _boot()
"""Which start of the machine this is."""


def wall_clock() -> datetime:
    """Time of day, for people to read. Takes part in no decision."""
    return datetime.now(UTC)
