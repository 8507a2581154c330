"""The pipeline: stages, the legal moves between them, and the settings of a stage.

Decides which moves exist; an illegal move cannot be planned. Knows label names because stages *are*
labels, but not how labels are written: that is `labels`.

`People` decides whose assignment and whose pull request keep workers off an issue: those of people
and programs outside the fleet, and of the pull requests only those by accounts that may write. It
refuses to know how a tracker finds out who they are, and which comments other tools leave: that is
`foreign`.

`Dialect` is the spelling of our cards on the tracker; every reader reads all dialects. `Worktree`
is where a stage's handler works: in the folder of the configuration, or in working trees made for
the run. How a working tree is made, kept and cleared is in `dibs.worktrees`.
"""

from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from dibs.core.durations import LeaseTerms, terms_for
from dibs.core.errors import IllegalMove, NoSuchStage
from dibs.core.ids import StageName
from dibs.core.issue import Issue, Person, Pull


class WhosePulls(StrEnum):
    """The authors whose open pull requests keep workers off the issue to be closed."""

    WRITERS = "writers"
    """Those of accounts that may write to the repository."""
    ALL = "all"
    """Those of everybody: on a public repository any stranger can stop the fleet."""
    NONE = "none"


class WhichText(StrEnum):
    """Which title and body may be worked on."""

    RELEASED = "released"
    """No text that an account without write access changed after somebody released the issue."""
    ANY = "any"


class WhoseComments(StrEnum):
    """The authors whose comments a handler gets to read."""

    AUTO = "auto"
    """On a public repository those of writers, elsewhere all."""
    WRITERS = "writers"
    """Those of accounts that may write to the repository."""
    ALL = "all"
    NONE = "none"


class People(Struct, frozen=True):
    """Which signs of other people and tools on an issue keep workers off."""

    assignees: bool = True
    """An assigned person keeps workers off."""
    delegates: bool = True
    """An assigned program, or one to which the issue is delegated, keeps workers off."""
    pulls: WhosePulls = WhosePulls.WRITERS
    """Whose open pull request that will close the issue keeps workers off."""
    markers: bool = True
    """The claim marker of another tool keeps workers off."""
    fleet: frozenset[str] = frozenset()
    """Accounts of the fleet itself: their assignments and pull requests keep no worker off."""
    marker_ttl: timedelta = timedelta(hours=4)
    """How long the marker of another tool counts, unless the tool takes it back."""
    text: WhichText = WhichText.RELEASED
    """Which title and body may be worked on."""

    def __post_init__(self) -> None:
        folded = frozenset(login.casefold() for login in self.fleet)  # as trackers compare logins
        force_setattr(self, "fleet", folded)

    def and_of_the_fleet(self, logins: Iterable[str]) -> "People":
        return replace(self, fleet=self.fleet.union(logins))

    def assigned(self, issue: Issue) -> tuple[Person, ...]:
        """The assigned people from outside the fleet. A program's account is not a person."""
        return self._assignees(issue, human=True) if self.assignees else ()

    def delegated(self, issue: Issue) -> tuple[Person, ...]:
        """The assigned programs from outside the fleet: other agents that have the issue."""
        return self._assignees(issue, human=False) if self.delegates else ()

    def _assignees(self, issue: Issue, *, human: bool) -> tuple[Person, ...]:
        return tuple(
            one for one in issue.assignees if one.human is human and self._outside_fleet(one)
        )

    def pulling(self, issue: Issue) -> tuple[Pull, ...]:
        """The open pull requests of accounts outside the fleet which keep workers off."""
        if self.pulls is WhosePulls.NONE:
            return ()
        return tuple(
            pull
            for pull in issue.pulls
            if self._outside_fleet(pull.author) and self.heeds(by_writer=pull.by_writer)
        )

    def strangers_pulls(self, issue: Issue) -> tuple[Pull, ...]:
        """The open pull requests which keep no worker off, since their authors may not write."""
        return tuple(
            pull
            for pull in issue.pulls
            if self._outside_fleet(pull.author) and not self.heeds(by_writer=pull.by_writer)
        )

    def heeds(self, *, by_writer: bool) -> bool:
        """Whether a pull request counts, by whether its author may write."""
        return by_writer or self.pulls is WhosePulls.ALL

    def _outside_fleet(self, person: Person) -> bool:
        return person.login.casefold() not in self.fleet


