"""Find claims that their holders no longer keep, and give the issues back to the queue.

A claim of ours is stale when its lease is over, and never before: a lease that is renewed does not
get old. A claim of a published runner has only its age. An in-flight label without a claim is
stale one lease's time after the last change of the issue, because the claim may be written any
moment.
"""

from collections.abc import Iterator
from datetime import timedelta

from msgspec import Struct

from dibs.core.agent_dialect import firing_of, their_release
from dibs.core.durations import format_instant
from dibs.core.eligibility import abandoned_at
from dibs.core.errors import Misuse
from dibs.core.ids import IssueRef, ServerTime, StageName
from dibs.core.issue import Snapshot
from dibs.core.labels import AddLabels, Effect, PostComment
from dibs.core.lease import Lease
from dibs.core.pipeline import UNQUEUED
from dibs.label_state import labels
from dibs.label_state.backlogs import (
    Answer,
    Backlog,
    answering,
    backlog_of,
    claim_window,
    dry_run,
)
from dibs.label_state.claims import their_claims
from dibs.label_state.firings import FiringKey
from dibs.ports.tracker import IssueQuery
from dibs.services.effects import apply_to, free_issue
from dibs.services.reading import walk_snapshots

UNKNOWN = "?"
_EVERY = 100_000
_HOUR = timedelta(hours=1)
_MOST_HOURS = 24 * 36500.0


def age_of(hours: float) -> timedelta:
    """Hours as a timedelta. Raises Misuse below 0, where every claim would be over, and above
    a hundred years.
    """
    if not 0 <= hours <= _MOST_HOURS:
        raise Misuse(f"max_age_hours is a number of hours from 0 on, not {hours}")
    return timedelta(hours=hours)


class StaleClaim(Struct, frozen=True):
    """A claim which is over, with the reading of the issue; or a claim which is only silent."""

    snapshot: Snapshot
    key: FiringKey
    age: timedelta | None
    """Since the last renewal, or since the claim if it has none; None for a label without a claim.
    """
    worked: StageName | None = None
    """The stage of the lease, if the claim was one of ours."""
    lease_until: ServerTime | None = None
    """Until when the lease of a silent claim runs: until then nobody takes it away."""

    @property
    def label_drift(self) -> bool:
        """Whether the in-flight label is gone: the issue was moved after the claim."""
        return labels.IN_FLIGHT not in self.snapshot.issue.labels

    @property
    def identified(self) -> bool:
        """Whether a claim names its firing; False for a label without a claim."""
        return self.age is not None

    def row(self, slug: str, max_age_hours: float) -> dict[str, object]:
        """An entry of the published `find_stale_claims`."""
        issue = self.snapshot.issue
        row: dict[str, object] = {
            "repo": slug,
            "number": int(issue.ref.key),
            "title": issue.title,
            **self.key._asdict(),
            "age_hours": float("inf") if self.age is None else round(self.age / _HOUR, 2),
            "max_age_hours": max_age_hours,
            "label_drift": self.label_drift,
        }
        return row if self.identified else {**row, "missing_claim": True}


# Finding


def find_stale_claims(repo_slug: str, *, max_age_hours: float = 4) -> list[dict[str, object]]:
    """Every claim that is over and not released.

    Raises the errors of the tracker, because an empty list would mean that all is well.
    """
    backlog = backlog_of(repo_slug)
    claims = stale_claims(backlog, age_of(max_age_hours))
    return [claim.row(repo_slug, max_age_hours) for claim in claims]


def stale_claims(backlog: Backlog, max_age: timedelta) -> Iterator[StaleClaim]:
    for snapshot in suspects(backlog):
        yield from stale_on(backlog, snapshot, max_age)


def suspects(backlog: Backlog) -> Iterator[Snapshot]:
    """The issues that may have stale claims: in flight, open or closed, and queued.

    Each request reads up to a hundred issues of each query.
    """
    queries = (
        IssueQuery((labels.IN_FLIGHT,), limit=_EVERY, closed_too=True),
        IssueQuery((labels.IMPLEMENT,), limit=_EVERY),
    )
    seen: set[IssueRef] = set()
    for snapshot in walk_snapshots(backlog.services.tracker, *queries):
        if backlog.repo and snapshot.issue.ref.repo != backlog.repo:
            continue  # the tracker may have several repositories
        if snapshot.issue.ref not in seen:
            seen.add(snapshot.issue.ref)
            yield snapshot


def silent_on(backlog: Backlog, snapshot: Snapshot, max_age: timedelta) -> StaleClaim | None:
    """The claim of ours with a lease that runs, not renewed for `max_age`. Its holder may be dead,
    or cut off and at work: the lease ends by itself.
    """
    live = backlog.services.leases.standing(snapshot).live
    silent = None if live is None else snapshot.now - (live.lease.expires_at - live.lease.ttl)
    if live is None or silent is None or silent < max_age:
        return None
    key = _key_of(live.lease)
    return StaleClaim(snapshot, key, silent, live.lease.stage, live.lease.expires_at)


def _key_of(lease: Lease) -> FiringKey:
    return FiringKey(*firing_of(lease.holder) or (lease.holder, lease.run))


