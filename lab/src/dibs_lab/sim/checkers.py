"""The rules for a run, checked with its history alone.

The checkers do not ask the code under test: they compute who held an issue from the times of
requests and from the journal, and decisions from what was written and when it arrived. A checker
that shared the fold with the services would share its errors.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.card import Card, CardState, RevokeMark, parse_mark
from dibs.core.events import Event, EventKind, Step
from dibs.core.fold import FoldRules, standing_on_comments
from dibs.core.ids import Fence, IssueRef, RunId, ServerTime, StageName
from dibs.core.issue import Comment, Snapshot
from dibs.core.lease import Outcome, Released
from dibs_lab.sim.fibres import microseconds
from dibs_lab.sim.hands import STRANGER
from dibs_lab.sim.history import (
    Acts,
    Advances,
    Called,
    Effect,
    Fault,
    Holds,
    LetsGo,
    Meddled,
    Note,
)
from dibs_lab.sim.runs import Run
from dibs_lab.sim.world import Scenario

_FOR_EVER = 1 << 62


class Hold(Struct, frozen=True):
    """A time in which a run acted as the holder of an issue."""

    issue: IssueRef
    run: RunId
    fence: Fence
    process: str
    since_us: int
    until_us: int


class Violation(Struct, frozen=True):
    rule: str
    at_us: int
    issue: IssueRef | None
    text: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.at_us / 1e6:.3f} s: {self.text}"


# Who held what, and when


def holds(run: Run) -> list[Hold]:
    """Every hold of the run, by its start."""
    book = _Book(microseconds(run.scenario.terms.trust.total_seconds()))
    for note in run.notes:
        book.take(note)
    return book.closed(microseconds(run.passed_s))


class _Book:
    """Follows each fibre: when it sent its request, and which run it works for."""

    def __init__(self, trust_us: int) -> None:
        self._trust_us = trust_us
        self._asked_us: dict[int, int] = {}
        self._works_for: dict[int, RunId] = {}
        self._open: dict[RunId, Hold] = {}
        self._closed: list[Hold] = []

    def take(self, note: Note) -> None:
        match note.what:
            case Step.CLAIM_STARTED | Step.RENEW_STARTED:
                self._asked_us[note.fibre] = note.at_us
            case Step.FINISH_STARTED:
                self._close(self._works_for.get(note.fibre), note.at_us)
            case Event() as event if event.run is not None:
                self._event(note, event, event.run)
            case Fault("killed"):
                for held in [one for one in self._open.values() if one.process == note.process]:
                    self._close(held.run, note.at_us)
            case Holds(issue, run, fence):
                self._open[run] = Hold(issue, run, fence, note.process, note.at_us, _FOR_EVER)
            case LetsGo(run):
                self._close(run, note.at_us)
            case _:
                pass

    def _event(self, note: Note, event: Event, run: RunId) -> None:
        match event.kind:
            case EventKind.CLAIMED:
                assert event.issue is not None and event.fence is not None, "a grant has both"
                until_us = self._asked_us[note.fibre] + self._trust_us
                self._works_for[note.fibre] = run
                hold = Hold(event.issue, run, event.fence, note.process, note.at_us, until_us)
                self._open[run] = hold
            case EventKind.HANDLER_STARTED:
                self._works_for[note.fibre] = run
            case EventKind.RENEWED if run in self._open:
                until_us = self._asked_us[note.fibre] + self._trust_us
                self._open[run] = replace(self._open[run], until_us=until_us)
            case EventKind.LEASE_LOST:
                self._close(run, note.at_us)
            case _:
                pass

    def _close(self, run: RunId | None, at_us: int) -> None:
        if run is not None and (hold := self._open.pop(run, None)) is not None:
            self._closed.append(replace(hold, until_us=min(hold.until_us, at_us)))

    def closed(self, end_us: int) -> list[Hold]:
        for run in list(self._open):
            self._close(run, end_us)
        kept = [hold for hold in self._closed if hold.until_us > hold.since_us]
        return sorted(kept, key=lambda hold: (hold.since_us, hold.fence))


class Evidence(Struct, frozen=True):
    """A run, and what follows from its history; computed once for all rules."""

    run: Run
    holds: list[Hold]
    decisions: Mapping[tuple[IssueRef, str], dict[RunId, int]]
    """For each issue and stage: which runs finished it, and when."""

    @classmethod
    def of(cls, run: Run) -> "Evidence":
        return cls(run, holds(run), _decisions(run))


def _by_issue(held: Iterable[Hold]) -> Mapping[IssueRef, list[Hold]]:
    found: dict[IssueRef, list[Hold]] = defaultdict(list)
    for hold in held:
        found[hold.issue].append(hold)
    return found


# The rules


def one_holder(evidence: Evidence) -> Iterator[Violation]:
    """At most one trusted lease per issue at any instant."""
    for issue, held in _by_issue(evidence.holds).items():
        latest = held[0]
        for hold in held[1:]:
            if hold.since_us < latest.until_us:
                text = f"{hold.process} ({hold.run}) and {latest.process} ({latest.run}) both hold"
                yield Violation("one holder", hold.since_us, issue, f"{issue}: {text}")
            latest = max(latest, hold, key=lambda one: one.until_us)


def acts_within_trust(evidence: Evidence) -> Iterator[Violation]:
    """No holder is told that it may continue when another run may already hold the issue."""
    times: dict[RunId, list[Hold]] = defaultdict(list)
    for hold in evidence.holds:
        times[hold.run].append(hold)
    for note in evidence.run.notes:
        if isinstance(note.what, Acts):
            held = times[note.what.run]
            if not any(one.since_us <= note.at_us <= one.until_us for one in held):
                text = f"{note.process} ({note.what.run}) acted after its trust had ended"
                yield Violation("acts within trust", note.at_us, None, text)


def fences_rise(evidence: Evidence) -> Iterator[Violation]:
    """Each hold has a higher fence than the one before; no effect with a lower one is accepted."""
    for issue, held in _by_issue(evidence.holds).items():
        for before, after in pairwise(held):
            if after.fence <= before.fence:
                text = f"{issue}: fence {after.fence} was granted after {before.fence}"
                yield Violation("fences rise", after.since_us, issue, text)
    highest: dict[IssueRef, Fence] = {}
    for note in evidence.run.notes:
        if isinstance(note.what, Effect) and note.what.accepted:
            issue, fence = note.what.issue, note.what.fence
            if fence < highest.get(issue, fence):
                text = f"{issue}: an effect with fence {fence} came after {highest[issue]}"
                yield Violation("fences rise", note.at_us, issue, text)
            highest[issue] = fence


def advanced_once(evidence: Evidence) -> Iterator[Violation]:
    """A finished stage is not finished again, unless somebody put the issue back into it."""
    for (issue, stage), decided in evidence.decisions.items():
        allowed = 1 + _put_back(evidence.run, issue, up_to=stage)
        if len(decided) > allowed:
            first, *_, last = sorted(decided, key=lambda name: decided[name])
            text = f"{issue}: {len(decided)} runs finished {stage}, first {first}, last {last}"
            yield Violation("advanced once", decided[last], issue, text)


def _decisions(run: Run) -> Mapping[tuple[IssueRef, str], dict[RunId, int]]:
    """Which runs ended with the issue moved on: their ending was in time, or was acted upon.

    Where one holder is promised, an ending that was written in time counts, whatever its writer
    learned later: an undone ending is one of the flaws to find. Where two may hold at once, the one
    that was not in force also writes in time; if it was told so, and nobody acted on its ending, it
    decided nothing.
    """
    found = _written_or_believed(run)
    if run.scenario.exclusive:
        return found
    void = _runs_with(run, EventKind.FINISH_REFUSED) - _runs_with(
        run, EventKind.ADVANCED, EventKind.ROLLED_FORWARD
    )
    return {
        stage: kept
        for stage, decided in found.items()
        if (kept := {name: at_us for name, at_us in decided.items() if name not in void})
    }


def _runs_with(run: Run, *kinds: EventKind) -> set[RunId]:
    events = (note.what for note in run.notes if isinstance(note.what, Event))
    return {event.run for event in events if event.kind in kinds and event.run is not None}


def _written_or_believed(run: Run) -> Mapping[tuple[IssueRef, str], dict[RunId, int]]:
    found: dict[tuple[IssueRef, str], dict[RunId, int]] = defaultdict(dict)
    forced: dict[RunId, ServerTime] = {}
    for note in run.notes:
        match note.what:
            case Event(kind=EventKind.ADVANCED) as event:
                assert event.issue is not None and event.run is not None, "an ending has both"
                found[event.issue, str(event.stage)].setdefault(event.run, note.at_us)
            case Called("edit_comment", issue, (_, str(body)), Comment() as edited):
                card = parse_mark(body)
                if isinstance(card, Card) and _advances_in_time(card, edited, forced):
                    assert issue is not None, "a comment is on an issue"
                    found[issue, card.stage].setdefault(card.run, note.at_us)
            case Called("comment", _, (str(body),), Comment(by_writer=True) as posted):
                mark = parse_mark(body)
                if isinstance(mark, RevokeMark) and mark.revocation.force:
                    forced.setdefault(mark.revocation.run, posted.created_at)
            case Called("release", issue, (name, stage, Outcome.ADVANCED.value), Released()):
                assert issue is not None, "a lease is on an issue"
                found[issue, str(stage)].setdefault(RunId(str(name)), note.at_us)
            case Advances(issue, name):
                found[issue, run.pipeline.stages[0].name].setdefault(name, note.at_us)
            case _:
                pass
    return found


def _advances_in_time(card: Card, edited: Comment, forced: Mapping[RunId, ServerTime]) -> bool:
    """Whether the edit came before its lease ended, by expiry or by force."""
    if card.state is not CardState.RELEASED or card.ending is None:
        return False
    in_time = card.prev is not None and edited.updated_at < card.prev
    in_force = edited.updated_at <= forced.get(card.run, edited.updated_at)
    return in_time and in_force and card.ending.outcome is Outcome.ADVANCED


def _put_back(run: Run, issue: IssueRef, *, up_to: str | None = None) -> int:
    """How often somebody else put the issue into this stage, or into one before it."""
    names = [stage.name for stage in run.pipeline.stages]
    before = names[: names.index(StageName(up_to)) + 1] if up_to is not None else names
    labels = {stage.label for stage in run.pipeline.stages if stage.name in before}
    return sum(
        note.what.issue == issue and bool(labels & note.what.added)
        for note in run.notes
        if isinstance(note.what, Meddled)
    )


def losers_touch_nothing(evidence: Evidence) -> Iterator[Violation]:
    """Between its bid and its defeat, a claimant writes only its own card."""
    wrote: dict[int, list[Note]] = {}
    for note in evidence.run.notes:
        match note.what:
            case Step.CLAIM_STARTED:
                wrote[note.fibre] = []
            case Called(writes=True):
                wrote.setdefault(note.fibre, []).append(note)
            case Event(kind=EventKind.CLAIM_LOST) as event if event.run is not None:
                for written in wrote.pop(note.fibre, []):
                    if not _own_card(written, event.run):
                        yield _touched(written, event.run)
            case _:
                pass


def _own_card(note: Note, run: RunId) -> bool:
    match note.what:
        case Called("acquire"):
            return True  # the store's own bookkeeping
        case Called("comment" | "edit_comment", _, (*_, str(body))):
            card = parse_mark(body)
            return isinstance(card, Card) and card.run == run
        case _:
            return False


def _touched(note: Note, run: RunId) -> Violation:
    assert isinstance(note.what, Called), "only calls write"
    text = f"{note.process} lost with {run} and wrote {note.what.op} {note.what.arguments}"
    return Violation("losers touch nothing", note.at_us, note.what.issue, text)


def comes_to_rest(evidence: Evidence) -> Iterator[Violation]:
    """Within the bound after the faults stopped, every issue is done, parked or paused."""
    run = evidence.run
    for issue, rested in run.at_rest.items():
        if not rested:
            labels = ", ".join(sorted(run.snapshots[issue].issue.labels))
            text = f"{issue} is neither done nor set aside after {run.passed_s:.0f} s: {labels}"
            yield Violation("comes to rest", microseconds(run.passed_s), issue, text)


def picture_is_true(evidence: Evidence) -> Iterator[Violation]:
    """At the end: exactly one stage, the one that follows from the decisions; no claim label."""
    run, decided = evidence.run, evidence.decisions
    end_us = microseconds(run.passed_s)
    for issue, snapshot in run.snapshots.items():
        if not run.at_rest[issue]:
            continue
        stages = run.pipeline.stages_of(snapshot.issue.labels)
        if len(stages) > 1 and _put_back(run, issue):
            continue  # a person's second stage label is a person's to remove
        if len(stages) != 1:
            text = f"{issue} carries {len(stages)} stages: {sorted(snapshot.issue.labels)}"
            yield Violation("picture is true", end_us, issue, text)
            continue
        wanted = next(
            stage
            for stage in run.pipeline.stages
            if stage.final or (issue, stage.name) not in decided
        )
        if not _meddled(run, issue) and stages[0] != wanted:
            text = f"{issue} shows {stages[0].label}, and its cards say {wanted.label}"
            yield Violation("picture is true", end_us, issue, text)
        working = snapshot.issue.labels & set(run.pipeline.working_labels)
        if not _meddled(run, issue) and working:
            text = f"{issue} still carries {', '.join(working)}"
            yield Violation("picture is true", end_us, issue, text)


def _meddled(run: Run, issue: IssueRef) -> bool:
    return any(isinstance(note.what, Meddled) and note.what.issue == issue for note in run.notes)


def forgeries_are_void(evidence: Evidence) -> Iterator[Violation]:
    """No stranger's card took, freed, ended or blocked anything."""
    run = evidence.run
    for note in run.notes:
        if isinstance(note.what, Event):
            said = {str(note.what.run), str(note.what.holder), *note.what.detail.values()}
            if any(STRANGER in word or word == "forged" for word in said):
                text = f"{note.process} acted on a forgery: {note.what.kind.value} {said}"
                yield Violation("forgeries are void", note.at_us, note.what.issue, text)
    for issue, snapshot in run.snapshots.items():
        trusted = _without_strangers(snapshot)
        if standing_on_comments(snapshot, FoldRules()) != standing_on_comments(
            trusted, FoldRules()
        ):
            text = f"{issue}: the cards say something else without the stranger's"
            yield Violation("forgeries are void", microseconds(run.passed_s), issue, text)


def _without_strangers(snapshot: Snapshot) -> Snapshot:
    kept = tuple(comment for comment in snapshot.comments if comment.author != STRANGER)
    return replace(snapshot, comments=kept)


Checker = Callable[[Evidence], Iterator[Violation]]
RULES: tuple[Checker, ...] = (
    one_holder,
    acts_within_trust,
    fences_rise,
    advanced_once,
    losers_touch_nothing,
    comes_to_rest,
    picture_is_true,
    forgeries_are_void,
)
_NEED_ORDER = frozenset({one_holder, fences_rise, advanced_once})
"""Rules that leases in comments keep only while settle covers the lag and cards are intact."""


def promised(rule: Checker, scenario: Scenario) -> bool:
    """Whether this rule must hold in every run of such a world; else violations are counted."""
    if rule is picture_is_true:
        return scenario.pictured
    if rule is comes_to_rest:
        return scenario.timely
    return rule not in _NEED_ORDER or scenario.exclusive


def violations(run: Run) -> list[Violation]:
    """Every violation of a rule that is promised for this run."""
    evidence = Evidence.of(run)
    rules = [rule for rule in RULES if promised(rule, run.scenario)]
    return [violation for rule in rules for violation in rule(evidence)]
