"""Every interleaving of a few actors, step by step, on the memory tracker.

A schedule is a list of choices: whose port call takes effect next, or who dies now. If two
schedules leave the server in the same state, and every actor got the same answers, they have the
same future. So the tree of schedules is walked as a graph, every state once, and the schedules are
counted as the paths through it. No schedule is left out.

The rules are checked in every state: at most one actor trusts its lease, and nothing that was
finished is finished again. At the end of every schedule a ttl passes, an actor comes back for the
issue, and the issue must come to rest.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeVar

from msgspec import Struct, field

from dibs.adapters.memory.control import MemoryPauses
from dibs.adapters.memory.tracker import MemoryTracker
from dibs.core.card import Card, CardState, parse_mark
from dibs.core.errors import DibsError
from dibs.core.events import Event, EventKind, Reached, Step, unwatched
from dibs.core.ids import HolderId, IssueRef, LocalTime, RunId
from dibs.core.issue import Comment, Draft, Issue, Snapshot
from dibs.core.labels import Effect, LabelLook
from dibs.core.lease import Outcome
from dibs.ports.tracker import Applies, Found, IssueQuery, OneAtATime, TrackerTraits, apply_one
from dibs.services.claiming import Claimed, ClaimOptions
from dibs.services.keeping import Keeper
from dibs.wiring.services import Adapters, Services
from dibs_lab.sim.fibres import Fibre, Process, Simulation, microseconds
from dibs_lab.sim.world import Scenario, settings_of

Answer = TypeVar("Answer")
SCENARIO = Scenario(name="exhaustive", ttl_s=20.0, settle_s=0.0)
_TICK_S = 12.0
"""More than half a ttl: two ticks without a renewal end a lease."""


class Broken(AssertionError):
    """A state that must not occur, with the schedule that leads there."""


class Act(StrEnum):
    GO = "goes on"
    DIE = "dies"


class Choice(NamedTuple):
    actor: int
    act: Act


Schedule = tuple[Choice, ...]
Role = Callable[["Actor"], None]
"""What an actor does, by calls of the shipped services."""


class Actor(OneAtATime):
    """An actor whose steps are interleaved with others'. Has its own tracker, clock and threads."""

    traits = TrackerTraits(name="stepped")

    def __init__(
        self, table: "Table", name: str, *, mortal: bool = False, from_s: float = 0.0
    ) -> None:
        self.table = table
        self.name = name
        self.mortal = mortal
        self.from_us = microseconds(from_s)
        self.process = Process(table.simulation, name)
        self.steps = 0
        self.trail = 0
        """A hash of every answer it ever got: all that its next step depends on."""
        self.wrote: list[tuple[str, tuple[object, ...]]] = []
        self.works = False
        """A control that has won: it trusts itself until it is done."""
        self.keeper: Keeper | None = None
        self._fibre: Fibre | None = None
        self._runs = 0
        self.services = Services(
            settings_of(SCENARIO),
            Adapters(
                tracker=self,
                store=None,
                pauses=table.pauses,
                observers=(self,),
                clock=self,
                threads=self.process,
            ),
            reached=self._reached,
            new_run=self._new_run,
        )

    def _reached(self, step: Step) -> None:
        """Forget what it wrote before its bid: that was an ending which it rolled forward."""
        if step is Step.CLAIM_STARTED:
            self.wrote.clear()

    def observe(self, event: Event) -> None:
        """A `ports.system.Observer` that notices when a bid was lost."""
        if event.kind is EventKind.CLAIM_LOST:
            _check_own_card_only(self)

    def _new_run(self) -> RunId:
        self._runs += 1
        return RunId(f"{self.name}{self._runs}")

    # Being scheduled

    def play(self, role: Role) -> None:
        """Give the actor a role; its first step begins it."""
        self._fibre = self.process.start(lambda: role(self), self.name)
        self.steps = 0

    def step(self) -> None:
        """Make the call it waits for, and run to the next call. The first step also starts it."""
        assert self._fibre is not None, "it plays"
        if self.steps == 0:
            self.table.simulation.step(self._fibre)
        self.steps += 1
        if not self.over:
            self.table.simulation.step(self._fibre)

    @property
    def over(self) -> bool:
        return self._fibre is None or self._fibre.ended.is_set()

    def await_turn(self) -> None:
        if self.table.interleaved:
            self.table.simulation.park()

    @property
    def trusts(self) -> bool:
        keeper = self.keeper
        if self.works and self.process.alive:
            return True
        if keeper is None or not self.process.alive or keeper.over.is_set():
            return False
        return self.process.now() < keeper.trusted_until

    @property
    def belief(self) -> object:
        """What it trusts from here on, also when it has nothing more to do."""
        keeper = self.keeper
        trusted = (keeper.over.is_set(), keeper.trusted_until) if keeper is not None else None
        return self.process.alive, self.works, trusted

    # ports.system: time passes only when an actor's turn moves it

    def now(self) -> LocalTime:
        return self.process.now()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self.await_turn()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        raise AssertionError("no actor waits for an event")

    # ports.tracker: every call waits for its turn and then takes effect

    def _call(
        self, op: str, do: Callable[[], Answer], *arguments: object, writes: bool = False
    ) -> Answer:
        self.await_turn()
        if writes:
            self.wrote.append((op, arguments))
        try:
            answer = do()
        except DibsError as failure:
            self.trail = hash((self.trail, op, arguments, str(failure)))
            raise
        self.trail = hash((self.trail, op, arguments, answer))
        return answer

    def find(self, query: IssueQuery) -> Found:
        return self._call("find", lambda: self.table.tracker.find(query), query)

    def read(self, issue: IssueRef) -> Snapshot:
        return self._call("read", lambda: self.table.tracker.read(issue))

    def tally(self, labels: Sequence[str], *, closed_too: bool = False) -> Mapping[str, int]:
        raise AssertionError("no actor counts labels")

    def create(self, draft: Draft) -> Issue:
        raise AssertionError("no actor creates issues")

    def comment(self, issue: IssueRef, body: str) -> Comment:
        def post() -> Comment:
            return self.table.tracker.comment(issue, body)

        return self._call("comment", post, body, writes=True)

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        def edit() -> Comment:
            return self.table.tracker.edit_comment(issue, comment, body)

        return self._call("edit_comment", edit, comment, body, writes=True)

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        def edit() -> None:
            self.table.tracker.edit_labels(issue, add=add, remove=remove)

        self._call("edit_labels", edit, tuple(add), tuple(remove), writes=True)

    def close(self, issue: IssueRef) -> None:
        self._call("close", lambda: self.table.tracker.close(issue), writes=True)

    def prepare(self, labels: Sequence[str], looks: Mapping[str, LabelLook] | None = None) -> None:
        """Do nothing: this tracker needs no labels created."""


