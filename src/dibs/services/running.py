"""Running a claimed issue to its end: keep the lease, run the handler, write the ending.

The whole contract with handlers is in this module: the input of a handler, the meaning of its exit
codes, the format of its result file.
"""

import json
import logging
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from dibs.core.approval import LONGEST_PLAN, Passage, passage_for, plans, render_plan
from dibs.core.card import parse_mark
from dibs.core.durations import OUTAGE_PAUSE_S, REFUSED, format_instant
from dibs.core.eligibility import words_of
from dibs.core.errors import (
    Damaged,
    HandlerUnusable,
    IllegalMove,
    LeaseLost,
    Misuse,
    Outage,
    RateLimited,
    WorktreeUnavailable,
)
from dibs.core.events import EventKind, about
from dibs.core.fold import tries_by_cards
from dibs.core.foreign import is_foreign
from dibs.core.ids import LocalTime, later, local_after
from dibs.core.issue import Snapshot
from dibs.core.lease import asking
from dibs.core.pipeline import (
    Command,
    InProcess,
    NoHandler,
    NoWorktree,
    PythonCallable,
    WhoseComments,
)
from dibs.ports.leases import Guarantee
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
from dibs.services.keeping import Holding, Keeper, LeaseGroup, Supervision

if TYPE_CHECKING:
    from dibs.services.backlog import Backlog
    from dibs.services.resuming import Resuming

_log = logging.getLogger("dibs.running")
GIVE_BACK_EXIT = 75
ASK_EXIT = 77
_CANNOT_RUN = (126, 127)
"""The exit codes by which a shell reports a program that it cannot execute, or cannot find."""
_AT_ONCE_S = 1.0
_SLICE_S = 0.25
_REPORT_EVERY_S = 60.0


class GiveBack(Exception):
    """Raised by a Python handler to return the issue without counting an attempt."""


class AskPerson(Exception):
    """Raised by a Python handler to set the issue aside for a person, with a question."""


class Work(Struct, frozen=True):
    """The argument of a Python handler."""

    issue: Mapping[str, Any]
    """The issue as JSON data: the same data as a command reads on its standard input."""
    stage: str
    run: str
    fence: int
    attempt: int
    lease: Keeper | None = None
    """The lease, if the handler runs in the worker's process; None in a process of its own."""
    folder: Path | None = None
    """The run's working tree, if the stage wants any; of several, the tree to start in."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Every working tree, by its repository."""
    branch: str = ""
    """The branch that is checked out in the working trees."""
    leases: tuple[Keeper, ...] = ()
    """The leases of all issues that are worked together; the first is `lease`."""

    def check(self) -> None:
        """Call before every side effect. Raises LeaseLost if a lease is lost.

        Has no effect in a separate process, where the warden stops the work.
        """
        for lease in self.leases or (() if self.lease is None else (self.lease,)):
            lease.check()


PythonHandler = Callable[[Work], object]


class Advance(Struct, frozen=True):
    to: str | None = None
    note: str = ""
    plan: str = ""
    """A plan to post on the issue, for a person to approve."""


class Return(Struct, frozen=True):
    note: str = ""


class Fail(Struct, frozen=True):
    note: str = ""
    unfit: bool = False
    """The handler could not even begin: a program that it needs cannot be executed."""


class Ask(Struct, frozen=True):
    """Set the issue aside for a person. No attempt is counted as failed."""

    note: str


Verdict = Advance | Return | Fail | Ask
"""The ending that the handler asks for."""
Judge = Callable[[Claimed, Verdict], Verdict]
"""Decides which verdict ends a lease, from the claim that led the run and the handler's verdict."""


class Stoppable(Protocol):
    """Work that can be asked to end, and can be killed."""

    def stop(self, why: str) -> None: ...

    def kill(self) -> None: ...


class StopSignal:
    """Passes the worker's wish to leave on to all jobs, running or started later."""

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
    """Asks a handler in our own process to stop: its next `check` raises. It cannot be killed."""

    def __init__(self, held: LeaseGroup) -> None:
        self._held = held

    def stop(self, why: str) -> None:
        for keeper in self._held:
            keeper.ask_to_stop(why)

    def kill(self) -> None:
        self.stop("the worker is leaving")


