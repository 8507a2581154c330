"""Why an issue may not be claimed, with a reason for every "no".

One function serves the claim, the worker's scan, `dibs ready` and `dibs why`, so they cannot
disagree. Each reason says the fact and what would have to change; none offers a command that takes
an issue away from somebody.

How often an issue failed in its stage, and when it may be tried again.

Counted from the history of leases, so it survives restarts and is the same on every machine. Lost
races are not failures; neither is a lease an operator took away.

An approval that names what was approved: a later change of the issue's text voids it.

Whoever wrote an issue may change its text without being allowed to write anywhere else, so what is
done under an approval must be what a person has read. Decides the spelling of that mark and whether
the newest one still holds. A label that a person put on by hand names no text, and opens the gate
as it always did.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.durations import describe_span, format_instant
from dibs.core.foreign import foreign_claims
from dibs.core.ids import Fence, ServerTime, StageName, later
from dibs.core.issue import Comment, Issue, Thread
from dibs.core.lease import Outcome, Standing, Try
from dibs.core.marker import VERSION, plain, read_line, shortened, starts_as, write_line
from dibs.core.pipeline import ApprovalGate, NoGate, People, Pipeline, Stage


class Attempts(Struct, frozen=True):
    failed: int = 0
    last_failed_at: ServerTime | None = None
    spent: bool = False
    """No attempt is left: the issue is to be parked for a person."""
    rests_until: ServerTime | None = None
    """The backoff after the last failure that was said; None when there was none."""


def count_attempts(tries: Sequence[Try], stage: Stage) -> Attempts:
    """Failures in this stage since the issue last moved, was parked or was returned by a person."""
    failed = failed_tries(tries, stage.name)
    last = failed[-1] if failed else None
    return Attempts(
        failed=len(failed),
        last_failed_at=last.ended_at if last else None,
        spent=len(failed) >= stage.attempts,
        rests_until=_rests_until(last, len(failed), stage),
    )


def failed_tries(tries: Sequence[Try], stage: StageName) -> tuple[Try, ...]:
    """Those that count, the oldest first."""
    failed: list[Try] = []
    for attempt in tries:
        if _starts_afresh(attempt, stage):
            failed = []
        elif _failed(attempt):
            failed.append(attempt)
    return tuple(failed)


def _rests_until(last: Try | None, failed: int, stage: Stage) -> ServerTime | None:
    """A handler that said it failed is given a rest; a vanished holder's ttl was rest enough."""
    if last is None or last.ended_at is None or last.outcome is None:
        return None
    return later(last.ended_at, stage.backoff.after(failed))


def _starts_afresh(attempt: Try, stage: StageName) -> bool:
    """Parked and tried again means re-queued: only people take `parked` off."""
    return attempt.stage != stage or attempt.outcome in (Outcome.ADVANCED, Outcome.PARKED)


def _failed(attempt: Try) -> bool:
    if attempt.ended_at is None or attempt.excused:
        return False
    # No outcome at all means that the holder vanished: a crash counts, or it would loop for ever.
    return attempt.outcome in (Outcome.FAILED, None)


_KIND = "approved"
_DIGITS = 32


def text_of(issue: Issue) -> str:
    """A name for what the issue asks for."""
    asked = f"{len(issue.title)}:{issue.title}{issue.body}"
    from hashlib import sha256  # loads OpenSSL: not at every start

    return sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def render_approval(issue: Issue, stage: str, by: str) -> str:
    fields = [("stage", stage), ("text", text_of(issue)), ("v", str(VERSION)), ("by", by)]
    line = write_line(_KIND, [(key, shortened(value, 300)) for key, value in fields])
    return f"{line}\nApproved by {plain(by) or 'somebody'}, out of {plain(stage)}."


def changed_since(thread: Thread, stage: str) -> bool:
    """Whether the newest approval out of this stage names another text than the issue has now."""
    texts = [text for text in _texts(thread.comments, stage) if text]
    return bool(texts) and texts[-1] != text_of(thread.issue)