class Dialect(StrEnum):
    """The spelling of our cards on the tracker."""

    NATIVE = "native"
    """`<!-- claim run=.. ttl=.. -->`: see `card`."""
    AGENT = "agent"
    """The spelling which runners of the issue-claim state machine read: see `agent_dialect`."""


BASE = "origin/main"
BREAKER = 5


class NoWorktree(Struct, frozen=True):
    """The handler works in the folder of the configuration."""


class OneWorktree(Struct, frozen=True):
    """The handler works in a working tree of this repository, a new tree for each run."""

    repository: str
    """A path, from the folder of the configuration."""
    base: str = BASE
    """The start of the run's branch."""


class BundleWorktree(Struct, frozen=True):
    """The handler works in a working tree for each repository of the issue's bundle, on one branch.

    Issues with the same bundle label are claimed and ended together.
    """

    base: str = BASE


Worktree = NoWorktree | OneWorktree | BundleWorktree


class Command(Struct, frozen=True):
    """The handler is a command line, run by the shell."""

    line: str


class PythonCallable(Struct, frozen=True):
    """The handler is `module:function`, run in a process of its own."""

    target: str


class InProcess(Struct, frozen=True):
    """The handler is registered on the Python API under the stage's name, and runs in a thread."""


class NoHandler(Struct, frozen=True):
    """No handler runs in the stage: the issue waits for a gate or a person."""


Handler = Command | PythonCallable | InProcess | NoHandler


class NoGate(Struct, frozen=True):
    """The stage has no gate."""


class AfterTimeout(StrEnum):
    """What becomes of an issue at whose gate nobody answers in time."""

    BACK = "back"
    """It goes to the gate's `back`, as if it were rejected."""
    PARK = "park"
    """It is set aside for a person."""
    STAY = "stay"
    """It waits on."""


REPLANS = 3


class ApprovalGate(Struct, frozen=True):
    """Shut until a person approves; the move through the gate takes this label off."""

    label: str
    back: StageName | None = None
    """Where a rejected issue goes; None: it is parked."""
    timeout: timedelta | None = None
    """How long the gate waits for an answer; None: for ever."""
    after_timeout: AfterTimeout = AfterTimeout.STAY
    replans: int = REPLANS
    """So many times in a row an issue is sent back; then it is parked."""


class SignedGate(ApprovalGate, frozen=True):
    """An approval gate which a signed approval of the issue's text opens, and no label alone."""


Gate = NoGate | ApprovalGate


class FollowsNothing(Struct, frozen=True):
    """An issue stays until a run or a person moves it."""


class FollowsPull(Struct, frozen=True):
    """The issue follows its pull request: on when merged, back when closed without a merge."""

    back: StageName
    authored: str = ""
    """The label for pull requests that a run of the fleet opened; empty for no label."""


Follows = FollowsNothing | FollowsPull


class Backoff(Struct, frozen=True):
    """How long an issue rests after a failure: doubled with each failure, at most `most`."""

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


class Env(StrEnum):
    """What a handler gets of its worker's environment, besides the names in `pass_env`."""

    LISTED = "listed"
    """The variables of a short list, without credentials."""
    INHERIT = "inherit"
    """All variables but the credentials of dibs."""


class Stage(Struct, frozen=True):
    name: StageName
    label: str
    next: tuple[StageName, ...] = ()
    """The legal moves; the first is taken if the handler names none."""
    working_label: str | None = None
    """A further label of an issue in this stage while a lease is held."""
    gives_way: bool = False
    """The stage's label comes off while a lease is held, and `claimed` stands in its place."""
    closes: bool = False
    handler: Handler = NoHandler()
    gate: Gate = NoGate()
    follows: Follows = FollowsNothing()
    terms: LeaseTerms = field(default_factory=lambda: terms_for(timedelta(minutes=10)))
    attempts: int = 3
    breaker: int = BREAKER
    """So many issues that fail in a row, without a success, put the handler at fault; 0: never."""
    wip: int | None = None
    irreversible: bool = False
    """The work cannot be undone: the stage runs only where the store is atomic and fenced."""
    backoff: Backoff = Backoff()
    timeout: timedelta | None = None
    """The handler's time limit; the lease's absolute cap where unset."""
    env: Env = Env.LISTED
    """What the handler gets of the worker's environment."""
    pass_env: tuple[str, ...] = ()
    """Names of further variables that the handler gets."""
    run_as: str = ""
    """The user as whom the handler runs; empty for the worker's own."""
    worktree: Worktree = NoWorktree()
    """Where the handler works."""
    comments: WhoseComments = WhoseComments.AUTO
    """Whose comments the handler gets to read."""

    @property
    def final(self) -> bool:
        return not self.next

    @property
    def entry_labels(self) -> tuple[str, ...]:
        """The labels an issue needs to be worked here: the stage's, and its gate's if any."""
        gate = (self.gate.label,) if isinstance(self.gate, ApprovalGate) else ()
        return (self.label, *gate)

    @property
    def passes_by_itself(self) -> bool:
        """Whether a worker moves the issue on without a handler, once the gate is open."""
        return isinstance(self.handler, NoHandler) and isinstance(self.gate, ApprovalGate)

    @property
    def served(self) -> bool:
        """Whether a worker has work in this stage: a handler to run, or a gate to pass."""
        return not self.final and (not isinstance(self.handler, NoHandler) or self.passes_by_itself)


