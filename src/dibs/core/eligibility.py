"""Why an issue may not be claimed, with a reason for every "no".

One set of functions (`judge`, `judge_claimable`, `judge_picture`) serves the claim, the worker's
scan, `dibs ready` and `dibs why`, so they cannot disagree. Each reason states the fact and what
would have to change; none offers a command that takes an issue away from its holder.

Failed attempts are counted from the history of leases: the count survives restarts and is the same
on every machine. A lost race is no failure; neither is a lease which an operator took away.

Whether a gate is open is decided in `approval`. An author without write access may change the text
of an issue after a person put a stage's label on, which is how people release issues: a change
counts if it came after the last release (`text_reasons`). So does an edit of the plan after the
gate let the issue through.

The mark of a pause is spelt here, too: who paused an issue, and why. The label decides, and the
mark is for people.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.durations import describe_span, format_instant
from dibs.core.foreign import foreign_claims
from dibs.core.ids import Fence, ServerTime, StageName, later
from dibs.core.issue import Issue, Person, Snapshot
from dibs.core.lease import Outcome, Standing, Try
from dibs.core.marker import VERSION, marks, plain, quoted, shortened, starts_as, write_line
from dibs.core.pipeline import ApprovalGate, People, Pipeline, SignedGate, Stage, WhichText


class Attempts(Struct, frozen=True):
    failed: int = 0
    spent: bool = False
    """No attempt is left: the next worker parks the issue for a person."""
    rests_until: ServerTime | None = None
    """The end of the backoff after the last failure, if its handler reported it; else None."""


def count_attempts(tries: Sequence[Try], stage: Stage) -> Attempts:
    """How often the issue failed in this stage (`failed_tries`), and until when it rests.

    Only a failure which the handler reported is followed by the backoff. After a vanished holder
    the issue has already rested, until the ttl was over.
    """
    failed = failed_tries(tries, stage.name)
    last = failed[-1] if failed else None
    rests_until = None
    if last is not None and last.ended_at is not None and last.outcome is not None:
        rests_until = later(last.ended_at, stage.backoff.after(len(failed)))
    return Attempts(len(failed), len(failed) >= stage.attempts, rests_until)


def failed_tries(tries: Sequence[Try], stage: StageName) -> tuple[Try, ...]:
    """The failures in this stage, oldest first, since the count last started afresh.

    The count starts afresh after a try in another stage, after an advance and after a parking:
    only people take `parked` off, so a try after a parking means that a person re-queued the issue.
    """
    failed: list[Try] = []
    for attempt in tries:
        if attempt.stage != stage or attempt.outcome in (Outcome.ADVANCED, Outcome.PARKED):
            failed = []
        elif attempt.ended_at is None or attempt.excused:
            continue
        elif attempt.outcome in (Outcome.FAILED, None):
            # No outcome: the holder vanished. A crash counts, or the issue would loop for ever.
            failed.append(attempt)
    return tuple(failed)


APPROVE, REJECT = "/approve", "/reject"
"""The words by which a person's comment begins that answers a gate."""
GATE_KINDS = ("approved", "rejected", "expired", "plan", "labelled")
"""The kinds of line that `approval` spells."""
_PAUSED, _RESUMED = "paused", "resumed"


def is_ruling(body: str) -> bool:
    """Whether a comment may answer a gate: a mark, or a comment that begins with its word."""
    return starts_as(body, GATE_KINDS[:2]) or body.split(maxsplit=1)[:1] in ([APPROVE], [REJECT])


def words_of(body: str) -> str:
    """A comment as people read it: a mark of a person's word without its line for machines.

    Other comments are not changed.
    """
    ours = starts_as(body, (*GATE_KINDS, _PAUSED, _RESUMED))
    return body.partition("\n")[2] if ours else body


class IssuePause(Struct, frozen=True):
    """Who paused an issue, why and when."""

    by: str
    reason: str
    since: ServerTime


def render_pause(by: str, reason: str) -> str:
    fields = [("by", shortened(by, 300)), ("reason", shortened(reason)), ("v", str(VERSION))]
    return f"{write_line(_PAUSED, fields)}\nPaused by {quoted(by)}: {quoted(reason)}"