class Traveller(Actor):
    """An actor on a tracker that takes several effects in one request; each effect is a step.

    If the actor dies in the middle, a part of the request took effect, as if the server had died.
    """

    traits = TrackerTraits(name="stepped", applies=Applies.IN_ONE_REQUEST)

    def apply(
        self,
        issue: IssueRef,
        effects: Sequence[Effect],
        *,
        if_unchanged: Issue | None = None,
        reached: Reached = unwatched,
    ) -> Snapshot:
        failure: DibsError | None = None
        for effect in effects:
            try:
                apply_one(self, issue, effect, reached)
            except DibsError as refusal:  # the effects after it still happen
                failure = failure or refusal
        if failure is not None:
            raise failure
        snapshot = self.table.tracker.read(issue)
        self.trail = hash((self.trail, snapshot))
        return snapshot


class Table:
    """One schedule being run: the server, the actors, and the time."""

    def __init__(self, case: "Case") -> None:
        self.simulation = Simulation()
        self.tracker = MemoryTracker(self.simulation.server_now)
        self.pauses = MemoryPauses(self.simulation.server_now)
        self.pipeline = settings_of(SCENARIO).pipeline
        draft = Draft("Prices are wrong", labels=frozenset({self.pipeline.stages[0].label}))
        self.issue = self.tracker.create(draft).ref
        self.interleaved = False
        self.deaths_left = case.deaths
        self._kind = Traveller if case.one_trip else Actor
        self.actors: list[Actor] = []
        for part in case.prelude:
            self._join(part)
        self.interleaved = True
        for part in case.parts:
            self._join(part)

    def _join(self, part: "Part") -> None:
        known = {actor.name: actor for actor in self.actors}
        actor = known.get(part.name) or self._kind(
            self, part.name, mortal=part.mortal, from_s=part.from_s
        )
        if part.name not in known:
            self.actors.append(actor)
        actor.play(part.role)
        if not self.interleaved:
            actor.step()

    def choices(self) -> Iterator[Choice]:
        for number, actor in enumerate(self.actors):
            if not actor.over and self.simulation.now_us >= actor.from_us:
                yield Choice(number, Act.GO)
                if self.deaths_left and actor.mortal and actor.steps:
                    yield Choice(number, Act.DIE)

    def take(self, choice: Choice) -> None:
        actor = self.actors[choice.actor]
        if choice.act is Act.DIE:
            self.deaths_left -= 1
            actor.process.kill()
        else:
            actor.step()

    @property
    def state(self) -> object:
        """Everything that the future depends on."""
        told = tuple(
            (actor.belief, None if actor.over else (actor.trail, actor.steps > 0))
            for actor in self.actors
        )
        return self.tracker.read(self.issue), self.simulation.now_us, self.deaths_left, told

    def pass_time(self, seconds: float) -> None:
        self.simulation.now_us += microseconds(seconds)

    # What must hold

    @property
    def contested(self) -> bool:
        return sum(actor.trusts for actor in self.actors) > 1

    def check(self) -> None:
        holders = [actor.name for actor in self.actors if actor.trusts]
        if len(holders) > 1:
            raise Broken(f"{' and '.join(holders)} both trust their leases")
        if len(advanced := list(self._advanced())) > 1:
            raise Broken(f"{' and '.join(advanced)} both finished the stage")

    def _advanced(self) -> Iterator[str]:
        for comment in self.tracker.read(self.issue).comments:
            card = parse_mark(comment.body)
            if isinstance(card, Card) and card.state is CardState.RELEASED and card.ending:
                in_time = card.shown or (card.prev is not None and comment.updated_at < card.prev)
                if in_time and card.ending.outcome is Outcome.ADVANCED:
                    yield card.run

    def end(self) -> None:
        """All actors are done: after a ttl an actor comes back, and the issue comes to rest."""
        self.interleaved = False
        self.pass_time(2 * SCENARIO.ttl_s)
        rescuer = self._kind(self, "r")
        self.actors.append(rescuer)
        rescuer.play(_sweep_and_work)
        rescuer.step()
        self.check()
        self._check_rest()

    def _check_rest(self) -> None:
        issue, marks = self.tracker.read(self.issue).issue, self.pipeline.labels
        shown = {stage.label for stage in self.pipeline.stages_of(issue.labels)}
        stray = issue.labels & {marks.claimed, *self.pipeline.working_labels}
        if shown != {self.pipeline.stages[-1].label} or issue.open or stray:
            state = "open" if issue.open else "closed"
            raise Broken(f"at the end it is {state} with {', '.join(sorted(issue.labels))}")
        if len(list(self._advanced())) != 1:
            raise Broken("nobody finished it")

    def close(self) -> None:
        self.deaths_left = 0
        for actor in self.actors:
            actor.process.kill()