class _Job(Struct, frozen=True):
    """Issues worked together, the leases on the issues, and the working trees."""

    claims: tuple[Claimed, ...]
    held: LeaseGroup
    place: Workplace | None
    began_at: LocalTime

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
        resuming: "Callable[[], Resuming]",
    ) -> None:
        self._backlog = backlog
        self._resuming = resuming
        self._keep = keep
        self._advancing = advancing
        self._runner = runner
        self._clock = backlog.clock
        self._observer, self._mask = backlog.observer, backlog.mask
        self._threads = backlog.threads
        self._handlers = handlers
        self._workplaces = workplaces

    def run(self, claimed: Claimed, leaving: StopSignal) -> FinishResult:
        """Run a claimed issue to the end. Raises Outage or Misuse if the ending was not written."""
        [result] = self.run_together((claimed,), leaving)
        if isinstance(result, Outage | Misuse):
            raise result
        return result

    def run_together(
        self,
        claims: tuple[Claimed, ...],
        leaving: StopSignal,
        judge: Judge = lambda _, verdict: verdict,
    ) -> tuple[FinishResult | Outage | Misuse, ...]:
        """Work several issues in a single run of the handler. Returns a result for each claim.

        An Outage or Misuse in the result means: the ending could not be written.
        """
        held = LeaseGroup(tuple(self._keep(claimed) for claimed in claims))
        kept = [Supervision(keeper, self._clock, self._threads) for keeper in held]
        with ExitStack() as stack:  # the place is cleared once the issues are free
            to_an_heir = False
            try:
                place = self._open_place(claims, held.lead, stack)
                job = _Job(claims, held, place, self._clock.now())
                verdict = self._run_handler(job, leaving)
                if isinstance(verdict, Advance) and len(kept) > 1 and not held.all_ours:
                    verdict = Return(_APART)
                # The issues are ended in their order; the later leases are renewed until then.
                results: list[FinishResult | Outage | Misuse] = []
                for keeper, supervision in zip(held, kept, strict=True):
                    supervision.stop()
                    try:
                        end = partial(judge, claims[0])
                        results.append(self._conclude(keeper, verdict, end, leaving))
                    except (Outage, Misuse) as failure:
                        results.append(failure)
                    # Refused: the first lease was lost, or its issue was deleted or locked. No
                    # ending was written yet, so all issues can stay together.
                    refused = isinstance(results[0], FinishRefused | Misuse)
                    if refused and isinstance(verdict, Advance):
                        verdict = Return(_APART)
                # A worker that leaves: the next one here ends finished work, as if we had died.
                unwritten = any(isinstance(result, Outage) for result in results)
                finished = isinstance(verdict, Advance | Ask)
                to_an_heir = leaving.why is not None and unwritten and finished
                return tuple(results)
            except (HandlerUnusable, WorktreeUnavailable) as flaw:  # not the issue's fault
                # Last first: a worker that claims them in their order finds the first free last.
                for keeper in reversed(held.keepers[1:]):
                    with suppress(Outage):  # then the lease expires
                        self._advancing.give_back(keeper, str(flaw))
                self._advancing.give_back(held.lead, str(flaw))
                raise
            finally:
                for supervision in kept:
                    supervision.stop()
                if not to_an_heir:
                    self._runner.settle(held.lead.run)

    def park(self, claimed: Claimed) -> FinishResult:
        """Set an issue without attempts left aside for a person, under the lease."""
        note = f"{claimed.failed_attempts} attempts failed"
        return self._advancing.park(self._keep(claimed), note)

    def finish_for_the_dead(self) -> Iterator[tuple[Claimed, FinishResult]]:
        """End the leases of runs that had finished when their workers on this machine died.

        Only a lease that is still live, with the same run and fence, is ended: otherwise the work
        is done again. On comments it always is: an edit of the dead worker's card may still be
        under way, and would undo the ending.
        """
        backlog = self._backlog
        if Guarantee.ATOMIC not in backlog.leases.guarantees or not backlog.granting.keeps_house():
            return
        for finished in self._runner.finished_by_the_dead():
            lease = finished.lease
            try:
                claimed = self._resuming().resume(lease.issue, lease.run)
                verdict = _verdict_of_result(finished.result, finished.plan)
                ours = isinstance(claimed, Claimed) and (
                    (claimed.lease.fence, claimed.lease.stage) == (lease.fence, lease.stage)
                )
                if isinstance(claimed, Claimed) and ours and isinstance(verdict, Advance | Ask):
                    keeper = self._keep(claimed)
                    keeper.renew_now()  # shows a revoke or a veto since the worker died
                    if not isinstance(keeper.condition, Holding):
                        verdict = Return("its worker died, and a person has stopped the work")
                    yield claimed, self._end(keeper, verdict)
            except Misuse as refusal:  # the issue or the stage is gone, or the move is not legal
                _log.info("%s: run %s is not ended: %s", lease.issue, lease.run, refusal)

    def _open_place(
        self, claims: tuple[Claimed, ...], lead: Keeper, stack: ExitStack
    ) -> Workplace | None:
        """Make the working trees that the stage wants; None if the stage wants none.

        Called before the handler starts, while the leases are renewed. `stack` clears the working
        trees when closed; then the journal gets an event for each piece of work that was kept.
        """
        claimed = claims[0]
        worktree = claimed.stage.worktree
        if isinstance(worktree, NoWorktree) or isinstance(claimed.stage.handler, NoHandler):
            return None
        repos = tuple(dict.fromkeys(member.lease.issue.repo for member in claims))
        user = claimed.stage.run_as or None
        wish = PlaceWish(claimed.lease.run, str(claimed.lease.issue), worktree, repos, user)
        context = self._workplaces().open(wish)
        place = context.__enter__()

        def journal_kept_work() -> None:
            for line in place.kept:
                self._observer.observe(about(EventKind.WORK_KEPT, lead.lease, what=line))

        stack.callback(journal_kept_work)
        stack.push(context)
        return place

    def _run_handler(self, job: _Job, leaving: StopSignal) -> Verdict:
        """Run the stage's handler to its end, in this process or in a separate process.

        Without a handler the issue advances, if the stage passes by itself, or is given back.
        """
        stage, held, place = job.lead.stage, job.held, job.place
        match stage.handler:
            case NoHandler() if stage.passes_by_itself:
                return Advance()
            case NoHandler():
                return Return("nothing runs in this stage")
            case Command() | PythonCallable() as handler:
                return self._run_process(job, leaving, handler)
            case InProcess():
                pass
            case never:
                assert_never(never)
        asking = _Asking(held)
        leaving.enter(asking)
        self._started(job)
        try:
            function, lease = self._handlers[stage.name], held.lead.lease
            work = Work(
                self._document(job),
                lease.stage,
                lease.run,
                lease.fence,
                job.lead.failed_attempts + 1,
                held.lead,
                folder=place.folder if place else None,
                folders=place.folders if place else {},
                branch=place.branch if place else "",
                leases=held.keepers,
            )
            verdict: Verdict
            try:
                held.check()
                answer = function(work)
            except GiveBack as asked:
                verdict = Return(str(asked))
            except AskPerson as question:
                verdict = Ask(str(question))
            except LeaseLost as lost:
                verdict = self._stopped(held, lost.why)
            except Exception as failure:  # noqa: BLE001 - whatever a handler raises is a failed attempt
                _log.warning("%s: %s", lease.issue, "".join(traceback.format_exception(failure)))
                verdict = Fail(f"{type(failure).__name__}: {failure}")
            else:
                verdict = verdict_of(answer)
            return self._exited(job, verdict)
        finally:
            leaving.leave(asking)

    def _run_process(
        self, job: _Job, leaving: StopSignal, handler: Command | PythonCallable
    ) -> Verdict:
        """Run the handler in a separate process, and pass on every extension of trust."""
        held = job.held
        limit = job.lead.stage.timeout or job.lead.terms.max_hold
        started_at = self._clock.now()
        try:
            held.check()  # confirming the win may have taken longer than the lease
        except LeaseLost as lost:
            return Return(lost.why)
        assignment = _assignment(job, handler, limit, self._document(job))
        if Guarantee.ATOMIC not in self._backlog.leases.guarantees:
            assignment = replace(assignment, lease=None)  # nobody could end it for a dead worker
        running = self._runner.start(assignment, held.trusted_until)
        began_at = self._clock.now()
        self._started(job)
        held.on_lost(lambda why: running.stop(f"the lease is lost: {why}"))
        if held.over:  # lost before `on_lost` was registered
            running.stop("the lease is lost")
        leaving.enter(running)
        try:
            until = local_after(started_at, limit)
            slice_s = min(_SLICE_S, held.lead.terms.ttl.total_seconds() / 10)
            trusted_until = held.trusted_until
            while (end := running.poll(slice_s)) is None:
                if held.trusted_until != trusted_until:
                    trusted_until = held.trusted_until
                    running.trust_until(trusted_until)
                if self._clock.now() >= until:
                    running.stop(_TIME_LIMIT)
        finally:
            leaving.leave(running)
        verdict: Verdict
        match end:
            case Exited(code):
                at_once = self._clock.now() - began_at <= _AT_ONCE_S
                verdict = _verdict_of_exit(code, running, at_once=at_once)
            case Stopped(why):
                verdict = Fail(why) if why == _TIME_LIMIT else self._stopped(held, why)
            case never:
                assert_never(never)
        return self._exited(job, verdict)

    def _document(self, job: _Job) -> dict[str, Any]:
        """The issue for the handler to read; for a bundle, with all issues under `bundle`.

        The claim judged the same snapshot last, so no later text reaches the handler.
        """
        documents = [
            issue_document(
                self._backlog.tracker.with_authors(claimed.snapshot),
                claimed.lease.stage,
                claimed.failed_attempts + 1,
                claimed.stage.comments,
                passage_for(
                    claimed.snapshot,
                    tries_by_cards(claimed.snapshot),
                    claimed.stage,
                    self._backlog.pipeline,
                ),
            )
            for claimed in job.claims
        ]
        if len(documents) == 1:
            return documents[0]
        named = [
            {**document, "run": claimed.lease.run, "fence": claimed.lease.fence}
            for document, claimed in zip(documents, job.claims, strict=True)
        ]
        return {**documents[0], "bundle": named}

    @staticmethod
    def _stopped(held: LeaseGroup, why: str) -> Verdict:
        """Give stopped work back; but an attempt failed if the lease was held for too long."""
        overdue = held.overdue
        return Return(why) if overdue is None else Fail(overdue.why)

    def _conclude(
        self,
        keeper: Keeper,
        verdict: Verdict,
        judge: Callable[[Verdict], Verdict],
        leaving: StopSignal,
    ) -> FinishResult:
        """Write the ending, and try again after an outage for as long as the lease lasts.

        Finished work is worth some patience: the lease is renewed between two tries. A refusing
        tracker is asked again as well, because a try costs no work; but it costs requests, so the
        pause doubles up to the interval of renewals. The outage is raised, while the lease is still
        ours, if the lease would be over before the next try, or if the worker leaves and the grace
        is over.
        """
        reported_at = LocalTime(-_REPORT_EVERY_S)
        refused_s = REFUSED.pause_s
        while True:
            try:
                if isinstance(verdict, Advance) and verdict.plan:
                    self._post_plan(keeper, verdict)
                    verdict = replace(verdict, plan="")
                return self._end(keeper, judge(verdict))
            except IllegalMove as refusal:
                verdict = Fail(self._mask(str(refusal)))
            except Outage as failure:
                if isinstance(failure, Damaged):
                    raise
                if (now := self._clock.now()) >= reported_at + _REPORT_EVERY_S:
                    waits = "%s: the handler has ended, and its ending cannot be written yet: %s"
                    _log.warning(waits, keeper.lease.issue, failure)
                    reported_at = now
                pause_s = failure.retry_after_s if isinstance(failure, RateLimited) else 0.0
                if not failure.retryable:
                    pause_s = min(refused_s, keeper.terms.renew_every.total_seconds())
                    refused_s *= 2
                again_at = self._clock.now() + max(OUTAGE_PAUSE_S, pause_s)
                supervision = Supervision(keeper, self._clock, self._threads)
                try:
                    while (
                        leaving.why is None
                        and (wait_s := again_at - self._clock.now()) > 0
                        and (spare_s := keeper.ours_s() - OUTAGE_PAUSE_S) > 0
                    ):
                        self._clock.sleep(min(wait_s, spare_s, _SLICE_S))
                finally:
                    supervision.stop()
                if again_at > self._clock.now() or keeper.ours_s() <= 0:
                    raise

    def _post_plan(self, keeper: Keeper, verdict: Advance) -> None:
        """Post the plan before the ending, so that a gate never stands open for an older plan.

        Raises IllegalMove, before any write, for a move that the pipeline forbids. After a lost
        lease the plan is posted in vain: it is no plan of the visit that another run leads to.
        """
        lease = keeper.lease
        self._backlog.pipeline.target(keeper.stage.name, verdict.to)
        if not keeper.over.is_set():
            body = render_plan(lease.stage, lease.run, lease.holder, self._mask(verdict.plan))
            self._backlog.tracker.comment(lease.issue, body)

    def _end(self, keeper: Keeper, verdict: Verdict) -> FinishResult:
        match verdict:
            case Advance(to, note):
                return self._advancing.advance(keeper, to, note)
            case Return(note):
                return self._advancing.give_back(keeper, note)
            case Fail(note):
                return self._advancing.fail(keeper, note)
            case Ask(note):
                return self._advancing.park(keeper, asking(note))
            case never:
                assert_never(never)

    def _started(self, job: _Job) -> None:
        for keeper in job.held:
            event = about(EventKind.HANDLER_STARTED, keeper.lease, lead=_lead(job, keeper))
            self._observer.observe(event)

    def _exited(self, job: _Job, verdict: Verdict) -> Verdict:
        # The breaker, the journal and the worker's log repeat the note, beside the card.
        verdict = replace(verdict, note=self._mask(verdict.note))
        kind, note = type(verdict).__name__.lower(), verdict.note
        took = {"took": self._clock.now() - job.began_at}
        for keeper in job.held:
            lead = _lead(job, keeper)
            event = about(
                EventKind.HANDLER_EXITED,
                keeper.lease,
                spans=took,
                verdict=kind,
                note=note,
                lead=lead,
            )
            self._observer.observe(event)
        return verdict


