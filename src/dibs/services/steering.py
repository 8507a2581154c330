"""Decisions of a person: approve, relabel, pause, resume or re-queue, and revoke."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from dibs.core.eligibility import (
    PauseScope,
    last_move,
    render_approval,
    render_pause,
    render_resume,
)
from dibs.core.errors import BadConfiguration
from dibs.core.events import Event, EventKind, about
from dibs.core.ids import HolderId, IssueRef, RunId, StageName
from dibs.core.issue import Snapshot
from dibs.core.labels import AddLabels, PostComment, RemoveLabels
from dibs.core.lease import Record, Revocation
from dibs.core.pipeline import ApprovalGate, SignedGate, Stage
from dibs.ports.tracker import IssueQuery, persons_word
from dibs.services.effects import apply
from dibs.services.reading import walk

if TYPE_CHECKING:
    from dibs.services.backlog import Backlog


class Revoked(Struct, frozen=True):
    record: Record


class NothingToRevoke(Struct, frozen=True):
    """The named run does not hold the issue: no run does, or a later run."""

    record: Record | None


class Approved(Struct, frozen=True):
    stage: Stage


class NoGateHere(Struct, frozen=True):
    """No stage of the issue has an approval gate."""


def no_key(stage: Stage) -> BadConfiguration:
    """The error of a process without a key at a gate that demands a signed approval."""
    text = f"the gate of stage {stage.name!r} is opened by signed approvals alone"
    hint = "docs/guides/sign-your-marks.md says who needs the key"
    return BadConfiguration(f"{text}, and DIBS_SIGNING_KEY is not set", hint=hint)


class Steering:
    def __init__(
        self, backlog: "Backlog", wake: Callable[[IssueRef | None], None], *, signs: bool = False
    ) -> None:
        """`wake` hints at a change: to the holder of an issue, or to the idle workers for None.

        `signs`: the tracker signs our marks.
        """
        self._tracker = backlog.tracker
        self._leases = backlog.leases
        self._pipeline = backlog.pipeline
        self._pauses = backlog.pauses
        self._observer, self._mask = backlog.observer, backlog.mask
        self._wake, self._signs = wake, signs

    @persons_word()
    def approve(self, issue: IssueRef, *, by: str) -> Approved | NoGateHere:
        """Open the approval gate of the issue's stage; without one, approve a changed text.

        Raises BadConfiguration if the gate demands a signature, and there is no key to sign with.
        """
        snapshot = self._tracker.read(issue)
        current = snapshot.issue
        for stage in self._pipeline.stages_of(current.labels):
            if isinstance(stage.gate, ApprovalGate):
                after = ""
                if isinstance(stage.gate, SignedGate):
                    if not self._signs:
                        raise no_key(stage)
                    after = last_move(self._leases.standing(snapshot).tries, stage.name)
                # The comment comes first: it names the text that was approved. The label alone
                # would open the gate for a text that was edited in between.
                self._tracker.comment(issue, render_approval(current, stage.name, by, after))
                self._tracker.edit_labels(issue, add=(stage.gate.label,))
                self._record_event(EventKind.APPROVED, issue, by, stage.name)
                return Approved(stage)
        for stage in self._pipeline.stages_of(current.labels):
            if current.changed is not None and not stage.final:
                # Without a gate the comment alone tells which text a person has read.
                self._tracker.comment(issue, render_approval(current, stage.name, by))
                self._record_event(EventKind.APPROVED, issue, by, stage.name)
                return Approved(stage)
        return NoGateHere()

    def relabel(self, issue: IssueRef, *, add: tuple[str, ...], remove: tuple[str, ...]) -> None:
        """Add labels, then remove labels, as a person asked."""
        self._tracker.edit_labels(issue, add=add, remove=remove)
        if not self._pipeline.vetoes.isdisjoint(add):
            self._wake(issue)
        self._wake(None)

    @persons_word()
    def pause_issue(self, issue: IssueRef, *, reason: str, by: str) -> Record | None:
        """Keep workers off the issue. Returns the live lease on it; None if there is none.

        The holder reads the label at its next renewal, and gives the issue back. A hint lets a
        holder on this machine renew at once.
        """
        reason, label = self._mask(reason), AddLabels((self._pipeline.labels.paused,))
        snapshot = self._label_and_comment(issue, label, render_pause(by, reason))
        self._record_event(EventKind.PAUSED, issue, by, reason)
        live = self._leases.standing(snapshot).live
        if live is not None:
            self._wake(issue)
        return live

    @persons_word()
    def resume_issue(self, issue: IssueRef, *, by: str) -> bool:
        """Lift a pause, or re-queue a parked issue.

        False if the issue is neither paused nor parked.
        """
        marks = self._pipeline.labels
        return self._lift(issue, {marks.paused, marks.parked}, by)

    @persons_word()
    def requeue(self, issue: IssueRef, *, by: str) -> bool:
        """Re-queue a parked issue; a pause stays. False if the issue is not parked."""
        return self._lift(issue, {self._pipeline.labels.parked}, by)

    def parked(self, stage: StageName | None = None) -> tuple[IssueRef, ...]:
        """All open parked issues, or the open parked issues of a stage, the oldest first."""
        labels = (self._pipeline.stage(stage).label,) if stage else ()
        query = IssueQuery((self._pipeline.labels.parked, *labels), limit=sys.maxsize)
        return tuple(issue.ref for issue in walk(self._tracker, query))

    def _lift(self, issue: IssueRef, labels: set[str], by: str) -> bool:
        lifted = self._tracker.read(issue).issue.labels & labels
        if not lifted:
            return False
        self._label_and_comment(issue, RemoveLabels(tuple(sorted(lifted))), render_resume(by))
        self._record_event(EventKind.RESUMED, issue, by, ", ".join(sorted(lifted)))
        self._wake(None)
        return True

    @persons_word()
    def pause_all(self, scope: PauseScope, *, reason: str, by: str) -> None:
        """Stop new claims in the repository or the fleet. Running work is finished."""
        reason = self._mask(reason)
        self._pauses.pause(scope, repo=self._repo(scope), reason=reason, by=by)
        self._record_event(EventKind.PAUSED, None, by, reason, scope.value)

    @persons_word()
    def resume_all(self, scope: PauseScope, *, by: str) -> bool:
        """Lift the pause of the repository or the fleet. False if the scope was not paused."""
        lifted = self._pauses.resume(scope, repo=self._repo(scope), by=by)
        if lifted:
            self._record_event(EventKind.RESUMED, None, by, "", scope.value)
            self._wake(None)
        return lifted

    @persons_word()
    def revoke(
        self, issue: IssueRef, run: RunId, *, by: str, reason: str, force: bool
    ) -> Revoked | NothingToRevoke:
        """Revoke the lease of `run`. Naming the run spares a later holder of the issue."""
        reason = self._mask(reason)
        record = self._leases.revoke(issue, Revocation(run, by, reason, force=force))
        if record is None:
            return NothingToRevoke(self._leases.standing(self._tracker.read(issue)).record)
        self._wake(issue)
        forced = "true" if force else ""
        self._observer.observe(
            about(
                EventKind.REVOKED,
                record.lease,
                at=record.as_of,
                by=by,
                reason=reason,
                force=forced,
            )
        )
        return Revoked(record)

    def _label_and_comment(
        self, issue: IssueRef, label: AddLabels | RemoveLabels, text: str
    ) -> Snapshot:
        """Change the label, which counts, then post the comment, which is for people.

        Both go in a single request if the tracker can.
        """
        return apply(self._tracker, issue, (label, PostComment(text)))

    def _repo(self, scope: PauseScope) -> str:
        return self._tracker.traits.repo if scope is PauseScope.REPOSITORY else ""

    def _record_event(
        self, kind: EventKind, issue: IssueRef | None, by: str, reason: str, scope: str = "issue"
    ) -> None:
        detail = {"scope": scope, "reason": reason}
        self._observer.observe(Event(kind, issue=issue, holder=HolderId(by), detail=detail))
