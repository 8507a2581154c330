"""The one read model: what every frontend shows, so that they cannot disagree.

Why an issue is not being picked: every reason, in words and as codes, and what would help.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.card import CardState
from dibs.core.eligibility import (
    Attempts,
    Pause,
    Reason,
    ReasonCode,
    Verdict,
    count_attempts,
    judge_picture,
)
from dibs.core.fold import FoldRules, PostedCard, read_marks
from dibs.core.ids import HolderId, IssueRef, RunId, ServerTime, StageName
from dibs.core.issue import Issue, Thread
from dibs.core.lease import Record, Standing, Try
from dibs.core.named import is_named
from dibs.core.pipeline import NoHandler, Stage
from dibs.ports.leases import Guarantee
from dibs.ports.tracker import IssueQuery
from dibs.services.reading import walk, walk_threads, with_ourselves
from dibs.services.scanning import urgency

if TYPE_CHECKING:
    from dibs.services.backlog import Backlog
    from dibs.services.bundling import Bundling
    from dibs.services.claiming import Claiming


class RowState(StrEnum):
    READY = "ready"
    CLAIMED = "claimed"
    EXPIRED = "expired"
    GATED = "gated"
    WAITING = "waiting"
    PAUSED = "paused"
    PARKED = "parked"
    BLOCKED = "blocked"
    THEIRS = "theirs"
    UNCLEAR = "unclear"
    DONE = "done"


class Row(Struct, frozen=True):
    issue: Issue
    stage: Stage | None
    state: RowState
    record: Record | None = None


class StageSummary(Struct, frozen=True):
    stage: Stage
    issues: int
    """Open ones; in a final stage, all that ever got there."""
    in_flight: int


class Overview(Struct, frozen=True):
    now: ServerTime
    stages: tuple[StageSummary, ...]
    in_flight: tuple[Record, ...]
    pauses: tuple[Pause, ...]
    paused: int
    parked: int
    claimed: int


class RunRow(Struct, frozen=True):
    """One lease in an issue's history."""

    run: RunId
    holder: HolderId
    stage: StageName
    started_at: ServerTime
    ended_at: ServerTime | None
    outcome: str
    beats: int
    note: str = ""


class Board:
    def __init__(self, backlog: "Backlog") -> None:
        self._tracker = backlog.tracker
        self._leases = backlog.leases
        self._pipeline = backlog.pipeline
        self._pauses = backlog.pauses

    def overview(self) -> Overview:
        """Counts by stage and everything in flight. Costs what is in flight, not the backlog."""
        marks = self._pipeline.labels
        final = [stage.label for stage in self._pipeline.stages if stage.final]
        labels = [stage.label for stage in self._pipeline.stages if not stage.final]
        counts = dict(self._tracker.tally((*labels, marks.paused, marks.parked, marks.claimed)))
        counts |= self._tracker.tally(final, closed_too=True)
        live = self._held()
        return Overview(
            now=self._tracker.find(IssueQuery(limit=1)).now,
            stages=tuple(self._summary(stage, counts, live) for stage in self._pipeline.stages),
            in_flight=live,
            pauses=self._pauses.pauses(),
            paused=counts[marks.paused],
            parked=counts[marks.parked],
            claimed=counts[marks.claimed],
        )

    def _held(self) -> tuple[Record, ...]:
        """Leases on issues; what else is leased by name is not on the board."""
        return tuple(held for held in self._leases.live() if not is_named(held.lease.issue))

    def _summary(
        self, stage: Stage, counts: Mapping[str, int], live: tuple[Record, ...]
    ) -> StageSummary:
        held = sum(record.lease.stage == stage.name for record in live)
        gives_way = stage.gives_way and self._pipeline.swaps_labels
        hidden = held if gives_way else 0  # these show `claimed` in the place of the stage
        return StageSummary(stage, counts[stage.label] + hidden, held)

    def rows(
        self, *, stage: StageName | None = None, closed_too: bool = False, limit: int = 100
    ) -> tuple[Row, ...]:
        """Issues as a person lists them, oldest first."""
        labels = (self._pipeline.stage(stage).label,) if stage else ()
        query = IssueQuery(labels, limit=limit, closed_too=closed_too)
        if self._tracker.traits.shortlists and Guarantee.ATOMIC not in self._leases.guarantees:
            # The issues come with their cards: who holds what is known without asking again.
            return tuple(
                self._row(thread.issue, self._leases.standing(thread).live)
                for thread in walk_threads(self._tracker, query)
            )
        held = {record.lease.issue: record for record in self._held()}
        return tuple(self._row(issue, held.get(issue.ref)) for issue in self._issues(query))

    def _issues(self, query: IssueQuery) -> Iterator[Issue]:
        """With everything that keeps a worker off, as far as one request can tell it."""
        if not self._tracker.traits.shortlists:
            yield from walk(self._tracker, query)
        else:
            yield from (thread.issue for thread in walk_threads(self._tracker, query))

    def ready(self, *, stage: StageName | None = None, limit: int = 100) -> tuple[Row, ...]:
        """What could be claimed now, by the picture; the most urgent first."""
        marks = self._pipeline.labels
        without = (marks.claimed, marks.paused, marks.parked, *sorted(self._pipeline.blockers))
        stages = [self._pipeline.stage(stage)] if stage else self._pipeline.stages
        found: dict[IssueRef, Row] = {}
        for wanted in stages:
            if wanted.final:
                continue
            for issue in self._waiting(IssueQuery(wanted.entry_labels, without, limit)):
                row = self._row(issue, None)
                if row.state is RowState.READY:
                    found.setdefault(issue.ref, row)
        rows = sorted(
            found.values(),
            key=lambda row: (urgency(row.issue, self._pipeline), row.issue.created_at),
        )
        return tuple(rows[:limit])

    def _waiting(self, query: IssueQuery) -> Iterator[Issue]:
        """The foremost, and the urgent ones further back where there is a further back."""
        foremost = list(self._issues(query))
        yield from foremost
        if len(foremost) == query.limit:
            for label in self._pipeline.priorities:
                yield from self._issues(replace(query, labels=(*query.labels, label)))

    def _row(self, issue: Issue, record: Record | None) -> Row:
        verdict = judge_picture(issue, with_ourselves(self._pipeline, self._tracker, issue))
        codes = {reason.code for reason in verdict.reasons}
        return Row(issue, verdict.stage, self._state(issue, verdict.stage, codes, record), record)

    def _state(
        self, issue: Issue, stage: Stage | None, codes: set[ReasonCode], record: Record | None
    ) -> RowState:
        for code, state in _STATES:
            if code in codes:
                return state
        if record is not None:
            return RowState.CLAIMED
        if codes & _SOMEBODYS:
            return RowState.THEIRS
        if self._pipeline.labels.claimed in issue.labels:
            return RowState.EXPIRED
        worked = stage is not None and (stage.working_label or stage.gives_way)
        if stage is not None and isinstance(stage.handler, NoHandler) and not worked:
            return RowState.WAITING if not stage.passes_by_itself else RowState.READY
        return RowState.READY

    def history(self, ref: IssueRef) -> tuple[RunRow, ...]:
        """Every lease the issue's cards tell of, the oldest first."""
        thread = self._tracker.read(ref)
        tries = {entry.run: entry for entry in self._leases.standing(thread).tries}
        marks = read_marks(thread.comments, FoldRules(max_ttl=timedelta.max))
        return tuple(_run_row(posted, tries.get(posted.card.run)) for posted in marks.cards)

    def show(self, ref: IssueRef) -> tuple[Thread, Row, Standing]:
        """One issue with everything known about it."""
        thread = self._tracker.read(ref)
        standing = self._leases.standing(thread)
        return thread, self._row(thread.issue, standing.live), standing


