"""How often an issue failed in its stage, and when it may be tried again.

Counted from the history of leases, so it survives restarts and is the same on every machine. Lost
races are not failures; neither is a lease an operator took away.
"""

from collections.abc import Sequence

from msgspec import Struct

from dibs.core.ids import ServerTime, StageName, later
from dibs.core.lease import Outcome, Try
from dibs.core.pipeline import Stage


class Attempts(Struct, frozen=True):
    failed: int = 0
    last_failed_at: ServerTime | None = None
    spent: bool = False
    """No attempt is left: the issue is to be parked for a person."""
    rests_until: ServerTime | None = None
    """The backoff after the last failure that was said; None when there was none."""


def count_attempts(tries: Sequence[Try], stage: Stage) -> Attempts:
    """Failures in this stage since the issue last moved, was parked or was returned by a person."""
    failed = failed_tries(tries, stage.name)
    last = failed[-1] if failed else None
    return Attempts(
        failed=len(failed),
        last_failed_at=last.ended_at if last else None,
        spent=len(failed) >= stage.attempts,
        rests_until=_rests_until(last, len(failed), stage),
    )


def failed_tries(tries: Sequence[Try], stage: StageName) -> tuple[Try, ...]:
    """Those that count, the oldest first."""
    failed: list[Try] = []
    for attempt in tries:
        if _starts_afresh(attempt, stage):
            failed = []
        elif _failed(attempt):
            failed.append(attempt)
    return tuple(failed)


def _rests_until(last: Try | None, failed: int, stage: Stage) -> ServerTime | None:
    """A handler that said it failed is given a rest; a vanished holder's ttl was rest enough."""
    if last is None or last.ended_at is None or last.outcome is None:
        return None
    return later(last.ended_at, stage.backoff.after(failed))


def _starts_afresh(attempt: Try, stage: StageName) -> bool:
    """Parked and tried again means re-queued: only people take `parked` off."""
    return attempt.stage != stage or attempt.outcome in (Outcome.ADVANCED, Outcome.PARKED)


def _failed(attempt: Try) -> bool:
    if attempt.ended_at is None or attempt.excused:
        return False
    # No outcome at all means that the holder vanished: a crash counts, or it would loop for ever.
    return attempt.outcome in (Outcome.FAILED, None)
