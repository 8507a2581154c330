"""Claims that runners of the published state machine made: seen, released in their name, swept.

They have no lease and no fence, so all that can be said of one is how old its comment is. Nothing
here touches an issue that a card of ours holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from dibs.core.agent_dialect import CLAIM_PREFIX, fields_of, their_release
from dibs.core.durations import format_instant
from dibs.core.errors import IllegalMove
from dibs.core.foreign import foreign_claims
from dibs.core.ids import ServerTime
from dibs.core.issue import Thread
from dibs.core.plan import AddLabels, Effect, Effects, PostComment, RemoveLabels
from dibs.label_state import labels
from dibs.label_state.answers import Answer
from dibs.label_state.backlogs import Backlog
from dibs.ports.applying import apply_to

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
