"""`claim_issue` and `release_issue`: the state machine's two moves, on leases with fences.

Claims that runners of the published state machine made: seen, released in their name, swept.

They have no lease and no fence, so all that can be said of one is how old its comment is. Nothing
here touches an issue that a card of ours holds.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from dibs.core.agent_dialect import CLAIM_PREFIX, ending_note, fields_of, their_release
from dibs.core.durations import format_instant
from dibs.core.eligibility import ReasonCode
from dibs.core.errors import IllegalMove
from dibs.core.foreign import foreign_claims
from dibs.core.ids import LocalTime, ServerTime, StageName
from dibs.core.issue import Thread
from dibs.core.labels import AddLabels, Effect, Effects, PostComment, RemoveLabels
from dibs.core.lease import Ending, Outcome
from dibs.core.pipeline import UNQUEUED, Pipeline
from dibs.label_state import labels
from dibs.label_state.backlogs import Answer, Backlog, answering, backlog_of, refused
from dibs.label_state.firings import Firing, FiringKey, Rehearsed, held, turns_taken
from dibs.label_state.pauses import paused_by_file
from dibs.services.claiming import Beaten, Claimed, ClaimOptions, Doubtful, Refused
from dibs.services.effects import apply_to
from dibs.services.ending import Finished

_FOR_EVER = timedelta(days=36500)
ENDS = [one for one in labels.legal_transitions(labels.IN_FLIGHT) if one != labels.NO_STATE]
"""The labels that a claim may end in; no label at all is none that could be asked for."""


@dataclass(frozen=True, slots=True)
class TheirClaim:
    """One that nobody has released, however old it is."""

    codename: str
    firing_id: str
    since: ServerTime

    def older_than(self, age: timedelta, now: ServerTime) -> bool:
        return now - self.since >= age


def their_claims(thread: Thread) -> tuple[TheirClaim, ...]:
    """The oldest first. All comments count, and only those of people who may write here."""
    bodies = {comment.id: comment.body for comment in thread.comments}
    found = foreign_claims(thread.comments, now=thread.now, ttl=_FOR_EVER)
    return tuple(
        TheirClaim(said.get("codename", ""), said.get("firing_id", ""), one.since)
        for one in found
        if bodies[one.comment].lstrip().startswith(CLAIM_PREFIX)
        and (said := fields_of(bodies[one.comment])) is not None
    )


@dataclass(frozen=True, slots=True)
class Release:
    codename: str
    firing_id: str
    outcome: str
    transition_to: str | None
    pr_url: str | None


def release_theirs(backlog: Backlog, thread: Thread, release: Release) -> Answer:
    """For a firing that claimed before its fleet was switched: what it visibly holds, it may end.

    Anything else is not ours: nothing is written.
    """
    key = release.codename, release.firing_id
    mine = [one for one in their_claims(thread) if (one.codename, one.firing_id) == key]
    held = backlog.services.leases.standing(thread).live
    if not mine or held is not None or not thread.complete:
        return _not_ours(thread, None if held is None else held.lease.holder)
    target = labels.IMPLEMENT if release.transition_to is None else release.transition_to
    if target not in ENDS:
        return Answer(False, IllegalMove.code, f"a claim may not end in {target!r}")
    line = their_release(*key, release.outcome, format_instant(thread.now), pr=release.pr_url or "")
    effects = (*_moving(thread, target), PostComment(line), *_leaving(thread))
    if apply_to(backlog.services.tracker, thread.issue, effects) is None:
        return Answer(False, "UNPROVEN", "the issue changed while it was looked at")
    return Answer(True)


def _moving(thread: Thread, target: str) -> Iterator[Effect]:
    if target not in thread.issue.labels:
        yield AddLabels((target,))
    if target != labels.IMPLEMENT and labels.IMPLEMENT in thread.issue.labels:
        yield RemoveLabels((labels.IMPLEMENT,))


def _leaving(thread: Thread) -> Effects:
    claimed = labels.IN_FLIGHT in thread.issue.labels
    return (RemoveLabels((labels.IN_FLIGHT,)),) if claimed else ()


def _not_ours(thread: Thread, holder: str | None) -> Answer:
    if not thread.complete:
        return Answer(False, "UNREADABLE", "not all its comments could be read")
    if holder is not None:
        return Answer(False, "LEASE_LOST", f"{holder} holds it")
    return Answer(False, "LEASE_LOST", "nobody holds it: the claim has expired, or never was")


FEATURE_DEV = "feature-dev"
_OVERLOOKED = frozenset({ReasonCode.BACKING_OFF})
"""A firing comes when its schedule says so; the rest after a failure is for workers that ask all
the time."""


def dry_run() -> bool:
    return os.environ.get("ALFRED_DRY_RUN", "") not in {"", "0"}


# Claiming


@answering
def claim_issue(
    repo_slug: str, num: int, *, codename: str, firing_id: str, role: str | None = None
) -> Answer:
    """Take the issue, or say why not. True only on proof that nobody else has it."""
    if dry_run():
        text = "nothing was asked and nothing was written"
        return Answer(True, "DRY_RUN", text, lease=Rehearsed())
    backlog = backlog_of(repo_slug)
    if paused_by_file(repo_slug):
        text = f"{repo_slug} is paused on this machine; see: label-state repo list"
        return Answer(False, ReasonCode.REPOSITORY_PAUSED.value, text)
    key = FiringKey(codename, firing_id)
    thread = backlog.read(num)
    if (against := _blocked(thread.issue.labels, role)) is not None:
        return against
    pipeline = backlog.services.pipeline
    options = ClaimOptions(
        key.holder(turns_taken(thread, key) + 1),
        overlook=_OVERLOOKED,
        seen=thread,
        unqueued=pipeline.stage(UNQUEUED.name),
    )
    match backlog.services.claiming.claim(backlog.ref(num), None, options):
        case Claimed() as claimed:
            return _granted(backlog, num, key, claimed, role)
        case Refused(_, reasons):
            return refused(reasons)
        case Beaten(_, record):
            text = f"{record.lease.holder} holds it (run {record.lease.run})"
            return Answer(False, ReasonCode.HELD.value, text)
        case Doubtful(_, why):
            return Answer(False, "UNPROVEN", why)


def _blocked(on: frozenset[str], role: str | None) -> Answer | None:
    """A label of the state machine that the pipeline does not know as a blocker."""
    blocking = set(labels.claim_blocking_labels(on))
    if role == FEATURE_DEV:
        blocking |= set(labels.feature_dev_claim_blocking_labels(on))
    blocking -= {labels.IN_FLIGHT, labels.PLAN_PENDING_APPROVAL}  # a card, a gate says more
    if not blocking:
        return None
    names = ", ".join(sorted(blocking))
    return Answer(False, ReasonCode.BLOCKED.value, f"it carries {names}")


def _granted(
    backlog: Backlog, num: int, key: FiringKey, claimed: Claimed, role: str | None
) -> Answer:
    firing = held.keep(backlog, num, key, claimed)
    given_way = {claimed.stage.label} if claimed.stage.gives_way else set()
    against = _blocked(claimed.thread.issue.labels | given_way, role)
    if against is None:
        return Answer(True, lease=firing)
    _end(backlog, num, key, firing, Ending(Outcome.RETURNED))
    return against


# Releasing


@dataclass(frozen=True, slots=True)
class _Illegal:
    text: str


@answering
def release_issue(
    repo_slug: str,
    num: int,
    *,
    codename: str,
    firing_id: str,
    outcome: str = "success",
    transition_to: str | None = None,
    pr_url: str | None = None,
) -> Answer:
    """End a claim that is still ours, and move the issue. What is not ours is not touched."""
    if dry_run():
        return Answer(True, "DRY_RUN", "nothing was asked and nothing was written")
    backlog, key = backlog_of(repo_slug), FiringKey(codename, firing_id)
    firing = held.find(backlog, num, key)
    if firing is None:
        asked_at = backlog.services.adapters.clock.now()
        thread = backlog.read(num)
        firing = _taken_up(backlog, thread, key, asked_at)
        if firing is None:
            release = Release(key.codename, key.firing_id, outcome, transition_to, pr_url)
            return release_theirs(backlog, thread, release)
    ending = _ending(
        backlog.services.pipeline,
        firing.stage,
        outcome,
        transition_to,
        ending_note(outcome, pr_url),
    )
    if isinstance(ending, _Illegal):
        return Answer(False, IllegalMove.code, ending.text)
    return _end(backlog, num, key, firing, ending)


def _taken_up(
    backlog: Backlog, thread: Thread, key: FiringKey, asked_at: LocalTime
) -> Firing | None:
    """A claim that another process made, or this one before it was started anew."""
    services = backlog.services
    live = services.leases.standing(thread).live
    if live is None or not key.is_holder(live.lease.holder):
        return None
    taken = services.resuming.resume_on(thread, live.lease.run, asked_at)
    return Firing(services, taken, renewed=False) if isinstance(taken, Claimed) else None


def _end(backlog: Backlog, num: int, key: FiringKey, firing: Firing, ending: Ending) -> Answer:
    result = firing.end(ending)
    held.drop(backlog, num, key)
    if isinstance(result, Finished):
        late = "" if result.record.painted else "UNPAINTED"
        return Answer(True, late, "its labels wait for a sweep" if late else "")
    return Answer(False, "LEASE_LOST", result.why)


def _ending(
    pipeline: Pipeline, worked: str, outcome: str, transition_to: str | None, note: str
) -> Ending | _Illegal:
    """What a release asks for. Raises nothing: an illegal move is an answer."""
    if transition_to == labels.NEEDS_HUMAN_SCOPE:
        return Ending(Outcome.PARKED, note=note)
    stages = {stage.label: stage for stage in pipeline.stages}
    if transition_to is not None and transition_to not in stages:
        return _Illegal(
            f"a claim may not end in {transition_to!r}; it may end in {', '.join(ENDS)}"
        )
    target = stages[transition_to].name if transition_to is not None else StageName(worked)
    if target != worked and target in pipeline.stage(worked).next:
        return Ending(Outcome.ADVANCED, target, note)
    if target not in {worked, stages[labels.IMPLEMENT].name}:
        return _Illegal(f"{worked or 'an unqueued issue'} may not move to {target}")
    return Ending(Outcome.FAILED if counts_as_failed(outcome) else Outcome.RETURNED, note=note)


def counts_as_failed(outcome: str) -> bool:
    """Whether a firing that ended so has tried and failed.

    Lost races, limits, turns that ran out and partial work say nothing about the issue.
    """
    said = outcome.strip().lower()
    return said.startswith("failure") or said.endswith("-failed") or said == "no-commit"