def _texts(comments: Iterable[Comment], stage: str) -> Iterable[str]:
    for comment in sorted(comments, key=lambda one: (one.created_at, one.id)):
        if not comment.by_writer or not starts_as(comment.body, (_KIND,)):
            continue
        try:
            _, fields = read_line(comment.body)
            if fields.take("stage") == stage:
                yield fields.take("text") or ""
        except ValueError:
            continue


_MOST_NAMED = 3


class ReasonCode(StrEnum):
    CLOSED = "CLOSED"
    NO_STAGE = "NO_STAGE"
    SEVERAL_STAGES = "SEVERAL_STAGES"
    FINAL_STAGE = "FINAL_STAGE"
    NOT_SERVED = "NOT_SERVED"
    PAUSED = "PAUSED"
    REPOSITORY_PAUSED = "REPOSITORY_PAUSED"
    FLEET_PAUSED = "FLEET_PAUSED"
    PARKED = "PARKED"
    BLOCKED = "BLOCKED"
    GATE_SHUT = "GATE_SHUT"
    ASSIGNED = "ASSIGNED"
    PULL_OPEN = "PULL_OPEN"
    FOREIGN_CLAIM = "FOREIGN_CLAIM"
    HELD = "HELD"
    BID_PENDING = "BID_PENDING"
    IN_GRACE = "IN_GRACE"
    UNPAINTED = "UNPAINTED"
    CLAIM_LABEL_ONLY = "CLAIM_LABEL_ONLY"
    BACKING_OFF = "BACKING_OFF"
    ATTEMPTS_SPENT = "ATTEMPTS_SPENT"
    WIP_LIMIT = "WIP_LIMIT"
    BUNDLE_WAITS = "BUNDLE_WAITS"
    UNREADABLE = "UNREADABLE"
    GRANTED_ELSEWHERE = "GRANTED_ELSEWHERE"
    UNPROTECTED = "UNPROTECTED"
    FENCE_REGRESSED = "FENCE_REGRESSED"


class Reason(Struct, frozen=True):
    code: ReasonCode
    text: str
    remedy: str
    until: ServerTime | None = None
    """When it lifts by itself, if it does."""


class PauseScope(StrEnum):
    REPOSITORY = "repository"
    FLEET = "fleet"


class Pause(Struct, frozen=True):
    """Hands off, said by a person about more than one issue."""

    scope: PauseScope
    reason: str
    by: str
    since: ServerTime
    repo: str = ""

    def __str__(self) -> str:
        what = f"{self.scope.value} {self.repo}".rstrip()
        return f"the {what} is paused by {self.by or 'somebody'}: {self.reason}"


class Surroundings(Struct, frozen=True):
    """What decides besides the issue itself."""

    pauses: tuple[Pause, ...] = ()
    grace: timedelta = timedelta()
    in_flight: int | None = None
    """Live leases in the stage, where somebody counted them."""
    objections: tuple[Reason, ...] = ()
    """What speaks against granting anything here at all."""
    protected: bool = True
    """The store is atomic and fenced, so that what cannot be undone may run on it."""


class Verdict(Struct, frozen=True):
    """Whether an issue may be claimed, and in which stage."""

    stage: Stage | None
    reasons: tuple[Reason, ...] = ()
    failed_attempts: int = 0

    @property
    def eligible(self) -> bool:
        return self.stage is not None and not self.reasons


def judge_picture(issue: Issue, pipeline: Pipeline, worked: StageName | None = None) -> Verdict:
    """What the issue's own fields say. A scan needs no more; a claim also asks `judge`.

    `worked` is the stage of a lease that nobody ended: its label may have given way to `claimed`.
    """
    given_way = pipeline.worked_stage(issue.labels, worked)
    stages = (given_way,) if given_way is not None else pipeline.stages_of(issue.labels)
    reasons = [*_closed(issue), *_stage_count(stages, pipeline)]
    stage = stages[0] if len(stages) == 1 else None
    if stage is not None:
        reasons += [*_final(stage), *_gate(issue, stage)]
    somebodys = _people(issue, pipeline.people)
    return Verdict(stage, (*reasons, *_labels(issue, pipeline), *somebodys))


