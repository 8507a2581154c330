"""The read model of all frontends, so that they cannot disagree.

`Board` lists issues, stages, leases and the runs of an issue. `Explaining` gives every reason why
no worker picks an issue, as text and as code, each with a remedy.
"""

import sys
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.card import CardState
from dibs.core.eligibility import (
    MEANINGS,
    Attempts,
    Pause,
    Reason,
    ReasonCode,
    Surroundings,
    count_attempts,
    judge_claimable,
    judge_picture,
    paused_by,
    reasons_with,
    strangers_pulls,
)
from dibs.core.fold import FoldRules, read_marks
from dibs.core.ids import HolderId, IssueRef, RunId, ServerTime, StageName
from dibs.core.issue import Issue, Snapshot
from dibs.core.lease import Record, Standing
from dibs.core.named import is_named
from dibs.core.pipeline import ApprovalGate, NoHandler, Stage
from dibs.ports.leases import Guarantee
from dibs.ports.tracker import IssueQuery
from dibs.services.backlog import with_ourselves
from dibs.services.reading import read_each, walk, walk_snapshots

if TYPE_CHECKING:
    from dibs.core.approval import AtGate
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
    RESTING = "resting"
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
    note: str = ""
    """In a survey: the note of a parking, the words of a pause, or the reason of a rest."""
    attempt: int = 0
    """The number of the attempt that runs, from 1 on; 0 if none runs, or it was not counted."""


class StageSummary(Struct, frozen=True):
    stage: Stage
    issues: int
    """Number of open issues; in a final stage, of all issues, closed as well."""
    in_flight: int
    apart: Mapping[RowState, int] = {}
    """In a survey: issues that no worker takes for now, by the reason, and none in flight."""

    @property
    def waiting(self) -> int:
        """The issues that are neither in flight nor `apart`: they wait for a worker."""
        return max(0, self.issues - self.in_flight - sum(self.apart.values()))


class Overview(Struct, frozen=True):
    now: ServerTime
    stages: tuple[StageSummary, ...]
    in_flight: tuple[Record, ...]
    pauses: tuple[Pause, ...]
    paused: int
    parked: int
    claimed: int


class Survey(Struct, frozen=True):
    """The whole board: counts, the issues in flight, the issues for people, the next in line."""

    overview: Overview
    running: tuple[Row, ...]
    """In flight, the longest first."""
    people: tuple[Row, ...]
    """What waits for a person: issues to approve, then parked, then paused; the oldest first."""
    coming: tuple[Row, ...]
    """The first of `Board.offers`."""