def render_resume(by: str) -> str:
    line = write_line(_RESUMED, [("by", shortened(by, 300)), ("v", str(VERSION))])
    return f"{line}\nResumed by {quoted(by)}."


def paused_by(snapshot: Snapshot, pipeline: Pipeline) -> IssuePause | None:
    """Who paused the issue; None if it is not paused, or if a person put the label on by hand."""
    if pipeline.labels.paused not in snapshot.issue.labels:
        return None
    newest: IssuePause | None = None
    for comment, kind, fields in marks(snapshot.comments, (_PAUSED, _RESUMED)):
        by, reason = fields.get("by", ""), fields.get("reason", "")
        newest = IssuePause(by, reason, comment.created_at) if kind == _PAUSED else None
    return newest


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
    TEXT_CHANGED = "TEXT_CHANGED"
    ASSIGNED = "ASSIGNED"
    DELEGATED = "DELEGATED"
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
    STORE_AWAY = "STORE_AWAY"


class Whose(StrEnum):
    """Where a reason comes from."""

    RUN = "another run"
    """Another run holds the issue, or may hold it."""
    PERSON = "a person"
    """A person, or another tool, has the issue or wants workers to leave it."""
    ISSUE = "the issue"
    """The issue offers no work in a stage of the pipeline."""
    ATTEMPTS = "its attempts"
    LIMIT = "a limit"
    STORE = "the lease store"
    """This process's store or reading does not allow a claim."""


class Lifts(StrEnum):
    """What ends a reason."""

    SOON = "soon"
    """Time, or the work of others: looking again soon helps."""
    WITH_A_CHANGE = "with a change of the issue"
    """People and other programs, and then the issue is changed: a draining worker does not wait."""
    WITH_A_WORD = "with a word"
    """People, without a change of the issue."""


class RefusalKind(StrEnum):
    """What a caller is told; the exit codes of the command line have the same names."""

    HELD = "held"
    SHUT = "shut"
    NOTHING = "nothing"
    UNPROVEN = "unproven"


class Meaning(Struct, frozen=True):
    """What follows from a reason: one row of `MEANINGS`."""

    whose: Whose
    lifts: Lifts
    refusal: RefusalKind
    person: bool = False
    """Whether a person who claims by hand may overlook it."""
    bookkeeping: bool = False
    """Whether an issue is moved after its pull requests all the same."""
    others_end_it: bool = False
    """Whether it goes away when others are done, so that a claim may wait for it."""
    state: str = ""
    """How the board shows an issue for this reason; the first row that has a state counts."""