def judge(thread: Thread, standing: Standing, pipeline: Pipeline, around: Surroundings) -> Verdict:
    """Everything that stands between this issue and a claim."""
    claimable = judge_claimable(thread, standing.tries, pipeline, around)
    lease = _lease(thread.issue, standing, pipeline, around.grace, thread.now)
    return replace(claimable, reasons=(*lease, *claimable.reasons))


def judge_claimable(
    thread: Thread, tries: Sequence[Try], pipeline: Pipeline, around: Surroundings
) -> Verdict:
    """The same without the question who holds it: for one who was just granted the lease."""
    issue, now = thread.issue, thread.now
    last = tries[-1] if tries else None
    worked = last.stage if last is not None and last.outcome is None else None
    picture = judge_picture(issue, pipeline, worked)
    reasons = [*around.objections, *_pauses(issue, around.pauses), *picture.reasons]
    reasons += _markers(thread, pipeline.people)
    if not thread.complete:
        reasons.append(_unreadable(thread))
    stage = picture.stage
    if stage is None:
        return Verdict(stage, tuple(reasons))
    if stage.irreversible and not around.protected:
        reasons.append(_unprotected(stage))
    reasons += _approved_another(thread, stage)
    attempts = count_attempts(tries, stage)
    if attempts.spent:
        reasons.append(_spent(stage, attempts.failed))
    elif attempts.rests_until is not None and now < attempts.rests_until:
        reasons.append(_resting(attempts.rests_until, attempts.failed, stage, now))
    if stage.wip is not None and around.in_flight is not None and around.in_flight >= stage.wip:
        reasons.append(over_limit(stage, around.in_flight))
    return Verdict(stage, tuple(reasons), attempts.failed)


def abandoned_at(issue: Issue, pipeline: Pipeline) -> ServerTime:
    """When a claimed label that no card explains stops counting: one ttl after the last change."""
    stages = pipeline.stages_of(issue.labels) or pipeline.stages
    return later(issue.updated_at, stages[0].terms.ttl)


def vetoed(issue: Issue, pipeline: Pipeline) -> str | None:
    """Why running work must stop, from what a person did to the issue; None to go on."""
    if not issue.open:
        return "the issue was closed"
    labels = sorted(issue.labels & pipeline.vetoes)
    return f"a person put {labels[0]!r} on the issue" if labels else None


def _closed(issue: Issue) -> Iterable[Reason]:
    if not issue.open:
        yield Reason(ReasonCode.CLOSED, "the issue is closed", "reopen it in the tracker")


def _stage_count(stages: tuple[Stage, ...], pipeline: Pipeline) -> Iterable[Reason]:
    if not stages:
        known = ", ".join(stage.label for stage in pipeline.stages if not stage.final)
        yield Reason(
            ReasonCode.NO_STAGE,
            "it carries no stage label",
            f"put one of these labels on it: {known}",
        )
    elif len(stages) > 1:
        found = ", ".join(stage.label for stage in stages)
        yield Reason(
            ReasonCode.SEVERAL_STAGES,
            f"it carries {len(stages)} stage labels: {found}",
            "look at the plan of: dibs fsck",
        )


def _final(stage: Stage) -> Iterable[Reason]:
    if stage.final:
        yield Reason(
            ReasonCode.FINAL_STAGE,
            f"stage {stage.name!r} is the end of the pipeline",
            "nothing is left to do; put an earlier stage's label on it instead, to run it again",
        )


