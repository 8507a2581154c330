"""One server with its clock, and any number of processes that share nothing else.

Every process reaches the server through wires of its own, which note each call and go wrong when
told to: before the call takes effect, after it (a lost reply), or in what it answers.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.one_trip import OneTripMemory

from dibs.adapters.memory.control import MemoryGranters, MemoryPauses
from dibs.adapters.memory.leases import MemoryLeases
from dibs.adapters.memory.tracker import MemoryTracker
from dibs.adapters.system import MemoryJournal
from dibs.core.card import Card, parse_mark
from dibs.core.durations import terms_for
from dibs.core.errors import Unavailable
from dibs.core.events import Step, unwatched
from dibs.core.ids import HolderId, IssueRef, RunId
from dibs.core.issue import Draft, Snapshot
from dibs.core.pipeline import Backoff, Pipeline
from dibs.core.presets import STAGES
from dibs.ports.tracker import Applies, OneAtATime
from dibs.services.claiming import Claimed, ClaimOptions, ClaimResult, Refused
from dibs.services.keeping import Keeper
from dibs.settings import load as config
from dibs.wiring.services import Adapters, Services

from .clock import WatchedClock

TTL = timedelta(seconds=60)
TTL_S = 60.0
TERMS = terms_for(TTL)
TRUST_S = TERMS.trust.total_seconds()
BEAT_S = TERMS.renew_every.total_seconds()
STEPWISE = ("store", "comments")
"""Leases in a store and in comments, on a tracker that does one thing at a time."""
KINDS = (*STEPWISE, "trips")
"""And in comments on a tracker that takes several effects in one trip."""
STORE_ON_TRIPS = "store on trips"

WRITES = ("comment", "edit_comment", "edit_labels", "close", "create", "apply", "apply")


def pipeline_of(base: Pipeline = STAGES, **stage_changes: Any) -> Pipeline:
    """A preset with a ttl of a minute, a short backoff, and changes to its first stage."""
    stages = [
        replace(stage, terms=TERMS, backoff=Backoff(timedelta(seconds=30), timedelta(minutes=5)))
        for stage in base.stages
    ]
    stages[0] = replace(stages[0], **stage_changes)
    return replace(base, stages=tuple(stages))


class Crash(BaseException):
    """The process dies here. Not an Exception: nothing in the program may catch it."""


@dataclass(frozen=True)
class Call:
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def writes(self) -> bool:
        return self.name in WRITES


@dataclass
class Wire:
    """Between a process and an adapter."""

    adapter: Any
    before: Callable[[Call], None] = lambda call: None
    after: Callable[[Call], None] = lambda call: None
    change: Callable[[Call, Any], Any] = lambda call, answer: answer
    calls: list[Call] = field(default_factory=list)

    def apply(self, issue: Any, effects: Any, **options: Any) -> Any:
        """One by one, each effect is a call of its own."""
        if self.adapter.traits.applies is Applies.ONE_BY_ONE:
            return OneAtATime.apply(self, issue, effects, **options)
        return self.__getattr__("apply")(issue, effects, **options)

    def read_many(self, issues: Any) -> Any:
        if not self.adapter.traits.shortlists:
            return OneAtATime.read_many(self, issues)
        return self.__getattr__("read_many")(issues)

    def find_snapshots(self, queries: Any) -> Any:
        if not self.adapter.traits.shortlists:
            return OneAtATime.find_snapshots(self, queries)
        return self.__getattr__("find_snapshots")(queries)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.adapter, name)
        if not callable(found):
            return found

        def through(*args: Any, **kwargs: Any) -> Any:
            call = Call(name, args, kwargs)
            self.calls.append(call)
            self.before(call)
            answer = found(*args, **kwargs)
            self.after(call)
            return self.change(call, answer)

        return through

    @property
    def written(self) -> list[Call]:
        return [call for call in self.calls if call.writes]


def outage(*names: str, times: int = 1_000_000, skip: int = 0) -> Callable[[Call], None]:
    """A hook that raises Unavailable for the named calls, a number of times."""
    left = {"times": times, "skip": skip}

    def hook(call: Call) -> None:
        if call.name not in names:
            return
        if left["skip"] > 0:
            left["skip"] -= 1
        elif left["times"] > 0:
            left["times"] -= 1
            raise Unavailable(f"{call.name} did not answer")

    return hook


def crashing(fatal: Step, occurrence: int = 1) -> Callable[[Step], None]:
    left = {"times": occurrence}

    def reached(step: Step) -> None:
        if step is fatal:
            left["times"] -= 1
            if left["times"] == 0:
                raise Crash(fatal)

    return reached


def at(wanted: Step, action: Callable[[], object]) -> Callable[[Step], None]:
    """Do something, once, when a step is passed: what another process did meanwhile."""
    done: list[Step] = []

    def reached(step: Step) -> None:
        if step is wanted and not done:
            done.append(step)
            action()

    return reached


class World:
    def __init__(
        self,
        kind: str = "store",
        *,
        pipeline: Pipeline | None = None,
        settle: timedelta = timedelta(),
        grace: timedelta = timedelta(),
        patience_s: float = 0.0,
    ) -> None:
        self.kind = kind
        self.clock = WatchedClock(patience_s=patience_s)
        tracker = OneTripMemory if kind in ("trips", STORE_ON_TRIPS) else MemoryTracker
        self.tracker = tracker(self.clock.server_now, author="fleet", settle=settle)
        stored = kind in ("store", STORE_ON_TRIPS)
        self.store = MemoryLeases(self.clock.server_now) if stored else None
        self.pauses = MemoryPauses(self.clock.server_now)
        self.granters = MemoryGranters()
        self.journal = MemoryJournal()
        self.runs: Counter[str] = Counter()
        self.pipeline = pipeline or pipeline_of()
        self.settings = replace(
            config.from_mapping({}, source="test", root=Path("/nowhere")),
            pipeline=self.pipeline,
            leases="comments" if self.on_comments else "auto",
            grace=grace,
            poll=timedelta(seconds=5),
            sweep=timedelta(seconds=20),
            stop_grace=timedelta(seconds=30),
        )

    @property
    def on_comments(self) -> bool:
        return self.store is None

    @property
    def trust_s(self) -> float:
        """How long a lease of a minute is trusted; in comments it runs on the tracker's grain."""
        grain = self.tracker.traits.grain if self.on_comments else timedelta()
        return TERMS.stamped_in(grain).trust.total_seconds()

    def on_other_leases(self) -> "World":
        """The same backlog and the same clock, as processes see it that are set up differently."""
        other = World("comments" if self.kind == "store" else "store", pipeline=self.pipeline)
        for shared in ("clock", "tracker", "pauses", "granters", "journal", "runs"):
            setattr(other, shared, getattr(self, shared))
        if other.store is not None:
            other.store = MemoryLeases(self.clock.server_now)
        return other

    def add(self, *labels: str, title: str = "Prices are wrong") -> IssueRef:
        wanted = labels or (self.pipeline.stages[0].label,)
        return self.tracker.create(Draft(title, "a body", frozenset(wanted))).ref

    def wire_to_tracker(self) -> Wire:
        return Wire(self.tracker)

    def process(self, name: str = "w1", **options: Any) -> "Process":
        return Process(self, name, **options)

    def read(self, issue: IssueRef) -> Snapshot:
        return self.tracker.read(issue)

    def labels(self, issue: IssueRef) -> frozenset[str]:
        return self.read(issue).issue.labels

    def cards(self, issue: IssueRef) -> list[Card]:
        marks = (parse_mark(comment.body) for comment in self.read(issue).comments)
        return [mark for mark in marks if isinstance(mark, Card)]

    def states(self, issue: IssueRef) -> list[tuple[str, str]]:
        """Every card's run and state, in the server's order."""
        return [(card.run, card.state.value) for card in self.cards(issue)]

    def events(self) -> list[str]:
        return [event.kind.value for event in self.journal.events]


