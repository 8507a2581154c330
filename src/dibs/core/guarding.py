"""Whether a push that closes an issue may go out, given who holds the issue and who pushes.

Refused is what would be work done twice: the issue is in flight, or somebody has an open pull
request for it, and neither is the pusher's. A holder is let through while its lease is current; one
whose lease is over is not, because another may have the issue by now. What keeps workers from
picking an issue (a label, an assignee, a gate) keeps nobody from pushing.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from msgspec import Struct

from dibs.core.agent_dialect import fields_of, firing_holder, firing_of
from dibs.core.durations import format_instant
from dibs.core.eligibility import ReasonCode, Surroundings, abandoned_at, judge
from dibs.core.errors import LeaseLost
from dibs.core.following import LinkedPull, PullFate
from dibs.core.foreign import foreign_claims
from dibs.core.ids import Fence, IssueRef, RunId
from dibs.core.issue import Thread
from dibs.core.lease import Record, Standing
from dibs.core.pipeline import Pipeline

_MOST_NAMED = 3
_IN_FLIGHT = frozenset(
    {
        ReasonCode.HELD,
        ReasonCode.BID_PENDING,
        ReasonCode.IN_GRACE,
        ReasonCode.CLAIM_LABEL_ONLY,
    }
)


class Pusher(Struct, frozen=True):
    """Who pushes, as far as it can be told."""

    runs: frozenset[RunId] = frozenset()
    """The leases it says that it has."""
    issue: IssueRef | None = None
    """What the only one of them is for, if that is said."""
    fence: Fence | None = None
    """Of that one."""
    firings: frozenset[tuple[str, str]] = frozenset()
    """Codename and firing id, as its commits say."""
    branches: frozenset[str] = frozenset()
    """What it pushes to."""
    repo: str = ""
    """Where; empty if nobody can say."""


class Objection(Struct, frozen=True):
    """Why a push may not go out."""

    issue: IssueRef
    code: str
    text: str
    look: str


class Judged(Struct, frozen=True):
    objections: tuple[Objection, ...] = ()
    remarks: tuple[str, ...] = ()
    """What the pusher should know, though it may push."""


def judge_push(
    thread: Thread,
    standing: Standing,
    pulls: Sequence[LinkedPull],
    pipeline: Pipeline,
    grace: timedelta,
    pusher: Pusher,
) -> Judged:
    """Of one issue that the push would close. The thread must be complete."""
    held = standing.live
    others = tuple(_others(thread.issue.ref, pulls, pusher)) if pipeline.people.pulls else ()
    if held is not None and _is_held_by(held, pusher):
        if stale := tuple(_stale_fence(held, pusher)):
            return Judged(stale)
        return Judged(remarks=tuple(_remarks(held, others)))
    reasons = judge(thread, standing, pipeline, Surroundings(grace=grace)).reasons
    look = f"dibs show {thread.issue.ref.typed} tells who has it and until when"
    in_flight = [
        Objection(thread.issue.ref, reason.code.value, reason.text, look)
        for reason in reasons
        if reason.code in _IN_FLIGHT
    ]
    if not in_flight and standing.record is None:
        in_flight = list(_labels(thread, pipeline))
    foreign = _foreign(thread, pipeline, pusher)
    return Judged((*_lost(thread, standing, pusher), *in_flight, *foreign, *others))


def _is_held_by(held: Record, pusher: Pusher) -> bool:
    firing = firing_of(held.lease.holder)
    return held.lease.run in pusher.runs or (firing is not None and _fired(firing, pusher))


def _fired(firing: tuple[str, str], pusher: Pusher) -> bool:
    """Whether the commits are of this firing; one that claims again counts its turns.

    A card says a long name in short.
    """
    codename, name = firing
    first, again, turn = name.rpartition("~")
    names = {name, first if again and turn.isdigit() else name}
    known = {*pusher.firings, *(firing_of(firing_holder(*one)) for one in pusher.firings)}
    return any((codename, one) in known for one in names)


def _stale_fence(held: Record, pusher: Pusher) -> Iterator[Objection]:
    fence = held.lease.fence
    if pusher.fence is not None and held.lease.run in pusher.runs and pusher.fence != fence:
        yield Objection(
            held.lease.issue,
            LeaseLost.code,
            f"your fence is {pusher.fence}, and the lease's is {fence}",
            f"dibs show {held.lease.issue.typed} shows the lease",
        )


def _remarks(held: Record, others: Sequence[Objection]) -> Iterator[str]:
    if held.revocation is not None:
        by = held.revocation.by or "an operator"
        yield f"{held.lease.issue}: {by} asked for your lease back: {held.revocation.reason}"
    for other in others:
        yield f"{other.issue}: {other.text}"


def _lost(thread: Thread, standing: Standing, pusher: Pusher) -> Iterator[Objection]:
    """A lease that ran out is refused, also if nobody has taken it up yet. One that was ended is
    just over.
    """
    ref = thread.issue.ref
    known = {attempt.run: attempt for attempt in standing.tries}
    for run in sorted(pusher.runs):
        attempt = known.get(run)
        if attempt is None and pusher.issue != ref:
            continue
        if attempt is not None and attempt.outcome is not None:
            continue
        ended = attempt.ended_at if attempt is not None else None
        since = f"ran out at {format_instant(ended)}" if ended else "is not there"
        yield Objection(
            ref,
            LeaseLost.code,
            f"the lease of your run {run} {since}",
            f"another may have it by now: dibs show {ref.typed} tells; claim it again first",
        )


def _labels(thread: Thread, pipeline: Pipeline) -> Iterator[Objection]:
    """A stage's working label that no card explains counts as long as `claimed` does."""
    found = sorted(thread.issue.labels.intersection(pipeline.working_labels))
    if found and thread.now < abandoned_at(thread.issue, pipeline):
        yield Objection(
            thread.issue.ref,
            ReasonCode.CLAIM_LABEL_ONLY.value,
            f"it carries {found[0]!r}, but no card says whose it is",
            "ask whoever put the label on; without a card it stops counting one ttl later",
        )


