"""The read model of all frontends, so that they cannot disagree.

`Board` lists issues, stages, leases and the runs of an issue. `Explaining` gives every reason why
no worker picks an issue, as text and as code, each with a remedy.
"""

import sys
from collections.abc import Callable, Container, Iterator
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from dibs.core.card import CardState
from dibs.core.eligibility import (
    MEANINGS,
    Attempts,
    Pause,
    Reason,
    ReasonCode,
    count_attempts,
    judge_picture,
    reasons_with,
)
from dibs.core.fold import FoldRules, read_marks
from dibs.core.ids import HolderId, IssueRef, RunId, ServerTime, StageName
from dibs.core.issue import Issue, Snapshot
from dibs.core.lease import Record, Standing
from dibs.core.named import is_named
from dibs.core.pipeline import NoHandler, Stage
from dibs.ports.leases import Guarantee
from dibs.ports.tracker import IssueQuery
from dibs.services.backlog import with_ourselves
from dibs.services.reading import read_each, walk, walk_snapshots

if TYPE_CHECKING:
    from dibs.core.eligibility import Verdict
    from dibs.ports.system import Present
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
    """Number of open issues; in a final stage, of all issues, closed as well."""
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
    """A lease in an issue's history."""

    run: RunId
    holder: HolderId
    stage: StageName
    started_at: ServerTime
    ended_at: ServerTime | None
    outcome: str
    beats: int
    note: str = ""


