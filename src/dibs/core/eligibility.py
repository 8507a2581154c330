"""Why an issue may not be claimed, with a reason for every "no".

One set of functions (`judge`, `judge_claimable`, `judge_picture`) serves the claim, the worker's
scan, `dibs ready` and `dibs why`, so they cannot disagree. Each reason states the fact and what
would have to change; none offers a command that takes an issue away from its holder.

Failed attempts are counted from the history of leases: the count survives restarts and is the same
on every machine. A lost race is no failure; neither is a lease which an operator took away.

An approval names the text which a person approved, and a later change of the issue's title or body
voids the approval. The reason: the author of an issue may change its text without the right to
write anywhere else in the repository, and only text which a person has read may be worked on under
an approval. This module decides the spelling of the approval mark and whether the newest one still
holds. Where there is no such mark, a label which a person put on by hand opens the gate alone,
unless the gate demands a signed approval: then only the mark opens it, and only for one move.

The same author may change the text after a person put a stage's label on, which is how people
release issues. A change counts if it came after the last release (`text_reasons`). The labels of
runs release nothing: those of the time that a card covers, with a minute for the labels of its
ending, and the first label after a card which its ending leads to, however late a sweep paints it.

The mark of a pause is spelt here, too: who paused an issue, and why. The label decides, and the
mark is for people.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.card import Card, CardState, parse_mark
from dibs.core.durations import describe_span, format_instant
from dibs.core.foreign import foreign_claims
from dibs.core.ids import Fence, ServerTime, StageName, later
from dibs.core.issue import Comment, Issue, Labelling, Person, Snapshot
from dibs.core.lease import Outcome, Standing, Try
from dibs.core.marker import VERSION, plain, quoted, read_line, shortened, starts_as, write_line
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


APPROVAL = "approved"
SIGNS = "a person approves it with DIBS_SIGNING_KEY set: dibs approve"
_DIGITS = 32


def text_of(issue: Issue) -> str:
    """A digest of the issue's title and body: the name of the text in an approval."""
    text = f"{len(issue.title)}:{issue.title}{issue.body}"
    from hashlib import sha256  # loads OpenSSL: not at every start

    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def render_approval(issue: Issue, stage: str, by: str, after: str = "") -> str:
    """The mark of an approval. `after`: the run of `last_move`."""
    fields = [("stage", stage), ("text", text_of(issue)), ("v", str(VERSION)), ("by", by)]
    fields += [("after", after)]
    line = write_line(APPROVAL, [(key, shortened(value, 300)) for key, value in fields])
    return f"{line}\nApproved by `{plain(by) or 'somebody'}`, out of `{plain(stage)}`."


def last_move(tries: Sequence[Try], stage: StageName) -> str:
    """The last run which moved the issue out of the stage; empty if none did.

    A signed approval names it: once the approval was used, another run is the last. A second card
    of an earlier run, which a lenient fleet may believe, makes that run the last no more.
    """
    moved = (one.run for one in tries if one.stage == stage and one.outcome is Outcome.ADVANCED)
    return next(reversed(dict.fromkeys(moved)), "")


def _marks(
    snapshot: Snapshot, kinds: Sequence[str]
) -> Iterator[tuple[Comment, str, Mapping[str, str]]]:
    """The marks of these kinds by writers, the oldest first: comment, kind and fields."""
    for comment in sorted(snapshot.comments, key=lambda comment: (comment.created_at, comment.id)):
        if comment.by_writer and starts_as(comment.body, kinds):
            with suppress(ValueError):
                kind, fields = read_line(comment.body)
                yield comment, kind, dict(fields.rest)


_PAUSED, _RESUMED = "paused", "resumed"


def words_of(body: str) -> str:
    """A comment as people read it: an approval, a pause or a resume without its line for machines.

    Other comments are not changed.
    """
    ours = starts_as(body, (APPROVAL, _PAUSED, _RESUMED))
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
    for comment, kind, fields in _marks(snapshot, (_PAUSED, _RESUMED)):
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
    reasons += approval_reasons(snapshot, tries, stage)
    reasons += text_reasons(snapshot, stage, pipeline)
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


