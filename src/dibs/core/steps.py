"""The points at which a crash must do no harm, named.

Every service reports each step it has passed through its `Reached` callable. Production does
nothing with it; `DIBS_FAILPOINT` kills the process there, and the simulator switches there. The
acceptance tests walk this very list, so a step that is added is a step that is tested.
"""

from collections.abc import Callable
from enum import StrEnum


class Step(StrEnum):
    CLAIM_STARTED = "claim.started"
    CLAIM_BID = "claim.bid"
    CLAIM_SETTLED = "claim.settled"
    CLAIM_GRANTED = "claim.granted"
    CLAIM_JUDGED = "claim.judged"
    CLAIM_CONFIRMED = "claim.confirmed"
    CLAIM_PAINTED = "claim.painted"
    RENEW_STARTED = "renew.started"
    RENEW_STORED = "renew.stored"
    RENEW_SHOWN = "renew.shown"
    FINISH_STARTED = "finish.started"
    FINISH_VERIFIED = "finish.verified"
    FINISH_DECIDED = "finish.decided"
    FINISH_LABEL_ADDED = "finish.label_added"
    FINISH_LABEL_REMOVED = "finish.label_removed"
    FINISH_CLOSED = "finish.closed"
    FINISH_SHOWN = "finish.shown"
    FINISH_PAINTED = "finish.painted"
    FINISH_ACKNOWLEDGED = "finish.acknowledged"


Reached = Callable[[Step], None]


def unwatched(step: Step) -> None:
    """The production observer: passing a step costs one call and does nothing."""