class Board:
    def __init__(self, backlog: "Backlog", claiming: "Callable[[], Claiming]") -> None:
        self._tracker = backlog.tracker
        self._leases = backlog.leases
        self._pipeline = backlog.pipeline
        self._pauses = backlog.pauses
        self._claiming = claiming

    def overview(self) -> Overview:
        """Count issues by stage and list the live leases. The cost grows with the live leases,
        not with the backlog.
        """
        marks = self._pipeline.labels
        final = [stage.label for stage in self._pipeline.stages if stage.final]
        labels = [stage.label for stage in self._pipeline.stages if not stage.final]
        counts = dict(self._tracker.tally((*labels, marks.paused, marks.parked, marks.claimed)))
        counts |= self._tracker.tally(final, closed_too=True)
        live = self._held()
        stages: list[StageSummary] = []
        for stage in self._pipeline.stages:
            held = sum(record.lease.stage == stage.name for record in live)
            # Where `claimed` takes the place of the stage label, the count misses held issues.
            hidden = held if stage.gives_way and self._pipeline.swaps_labels else 0
            stages.append(StageSummary(stage, counts[stage.label] + hidden, held))
        return Overview(
            now=self._tracker.find(IssueQuery(limit=1)).now,
            stages=tuple(stages),
            in_flight=live,
            pauses=self._pauses.pauses(),
            paused=counts[marks.paused],
            parked=counts[marks.parked],
            claimed=counts[marks.claimed],
        )

    def _held(self) -> tuple[Record, ...]:
        """Live leases on issues. Leases on names are not on the board."""
        return tuple(held for held in self._leases.live() if not is_named(held.lease.issue))

    def rows(
        self, *, stage: StageName | None = None, closed_too: bool = False, limit: int = 100
    ) -> tuple[Row, ...]:
        """List issues, the oldest first."""
        labels = (self._pipeline.stage(stage).label,) if stage else ()
        query = IssueQuery(labels, limit=limit, closed_too=closed_too)
        if self._tracker.traits.shortlists and Guarantee.ATOMIC not in self._leases.guarantees:
            # The issues come with their cards, which name the holders: no further request.
            return tuple(
                self._row(snapshot.issue, self._leases.standing(snapshot).live)
                for snapshot in walk_snapshots(self._tracker, query)
            )
        held = {record.lease.issue: record for record in self._held()}
        issues = (
            walk(self._tracker, query)
            if not self._tracker.traits.shortlists
            # A list has not all fields that may keep a worker off.
            else (snapshot.issue for snapshot in walk_snapshots(self._tracker, query))
        )
        return tuple(self._row(issue, held.get(issue.ref)) for issue in issues)

    def ready(self, *, stage: StageName | None = None, limit: int = 100) -> tuple[Row, ...]:
        """The first `limit` of `offers`."""
        return tuple(islice(self.offers(stage=stage), limit))

    def offers(self, *, stage: StageName | None = None, spent: bool = False) -> Iterator[Row]:
        """Issues which a claim would get now by every rule, the most urgent first, then the oldest.

        An issue whose holder vanished is one of them, with or without a sweep since. An ending that
        is not painted yet is no obstacle: a claim paints it first. Pages are read as needed.

        `spent`: also the issues without attempts left which are not parked yet, as `PARKED`.
        """
        import heapq  # no other command needs it

        pipeline, marks, claiming = self._pipeline, self._pipeline.labels, self._claiming()
        wanted = [pipeline.stage(stage)] if stage else pipeline.stages
        stages = [one for one in wanted if not one.final and claiming.has_room(one)]
        if claiming.closed():
            return
        paused_repos = {pause.repo for pause in self._pauses.pauses()}
        atomic = Guarantee.ATOMIC in self._leases.guarantees
        passed = {record.lease.issue for record in self._held()} if atomic else set()
        without = (marks.paused, marks.parked, *sorted(pipeline.blockers))
        for urgent in (*((label,) for label in pipeline.priorities), ()):
            labels = [one.entry_labels for one in stages]
            labels += [pipeline.held_labels(one) for one in stages if one.gives_way]
            found = [
                self._snapshots(IssueQuery((*all_of, *urgent), without, sys.maxsize), passed)
                for all_of in dict.fromkeys(labels)
            ]
            for snapshot in heapq.merge(*found, key=lambda found: found.issue.created_at):
                ref = snapshot.issue.ref
                if ref in passed or ref.repo in paused_repos:
                    continue
                passed.add(ref)
                verdict = claiming.judge(snapshot)
                if verdict.stage not in stages or _waits_for_a_person(verdict.stage):
                    continue
                codes = {reason.code for reason in verdict.reasons}
                if codes <= {ReasonCode.UNPAINTED}:
                    yield Row(snapshot.issue, verdict.stage, RowState.READY)
                elif spent and codes == {ReasonCode.ATTEMPTS_SPENT}:
                    yield Row(snapshot.issue, verdict.stage, RowState.PARKED)

    def _snapshots(self, query: IssueQuery, passed: Container[IssueRef]) -> Iterator[Snapshot]:
        """Snapshots of the issues of the query, without those that the labels alone rule out."""
        if self._tracker.traits.shortlists:
            yield from walk_snapshots(self._tracker, query)
            return
        issues = (issue for issue in walk(self._tracker, query) if issue.ref not in passed)
        yield from read_each(self._tracker, (issue.ref for issue in issues))

    def _row(self, issue: Issue, record: Record | None) -> Row:
        verdict = judge_picture(issue, with_ourselves(self._pipeline, self._tracker, issue))
        codes, stage = {reason.code for reason in verdict.reasons}, verdict.stage
        state = RowState.READY
        if (shown := next((shown for code, shown in _STATES if code in codes), None)) is not None:
            state = shown
        elif record is not None:
            state = RowState.CLAIMED
        elif codes & _PERSONS_WORK:
            state = RowState.THEIRS
        elif self._pipeline.labels.claimed in issue.labels:
            state = RowState.EXPIRED
        elif _waits_for_a_person(stage):
            state = RowState.WAITING
        return Row(issue, stage, state, record)

    def history(self, ref: IssueRef) -> tuple[RunRow, ...]:
        """All leases and bids on the issue's cards, the oldest first."""
        snapshot = self._tracker.read(ref)
        tries = {entry.run: entry for entry in self._leases.standing(snapshot).tries}
        marks = read_marks(snapshot.comments, FoldRules(max_ttl=timedelta.max))
        rows: list[RunRow] = []
        for posted in marks.cards:
            card, attempt = posted.card, tries.get(posted.card.run)
            if attempt is None:
                outcome = "bid" if card.state is CardState.BID else card.state.value
            elif attempt.ended_at is None:
                outcome = "running"
            else:
                outcome = attempt.outcome.value if attempt.outcome else "vanished"
            row = RunRow(
                run=card.run,
                holder=card.holder,
                stage=card.stage,
                started_at=posted.created_at,
                ended_at=attempt.ended_at if attempt else posted.updated_at,
                outcome=outcome,
                beats=card.beats,
                note=card.ending.note if card.ending else "",
            )
            rows.append(row)
        return tuple(rows)

    def show(self, ref: IssueRef) -> tuple[Snapshot, Row, Standing]:
        """An issue with the comments, the row on the board and the standing."""
        snapshot = self._tracker.read(ref)
        standing = self._leases.standing(snapshot)
        return snapshot, self._row(snapshot.issue, standing.live), standing


