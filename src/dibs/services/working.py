"""The worker's loop: scan, spread, claim, run, sweep, and leave without stranding an issue.

The loop decides the next step and the time to wait; the services claiming, running and sweeping do
the work. Every wait is on an event that a finished job or a signal sets. An idle worker waits until
a job ends, a signal or a hint comes, or its poll is due.
"""

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import assert_never

from msgspec import Struct, field

from dibs.core.eligibility import Pause, PauseScope, ReasonCode, Whose, reasons_with
from dibs.core.errors import (
    HandlerUnusable,
    IssueLocked,
    Misuse,
    NoSuchComment,
    NoSuchIssue,
    NotPermitted,
    Outage,
    RateLimited,
    WorktreeUnavailable,
)
from dibs.core.ids import HolderId, IssueRef, LocalTime, RunId
from dibs.core.lease import Outcome
from dibs.core.pipeline import Command, NoWorktree, PythonCallable, Stage
from dibs.ports.system import Clock, Hints, Runner, Workplaces
from dibs.services.backlog import Backlog
from dibs.services.breaking import StageBreaker
from dibs.services.bundling import Bundling, Waits
from dibs.services.claiming import Beaten, Claimed, Claiming, ClaimOptions, Doubtful, Refused
from dibs.services.ending import Finished, FinishRefused, FinishResult
from dibs.services.following import Following
from dibs.services.gatekeeping import Gatekeeping
from dibs.services.running import Running, StopSignal
from dibs.services.scanning import Candidate, LookCost, Scanner, Spread
from dibs.services.sweeping import Share, Sweeping

SHORTEST_S = 0.01
"""No wait is shorter: the rest of a wait may be less than the step of a clock."""
_HINTS_A_POLL = 10
"""A worker follows at most so many hints between two polls."""


class Dozing:
    """The waits of an idle worker, which a hint may end early.

    The fleet's own work causes most hints, so a worker follows a hint now and then only; a hint
    that comes too soon is followed later. All workers of a machine hear a hint in the same moment,
    so each waits for a short random time before it looks.
    """

    def __init__(
        self,
        hints: Hints | None,
        clock: Clock,
        dice: random.Random,
        cost: LookCost,
        *,
        poll_s: float,
    ) -> None:
        self._hints = hints
        self._clock = clock
        self._dice = dice
        self._apart_s = max(poll_s / _HINTS_A_POLL, cost.hints_apart_s)
        self._stagger_s = min(poll_s, cost.arrival_s)
        self._heard = False
        self._next_from = LocalTime(0.0)

    def wait(self, wake: threading.Event, leaving: threading.Event, seconds: float) -> bool:
        """Wait for `wake` or a hint, at most `seconds`. True if a hint ended the wait."""
        if self._hints is None:
            self._clock.wait(wake, seconds)
            return False
        until = self._clock.now() + seconds
        while (left_s := until - self._clock.now()) > 0:
            if self._clock.wait(wake, max(min(left_s, self._hints.every_s), SHORTEST_S)):
                return False
            self._heard |= self._hints.heard()
            now = self._clock.now()
            if self._heard and now >= self._next_from:
                self._heard = False
                self._next_from = LocalTime(now + self._apart_s)
                self._clock.wait(leaving, self._dice.uniform(0.0, self._stagger_s))
                return True
        return False


_log = logging.getLogger("dibs.worker")
_HURRY_S = 2.0
_WITHOUT_SUCCESS = (Outcome.FAILED.value, Outcome.PARKED.value)
_SWEEP_LIMIT = 200
_LOOKS_PER_JOB = 3
"""Due claimed issues that a worker looks at in a sweep, for each issue that it may hold."""
_LONGEST_REST_S = 300.0
_FOLLOW_S = 30.0
"""A worker looks at pull requests within so long of a hint; the first of a fleet looks soon."""
_ISSUE_REFUSALS = (NoSuchIssue, NoSuchComment, IssueLocked)
"""The tracker refuses a single issue: deleted, transferred, locked. The worker goes on."""
_TAKEN = frozenset({ReasonCode.HELD, ReasonCode.NOT_SERVED})
"""Another worker came between the scan and the look: it holds the issue, or has moved it on."""
_PARKED_FOR = reasons_with(lambda meaning: meaning.whose is Whose.ATTEMPTS)
"""An issue without attempts left is parked if no other reason keeps workers off."""


