"""Claims that nobody keeps any more: found, and given back to the queue.

A claim of ours is stale when its lease is over, and never before: what is renewed is not old. One
of the published runners' has nothing but its age. A label that no claim explains is given the time
of a lease first: somebody may be about to write the claim.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from dibs.core.agent_dialect import firing_of, their_release
from dibs.core.durations import format_instant
from dibs.core.eligibility import abandoned_at
from dibs.core.errors import Misuse
from dibs.core.ids import IssueRef, StageName
from dibs.core.issue import Thread
from dibs.core.labels import AddLabels, Effect, PostComment
from dibs.core.lease import Lease, Standing
from dibs.core.pipeline import UNQUEUED
from dibs.label_state import labels
from dibs.label_state.backlogs import Answer, Backlog, answering, backlog_of, claim_window
from dibs.label_state.claims import TheirClaim, dry_run, their_claims
from dibs.ports.tracker import IssueQuery
from dibs.services.effects import Freeing, apply_to
from dibs.services.reading import walk_threads

UNKNOWN = "?"
_EVERY = 100_000
_HOUR = timedelta(hours=1)
_MOST_HOURS = 24 * 36500.0


def age_of(hours: float) -> timedelta:
    """Raises Misuse for what is no age: below nothing every claim would be over."""
    if not 0 <= hours <= _MOST_HOURS:
        raise Misuse(f"max_age_hours is a number of hours from 0 on, not {hours}")
    return timedelta(hours=hours)


@dataclass(frozen=True, slots=True)
class Stale:
    """One claim that is over, on an issue as it was seen."""

    thread: Thread
    codename: str
    firing_id: str
    age: timedelta | None
    """Since anybody last heard of it; None for a label that no claim explains."""
    worked: StageName | None = None
    """The stage of the lease, where it was one of ours."""

    @property
    def label_drift(self) -> bool:
        """The claim is there and the label is not: somebody has moved the issue since."""
        return labels.IN_FLIGHT not in self.thread.issue.labels

    @property
    def key(self) -> tuple[str, str]:
        return self.codename, self.firing_id

    @property
    def identified(self) -> bool:
        return self.age is not None

    def row(self, slug: str, max_age_hours: float) -> dict[str, object]:
        issue = self.thread.issue
        row: dict[str, object] = {
            "repo": slug,
            "number": int(issue.ref.key),
            "title": issue.title,
            "codename": self.codename,
            "firing_id": self.firing_id,
            "age_hours": float("inf") if self.age is None else round(self.age / _HOUR, 2),
            "max_age_hours": max_age_hours,
            "label_drift": self.label_drift,
        }
        return row if self.identified else {**row, "missing_claim": True}


# Finding


def find_stale_claims(repo_slug: str, *, max_age_hours: float = 4) -> list[dict[str, object]]:
    """Every claim that is over and not released. Raises what the tracker raises: an empty list
    would say that all is well.
    """
    backlog = backlog_of(repo_slug)
    found = stale_claims(backlog, age_of(max_age_hours))
    return [one.row(repo_slug, max_age_hours) for one in found]


def stale_claims(backlog: Backlog, max_age: timedelta) -> Iterator[Stale]:
    """Reads what is in flight and what is queued, a hundred of each in one request."""
    queries = (
        IssueQuery((labels.IN_FLIGHT,), limit=_EVERY, closed_too=True),
        IssueQuery((labels.IMPLEMENT,), limit=_EVERY),
    )
    seen: set[IssueRef] = set()
    for thread in walk_threads(backlog.services.tracker, *queries):
        if backlog.repo and thread.issue.ref.repo != backlog.repo:
            continue  # of several repositories, the one that was asked about
        if thread.issue.ref not in seen:
            seen.add(thread.issue.ref)
            yield from stale_on(backlog, thread, max_age)


def stale_on(backlog: Backlog, thread: Thread, max_age: timedelta) -> Iterator[Stale]:
    if not thread.complete:
        return  # an incomplete list decides nothing
    standing = backlog.services.leases.standing(thread)
    if _in_use(thread, standing):
        return
    theirs = their_claims(thread)
    for claim in theirs:
        if claim.older_than(max_age, thread.now):
            age = thread.now - claim.since
            yield Stale(thread, claim.codename, claim.firing_id, age)
    expired = _expired(thread, standing)
    if expired is not None:
        codename, firing_id = firing_of(expired.holder) or (expired.holder, expired.run)
        silent = thread.now - (expired.expires_at - expired.ttl)
        yield Stale(thread, codename, firing_id, silent, expired.stage)
    elif not theirs and _abandoned(backlog, thread):
        yield Stale(thread, UNKNOWN, UNKNOWN, None)


def _in_use(thread: Thread, standing: Standing) -> bool:
    """Held, bid for, or ended and about to be painted: no claim on it is anybody's to end."""
    bidding = standing.bidding_until is not None and thread.now < standing.bidding_until
    return standing.live is not None or standing.unpainted is not None or bidding


