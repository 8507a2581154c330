"""Waiting for a lease to end: told by the store where it can, else a jittered, bounded poll."""

from datetime import timedelta
from typing import TYPE_CHECKING

from dibs.core.errors import Outage
from dibs.core.ids import IssueRef
from dibs.ports.clock import Clock
from dibs.ports.leases import LeaseStore, Waking

if TYPE_CHECKING:
    from random import Random

_FIRST_POLL_S = 0.05
_LONGEST_POLL_S = 2.0
_LONGEST_LISTEN_S = 5.0
_GROWTH = 1.6


class Waiting:
    """One waiter's patience for one lease. Each pause may end early, and none outlasts the lease
    that it waits for: an expiry makes no noise.
    """

    def __init__(self, store: LeaseStore | None, clock: Clock, dice: "Random") -> None:
        able: object = store
        self._waking = able if isinstance(able, Waking) else None
        self._clock = clock
        self._dice = dice
        self._poll_s = _FIRST_POLL_S

    def pause(self, issue: IssueRef, remaining: timedelta, left_s: float) -> None:
        """Until the lease may be over, and at most `left_s`."""
        # Half a poll more than remains: whoever asks at the very moment is refused once more.
        over_s = max(remaining.total_seconds(), 0.0) + self._dice.uniform(0, self._poll_s / 2)
        poll_s = self._dice.uniform(self._poll_s / 2, self._poll_s)
        self._poll_s = min(self._poll_s * _GROWTH, _LONGEST_POLL_S)
        if self._waking is None:
            self._clock.sleep(min(over_s, left_s, poll_s))
            return
        # A store may keep a lease for a while after its time: then nothing remains, and it is still
        # not over. So no shorter than a poll, which grows.
        listen_s = min(max(over_s, poll_s), left_s, _LONGEST_LISTEN_S)
        try:
            self._waking.await_end(issue, listen_s)
        except Outage as failure:
            if not failure.retryable:
                raise
            self._clock.sleep(min(poll_s, left_s))  # whoever asks next is told