def _gate(issue: Issue, stage: Stage) -> Iterable[Reason]:
    match stage.gate:
        case NoGate():
            return
        case ApprovalGate(label):
            if label not in issue.labels:
                yield Reason(
                    ReasonCode.GATE_SHUT,
                    f"the gate of stage {stage.name!r} is shut: nobody approved it",
                    f"a person approves it: dibs approve, or the label {label!r} in the tracker",
                )
        case _:
            assert_never(stage.gate)


def _approved_another(thread: Thread, stage: Stage) -> Iterable[Reason]:
    """The approval is there, and names a text that the issue does not have any more."""
    gate = stage.gate
    approved = isinstance(gate, ApprovalGate) and gate.label in thread.issue.labels
    if approved and changed_since(thread, stage.name):
        yield Reason(
            ReasonCode.GATE_SHUT,
            f"its text was changed after somebody approved it out of stage {stage.name!r}",
            "a person reads it again and approves it: dibs approve",
        )


def _labels(issue: Issue, pipeline: Pipeline) -> Iterable[Reason]:
    marks = pipeline.labels
    if marks.paused in issue.labels:
        yield Reason(
            ReasonCode.PAUSED,
            f"a person paused it (label {marks.paused!r})",
            f"whoever paused it resumes it; dibs show {issue.ref.typed} tells who and why",
        )
    if marks.parked in issue.labels:
        yield Reason(
            ReasonCode.PARKED,
            f"it was parked for a person (label {marks.parked!r})",
            f"a person looks at what failed (dibs runs {issue.ref.typed}) and re-queues it",
        )
    for label in sorted(issue.labels & pipeline.blockers):
        yield Reason(
            ReasonCode.BLOCKED,
            f"the label {label!r} keeps workers off",
            f"take the label {label!r} off in the tracker",
        )


def _pauses(issue: Issue, pauses: tuple[Pause, ...]) -> Iterable[Reason]:
    for pause in pauses:
        said = f"{pause.by or 'somebody'} said so at {format_instant(pause.since)}: {pause.reason}"
        match pause.scope:
            case PauseScope.FLEET:
                yield Reason(
                    ReasonCode.FLEET_PAUSED,
                    f"the fleet is paused; {said}",
                    f"ask {pause.by or 'whoever said so'} to resume the fleet",
                )
            case PauseScope.REPOSITORY if pause.repo == issue.ref.repo:
                yield Reason(
                    ReasonCode.REPOSITORY_PAUSED,
                    f"the repository is paused; {said}",
                    f"ask {pause.by or 'whoever said so'} to resume the repository",
                )
            case PauseScope.REPOSITORY:
                pass
            case _:
                assert_never(pause.scope)


def _people(issue: Issue, people: People) -> Iterable[Reason]:
    if assigned := people.assigned(issue):
        names = _listed([person.login for person in assigned])
        yield Reason(
            ReasonCode.ASSIGNED,
            f"it is assigned to {names}",
            "whoever has it works it, or takes the assignment off in the tracker; "
            "accounts of the fleet are named in [people] fleet",
        )
    for pull in people.pulling(issue)[:_MOST_NAMED]:
        yield Reason(
            ReasonCode.PULL_OPEN,
            f"{pull.author.login} has an open pull request for it: {pull.ref}",
            f"look at {pull.ref}: when it is merged or closed, this reason is gone",
        )


def _markers(thread: Thread, people: People) -> Iterable[Reason]:
    if not people.markers:
        return
    found = foreign_claims(thread.comments, now=thread.now, ttl=people.marker_ttl)
    for claim in found[:_MOST_NAMED]:
        since = format_instant(claim.since)
        yield Reason(
            ReasonCode.FOREIGN_CLAIM,
            f"another tool ({claim.tool}) says that {claim.who} has it since {since}",
            f"look at comment {claim.comment}: the tool takes its marker back, "
            "or it stops counting by itself",
            until=claim.until,
        )


def _listed(names: Sequence[str]) -> str:
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return " and ".join([*names[:_MOST_NAMED], *more])


