"""The Python API: open a backlog, hold a lease, register handlers, run a worker.

A thin layer over the services. If a race is lost, `try_lease` returns a value, and `lease` raises
`NotGranted`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from dibs.core.durations import parse_duration
from dibs.core.errors import LeaseLost, NotGranted, Outage
from dibs.core.ids import HolderId, IssueRef, holder_name
from dibs.core.issue import Draft, Issue
from dibs.core.named import chosen_hold, hold_ref
from dibs.core.pipeline import Stage
from dibs.core.references import parse_reference
from dibs.named.holds import Hold, HoldRefused, Holds, HoldWish
from dibs.named.loops import Loop, Rhythm, Tick
from dibs.services.board import Board, Explanation
from dibs.services.claiming import Beaten, Claimed, ClaimOptions, ClaimResult, Doubtful, Refused
from dibs.services.ending import FinishRefused, FinishResult
from dibs.services.following import FollowReport
from dibs.services.keeping import InHand
from dibs.services.running import PythonHandler
from dibs.services.sweeping import SweepReport
from dibs.services.working import Until, Worker, WorkReport
from dibs.settings import load as config
from dibs.wiring.services import Services, connect, worker_name

_Handler = TypeVar("_Handler", bound=PythonHandler)
IssueLike = IssueRef | Issue | str | int


class HeldLease(InHand):
    """A lease that you hold, renewed in the background until you end or lose it."""

    def __init__(self, services: Services, claimed: Claimed) -> None:
        self._advancing = services.advancing
        self._keeper = services.keep(claimed)
        self._supervision = services.supervise(self._keeper)
        self._result: FinishResult | None = None

    @property
    def issue(self) -> IssueRef:
        return self._keeper.issue

    @property
    def stage(self) -> str:
        return self._keeper.stage_name

    def advance(self, to: str | None = None, *, note: str = "") -> None:
        """Move the issue on and end the lease. Raises LeaseLost if the lease was lost before."""
        self._end(lambda: self._advancing.advance(self._keeper, to, note))

    def give_back(self, *, note: str = "") -> None:
        """Return the issue without counting an attempt, and end the lease."""
        self._end(lambda: self._advancing.give_back(self._keeper, note))

    def fail(self, *, note: str = "") -> None:
        """Count a failed attempt, and end the lease."""
        self._end(lambda: self._advancing.fail(self._keeper, note))

    @property
    def ended(self) -> bool:
        return self._result is not None

    def _end(self, finish: Callable[[], FinishResult]) -> None:
        if self._result is not None:
            raise LeaseLost(self.issue, fence=self.fence, why="it was ended already")
        result = finish()  # an illegal move raises here, and the lease lives on
        self._supervision.stop()
        self._result = result
        if isinstance(result, FinishRefused):
            raise LeaseLost(self.issue, fence=self.fence, why=result.why)

    def leave(self, failure: BaseException | None) -> None:
        """End the lease at the end of a `with` body, unless the body has ended the lease.

        Without a failure the issue is given back; an exception counts as a failed attempt.
        """
        if self._result is not None:
            return
        try:
            if failure is None:
                self.give_back()
            elif isinstance(failure, Exception):
                self.fail(note=f"{type(failure).__name__}: {failure}")
            else:  # KeyboardInterrupt and the like are no evidence against the issue
                self.give_back(note=type(failure).__name__)
        except (LeaseLost, Outage):
            if failure is None:
                raise
            # The caller gets the body's own exception; the lease expires without our help.
        finally:
            self._supervision.stop()


class Dibs:
    """An open backlog."""

    def __init__(self, services: Services, holder: HolderId) -> None:
        self._services = services
        self._holder = holder

    @cached_property
    def _holds(self) -> Holds:
        return self._services.holds

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._services.close()

    @property
    def board(self) -> Board:
        """The read model behind the listings of the command line."""
        return self._services.board

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self._services.pipeline.stages

    # Issues

    def add(
        self,
        title: str,
        body: str = "",
        *,
        stage: str | None = None,
        labels: Iterable[str] = (),
    ) -> Issue:
        """Create an issue in a stage of the pipeline, by default the first."""
        pipeline = self._services.pipeline
        entry = pipeline.stage(stage) if stage else pipeline.stages[0]
        draft = Draft(title, body, frozenset(labels) | {entry.label})
        issue = self._services.tracker.create(draft)
        self._services.wake()
        return issue

    def reference(self, issue: IssueLike) -> IssueRef:
        if isinstance(issue, Issue):
            return issue.ref
        if isinstance(issue, IssueRef):
            return issue
        traits = self._services.tracker.traits
        return parse_reference(str(issue), default_repo=traits.repo, repos=traits.repos)

    def why(self, issue: IssueLike) -> Explanation:
        """Every reason why no worker picks the issue."""
        return self._services.explaining.explain(self.reference(issue))

    def sweep(self, *, limit: int = 1000, dry_run: bool = False) -> SweepReport:
        return self._services.sweeping.sweep(limit=limit, dry_run=dry_run)

    def follow(self, *, limit: int = 1000, dry_run: bool = False) -> FollowReport:
        """Move issues after their pull requests, in stages that follow pull requests."""
        return self._services.following.follow(self._holder, limit=limit, dry_run=dry_run)

    # Leases

    def _wish(self, ttl: timedelta | str | None) -> ClaimOptions:
        return ClaimOptions(self._holder, ttl=None if ttl is None else _span(ttl), kept=True)

    def try_lease(
        self,
        issue: IssueLike,
        *,
        ttl: timedelta | str | None = None,
        wait: timedelta | str = timedelta(),
    ) -> HeldLease | Refused | Beaten | Doubtful:
        """Claim the issue; with `wait`, wait at most as long for the present holder.

        Returns the lease, or a value with the reason why the claim failed.
        """
        options = self._wish(ttl)
        result: ClaimResult = self._services.queueing.claim(
            self.reference(issue), options, wait_s=_span(wait).total_seconds()
        )
        return HeldLease(self._services, result) if isinstance(result, Claimed) else result

    def try_next(
        self,
        *,
        stage: str | None = None,
        ttl: timedelta | str | None = None,
        wait: timedelta | str = timedelta(),
    ) -> HeldLease | None:
        """Claim the most urgent issue that is ready; with `wait`, wait at most as long for one."""
        options = self._wish(ttl)
        wanted = self._services.pipeline.stage(stage).name if stage else None
        wait_s = _span(wait).total_seconds()
        won = self._services.queueing.claim_next(options, stage=wanted, wait_s=wait_s)
        return HeldLease(self._services, won) if won is not None else None

    @contextmanager
    def lease(
        self,
        issue: IssueLike,
        *,
        ttl: timedelta | str | None = None,
        wait: timedelta | str = timedelta(),
    ) -> Iterator[HeldLease]:
        """Hold the issue for the length of a `with` body. Raises NotGranted if the claim fails.

        Leaving the body gives the issue back, unless the body ended the lease itself with
        `advance`, `fail` or `give_back`. An exception in the body counts as a failed attempt.
        """
        held = self.try_lease(issue, ttl=ttl, wait=wait)
        if not isinstance(held, HeldLease):
            raise not_granted(held)
        try:
            yield held
        except BaseException as failure:
            held.leave(failure)
            raise
        held.leave(None)

    # Leases by name

    @contextmanager
    def hold(
        self,
        name: str,
        *,
        slots: int | None = None,
        ttl: timedelta | str | None = None,
        wait: timedelta | str | None = None,
    ) -> Iterator[Hold]:
        """Hold a name for the length of a `with` body, alone or as one of `slots` holders.

        Arguments that are not given come from the name's `[[hold]]` in dibs.toml, or are defaults.
        Raises NotGranted if no slot becomes free in time.
        """
        spec = chosen_hold(
            self._services.settings.holds,
            name,
            slots=slots,
            ttl=_span(ttl) if ttl is not None else None,
            wait=_span(wait) if wait is not None else None,
        )
        wait_s = spec.wait.total_seconds()
        wish = HoldWish(spec.name, self._holder, spec.slots, spec.ttl, wait_s)
        taken = self._holds.take(wish)
        if isinstance(taken, HoldRefused):
            holders = ", ".join(record.lease.holder for record in taken.by)
            why = taken.why or f"held by {holders}"
            raise NotGranted(hold_ref(taken.name, 1), why, codes=("HELD",))
        try:
            yield taken
        finally:
            taken.release()

    def loop(self, name: str, tick: Callable[[Tick], None], *, every: timedelta | str) -> Loop:
        """A loop with a tick per window across all replicas; call its `run` in a thread."""
        return self._services.loop(Rhythm(name, _span(every), tick, self._holder))

    # Working

    def handler(self, stage: str) -> Callable[[_Handler], _Handler]:
        """Register a function as the handler of a stage; `work` calls it in this process."""
        name = self._services.pipeline.stage(stage).name

        def register(function: _Handler) -> _Handler:
            self._services.handle(name, function)
            return function

        return register

    def worker(
        self,
        *,
        stages: Iterable[str] = (),
        jobs: int | None = None,
        until: Until = Until.STOPPED,
        tell: Callable[[str], None] = lambda _: None,
    ) -> Worker:
        """A worker that is not running yet. Call `run`, and `leave` from a thread or a signal."""
        served = self._services.serving(tuple(stages))
        return self._services.worker(self._holder, served, jobs=jobs, until=until, tell=tell)

    def work(
        self,
        *,
        stages: Iterable[str] = (),
        jobs: int | None = None,
        until: Until = Until.DRAINED,
    ) -> WorkReport:
        """Run registered and configured handlers, by default until the backlog is drained."""
        return self.worker(stages=stages, jobs=jobs, until=until).run()


def _span(span: timedelta | str) -> timedelta:
    return parse_duration(span) if isinstance(span, str) else span


def not_granted(result: Refused | Beaten | Doubtful) -> NotGranted:
    """The error for a failed claim."""
    match result:
        case Refused(issue, reasons):
            codes = tuple(reason.code.value for reason in reasons)
            return NotGranted(issue, "; ".join(reason.text for reason in reasons), codes=codes)
        case Beaten(issue, record):
            return NotGranted(issue, f"{record.lease.holder} holds it", codes=("HELD",))
        case Doubtful(issue, why):
            return NotGranted(issue, why, codes=("UNPROVEN",))


def open(  # noqa: A001 - dibs.open(...) reads as what it does
    folder: str | Path | None = None,
    *,
    config_file: str | Path | None = None,
    tracker: str | None = None,
    leases: str | None = None,
    holder: str | None = None,
    create: bool = True,
) -> Dibs:
    """Open the backlog of a folder, by its dibs.toml; without one, the embedded default.

    A missing embedded backlog is created; with `create=False` it raises NoBacklog.
    """
    settings = config.load(
        Path(config_file) if config_file else None,
        start=Path(folder) if folder else None,
        tracker=tracker,
        leases=leases,
    )
    name = holder_name(holder) if holder else worker_name()
    return Dibs(connect(settings, author=name, create=create), name)
