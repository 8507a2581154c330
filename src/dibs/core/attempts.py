"""How often an issue failed in its stage, and when it may be tried again.

Counted from the history of leases, so it survives restarts and is the same on every machine. Lost
races are not failures; neither is a lease an operator took away.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dibs.core.ids import ServerTime, StageName, later
from dibs.core.lease import Outcome, Try
from dibs.core.pipeline import Stage


@dataclass(frozen=True, slots=True)
class Attempts:
    failed: int = 0
    last_failed_at: ServerTime | None = None
    spent: bool = False
    """No attempt is left: the issue is to be parked for a person."""
    rests_until: ServerTime | None = None
    """The backoff after the last failure; None when it never failed."""


def count_attempts(tries: Sequence[Try], stage: Stage) -> Attempts:
    """Failures in this stage since the issue last moved, was parked or was returned by a person."""
    failed, last_at = 0, None
    for attempt in tries:
        if _starts_afresh(attempt, stage.name):
            failed, last_at = 0, None
        elif _failed(attempt):
            failed, last_at = failed + 1, attempt.ended_at
    return Attempts(
        failed=failed,
        last_failed_at=last_at,
        spent=failed >= stage.attempts,
        rests_until=later(last_at, stage.backoff.after(failed)) if last_at is not None else None,
    )


def _starts_afresh(attempt: Try, stage: StageName) -> bool:
    """Parked and tried again means re-queued: only people take `parked` off."""
    return attempt.stage != stage or attempt.outcome in (Outcome.ADVANCED, Outcome.PARKED)


def _failed(attempt: Try) -> bool:
    if attempt.ended_at is None or attempt.excused:
        return False
    # No outcome at all means that the holder vanished: a crash counts, or it would loop for ever.
    return attempt.outcome in (Outcome.FAILED, None)