def _lease(
    issue: Issue, standing: Standing, pipeline: Pipeline, grace: timedelta, now: ServerTime
) -> Iterable[Reason]:
    record = standing.record
    if standing.live is not None:
        holder, left = standing.live.lease, describe_span(standing.live.remaining)
        yield Reason(
            ReasonCode.HELD,
            f"{holder.holder} holds it (run {holder.run}, fence {holder.fence}) for another {left}",
            "wait for it to finish; a lease that is not renewed expires by itself",
            until=holder.expires_at,
        )
    elif standing.unpainted is not None:
        yield Reason(
            ReasonCode.UNPAINTED,
            "its last run ended but its labels do not show it yet",
            "the next worker that wants it, or dibs fsck, finishes the labels",
        )
    elif standing.bidding_until is not None and now < standing.bidding_until:
        yield Reason(
            ReasonCode.BID_PENDING,
            "somebody has bid for it and not yet confirmed",
            "wait: the bid is confirmed, conceded or expires",
            until=standing.bidding_until,
        )
    elif record is not None and record.ending is None:
        free_at = later(record.lease.expires_at, grace)
        if record.as_of < free_at:
            yield Reason(
                ReasonCode.IN_GRACE,
                f"the lease of {record.lease.holder} expired and its grace is not over",
                "wait for the grace to pass",
                until=free_at,
            )
    elif pipeline.labels.claimed in issue.labels and (
        record is None or not pipeline.stages_of(issue.labels)
    ):
        yield from _claim_label_only(issue, pipeline, now)


def _claim_label_only(issue: Issue, pipeline: Pipeline, now: ServerTime) -> Iterable[Reason]:
    free_at = abandoned_at(issue, pipeline)
    if now < free_at:
        yield Reason(
            ReasonCode.CLAIM_LABEL_ONLY,
            f"it carries {pipeline.labels.claimed!r} but no card says whose it is",
            "wait one ttl since its last change; then it counts as abandoned",
            until=free_at,
        )


def _spent(stage: Stage, failed: int) -> Reason:
    return Reason(
        ReasonCode.ATTEMPTS_SPENT,
        f"it failed {failed} times in stage {stage.name!r}, which allows {stage.attempts}",
        "the next worker parks it for a person",
    )


def _resting(until: ServerTime, failed: int, stage: Stage, now: ServerTime) -> Reason:
    return Reason(
        ReasonCode.BACKING_OFF,
        f"attempt {failed} of {stage.attempts} failed; it rests another "
        f"{describe_span(until - now)}",
        "wait for the backoff to pass",
        until=until,
    )


def _unprotected(stage: Stage) -> Reason:
    return Reason(
        ReasonCode.UNPROTECTED,
        f"stage {stage.name!r} cannot be undone, and the lease store is not atomic and fenced",
        "keep leases in an atomic store (see: dibs stores), or say irreversible = false",
    )


def regressed(granted: Fence, seen: Fence) -> Reason:
    return Reason(
        ReasonCode.FENCE_REGRESSED,
        f"the store granted fence {granted}, but {seen} is shown as granted before",
        "find out whether the store was restored from an older state; see docs/operate/runbook.md",
    )


def over_limit(stage: Stage, in_flight: int, *, wanted: int = 1) -> Reason:
    together = f", and {wanted} are worked together" if wanted > 1 else ""
    return Reason(
        ReasonCode.WIP_LIMIT,
        f"stage {stage.name!r} has {in_flight} of at most {stage.wip} issues in flight{together}",
        "wait for one of them to finish, or raise the stage's wip",
    )


def _unreadable(thread: Thread) -> Reason:
    return Reason(
        ReasonCode.UNREADABLE,
        f"only {len(thread.comments)} of {thread.issue.comment_count} comments could be read"
        if len(thread.comments) < thread.issue.comment_count
        else "not every page of its comments could be read",
        "read it again: an incomplete list decides nothing",
    )