class Process:
    """The services as one process has them, over wires of its own."""

    def __init__(
        self,
        world: World,
        name: str,
        *,
        reached: Callable[[Step], None] = unwatched,
        handlers: Any = None,
    ) -> None:
        self.world, self.name = world, name
        self.holder = HolderId(name)
        self.tracker = world.wire_to_tracker()
        self.store = Wire(world.store) if world.store is not None else None
        self.services = Services(
            world.settings,
            Adapters(
                tracker=self.tracker,
                store=self.store,
                pauses=world.pauses,
                observers=(world.journal,),
                clock=world.clock,
                granters=world.granters,
            ),
            reached=reached,
            handlers=handlers,
            new_run=self._new_run,
        )
        self.leases = Wire(self.services.leases)
        self.services.leases = self.leases

    def _new_run(self) -> RunId:
        """A nonce: never the same twice, however often a process of this name is started."""
        runs = self.world.runs
        runs[self.name] += 1
        return RunId(f"{self.name}-{runs[self.name]}")

    def claim(self, issue: IssueRef, stage: str | None = None, **options: Any) -> ClaimResult:
        wanted = self.services.pipeline.stage(stage) if stage else None
        return self.services.claiming.claim(issue, wanted, ClaimOptions(self.holder, **options))

    def claimed(self, issue: IssueRef, **options: Any) -> Claimed:
        result = self.claim(issue, **options)
        assert isinstance(result, Claimed), result
        return result

    def hold(self, issue: IssueRef, **options: Any) -> Keeper:
        return self.services.keep(self.claimed(issue, **options))

    def advance(self, issue: IssueRef, to: str | None = None) -> Any:
        """Claim, do the work in no time, move on."""
        return self.services.advancing.advance(self.hold(issue), to)

    def fail(self, issue: IssueRef) -> Any:
        return self.services.advancing.fail(self.hold(issue), "it broke")

    def give_back(self, issue: IssueRef) -> Any:
        return self.services.advancing.give_back(self.hold(issue), "not now")

    def why(self, issue: IssueRef) -> list[str]:
        explanation = self.services.explaining.explain(issue)
        return [reason.code.value for reason in explanation.reasons]

    def sweep(self, **options: Any) -> Any:
        return self.services.sweeping.sweep(**options)


def decided_and_not_painted(world: World) -> IssueRef:
    """An issue whose holder decided how it ended, and died before the labels showed it."""
    issue = world.add()
    holder = world.process("holder", reached=crashing(Step.FINISH_DECIDED))
    keeper = holder.hold(issue)
    with pytest.raises(Crash):
        holder.services.advancing.advance(keeper)
    return issue


def codes(result: Any) -> list[str]:
    assert isinstance(result, Refused), result
    return [reason.code.value for reason in result.reasons]


def stage_labels(labels: Iterable[str], pipeline: Pipeline) -> list[str]:
    return [stage.label for stage in pipeline.stages if stage.label in set(labels)]