FOR_PEOPLE = (RowState.GATED, RowState.PARKED, RowState.PAUSED)
"""The states that only a person ends, in the order of a survey."""
_APART = (*FOR_PEOPLE, RowState.BLOCKED, RowState.THEIRS, RowState.RESTING)
_CLAIMABLE = (RowState.READY, RowState.EXPIRED)
"""What the labels allow to claim: the comments may forbid it."""
_NEXT_IN_LINE = 5
_IN_LINE = 1000
"""So many issues of each stage does a survey look at for one that rests, if it lists by label."""
_FRESH = timedelta(seconds=5)
"""An issue that changed so shortly before it was read may change again within the same second."""
_ONLY_IN_COMMENTS = {
    ReasonCode.GATE_SHUT: RowState.GATED,
    ReasonCode.TEXT_CHANGED: RowState.GATED,
    ReasonCode.BACKING_OFF: RowState.RESTING,
    ReasonCode.FOREIGN_CLAIM: RowState.THEIRS,
}
"""Reasons that no label shows: an edit after approval or release, a failure, a tool's marker."""


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
        self._surveyed: Mapping[IssueRef, Snapshot] = {}
        """What the last survey read."""

    def overview(self) -> Overview:
        """Count issues by stage and list the live leases. The cost grows with the live leases,
        not with the backlog.
        """
        return self._overview(self._counted(), self._held(), self._now())

    def _counted(self) -> dict[str, int]:
        """The number of open issues with each label of the pipeline that is no final stage's."""
        marks = self._pipeline.labels
        labels = [stage.label for stage in self._pipeline.stages if not stage.final]
        return dict(self._tracker.tally((*labels, marks.paused, marks.parked, marks.claimed)))

    def _now(self) -> ServerTime:
        return self._tracker.find(IssueQuery(limit=1)).now

    def _overview(
        self, counts: Mapping[str, int], live: tuple[Record, ...], now: ServerTime
    ) -> Overview:
        marks = self._pipeline.labels
        final = [stage.label for stage in self._pipeline.stages if stage.final]
        counts = {**counts, **self._tracker.tally(final, closed_too=True)}
        stages: list[StageSummary] = []
        for stage in self._pipeline.stages:
            held = sum(record.lease.stage == stage.name for record in live)
            # Where `claimed` takes the place of the stage label, the count misses held issues.
            hidden = held if stage.gives_way and self._pipeline.swaps_labels else 0
            stages.append(StageSummary(stage, counts.get(stage.label, 0) + hidden, held))
        return Overview(
            now=now,
            stages=tuple(stages),
            in_flight=live,
            pauses=self._pauses.pauses(),
            paused=counts.get(marks.paused, 0),
            parked=counts.get(marks.parked, 0),
            claimed=counts.get(marks.claimed, 0),
        )

    def survey(self) -> Survey:
        """Read the whole board.

        Where requests cost, one list of all open issues gives the counts, and comments are read of
        the issues that changed since the last survey. Elsewhere issues are listed by label, so that
        the cost grows with what is in flight or waits for people, and little with the backlog.
        """
        listed = self._list_all() if self._tracker.traits.shortlists else self._list_by_label()
        held = {record.lease.issue: record for record in listed.live}
        rows: list[Row] = []
        apart: dict[StageName, Counter[RowState]] = {}
        hidden: Counter[StageName] = Counter()  # `claimed` stands in the place of the stage label
        for issue in listed.issues.values():
            if issue.ref not in held:
                rows.append(row := self._row_apart(issue, listed))
                if row.stage is None:
                    continue
                hidden[row.stage.name] += row.stage.label not in issue.labels
                if row.state in _APART:
                    apart.setdefault(row.stage.name, Counter())[row.state] += 1
        people = [row for row in rows if row.state in FOR_PEOPLE]
        people.sort(key=lambda row: (FOR_PEOPLE.index(row.state), row.issue.created_at))
        running: list[Row] = []
        stages = {stage.name: stage for stage in self._pipeline.stages}
        for ref, record in sorted(held.items(), key=lambda item: item[1].lease.granted_at):
            if (snapshot := listed.snapshots.get(ref)) is not None:
                row = self._row(snapshot.issue, record)
                stage, tries = stages.get(record.lease.stage), self._leases.standing(snapshot).tries
                attempt = count_attempts(tries, stage).failed + 1 if stage is not None else 0
                state = RowState.CLAIMED
                running.append(replace(row, stage=stage, state=state, attempt=attempt))
        overview = self._overview(listed.counts, listed.live, listed.now)
        counted = (
            replace(
                one, issues=one.issues + hidden[one.stage.name], apart=apart.get(one.stage.name, {})
            )
            for one in overview.stages
        )
        known = self._candidates(rows) if self._tracker.traits.shortlists else None
        coming = islice(self.offers(known=known), _NEXT_IN_LINE)
        return Survey(
            replace(overview, stages=tuple(counted)), tuple(running), tuple(people), tuple(coming)
        )

    def _list_by_label(self) -> "_Gathered":
        """The issues that no worker takes, and the first of each stage: for cheap trackers."""
        pipeline, marks = self._pipeline, self._pipeline.labels
        shelved = (marks.parked, marks.paused, *sorted(pipeline.blockers))
        queries = [IssueQuery((label,), limit=sys.maxsize) for label in shelved]
        queries.append(IssueQuery((marks.claimed,), shelved, limit=sys.maxsize))
        for stage in (stage for stage in pipeline.stages if not stage.final):
            if isinstance(stage.gate, ApprovalGate):
                without = (stage.gate.label, *shelved)
                queries.append(IssueQuery((stage.label,), without, limit=sys.maxsize))
            without = (marks.claimed, *shelved)
            queries.append(IssueQuery(stage.entry_labels, without, limit=_IN_LINE))
        found = (issue for query in queries for issue in walk(self._tracker, query))
        issues = {issue.ref: issue for issue in found}
        live, now = self._held(), self._now()
        held = {record.lease.issue for record in live}
        return _Gathered(now, issues, self._counted(), live, self._read(issues, held, now))

    def _list_all(self) -> "_Gathered":
        """All open issues by one list, page by page: an unchanged page may cost nothing."""
        query, claimed = IssueQuery(limit=_IN_LINE), self._pipeline.labels.claimed
        issues: dict[IssueRef, Issue] = {}
        while True:
            found = self._tracker.find(query)
            issues |= {issue.ref: issue for issue in found.issues}
            if not found.more or not found.issues:
                break
            query = replace(query, after=found.issues[-1].ref)
        counts = Counter(label for issue in issues.values() for label in issue.labels)
        if Guarantee.ATOMIC in self._leases.guarantees:
            live = self._held()
            held = {record.lease.issue for record in live}
            snapshots = self._read(issues, held, found.now)
        else:  # the cards of the claimed issues name the holders
            held = {ref for ref, issue in issues.items() if claimed in issue.labels}
            snapshots = self._read(issues, held, found.now)
            standings = (self._leases.standing(snapshots[ref]) for ref in held & set(snapshots))
            live = tuple(one.live for one in standings if one.live is not None)
        return _Gathered(found.now, issues, counts, live, snapshots)

    def _read(
        self, issues: Mapping[IssueRef, Issue], held: Set[IssueRef], now: ServerTime
    ) -> dict[IssueRef, Snapshot]:
        """Snapshots of the held issues, and of issues whose comments may explain a rest or a pause.

        An issue which is not held and has not changed since the last survey is not read again.
        """
        unchanged = {
            ref: replace(known, now=now)
            for ref, issue in issues.items()
            if ref not in held
            and (known := self._surveyed.get(ref)) is not None
            and (known.issue.updated_at, known.issue.labels, known.issue.comment_count)
            == (issue.updated_at, issue.labels, issue.comment_count)
        }
        telling = {ref for ref, issue in issues.items() if _tells(issue, self._row(issue, None))}
        missing = [ref for ref in {*held, *telling} if ref not in unchanged]
        snapshots = {one.issue.ref: one for one in read_each(self._tracker, missing)} | unchanged
        self._surveyed = {
            ref: snapshot
            for ref, snapshot in snapshots.items()
            if ref in issues and now - snapshot.issue.updated_at > _FRESH
        }
        return snapshots

    def _candidates(self, rows: Sequence[Row]) -> list[Snapshot]:
        """Snapshots of the issues that may be next in line: a list has not all of their fields."""
        urgent = {label: place for place, label in enumerate(self._pipeline.priorities)}
        waiting = [row for row in rows if row.state in (RowState.READY, RowState.EXPIRED)]

        def place(row: Row) -> tuple[int, ServerTime]:
            places = [urgent[label] for label in row.issue.labels if label in urgent]
            return min(places, default=len(urgent)), row.issue.created_at

        first = sorted(waiting, key=place)[: 2 * _NEXT_IN_LINE]
        return list(read_each(self._tracker, (row.issue.ref for row in first)))

    def _row_apart(self, issue: Issue, listed: "_Gathered") -> Row:
        """The row of an issue that is not in flight: with its rest, and with words for people."""
        row, snapshot = self._row(issue, None), listed.snapshots.get(issue.ref)
        if snapshot is None or not _tells(issue, row):
            return row
        standing = self._leases.standing(snapshot)
        if row.state is RowState.PARKED:
            ending = standing.record.ending if standing.record else None
            return replace(row, note=ending.note if ending else "")
        if row.state is RowState.PAUSED:
            pause = paused_by(snapshot, self._pipeline)
            note = f"{pause.by or 'somebody'}: {pause.reason}" if pause is not None else ""
            return replace(row, note=note)
        return self._row_of(snapshot, standing, None)

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
            standings = (
                (snapshot, self._leases.standing(snapshot))
                for snapshot in walk_snapshots(self._tracker, query)
            )
            return tuple(self._row_of(one, standing, standing.live) for one, standing in standings)
        held = {record.lease.issue: record for record in self._held()}
        if self._tracker.traits.shortlists:
            snapshots = walk_snapshots(self._tracker, query)
            return tuple(self._listed(one.issue, held.get(one.issue.ref), one) for one in snapshots)
        issues = walk(self._tracker, query)
        return tuple(self._listed(issue, held.get(issue.ref), None) for issue in issues)

    def _listed(self, issue: Issue, record: Record | None, snapshot: Snapshot | None) -> Row:
        """The row of a listed issue; reads it, unless given, if its comments may tell more."""
        row = self._row(issue, record)
        if record is not None or row.state not in _CLAIMABLE or not _tells(issue, row):
            return row
        found = (snapshot,) if snapshot else read_each(self._tracker, (issue.ref,))
        told = (self._row_of(one, self._leases.standing(one), None) for one in found)
        return next(iter(told), row)

    def ready(self, *, stage: StageName | None = None, limit: int = 100) -> tuple[Row, ...]:
        """The first `limit` of `offers`."""
        return tuple(islice(self.offers(stage=stage), limit))

    def offers(
        self,
        *,
        stage: StageName | None = None,
        to_claim: bool = False,
        known: Sequence[Snapshot] | None = None,
    ) -> Iterator[Row]:
        """Issues which a claim would get now by every rule, the most urgent first, then the oldest.

        An issue whose holder vanished is one of them, with or without a sweep since. An ending that
        is not painted yet is no obstacle: a claim paints it first. Pages are read as needed.

        `to_claim`: also the issues without attempts left which are not parked yet, as `PARKED`. The
        tracker then leaves out the issues that it knows to rest, and learns of others.
        `known`: look at these only, which the caller has just read.
        """
        import heapq  # no other command needs it

        pipeline, marks, claiming = self._pipeline, self._pipeline.labels, self._claiming()
        wanted = [pipeline.stage(stage)] if stage else pipeline.stages
        stages = [one for one in wanted if not one.final and claiming.has_room(one)]
        if claiming.closed():
            return
        around = claiming.surroundings()
        paused_repos = {pause.repo for pause in around.pauses}
        by_index = to_claim and claiming.rests.hide_held
        atomic = Guarantee.ATOMIC in self._leases.guarantees and not by_index
        passed = {record.lease.issue for record in self._held()} if atomic else set()
        without = (marks.paused, marks.parked, *sorted(pipeline.blockers))
        wanted_by = {one.entry_labels: without for one in stages}
        if by_index:  # claimed issues apart: none of them is read while its lease runs
            wanted_by = dict.fromkeys(wanted_by, (*without, marks.claimed))
            wanted_by |= {(marks.claimed, *one.entry_labels): without for one in stages}
        wanted_by |= {pipeline.held_labels(one): without for one in stages if one.gives_way}
        awake_by = claiming.rests.rules if to_claim else ""
        for urgent in (*((label,) for label in pipeline.priorities), ()):
            found = [
                self._snapshots(
                    IssueQuery((*all_of, *urgent), none_of, sys.maxsize, awake_by=awake_by), passed
                )
                if known is None
                else [one for one in known if one.issue.labels.issuperset((*all_of, *urgent))]
                for all_of, none_of in wanted_by.items()
            ]
            for snapshot in heapq.merge(*found, key=lambda found: found.issue.created_at):
                ref = snapshot.issue.ref
                if ref in passed or ref.repo in paused_repos:
                    continue
                passed.add(ref)
                verdict = claiming.judge(snapshot, around=around)
                if verdict.stage not in stages or _waits_for_a_person(verdict.stage):
                    continue
                codes = {reason.code for reason in verdict.reasons}
                if codes <= {ReasonCode.UNPAINTED}:
                    yield Row(snapshot.issue, verdict.stage, RowState.READY)
                elif to_claim and codes == {ReasonCode.ATTEMPTS_SPENT}:
                    yield Row(snapshot.issue, verdict.stage, RowState.PARKED)
                elif to_claim:
                    claiming.rests.note(snapshot.issue, verdict.reasons)

    def _snapshots(self, query: IssueQuery, passed: Container[IssueRef]) -> Iterator[Snapshot]:
        """Snapshots of the issues of the query, without those that the labels alone rule out."""
        if self._tracker.traits.shortlists:
            yield from walk_snapshots(self._tracker, query)
            return
        found = walk(self._tracker, query, first=_NEXT_IN_LINE)
        refs = (issue.ref for issue in found if issue.ref not in passed)
        yield from read_each(self._tracker, refs)

    def _row(self, issue: Issue, record: Record | None) -> Row:
        worked = record.lease.stage if record is not None else None
        pipeline = with_ourselves(self._pipeline, self._tracker, issue)
        verdict = judge_picture(issue, pipeline, worked)
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
        archives = self._tracker.traits.long_thread > 0
        snapshot = self._tracker.read_whole(ref) if archives else self._tracker.read(ref)
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
        return snapshot, self._row_of(snapshot, standing, standing.live), standing

    def gate(self, snapshot: Snapshot, standing: Standing, row: Row) -> "AtGate | None":
        """What stands at the gate of the issue's stage; None without a gate or in doubt."""
        if row.stage is None or not isinstance(row.stage.gate, ApprovalGate):
            return None
        from dibs.core.approval import at_gate  # few commands need it

        tries = standing.tries
        return at_gate(snapshot, tries, row.stage, self._pipeline) if snapshot.complete else None

    def _row_of(self, snapshot: Snapshot, standing: Standing, record: Record | None) -> Row:
        """The row of an issue read with comments, which may show a reason that no label shows."""
        row = self._row(snapshot.issue, record)
        if row.stage is None or row.state not in _CLAIMABLE:
            return row
        pipeline = with_ourselves(self._pipeline, self._tracker, snapshot.issue)
        verdict = judge_claimable(snapshot, standing.tries, pipeline, Surroundings())
        why = next((reason for reason in verdict.reasons if reason.code in _ONLY_IN_COMMENTS), None)
        return replace(row, state=_ONLY_IN_COMMENTS[why.code], note=why.text) if why else row


class _Gathered(Struct, frozen=True):
    """The issues of a survey, as they were listed and read."""

    now: ServerTime
    issues: Mapping[IssueRef, Issue]
    counts: Mapping[str, int]
    """The number of open issues by label."""
    live: tuple[Record, ...]
    snapshots: Mapping[IssueRef, Snapshot]


def _tells(issue: Issue, row: Row) -> bool:
    """Whether a read of an issue may tell more than its labels: a rest, a note, a pause, an edit.

    The author of an issue without comments may have changed its text.
    """
    if row.stage is None or row.stage.final or (issue.by_writer and not issue.comment_count):
        return False
    return row.state not in (RowState.GATED, RowState.BLOCKED, RowState.THEIRS, RowState.WAITING)


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
    strangers_pulls: tuple[str, ...] = ()
    """Open pull requests that keep nobody off, in words."""

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
        strange = strangers_pulls(snapshot.issue, self._pipeline.people)
        return Explanation(snapshot, stage, standing, tuple(reasons), attempts, strange)

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
