"""What workers do at gates: open them for rulings by comment, send back what was rejected.

A pass lists the issues that stand before gates, and reads those that changed since the last pass.
So a comment that begins with `/approve` or `/reject` is found wherever it was written, and costs a
request only when there is one. Issues are moved under a lease, like every move: of two workers that
see the same rejection only one moves the issue.
"""

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from dibs.core.approval import (
    EXPIRED,
    REJECTED,
    AtGate,
    RulingKind,
    Void,
    at_gate,
    render_expired,
    render_ruling,
    times_sent_back,
)
from dibs.core.durations import describe_span
from dibs.core.eligibility import ReasonCode, reasons_with
from dibs.core.errors import IssueLocked, NoSuchComment, NoSuchIssue
from dibs.core.events import Event, EventKind
from dibs.core.ids import HolderId, IssueRef, LocalTime, ServerTime, later
from dibs.core.issue import Issue, Snapshot
from dibs.core.marker import marks
from dibs.core.pipeline import AfterTimeout, ApprovalGate, Stage
from dibs.ports.tracker import IssueQuery
from dibs.services.claiming import Claimed, Claiming, ClaimOptions
from dibs.services.ending import Advancing, Finished
from dibs.services.keeping import Keeper
from dibs.services.reading import read_each, walk

if TYPE_CHECKING:
    from dibs.services.backlog import Backlog

_log = logging.getLogger("dibs.gatekeeping")

_OVERLOOKS = reasons_with(lambda meaning: meaning.bookkeeping) | {ReasonCode.GATE_SHUT}
"""Reasons that stop work on an issue, but not a move back from its gate."""


class GateAct(StrEnum):
    """What was done about an issue at a gate."""

    OPENED = "opened"
    """Approved by comment: the gate's label was put on."""
    SHUT = "shut"
    """The gate's label was of an earlier visit, and was taken off."""
    SENT_BACK = "sent_back"
    PARKED = "parked"
    LEFT = "left"
    """The issue could not be moved: held, paused, locked, deleted, or its lease was lost."""


class Gated(Struct, frozen=True):
    issue: IssueRef
    act: GateAct
    text: str

    @property
    def changed(self) -> bool:
        return self.act is not GateAct.LEFT