def stale_on(backlog: Backlog, snapshot: Snapshot, max_age: timedelta) -> Iterator[StaleClaim]:
    """Stale claims on an issue; none if not all comments were read.

    Also none while the issue is held or bid for, or while the labels do not show an ending yet.
    """
    if not snapshot.complete:
        return
    now, in_flight = snapshot.now, labels.IN_FLIGHT in snapshot.issue.labels
    standing = backlog.services.leases.standing(snapshot)
    bidding = standing.bidding_until is not None and now < standing.bidding_until
    if standing.live is not None or standing.unpainted is not None or bidding:
        return
    theirs = their_claims(snapshot)
    for claim in theirs:
        if now - claim.since >= max_age:
            yield StaleClaim(snapshot, claim.key, now - claim.since)
    record = standing.record
    # Our last lease, if its holder vanished. A revoked lease is dealt with once the label is off.
    if record is not None and record.ending is None and (record.revocation is None or in_flight):
        lease = record.lease
        silent = now - (lease.expires_at - lease.ttl)
        yield StaleClaim(snapshot, _key_of(lease), silent, lease.stage)
    elif (
        not theirs and in_flight and now >= abandoned_at(snapshot.issue, backlog.services.pipeline)
    ):
        yield StaleClaim(snapshot, FiringKey(UNKNOWN, UNKNOWN), None)


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
    """Release stale claims on an issue and give the issue back. A claim that is not over stays.

    Without a codename or a firing id, releases every stale claim on the issue. With `label_drift`
    the labels stay as they are.
    """
    if dry_run():
        return Answer(True, "DRY_RUN", "nothing was asked and nothing was written")
    window = claim_window() if max_age_hours is None else age_of(max_age_hours)
    backlog = backlog_of(repo_slug)
    snapshot = backlog.read(num)
    wanted = [
        claim
        for claim in stale_on(backlog, snapshot, window)
        if released_codename in (None, UNKNOWN, claim.key.codename)
        and released_firing_id in (None, UNKNOWN, claim.key.firing_id)
    ]
    if wanted:
        answers = [
            free(backlog, claim, sweep_id=sweep_id, max_age=window, keep_labels=label_drift)
            for claim in wanted
        ]
        return next((answer for answer in answers if not answer), answers[-1])
    if not snapshot.complete:
        return Answer(False, "UNREADABLE", "not all its comments could be read")
    live = backlog.services.leases.standing(snapshot).live
    if live is not None:
        until = format_instant(live.lease.expires_at)
        text = f"{live.lease.holder} holds it until {until}, and longer if it renews its lease"
        return Answer(False, "HELD", text)
    theirs = their_claims(snapshot)
    if theirs:
        since = format_instant(theirs[0].since)
        return Answer(False, "HELD", f"{theirs[0].key.codename} has it since {since}")
    return Answer(False, "NOTHING_STALE", "no claim on it is over and waits to be released")


def free(
    backlog: Backlog,
    stale: StaleClaim,
    *,
    sweep_id: str,
    max_age: timedelta,
    keep_labels: bool = False,
) -> Answer:
    """Release a stale claim: post the release for readers of the state machine, then the labels.

    Both go in one write. If the issue has changed since it was read, perhaps by the release of a
    second claim, `free` reads it again and tries once more, if the claim is still stale.
    """
    answer = _try_to_free(backlog, stale, sweep_id, max_age, keep_labels=keep_labels)
    if answer is None:
        snapshot = backlog.read(int(stale.snapshot.issue.ref.key))
        same = [claim for claim in stale_on(backlog, snapshot, max_age) if claim.key == stale.key]
        if same:
            answer = _try_to_free(backlog, same[0], sweep_id, max_age, keep_labels=keep_labels)
    if answer is None:
        return Answer(False, "UNPROVEN", "the issue changed while it was looked at")
    return answer


def _try_to_free(
    backlog: Backlog, stale: StaleClaim, sweep_id: str, max_age: timedelta, *, keep_labels: bool
) -> Answer | None:
    """Release the claim if the issue is still as it was read; None if not.

    The labels stay if a newer claim of theirs is in force. They also stay if the issue was moved or
    the caller wants to keep them, except that an issue without any label of the lifecycle is put
    back into the queue, unless it came from outside the queue.
    """
    snapshot, services = stale.snapshot, backlog.services
    release: tuple[Effect, ...] = ()
    if stale.identified:
        ts = format_instant(snapshot.now)
        line = their_release(*stale.key, "stale-swept", ts, swept_by=sweep_id)
        release = (PostComment(line),)
    newer = [claim for claim in their_claims(snapshot) if snapshot.now - claim.since < max_age]
    if not newer and not keep_labels and not stale.label_drift:
        tracker, leases = services.tracker, services.leases
        standing = leases.standing(snapshot)
        freed = free_issue(tracker, leases, services.pipeline, snapshot, standing, first=release)
    else:
        lost = stale.label_drift and not services.pipeline.stages_of(snapshot.issue.labels)
        requeue = lost and snapshot.issue.open and not newer and stale.worked != UNQUEUED.name
        queue = (AddLabels((labels.IMPLEMENT,)),) if requeue else ()
        freed = apply_to(services.tracker, snapshot.issue, (*release, *queue))
    if freed is None:
        return None
    if newer:
        return Answer(True, "LABELS_KEPT", f"{newer[0].key.codename} has claimed it since")
    return Answer(True)