# The roles


def claim_and_finish(actor: Actor) -> None:
    """A worker: claim, and finish if the claim won."""
    claim(actor)
    if actor.keeper is not None:
        finish(actor)


def claim(actor: Actor) -> None:
    """Read the issue first, then bid."""
    _claim(actor, look_first=True)


def bid(actor: Actor) -> None:
    """Bid at once, as after a scan that found an issue without any comment."""
    _claim(actor, look_first=False)


def _claim(actor: Actor, *, look_first: bool) -> None:
    stage = actor.table.pipeline.stages[0]
    options = ClaimOptions(HolderId(actor.name), look_first=look_first)
    result = actor.services.claiming.claim(actor.table.issue, stage, options)
    actor.trail = hash(result)  # all that is left of it
    if isinstance(result, Claimed):
        actor.keeper = actor.services.keep(result)


def finish(actor: Actor) -> None:
    assert actor.keeper is not None, "it holds"
    keeper, actor.keeper = actor.keeper, None
    actor.services.advancing.advance(keeper)


def renew(actor: Actor) -> None:
    """A holder that continues to work: one renewal, which may tell it to stop."""
    assert actor.keeper is not None, "the prelude made it the holder"
    actor.keeper.renew_now()


def sweep(actor: Actor) -> None:
    actor.services.sweeping.sweep()


