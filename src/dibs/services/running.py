"""Running one claimed issue to its end: keep the lease, run the handler, decide what came of it.

The handler's contract is here and nowhere else: what it is given, what its exit codes mean, what
its result file may say.
"""

import json
import logging
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, assert_never

from msgspec import Struct, field

from dibs.core.card import parse_mark
from dibs.core.durations import format_instant
from dibs.core.errors import (
    HandlerUnusable,
    IllegalMove,
    LeaseLost,
    Misuse,
    Outage,
    RateLimited,
    WorktreeUnavailable,
)
from dibs.core.events import EventKind, about
from dibs.core.ids import LocalTime, ServerTime, later, local_after
from dibs.core.issue import Thread
from dibs.core.pipeline import Command, InProcess, NoHandler, NoWorktree, PythonCallable
from dibs.ports.system import (
    Assignment,
    Exited,
    PlaceWish,
    Runner,
    RunningHandler,
    Stopped,
    Workplace,
    Workplaces,
)
from dibs.services.claiming import Claimed
from dibs.services.ending import Advancing, FinishRefused, FinishResult
from dibs.services.keeping import Keeper, LeaseGroup, Supervision

if TYPE_CHECKING:
    from dibs.services.backlog import Backlog

_log = logging.getLogger("dibs.running")
GIVE_BACK_EXIT = 75
_SLICE_S = 0.25
_RETRY_S = 0.5


class GiveBack(Exception):
    """Raised by a Python handler to return the issue without counting an attempt."""


class Work(Struct, frozen=True):
    """What a Python handler is handed."""

    issue: Mapping[str, Any]
    """The issue as JSON data: the same that a command reads on its standard input."""
    stage: str
    run: str
    fence: int
    attempt: int
    lease: Keeper | None = None
    """The lease itself, for handlers in the worker's own process; None in a process of its own."""
    folder: Path | None = None
    """The run's working tree, in a stage that has one; of several, the one to start in."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Every working tree, by its repository."""
    branch: str = ""
    """What is checked out in them."""
    leases: tuple[Keeper, ...] = ()
    """All of them, where several issues are worked together; the first is `lease`."""

    def check(self) -> None:
        """Call before every side effect. In a process of its own the warden stops the work."""
        for lease in self.leases or (() if self.lease is None else (self.lease,)):
            lease.check()


PythonHandler = Callable[[Work], object]


class Advance(Struct, frozen=True):
    to: str | None = None
    note: str = ""


class Return(Struct, frozen=True):
    note: str = ""


class Fail(Struct, frozen=True):
    note: str = ""


Verdict = Advance | Return | Fail
"""What the handler's end asks for."""


class Stoppable(Protocol):
    """Work that can be asked to end, or made to."""

    def stop(self, why: str) -> None: ...

    def kill(self) -> None: ...