def _foreign(thread: Thread, pipeline: Pipeline, pusher: Pusher) -> Iterator[Objection]:
    if not pipeline.people.markers:
        return
    bodies = {comment.id: comment.body for comment in thread.comments}
    ttl = pipeline.people.marker_ttl
    claims = foreign_claims(thread.comments, now=thread.now, ttl=ttl)
    for claim in claims[:_MOST_NAMED]:
        fields = fields_of(bodies[claim.comment])
        if _fired((fields.get("codename", ""), fields.get("firing_id", "")), pusher):
            continue
        yield Objection(
            thread.issue.ref,
            ReasonCode.FOREIGN_CLAIM.value,
            f"another tool ({claim.tool}) says that {claim.who} has it since "
            f"{format_instant(claim.since)}",
            f"look at comment {claim.comment}: the tool takes its marker back when it is done",
        )


def _others(ref: IssueRef, pulls: Sequence[LinkedPull], pusher: Pusher) -> Iterator[Objection]:
    """Open pull requests from other branches than are pushed to. Whose account it is does not
    matter: a person and the person's agents often share one.
    """
    theirs = [pull for pull in pulls if pull.fate is PullFate.OPEN and not _adds_to(pull, pusher)]
    for pull in theirs[:_MOST_NAMED]:
        branch = f" from branch {pull.head}" if pull.head else ""
        yield Objection(
            ref,
            ReasonCode.PULL_OPEN.value,
            f"{pull.author.login} has an open pull request for it: {pull.ref}{branch}",
            f"look at {pull.ref}: add to it, or wait until it is merged or closed",
        )


def _adds_to(pull: LinkedPull, pusher: Pusher) -> bool:
    """Whether the push goes to the branch that the pull request comes from, here or in a fork."""
    there = pusher.repo.casefold()
    away = there not in ("", pull.ref.repo.casefold())
    return bool(pull.head) and pull.head in pusher.branches and pull.foreign is away
