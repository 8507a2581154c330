"""A polite request to end (SIGTERM, SIGHUP) becomes an exit that clean-ups see.

Only where nobody else has decided what these signals do, and only in the main thread, which is the
only one that Python lets decide it. While a clean-up runs, the request waits until it is done.
"""

import signal
import threading
from types import FrameType

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