_TIME_LIMIT = "the handler's time limit is over"
_APART = "the lease on another issue of its bundle was lost"


def _lead(job: _Job, keeper: Keeper) -> str:
    """The run with the handler's output, if it is another: a bundle has the output of its first."""
    return "" if keeper is job.held.lead else job.held.lead.run


def _assignment(
    job: _Job, handler: Command | PythonCallable, limit: timedelta, document: Mapping[str, Any]
) -> Assignment:
    """The contract with a handler in a process: environment, standard input, folder and limits."""
    claimed, place = job.lead, job.place
    lease, deadline = claimed.lease, later(claimed.snapshot.now, limit)
    environment = {
        "DIBS_ISSUE": str(lease.issue),
        "DIBS_STAGE": lease.stage,
        "DIBS_RUN": lease.run,
        "DIBS_FENCE": str(lease.fence),
        "DIBS_ATTEMPT": str(claimed.failed_attempts + 1),
        "DIBS_DEADLINE": format_instant(deadline),
    }
    if place is not None:
        folders = {name: str(folder) for name, folder in place.folders.items()}
        environment |= {
            "DIBS_WORKTREE": str(place.folder),
            "DIBS_WORKTREES": json.dumps(folders),
            "DIBS_BRANCH": place.branch,
        }
    if len(job.held.keepers) > 1:  # a guard of any of the issues must know its run
        environment |= {"DIBS_RUNS": " ".join(keeper.run for keeper in job.held)}
    return Assignment(
        run=lease.run,
        handler=handler,
        stdin=json.dumps(document, ensure_ascii=False).encode(errors="replace"),
        environment=environment,
        env=claimed.stage.env,
        pass_env=claimed.stage.pass_env,
        run_as=claimed.stage.run_as,
        # The process group must be gone before another run can get the lease.
        stop_within=min(timedelta(seconds=5), claimed.terms.margin * 0.8),
        folder=place.folder if place else None,
        shared=place.shared if place else (),
        lease=lease if len(job.claims) == 1 else None,
    )