def revoke(actor: Actor) -> None:
    """An operator asks the current holder to stop."""
    steering, issue = actor.services.steering, actor.table.issue
    record = actor.services.leases.standing(actor.read(issue)).record
    if record is not None and record.live:
        steering.revoke(issue, record.lease.run, by="ada", reason="a test", force=False)


def let_a_ttl_pass(actor: Actor) -> None:
    actor.table.pass_time(2 * _TICK_S)


def let_time_pass(actor: Actor) -> None:
    for _ in range(2):
        actor.await_turn()
        actor.table.pass_time(_TICK_S)


def _sweep_and_work(actor: Actor) -> None:
    sweep(actor)
    claim_and_finish(actor)


def _check_own_card_only(actor: Actor) -> None:
    """A loser changes only its own card."""
    for op, arguments in actor.wrote:
        card = parse_mark(str(arguments[-1])) if op in ("comment", "edit_comment") else None
        if not isinstance(card, Card) or not card.run.startswith(actor.name):
            raise Broken(f"{actor.name} lost and wrote {op} {arguments}")


class Part(Struct, frozen=True):
    name: str
    role: Role
    mortal: bool = True
    from_s: float = 0.0
    """The actor starts only after this much time."""


class Case(Struct, frozen=True):
    name: str
    parts: tuple[Part, ...]
    prelude: tuple[Part, ...] = ()
    """What happened before the interleaving begins."""
    deaths: int = 1
    """How many actors may die, each after any of its steps."""
    one_trip: bool = False
    """Whether the tracker takes several effects in one request."""