class Until(StrEnum):
    """When a worker ends: when stopped, after a single step, or when no work is left."""

    STOPPED = "stopped"
    ONCE = "once"
    DRAINED = "drained"


class WorkOptions(Struct, frozen=True):
    holder: HolderId
    stages: tuple[Stage, ...]
    jobs: int = 1
    until: Until = Until.STOPPED
    poll_s: float = 5.0
    sweep_s: float = 30.0
    stop_grace_s: float = 30.0
    repo: str = ""
    repos: tuple[str, ...] = ("",)
    """All repositories of the issues."""
    cheap_reads: bool = False


class WorkReport(Struct):
    """Counts of the worker's actions and results."""

    attempts: int = 0
    claimed: int = 0
    lost_races: int = 0
    refused: int = 0
    swept: int = 0
    followed: int = 0
    gated: int = 0
    """Issues that were opened, sent back or parked at a gate."""
    outcomes: Counter[str] = field(default_factory=Counter)
    unsuccessful: set[IssueRef] = field(default_factory=set)
    """Issues whose last run by this worker failed, was parked or broke off."""
    unrecorded: set[IssueRef] = field(default_factory=set)
    """Issues whose last run by this worker came to an end that did not reach tracker or store."""
    paused: tuple[Pause, ...] = ()
    barred: str = ""
    """Why this process may claim no issue at all; empty if it may."""
    unusable: str = ""
    tripped: dict[str, str] = field(default_factory=dict)
    """Stages that the worker stopped serving, because the handler is at fault; and why."""

    @property
    def did_something(self) -> bool:
        return bool(self.claimed or self.swept or self.followed or self.gated)