def _expired(thread: Thread, standing: Standing) -> Lease | None:
    """Our last lease, if its holder vanished and nobody has released it for their readers."""
    record = standing.record
    if record is None or record.ending is not None:
        return None
    released = record.revocation is not None and labels.IN_FLIGHT not in thread.issue.labels
    return None if released else record.lease


def _abandoned(backlog: Backlog, thread: Thread) -> bool:
    if labels.IN_FLIGHT not in thread.issue.labels:
        return False
    return thread.now >= abandoned_at(thread.issue, backlog.services.pipeline)


# Releasing


@answering
def force_release_stale_claim(
    repo_slug: str,
    num: int,
    *,
    sweep_id: str,
    released_codename: str | None = None,
    released_firing_id: str | None = None,
    label_drift: bool = False,
    max_age_hours: float | None = None,
) -> Answer:
    """Give the issue back that a dead claim keeps. A claim that is not over is not ended.

    Without an identity, whatever is stale on it; `label_drift` says that its labels are to stay.
    """
    if dry_run():
        return Answer(True, "DRY_RUN", "nothing was asked and nothing was written")
    window = claim_window() if max_age_hours is None else age_of(max_age_hours)
    backlog = backlog_of(repo_slug)
    thread = backlog.read(num)
    found = list(stale_on(backlog, thread, window))
    wanted = [
        one
        for one in found
        if released_codename in (None, UNKNOWN, one.codename)
        and released_firing_id in (None, UNKNOWN, one.firing_id)
    ]
    if not wanted:
        return _still_held(backlog, thread)
    answers = [
        free(backlog, one, sweep_id=sweep_id, max_age=window, keep_labels=label_drift)
        for one in wanted
    ]
    return next((answer for answer in answers if not answer), answers[-1])


def free(
    backlog: Backlog,
    stale: Stale,
    *,
    sweep_id: str,
    max_age: timedelta,
    keep_labels: bool = False,
) -> Answer:
    """In one trip: the release for their readers, then the labels.

    If the issue has changed since, and that may have been the release of another claim on it, it is
    looked at once more.
    """
    answer = _freed(backlog, stale, sweep_id, max_age, keep_labels=keep_labels)
    if answer is None:
        thread, key = backlog.read(int(stale.thread.issue.ref.key)), stale.key
        again = [one for one in stale_on(backlog, thread, max_age) if one.key == key]
        for one in again[:1]:
            answer = _freed(backlog, one, sweep_id, max_age, keep_labels=keep_labels)
    if answer is None:
        return Answer(False, "UNPROVEN", "the issue changed while it was looked at")
    return answer


def _freed(
    backlog: Backlog, stale: Stale, sweep_id: str, max_age: timedelta, *, keep_labels: bool
) -> Answer | None:
    """None if it was not as it was seen."""
    thread, services = stale.thread, backlog.services
    said = _said(stale, sweep_id)
    others = [one for one in their_claims(thread) if not one.older_than(max_age, thread.now)]
    if not others and not keep_labels and not stale.label_drift:
        freeing = Freeing(services.tracker, services.leases, services.pipeline)
        freed = freeing.free(thread, services.leases.standing(thread), first=said)
    else:
        queued = () if others else _queued(backlog, stale)
        freed = apply_to(services.tracker, thread.issue, (*said, *queued))
    if freed is None:
        return None
    kept = f"{others[0].codename} has claimed it since" if others else ""
    return Answer(True, "LABELS_KEPT" if others else "", kept)


def _said(stale: Stale, sweep_id: str) -> tuple[Effect, ...]:
    if not stale.identified:
        return ()
    ts = format_instant(stale.thread.now)
    return (
        PostComment(
            their_release(stale.codename, stale.firing_id, "stale-swept", ts, swept_by=sweep_id)
        ),
    )


def _queued(backlog: Backlog, stale: Stale) -> tuple[Effect, ...]:
    """What has been moved since stays where it is; what fell out of the lifecycle is queued."""
    on = stale.thread.issue.labels
    lost = labels.IN_FLIGHT not in on and not backlog.services.pipeline.stages_of(on)
    return (AddLabels((labels.IMPLEMENT,)),) if lost and stale.worked != UNQUEUED.name else ()


def _still_held(backlog: Backlog, thread: Thread) -> Answer:
    if not thread.complete:
        return Answer(False, "UNREADABLE", "not all its comments could be read")
    standing = backlog.services.leases.standing(thread)
    if standing.live is not None:
        return Answer(False, "HELD", f"{standing.live.lease.holder} holds it, and renews it")
    theirs: tuple[TheirClaim, ...] = their_claims(thread)
    if theirs:
        since = format_instant(theirs[0].since)
        return Answer(False, "HELD", f"{theirs[0].codename} has it since {since}")
    return Answer(False, "NOTHING_STALE", "no claim on it is over and waits to be released")