CASES: tuple[Case, ...] = (
    Case("two claimants", (Part("a", claim), Part("b", claim))),
    Case("two claimants and a sweep", (Part("a", claim), Part("b", claim), Part("s", sweep))),
    Case(
        "an expired lease, a claimant and a sweep",
        (Part("a", claim), Part("s", sweep)),
        prelude=(Part("h", claim), Part("t", let_a_ttl_pass, mortal=False)),
    ),
    Case(
        "holder, late claimant and operator revoke",
        (
            Part("h", renew),
            Part("c", claim),
            Part("o", revoke),
            Part("t", let_time_pass, mortal=False),
        ),
        prelude=(Part("h", claim),),
    ),
    Case(
        "three bidders, each more than half a ttl after the one before",
        (
            Part("a", bid),
            Part("b", bid, from_s=_TICK_S),
            Part("c", bid, from_s=2 * _TICK_S),
            Part("t", let_time_pass, mortal=False),
        ),
        deaths=0,
    ),
    Case(
        "a holder that finishes and a claimant",
        (Part("h", finish), Part("c", claim)),
        prelude=(Part("h", claim),),
    ),
    Case(
        "two claimants and a sweep (one trip)",
        (Part("a", claim), Part("b", claim), Part("s", sweep)),
        one_trip=True,
    ),
    Case(
        "a holder that finishes and a claimant (one trip)",
        (Part("h", finish), Part("c", claim)),
        prelude=(Part("h", claim),),
        one_trip=True,
    ),
    Case(
        "a holder that finishes and a sweep (one trip)",
        (Part("h", finish), Part("s", sweep)),
        prelude=(Part("h", claim),),
        one_trip=True,
    ),
    Case(
        "a holder that finishes, a claimant and time (one trip)",
        (Part("h", finish), Part("c", claim), Part("t", let_a_ttl_pass, mortal=False)),
        prelude=(Part("h", claim),),
        deaths=0,
        one_trip=True,
    ),
)


class Tally(Struct):
    """How many schedules and states were checked."""

    schedules: int = 0
    states: int = 0
    steps: int = 0


def explore(
    case: Case, *, merge: bool = True, progress: Callable[[int], None] = lambda _: None
) -> Tally:
    """Check every schedule of the case. Raises Broken, with the schedule, at a violation."""
    return _Explorer(case, merge=merge, progress=progress).explore()


class _Explorer(Struct):
    case: Case
    merge: bool
    progress: Callable[[int], None]
    known: dict[object, int] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)

    def explore(self) -> Tally:
        self.tally.schedules = self._from(())
        return self.tally

    def _from(self, schedule: Schedule) -> int:
        """How many schedules begin like this."""
        table = self._played(schedule)
        state = table.state
        if self.merge and state in self.known:
            table.close()
            return self.known[state]
        choices = tuple(table.choices())
        self._judge(table, schedule, last=not choices)
        table.close()
        self.tally.states += 1
        self.progress(self.tally.states)
        count = sum(self._from((*schedule, choice)) for choice in choices) if choices else 1
        if self.merge:
            self.known[state] = count
        return count

    def _judge(self, table: Table, schedule: Schedule, *, last: bool) -> None:
        """Raises Broken with the whole schedule that led to a violation."""
        try:
            table.check()
            if last:
                table.end()
        except Broken as flaw:
            raise self._told(flaw, schedule) from None

    def _played(self, schedule: Schedule) -> Table:
        table = Table(self.case)
        try:
            for choice in schedule:
                table.take(choice)
        except Broken as flaw:
            raise self._told(flaw, schedule) from None
        self.tally.steps += len(schedule)
        return table

    def _told(self, flaw: Broken, schedule: Schedule) -> Broken:
        names = dict.fromkeys(part.name for part in (*self.case.prelude, *self.case.parts))
        actors = tuple(names)
        told = "\n".join(f"  {actors[choice.actor]} {choice.act.value}" for choice in schedule)
        return Broken(f"{self.case.name}: {flaw}, after\n{told}")


# Protocols that break


class Survey(Struct, frozen=True):
    """How many schedules a case has, and in how many of them two hold at once."""

    schedules: int
    two_holders: int


def survey(case: Case) -> Survey:
    """The same walk for a protocol that is known to fail: counts its failures."""
    known: dict[object, tuple[int, int]] = {}

    def walk(schedule: Schedule) -> tuple[int, int]:
        table = Table(case)
        for choice in schedule:
            table.take(choice)
        state, contested, choices = table.state, table.contested, tuple(table.choices())
        table.close()
        if state not in known:
            below = [walk((*schedule, choice)) for choice in choices] or [(1, 1)]
            total, clean = (sum(part) for part in zip(*below, strict=True))
            known[state] = total, 0 if contested else clean
        return known[state]

    total, clean = walk(())
    return Survey(total, total - clean)