UNQUEUED = Stage(name=StageName(""), label="")
"""The stage of an issue without a stage label: callers of the agent dialect claim such issues too.
An issue that goes back to this stage gets no label.
"""


class Approval(Struct, frozen=True):
    """Whose approvals count, and how many it takes."""

    approvers: frozenset[str] = frozenset()
    """Only these people's rulings count; empty: those of everybody who may write."""
    needed: int = 1
    four_eyes: bool = False
    """Whether rulings of those who asked for the work, or had a hand in it, do not count."""
    relays: frozenset[str] = frozenset()
    """Accounts that hand on the rulings of others, and sign them."""
    proven: bool = False
    """Whether the tracker proves which account wrote a comment."""

    def __post_init__(self) -> None:
        for name in ("approvers", "relays"):  # as trackers compare logins
            folded = frozenset(login.casefold() for login in getattr(self, name))
            force_setattr(self, name, folded)
        if self.relays and not self.approvers:
            raise ValueError("[approval] relays without approvers: anybody could be relayed")
        if self.approvers and len(self.approvers) < self.needed:
            raise ValueError(
                f"[approval] needed is {self.needed}, and there are {len(self.approvers)} approvers"
            )


class LabelNames(Struct, frozen=True):
    """The labels that are no stages."""

    claimed: str = "claimed"
    paused: str = "paused"
    parked: str = "parked"


