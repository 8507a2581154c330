"""`claim_issue` and `release_issue`: the state machine's two moves, on leases with fences."""

import os
from dataclasses import dataclass

from dibs.core.agent_dialect import ending_note
from dibs.core.eligibility import ReasonCode
from dibs.core.errors import IllegalMove
from dibs.core.ids import LocalTime, StageName
from dibs.core.issue import Thread
from dibs.core.lease import Ending, Outcome
from dibs.core.pipeline import UNQUEUED, Pipeline
from dibs.label_state import labels
from dibs.label_state.answers import Answer, answering, refused
from dibs.label_state.backlogs import Backlog, backlog_of
from dibs.label_state.firings import Firing, FiringKey, Rehearsed, held, turns_taken
from dibs.label_state.pauses import paused_by_file
from dibs.label_state.theirs import ENDS, Release, release_theirs
from dibs.services.advancing import Finished
from dibs.services.claiming import Beaten, Claimed, ClaimOptions, Doubtful, Refused

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