_NO_WORK = Meaning(Whose.ISSUE, Lifts.WITH_A_CHANGE, RefusalKind.NOTHING)
_KEPT_OFF = Meaning(Whose.PERSON, Lifts.WITH_A_CHANGE, RefusalKind.SHUT, person=True)
_PERSON_ON_IT = replace(_KEPT_OFF, refusal=RefusalKind.HELD, bookkeeping=True, state="theirs")
_PAUSE = replace(_KEPT_OFF, lifts=Lifts.WITH_A_WORD)
_RUN_HAS_IT = Meaning(Whose.RUN, Lifts.SOON, RefusalKind.HELD, others_end_it=True)
_ATTEMPTS = Meaning(Whose.ATTEMPTS, Lifts.SOON, RefusalKind.SHUT, person=True, bookkeeping=True)
_STORE = Meaning(Whose.STORE, Lifts.SOON, RefusalKind.SHUT)
MEANINGS: Mapping[ReasonCode, Meaning] = {
    ReasonCode.FINAL_STAGE: replace(_NO_WORK, state="done"),
    ReasonCode.CLOSED: replace(_NO_WORK, bookkeeping=True, state="done"),
    ReasonCode.NO_STAGE: replace(_NO_WORK, state="unclear"),
    ReasonCode.SEVERAL_STAGES: replace(_NO_WORK, state="unclear"),
    ReasonCode.NOT_SERVED: replace(_NO_WORK, lifts=Lifts.SOON),
    ReasonCode.PARKED: replace(_KEPT_OFF, bookkeeping=True, state="parked"),
    ReasonCode.PAUSED: replace(_KEPT_OFF, state="paused"),
    ReasonCode.BLOCKED: replace(_KEPT_OFF, bookkeeping=True, state="blocked"),
    ReasonCode.GATE_SHUT: replace(_KEPT_OFF, state="gated"),
    ReasonCode.TEXT_CHANGED: replace(_KEPT_OFF, bookkeeping=True, state="gated"),
    ReasonCode.REPOSITORY_PAUSED: _PAUSE,
    ReasonCode.FLEET_PAUSED: _PAUSE,
    ReasonCode.ASSIGNED: _PERSON_ON_IT,
    ReasonCode.DELEGATED: _PERSON_ON_IT,
    ReasonCode.PULL_OPEN: _PERSON_ON_IT,
    ReasonCode.FOREIGN_CLAIM: replace(_KEPT_OFF, refusal=RefusalKind.HELD, others_end_it=True),
    ReasonCode.HELD: _RUN_HAS_IT,
    ReasonCode.BID_PENDING: _RUN_HAS_IT,
    ReasonCode.IN_GRACE: _RUN_HAS_IT,
    ReasonCode.UNPAINTED: _RUN_HAS_IT,
    ReasonCode.CLAIM_LABEL_ONLY: _RUN_HAS_IT,
    ReasonCode.BACKING_OFF: _ATTEMPTS,
    ReasonCode.ATTEMPTS_SPENT: _ATTEMPTS,
    ReasonCode.WIP_LIMIT: replace(_ATTEMPTS, whose=Whose.LIMIT, others_end_it=True),
    # of what keeps one issue of the bundle back, that issue's own reasons speak
    ReasonCode.BUNDLE_WAITS: Meaning(Whose.LIMIT, Lifts.WITH_A_CHANGE, RefusalKind.SHUT),
    ReasonCode.UNREADABLE: replace(_STORE, refusal=RefusalKind.UNPROVEN),
    ReasonCode.GRANTED_ELSEWHERE: _STORE,
    ReasonCode.UNPROTECTED: replace(_STORE, lifts=Lifts.WITH_A_CHANGE, bookkeeping=True),
    ReasonCode.FENCE_REGRESSED: _STORE,
    ReasonCode.STORE_AWAY: replace(_STORE, refusal=RefusalKind.UNPROVEN),
}
"""What each reason means, in the order in which the board looks for a state."""


def reasons_with(matches: Callable[[Meaning], bool]) -> frozenset[ReasonCode]:
    """The reasons whose row in `MEANINGS` matches."""
    return frozenset(code for code, meaning in MEANINGS.items() if matches(meaning))


class Reason(Struct, frozen=True):
    code: ReasonCode
    text: str
    remedy: str
    until: ServerTime | None = None
    """When the reason lifts by itself; None if it does not."""


def rests_until(reasons: Iterable[Reason], *, held_too: bool) -> ServerTime | None:
    """Until when a claim is refused for sure if the issue does not change; None if unknown.

    `held_too`: no lease ends before its time without a change of the issue. Other reasons depend on
    settings that `rest_rules` does not name, such as the grace.
    """
    codes = {ReasonCode.BACKING_OFF} | ({ReasonCode.HELD} if held_too else set())
    times = [one.until for one in reasons if one.code in codes and one.until is not None]
    return max(times, default=None)


def rest_rules(pipeline: Pipeline, max_ttl: timedelta) -> str:
    """The settings on which rests depend: under different settings a rest must be judged again."""
    stages = ((one.name, one.attempts, one.backoff) for one in pipeline.stages)
    terms = (f"{name} {most} {off.first} {off.most}" for name, most, off in stages)
    return "; ".join((*terms, str(max_ttl)))


class PauseScope(StrEnum):
    REPOSITORY = "repository"
    FLEET = "fleet"


class Pause(Struct, frozen=True):
    """A person's word to leave a whole repository, or the whole fleet's work, alone."""

    scope: PauseScope
    reason: str
    by: str
    since: ServerTime
    repo: str = ""

    def covers(self, repo: str) -> bool:
        return self.scope is PauseScope.FLEET or self.repo == repo

    def __str__(self) -> str:
        what = f"{self.scope.value} {self.repo}".rstrip()
        return f"the {what} is paused by {self.by or 'somebody'}: {self.reason}"