class StopSignal:
    """The worker's wish to leave, told to its running jobs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[Stoppable] = set()
        self._why: str | None = None

    @property
    def why(self) -> str | None:
        return self._why

    def enter(self, running: Stoppable) -> None:
        with self._lock:
            self._running.add(running)
            why = self._why
        if why is not None:
            running.stop(why)

    def leave(self, running: Stoppable) -> None:
        with self._lock:
            self._running.discard(running)

    def stop_all(self, why: str) -> None:
        with self._lock:
            self._why = why
            running = list(self._running)
        for handler in running:
            handler.stop(why)

    def kill_all(self, why: str) -> None:
        with self._lock:
            self._why = why
            running = list(self._running)
        for handler in running:
            handler.kill()


class _Asking:
    """A handler in our own process can only be asked: its next check raises."""

    def __init__(self, held: LeaseGroup) -> None:
        self._held = held

    def stop(self, why: str) -> None:
        for keeper in self._held:
            keeper.ask_to_stop(why)

    def kill(self) -> None:
        self.stop("the worker is leaving")


class _Job(Struct, frozen=True):
    """Issues that are worked as one, the leases on them, and the place where that is done."""

    claims: tuple[Claimed, ...]
    held: LeaseGroup
    place: Workplace | None = None

    @property
    def lead(self) -> Claimed:
        return self.claims[0]


class Running:
    def __init__(
        self,
        backlog: "Backlog",
        keep: Callable[[Claimed], Keeper],
        advancing: Advancing,
        runner: Runner,
        *,
        handlers: Mapping[str, PythonHandler],
        workplaces: Callable[[], Workplaces],
    ) -> None:
        self._keep = keep
        self._advancing = advancing
        self._runner = runner
        self._clock = backlog.clock
        self._journal = backlog.journal
        self._threads = backlog.threads
        self._handlers = handlers
        self._workplaces = workplaces

    def run(self, claimed: Claimed, leaving: StopSignal) -> FinishResult:
        """To the end, whatever it is. Raises Outage only if the ending could not be written."""
        [result] = self.run_together((claimed,), leaving)
        if isinstance(result, Outage | Misuse):
            raise result
        return result

    def run_together(
        self, claims: tuple[Claimed, ...], leaving: StopSignal
    ) -> tuple[FinishResult | Outage | Misuse, ...]:
        """Several issues by one run of the handler; what became of each, in their order.

        An error stands for an ending that could not be written.
        """
        held = LeaseGroup(tuple(self._keep(claimed) for claimed in claims))
        kept = [Supervision(keeper, self._clock, self._threads) for keeper in held]
        with ExitStack() as stack:  # the place is cleared once the issues are free
            try:
                job = _Job(claims, held, self._open(claims, held, stack))
                return self._conclude_all(job, kept, self._work(job, leaving))
            except (HandlerUnusable, WorktreeUnavailable) as flaw:  # not the issue's fault
                self._give_all_back(held, flaw)
                raise
            finally:
                for supervision in kept:
                    supervision.stop()

    def park(self, claimed: Claimed) -> FinishResult:
        """Set an issue with no attempt left aside for a person, under the lease like all else."""
        note = f"{claimed.failed_attempts} attempts failed"
        return self._advancing.park(self._keep(claimed), note)

    def _work(self, job: _Job, leaving: StopSignal) -> Verdict:
        stage = job.lead.stage
        match stage.handler:
            case NoHandler() if stage.passes_by_itself:
                return Advance()
            case NoHandler():
                return Return("nothing runs in this stage")
            case InProcess():
                return self._call(job, leaving)
            case Command() | PythonCallable() as handler:
                return self._spawn(job, leaving, handler)
            case never:
                assert_never(never)

    # The place

    def _open(
        self, claims: tuple[Claimed, ...], held: LeaseGroup, stack: ExitStack
    ) -> Workplace | None:
        """Where the stage wants it: before the handler starts, while the lease is renewed."""
        lead = claims[0]
        worktree = lead.stage.worktree
        if isinstance(worktree, NoWorktree) or isinstance(lead.stage.handler, NoHandler):
            return None
        repos = tuple(dict.fromkeys(claimed.lease.issue.repo for claimed in claims))
        wish = PlaceWish(lead.lease.run, str(lead.lease.issue), worktree, repos)
        context = self._workplaces().open(wish)
        place = context.__enter__()
        stack.callback(self._tell_what_is_kept, held.lead, place)
        stack.push(context)
        return place

    def _tell_what_is_kept(self, lead: Keeper, place: Workplace) -> None:
        for line in place.kept:
            self._journal.append(about(EventKind.WORK_KEPT, lead.lease, what=line))

    # In this process

    def _call(self, job: _Job, leaving: StopSignal) -> Verdict:
        asking = _Asking(job.held)
        leaving.enter(asking)
        self._started(job)
        try:
            return self._exited(job, self._answer(job))
        finally:
            leaving.leave(asking)

    def _answer(self, job: _Job) -> Verdict:
        handler = self._handlers[job.lead.stage.name]
        lease, attempt, place = job.held.lead.lease, job.lead.failed_attempts + 1, job.place
        work = Work(
            _document(job),
            lease.stage,
            lease.run,
            lease.fence,
            attempt,
            job.held.lead,
            folder=place.folder if place else None,
            folders=place.folders if place else {},
            branch=place.branch if place else "",
            leases=job.held.keepers,
        )
        try:
            job.held.check()
            answer = handler(work)
        except GiveBack as asked:
            return Return(str(asked))
        except LeaseLost as lost:
            return self._stopped(job.held, lost.why)
        except Exception as failure:  # noqa: BLE001 - whatever a handler raises is a failed attempt
            _log.warning("%s: %s", lease.issue, "".join(traceback.format_exception(failure)))
            note = f"{type(failure).__name__}: {failure}"
            return Fail(note)
        return verdict_of(answer)

    # In a process of its own

    def _spawn(self, job: _Job, leaving: StopSignal, handler: Command | PythonCallable) -> Verdict:
        held = job.held
        limit = job.lead.stage.timeout or job.lead.terms.max_hold
        started_at = self._clock.now()
        try:
            held.check()  # proving the win may have taken longer than the lease
        except LeaseLost as lost:
            return Return(lost.why)
        running = self._runner.start(self._assignment(job, handler, limit), held.trusted_until)
        self._started(job)
        held.on_lost(lambda why: running.stop(f"the lease is lost: {why}"))
        if held.over:  # before the watcher was there to be told
            running.stop("the lease is lost")
        leaving.enter(running)
        try:
            end = self._watch(running, held, local_after(started_at, limit))
        finally:
            leaving.leave(running)
        match end:
            case Exited(code):
                return self._exited(job, _verdict_of_exit(code, running))
            case Stopped(why) if why == _TIME_LIMIT:
                return self._exited(job, Fail(why))
            case Stopped(why):
                return self._exited(job, self._stopped(held, why))
            case never:
                assert_never(never)

    def _watch(
        self, running: RunningHandler, held: LeaseGroup, until: LocalTime
    ) -> Exited | Stopped:
        """Wait for the end, passing on every extension of trust."""
        slice_s = min(_SLICE_S, held.lead.terms.ttl.total_seconds() / 10)
        told = held.trusted_until
        while (end := running.poll(slice_s)) is None:
            if held.trusted_until != told:
                told = held.trusted_until
                running.trust_until(told)
            if self._clock.now() >= until:
                running.stop(_TIME_LIMIT)
        return end

    def _assignment(
        self, job: _Job, handler: Command | PythonCallable, limit: timedelta
    ) -> Assignment:
        claimed, place = job.lead, job.place
        lease, attempt = claimed.lease, claimed.failed_attempts + 1
        deadline: ServerTime = later(claimed.thread.now, limit)
        return Assignment(
            run=lease.run,
            handler=handler,
            stdin=json.dumps(_document(job), ensure_ascii=False).encode(errors="replace"),
            environment={
                "DIBS_ISSUE": str(lease.issue),
                "DIBS_STAGE": lease.stage,
                "DIBS_RUN": lease.run,
                "DIBS_FENCE": str(lease.fence),
                "DIBS_ATTEMPT": str(attempt),
                "DIBS_DEADLINE": format_instant(deadline),
                **(_environment(place) if place else {}),
                **_runs(job),
            },
            pass_env=claimed.stage.pass_env,
            # The group must be gone before the lease can be another's.
            stop_within=min(timedelta(seconds=5), claimed.terms.margin * 0.8),
            folder=place.folder if place else None,
            shared=place.shared if place else (),
        )

    @staticmethod
    def _stopped(held: LeaseGroup, why: str) -> Verdict:
        """Stopped work is given back, unless it was stopped for never coming to an end."""
        overdue = held.overdue
        return Return(why) if overdue is None else Fail(overdue.why)

    # The end

    def _give_all_back(self, held: LeaseGroup, flaw: Exception) -> None:
        """Last first, so that whoever wants them in their order finds the first one free last."""
        for keeper in reversed(held.keepers[1:]):
            with suppress(Outage):  # then it expires
                self._advancing.give_back(keeper, str(flaw))
        self._advancing.give_back(held.lead, str(flaw))

    def _conclude_all(
        self, job: _Job, kept: list[Supervision], verdict: Verdict
    ) -> tuple[FinishResult | Outage | Misuse, ...]:
        """One after the other, the later ones still renewed meanwhile."""
        if isinstance(verdict, Advance) and len(kept) > 1 and not job.held.all_ours:
            verdict = Return(_APART)
        results: list[FinishResult | Outage | Misuse] = []
        for keeper, supervision in zip(job.held, kept, strict=True):
            supervision.stop()
            try:
                results.append(self._conclude(keeper, verdict))
            except (Outage, Misuse) as failure:
                results.append(failure)
            refused = isinstance(results[0], FinishRefused | Misuse)  # lost; deleted, locked
            if refused and isinstance(verdict, Advance):
                verdict = Return(_APART)  # nothing was written yet, so all can stay together
        return tuple(results)

    def _conclude(self, keeper: Keeper, verdict: Verdict) -> FinishResult:
        """Finished work is worth some patience: try as long as the lease is trusted."""
        while True:
            try:
                return self._finish(keeper, verdict)
            except IllegalMove as refusal:
                verdict = Fail(str(refusal))
            except Outage as failure:
                if not failure.retryable or not self._outlast(keeper, failure):
                    raise

    def _outlast(self, keeper: Keeper, failure: Outage) -> bool:
        """Wait until it may be tried again, renewing the lease meanwhile.

        False, while it is still ours, if it does not last so long.
        """
        asked_s = failure.retry_after_s if isinstance(failure, RateLimited) else 0.0
        again_at = self._clock.now() + max(_RETRY_S, asked_s)
        supervision = Supervision(keeper, self._clock, self._threads)
        try:
            while (wait_s := again_at - self._clock.now()) > 0:
                spare_s = keeper.ours_s() - _RETRY_S
                if spare_s <= 0:
                    return False
                self._clock.sleep(min(wait_s, spare_s))
        finally:
            supervision.stop()
        return keeper.ours_s() > 0

    def _finish(self, keeper: Keeper, verdict: Verdict) -> FinishResult:
        match verdict:
            case Advance(to, note):
                return self._advancing.advance(keeper, to, note)
            case Return(note):
                return self._advancing.give_back(keeper, note)
            case Fail(note):
                return self._advancing.fail(keeper, note)
            case never:
                assert_never(never)

    def _started(self, job: _Job) -> None:
        for keeper in job.held:
            event = about(EventKind.HANDLER_STARTED, keeper.lease, lead=_lead(job, keeper))
            self._journal.append(event)

    def _exited(self, job: _Job, verdict: Verdict) -> Verdict:
        kind, note = type(verdict).__name__.lower(), verdict.note
        for keeper in job.held:
            lead = _lead(job, keeper)
            event = about(
                EventKind.HANDLER_EXITED, keeper.lease, verdict=kind, note=note, lead=lead
            )
            self._journal.append(event)
        return verdict


_TIME_LIMIT = "the handler's time limit is over"
_APART = "the lease on another issue of its bundle was lost"


def _lead(job: _Job, keeper: Keeper) -> str:
    """The run that has the output, where several issues were worked together."""
    return "" if keeper is job.held.lead else job.held.lead.run


def _runs(job: _Job) -> dict[str, str]:
    """All of them where there are several: whoever guards an issue must know them by each."""
    runs = [keeper.run for keeper in job.held]
    return {"DIBS_RUNS": " ".join(runs)} if len(runs) > 1 else {}


def _environment(place: Workplace) -> dict[str, str]:
    folders = {name: str(folder) for name, folder in place.folders.items()}
    return {
        "DIBS_WORKTREE": str(place.folder),
        "DIBS_WORKTREES": json.dumps(folders),
        "DIBS_BRANCH": place.branch,
    }


def _document(job: _Job) -> dict[str, Any]:
    """The issue that the handler reads; with it the others, where several are worked together."""
    documents = [
        issue_document(one.thread, one.lease.stage, one.failed_attempts + 1) for one in job.claims
    ]
    if len(documents) == 1:
        return documents[0]
    named = [
        {**document, "run": one.lease.run, "fence": one.lease.fence}
        for document, one in zip(documents, job.claims, strict=True)
    ]
    return {**documents[0], "bundle": named}


def issue_document(thread: Thread, stage: str, attempt: int) -> dict[str, Any]:
    """The issue as a handler reads it. Claim cards are left out: they are ours, not the issue's."""
    issue = thread.issue
    return {
        "issue": str(issue.ref),
        "title": issue.title,
        "body": issue.body,
        "author": issue.author,
        "url": issue.url,
        "labels": sorted(issue.labels),
        "stage": stage,
        "attempt": attempt,
        "created_at": format_instant(issue.created_at),
        "comments": [
            {
                "author": comment.author,
                "body": comment.body,
                "created_at": format_instant(comment.created_at),
            }
            for comment in thread.comments
            if parse_mark(comment.body) is None
        ],
    }


