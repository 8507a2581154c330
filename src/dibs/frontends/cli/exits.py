"""Exit codes: proven outcomes are kept apart from failures, so that scripts can tell."""

from enum import IntEnum

from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.errors import (
    DibsError,
    GrantedElsewhere,
    IssueLocked,
    LeaseLost,
    Misuse,
    NoSuchComment,
    NoSuchIssue,
    NotGranted,
    NotPermitted,
    RateLimited,
)


class Exit(IntEnum):
    DONE = 0
    ERROR = 1
    USAGE = 2
    NOTHING = 3
    HELD = 4
    LOST = 5
    SHUT = 6
    LIMITED = 7
    UNPROVEN = 8
    FORBIDDEN = 9
    INTERRUPTED = 130


_ERRORS: tuple[tuple[type[DibsError], Exit], ...] = (
    (NoSuchIssue, Exit.ERROR),
    (NoSuchComment, Exit.ERROR),
    (IssueLocked, Exit.FORBIDDEN),
    (Misuse, Exit.USAGE),
    (GrantedElsewhere, Exit.SHUT),
    (LeaseLost, Exit.LOST),
    (NotGranted, Exit.HELD),
    (RateLimited, Exit.LIMITED),
    (NotPermitted, Exit.FORBIDDEN),
)
_HELD = {
    ReasonCode.HELD,
    ReasonCode.BID_PENDING,
    ReasonCode.IN_GRACE,
    ReasonCode.UNPAINTED,
    ReasonCode.CLAIM_LABEL_ONLY,
    ReasonCode.ASSIGNED,
    ReasonCode.PULL_OPEN,
    ReasonCode.FOREIGN_CLAIM,
}
_NOTHING = {
    ReasonCode.CLOSED,
    ReasonCode.NO_STAGE,
    ReasonCode.SEVERAL_STAGES,
    ReasonCode.FINAL_STAGE,
    ReasonCode.NOT_SERVED,
}


def for_error(error: DibsError) -> Exit:
    for kind, code in _ERRORS:
        if isinstance(error, kind):
            return code
    return Exit.ERROR


def for_reasons(reasons: tuple[Reason, ...]) -> Exit:
    """The most telling of several: somebody has it; a person said no; nothing is there to do."""
    codes = {reason.code for reason in reasons}
    if codes & _HELD:
        return Exit.HELD
    if ReasonCode.UNREADABLE in codes:
        return Exit.UNPROVEN
    if codes - _NOTHING:
        return Exit.SHUT
    return Exit.NOTHING