class Surroundings(Struct, frozen=True):
    """The facts beside the issue itself which decide whether the issue may be claimed."""

    pauses: tuple[Pause, ...] = ()
    grace: timedelta = timedelta()
    """How long an issue rests after a lease which expired without an ending."""
    in_flight: int | None = None
    """Live leases in the stage; None if they were not counted."""
    objections: tuple[Reason, ...] = ()
    """Reasons against granting any lease here, for instance that another store grants."""
    protected: bool = True
    """The store is atomic and fenced, so that irreversible stages may run on it."""


class Verdict(Struct, frozen=True):
    """Whether an issue may be claimed, and in which stage."""

    stage: Stage | None
    reasons: tuple[Reason, ...] = ()
    failed_attempts: int = 0

    @property
    def eligible(self) -> bool:
        return self.stage is not None and not self.reasons


def judge_picture(issue: Issue, pipeline: Pipeline, worked: StageName | None = None) -> Verdict:
    """The reasons in the issue's own fields. Enough for a scan; a claim also calls `judge`.

    `worked` is the stage of a lease without an ending: its label may have given way to `claimed`.
    """
    given_way = pipeline.worked_stage(issue.labels, worked)
    stages = (given_way,) if given_way is not None else pipeline.stages_of(issue.labels)
    stage = stages[0] if len(stages) == 1 else None
    reasons = _stage_reasons(issue, pipeline, stages)
    return Verdict(stage, (*reasons, *_people_reasons(issue, pipeline)))


def judge(
    snapshot: Snapshot, standing: Standing, pipeline: Pipeline, around: Surroundings
) -> Verdict:
    """All reasons against a claim: the issue's lease first, then those of `judge_claimable`."""
    issue, now, record = snapshot.issue, snapshot.now, standing.record
    claimable = judge_claimable(snapshot, standing.tries, pipeline, around)
    reason: Reason | None = None
    if standing.live is not None:
        lease, left = standing.live.lease, describe_span(standing.live.remaining)
        reason = Reason(
            ReasonCode.HELD,
            f"{lease.holder} holds it (run {lease.run}, fence {lease.fence}) for another {left}",
            "wait for it to finish; a lease that is not renewed expires by itself",
            until=lease.expires_at,
        )
    elif standing.unpainted is not None:
        reason = Reason(
            ReasonCode.UNPAINTED,
            "its last run ended but its labels do not show it yet",
            "the next worker that wants it, or dibs fsck, finishes the labels",
        )
    elif standing.bidding_until is not None and now < standing.bidding_until:
        reason = Reason(
            ReasonCode.BID_PENDING,
            "another run has bid for it and not confirmed yet",
            "wait: the bid is confirmed, conceded or expires",
            until=standing.bidding_until,
        )
    elif record is not None and record.ending is None:
        free_at = later(record.lease.expires_at, around.grace)
        if record.as_of < free_at:
            reason = Reason(
                ReasonCode.IN_GRACE,
                f"the lease of {record.lease.holder} expired and its grace is not over",
                "wait for the grace to pass",
                until=free_at,
            )
    elif pipeline.labels.claimed in issue.labels and (
        record is None or not pipeline.stages_of(issue.labels)
    ):
        free_at = abandoned_at(issue, pipeline)
        if now < free_at:
            reason = Reason(
                ReasonCode.CLAIM_LABEL_ONLY,
                f"it carries {pipeline.labels.claimed!r} but no card says whose it is",
                "wait one ttl since its last change; then it counts as abandoned",
                until=free_at,
            )
    reasons = claimable.reasons if reason is None else (reason, *claimable.reasons)
    return replace(claimable, reasons=reasons)