class Worker:
    def __init__(
        self,
        backlog: Backlog,
        claiming: Claiming,
        running: Running,
        scanning: Scanner,
        sweeping: Sweeping,
        runner: Runner,
        options: WorkOptions,
        dice: random.Random,
        *,
        bundling: Bundling,
        workplaces: Callable[[], Workplaces],
        hints: Hints | None = None,
        following: Following | None = None,
        gatekeeping: Gatekeeping | None = None,
        announce: Callable[[], Callable[[], None]] = lambda: lambda: None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._claiming = claiming
        self._running = running
        self._breaker = StageBreaker(backlog)
        self._failed: set[IssueRef] = set()
        """Issues that failed here since the last success: they rest until no other is left."""
        self._scanning = scanning
        self._sweeping = sweeping
        self._pauses = backlog.pauses
        self._runner = runner
        self._clock = backlog.clock
        self._options = options
        self._dice = dice
        self._threads = backlog.threads
        self._bundling = bundling
        self._workplaces = workplaces
        self._failed_places = 0
        """How often in a row no working trees could be made for a run."""
        self._dozing = Dozing(hints, backlog.clock, dice, scanning.cost, poll_s=options.poll_s)
        self._following = following
        self._gatekeeping = gatekeeping
        self._announce = announce
        self._tell = tell
        self._spread = Spread(dice, scanning.cost)
        self._wake = threading.Event()
        self._leaving = threading.Event()
        self._hurried = threading.Event()
        self._patient = False
        self._stop_jobs = StopSignal()
        self._jobs: set[RunId] = set()
        self._lock = threading.Lock()
        self._minding = threading.Lock()
        self._sweep_at = LocalTime(0.0)
        self._limited_until = LocalTime(0.0)
        self._swept_to: IssueRef | None = None
        self._follow_at = self._gates_at = LocalTime(0.0)
        self._followed_to: Mapping[str, IssueRef] | None = None
        self._told_lines, self._told_idle = set[str](), False
        self._backlog_name = backlog.tracker.traits.name
        self._paused_repos: set[str] = set()
        """Paused repositories with issues for us; a worker for several may find some paused."""
        self.report = WorkReport()

    @property
    def busy(self) -> int:
        """The number of jobs that run."""
        return len(self._jobs)

    # Leaving

    def leave(self, *, patient: bool = False) -> None:
        """Claim no more issues. Running handlers get `stop_grace_s`, then are stopped.

        `patient`: they go on, and their endings are tried again, for as long as their leases last.
        """
        self._patient = patient
        self._leaving.set()
        self._wake.set()

    def leave_now(self) -> None:
        """Claim no more issues and kill the handlers."""
        self._leaving.set()
        self._hurried.set()
        self._stop_jobs.kill_all("the worker was told to stop at once")
        self._wake.set()

    # The loop

    def run(self) -> WorkReport:
        """Work until the worker is stopped, or until the end that the options name.

        Handlers and places are checked before the first claim: a handler that cannot start must
        not cost an issue an attempt. Working trees that killed workers left are cleared then.
        """
        stages = self._options.stages
        for stage in stages:
            if isinstance(stage.handler, Command | PythonCallable):
                self._runner.check(
                    stage.handler,
                    elsewhere=stage.worktree != NoWorktree(),
                    run_as=stage.run_as,
                    env=stage.env,
                    pass_env=stage.pass_env,
                )
        worktrees = [stage.worktree for stage in stages]
        wanted = [worktree for worktree in worktrees if not isinstance(worktree, NoWorktree)]
        for worktree in wanted:
            self._workplaces().check(worktree, self._options.repos)
        if wanted:
            self._workplaces().recover()
        if self._options.until is not Until.ONCE:
            names = " and ".join(stage.name for stage in reversed(stages))
            jobs = f"{self._options.jobs} job{'s' * (self._options.jobs > 1)}"
            self._tell(f"{self._options.holder} serves {names} of {self._backlog_name}, {jobs}")
            # Workers that were started by the same command should not all begin at once.
            self._clock.wait(self._leaving, self._dice.uniform(0.0, self._scanning.cost.arrival_s))
        withdraw = self._announce()
        try:
            while True:
                self._wake.clear()
                if self._leaving.is_set() or (pause_s := self._step()) is None:
                    break
                if pause_s > 0 and self._dozing.wait(self._wake, self._leaving, pause_s):
                    self._scanning.look_anew()
                    soon_s = self._dice.uniform(0.0, min(_FOLLOW_S, self._options.sweep_s))
                    self._follow_at = min(self._follow_at, LocalTime(self._clock.now() + soon_s))
                    # Where reading is cheap, nobody answers a gate by comment.
                    gates_at = self._gates_at if self._options.cheap_reads else self._follow_at
                    self._gates_at = min(self._gates_at, gates_at)
        except BaseException as flaw:
            self.leave(patient=isinstance(flaw, NotPermitted))
            raise
        finally:
            withdraw()  # it claims no more
            self._go_home()
        return self.report

    def _step(self) -> float | None:
        """Sweep, follow pull requests and claim, each if due and allowed.

        Returns the seconds to wait before the next step; None to end.
        """
        options = self._options
        try:
            self._sweep_if_due()
            if self._limited_until > (now := self._clock.now()):
                # A job that ended woke us, or a sweep was due: the wait still holds.
                return max(min(self._limited_until, self._sweep_at) - now, SHORTEST_S)
            self._follow_if_due()
            self._watch_gates_if_due()
            self._mind_breaker()
            if len(self._jobs) >= options.jobs:  # no claim, so no need to know whether it may
                return self._idle()
            barred = self._claiming.barred()
            self.report.barred = f"{barred.text}; {barred.remedy}" if barred is not None else ""
            if self.report.barred:
                self._tell_once(self.report.barred)
                return self._idle()
            if not self._claim_one():
                return self._idle()
            if options.until is Until.ONCE:
                return None
            full = len(self._jobs) >= options.jobs  # the end of a job, or a sweep, is next
            return max(self._sweep_at - self._clock.now(), 0.0) if full else 0.0
        except RateLimited as limit:
            if options.until is Until.ONCE:  # a caller that runs single steps does not want to wait
                raise
            # Never sooner than the tracker asked for, and not all workers in the same moment.
            wait_s = max(limit.retry_after_s, 1.0) * self._dice.uniform(1.0, 1.1)
            _log.warning("rate limited; waiting %.0f s", wait_s)
            self._limited_until = LocalTime(self._clock.now() + wait_s)
            return min(wait_s, max(self._sweep_at - self._clock.now(), SHORTEST_S))
        except Outage as failure:
            if not failure.retryable:
                raise
            _log.warning("the tracker or store is not available, trying again: %s", failure)
            return self._jittered(options.poll_s)

    def _idle(self) -> float | None:
        """The seconds to wait after a step without a claim; None to end."""
        options = self._options
        if options.until is Until.ONCE:
            return None
        # A job that ends sets the wake event, so a full worker wakes up only to sweep.
        if len(self._jobs) >= options.jobs:
            return max(self._sweep_at - self._clock.now(), 0.0)
        if options.until is Until.DRAINED and not self._jobs:
            self.report.paused = self._in_force()
            if self.report.paused or self.report.barred:
                return None
            if not self._scanning.anything_left(self._open_stages()):
                pauses = self._pauses.pauses()
                self.report.paused = tuple(
                    pause for pause in pauses if pause.repo in self._paused_repos
                )
                for pause in self.report.paused:
                    self._tell_once(f"{pause}; its issues are left")
                return None
            self._tell_once("nothing is free; waiting for issues that others hold or that rest")
        elif not self._jobs and not self._told_idle:
            self._told_idle = True
            why = self.report.paused[0] if self.report.paused else "no issue to claim"
            self._tell(f"idle: {why}; looking again every {options.poll_s:g}s")
        return self._jittered(options.poll_s)

    def _tell_once(self, line: str) -> None:
        if line not in self._told_lines:
            self._told_lines.add(line)
            self._tell(line)

    def _jittered(self, seconds: float) -> float:
        return seconds * self._dice.uniform(0.5, 1.0)

    def _in_force(self) -> tuple[Pause, ...]:
        """The pauses of the fleet and of the worker's repository."""
        repo = self._options.repo
        return tuple(
            pause
            for pause in self._pauses.pauses()
            if pause.scope is PauseScope.FLEET or pause.repo == repo
        )

    def _sweep_if_due(self) -> None:
        now = self._clock.now()
        if now < self._sweep_at:
            return
        # End leases of dead workers of this machine whose handlers had finished.
        for claimed, result in self._running.finish_for_the_dead():
            if isinstance(result, Finished):
                self.report.swept += 1
                run = claimed.lease.run
                self._tell(f"the worker of run {run} ended when its handler had finished:")
            self._record(claimed, result)
        first = not self._sweep_at
        self._sweep_at = LocalTime(now + self._jittered(self._options.sweep_s))
        # The first sweep looks at every issue: much may have happened. Later sweeps take a share.
        share = None if first else Share(_LOOKS_PER_JOB * self._options.jobs, self._dice)
        try:
            report = self._sweeping.sweep(
                limit=_SWEEP_LIMIT, after=self._swept_to, share=share, due_only=True
            )
        except RateLimited as limit:
            # Lists may have a budget of their own. If claims must wait, they meet the limit too.
            _log.warning("rate limited; not sweeping for %.0f s", limit.retry_after_s)
            self._sweep_at = LocalTime(max(self._sweep_at, now + limit.retry_after_s))
            self._gates_at = LocalTime(max(self._gates_at, self._sweep_at))
            return
        self._swept_to = report.resume_after
        for entry in report.changed:
            self.report.swept += 1
            self._scanning.resting.forget(entry.issue)
            self._tell(f"{entry.issue} swept: {entry.text}")

    def _follow_if_due(self) -> None:
        """Move issues whose pull requests were merged or closed."""
        now = self._clock.now()
        if self._following is None or now < self._follow_at:
            return
        self._follow_at = LocalTime(now + self._jittered(self._options.sweep_s))
        try:
            report = self._following.follow(
                self._options.holder, limit=_SWEEP_LIMIT, after=self._followed_to
            )
        except RateLimited as limit:  # the look can wait, and claims may have a budget left
            self._follow_at = LocalTime(max(self._follow_at, now + limit.retry_after_s))
            return
        self._followed_to = report.resume_after
        for entry in report.changed:
            self.report.followed += 1
            self._scanning.resting.forget(entry.issue)
            self._tell(f"{entry.issue} followed: {entry.text}")

    def _watch_gates_if_due(self) -> None:
        """Open gates for rulings by comment, and move back what was rejected or not answered."""
        now = self._clock.now()
        if self._gatekeeping is None or now < self._gates_at:
            return
        self._gates_at = LocalTime(now + self._jittered(self._options.sweep_s))
        try:
            done = self._gatekeeping.watch(self._options.holder, limit=_SWEEP_LIMIT)
        except RateLimited as limit:  # the look can wait, and claims may have a budget left
            self._gates_at = LocalTime(max(self._gates_at, now + limit.retry_after_s))
            return
        for entry in done:
            if entry.changed:
                self.report.gated += 1
                self._scanning.resting.forget(entry.issue)
                self._scanning.look_anew()
                self._tell(f"{entry.issue} gate: {entry.text}")

    # Claiming

    def _claim_one(self) -> bool:
        """Claim candidates until a claim is won and the job started. False if none is left.

        A candidate rests after a lost or refused claim: the list of candidates comes to an end.
        """
        self.report.paused = self._in_force()
        if self.report.paused:
            return False
        resting = self._scanning.resting
        stages = [stage for stage in self._open_stages() if self._claiming.has_room(stage)]
        while not self._leaving.is_set():
            candidate = self._next_candidate(stages)
            if candidate is None:
                return False
            try:
                resting.forget(candidate.issue.ref)
                match self._claim_or_park(candidate):
                    case tuple(claims):
                        self._spread.won()
                        self.report.claimed += len(claims)
                        self._start(*claims)
                        return True
                    case Beaten() | Doubtful() as lost:
                        self._lose(candidate, lost)
                    case Refused() | Waits() as refused:
                        self._leave_alone(candidate, refused, stages)
                    case never:
                        assert_never(never)
            except _ISSUE_REFUSALS as refusal:
                self.report.refused += 1
                self._tell(f"{candidate.issue.ref} is left alone: {refusal}")
                resting.given_up(candidate.issue)
        return False

    def _lose(self, candidate: Candidate, lost: Beaten | Doubtful) -> None:
        """Let the issue of a lost bid rest, and the candidate by which its bundle was found."""
        self.report.lost_races += 1
        self._spread.lost()
        self._clock.wait(self._leaving, self._spread.pause_s())
        resting, issues = self._scanning.resting, {lost.issue, candidate.issue.ref}
        match lost:
            case Beaten(_, record):
                for issue in issues:
                    resting.rest(issue, max(record.remaining.total_seconds(), 0.2))
            case Doubtful(_, why):
                self._tell(f"{lost.issue} was bid for and not won: {why}")
                for issue in issues:
                    resting.unproven(issue, self._jittered(self._options.poll_s))
            case never:
                assert_never(never)

    def _next_candidate(self, stages: list[Stage]) -> Candidate | None:
        """The next issue to try. An issue that failed since the last success comes after all
        others: the more issues fail, the surer it is that the handler is at fault.
        """
        self._spread.holding = len(self._jobs)
        candidate = self._scanning.next_candidate(stages, self._spread)
        if candidate is None and self._failed:
            self._end_rest_of_failed()
            candidate = self._scanning.next_candidate(stages, self._spread)
        return candidate

    def _end_rest_of_failed(self) -> None:
        with self._lock:
            failed, self._failed = self._failed, set()
        for issue in failed:
            self._scanning.resting.forget(issue)

    def _claim_or_park(
        self, candidate: Candidate
    ) -> tuple[Claimed, ...] | Waits | Beaten | Doubtful | Refused:
        """Claim the candidate, with its bundle if the stage works bundles together.

        An issue without attempts left is refused; then a second claim, which overlooks the spent
        attempts, is made to park the issue. If a person has re-queued the issue in between, the
        second claim starts its job.
        """
        issue, stage, seen = candidate.issue.ref, candidate.stage, candidate.snapshot
        look = self._options.cheap_reads or not candidate.untouched or seen is not None
        options = ClaimOptions(self._options.holder, look_first=look, seen=seen, kept=True)
        result: tuple[Claimed, ...] | Claimed | Waits | Beaten | Doubtful | Refused
        if self._bundling.concerns(candidate.issue, stage):
            picked = seen or self._claiming.read(issue)
            result = self._bundling.claim(picked, stage, options, leaving=self._leaving.is_set)
        else:
            result = self._claiming.claim(issue, stage, options)
        if not isinstance(result, Refused | Waits):
            self.report.attempts += 1
            return (result,) if isinstance(result, Claimed) else result
        if result.after_grant:
            self.report.attempts += 1
        codes = {reason.code for reason in result.reasons}
        if ReasonCode.ATTEMPTS_SPENT not in codes or not codes <= _PARKED_FOR:
            return result
        if isinstance(result, Waits):
            issue, seen = result.member.issue.ref, None
        options = ClaimOptions(self._options.holder, overlook=_PARKED_FOR, seen=seen)
        second = self._claiming.claim(issue, stage, options)
        if not isinstance(second, Claimed):
            return result if isinstance(result, Waits) else second
        if second.failed_attempts < second.stage.attempts:  # a person re-queued the issue
            self.report.claimed += 1
            self._start(second)
        else:
            self._record(second, self._running.park(second))
        return result

    def _leave_alone(
        self, candidate: Candidate, refused: Refused | Waits, stages: list[Stage]
    ) -> None:
        """Let a refused candidate rest. Removes the stage from `stages` if the stage is full."""
        self.report.refused += 1
        reasons, codes = refused.reasons, {reason.code for reason in refused.reasons}
        paid, resting = refused.after_grant, self._scanning.resting
        if ReasonCode.REPOSITORY_PAUSED in codes:
            self._paused_repos.add(candidate.issue.ref.repo)
        resting.refused(candidate.issue, reasons, candidate.now, paid=paid)
        if ReasonCode.UNREADABLE in codes:
            resting.unproven(candidate.issue.ref, self._jittered(self._options.poll_s))
        bidding = candidate.snapshot is not None and (paid or ReasonCode.BID_PENDING in codes)
        looked = self._options.cheap_reads and isinstance(refused, Refused) and not paid
        if bidding or (looked and codes & _TAKEN):
            self._spread.met()
        if isinstance(refused, Waits):  # a claim that starts from another member would wait as well
            for other in refused.others:
                resting.refused(other, reasons, candidate.now, paid=paid)
        elif ReasonCode.WIP_LIMIT in codes:
            stages.remove(candidate.stage)

    # Jobs

    def _start(self, *claims: Claimed) -> None:
        """Run the claimed issues to the end in a new thread, and record the results."""
        self._told_idle = False
        for claimed in claims:
            lease = claimed.lease
            self._tell(
                f"{lease.issue} claimed for {lease.stage} (run {lease.run}, fence {lease.fence})"
            )
        lead = claims[0].lease
        with self._lock:
            self._jobs.add(lead.run)
        self._threads.start(partial(self._job, *claims), f"dibs-job-{lead.issue}")

    def _job(self, claimed: Claimed, *others: Claimed) -> None:
        """Run claimed issues to their end and record the results. Raises no exception."""
        claims, poll_s = (claimed, *others), self._options.poll_s
        named = " with ".join(str(member.lease.issue) for member in claims)
        try:
            results = self._running.run_together(claims, self._stop_jobs, self._breaker.judge)
            for member, result in zip(claims, results, strict=True):
                self._record(member, result, output=claimed.lease.run)
                if isinstance(result, Finished):
                    self._breaker.ended(claimed.stage, result)
            self._failed_places = 0
            self._mind_breaker()
        except WorktreeUnavailable as failure:
            # Every issue would meet the same: claim none for a while, longer each time.
            self._tell(f"{named} was given back: {failure}")
            for member in claims:
                self._scanning.resting.returned(member.lease.issue, poll_s)
            with self._lock:
                self.report.outcomes[Outcome.RETURNED.value] += len(claims)
                rest_s = min(poll_s * (1 << min(self._failed_places, 10)), _LONGEST_REST_S)
                self._failed_places += 1
                self._limited_until = LocalTime(self._clock.now() + rest_s)
        except HandlerUnusable as failure:
            self.report.unusable = str(failure)
            self._tell(f"{named} was given back: {failure}")
            self.leave()
        except (Outage, Misuse) as failure:
            self._broken(f"{named} was not finished: {failure}", *claims)
        except Exception:  # noqa: BLE001 - a job must not take the worker down
            _log.exception("%s: the run ended unexpectedly", claimed.lease.issue)
            self._broken(f"{claimed.lease.issue} ended unexpectedly", *claims)
        finally:
            with self._lock:
                self._jobs.discard(claimed.lease.run)
            self._wake.set()

    def _open_stages(self) -> tuple[Stage, ...]:
        tripped = self._breaker.tripped
        return tuple(stage for stage in self._options.stages if stage.name not in tripped)

    def _mind_breaker(self) -> None:
        """Tell which stages the breaker stopped, and give back the attempts that they cost.

        After an outage the attempts are given back with a later step.
        """
        with self._minding:
            for stage, why in self._breaker.tripped.items():
                if stage not in self.report.tripped:
                    self.report.tripped[stage] = why
                    self._tell(
                        f"stage {stage} is stopped: {why}. No attempt is counted. "
                        "Mend the handler, then start this worker again"
                    )
            try:
                if count := self._breaker.excuse():
                    self._tell(f"{count} failed attempts were given back to their issues")
            except Outage as failure:
                _log.warning("failed attempts could not be given back yet: %s", failure)

    def _broken(self, line: str, *claims: Claimed) -> None:
        """Count a job whose lease was not ended: the lease expires, then the issue is free."""
        self._tell(line)
        with self._lock:
            self.report.outcomes["broken"] += 1
            self.report.unsuccessful.update(claimed.lease.issue for claimed in claims)

    def _record(
        self,
        claimed: Claimed,
        result: FinishResult | Outage | Misuse,
        *,
        output: RunId | None = None,
    ) -> None:
        """Tell and count the result of a claimed issue. `output`: the run with its output."""
        issue = claimed.lease.issue
        match result:
            case Misuse():
                self._broken(f"{issue} was not finished: {result}", claimed)
                return
            case Outage():
                look = f"dibs runs --output {output or claimed.lease.run}"
                self._broken(
                    f"{issue} was not finished: {result}; its work is not recorded, and will be "
                    f"done again; its output is with: {look}",
                    claimed,
                )
                with self._lock:
                    self.report.unrecorded.add(issue)
                return
            case Finished(_, ending) as finished:
                onward = f" to {ending.next}" if ending.next else ""
                note = f" ({ending.note})" if ending.note else ""
                self._tell(f"{issue} {ending.outcome.value}{onward}{note}")
                outcome = ending.outcome.value
                self._let_rest(claimed, finished)
            case FinishRefused(why):
                self._tell(f"{issue} finish refused: {why}")
                outcome = "refused"
            case never:
                assert_never(never)
        with self._lock:
            self.report.outcomes[outcome] += 1
            self.report.unrecorded.discard(issue)
            if outcome in _WITHOUT_SUCCESS:
                self.report.unsuccessful.add(issue)
            else:
                self.report.unsuccessful.discard(issue)

    def _let_rest(self, claimed: Claimed, finished: Finished) -> None:
        """Let an issue that was returned or failed rest; a success ends the rest of the failed."""
        issue, resting = claimed.lease.issue, self._scanning.resting
        match finished.outcome:
            case Outcome.ADVANCED:
                self._end_rest_of_failed()
            case Outcome.RETURNED:
                resting.returned(issue, self._options.poll_s)
            case Outcome.FAILED if claimed.stage.breaker:
                resting.rest(issue, _LONGEST_REST_S)
                self._failed.add(issue)
            case _:
                pass

    def _go_home(self) -> None:
        """Wait for the running jobs to end.

        Once asked to leave, stop the jobs after `stop_grace_s`, unless patient; once asked to leave
        at once, give up after a moment.
        """
        deadline: LocalTime | None = None
        hurry: LocalTime | None = None
        while self._jobs:
            if self._hurried.is_set():
                # Long enough to give back the issues that can be; the other leases expire.
                hurry = hurry or LocalTime(self._clock.now() + _HURRY_S)
                if self._clock.now() >= hurry:
                    return
            if self._leaving.is_set() and not self._patient and deadline is None:
                deadline = LocalTime(self._clock.now() + self._options.stop_grace_s)
            if deadline is not None and self._clock.now() >= deadline:
                self._stop_jobs.stop_all("the worker is leaving")
                deadline = LocalTime(deadline + 3600.0)
            self._wake.clear()
            if self._jobs:
                self._clock.wait(self._wake, 0.2)
