"""A clock on which time passes only when every other thread is known to wait.

`dibs.testing.clock.FakeClock` looks at what each thread is in, and lets some real milliseconds go
by for what it does not see: a thread that was started and has not run yet, and one that was woken
and has not run since. On a busy machine these take longer than that, and time moved under them.
Here both are seen, so that nothing depends on how busy the machine is.
"""

import threading
from collections.abc import Set
from types import FrameType

from dibs.testing.clock import FakeClock, _frames

_POLL_S = 0.001
_LONGEST_S = 60.0
_NOBODY: Set[threading.Thread] = frozenset()


class WatchedClock(FakeClock):
    """As the other, with `let_others` and `pass_on` for whoever moves time by hand."""

    def __init__(self, *, patience_s: float = 0.0) -> None:
        super().__init__(patience_s=patience_s)
        self._letting: set[threading.Thread] = set()

    def let_others(self) -> None:
        """Return when all other threads wait: for time, or for what only others can bring.

        The owner is not waited for: if it is not the one that asks, it waits for us.
        """
        ours, pause = threading.current_thread(), threading.Event()
        with self._lock:
            self._letting.add(ours)
        try:
            for _ in range(round(_LONGEST_S / _POLL_S)):
                if not self._at_work(besides=self._letting):
                    return
                pause.wait(_POLL_S)
        finally:
            with self._lock:
                self._letting.discard(ours)
        raise AssertionError("a thread goes on and on and waits for nothing")

    def pass_on(self, seconds: float) -> None:
        """Move time while everybody waits, and let them do what it was time for."""
        self.let_others()
        self.advance(seconds)
        self.let_others()

    def _others_may_go_on(self, *, though_they_wait: bool) -> bool:
        return self._at_work(though_they_wait=though_they_wait)

    def _at_work(
        self, *, besides: Set[threading.Thread] = _NOBODY, though_they_wait: bool = False
    ) -> bool:
        # In this order: whoever waits for time by then can only have gone on by its event since.
        with self._lock:
            waiting, uncounted = dict(self._waiting), self._before | besides
            moving = self._letting - besides
        frames, there, now = _frames(), threading.enumerate(), self.now()
        for thread in there:
            if thread in uncounted or thread.ident == self._owner:
                continue
            if thread in moving:
                return True
            if thread in waiting:
                until, event = waiting[thread]
                if now >= until or event.is_set():
                    return True
            elif though_they_wait or not _waits(frames.get(thread.ident or 0), there):
                return True
        return False


def _waits(frame: FrameType | None, there: list[threading.Thread]) -> bool:
    """Whether nothing but another thread, or real time, can let it go on.

    A thread that was only just started is in no frame. One that was told to go on stays in the
    frame in which it waited until it gets a turn, and is not among those who wait any more.
    """
    if frame is None or frame.f_code.co_filename != threading.__file__:
        return False
    known = frame.f_locals
    match frame.f_code.co_name:
        case "wait" if "waiter" in known:
            waiter = known["waiter"]
            return bool(waiter.locked() and waiter in known["self"]._waiters)
        case "_wait_for_tstate_lock" | "join":
            return known["self"] in there
        case _:
            return False