def judge_claimable(
    snapshot: Snapshot, tries: Sequence[Try], pipeline: Pipeline, around: Surroundings
) -> Verdict:
    """The reasons of `judge` apart from the lease: for a bidder which was just granted the lease.

    Reasons which depend on the stage are left out if the stage is in doubt.
    """
    issue, now = snapshot.issue, snapshot.now
    last = tries[-1] if tries else None
    worked = last.stage if last is not None and last.outcome is None else None
    picture = judge_picture(issue, pipeline, worked)
    paused = (pause_reason(pause) for pause in around.pauses if pause.covers(issue.ref.repo))
    reasons = [*around.objections, *paused, *picture.reasons]
    if (pause := paused_by(snapshot, pipeline)) is not None:
        text = (
            f"{pause.by or 'somebody'} paused it at {format_instant(pause.since)}: {pause.reason}"
        )
        named = Reason(ReasonCode.PAUSED, text, f"ask {pause.by or 'a person'} to resume it")
        reasons = [named if one.code is ReasonCode.PAUSED else one for one in reasons]
    reasons += _foreign_reasons(snapshot, pipeline.people)
    if not snapshot.complete:
        reasons.append(
            Reason(
                ReasonCode.UNREADABLE,
                f"only {len(snapshot.comments)} of {issue.comment_count} comments could be read"
                if len(snapshot.comments) < issue.comment_count
                else "not every page of its comments could be read",
                "an incomplete list decides nothing: read it again; if it stays incomplete, the "
                "tracker counts comments that it does not show to this account",
            )
        )
    stage = picture.stage
    if stage is None:
        return Verdict(stage, tuple(reasons))
    if stage.irreversible and not around.protected:
        text = (
            f"stage {stage.name!r} cannot be undone, and the lease store is not atomic and fenced"
        )
        remedy = "keep leases in an atomic store (see: dibs stores), or say irreversible = false"
        reasons.append(Reason(ReasonCode.UNPROTECTED, text, remedy))
    reasons += gate_reasons(snapshot, tries, stage, pipeline)
    reasons += text_reasons(snapshot, tries, stage, pipeline)
    attempts = count_attempts(tries, stage)
    failed, until = attempts.failed, attempts.rests_until
    if attempts.spent:
        text = f"it failed {failed} times in stage {stage.name!r}, which allows {stage.attempts}"
        remedy = "the next worker parks it for a person"
        reasons.append(Reason(ReasonCode.ATTEMPTS_SPENT, text, remedy))
    elif until is not None and now < until:
        rest = describe_span(until - now)
        text = f"attempt {failed} of {stage.attempts} failed; it rests another {rest}"
        remedy = "wait for the backoff to pass"
        reasons.append(Reason(ReasonCode.BACKING_OFF, text, remedy, until=until))
    if stage.wip is not None and around.in_flight is not None and around.in_flight >= stage.wip:
        reasons.append(over_limit(stage, around.in_flight))
    return Verdict(stage, tuple(reasons), failed)


def abandoned_at(issue: Issue, pipeline: Pipeline) -> ServerTime:
    """When a `claimed` label without a card stops counting: a ttl after the issue's last change."""
    stages = pipeline.stages_of(issue.labels) or pipeline.stages
    return later(issue.updated_at, stages[0].terms.ttl)


def vetoed(issue: Issue, pipeline: Pipeline) -> str | None:
    """Why a person wants running work to stop (closed issue, veto label); None to go on."""
    if not issue.open:
        return "the issue was closed"
    labels = sorted(issue.labels & pipeline.vetoes)
    return f"a person put {labels[0]!r} on the issue" if labels else None


def _stage_reasons(issue: Issue, pipeline: Pipeline, stages: tuple[Stage, ...]) -> Iterable[Reason]:
    if not issue.open:
        yield Reason(ReasonCode.CLOSED, "the issue is closed", "reopen it in the tracker")
    if not stages:
        known = ", ".join(stage.label for stage in pipeline.stages if not stage.final)
        text, remedy = "it carries no stage label", f"put one of these labels on it: {known}"
        yield Reason(ReasonCode.NO_STAGE, text, remedy)
        return
    if len(stages) > 1:
        found = ", ".join(stage.label for stage in stages)
        text = f"it carries {len(stages)} stage labels: {found}"
        yield Reason(ReasonCode.SEVERAL_STAGES, text, "look at the plan of: dibs fsck")
        return
    (stage,) = stages
    if stage.final:
        yield Reason(
            ReasonCode.FINAL_STAGE,
            f"stage {stage.name!r} is the end of the pipeline",
            "nothing is left to do; put an earlier stage's label on it instead, to run it again",
        )
    if isinstance(stage.gate, ApprovalGate) and stage.gate.label not in issue.labels:
        by_label = f"a person approves it: dibs approve, or the label {stage.gate.label!r}"
        yield Reason(
            ReasonCode.GATE_SHUT,
            f"the gate of stage {stage.name!r} is shut: nobody approved it",
            SIGNS if isinstance(stage.gate, SignedGate) else f"{by_label} in the tracker",
        )


