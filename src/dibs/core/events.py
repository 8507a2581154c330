"""Events, which services hand to observers, and steps, at which a crash must do no harm.

An `Event` is a fact in the past tense, for people who ask afterwards.

A `Step` is a named point in a service. The service calls its `Reached` callable after each step.
Production does nothing there; `DIBS_FAILPOINT` kills the process there, and the simulator switches
between workers there. The acceptance tests walk the list of steps, so each new step is tested.
"""

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct, field

from dibs.core.ids import Fence, HolderId, IssueRef, RunId, ServerTime, StageName
from dibs.core.lease import Bid, Lease


class EventKind(StrEnum):
    CLAIMED = "claimed"
    """A lease was granted and shown."""
    CLAIM_LOST = "claim_lost"
    """A bid did not win."""
    RENEWED = "renewed"
    """A lease was renewed."""
    FENCE_REGRESSED = "fence_regressed"
    """The fence of a grant was not above all earlier ones; the grant was given back."""
    LEASE_LOST = "lease_lost"
    """A holder stopped trusting its lease before it was done."""
    HANDLER_STARTED = "handler_started"
    """The stage's handler began."""
    HANDLER_EXITED = "handler_exited"
    """The stage's handler ended, by itself or stopped."""
    WORK_KEPT = "work_kept"
    """Work that existed only in a run's working tree was kept under a ref, or left in the tree."""
    ADVANCED = "advanced"
    """An issue moved to its next stage."""
    RETURNED = "returned"
    """An issue was given back without counting an attempt."""
    FAILED = "failed"
    """An attempt failed and was counted."""
    PARKED = "parked"
    """An issue was set aside for a person."""
    EXCUSED = "excused"
    """A failed attempt was given back: the handler was at fault, not the issue."""
    FINISH_REFUSED = "finish_refused"
    """A holder that had lost its lease tried to finish and was refused."""
    ROLLED_FORWARD = "rolled_forward"
    """Another worker finished painting the ending of a vanished holder."""
    FREED = "freed"
    """The labels of a lease that was over were taken off."""
    REVOKED = "revoked"
    """An operator took a lease away, or asked its holder to stop."""
    APPROVED = "approved"
    """A person approved what stands at the gate of an issue's stage."""
    REJECTED = "rejected"
    """A person rejected what stands at the gate of an issue's stage."""
    PAUSED = "paused"
    """A person said hands off."""
    RESUMED = "resumed"
    """A person lifted a pause."""


class Event(Struct, frozen=True):
    kind: EventKind
    issue: IssueRef | None = None
    run: RunId | None = None
    holder: HolderId | None = None
    stage: StageName | None = None
    fence: Fence | None = None
    at: ServerTime | None = None
    detail: dict[str, str] = field(default_factory=dict)
    spans: dict[str, float] = field(default_factory=dict)
    """Lengths of local time in seconds: `waited` for a lease, `took` to do it, `held` a lease, and
    the `margin` that was left of a lease's trust."""


def about(
    kind: EventKind,
    lease: Lease | Bid,
    *,
    at: ServerTime | None = None,
    spans: dict[str, float] | None = None,
    **detail: str,
) -> Event:
    """An event about a lease, or about a bid for a lease; empty details are left out."""
    return Event(
        kind,
        issue=lease.issue,
        run=lease.run,
        holder=lease.holder,
        stage=lease.stage,
        fence=lease.fence if isinstance(lease, Lease) else None,
        at=at,
        detail={key: value for key, value in detail.items() if value},
        spans=spans or {},
    )


class Step(StrEnum):
    """The steps of a claim, a renewal and a finish."""

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
    """The `Reached` of production: a step costs a call and has no effect."""