def verdict_of(answer: object) -> Verdict:
    """What a handler's answer asks for: nothing, a stage's name, or {"next": ..., "note": ...}."""
    match answer:
        case None:
            return Advance()
        case str(stage):
            return Advance(stage)
        case {"next": None | str(), **rest} | {"note": str(), **rest} if not (
            rest.keys() - {"next", "note"}
        ):
            assert isinstance(answer, Mapping), "a mapping pattern matched"
            return Advance(answer.get("next"), str(answer.get("note") or ""))
        case _:
            return Fail(f"the handler's answer is not understood: {answer!r:.80}")


def _verdict_of_exit(code: int, running: RunningHandler) -> Verdict:
    if code == GIVE_BACK_EXIT:
        return Return("the handler gave it back")
    if code != 0:
        return Fail(_why_it_failed(code, running))
    try:
        result = running.result()
        return verdict_of(json.loads(result)) if result.strip() else Advance()
    except (OSError, ValueError, RecursionError) as flaw:
        return Fail(f"DIBS_RESULT cannot be read: {flaw}")


def _why_it_failed(code: int, running: RunningHandler) -> str:
    """In the handler's own words, if it left any: they are what a person reads who looks at it."""
    why = f"the handler exited with {code}"
    try:
        told = json.loads(running.result() or b"{}")
    except (OSError, ValueError, RecursionError):
        return why
    match told:
        case {"note": str(note)} if note.strip():
            return f"{why}: {note}"
        case _:
            return why
