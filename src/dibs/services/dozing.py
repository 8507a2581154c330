"""How an idle worker waits: for a job to end, a signal, a hint, or its time to be over.

A fleet's own work makes most of what there is to hear, so hints are followed now and then only; one
that comes too soon is followed later. Every worker of a machine hears a hint in the same moment, so
each lets a little time pass before it looks.
"""

import random
import threading

from dibs.core.ids import LocalTime
from dibs.ports.clock import Clock
from dibs.ports.hints import Hints

SHORTEST_S = 0.01
"""No wait is shorter: the rest of one may be less than any clock can tell."""
_HINTS_A_POLL = 10
_HINTS_APART_S = 5.0
"""So many hints are followed between two polls at most, and so much time passes between them."""
_STAGGER_S = 2.0


class Dozing:
    def __init__(
        self, hints: Hints | None, clock: Clock, dice: random.Random, *, poll_s: float
    ) -> None:
        self._hints = hints
        self._clock = clock
        self._dice = dice
        self._apart_s = max(poll_s / _HINTS_A_POLL, _HINTS_APART_S)
        self._stagger_s = min(poll_s, _STAGGER_S)
        self._heard = False
        self._next_from = LocalTime(0.0)

    def wait(self, wake: threading.Event, leaving: threading.Event, seconds: float) -> bool:
        """True if it ended because somebody hinted at a change."""
        if self._hints is None:
            self._clock.wait(wake, seconds)
            return False
        until = self._clock.now() + seconds
        while (left_s := until - self._clock.now()) > 0:
            if self._clock.wait(wake, max(min(left_s, self._hints.every_s), SHORTEST_S)):
                return False
            if self._is_to_follow(self._hints):
                self._clock.wait(leaving, self._dice.uniform(0.0, self._stagger_s))
                return True
        return False

    def _is_to_follow(self, hints: Hints) -> bool:
        self._heard |= hints.heard()
        now = self._clock.now()
        if not self._heard or now < self._next_from:
            return False
        self._heard = False
        self._next_from = LocalTime(now + self._apart_s)
        return True
