"""The one place that turns configuration into adapters and services.

Every command imports it, so a service or an adapter is imported where it is built.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar, cast

from msgspec import Struct, field
from msgspec.structs import replace

from dibs.adapters.memory.control import MemoryGranters
from dibs.adapters.system import (
    FileHints,
    FileJournal,
    FileWaker,
    LateThreads,
    SystemClock,
    SystemThreads,
    WorkerFiles,
    mask,
)
from dibs.adapters.system import environment as own_environment
from dibs.core.durations import format_duration
from dibs.core.errors import BadConfiguration, NoBacklog, Untrusted, Unwritable
from dibs.core.events import Reached, unwatched
from dibs.core.fold import FoldRules
from dibs.core.ids import HolderId, IssueRef, RunId
from dibs.core.pipeline import Dialect, Env, InProcess, NoHandler, Pipeline, SignedGate, Stage
from dibs.core.references import without_secrets
from dibs.ports.leases import PROTECTIVE
from dibs.ports.system import Present
from dibs.ports.tracker import Applies, Tracker
from dibs.services.backlog import Backlog, Granting, Observers, OneStep
from dibs.settings.load import FILE_NAME, Origin, Settings, actor, user_file
from dibs.wiring.trackers import (
    TRACKERS,
    OpenTracker,
    open_tracker,
    sqlite_path,
    tracker_kind,
    wake_file,
)

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from dibs import hook, named, services
    from dibs.core.named import LoopSpec
    from dibs.core.signing import Keyring
    from dibs.hook.guard import Guarding
    from dibs.named.holds import Holds
    from dibs.named.loops import Loop, Rhythm
    from dibs.ports.leases import Granters, LeaseStore, Pauses, ShownLeases
    from dibs.ports.system import (
        Clock,
        Hints,
        Observer,
        Presence,
        Runner,
        Threads,
        Waker,
        Workplaces,
    )
    from dibs.ports.tracker import Budgeted, BudgetReport, Probing
    from dibs.services.adding import Adding
    from dibs.services.board import Board, Explaining
    from dibs.services.bundling import Bundling
    from dibs.services.claiming import Claimed, Claiming
    from dibs.services.diagnosing import Diagnosing
    from dibs.services.ending import Advancing
    from dibs.services.following import Following
    from dibs.services.gatekeeping import Gatekeeping
    from dibs.services.keeping import Keeper, Supervision
    from dibs.services.listening import Listening
    from dibs.services.migrating import Migrating
    from dibs.services.resuming import Queueing, Resuming
    from dibs.services.running import PythonHandler, Running
    from dibs.services.steering import Steering
    from dibs.services.sweeping import Checking, Sweeping
    from dibs.services.working import Until, Worker
else:

    class _Package:
        """A package whose modules are imported on first use: no command needs all of them."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, module: str) -> ModuleType:
            try:
                found = importlib.import_module(f"{self._name}.{module}")
            except ModuleNotFoundError as flaw:
                raise AttributeError(str(flaw), name=module, obj=self) from flaw
            setattr(self, module, found)
            return found

    hook, named, services = map(_Package, ("dibs.hook", "dibs.named", "dibs.services"))

_WEBHOOK_KEYS = "GITHUB_WEBHOOK_SECRET"
_Answer = TypeVar("_Answer")
_Service = TypeVar("_Service")


class Adapters(Struct):
    """The outside world, as configured."""

    tracker: Tracker
    store: LeaseStore | None
    """None: the comments are the leases."""
    pauses: Pauses
    observers: tuple[Observer, ...]
    """Take the events of the services: the journal, metrics, notifications, traces."""
    clock: Clock
    threads: Threads = field(default_factory=SystemThreads)
    granters: Granters = field(default_factory=MemoryGranters)
    keyring: Keyring | None = None
    """The keys that sign and verify marks; None: marks are not signed."""
    hints: Hints | None = None
    """Wake idle workers and holders if the tracker may have changed; None: they only poll."""
    waker: Waker | None = None
    """Sends such hints; None: no process of this machine hears any."""
    presence: Presence | None = None
    """Knows the running workers of this folder; None: they are not known."""
    probing: Callable[[], Probing] | None = None
    """Tries what the tracker's adapter assumes; None: there is nothing to try."""
    budgeted: Budgeted | None = None
    """Reports the tracker's request budget; None: the tracker has none."""
    prepare: Callable[[], tuple[str, ...]] = tuple
    """Makes what a backlog needs besides its labels; returns what was made, in words."""
    one_step: Callable[[], AbstractContextManager[object]] | None = None
    """Makes tracker and store change together or not at all; None: they are not one database."""
    close: list[Callable[[], None]] = field(default_factory=list)