_STATES = (
    (ReasonCode.FINAL_STAGE, RowState.DONE),
    (ReasonCode.CLOSED, RowState.DONE),
    (ReasonCode.NO_STAGE, RowState.UNCLEAR),
    (ReasonCode.SEVERAL_STAGES, RowState.UNCLEAR),
    (ReasonCode.PARKED, RowState.PARKED),
    (ReasonCode.PAUSED, RowState.PAUSED),
    (ReasonCode.BLOCKED, RowState.BLOCKED),
    (ReasonCode.GATE_SHUT, RowState.GATED),
)


_SOMEBODYS = {ReasonCode.ASSIGNED, ReasonCode.PULL_OPEN}
"""They keep workers from starting, and stop none: so what runs is shown as running."""


def _run_row(posted: PostedCard, attempt: Try | None) -> RunRow:
    card = posted.card
    if attempt is None:
        outcome = "bid" if card.state is CardState.BID else card.state.value
    elif attempt.ended_at is None:
        outcome = "running"
    else:
        outcome = attempt.outcome.value if attempt.outcome else "vanished"
    return RunRow(
        run=card.run,
        holder=card.holder,
        stage=card.stage,
        started_at=posted.created_at,
        ended_at=attempt.ended_at if attempt else posted.updated_at,
        outcome=outcome,
        beats=card.beats,
        note=card.ending.note if card.ending else "",
    )


class Explanation(Struct, frozen=True):
    thread: Thread
    stage: Stage | None
    standing: Standing
    reasons: tuple[Reason, ...]
    attempts: Attempts

    @property
    def claimable(self) -> bool:
        return not self.reasons


class Explaining:
    def __init__(self, backlog: "Backlog", claiming: "Claiming", bundling: "Bundling") -> None:
        self._tracker = backlog.tracker
        self._leases = backlog.leases
        self._pipeline = backlog.pipeline
        self._claiming = claiming
        self._bundling = bundling

    def explain(self, issue: IssueRef) -> Explanation:
        thread = self._tracker.read(issue)
        standing = self._leases.standing(thread)
        verdict = self._claiming.judge(thread, in_flight=self._in_flight(thread))
        attempts = count_attempts(standing.tries, verdict.stage) if verdict.stage else Attempts()
        reasons = (*verdict.reasons, *self._of_its_bundle(thread, verdict), *_unserved(verdict))
        return Explanation(thread, verdict.stage, standing, reasons, attempts)

    def _of_its_bundle(self, thread: Thread, verdict: Verdict) -> tuple[Reason, ...]:
        """What it waits for if it could be had by itself."""
        if verdict.stage is None or not verdict.eligible:
            return ()
        return self._bundling.explain(thread, verdict.stage)

    def _in_flight(self, thread: Thread) -> int | None:
        stages = self._pipeline.stages_of(thread.issue.labels)
        if len(stages) != 1 or stages[0].wip is None:
            return None
        return len(self._leases.live(stages[0].name, limit=stages[0].wip + 1))


def _unserved(verdict: Verdict) -> tuple[Reason, ...]:
    stage = verdict.stage
    if stage is None or stage.final or stage.served:
        return ()
    return (
        Reason(
            ReasonCode.NOT_SERVED,
            f"no worker serves stage {stage.name!r}: it has neither run nor python",
            "give the stage a handler in dibs.toml, or work it by hand with dibs claim",
        ),
    )