def issue_document(
    snapshot: Snapshot,
    stage: str,
    attempt: int,
    comments: WhoseComments = WhoseComments.AUTO,
    passage: Passage | None = None,
) -> dict[str, Any]:
    """The issue as a handler reads it. Marks are left out: dibs wrote them, not people.

    `trusted` of the issue and of each comment: whether the author may write to the repository.
    `comments`: whose comments go in; the number of the others is in `comments_left_out`.
    `passage`: how the issue came through a gate, and with which plan.
    """
    issue, posted = snapshot.issue, plans(snapshot)
    plan = (passage.plan if passage is not None else None) or (posted[-1] if posted else None)
    left_out = {one.comment for one in posted}
    said = [
        one
        for one in snapshot.comments
        if parse_mark(one.body) is None
        and one.id not in left_out
        and not (one.by_writer and is_foreign(one.body))
    ]
    if comments is WhoseComments.AUTO:
        comments = WhoseComments.WRITERS if snapshot.public else WhoseComments.ALL
    shown = [
        one
        for one in said
        if (one.by_writer and comments is not WhoseComments.NONE)
        # A stranger's line for machines imitates a mark, or hides its words from people.
        or (
            comments is WhoseComments.ALL
            and not (is_foreign(one.body) or one.body.lstrip().startswith("<!--"))
        )
    ]
    return {
        "issue": str(issue.ref),
        "title": issue.title,
        "body": issue.body,
        "author": issue.author,
        "trusted": issue.by_writer,
        "url": issue.url,
        "labels": sorted(issue.labels),
        "stage": stage,
        "attempt": attempt,
        "created_at": format_instant(issue.created_at),
        "plan": plan.text if plan is not None else None,
        "approval": None if passage is None else passage.as_data(),
        "comments": [
            {
                "author": comment.author,
                "trusted": comment.by_writer,
                "body": words_of(comment.body),
                "created_at": format_instant(comment.created_at),
            }
            for comment in shown
        ],
        "comments_left_out": len(said) - len(shown),
    }


