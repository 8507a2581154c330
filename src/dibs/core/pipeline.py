"""Stages, the legal moves between them, and what a stage asks of its workers.

Decides which moves exist; an illegal one cannot be planned. Knows label names because stages *are*
labels, but not how labels are written: that is `labels` and `plan`.

Who is on an issue already: people and programs that are not of the fleet.

Decides whose assignment and whose pull request keeps workers off. Refuses to know how a tracker
tells who they are, and which comments other tools leave: that is `foreign`.

Which spelling our cards have on the wire. Every reader reads all of them.

Where a stage's handler works: where it always does, or in working trees made for the run.

Decides what may be asked for. How a working tree is made, kept and cleared is `dibs.worktrees`.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from dibs.core.durations import LeaseTerms, terms_for
from dibs.core.errors import IllegalMove, NoSuchStage
from dibs.core.ids import StageName
from dibs.core.issue import Issue, Person, Pull


class People(Struct, frozen=True):
    """What makes an issue somebody's, so that workers leave it alone."""

    assignees: bool = True
    """A person is assigned to it."""
    pulls: bool = True
    """Somebody has an open pull request that will close it."""
    markers: bool = True
    """Another tool's comment says that it is at work."""
    fleet: frozenset[str] = frozenset()
    """Accounts that are the fleet's own: what they do on an issue keeps nobody off."""
    marker_ttl: timedelta = timedelta(hours=4)
    """How long another tool's marker counts that nobody takes back."""

    def __post_init__(self) -> None:
        if self.marker_ttl <= timedelta():
            raise ValueError("people.marker_ttl: must be longer than nothing")
        folded = frozenset(login.casefold() for login in self.fleet)  # as trackers compare logins
        force_setattr(self, "fleet", folded)

    def and_of_the_fleet(self, logins: Iterable[str]) -> "People":
        return replace(self, fleet=self.fleet.union(logins))

    def assigned(self, issue: Issue) -> tuple[Person, ...]:
        """The people it is assigned to. A program's account is not a person."""
        if not self.assignees:
            return ()
        return tuple(one for one in issue.assignees if one.human and self._strange(one))

    def pulling(self, issue: Issue) -> tuple[Pull, ...]:
        """Open pull requests of others, be they people or programs."""
        if not self.pulls:
            return ()
        return tuple(pull for pull in issue.pulls if self._strange(pull.author))

    def _strange(self, person: Person) -> bool:
        return person.login.casefold() not in self.fleet


class Dialect(StrEnum):
    NATIVE = "native"
    """`<!-- claim run=.. ttl=.. -->`, as `card` spells it."""
    AGENT = "agent"
    """As runners of the issue-claim state machine read it: see `agent_dialect`."""


BASE = "origin/main"


class NoWorktree(Struct, frozen=True):
    """In the folder of the configuration, like every run."""


class OneWorktree(Struct, frozen=True):
    """In a working tree of this repository, a new one for each run."""

    repository: str
    """A path, from the folder of the configuration."""
    base: str = BASE
    """What the run's branch starts from."""


class BundleWorktree(Struct, frozen=True):
    """In a working tree for each repository of the bundle that the issue is in, on one branch.

    Issues with the same bundle label are claimed and ended together.
    """

    base: str = BASE


Worktree = NoWorktree | OneWorktree | BundleWorktree


class Command(Struct, frozen=True):
    """A handler that is a command line, run by the shell."""

    line: str


class PythonCallable(Struct, frozen=True):
    """A handler that is `module:function`, run in a process of its own."""

    target: str


class InProcess(Struct, frozen=True):
    """A handler registered on the Python API under the stage's name; run in a thread."""


class NoHandler(Struct, frozen=True):
    """Nothing runs here: the issue waits for a gate or a person."""


Handler = Command | PythonCallable | InProcess | NoHandler


class NoGate(Struct, frozen=True):
    """The way on is open."""


class ApprovalGate(Struct, frozen=True):
    """Shut until a person puts this label on the issue; the move takes it off again."""

    label: str


Gate = NoGate | ApprovalGate


class FollowsNothing(Struct, frozen=True):
    """An issue stays until a run or a person moves it."""


class FollowsPull(Struct, frozen=True):
    """An issue goes where its pull request goes: on when that is merged, back when it is not."""

    back: StageName
    authored: str = ""
    """The label of pull requests that a run of the fleet opened; empty for none."""


Follows = FollowsNothing | FollowsPull


class Backoff(Struct, frozen=True):
    """How long a failed issue rests before the next attempt: doubling, capped."""

    first: timedelta = timedelta(seconds=30)
    most: timedelta = timedelta(minutes=15)

    def after(self, failures: int) -> timedelta:
        if failures <= 0:
            return timedelta()
        rest = min(self.first, self.most)
        for _ in range(failures - 1):
            if rest >= self.most or not rest:
                break
            rest = min(rest * 2, self.most)
        return rest


