"""Claiming an issue that another holds: wait for its lease to end, then ask like anybody else."""

from datetime import timedelta
from typing import TYPE_CHECKING

from dibs.core.eligibility import ReasonCode
from dibs.core.ids import IssueRef
from dibs.ports.clock import Clock
from dibs.ports.leases import LeaseStore
from dibs.services.claiming import Beaten, Claiming, ClaimOptions, ClaimResult, Doubtful, Refused
from dibs.services.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

_SOON = timedelta(seconds=1)
_PASSING = {
    ReasonCode.HELD,
    ReasonCode.BID_PENDING,
    ReasonCode.IN_GRACE,
    ReasonCode.UNPAINTED,
    ReasonCode.CLAIM_LABEL_ONLY,
    ReasonCode.WIP_LIMIT,
    ReasonCode.FOREIGN_CLAIM,
}
"""Reasons that go away when others are done. For all else a person must do something."""


class Queueing:
    def __init__(
        self,
        claiming: Claiming,
        store: LeaseStore | None,
        clock: Clock,
        dice: "Callable[[], Random]",
    ) -> None:
        self._claiming, self._store, self._clock, self._dice = claiming, store, clock, dice

    def claim(self, issue: IssueRef, options: ClaimOptions, *, wait_s: float) -> ClaimResult:
        """As `Claiming.claim`, again and again while only another's lease is in the way."""
        until = self._clock.now() + wait_s
        waiting: Waiting | None = None
        while True:
            result = self._claiming.claim(issue, None, options)
            left_s = until - self._clock.now()
            remaining = _in_the_way_for(result)
            if remaining is None or left_s <= 0:
                return result
            waiting = waiting or Waiting(self._store, self._clock, self._dice())
            waiting.pause(issue, remaining, left_s)


def _in_the_way_for(result: ClaimResult) -> timedelta | None:
    """How long at most, as far as can be told; None if waiting would not help."""
    match result:
        case Beaten(_, record):
            return record.remaining
        case Refused(_, reasons) if all(reason.code in _PASSING for reason in reasons):
            return _SOON
        case Doubtful():
            return _SOON
        case _:
            return None
