"""Local time: monotonic, counting suspend, good only for deciding when to stop trusting."""

import threading
from typing import Protocol

from dibs.core.ids import LocalTime


class Clock(Protocol):
    def now(self) -> LocalTime: ...

    def sleep(self, seconds: float) -> None: ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Sleep until the event is set or the time is over; True if it was set."""
        ...
