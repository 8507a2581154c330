"""A person's word: pause and resume, revoke, re-queue."""

from typing import TYPE_CHECKING

from msgspec import Struct

from dibs.core.eligibility import PauseScope, render_approval
from dibs.core.events import Event, EventKind, about
from dibs.core.ids import HolderId, IssueRef, RunId
from dibs.core.labels import AddLabels, PostComment, RemoveLabels
from dibs.core.lease import Record, Revocation
from dibs.core.pipeline import ApprovalGate, Stage
from dibs.ports.tracker import persons_word
from dibs.services.effects import apply

if TYPE_CHECKING:
    from dibs.services.backlog import Backlog


class Revoked(Struct, frozen=True):
    record: Record


class NothingToRevoke(Struct, frozen=True):
    """Nobody holds it, or another run does by now."""

    record: Record | None


class Approved(Struct, frozen=True):
    stage: Stage


class NoGateHere(Struct, frozen=True):
    """The issue stands before no gate."""


class Steering:
    def __init__(self, backlog: "Backlog") -> None:
        self._tracker = backlog.tracker
        self._leases = backlog.leases
        self._pipeline = backlog.pipeline
        self._pauses = backlog.pauses
        self._journal = backlog.journal

    @persons_word()
    def approve(self, issue: IssueRef, *, by: str) -> Approved | NoGateHere:
        """Open the gate that the issue stands before."""
        known = self._tracker.read(issue).issue
        for stage in self._pipeline.stages_of(known.labels):
            if isinstance(stage.gate, ApprovalGate):
                # Said first: the label alone would open the gate for whatever the text is by then.
                self._tracker.comment(issue, render_approval(known, stage.name, by))
                self._tracker.edit_labels(issue, add=(stage.gate.label,))
                self._note(EventKind.APPROVED, issue, by, stage.name)
                return Approved(stage)
        return NoGateHere()

    def relabel(self, issue: IssueRef, *, add: tuple[str, ...], remove: tuple[str, ...]) -> None:
        """A person's own hand on the labels. Added first, removed after."""
        self._tracker.edit_labels(issue, add=add, remove=remove)

    @persons_word()
    def pause_issue(self, issue: IssueRef, *, reason: str, by: str) -> None:
        """Hands off. Running work reads it with its next renewal and gives the issue back."""
        label = AddLabels((self._pipeline.labels.paused,))
        self._label_and_say(issue, label, f"Paused by {by}: {reason}")
        self._note(EventKind.PAUSED, issue, by, reason)

    @persons_word()
    def resume_issue(self, issue: IssueRef, *, by: str) -> bool:
        """Lift a pause, or re-queue a parked issue. False if there was nothing to lift."""
        marks = self._pipeline.labels
        lifted = self._tracker.read(issue).issue.labels & {marks.paused, marks.parked}
        if not lifted:
            return False
        self._label_and_say(issue, RemoveLabels(tuple(sorted(lifted))), f"Resumed by {by}.")
        self._note(EventKind.RESUMED, issue, by, ", ".join(sorted(lifted)))
        return True

    @persons_word()
    def pause_all(self, scope: PauseScope, *, reason: str, by: str) -> None:
        """No new claims. Work that is under way is finished."""
        self._pauses.pause(scope, repo=self._repo(scope), reason=reason, by=by)
        self._note(EventKind.PAUSED, None, by, reason, scope.value)

    @persons_word()
    def resume_all(self, scope: PauseScope, *, by: str) -> bool:
        lifted = self._pauses.resume(scope, repo=self._repo(scope), by=by)
        if lifted:
            self._note(EventKind.RESUMED, None, by, "", scope.value)
        return lifted

    @persons_word()
    def revoke(
        self, issue: IssueRef, run: RunId, *, by: str, reason: str, force: bool
    ) -> Revoked | NothingToRevoke:
        """Names the run that was read, so it never hits the one who came after."""
        record = self._leases.revoke(issue, Revocation(run, by, reason, force=force))
        if record is None:
            return NothingToRevoke(self._leases.standing(self._tracker.read(issue)).record)
        forced = "true" if force else ""
        self._journal.append(
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

    def _label_and_say(self, issue: IssueRef, label: AddLabels | RemoveLabels, said: str) -> None:
        """The label counts, the words are for people: in this order, and together if it can be."""
        apply(self._tracker, issue, (label, PostComment(said)))

    def _repo(self, scope: PauseScope) -> str:
        return self._tracker.traits.repo if scope is PauseScope.REPOSITORY else ""

    def _note(
        self, kind: EventKind, issue: IssueRef | None, by: str, reason: str, scope: str = "issue"
    ) -> None:
        detail = {"scope": scope, "reason": reason}
        self._journal.append(Event(kind, issue=issue, holder=HolderId(by), detail=detail))