class Gatekeeping:
    def __init__(
        self,
        backlog: "Backlog",
        claiming: Claiming,
        keep: Callable[[Claimed], Keeper],
        advancing: Advancing,
    ) -> None:
        self._tracker = backlog.tracker
        self._leases = backlog.leases
        self._pipeline = backlog.pipeline
        self._observer, self._granting = backlog.observer, backlog.granting
        self._claiming, self._keep, self._advancing = claiming, keep, advancing
        self._clock = backlog.clock
        self._looked: dict[IssueRef, tuple[Issue, LocalTime | None]] = {}
        """The issue as listed at the last look, and when its gate is due for another look."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(one for one in self._pipeline.stages if isinstance(one.gate, ApprovalGate))

    def watch(self, holder: HolderId, *, limit: int = 1000) -> tuple[Gated, ...]:
        """Look at up to `limit` issues before each gate, and do what their rulings say."""
        if not self.stages or not self._granting.keeps_house():
            return ()
        without = (self._pipeline.labels.claimed, *sorted(self._pipeline.vetoes))
        done: list[Gated] = []
        seen: dict[IssueRef, tuple[Issue, LocalTime | None]] = {}
        for stage in self.stages:
            changed: dict[IssueRef, Issue] = {}
            query = IssueQuery((stage.label,), without, limit=limit)
            for issue in walk(self._tracker, query):
                known, due_at = self._looked.get(issue.ref, (None, None))
                due = due_at is not None and self._clock.now() >= due_at
                if known is None or due or _state(known) != _state(issue):
                    changed[issue.ref] = issue
                else:
                    seen[issue.ref] = (issue, due_at)
            for snapshot in read_each(self._tracker, changed):
                ref, gate = snapshot.issue.ref, self._gate(snapshot, stage)
                if gate is None:
                    continue  # held, or not whole: looked at again by the next pass
                try:
                    act = self._act(gate, snapshot, holder)
                except (NoSuchIssue, NoSuchComment, IssueLocked) as refusal:
                    act = Gated(ref, GateAct.LEFT, str(refusal))
                if act is not None:
                    done.append(act)
                else:
                    over_at = _over_at(gate)
                    left_s = (over_at - snapshot.now).total_seconds() if over_at else None
                    due_at = None if left_s is None else LocalTime(self._clock.now() + left_s)
                    seen[ref] = (changed[ref], due_at)
        self._looked = seen
        return tuple(done)

    def look(self, issue: IssueRef, holder: HolderId) -> Gated | None:
        """Do at once what the rulings on one issue say. None: there is nothing to do."""
        snapshot = self._tracker.read(issue)
        for stage in self._pipeline.stages_of(snapshot.issue.labels):
            if stage in self.stages and (gate := self._gate(snapshot, stage)) is not None:
                return self._act(gate, snapshot, holder)
        return None

    def _gate(self, snapshot: Snapshot, stage: Stage) -> AtGate | None:
        """What stands at the gate; None if the issue is held, or not wholly read."""
        standing = self._leases.standing(snapshot)
        if standing.live is not None or standing.unpainted is not None or not snapshot.complete:
            return None
        return at_gate(snapshot, standing.tries, stage, self._pipeline)

    def _act(self, gate: AtGate, snapshot: Snapshot, holder: HolderId) -> Gated | None:
        ref, stage, labels = snapshot.issue.ref, gate.stage, snapshot.issue.labels
        assert isinstance(stage.gate, ApprovalGate), "it stands at a gate"
        over_at = _over_at(gate)
        if gate.rejection is not None:
            return self._send_back(gate, snapshot, holder)
        if gate.missing == 0:
            if stage.gate.label in labels:
                return None  # a worker that serves the stage moves it on
            self._tracker.edit_labels(ref, add=(stage.gate.label,))
            names = " and ".join(one.by for one in gate.approvals)
            who = HolderId(names)
            self._observer.observe(
                Event(EventKind.APPROVED, issue=ref, holder=who, stage=stage.name)
            )
            return Gated(ref, GateAct.OPENED, f"{names} approved it out of {stage.name}")
        if over_at is not None and snapshot.now >= over_at:
            return self._send_back(gate, snapshot, holder)
        if stage.gate.label in labels and gate.label_void is Void.EARLIER_VISIT:
            self._tracker.edit_labels(ref, remove=(stage.gate.label,))
            return Gated(ref, GateAct.SHUT, f"{stage.gate.label!r} was of an earlier visit")
        return None

    def _send_back(self, gate: AtGate, snapshot: Snapshot, holder: HolderId) -> Gated:
        """Move the issue back under a lease, or park it, and say why in a mark."""
        ref, stage = snapshot.issue.ref, gate.stage
        options = ClaimOptions(holder, overlook=_OVERLOOKS, seen=snapshot)
        claimed = self._claiming.claim(ref, stage, options)
        if not isinstance(claimed, Claimed):
            _log.info("%s: it is to be sent back, and is not free: %s", ref, claimed)
            return Gated(ref, GateAct.LEFT, "it is to be sent back, and is not free to be moved")
        keeper, now = self._keep(claimed), claimed.snapshot
        tries = self._leases.standing(now, apart_from=claimed.lease.run).tries
        gate, rejection = (held := at_gate(now, tries, stage, self._pipeline)), held.rejection
        over_at = _over_at(gate)
        if rejection is None and (gate.missing == 0 or over_at is None or now.now < over_at):
            self._advancing.give_back(keeper, "somebody approved it meanwhile")
            return Gated(ref, GateAct.LEFT, "somebody approved it meanwhile")
        assert isinstance(stage.gate, ApprovalGate), "it stands at a gate"
        here = {
            kind
            for _, kind, fields in marks(now.comments, (REJECTED, EXPIRED))
            if fields.get("visit") == gate.visit.name
        }
        if rejection is not None:
            who = rejection.by or "somebody"
            note = f"rejected by {who}" + (f": {rejection.note}" if rejection.note else "")
            body = render_ruling(RulingKind.REJECTED, gate, who, rejection.note)
        else:
            waited = describe_span(stage.gate.timeout) if stage.gate.timeout else "so long"
            note, body = f"nobody answered in {waited}", render_expired(gate)
        if not here:
            self._tracker.comment(ref, body)
        back = stage.gate.back
        parks = rejection is None and stage.gate.after_timeout is AfterTimeout.PARK
        rounds = times_sent_back(now, stage) + (0 if here else 1)
        if back is None or parks or rounds > stage.gate.replans:
            more = f"; sent back {rounds - 1} times before" if back and not parks else ""
            done, act, where = self._advancing.park(keeper, note + more), GateAct.PARKED, "parked"
        else:
            done = self._advancing.advance(keeper, back, note)
            act, where = GateAct.SENT_BACK, f"it went to {back}"
        if not isinstance(done, Finished):
            return Gated(ref, GateAct.LEFT, f"{note}, but the lease was lost: {done.why}")
        return Gated(ref, act, f"{note}; {where}")


def _state(issue: Issue) -> tuple[object, ...]:
    return issue.updated_at, issue.comment_count, issue.labels


def _over_at(gate: AtGate) -> ServerTime | None:
    """When the gate has waited for long enough; None if it waits for ever."""
    found = gate.stage.gate
    if not isinstance(found, ApprovalGate) or found.timeout is None:
        return None
    return None if found.after_timeout is AfterTimeout.STAY else later(gate.since, found.timeout)
