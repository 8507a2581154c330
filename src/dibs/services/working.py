"""The worker's loop: scan, spread, claim, run, sweep, and leave without stranding anything.

It decides what to do next and how long to wait; claiming, running and sweeping are done by the
services of those names. Every wait is on an event that a finished job or a signal sets.

How an idle worker waits: for a job to end, a signal, a hint, or its time to be over.

A fleet's own work makes most of what there is to hear, so hints are followed now and then only; one
that comes too soon is followed later. Every worker of a machine hears a hint in the same moment, so
each lets a little time pass before it looks.
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
from msgspec.structs import replace

from dibs.core.eligibility import Pause, PauseScope, Reason, ReasonCode
from dibs.core.errors import (
    HandlerUnusable,
    IssueLocked,
    Misuse,
    NoSuchComment,
    NoSuchIssue,
    Outage,
    RateLimited,
    WorktreeUnavailable,
)
from dibs.core.ids import HolderId, IssueRef, LocalTime, RunId
from dibs.core.lease import Outcome
from dibs.core.pipeline import Command, NoWorktree, PythonCallable, Stage
from dibs.ports.leases import Pauses
from dibs.ports.system import Clock, Hints, Runner, Threads, Workplaces
from dibs.services.bundling import Bundling, Waits
from dibs.services.claiming import Beaten, Claimed, Claiming, ClaimOptions, Doubtful, Refused
from dibs.services.ending import Finished, FinishRefused, FinishResult
from dibs.services.following import Following
from dibs.services.running import Running, StopSignal
from dibs.services.scanning import Candidate, Scanning, Shortlisting
from dibs.services.sweeping import Share, Sweeping

SHORTEST_S = 0.01
"""No wait is shorter: the rest of one may be less than any clock can tell."""
_HINTS_A_POLL = 10
_HINTS_APART_S = 5.0
"""So many hints are followed between two polls at most, and so much time passes between them."""
_STAGGER_S = 2.0


class Dozing:
    def __init__(
        self, hints: Hints | None, clock: Clock, dice: random.Random, *, poll_s: float
    ) -> None:
        self._hints = hints
        self._clock = clock
        self._dice = dice
        self._apart_s = max(poll_s / _HINTS_A_POLL, _HINTS_APART_S)
        self._stagger_s = min(poll_s, _STAGGER_S)
        self._heard = False
        self._next_from = LocalTime(0.0)

    def wait(self, wake: threading.Event, leaving: threading.Event, seconds: float) -> bool:
        """True if it ended because somebody hinted at a change."""
        if self._hints is None:
            self._clock.wait(wake, seconds)
            return False
        until = self._clock.now() + seconds
        while (left_s := until - self._clock.now()) > 0:
            if self._clock.wait(wake, max(min(left_s, self._hints.every_s), SHORTEST_S)):
                return False
            if self._is_to_follow(self._hints):
                self._clock.wait(leaving, self._dice.uniform(0.0, self._stagger_s))
                return True
        return False

    def _is_to_follow(self, hints: Hints) -> bool:
        self._heard |= hints.heard()
        now = self._clock.now()
        if not self._heard or now < self._next_from:
            return False
        self._heard = False
        self._next_from = LocalTime(now + self._apart_s)
        return True


_log = logging.getLogger("dibs.worker")
_HURRY_S = 2.0
_SWEEP = 200
_LOOKS = 3
"""How many claimed issues that are due a worker looks at in a sweep, for each that it may hold."""
_LONGEST_REST_S = 300.0
_FOLLOW_S = 30.0
"""Within so long of a hint a worker looks at pull requests: the first of a fleet soon does."""
_NOT_OURS = (NoSuchIssue, NoSuchComment, IssueLocked)
"""One issue's refusals: deleted, transferred, locked. The others are none the worse for it."""


class Until(StrEnum):
    """When a worker goes home."""

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
    """Every repository that issues may be in."""
    cheap_reads: bool = False


class WorkReport(Struct):
    """What this worker did."""

    attempts: int = 0
    claimed: int = 0
    lost_races: int = 0
    refused: int = 0
    swept: int = 0
    followed: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    paused: tuple[Pause, ...] = ()
    barred: str = ""
    """Why nothing at all may be claimed by this process, where that is so."""
    unusable: str = ""

    @property
    def did_something(self) -> bool:
        return bool(self.claimed or self.swept or self.followed)