class Stage(Struct, frozen=True):
    name: StageName
    label: str
    next: tuple[StageName, ...] = ()
    """The legal moves; the first is the one taken when the handler names none."""
    working_label: str | None = None
    gives_way: bool = False
    """Its label comes off while a lease is held, and `claimed` stands alone in its place."""
    closes: bool = False
    handler: Handler = NoHandler()
    gate: Gate = NoGate()
    follows: Follows = FollowsNothing()
    terms: LeaseTerms = field(default_factory=lambda: terms_for(timedelta(minutes=10)))
    attempts: int = 3
    wip: int | None = None
    irreversible: bool = False
    """Its work cannot be undone: it runs only where the store is atomic and fenced."""
    backoff: Backoff = Backoff()
    timeout: timedelta | None = None
    """The handler's time limit; the lease's absolute cap where unset."""
    pass_env: tuple[str, ...] = ()
    """Names of secrets that the handler may see; all others are stripped from its environment."""
    worktree: Worktree = NoWorktree()
    """Where the handler works."""

    @property
    def final(self) -> bool:
        return not self.next

    @property
    def entry_labels(self) -> tuple[str, ...]:
        """What an issue must carry to be worked here: the stage, and its approval if gated."""
        gate = (self.gate.label,) if isinstance(self.gate, ApprovalGate) else ()
        return (self.label, *gate)

    @property
    def passes_by_itself(self) -> bool:
        """Whether a worker moves the issue on without running anything, once the gate is open."""
        return isinstance(self.handler, NoHandler) and isinstance(self.gate, ApprovalGate)

    @property
    def served(self) -> bool:
        """Whether a worker has anything to do here."""
        return not self.final and (not isinstance(self.handler, NoHandler) or self.passes_by_itself)


UNQUEUED = Stage(name=StageName(""), label="")
"""No stage at all: what an issue is worked in that carries no stage label, where a dialect has its
callers claim such issues as well. When it goes back, it goes back to nothing.
"""


class LabelNames(Struct, frozen=True):
    """The labels that are not stages."""

    claimed: str = "claimed"
    paused: str = "paused"
    parked: str = "parked"


class Pipeline(Struct, frozen=True):
    stages: tuple[Stage, ...]
    labels: LabelNames = LabelNames()
    blockers: frozenset[str] = frozenset()
    """Other labels that keep workers off."""
    priorities: tuple[str, ...] = ()
    """Labels that jump the queue, the most urgent first."""
    people: People = People()
    """Who else may be on an issue already."""
    dialect: Dialect = Dialect.NATIVE
    """How our cards are spelt on the tracker."""
    swaps_labels: bool = True
    """Whether the tracker puts one label on and takes another off in one request. Where it cannot,
    no label gives way: a claim painted late would take off the last one that anybody finds.
    """

    def __post_init__(self) -> None:
        _check_names(self)
        _check_moves(self)

    def stage(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        if name == UNQUEUED.name and self.dialect is Dialect.AGENT:
            names = tuple(stage.name for stage in self.stages)
            return replace(UNQUEUED, next=names, terms=self.stages[0].terms)
        raise NoSuchStage(name, tuple(stage.name for stage in self.stages))

    def stages_of(self, labels: frozenset[str]) -> tuple[Stage, ...]:
        """The stages whose label the issue carries. One, once the picture is quiet."""
        return tuple(stage for stage in self.stages if stage.label in labels)

    def worked_stage(self, labels: frozenset[str], worked: StageName | None) -> Stage | None:
        """The stage of an issue whose label has given way to `claimed`.

        The one that its last run worked in, where that is known; else the first that gives way.
        None if there is nothing to guess: it carries a stage label, or nobody claims it.
        """
        if self.labels.claimed not in labels or self.stages_of(labels):
            return None
        if worked == UNQUEUED.name and self.dialect is Dialect.AGENT:
            return self.stage(worked)
        giving_way = [stage for stage in self.stages if stage.gives_way]
        known = [stage for stage in giving_way if stage.name == worked]
        return next(iter(known or giving_way), None)

    def has_left(self, stage: Stage, labels: frozenset[str]) -> bool:
        """Whether an issue that is held in a stage shows that it is in another, or in none.

        Where the stage's label gives way, or there is none, no label at all says nothing.
        """
        if stage.label in labels:
            return False
        unshown = stage.gives_way or stage.name == UNQUEUED.name
        return bool(self.stages_of(labels)) or not unshown

    def held_labels(self, stage: Stage) -> tuple[str, ...]:
        """What an issue of this stage carries while a lease on it is held."""
        claimed = self.labels.claimed
        return (claimed,) if stage.gives_way else (stage.label, claimed)

    def target(self, origin: StageName, wanted: str | None) -> Stage:
        """Where a finished issue goes. Raises IllegalMove for a move the table does not have."""
        stage = self.stage(origin)
        if wanted is None and stage.next:
            return self.stage(stage.next[0])
        if wanted not in stage.next:
            raise IllegalMove(origin, wanted or "", stage.next)
        return self.stage(wanted)

    @property
    def working_labels(self) -> tuple[str, ...]:
        return tuple(stage.working_label for stage in self.stages if stage.working_label)

    @property
    def vetoes(self) -> frozenset[str]:
        """Labels that stop a running lease when a person puts them on."""
        return self.blockers | {self.labels.paused, self.labels.parked}

    @property
    def every_label(self) -> tuple[str, ...]:
        """All labels the pipeline may write, in the order a person would list them."""
        names: dict[str, None] = {}
        for stage in self.stages:
            names[stage.label] = None
            if stage.working_label:
                names[stage.working_label] = None
            if isinstance(stage.gate, ApprovalGate):
                names[stage.gate.label] = None
            if isinstance(stage.follows, FollowsPull) and stage.follows.authored:
                names[stage.follows.authored] = None
        names |= dict.fromkeys((self.labels.claimed, self.labels.paused, self.labels.parked))
        names |= dict.fromkeys(sorted(self.blockers))
        return tuple(names)


def _check_names(pipeline: Pipeline) -> None:
    if not pipeline.stages:
        raise ValueError("the pipeline has no stage")
    seen: dict[str, str] = {}
    for label, role in _label_roles(pipeline):
        key = label.casefold()  # trackers fold case; two roles must not share one label there
        if not label or label != label.strip() or "," in label:
            raise ValueError(f"{role} may not be empty, padded or contain a comma: {label!r}")
        if key in seen:
            raise ValueError(f"{role} and {seen[key]} are the same label {label!r}")
        seen[key] = role
    _check_gates(pipeline, seen)
    _check_authored(pipeline, seen)
    names = [stage.name for stage in pipeline.stages]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"stage {name!r} is defined twice")
    for blocker in pipeline.blockers:
        if blocker.casefold() in seen:
            raise ValueError(f"blocker {blocker!r} is also {seen[blocker.casefold()]}")