def _waits_for_a_person(stage: Stage | None) -> bool:
    """Whether the stage has no handler, and is not one that agents work by hand."""
    if stage is None or not isinstance(stage.handler, NoHandler):
        return False
    return not (stage.working_label or stage.gives_way or stage.passes_by_itself)


_STATES = tuple(
    (code, RowState(meaning.state))
    for code, meaning in MEANINGS.items()
    if meaning.state and meaning.state != RowState.THEIRS
)


_PERSONS_WORK = reasons_with(lambda meaning: meaning.state == RowState.THEIRS)
"""These reasons keep workers from starting and stop no running work: a live lease is shown."""


class Explanation(Struct, frozen=True):
    snapshot: Snapshot
    stage: Stage | None
    standing: Standing
    reasons: tuple[Reason, ...]
    attempts: Attempts

    @property
    def claimable(self) -> bool:
        return not self.reasons


class Explaining:
    def __init__(
        self,
        backlog: "Backlog",
        claiming: "Claiming",
        bundling: "Bundling",
        present: "Callable[[], Present]",
    ) -> None:
        self._tracker = backlog.tracker
        self._leases = backlog.leases
        self._pipeline = backlog.pipeline
        self._claiming = claiming
        self._bundling = bundling
        self._present = present

    def explain(self, issue: IssueRef) -> Explanation:
        """Every reason why no worker would claim the issue now."""
        snapshot = self._tracker.read(issue)
        standing = self._leases.standing(snapshot)
        stages = self._pipeline.stages_of(snapshot.issue.labels)
        in_flight: int | None = None
        if len(stages) == 1 and (wip := stages[0].wip) is not None:
            in_flight = len(self._leases.live(stages[0].name, limit=wip + 1))
        verdict = self._claiming.judge(snapshot, in_flight=in_flight)
        stage, reasons, attempts = verdict.stage, list(verdict.reasons), Attempts()
        if stage is not None:
            attempts = count_attempts(standing.tries, stage)
            if verdict.eligible:
                reasons += self._bundling.explain(snapshot, stage)
            if (reason := self._not_served(stage, issue, verdict)) is not None:
                reasons.append(reason)
        return Explanation(snapshot, stage, standing, tuple(reasons), attempts)

    def _not_served(self, stage: Stage, issue: IssueRef, verdict: "Verdict") -> Reason | None:
        """The reason if no worker has work in the stage, by the settings and the running workers.

        Workers of other machines with handlers of their own are not known here.
        """
        if stage.final or (stage.passes_by_itself and not verdict.eligible):
            return None  # a shut gate or a holder is the reason, not that no worker runs
        if not stage.served and stage.name not in self._present().handled:
            return Reason(
                ReasonCode.NOT_SERVED,
                f"no worker serves stage {stage.name!r}: it has neither run nor python",
                "give the stage a handler in dibs.toml, or work it by hand with dibs claim",
            )
        # A worker passes open gates beside its work, and without any handler there is none.
        workers = any(one.served and not one.passes_by_itself for one in self._pipeline.stages)
        if not stage.passes_by_itself or workers or stage.name in self._present().served:
            return None
        return Reason(
            ReasonCode.NOT_SERVED,
            f"it may leave stage {stage.name!r}, and no worker runs that would move it on",
            f"dibs approve {issue.typed} moves it on; so does dibs work --stage {stage.name}",
        )