class Worker:
    def __init__(
        self,
        claiming: Claiming,
        running: Running,
        scanning: Scanning | Shortlisting,
        sweeping: Sweeping,
        pauses: Pauses,
        runner: Runner,
        clock: Clock,
        options: WorkOptions,
        dice: random.Random,
        *,
        threads: Threads,
        bundling: Bundling,
        workplaces: Callable[[], Workplaces],
        hints: Hints | None = None,
        following: Following | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._claiming = claiming
        self._running = running
        self._scanning = scanning
        self._sweeping = sweeping
        self._pauses = pauses
        self._runner = runner
        self._clock = clock
        self._options = options
        self._dice = dice
        self._threads = threads
        self._bundling = bundling
        self._workplaces = workplaces
        self._placeless = 0
        """How often in a row no place could be made for a run."""
        self._dozing = Dozing(hints, clock, dice, poll_s=options.poll_s)
        self._following = following
        self._tell = tell
        self._spread = scanning.new_spread(dice)
        self._wake = threading.Event()
        self._leaving = threading.Event()
        self._hurried = threading.Event()
        self._stop_jobs = StopSignal()
        self._jobs: set[RunId] = set()
        self._lock = threading.Lock()
        self._sweep_at = LocalTime(0.0)
        self._limited_until = LocalTime(0.0)
        self._swept_to: IssueRef | None = None
        self._follow_at = LocalTime(0.0)
        self._followed_to: Mapping[str, IssueRef] | None = None
        self._told: set[str] = set()
        self._kept_back: set[str] = set()
        """Repositories that are paused and have issues for us; of several, some may be."""
        self.report = WorkReport()

    # Leaving

    def leave(self) -> None:
        """Claim nothing more; let running handlers finish for a while, then give back."""
        self._leaving.set()
        self._wake.set()

    def leave_now(self) -> None:
        """Stop the handlers at once."""
        self._leaving.set()
        self._hurried.set()
        self._stop_jobs.kill_all("the worker was told to stop at once")
        self._wake.set()

    # The loop

    def run(self) -> WorkReport:
        self._check_handlers()
        self._check_places()
        if self._options.until is not Until.ONCE:
            # A fleet that one command started should not arrive in step.
            self._clock.wait(self._leaving, self._dice.uniform(0.0, self._scanning.arrival_s))
        try:
            while True:
                self._wake.clear()
                if self._leaving.is_set():
                    break
                pause_s = self._step()
                if pause_s is None:
                    break
                if pause_s > 0 and self._dozing.wait(self._wake, self._leaving, pause_s):
                    self._follow_a_hint()
        except BaseException:
            self.leave()
            raise
        finally:
            self._go_home()
        return self.report

    def _step(self) -> float | None:
        """One decision. Returns how long to wait, or None to go home."""
        options = self._options
        try:
            self._sweep_if_due()
            if self._limited_until > (now := self._clock.now()):
                # A job that ended woke us, or a sweep was due: what is asked of us stands.
                return max(min(self._limited_until, self._sweep_at) - now, SHORTEST_S)
            self._follow_if_due()
            if self._is_barred():
                return self._idle()
            if len(self._jobs) < options.jobs and self._claim_one():
                return None if options.until is Until.ONCE else 0.0
            return self._idle()
        except RateLimited as limit:
            if options.until is Until.ONCE:  # whoever runs it once in a while does not want to wait
                raise
            return self._obey(limit)
        except Outage as failure:
            if not failure.retryable:
                raise
            _log.warning("the tracker or store is not available, trying again: %s", failure)
            return self._jittered(options.poll_s)

    def _obey(self, limit: RateLimited) -> float:
        """Never sooner than was asked for, and not all in the same moment."""
        wait_s = max(limit.retry_after_s, 1.0) * self._dice.uniform(1.0, 1.1)
        _log.warning("rate limited; waiting %.0f s", wait_s)
        self._limited_until = LocalTime(self._clock.now() + wait_s)
        return min(wait_s, max(self._sweep_at - self._clock.now(), SHORTEST_S))

    def _is_barred(self) -> bool:
        barred = self._claiming.barred()
        self.report.barred = f"{barred.text}; {barred.remedy}" if barred is not None else ""
        if self.report.barred:
            self._tell_once(self.report.barred)
        return bool(self.report.barred)

    def _idle(self) -> float | None:
        options = self._options
        if options.until is Until.ONCE:
            return None
        # A job that ends sets the wake event, so a full worker wakes up only to sweep.
        if len(self._jobs) >= options.jobs:
            return max(self._sweep_at - self._clock.now(), 0.0)
        if options.until is Until.DRAINED and not self._jobs:
            if self._drained():
                return None
            self._tell_once("nothing is free; waiting for issues that others hold or that rest")
        return self._jittered(options.poll_s)

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._tell(line)

    def _drained(self) -> bool:
        self.report.paused = self._in_force()
        if self.report.paused or self.report.barred:
            return True
        if self._scanning.anything_left(self._options.stages):
            return False
        self.report.paused = tuple(
            pause for pause in self._pauses.pauses() if pause.repo in self._kept_back
        )
        for pause in self.report.paused:
            self._tell_once(f"{pause}; its issues are left")
        return True

    def _jittered(self, seconds: float) -> float:
        return seconds * self._dice.uniform(0.5, 1.0)

    def _in_force(self) -> tuple[Pause, ...]:
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
        first = not self._sweep_at
        self._sweep_at = LocalTime(now + self._jittered(self._options.sweep_s))
        # At its start everything: much may have happened. From then on its share.
        share = None if first else Share(_LOOKS * self._options.jobs, self._dice)
        try:
            report = self._sweeping.sweep(limit=_SWEEP, after=self._swept_to, share=share)
        except RateLimited as limit:
            # Lists may have a budget of their own. If it is claims that must wait, they are told.
            _log.warning("rate limited; not sweeping for %.0f s", limit.retry_after_s)
            self._sweep_at = LocalTime(max(self._sweep_at, now + limit.retry_after_s))
            return
        self._swept_to = report.resume_after
        for entry in report.changed:
            self.report.swept += 1
            self._scanning.resting.forget(entry.issue)
            self._tell(f"{entry.issue} swept: {entry.text}")

    def _follow_a_hint(self) -> None:
        self._scanning.look_anew()
        soon_s = self._dice.uniform(0.0, min(_FOLLOW_S, self._options.sweep_s))
        self._follow_at = min(self._follow_at, LocalTime(self._clock.now() + soon_s))

    def _follow_if_due(self) -> None:
        """Issues that follow pull requests go where these went."""
        now = self._clock.now()
        if self._following is None or now < self._follow_at:
            return
        self._follow_at = LocalTime(now + self._jittered(self._options.sweep_s))
        try:
            report = self._following.follow(
                self._options.holder, limit=_SWEEP, after=self._followed_to
            )
        except RateLimited as limit:  # looking can wait, and claims may be let through
            self._follow_at = LocalTime(max(self._follow_at, now + limit.retry_after_s))
            return
        self._followed_to = report.resume_after
        for entry in report.changed:
            self.report.followed += 1
            self._scanning.resting.forget(entry.issue)
            self._tell(f"{entry.issue} followed: {entry.text}")

    # Claiming

    def _claim_one(self) -> bool:
        """Try until something is ours or nothing is left to try. Bounded by the list itself."""
        self.report.paused = self._in_force()
        if self.report.paused:
            return False
        stages = [stage for stage in self._options.stages if self._claiming.has_room(stage)]
        while not self._leaving.is_set():
            self._spread.holding = len(self._jobs)
            candidate = self._scanning.next_candidate(stages, self._spread)
            if candidate is None:
                return False
            try:
                if self._try(candidate, stages):
                    return True
            except _NOT_OURS as refusal:
                self.report.refused += 1
                self._tell(f"{candidate.issue.ref} is left alone: {refusal}")
                self._scanning.resting.given_up(candidate.issue)
        return False

    def _try(self, candidate: Candidate, stages: list[Stage]) -> bool:
        seen = candidate.thread
        look = self._options.cheap_reads or not candidate.untouched or seen is not None
        options = ClaimOptions(self._options.holder, look_first=look, seen=seen)
        resting = self._scanning.resting
        resting.forget(candidate.issue.ref)
        match self._claim_as_it_is(candidate, options):
            case Claimed() as claimed:
                return self._won(claimed)
            case tuple(claims):
                return self._won(*claims)
            case Beaten(issue, record):
                self._lose()
                rest_s = max(record.remaining.total_seconds(), 0.2)
                for one in {issue, candidate.issue.ref}:
                    resting.rest(one, rest_s)
            case Doubtful(issue, why):
                self._lose()
                _log.info("%s: not won: %s", issue, why)
                for one in {issue, candidate.issue.ref}:
                    resting.rest(one, self._jittered(self._options.poll_s))
            case Refused() | Waits() as refused:
                self._leave_alone(candidate, refused, stages)
            case never:
                assert_never(never)
        return False

    def _leave_alone(
        self, candidate: Candidate, refused: Refused | Waits, stages: list[Stage]
    ) -> None:
        reasons, paid = refused.reasons, refused.after_grant
        self.report.refused += 1
        if any(reason.code is ReasonCode.REPOSITORY_PAUSED for reason in reasons):
            self._kept_back.add(candidate.issue.ref.repo)
        resting = self._scanning.resting
        resting.refused(candidate.issue, reasons, candidate.now, paid=paid)
        if candidate.thread is not None and (paid or _others_bid(reasons)):
            self._spread.met()
        if isinstance(refused, Waits):  # looking from another of them would find the same
            for other in refused.others:
                resting.refused(other, reasons, candidate.now, paid=paid)
        elif any(reason.code is ReasonCode.WIP_LIMIT for reason in reasons):
            stages.remove(candidate.stage)

    def _won(self, *claims: Claimed) -> bool:
        self._spread.won()
        self.report.claimed += len(claims)
        self._start(*claims)
        return True

    def _lose(self) -> None:
        self.report.lost_races += 1
        self._spread.lost()
        self._clock.wait(self._leaving, self._spread.pause_s())

    def _claim_as_it_is(
        self, candidate: Candidate, options: ClaimOptions
    ) -> Claimed | tuple[Claimed, ...] | Waits | Beaten | Doubtful | Refused:
        """By itself, or with all that are in its bundle where the stage works these together."""
        if not self._bundling.concerns(candidate.issue, candidate.stage):
            return self._claim(candidate, options)
        picked = options.seen or self._claiming.read(candidate.issue.ref)
        result = self._bundling.claim(
            picked, candidate.stage, options, leaving=self._leaving.is_set
        )
        if not isinstance(result, Waits) or result.after_grant:
            self.report.attempts += 1
        if isinstance(result, Waits) and _spent(result.reasons):
            member = result.member
            spent = Candidate(member.issue, candidate.stage, member.now)
            refused = Refused(member.issue.ref, result.reasons)
            self._park(spent, replace(options, seen=None), refused)
        return result

    def _claim(
        self, candidate: Candidate, options: ClaimOptions
    ) -> Claimed | Beaten | Doubtful | Refused:
        result = self._claiming.claim(candidate.issue.ref, candidate.stage, options)
        if not isinstance(result, Refused) or result.after_grant:
            self.report.attempts += 1
        if isinstance(result, Refused) and _spent(result.reasons):
            return self._park(candidate, options, result)
        return result

    def _park(
        self, candidate: Candidate, options: ClaimOptions, refused: Refused
    ) -> Beaten | Doubtful | Refused:
        spent = frozenset({ReasonCode.ATTEMPTS_SPENT, ReasonCode.BACKING_OFF})
        if any(reason.code not in spent for reason in refused.reasons):
            return refused
        options = ClaimOptions(options.holder, overlook=spent, seen=options.seen)
        result = self._claiming.claim(candidate.issue.ref, candidate.stage, options)
        if not isinstance(result, Claimed):
            return result
        if result.failed_attempts < result.stage.attempts:  # a person re-queued it meanwhile
            self.report.claimed += 1
            self._start(result)
            return refused
        self._record(result, self._running.park(result))
        return refused

    # Jobs

    def _start(self, *claims: Claimed) -> None:
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
        claims = (claimed, *others)
        try:
            results = self._running.run_together(claims, self._stop_jobs)
            for one, result in zip(claims, results, strict=True):
                self._record(one, result)
            self._placeless = 0
        except WorktreeUnavailable as failure:
            self._hold_off(claims, failure)
        except HandlerUnusable as failure:
            self.report.unusable = str(failure)
            self._tell(f"{_named(claims)} was given back: {failure}")
            self.leave()
        except (Outage, Misuse) as failure:
            self._broken(f"{_named(claims)} was not finished: {failure}")
        except Exception:  # noqa: BLE001 - a job must not take the worker down
            _log.exception("%s: the run ended unexpectedly", claimed.lease.issue)
            self._broken(f"{claimed.lease.issue} ended unexpectedly")
        finally:
            with self._lock:
                self._jobs.discard(claimed.lease.run)
            self._wake.set()

    def _hold_off(self, claims: tuple[Claimed, ...], failure: WorktreeUnavailable) -> None:
        """It would be the same with every issue: claim none for a while, longer each time."""
        poll_s = self._options.poll_s
        self._tell(f"{_named(claims)} was given back: {failure}")
        for claimed in claims:
            self._scanning.resting.returned(claimed.lease.issue, poll_s)
        with self._lock:
            self.report.outcomes[Outcome.RETURNED.value] += len(claims)
            rest_s = min(poll_s * (1 << min(self._placeless, 10)), _LONGEST_REST_S)
            self._placeless += 1
            self._limited_until = LocalTime(self._clock.now() + rest_s)

    def _broken(self, line: str) -> None:
        """The lease was not ended: it expires, and the issue is taken up again."""
        self._tell(line)
        with self._lock:
            self.report.outcomes["broken"] += 1

    def _record(self, claimed: Claimed, result: FinishResult | Outage | Misuse) -> None:
        issue = claimed.lease.issue
        match result:
            case Outage() | Misuse():
                self._broken(f"{issue} was not finished: {result}")
                return
            case Finished(_, ending):
                onward = f" to {ending.next}" if ending.next else ""
                note = f" ({ending.note})" if ending.note else ""
                self._tell(f"{issue} {ending.outcome.value}{onward}{note}")
                outcome = ending.outcome.value
                if ending.outcome is Outcome.RETURNED:
                    self._scanning.resting.returned(issue, self._options.poll_s)
            case FinishRefused(why):
                self._tell(f"{issue} finish refused: {why}")
                outcome = "refused"
            case never:
                assert_never(never)
        with self._lock:
            self.report.outcomes[outcome] += 1

    def _go_home(self) -> None:
        """Wait for the running jobs: as long as it takes, or for the grace once asked to leave."""
        deadline: LocalTime | None = None
        hurry: LocalTime | None = None
        while self._jobs:
            if self._hurried.is_set():
                # Long enough to give back what can be given back; the rest expires by itself.
                hurry = hurry or LocalTime(self._clock.now() + _HURRY_S)
                if self._clock.now() >= hurry:
                    return
            if self._leaving.is_set() and deadline is None:
                deadline = LocalTime(self._clock.now() + self._options.stop_grace_s)
            if deadline is not None and self._clock.now() >= deadline:
                self._stop_jobs.stop_all("the worker is leaving")
                deadline = LocalTime(deadline + 3600.0)
            self._wake.clear()
            if self._jobs:
                self._clock.wait(self._wake, 0.2)

    def _check_handlers(self) -> None:
        """Before anything is claimed: a handler that cannot start must not cost an issue a try."""
        for stage in self._options.stages:
            if isinstance(stage.handler, Command | PythonCallable):
                self._runner.check(stage.handler, elsewhere=stage.worktree != NoWorktree())

    def _check_places(self) -> None:
        """Likewise; and what killed workers left is cleared before anything is added to it."""
        wanted = [one for one in self._options.stages if not isinstance(one.worktree, NoWorktree)]
        for stage in wanted:
            if not isinstance(stage.worktree, NoWorktree):
                self._workplaces().check(stage.worktree, self._options.repos)
        if wanted:
            self._workplaces().recover()


def _named(claims: tuple[Claimed, ...]) -> str:
    return " with ".join(str(claimed.lease.issue) for claimed in claims)


def _others_bid(reasons: tuple[Reason, ...]) -> bool:
    return any(reason.code is ReasonCode.BID_PENDING for reason in reasons)


def _spent(reasons: tuple[Reason, ...]) -> bool:
    return any(reason.code is ReasonCode.ATTEMPTS_SPENT for reason in reasons)