def _people_reasons(issue: Issue, pipeline: Pipeline) -> Iterable[Reason]:
    """Reasons by people: pause, parking and blocker labels, assignments, open pull requests."""
    marks, people = pipeline.labels, pipeline.people
    if marks.paused in issue.labels:
        yield Reason(
            ReasonCode.PAUSED,
            f"a person paused it (label {marks.paused!r})",
            f"ask who paused it; the history of {issue.ref} in the tracker may tell",
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
    if assigned := people.assigned(issue):
        yield Reason(
            ReasonCode.ASSIGNED,
            f"it is assigned to {_named(assigned)}",
            "the assignee works it, or takes the assignment off in the tracker; "
            "accounts of the fleet are named in [people] fleet",
        )
    if delegated := people.delegated(issue):
        what = "a program" if len(delegated) == 1 else "programs"
        yield Reason(
            ReasonCode.DELEGATED,
            f"it is delegated to {_named(delegated)}, {what} outside the fleet",
            "look at what the program does with it, or take the assignment off in the tracker; "
            "accounts of the fleet are named in [people] fleet",
        )
    for pull in people.pulling(issue)[:_MOST_NAMED]:
        yield Reason(
            ReasonCode.PULL_OPEN,
            f"{pull.author.login} has an open pull request for it: {pull.ref}",
            f"look at {pull.ref}: when it is merged or closed, this reason is gone",
        )


def _named(accounts: Sequence[Person]) -> str:
    names = [account.login for account in accounts[:_MOST_NAMED]]
    if len(accounts) > _MOST_NAMED:
        names.append(f"{len(accounts) - _MOST_NAMED} more")
    return " and ".join(names)


def strangers_pulls(issue: Issue, people: People) -> tuple[str, ...]:
    """Notes on open pull requests which keep no worker off, since their authors may not write."""
    found = people.strangers_pulls(issue)
    notes = [
        f"{pull.author.login}, who may not write, has an open pull request for it: {pull.ref}; "
        "it keeps nobody off"
        for pull in found[:_MOST_NAMED]
    ]
    more = len(found) - _MOST_NAMED
    return (*notes, f"and {more} more such pull requests") if more > 0 else tuple(notes)


def pause_reason(pause: Pause) -> Reason:
    """Why nothing in the scope of the pause may be claimed."""
    fleet, scope = pause.scope is PauseScope.FLEET, pause.scope.value
    said = f"{pause.by or 'somebody'} paused it at {format_instant(pause.since)}"
    return Reason(
        ReasonCode.FLEET_PAUSED if fleet else ReasonCode.REPOSITORY_PAUSED,
        f"the {scope} is paused; {said}: {pause.reason}",
        f"ask {pause.by or 'a person'} to resume the {scope}",
    )


SIGNS = "a person approves it with DIBS_SIGNING_KEY set: dibs approve"


def gate_reasons(
    snapshot: Snapshot, tries: Sequence[Try], stage: Stage, pipeline: Pipeline
) -> Iterator[Reason]:
    """Why the gate is shut although its label is on; nothing if the gate is open."""
    gate = stage.gate
    if not isinstance(gate, ApprovalGate) or gate.label not in snapshot.issue.labels:
        return
    from dibs.core import approval  # the common claims are before no gate

    found = approval.at_gate(snapshot, tries, stage, pipeline)
    if not found.missing:
        return
    yes = [one for one in found.rulings if one.kind is approval.RulingKind.APPROVED]
    if (no := found.rejection) is not None:
        why = f"{plain(no.by) or 'somebody'} rejected it"
    elif found.approvals:
        names = ", ".join(plain(one.by) for one in found.approvals)
        why = f"{names} approved, and it needs {found.needed} people"
    elif yes:
        who = plain(yes[-1].by) or "somebody"
        why = f"the approval by {who} does not count: {yes[-1].void}"
    else:
        why = f"its label is on, and does not count: {found.label_void}"
    remedy = SIGNS if isinstance(gate, SignedGate) else "a person reads it and answers the gate"
    text = f"the gate of stage {stage.name!r} is shut: {why}"
    yield Reason(ReasonCode.GATE_SHUT, text, remedy)


def _foreign_reasons(snapshot: Snapshot, people: People) -> Iterable[Reason]:
    if not people.markers:
        return
    found = foreign_claims(snapshot.comments, now=snapshot.now, ttl=people.marker_ttl)
    for claim in found[:_MOST_NAMED]:
        since = format_instant(claim.since)
        yield Reason(
            ReasonCode.FOREIGN_CLAIM,
            f"another tool ({claim.tool}) says that {claim.who} has it since {since}",
            f"look at comment {claim.comment}: the tool takes its marker back, "
            "or it stops counting by itself",
            until=claim.until,
        )


def text_reasons(
    snapshot: Snapshot, tries: Sequence[Try], stage: Stage, pipeline: Pipeline
) -> Iterator[Reason]:
    """The reasons against work on the present text or plan, whatever the labels are."""
    issue = snapshot.issue
    stranger = issue.changed if pipeline.people.text is not WhichText.ANY else None
    gates = {one.name for one in pipeline.stages if isinstance(one.gate, ApprovalGate)}
    passed = any(one.stage in gates and one.outcome is Outcome.ADVANCED for one in tries)
    if stage.final or not stage.label or (stranger is None and not passed):
        return
    from dibs.core import approval  # the common claims come through no gate

    passage = approval.last_passage(snapshot, tries, pipeline) if passed else None
    edited = passage is not None and passage.plan_changed and passage.verdict == approval.APPROVED
    if stranger is None and not edited:
        return
    # A person may read the present text again, and approve it.
    now = {approval.text_of(issue), approval.present_text(snapshot, tries, pipeline)}
    for comment, _, fields in marks(snapshot.comments, (approval.APPROVED,)):
        if fields.get("text") in now and (passage is None or comment.created_at > passage.at):
            return
    if passage is not None and edited:
        yield Reason(
            ReasonCode.TEXT_CHANGED,
            f"its plan was edited after {plain(passage.by) or 'somebody'} approved it",
            "a person reads it again and approves it: dibs approve",
        )
    if stranger is None:
        return
    labelled = approval.labelled_by_people(snapshot, pipeline)
    released = labelled[-1] if labelled else None
    if released is not None and (released.at > stranger.at or released.by == stranger.by):
        return  # a label by the same account: a form put it on, and nobody else released the issue
    who, when = plain(stranger.by) or "somebody", format_instant(stranger.at)
    yield Reason(
        ReasonCode.TEXT_CHANGED,
        f"{who}, who may not write, changed its text at {when}, after it was released",
        f"a person reads it again, and takes the label {stage.label!r} off and puts it on "
        "again, or approves it: dibs approve; an edit of the text releases nothing",
    )


def regressed(granted: Fence, seen: Fence) -> Reason:
    """The reason for giving back a grant: its fence is not above `seen`, granted earlier."""
    return Reason(
        ReasonCode.FENCE_REGRESSED,
        f"the store granted fence {granted}, but {seen} is shown as granted before",
        "find out whether the store was restored from an older state; see docs/operate/runbook.md",
    )


def over_limit(stage: Stage, in_flight: int, *, wanted: int = 1) -> Reason:
    """The reason for a stage at its `wip` limit; `wanted` is the size of the bundle to claim."""
    together = f", and {wanted} are worked together" if wanted > 1 else ""
    return Reason(
        ReasonCode.WIP_LIMIT,
        f"stage {stage.name!r} has {in_flight} of at most {stage.wip} issues in flight{together}",
        "wait for one of them to finish, or raise the stage's wip",
    )