def _check_gates(pipeline: Pipeline, taken: dict[str, str]) -> None:
    """Several stages may share an approval label, but it may play no other role."""
    blockers = {blocker.casefold() for blocker in pipeline.blockers}
    for stage in pipeline.stages:
        if not isinstance(stage.gate, ApprovalGate):
            continue
        label = stage.gate.label
        if not label.strip() or label.casefold() in blockers or label.casefold() in taken:
            raise ValueError(
                f"the gate of stage {stage.name!r} needs a label of its own: {label!r}"
            )


def _check_authored(pipeline: Pipeline, taken: dict[str, str]) -> None:
    """Stages that follow pull requests may share the label of these; nothing else may have it."""
    gates = {one.gate.label for one in pipeline.stages if isinstance(one.gate, ApprovalGate)}
    others = {label.casefold() for label in (*gates, *pipeline.blockers, *taken)}
    for stage in pipeline.stages:
        label = stage.follows.authored if isinstance(stage.follows, FollowsPull) else ""
        if label and (label.casefold() in others or label != label.strip() or "," in label):
            raise ValueError(f"stage {stage.name!r}: authored needs a label of its own: {label!r}")


def _label_roles(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    marks = pipeline.labels
    yield marks.claimed, "the claimed label"
    yield marks.paused, "the paused label"
    yield marks.parked, "the parked label"
    for stage in pipeline.stages:
        yield stage.label, f"the label of stage {stage.name!r}"
        if stage.working_label:
            yield stage.working_label, f"the working label of stage {stage.name!r}"


def _check_moves(pipeline: Pipeline) -> None:
    names = {stage.name for stage in pipeline.stages}
    for stage in pipeline.stages:
        for target in stage.next:
            if target not in names:
                raise ValueError(f"stage {stage.name!r} moves to {target!r}, which is not a stage")
            if target == stage.name:
                raise ValueError(f"stage {stage.name!r} moves to itself")
        if stage.final and not isinstance(stage.handler, NoHandler):
            raise ValueError(f"stage {stage.name!r} has a handler but no next stage")
        if stage.closes and not stage.final:
            raise ValueError(f"stage {stage.name!r} closes the issue and yet moves on")
        _check_follows(stage)
        if stage.attempts < 1:
            raise ValueError(f"stage {stage.name!r}: attempts must be at least 1")
        if stage.wip is not None and stage.wip < 1:
            raise ValueError(f"stage {stage.name!r}: wip must be at least 1")
    if not any(stage.final for stage in pipeline.stages):
        raise ValueError("no stage is final: an issue would go round for ever")


def _check_follows(stage: Stage) -> None:
    if not isinstance(stage.follows, FollowsPull):
        return
    back = stage.follows.back
    if back not in stage.next[1:]:
        onward = stage.next[0] if stage.next else "nowhere"
        raise ValueError(
            f"stage {stage.name!r} follows its pull request: a merged one leads to {onward!r}, and "
            f"back {back!r} must be another of its next stages"
        )
    if stage.gate != NoGate():
        why = "the merge is the approval"
        raise ValueError(f"stage {stage.name!r} follows its pull request and has a gate: {why}")
