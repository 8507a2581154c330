"""Decisions of a person: approve or reject, relabel, pause, resume or re-queue, and revoke."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.approval import (
    AtGate,
    Ruling,
    RulingKind,
    Void,
    at_gate,
    not_entitled,
    present_text,
    render_labelled,
    render_plan,
    render_released,
    render_ruling,
)
from dibs.core.eligibility import PauseScope, render_pause, render_resume, text_reasons
from dibs.core.errors import BadConfiguration, Unavailable
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


class Ruled(Struct, frozen=True):
    """A person's ruling counts, at this gate."""

    stage: Stage
    missing: int = 0
    """How many approvals are missing still; 0 if the gate is open."""
    again: bool = False
    """The same person had given the same ruling before; nothing was written."""


class TextDiffers(Struct, frozen=True):
    """The text is not the one that the person read: nothing was written."""

    text: str
    """The digest of the text as it is now."""


class NotEntitled(Struct, frozen=True):
    """The person's ruling would not count: nothing was written."""

    by: str
    why: Void


class NoGateHere(Struct, frozen=True):
    """No stage of the issue has an approval gate."""


RulingResult = Ruled | TextDiffers | NotEntitled | NoGateHere


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
    def approve(
        self, issue: IssueRef, *, by: str, text: str | None = None, dry_run: bool = False
    ) -> RulingResult:
        """Approve what stands at the gate of the issue's stage; without one, a changed text.

        `text`: the digest of what the person read; None for the present text.
        Raises BadConfiguration if the gate demands a signature, and there is no key to sign with.
        """
        snapshot, gate = self._at_gate(issue)
        if gate is not None:
            found = self._rule(RulingKind.APPROVED, gate, snapshot, by, text, dry_run=dry_run)
            if isinstance(found, Ruled) and not found.missing and not dry_run:
                assert isinstance(gate.stage.gate, ApprovalGate), "it stands at a gate"
                self._tracker.edit_labels(issue, add=(gate.stage.gate.label,))
            return found
        tries = self._leases.standing(snapshot).tries
        for stage in self._pipeline.stages_of(snapshot.issue.labels):
            if any(text_reasons(snapshot, tries, stage, self._pipeline)):
                # Without a gate the comment alone tells which text a person has read.
                now = present_text(snapshot, tries, self._pipeline)
                if text not in (None, now):
                    return TextDiffers(now)
                if not dry_run:
                    self._tracker.comment(issue, render_released(now, stage, by))
                    self._record_ruling(EventKind.APPROVED, issue, by, stage)
                return Ruled(stage)
        return NoGateHere()

    @persons_word()
    def reject(
        self,
        issue: IssueRef,
        *,
        by: str,
        note: str,
        text: str | None = None,
        dry_run: bool = False,
    ) -> RulingResult:
        """Reject what stands at the gate. The caller, or any worker, then sends the issue back."""
        snapshot, gate = self._at_gate(issue)
        if gate is None:
            return NoGateHere()
        kind, note = RulingKind.REJECTED, self._mask(note)
        return self._rule(kind, gate, snapshot, by, text, note, dry_run=dry_run)

    def _at_gate(self, issue: IssueRef) -> tuple[Snapshot, AtGate | None]:
        """The issue, and what stands at the gate of its stage. Raises Unavailable if in doubt."""
        snapshot = self._tracker.read(issue)
        if not snapshot.complete:
            raise Unavailable(f"not all comments of {issue} could be read")
        tries, labels = self._leases.standing(snapshot).tries, snapshot.issue.labels
        worked = self._pipeline.worked_stage(labels, tries[-1].stage if tries else None)
        for stage in (worked,) if worked is not None else self._pipeline.stages_of(labels):
            if isinstance(stage.gate, ApprovalGate):
                return snapshot, at_gate(snapshot, tries, stage, self._pipeline)
        return snapshot, None

    def _rule(
        self,
        kind: RulingKind,
        gate: AtGate,
        snapshot: Snapshot,
        by: str,
        text: str | None,
        note: str = "",
        *,
        dry_run: bool,
    ) -> RulingResult:
        """Write a person's ruling, unless it is for another text, or would not count, or stands."""
        if text not in (None, gate.text):
            return TextDiffers(gate.text)
        login = self._tracker.login() if self._pipeline.approval.proven else None
        relayed = login is not None and login.casefold() in self._pipeline.approval.relays
        person = by if login is None or relayed else login
        if (why := not_entitled(person, snapshot, self._pipeline)) is not None:
            return NotEntitled(person, why)
        if isinstance(gate.stage.gate, SignedGate) and not self._signs:
            raise no_key(gate.stage)
        standing = gate.approvals if kind is RulingKind.APPROVED else (gate.rejection,)
        again = person.casefold() in {one.by.casefold() for one in standing if one is not None}
        if not again:
            ruling = Ruling(kind, person, snapshot.now, gate.text, gate.visit.name, note)
            body, gate = (
                render_ruling(kind, gate, by, note),
                replace(gate, rulings=(*gate.rulings, ruling)),
            )
            if not dry_run:
                self._tracker.comment(snapshot.issue.ref, body)
                event = EventKind.APPROVED if kind is RulingKind.APPROVED else EventKind.REJECTED
                self._record_ruling(event, snapshot.issue.ref, by, gate.stage, note)
        return Ruled(gate.stage, gate.missing, again)

    def _record_ruling(
        self, kind: EventKind, issue: IssueRef, by: str, stage: Stage, note: str = ""
    ) -> None:
        detail = {"note": note} if note else {}
        event = Event(kind, issue=issue, holder=HolderId(by), stage=stage.name, detail=detail)
        self._observer.observe(event)

    @persons_word()
    def plan(self, issue: IssueRef, text: str, *, by: str, run: RunId | None = None) -> None:
        """Post a plan on the issue. `run`: the run that made it; None for a person."""
        labels = self._tracker.read(issue).issue.labels
        stages = self._pipeline.stages_of(labels)
        stage = stages[0].name if stages else StageName("")
        self._tracker.comment(issue, render_plan(stage, run or "", by, self._mask(text)))

    def relabel(
        self, issue: IssueRef, *, add: tuple[str, ...], remove: tuple[str, ...], by: str = ""
    ) -> None:
        """Add labels, then remove labels, as a person asked.

        Where the tracker keeps no history of labels, a mark says who put which on: gates go by it.
        """
        deciding = {label for stage in self._pipeline.stages for label in stage.entry_labels}
        if (told := tuple(one for one in add if one in deciding)) and (
            not self._tracker.traits.label_history
        ):
            self._tracker.comment(issue, render_labelled(told, by))
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