def verdict_of(answer: object) -> Verdict:
    """The verdict of a handler's answer: None, the name of the next stage,
    {"next": ..., "note": ..., "plan": ...}, or {"ask": ...}.
    """
    match answer:
        case None:
            return Advance()
        case str(stage):
            return Advance(stage)
        case (
            {"next": None | str(), **rest} | {"note": str(), **rest} | {"plan": str(), **rest}
        ) if not (rest.keys() - {"next", "note", "plan"}):
            assert isinstance(answer, Mapping), "a mapping pattern matched"
            plan = str(answer.get("plan") or "")
            if len(plan) > LONGEST_PLAN:
                return Fail(f"its plan has {len(plan)} characters; {LONGEST_PLAN} fit a comment")
            return Advance(answer.get("next"), str(answer.get("note") or ""), plan)
        case {"ask": str(question), **rest} if question.strip() and not rest:
            return Ask(question)
        case _:
            return Fail(f"the handler's answer is not understood: {answer!r:.2000}")


def _verdict_of_result(result: bytes, plan: bytes) -> Verdict:
    """The verdict of the result and plan files of a handler that exited with 0."""
    try:
        verdict = verdict_of(json.loads(result)) if result.strip() else Advance()
    except (ValueError, RecursionError) as flaw:
        return Fail(f"DIBS_RESULT cannot be read: {flaw}")
    text = plan.decode(errors="replace").strip()
    if not isinstance(verdict, Advance) or not text:
        return verdict
    if verdict.plan:
        return Fail("the handler answered with two plans: in DIBS_RESULT and in DIBS_PLAN")
    given = verdict_of({"plan": text})
    return replace(verdict, plan=text) if isinstance(given, Advance) else given


