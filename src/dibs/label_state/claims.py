"""`claim_issue` and `release_issue`: the two moves of the state machine, on leases with fences.

Also reads and releases the claims that runners of the published state machine made ("their
claims"). Their claims have no lease and no fence: only the age of the comment is known. An issue
that a card of ours holds is never released as one of theirs.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

from msgspec import Struct

from dibs.core.agent_dialect import ending_note, firing_of, their_release
from dibs.core.durations import format_instant
from dibs.core.eligibility import ReasonCode
from dibs.core.errors import IllegalMove
from dibs.core.foreign import foreign_claims
from dibs.core.ids import ServerTime, StageName
from dibs.core.issue import Snapshot
from dibs.core.labels import AddLabels, Effect, PostComment, RemoveLabels
from dibs.core.pipeline import UNQUEUED
from dibs.label_state import labels
from dibs.label_state.backlogs import Answer, Backlog, answering, backlog_of, dry_run, refused
from dibs.label_state.firings import Firing, FiringKey, Rehearsed, held, key_in, turns_taken
from dibs.label_state.pauses import paused_by_file
from dibs.services.claiming import Beaten, Claimed, ClaimOptions, Doubtful, Refused
from dibs.services.effects import apply_to
from dibs.services.ending import Finished, FinishResult
from dibs.services.keeping import Keeper
from dibs.wiring.services import Services

_Finish = Callable[[Keeper], FinishResult]
_FOR_EVER = timedelta(days=36500)
_MOVES = labels.legal_transitions(labels.IN_FLIGHT)
ENDS = [move.dst for move in _MOVES if move.dst != labels.NO_STATE]
"""The labels that a caller may name for the end of a claim."""


class TheirClaim(Struct, frozen=True):
    """A claim of a published runner without a release, of any age."""

    key: FiringKey
    since: ServerTime


def their_claims(snapshot: Snapshot) -> tuple[TheirClaim, ...]:
    """Their claims without a release, the oldest first, from comments of people with write access.

    Reads all comments: no claim is left out because of its age.
    """
    bodies = {comment.id: comment.body for comment in snapshot.comments}
    found = foreign_claims(snapshot.comments, now=snapshot.now, ttl=_FOR_EVER)
    keys = ((key_in(bodies[foreign.comment]), foreign.since) for foreign in found)
    return tuple(TheirClaim(key, since) for key, since in keys if key is not None)


def release_theirs(
    backlog: Backlog,
    snapshot: Snapshot,
    key: FiringKey,
    outcome: str,
    transition_to: str | None,
    pr_url: str | None,
) -> Answer:
    """Release a claim that a firing made before its fleet switched to dibs.

    Writes only if the firing's own claim comment is in force and no lease of ours holds the issue.
    """
    if not snapshot.complete:
        return Answer(False, "UNREADABLE", "not all its comments could be read")
    live = backlog.services.leases.standing(snapshot).live
    if live is not None:
        return Answer(False, "LEASE_LOST", f"{live.lease.holder} holds it")
    if key not in [claim.key for claim in their_claims(snapshot)]:
        return Answer(False, "LEASE_LOST", "nobody holds it: the claim has expired, or never was")
    target = labels.IMPLEMENT if transition_to is None else transition_to
    if target not in ENDS:
        return Answer(False, IllegalMove.code, f"a claim may not end in {target!r}")
    names = snapshot.issue.labels
    effects: list[Effect] = []
    if target not in names:
        effects.append(AddLabels((target,)))
    if target != labels.IMPLEMENT and labels.IMPLEMENT in names:
        effects.append(RemoveLabels((labels.IMPLEMENT,)))
    line = their_release(*key, outcome, format_instant(snapshot.now), pr=pr_url or "")
    effects.append(PostComment(line))
    if labels.IN_FLIGHT in names:
        effects.append(RemoveLabels((labels.IN_FLIGHT,)))
    if apply_to(backlog.services.tracker, snapshot.issue, tuple(effects)) is None:
        return Answer(False, "UNPROVEN", "the issue changed while it was looked at")
    return Answer(True)


FEATURE_DEV = "feature-dev"
_OVERLOOKED = frozenset({ReasonCode.BACKING_OFF})
"""A firing comes on a schedule of its own. The pause after a failed attempt is for workers, which
ask all the time."""


def _held_as(backlog: Backlog, number: int, key: FiringKey) -> tuple[str, int, FiringKey]:
    return backlog.services.tracker.traits.name + backlog.repo.casefold(), int(number), key


# Claiming


@answering
def claim_issue(
    repo_slug: str, num: int, *, codename: str, firing_id: str, role: str | None = None
) -> Answer:
    """Take the issue, or answer why not. True only on proof that no other holder has the issue."""
    if dry_run():
        text = "nothing was asked and nothing was written"
        return Answer(True, "DRY_RUN", text, lease=Rehearsed())
    backlog = backlog_of(repo_slug)
    if paused_by_file(repo_slug):
        text = f"{repo_slug} is paused on this machine; see: label-state repo list"
        return Answer(False, ReasonCode.REPOSITORY_PAUSED.value, text)
    key = FiringKey(codename, firing_id)
    snapshot = backlog.read(num)
    if (blocked := _blocked(snapshot.issue.labels, role)) is not None:
        return blocked
    pipeline = backlog.services.pipeline
    options = ClaimOptions(
        key.holder(turns_taken(snapshot, key) + 1),
        overlook=_OVERLOOKED,
        seen=snapshot,
        unqueued=pipeline.stage(UNQUEUED.name),
    )
    match backlog.services.claiming.claim(backlog.ref(num), None, options):
        case Claimed() as claimed:
            firing = Firing(backlog.services, claimed, renewed=True)
            held[_held_as(backlog, num, key)] = firing
            # Labels may have been added since the first look; the claim took the stage's label off.
            given_way = {claimed.stage.label} if claimed.stage.gives_way else set()
            blocked = _blocked(claimed.snapshot.issue.labels | given_way, role)
            if blocked is None:
                return Answer(True, lease=firing)
            _end(backlog, num, key, firing, backlog.services.advancing.give_back)
            return blocked
        case Refused(_, reasons):
            return refused(reasons)
        case Beaten(_, record):
            text = f"{record.lease.holder} holds it (run {record.lease.run})"
            return Answer(False, ReasonCode.HELD.value, text)
        case Doubtful(_, why):
            return Answer(False, "UNPROVEN", why)


def _blocked(names: frozenset[str], role: str | None) -> Answer | None:
    """A no if the issue carries a blocking label; None if not.

    The state machine has blocking labels that the pipeline does not know. Left out are in-flight,
    because the card decides, and the plan that waits for approval, because the gate decides.
    """
    blocking = set(labels.claim_blocking_labels(names))
    if role == FEATURE_DEV:
        blocking |= set(labels.feature_dev_claim_blocking_labels(names))
    blocking -= {labels.IN_FLIGHT, labels.PLAN_PENDING_APPROVAL}
    if not blocking:
        return None
    return Answer(False, ReasonCode.BLOCKED.value, f"it carries {', '.join(sorted(blocking))}")


# Releasing


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
    """End a claim of this firing and move the issue. Claims of another firing stay untouched.

    Without `transition_to` the issue goes back to the stage where it was claimed.
    """
    if dry_run():
        return Answer(True, "DRY_RUN", "nothing was asked and nothing was written")
    backlog, key = backlog_of(repo_slug), FiringKey(codename, firing_id)
    services = backlog.services
    firing = held.get(_held_as(backlog, num, key))
    if firing is None:  # claimed by another process, or by this one before a restart
        asked_at = services.adapters.clock.now()
        snapshot = backlog.read(num)
        live, resumed = services.leases.standing(snapshot).live, None
        if live is not None and key.claimed_as(firing_of(live.lease.holder)):
            resumed = services.resuming.resume_on(snapshot, live.lease.run, asked_at)
        if not isinstance(resumed, Claimed):
            return release_theirs(backlog, snapshot, key, outcome, transition_to, pr_url)
        firing = Firing(services, resumed, renewed=False)
    note = ending_note(outcome, pr_url)
    finish = _choose_ending(services, firing.stage, outcome, transition_to, note)
    if isinstance(finish, Answer):
        return finish
    return _end(backlog, num, key, firing, finish)


def _end(backlog: Backlog, num: int, key: FiringKey, firing: Firing, finish: _Finish) -> Answer:
    """End the lease. True with UNPAINTED if the labels could not be changed yet, and with
    LABELS_KEPT if a person put the issue elsewhere meanwhile: the claim is over either way.
    """
    result = firing.end(finish)
    held.pop(_held_as(backlog, num, key), None)
    if isinstance(result, Finished):
        if result.left_in:
            text = f"a person put it into {', '.join(result.left_in)} meanwhile, and there it stays"
            return Answer(True, "LABELS_KEPT", text)
        if result.record.painted:
            return Answer(True)
        return Answer(True, "UNPAINTED", "its labels wait for a sweep")
    return Answer(False, "LEASE_LOST", result.why)


def _choose_ending(
    services: Services, worked: str, outcome: str, transition_to: str | None, note: str
) -> _Finish | Answer:
    """Translate a release into an ending, by the pipeline's moves out of the worked stage.

    A no if no move allows it. Going back, to the same stage or to the queue, counts as a failed
    attempt if the outcome does.
    """
    pipeline, advancing = services.pipeline, services.advancing
    if transition_to == labels.NEEDS_HUMAN_SCOPE:
        return partial(advancing.park, note=note)
    stages = {stage.label: stage for stage in pipeline.stages}
    if transition_to is not None and transition_to not in stages:
        text = f"a claim may not end in {transition_to!r}; it may end in {', '.join(ENDS)}"
        return Answer(False, IllegalMove.code, text)
    target = stages[transition_to].name if transition_to is not None else StageName(worked)
    if target != worked and target in pipeline.stage(worked).next:
        return partial(advancing.advance, to=target, note=note)
    if target not in {worked, stages[labels.IMPLEMENT].name}:
        text = f"{worked or 'an unqueued issue'} may not move to {target}"
        return Answer(False, IllegalMove.code, text)
    back = advancing.fail if counts_as_failed(outcome) else advancing.give_back
    return partial(back, note=note)


def counts_as_failed(outcome: str) -> bool:
    """Whether the outcome of a firing counts as a failed attempt.

    Lost races, limits, exhausted turns and partial work are no evidence against the issue.
    """
    word = outcome.strip().lower()
    return word.startswith("failure") or word.endswith("-failed") or word == "no-commit"