def approval_reasons(
    snapshot: Snapshot, tries: Sequence[Try] | None, stage: Stage
) -> Iterator[Reason]:
    """Why the gate is shut although its label is on; nothing if the gate is open.

    The newest approval out of this stage decides, of those by writers which name a text; at a
    signed gate, of the signed ones. Without `tries`, whether the approval was used is not judged.
    """
    gate, newest = stage.gate, dict[str, str]()
    if not isinstance(gate, ApprovalGate) or gate.label not in snapshot.issue.labels:
        return
    signed = isinstance(gate, SignedGate)
    for comment, _, fields in _marks(snapshot, (APPROVAL,)):
        of_text = fields.get("stage") == stage.name and fields.get("text")
        if of_text and (comment.signed or not signed):
            newest = dict(fields)
    remedy = "a person reads it again and approves it: dibs approve"
    if newest and newest["text"] != text_of(snapshot.issue):
        text = f"its text was changed after it was approved out of stage {stage.name!r}"
        yield Reason(ReasonCode.GATE_SHUT, text, remedy)
    elif signed and not newest:
        text = f"it carries {gate.label!r}, but no signed approval out of stage {stage.name!r}"
        yield Reason(ReasonCode.GATE_SHUT, text, f"{SIGNS}; without the key none counts")
    elif (
        signed
        and tries is not None
        and newest.get("after", "") != (last := last_move(tries, stage.name))
    ):
        text = f"its signed approval out of stage {stage.name!r} was used by run {last or 'none'}"
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


_PAINTING = timedelta(minutes=1)
"""So long after the last edit of a card may the labels of its ending still be put on."""


def text_reasons(snapshot: Snapshot, stage: Stage, pipeline: Pipeline) -> Iterator[Reason]:
    """The reasons against work on the issue's present text, whatever the labels are."""
    issue, change = snapshot.issue, snapshot.issue.changed
    if change is None or pipeline.people.text is WhichText.ANY or stage.final or not stage.label:
        return
    released = _last_release(snapshot, pipeline)
    if released is not None and (released.at > change.at or released.by == change.by):
        return  # a label by the same account: a form put it on, and nobody else released the issue
    text = text_of(issue)
    if all(fields.get("text") != text for _, _, fields in _marks(snapshot, (APPROVAL,))):
        who, when = plain(change.by) or "somebody", format_instant(change.at)
        yield Reason(
            ReasonCode.TEXT_CHANGED,
            f"{who}, who may not write, changed its text at {when}, after it was released",
            f"a person reads it again, and takes the label {stage.label!r} off and puts it on "
            "again, or approves it: dibs approve; an edit of the text releases nothing",
        )


def _last_release(snapshot: Snapshot, pipeline: Pipeline) -> Labelling | None:
    """The last time a person put the label of a stage or of a gate on the issue, and not a run."""
    labels = {label for stage in pipeline.stages for label in stage.entry_labels}
    stages = {stage.name: stage for stage in pipeline.stages}
    labelled = sorted(snapshot.issue.labelled, key=lambda one: one.at)
    runs: list[tuple[ServerTime, ServerTime]] = []
    painted: list[Labelling] = []
    for comment in snapshot.comments:
        mark = parse_mark(comment.body) if comment.by_writer else None
        if mark is not None:
            # A sweep puts the label of a vanished holder's stage on again, after the ttl.
            painting = _PAINTING
            if isinstance(mark, Card) and mark.state is not CardState.RELEASED:
                painting += 2 * mark.ttl
            runs.append((comment.created_at, later(comment.updated_at, painting)))
        if isinstance(mark, Card):
            # A sweep paints the ending of a dead run however late: the first such label is the
            # run's.
            own, ending = stages.get(mark.stage), mark.ending
            into = stages.get(ending.next) if ending is not None and ending.next else None
            for stage in (own if own and own.gives_way else None, into):
                after = (one for one in labelled if one.at > comment.created_at)
                theirs = (one for one in after if stage and one.label in stage.entry_labels)
                painted += [one for one in (next(theirs, None),) if one is not None]
    people = [
        one
        for one in labelled
        if one.label in labels
        and one not in painted
        and not any(start < one.at <= end for start, end in runs)
    ]
    return max(people, key=lambda one: one.at, default=None)


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