_ON_PIPELINE = (
    *("advancing", "board", "bundling", "checking", "claiming", "diagnosing", "explaining"),
    *("following", "gatekeeping", "guarding", "holds", "migrating", "queueing", "resuming"),
    *("running", "steering", "sweeping"),
)
"""The services that hold the pipeline, or a service that does."""


def _once(build: Callable[[Services], _Service]) -> _Service:
    """An attribute of `Services` which is built on first use."""
    return cast("_Service", cached_property(build))


class Services:
    """Everything a frontend may ask for, each built once, on first use."""

    def __init__(
        self,
        settings: Settings,
        adapters: Adapters,
        *,
        reached: Reached = unwatched,
        handlers: Mapping[str, PythonHandler] | None = None,
        new_run: Callable[[], RunId] | None = None,
        dice: Callable[[], Random] | None = None,
    ) -> None:
        self.settings = settings
        self.adapters = adapters
        self._one_step = OneStep(adapters.one_step, reached) if adapters.one_step else None
        watched = self._one_step is not None and reached is not unwatched
        self.reached = self._one_step.reached if self._one_step and watched else reached
        self._handlers = dict(handlers or {})
        self._new_run = new_run or fresh_run
        self.dice = dice or fresh_dice
        stamped, tracker = _stamped(settings, adapters), adapters.tracker
        swaps = tracker.traits.applies is not Applies.ONE_BY_ONE
        self._stamped = replace(stamped, swaps_labels=swaps)

    def handle(self, stage: str, handler: PythonHandler) -> None:
        """Serve a stage with a function of this process. Services built before are built anew."""
        self._handlers[stage] = handler
        for name in (*_ON_PIPELINE, "pipeline", "backlog"):
            self.__dict__.pop(name, None)

    @cached_property
    def pipeline(self) -> Pipeline:
        """The configured pipeline, with handlers registered in this process in their stages."""
        stages = tuple(
            replace(stage, handler=InProcess()) if stage.name in self._handlers else stage
            for stage in self._stamped.stages
        )
        return replace(self._stamped, stages=stages)

    @cached_property
    def backlog(self) -> Backlog:
        """What the services share."""
        adapters = self.adapters
        return Backlog(
            tracker=adapters.tracker,
            leases=self.leases,
            pipeline=self.pipeline,
            pauses=adapters.pauses,
            observer=self.observer,
            clock=adapters.clock,
            threads=adapters.threads,
            granting=self.granting,
            new_run=self._new_run,
            grace=self.settings.grace,
            settle=self.rules.settle,
            max_ttl=self.settings.max_ttl,
            reached=self.reached,
            one_step=self._one_step or nullcontext,
            mask=mask,
        )

    @cached_property
    def observer(self) -> Observer:
        """The observers, as one."""
        observers = self.adapters.observers
        observer = observers[0] if len(observers) == 1 else Observers(observers)
        return self._one_step.observer(observer) if self._one_step else observer

    @property
    def tracker(self) -> Tracker:
        return self.adapters.tracker

    @cached_property
    def rules(self) -> FoldRules:
        settle = self.settings.settle
        return FoldRules(
            max_ttl=self.settings.max_ttl,
            settle=self.tracker.traits.settle if settle is None else settle,
        )

    @cached_property
    def leases(self) -> ShownLeases:
        clock = self.adapters.clock
        if self.adapters.store is not None:
            from dibs.services.shown_leases import Showing

            return Showing(
                self.adapters.store,
                self.tracker,
                clock,
                rules=self.rules,
                reached=self.reached,
                one_step=self._one_step,
            )
        from dibs.services.comment_leases import CommentLeases

        return CommentLeases(
            self.tracker,
            clock,
            rules=self.rules,
            claimed_label=self.settings.pipeline.labels.claimed,
            reached=self.reached,
        )

    def shown_by_cards(self) -> Services | None:
        """These services for onlookers while the lease store cannot be reached.

        They read the leases from the cards on the tracker. None if there is no store of its own.
        """
        from dibs.services.store_away import ShownByCards

        store = self.adapters.store
        if store is None:
            return None
        made = Services(self.settings, self.adapters)
        made.__dict__["leases"] = ShownByCards(
            store,
            self.tracker,
            self.adapters.clock,
            rules=self.rules,
            claimed=self.settings.pipeline.labels.claimed,
        )
        return made

    def _for_names(
        self, what: str
    ) -> tuple[LeaseStore, Tracker, Pipeline, Granting, Observer, Clock, Threads]:
        """The parts of a lease on a name: the store itself, because the tracker shows no such."""
        adapters = self.adapters
        if adapters.store is None:
            raise BadConfiguration(
                f"{what} needs a lease store of its own, and leases are kept in comments; "
                "see dibs stores"
            )
        beside = (self.tracker, self.pipeline, self.granting, self.observer)
        return (adapters.store, *beside, adapters.clock, adapters.threads)

    @cached_property
    def holds(self) -> Holds:
        turns, parts = named.holds.Turns(), self._for_names("a hold")
        return named.holds.Holds(*parts, new_run=self._new_run, dice=self.dice(), turns=turns)

    def loop(self, rhythm: Rhythm) -> Loop:
        parts = self._for_names(f"loop {rhythm.name!r}")
        return named.loops.Loop(*parts, new_run=self._new_run, dice=self.dice(), rhythm=rhythm)

    granting = _once(lambda it: Granting(it.adapters.granters, granter_name(it.settings)))
    claiming: Claiming = _once(lambda it: services.claiming.Claiming(it.backlog))
    advancing: Advancing = _once(lambda it: services.ending.Advancing(it.backlog))
    checking: Checking = _once(lambda it: services.sweeping.Checking(it.backlog, it.claiming))
    resuming: Resuming = _once(lambda it: services.resuming.Resuming(it.backlog))
    board: Board = _once(lambda it: services.board.Board(it.backlog, lambda: it.claiming))
    steering: Steering = _once(
        lambda it: services.steering.Steering(
            it.backlog, it.wake, signs=it.adapters.keyring is not None
        )
    )
    bundling: Bundling = _once(
        lambda it: services.bundling.Bundling(it.backlog, it.claiming, it.advancing, it.keep)
    )

    @cached_property
    def queueing(self) -> Queueing:
        return services.resuming.Queueing(
            self.backlog,
            self.claiming,
            self.adapters.store,
            self.dice,
            board=lambda: self.board,
            running=lambda: self.running,
            poll_s=self.settings.poll.total_seconds(),
        )

    following: Following = _once(
        lambda it: services.following.Following(it.backlog, it.claiming, it.keep, it.advancing)
    )
    gatekeeping: Gatekeeping = _once(
        lambda it: services.gatekeeping.Gatekeeping(it.backlog, it.claiming, it.keep, it.advancing)
    )
    adding: Adding = _once(
        lambda it: services.adding.Adding(it.tracker, it.adapters.clock, it.rules.settle)
    )
    migrating: Migrating = _once(
        lambda it: services.migrating.Migrating(it.backlog, it.claiming, it.adapters.granters)
    )
    explaining: Explaining = _once(
        lambda it: services.board.Explaining(
            it.backlog, it.claiming, it.bundling, lambda: it.present
        )
    )
    runner: Runner = _once(lambda it: runner_of(it.settings))
    workplaces: Workplaces = _once(lambda it: places_of(it.settings))

    @property
    def sweeping(self) -> Sweeping:
        """A new `Sweeping` each time: a sweeper remembers leases for one thread."""
        return services.sweeping.Sweeping(self.backlog, self.claiming)

    @cached_property
    def guarding(self) -> Guarding:
        return hook.guard.Guarding(
            self.tracker,
            self.leases,
            self.pipeline,
            granting=self.granting,
            grace=self.settings.grace,
        )

    @cached_property
    def diagnosing(self) -> Diagnosing:
        from dibs.adapters.system import wall_clock
        from dibs.wiring.stores import store_page

        subject = services.diagnosing.Subject(
            tracker=self.tracker,
            leases=self.leases,
            store=self.adapters.store,
            granting=self.granting,
            pauses=self.adapters.pauses,
            pipeline=self.pipeline,
            settle=self.settings.settle,
            keyring=self.adapters.keyring,
            author=actor(),
            local_now=wall_clock,
            clock=self.adapters.clock,
            new_run=self._new_run,
            store_page=store_page(self.settings.leases),
            budgets=self.budgets,
            probing=self.adapters.probing,
        )
        return services.diagnosing.Diagnosing(subject)

    @cached_property
    def running(self) -> Running:
        return self.running_by(self.runner)

    def running_by(self, runner: Runner) -> Running:
        """Like `running`, with another runner."""
        return services.running.Running(
            self.backlog,
            self.keep,
            self.advancing,
            runner,
            handlers=self._handlers,
            workplaces=lambda: self.workplaces,
            resuming=lambda: self.resuming,
        )

    def keep(self, claimed: Claimed) -> Keeper:
        backlog = self.backlog
        return services.keeping.Keeper(
            claimed,
            backlog.leases,
            backlog.tracker,
            backlog.pipeline,
            backlog.clock,
            backlog.observer,
            self.reached,
            self.adapters.hints.about(claimed.lease.issue) if self.adapters.hints else None,
        )

    def supervise(self, keeper: Keeper) -> Supervision:
        return services.keeping.Supervision(keeper, self.adapters.clock, self.adapters.threads)

    @property
    def present(self) -> Present:
        """The stages that running workers of this folder serve, as far as they are known."""
        return Present() if self.adapters.presence is None else self.adapters.presence.present()

    def wake(self, issue: IssueRef | None = None) -> None:
        """Hint at a change to the idle workers of this folder, or to the holder of the issue.

        A hint that cannot be written costs them waiting: then they find out by themselves.
        """
        if self.adapters.waker is not None:
            with suppress(Unwritable):
                self.adapters.waker.wake(issue)

    def serving(self, wanted: Sequence[str]) -> tuple[Stage, ...]:
        """The stages to serve: the wanted stages, or all stages with a handler.

        Raises NoSuchStage for an unknown name. Raises BadConfiguration if no stage can be served,
        if a stage has a signed gate and no key is set, or if a stage is irreversible and the store
        is not atomic and fenced. Raises Untrusted for credentials that a found file may not pass.
        """
        chosen = tuple(self.pipeline.stage(name) for name in wanted) or self.pipeline.stages
        served = tuple(stage for stage in chosen if stage.served)
        # Gates that open by themselves are not a reason to be up, unless one was asked for.
        idle = not wanted and all(stage.passes_by_itself for stage in served)
        if idle or not served:
            what = " and ".join(wanted) if wanted else "any stage"
            raise BadConfiguration(
                f"no handler is set for {what}; give a stage run or python in dibs.toml, "
                "or say --stage STAGE --run COMMAND"
            )
        signed = [stage for stage in served if isinstance(stage.gate, SignedGate)]
        if signed and self.adapters.keyring is None:
            raise services.steering.no_key(signed[0])
        unsafe = [stage.name for stage in served if stage.irreversible]
        if unsafe and PROTECTIVE not in self.leases.guarantees:
            raise BadConfiguration(
                f"stage {unsafe[0]!r} is irreversible, and leases {granter_name(self.settings)!r}"
                " are not atomic and fenced; see dibs stores for those that are"
            )
        refuse_to_pass(self.settings, served)
        return tuple(stage for stage in self.pipeline.stages if stage in served)

    def worker(
        self,
        holder: HolderId,
        stages: tuple[Stage, ...],
        *,
        jobs: int | None = None,
        until: Until | None = None,
        stop_grace_s: float | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> Worker:
        settings = self.settings
        options = services.working.WorkOptions(
            holder=holder,
            stages=tuple(reversed(stages)),
            jobs=jobs or settings.jobs,
            until=until or services.working.Until.STOPPED,
            poll_s=settings.poll.total_seconds(),
            sweep_s=settings.sweep.total_seconds(),
            stop_grace_s=settings.stop_grace.total_seconds()
            if stop_grace_s is None
            else stop_grace_s,
            repo=self.tracker.traits.repo,
            repos=self.tracker.traits.repos or (self.tracker.traits.repo,),
            cheap_reads=self.tracker.traits.cheap_reads,
        )
        following, scanning = self.following, services.scanning
        presence, handled = (
            self.adapters.presence,
            frozenset(stage.name for stage in stages if not isinstance(stage.handler, NoHandler)),
        )
        here = Present(frozenset(stage.name for stage in stages), handled)
        cost = scanning.COSTLY if self.tracker.traits.shortlists else scanning.CHEAP
        return services.working.Worker(
            self.backlog,
            self.claiming,
            self.running,
            scanning.Scanner(self.backlog, cost, poll_s=options.poll_s, dice=self.dice()),
            self.sweeping,
            self.runner,
            options,
            self.dice(),
            bundling=self.bundling,
            workplaces=lambda: self.workplaces,
            hints=self.adapters.hints,
            following=following if following.stages else None,
            gatekeeping=self.gatekeeping if self.gatekeeping.stages else None,
            announce=lambda: presence.announce(here) if presence else lambda: None,
            tell=tell,
        )

    def budgets(self) -> tuple[BudgetReport, ...]:
        """What is left of each token; none where the tracker has no budget."""
        budgeted = self.adapters.budgeted
        return () if budgeted is None else budgeted.budgets()

    def prepare(self) -> tuple[str, ...]:
        """Create what the backlog lacks, labels for example. Returns a line for each creation."""
        labels = (*self.pipeline.every_label, *self.pipeline.priorities)
        tracker = self.tracker
        missing = tracker.missing_labels(labels)
        tracker.prepare(labels)
        return (*(f"label {label}" for label in missing), *self.adapters.prepare())

    def close(self) -> None:
        for close in reversed(self.adapters.close):
            close()


def _stamped(settings: Settings, adapters: Adapters) -> Pipeline:
    """The pipeline on the tracker, with its proofs of who approved, and its timestamps.

    Raises BadConfiguration for a lease too short for the timestamps of the tracker it runs on.
    """
    traits, pipeline = adapters.tracker.traits, settings.pipeline
    pipeline = replace(pipeline, approval=replace(pipeline.approval, proven=traits.accounts))
    if adapters.store is not None:
        return pipeline
    stages = []
    for stage in pipeline.stages:
        try:
            stages.append(replace(stage, terms=stage.terms.stamped_in(traits.grain)))
        except ValueError as flaw:
            raise BadConfiguration(
                f"stage {stage.name!r}: ttl {format_duration(stage.terms.ttl)} is too short for "
                f"leases in comments on {traits.name}: {flaw}"
            ) from flaw
    return replace(pipeline, stages=tuple(stages))


def connect(
    settings: Settings,
    *,
    author: str,
    handlers: Mapping[str, PythonHandler] | None = None,
    create: bool = True,
) -> Services:
    """Build everything the settings name.

    Without `create`, a missing backlog raises NoBacklog: an empty one would hide a wrong path.
    """
    reached: Reached = unwatched
    if failpoint := os.environ.get("DIBS_FAILPOINT"):
        from dibs.adapters.system import from_environment

        reached = from_environment(failpoint)
    keyring = keyring_of()
    adapters = _adapters(settings, author, keyring, create=create)
    if settings.pipeline.dialect is not Dialect.NATIVE:
        # what is signed is the native line, so this comes before
        from dibs.adapters.system import wall_clock
        from dibs.adapters.wrappers.trackers import SpokenTracker

        adapters.tracker = SpokenTracker(adapters.tracker, wall_clock)
    if keyring is not None:
        from dibs.adapters.wrappers.trackers import SignedTracker

        adapters.tracker, adapters.keyring = SignedTracker(adapters.tracker, keyring), keyring
    return Services(settings, adapters, reached=reached, handlers=handlers)


def runner_of(settings: Settings) -> Runner:
    from dibs.adapters.runners.process import ProcessRunner

    return ProcessRunner(
        settings.runs.absolute(),
        os.environ,
        settings.here or settings.root,
        root=settings.root,
        configuration=settings.variables,
        output_max=settings.output_bytes,
        may_pass=settings.may_pass,
        share=settings.share,
    )


def python_lookup(settings: Settings) -> Callable[[str], None]:
    """Looks for a Python handler on the import path of a run, and imports nothing."""
    from dibs.adapters.runners.lookup import look_for_python

    return lambda target: look_for_python(target, settings.here or settings.root)


def wrongly_shared(settings: Settings) -> tuple[list[str], list[str]]:
    """Files of dibs that are open to too many users, and files closed to the group of `share`."""
    wake = wake_file(settings)
    files = [wake.parent, wake, settings.runs, settings.runs / ".open", settings.journal or wake]
    files += [wake.with_name(name) for name in ("control.db", "sightings.db", "workers", "git")]
    for setting in (settings.tracker, settings.leases):
        scheme, _, place = setting.partition(":")
        if scheme == "sqlite" and place:
            files += [settings.root / f"{place}{end}" for end in ("", "-wal", "-shm")]
    kept_out, wanted = ~settings.share.folder_mode & 0o077, settings.share.file_mode
    bare, shut = [], []
    for file in dict.fromkeys(file for file in files if file.exists()):
        mode, shown = file.stat().st_mode, f"{file} ({file.stat().st_mode & 0o7777:o})"
        # What is in a closed folder is closed.
        ways = (folder.stat().st_mode for folder in file.absolute().parents)
        if mode & kept_out and all(way & kept_out & 0o011 for way in ways):
            bare.append(shown)
        if mode & wanted != wanted:
            shut.append(shown)
    return bare, shut


def refuse_to_pass(settings: Settings, served: Sequence[Stage | LoopSpec]) -> None:
    """Raise Untrusted for what a handler or a loop must not get of our environment.

    A refusal, because a variable that is left out without a word looks like a fault of the handler.
    """
    own = user_file(os.environ)
    for one in served:
        kind = "stage" if isinstance(one, Stage) else "loop"
        who = f"{settings.source}: {kind} {one.name!r}"
        if one.env is Env.INHERIT and settings.origin is Origin.FOUND:
            raise Untrusted(
                f"{who} has env = 'inherit'; a file that was found by searching may not hand on "
                "your whole environment",
                hint=f"if you want this: name the file with --config, or add {str(settings.root)!r}"
                f" to folders of [trust] in {own}",
            )
        if (name := next((n for n in one.pass_env if not settings.may_pass(n)), None)) is None:
            continue
        what = f"{who} hands on {name!r}"
        if name.startswith("DIBS_SIGNING_KEY"):
            raise Untrusted(f"{what}; a handler that can sign can forge every mark")
        verb = "work" if kind == "stage" else "loop"
        raise Untrusted(
            f"{what}; a file that was found by searching may not hand on a credential",
            hint=f"if you want this: use dibs {verb} --pass-env {name}, or add {name!r} to "
            f"pass_env of [trust] in {own}, or name the file with --config",
        )


def run_file(runs: Path, run: str, name: str, most: int) -> bytes:
    """The first bytes of a file of a run; the last bytes, if `most` is negative.

    Raises OSError, and ValueError for a link, a pipe or a device left by a handler.
    """
    from dibs.adapters.system import read_regular

    if "/" in run:
        raise ValueError(f"{run!r} is no run")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(runs / run, flags)
    try:
        return read_regular(name, most, folder)
    finally:
        os.close(folder)


def places_of(settings: Settings) -> Workplaces:
    """Where runs work whose stages ask for worktrees; git is looked for only then."""
    from dibs.worktrees.trees import WorktreePlaces

    return WorktreePlaces(settings.root, settings.repos)


def named_repos(settings: Settings) -> tuple[str, ...]:
    """The repositories in the tracker's setting; the nameless repository without any."""
    kind = tracker_kind(settings.tracker)
    return ("",) if kind is None else kind.repos(settings.tracker.partition(":")[2])


def with_timeout(work: Callable[[], _Answer], seconds: float) -> _Answer:
    """The answer of `work`. Raises Unavailable if it takes longer than `seconds`."""
    return hook.guard.in_time(work, seconds, SystemClock(), SystemThreads())


def backlog_is_absent(settings: Settings) -> bool:
    """Whether the embedded backlog was never made; False if it cannot be: its folder is none."""
    scheme, _, place = settings.tracker.partition(":")
    if scheme != "sqlite":
        return False
    path = sqlite_path(settings, place)
    return not path.exists() and (path.parent.is_dir() or not path.parent.exists())


def unused_above(settings: Settings) -> str:
    """The settings above the folder where the search ended, in words; empty without settings.

    Only settings of the user or root: a hint must not lead to a file of another user.
    """
    for folder in settings.root.absolute().parents if settings.file is None else ():
        file, kept = folder / FILE_NAME, folder / ".dibs"
        with suppress(OSError):
            place, mark = (file, file) if file.is_file() else (folder, kept)
            if mark.exists() and mark.lstat().st_uid in (0, os.geteuid()):
                return (
                    f"{place} is not used: the search for settings ends at the top of a git "
                    "working tree, at the home folder and at a mount point"
                )
    return ""


def refuse_absent(settings: Settings) -> None:
    """Raise NoBacklog if the embedded backlog has no file, or an empty file."""
    scheme, _, place = settings.tracker.partition(":")
    if scheme != "sqlite":
        return
    path = sqlite_path(settings, place).absolute()
    if backlog_is_absent(settings):
        if above := unused_above(settings):
            hint = f"--config or DIBS_CONFIG name other settings; {NoBacklog.hint}"
            raise NoBacklog(f"there is no backlog at {path}; {above}", hint=hint)
        raise NoBacklog(f"there is no backlog at {path}")
    if path.is_file() and path.stat().st_size == 0:  # SQLite writes a header before any table
        raise NoBacklog(f"the backlog {path} is an empty file (0 bytes)")


def keyring_of(environment: Mapping[str, str] | None = None) -> Keyring | None:
    """The keys that marks are signed with. Raises BadConfiguration, which shows none of them."""
    environment = own_environment() if environment is None else environment
    keys, wanted = environment.get("DIBS_SIGNING_KEY", ""), environment.get("DIBS_SIGNING", "")
    if not keys and not wanted:
        return None
    from dibs.core.signing import BadKey, Strictness, parse_keyring

    if wanted not in ("", *Strictness):
        known = " or ".join(Strictness)
        raise BadConfiguration(f"DIBS_SIGNING {wanted[:20]!r} is not known; it may be {known}")
    if wanted and not keys:
        raise BadConfiguration("DIBS_SIGNING is set, and DIBS_SIGNING_KEY is not: no key, no proof")
    try:
        return parse_keyring(keys, Strictness(wanted or Strictness.STRICT))
    except BadKey as flaw:
        raise BadConfiguration(f"DIBS_SIGNING_KEY: {flaw}") from None  # not a word of the key


def listening(settings: Settings, *, unsigned: bool) -> Listening:
    """The service that takes the tracker's webhooks for this folder. Asks the tracker nothing.

    Raises BadConfiguration if no key is set to verify deliveries with, unless `unsigned`.
    """
    kind = tracker_kind(settings.tracker)
    if kind is None or kind.deliveries is None:
        shown = without_secrets(settings.tracker)
        raise BadConfiguration(f"tracker {shown!r} sends nothing by itself; github:OWNER/REPO does")
    keys = webhook_keys()
    if not keys and not unsigned:
        raise BadConfiguration(
            f"{_WEBHOOK_KEYS} is not set, so anybody could pretend to be GitHub; "
            "set it to the secret of the webhook",
            hint="look at the environment that dibs is started with",
        )
    return services.listening.Listening(
        kind.deliveries(keys),
        FileWaker(wake_file(settings), settings.share),
        settings.pipeline,
        SystemClock(),
        repos=named_repos(settings),
    )


def webhook_keys(environment: Mapping[str, str] | None = None) -> tuple[bytes, ...]:
    """The keys that verify deliveries: several while a new key replaces an old one.

    Raises BadConfiguration for a short key, and does not show the key: short keys can be found by
    trying, from a single delivery.
    """
    from dibs.core.signing import SHORTEST_SECRET

    environment = own_environment() if environment is None else environment
    keys = [key.strip() for key in environment.get(_WEBHOOK_KEYS, "").split(",") if key.strip()]
    if any(len(key) < SHORTEST_SECRET for key in keys):
        which = "the secret" if len(keys) == 1 else "one of the secrets"
        raise BadConfiguration(
            f"{_WEBHOOK_KEYS}: {which} is shorter than {SHORTEST_SECRET} characters",
            hint="see docs/guides/webhooks-as-hints.md for how to make one and to change it",
        )
    return tuple(key.encode() for key in keys)


def refuse_unknown(settings: Settings) -> None:
    """Raise BadConfiguration if no adapter has the scheme of `tracker` or `leases`."""
    if tracker_kind(settings.tracker) is None:
        raise _unknown("tracker", settings.tracker, [kind.form for kind in TRACKERS])
    if settings.leases == "auto":
        return
    from dibs.wiring.stores import STORES, store_kind

    if store_kind(settings.leases) is None:
        raise _unknown("leases", settings.leases, ["auto", *(kind.form for kind in STORES)])


def _unknown(key: str, value: str, forms: Sequence[str]) -> BadConfiguration:
    shown = without_secrets(value)
    return BadConfiguration(f"{key} {shown!r} is not known; it may be {', '.join(forms)}")


def _adapters(
    settings: Settings, author: str, keyring: Keyring | None, *, create: bool
) -> Adapters:
    refuse_unknown(settings)
    if not create:
        refuse_absent(settings)
    opened = open_tracker(settings, author, keyring)
    store, closing = _store(settings, opened)
    pauses, granters = opened.pauses, opened.granters
    if pauses is None or granters is None:
        from dibs.adapters.sqlite.control import SqliteGranters, SqlitePauses
        from dibs.adapters.sqlite.database import Database

        control = Database(settings.root / ".dibs" / "control.db", share=settings.share)
        closing.append(control.close)
        pauses, granters = pauses or SqlitePauses(control), granters or SqliteGranters(control)
    in_memory = settings.tracker.startswith("memory:")
    if store is not None and not in_memory and granter_name(settings) != "auto":
        from dibs.ports.leases import Waking
        from dibs.services.backlog import OwnedStore, WakingOwnedStore

        owned = WakingOwnedStore if isinstance(store, Waking) else OwnedStore
        store = owned(
            store,
            granters,
            granter_name(settings),
            settings.shared_names,
            fresh_run,
            opened.clock,
        )
    share = settings.share
    journal = FileJournal(settings.journal, share) if settings.journal and not in_memory else None
    if journal is not None:
        closing.append(journal.close)
    return Adapters(
        tracker=opened.tracker,
        store=store,
        pauses=pauses,
        observers=(journal,) if journal is not None else (),
        clock=opened.clock,
        threads=LateThreads(SystemClock()),
        granters=granters,
        hints=opened.hints or (None if in_memory else FileHints(wake_file(settings))),
        waker=None if in_memory else FileWaker(wake_file(settings), share),
        presence=None
        if in_memory
        else WorkerFiles(wake_file(settings).with_name("workers"), share),
        probing=opened.probing,
        budgeted=opened.budgeted,
        prepare=opened.prepare,
        one_step=opened.one_step if store is not None and settings.leases == "auto" else None,
        close=[*opened.close, *closing],
    )


def _store(
    settings: Settings, opened: OpenTracker
) -> tuple[LeaseStore | None, list[Callable[[], None]]]:
    """The store that grants (None: comments), and the functions which close the store."""
    scheme, _, place = settings.leases.partition(":")
    match scheme:
        case "comments":
            return None, []
        case "auto":
            return opened.own_leases() if opened.own_leases else None, []
        case "sqlite":
            from dibs.adapters.sqlite.database import Database
            from dibs.adapters.sqlite.leases import SqliteLeases

            database = Database(sqlite_path(settings, place), share=settings.share)
            return SqliteLeases(database), [database.close]
        case "memory" if settings.tracker.startswith("memory:") and opened.own_leases:
            return opened.own_leases(), []
        case "memory":
            raise BadConfiguration(
                f"leases {without_secrets(settings.leases)!r} do not go with "
                f"tracker {without_secrets(settings.tracker)!r}"
            )
        case _:
            from dibs.wiring.stores import Surroundings, open_store

            around = Surroundings(
                settings.root, settings.github, settings.share, budgeted=opened.budgeted
            )
            store = open_store(settings.leases, around)
            opened.budgeted = around.budgeted
            return store, [*around.closing, store.close]


_TELLING = ("namespace", "region", "endpoint", "host", "port", "db", "dbname", "service", "prefix")
"""Options that say which store is meant. All others say how to reach it, or are secret."""


def granter_name(settings: Settings) -> str:
    """The name of the configured store in the granter record: one name for each store.

    The tracker's own file is `auto`, however it is spelt. Other files are named by their path from
    the tracker's file, so that the name stays when the whole folder is moved.
    """
    scheme, _, place = settings.leases.partition(":")
    tracker, _, tracker_file = settings.tracker.partition(":")
    kind = tracker_kind(settings.tracker)
    if scheme == "auto" and kind is not None and kind.auto_leases != "auto":
        return kind.auto_leases
    if scheme != "sqlite":
        return without_secrets(settings.leases) + _telling_options(settings.leases)
    file = (settings.root / place).resolve()
    if tracker != "sqlite":
        return f"sqlite:{file}"
    backlog = (settings.root / tracker_file).resolve()
    return "auto" if file == backlog else f"sqlite:{os.path.relpath(file, backlog.parent)}"


def place_of(name: str, settings: Settings) -> str:
    """The address of the store with this name, as seen from the backlog, without credentials."""
    scheme, _, path = name.partition(":")
    tracker, _, tracker_file = settings.tracker.partition(":")
    if scheme != "sqlite" or tracker != "sqlite":
        return name
    backlog = (settings.root / tracker_file).resolve()
    return f"sqlite:{(backlog.parent / path).resolve()}"


def _telling_options(place: str) -> str:
    if "?" not in place:  # urllib costs a start more than most of our modules
        return ""
    from urllib.parse import parse_qsl, urlencode

    options = [
        (key, without_secrets(value))
        for key, value in parse_qsl(place.partition("?")[2])
        if key in _TELLING
    ]
    return f"?{urlencode(sorted(options), safe=':/')}" if options else ""


def fresh_run() -> RunId:
    """A nonce: the identity of one attempt."""
    return RunId(os.urandom(6).hex())


def fresh_dice() -> Random:
    from random import Random

    return Random()


def worker_name() -> HolderId:
    """Who a worker says it is, for people to read. Its identity is the run."""
    import socket

    return HolderId(f"{socket.gethostname().split('.')[0]}-{os.getpid()}")