class Pipeline(Struct, frozen=True):
    stages: tuple[Stage, ...]
    labels: LabelNames = LabelNames()
    blockers: frozenset[str] = frozenset()
    """Further labels that keep workers off."""
    priorities: tuple[str, ...] = ()
    """Labels whose issues jump the queue, the most urgent first."""
    people: People = People()
    """Which signs of other people and tools keep workers off."""
    approval: Approval = Approval()
    """Whose approvals count."""
    dialect: Dialect = Dialect.NATIVE
    """How our cards are spelt on the tracker."""
    swaps_labels: bool = True
    """Whether the tracker adds one label and removes another in one request. If it cannot, no label
    gives way: a claim painted late would take off the last label by which a query finds the issue.
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
        """The stages whose label is among `labels`. Exactly one, while no move is being painted."""
        return tuple(stage for stage in self.stages if stage.label in labels)

    def worked_stage(self, labels: frozenset[str], worked: StageName | None) -> Stage | None:
        """The stage of an issue with `claimed` in the place of a stage label.

        The stage of the last run (`worked`), if the label of `worked` gives way; otherwise the
        first stage which gives way. None if the issue carries a stage label, or not `claimed`.
        """
        if self.labels.claimed not in labels or self.stages_of(labels):
            return None
        if worked == UNQUEUED.name and self.dialect is Dialect.AGENT:
            return self.stage(worked)
        giving_way = [stage for stage in self.stages if stage.gives_way]
        of_last_run = [stage for stage in giving_way if stage.name == worked]
        return next(iter(of_last_run or giving_way), None)

    def has_left(self, stage: Stage, labels: frozenset[str]) -> bool:
        """Whether the labels of an issue held in `stage` show another stage, or none.

        No stage label at all proves no move if the label of `stage` gives way, or if `stage` has
        no label.
        """
        if stage.label in labels:
            return False
        unshown = stage.gives_way or stage.name == UNQUEUED.name
        return bool(self.stages_of(labels)) or not unshown

    def held_labels(self, stage: Stage) -> tuple[str, ...]:
        """The labels of an issue in this stage while a lease is held."""
        claimed = self.labels.claimed
        return (claimed,) if stage.gives_way else (stage.label, claimed)

    def target(self, origin: StageName, wanted: str | None) -> Stage:
        """The stage to which a finished issue goes. Raises IllegalMove for an undefined move."""
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
        """The labels which stop running work when a person puts them on."""
        return self.blockers | {self.labels.paused, self.labels.parked}

    @property
    def every_label(self) -> tuple[str, ...]:
        """All labels which the pipeline may write, in the order a person would list them."""
        names = []
        for stage in self.stages:
            authored = stage.follows.authored if isinstance(stage.follows, FollowsPull) else ""
            names += [stage.label, stage.working_label, *stage.entry_labels, authored]
        names += [self.labels.claimed, self.labels.paused, self.labels.parked]
        names += sorted(self.blockers)
        return tuple(dict.fromkeys(name for name in names if name))


def _check_names(pipeline: Pipeline) -> None:
    """No label plays two roles, and no two stages have the same name. Raises ValueError."""
    if not pipeline.stages:
        raise ValueError("the pipeline has no stage")
    marks = pipeline.labels
    roles = [
        (marks.claimed, "the claimed label"),
        (marks.paused, "the paused label"),
        (marks.parked, "the parked label"),
    ]
    for stage in pipeline.stages:
        roles.append((stage.label, f"the label of stage {stage.name!r}"))
        if stage.working_label:
            roles.append((stage.working_label, f"the working label of stage {stage.name!r}"))
    seen: dict[str, str] = {}
    for label, role in roles:
        key = label.casefold()  # trackers fold case; two roles must not share one label there
        if not label or label != label.strip() or "," in label:
            raise ValueError(f"{role} may not be empty, padded or contain a comma: {label!r}")
        if key in seen:
            raise ValueError(f"{role} and {seen[key]} are the same label {label!r}")
        seen[key] = role
    _check_shared_labels(pipeline, seen)
    names = [stage.name for stage in pipeline.stages]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"stage {twice[0]!r} is defined twice")
    for blocker in pipeline.blockers:
        if blocker.casefold() in seen:
            raise ValueError(f"blocker {blocker!r} is also {seen[blocker.casefold()]}")


def _check_shared_labels(pipeline: Pipeline, taken: dict[str, str]) -> None:
    """Stages may share an approval label, and the label of authored pull requests; but neither
    label may play another role. Raises ValueError.
    """
    used = {label.casefold() for label in (*pipeline.blockers, *taken)}
    for stage in pipeline.stages:
        for label in stage.entry_labels[1:]:
            if not label.strip() or label.casefold() in used:
                raise ValueError(
                    f"the gate of stage {stage.name!r} needs a label of its own: {label!r}"
                )
    used |= {label.casefold() for stage in pipeline.stages for label in stage.entry_labels[1:]}
    for stage in pipeline.stages:
        label = stage.follows.authored if isinstance(stage.follows, FollowsPull) else ""
        if label and (label.casefold() in used or label != label.strip() or "," in label):
            raise ValueError(f"stage {stage.name!r}: authored needs a label of its own: {label!r}")


def _check_moves(pipeline: Pipeline) -> None:
    """Moves lead to other stages of the pipeline, and some stage is final. Raises ValueError."""
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
        _check_gate(stage)
        if stage.attempts < 1:
            raise ValueError(f"stage {stage.name!r}: attempts must be at least 1")
        if stage.wip is not None and stage.wip < 1:
            raise ValueError(f"stage {stage.name!r}: wip must be at least 1")
    if not any(stage.final for stage in pipeline.stages):
        raise ValueError("no stage is final: an issue would go round for ever")


def _check_gate(stage: Stage) -> None:
    """A gate sends issues back by a legal move. Raises ValueError."""
    gate = stage.gate
    if not isinstance(gate, ApprovalGate):
        return
    if gate.back is not None and gate.back not in stage.next:
        found = ", ".join(stage.next)
        raise ValueError(f"stage {stage.name!r}: back {gate.back!r} is not one of next: {found}")
    if gate.after_timeout is not AfterTimeout.STAY and gate.timeout is None:
        raise ValueError(f"stage {stage.name!r}: gate_expires goes with gate_timeout")
    if gate.after_timeout is AfterTimeout.BACK and gate.back is None:
        raise ValueError(f"stage {stage.name!r}: gate_expires = 'back' goes with back")


def _check_follows(stage: Stage) -> None:
    """A stage which follows pull requests has a move back and no gate. Raises ValueError."""
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
