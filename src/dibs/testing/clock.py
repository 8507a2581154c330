"""A clock that moves when the code under test waits, and stands still otherwise.

Local time starts at an odd number and server time at a fixed epoch, so that a test which mixes the
two up does not pass by luck. Time belongs to one thread, the one that made the clock: its `sleep`
and `wait` move time and return. Any other thread's last until the owner has moved time that far,
so a background thread can never run away with the clock. And the owner moves it only when all
others wait for that or for an event, however long a busy machine keeps them from getting there.
"""

import gc
import sys
import threading
from datetime import UTC, datetime, timedelta
from types import FrameType

from dibs.core.ids import LocalTime, ServerTime

EPOCH = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
_LOCAL_START_US = 1_000_000_000
_POLL_S = 0.001
_SHORTEST_S = 0.000_001
_LONGEST_S = 5.0
"""For a thread that waits for something else, the owner does not wait for ever."""
_WAITS = ("wait", "_wait_for_tstate_lock")
"""What a thread is in that waits for an event or for another thread, in the standard library."""
_LOOKING = threading.RLock()


class FakeClock:
    """A `ports.system.Clock` for tests, and the server's clock of the memory adapters."""

    def __init__(
        self,
        *,
        grain: timedelta = timedelta(milliseconds=1),
        patience_s: float = 0.0,
    ) -> None:
        """`patience_s`: real seconds for which the owner's `wait` lets other threads set its event
        before it moves time, if any wait for something else than time, and longer while one is at
        work. Only those count that were started since. Zero is right where there are none.
        """
        self._grain = grain
        self._patience_s = patience_s
        self._passed_us = 0
        self._owner = threading.get_ident()
        self._lock = threading.Lock()
        self._before = frozenset(threading.enumerate())
        self._waiting: dict[threading.Thread, tuple[LocalTime, threading.Event]] = {}

    def now(self) -> LocalTime:
        with self._lock:
            return LocalTime((_LOCAL_START_US + self._passed_us) / 1_000_000)

    def server_now(self) -> ServerTime:
        """The server's time of day: the epoch and all time that has passed, in whole grains."""
        with self._lock:
            passed = timedelta(microseconds=self._passed_us)
        return ServerTime(EPOCH + passed // self._grain * self._grain)

    @property
    def passed_s(self) -> float:
        """How much time has passed since the clock was made."""
        with self._lock:
            return self._passed_us / 1_000_000

    def advance(self, seconds: float) -> None:
        """Move time on. Never backwards."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds}")
        with self._lock:
            self._passed_us += round(seconds * 1_000_000)

    def sleep(self, seconds: float) -> None:
        if self._owned:
            self.advance(max(0.0, seconds))
        else:
            self._outlast(threading.Event(), seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if not self._owned:
            return self._outlast(event, seconds)
        if event.is_set() or (self._patience_s > 0 and self._set_by_others(event)):
            return True
        # However short, a wait takes time: whoever waits until a moment would wait for ever.
        self.advance(max(_SHORTEST_S, seconds) if seconds > 0 else 0.0)
        return event.is_set()

    def _set_by_others(self, event: threading.Event) -> bool:
        patient = round(self._patience_s / _POLL_S)
        for poll in range(max(patient, round(_LONGEST_S / _POLL_S))):
            if not self._others_may_go_on(though_they_wait=poll < patient):
                break
            if event.wait(_POLL_S):
                return True
        return event.is_set()

    def _others_may_go_on(self, *, though_they_wait: bool) -> bool:
        """Whether any thread that was started since may do something without time moving.

        `though_they_wait`: for anything but time. Who sets their event may not be known to us.
        """
        now, frames = self.now(), _frames()
        with self._lock:
            waiting = dict(self._waiting)
        for thread in threading.enumerate():
            if thread in self._before or thread.ident is None or thread.ident == self._owner:
                continue
            if thread in waiting:
                until, event = waiting[thread]
                if now >= until or event.is_set():
                    return True
            elif though_they_wait or not _waits(frames.get(thread.ident)):
                return True
        return False

    @property
    def _owned(self) -> bool:
        return threading.get_ident() == self._owner

    def _outlast(self, event: threading.Event, seconds: float) -> bool:
        """Let real time pass until the owner has moved virtual time, or the event is set."""
        until, thread = LocalTime(self.now() + seconds), threading.current_thread()
        with self._lock:
            self._waiting[thread] = until, event
        try:
            while self.now() < until:
                if event.wait(_POLL_S):
                    return True
            return event.is_set()
        finally:
            with self._lock:
                del self._waiting[thread]


def _frames() -> dict[int, FrameType]:
    """What each thread is in.

    Nothing is collected meanwhile: before Python 3.12 the call makes objects under a lock of the
    interpreter, and a `threading.local` that is collected just then waits for that lock for ever,
    deaf to signals (cpython issue 106883).
    """
    with _LOOKING:
        collecting = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if collecting:
                gc.enable()


def _waits(frame: FrameType | None) -> bool:
    if frame is None:
        return False
    code = frame.f_code
    return code.co_filename == threading.__file__ and code.co_name in _WAITS