def _verdict_of_exit(code: int, running: RunningHandler, *, at_once: bool) -> Verdict:
    """The verdict of an exit code, the files of the answer and the end of the output.

    The note of a failed attempt is in the handler's own words, if it wrote any: a person who looks
    into the failure reads the note. `at_once`: the handler ended right after its start.
    """
    if code == GIVE_BACK_EXIT:
        return Return("the handler gave it back")
    try:
        result, plan = running.answers()
        if code == 0:
            return _verdict_of_result(result, plan)
        answer = json.loads(result or b"{}")
    except (OSError, ValueError, RecursionError) as flaw:
        if code == 0:
            return Fail(f"DIBS_RESULT cannot be read: {flaw}")
        answer = None
    match answer:
        case {"ask": str(words)} | {"note": str(words)} if words.strip():
            pass
        case _:
            words = running.last_words()
    if code == ASK_EXIT:
        return Ask(words or "the handler gave no question")
    note = _exit_in_words(code)
    return Fail(f"{note}: {words}" if words else note, at_once and code in _CANNOT_RUN)


def _exit_in_words(code: int) -> str:
    """A negative code is the number of the signal that killed the handler."""
    if code >= 0:
        return f"the handler exited with {code}"
    try:
        return f"the handler was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"the handler was killed by signal {-code}"
