"""The worker's loop, with real threads on a clock that moves only while nobody has work to do."""

import random
import signal
import threading

import pytest
from msgspec.structs import replace

from dibs.core.eligibility import PauseScope
from dibs.core.errors import (
    Damaged,
    HandlerUnusable,
    NoSuchIssue,
    NotPermitted,
    RateLimited,
    Unavailable,
)
from dibs.core.events import Step
from dibs.core.ids import IssueRef
from dibs.core.pipeline import Command
from dibs.frontends.cli.output import Exit
from dibs.frontends.cli.work import _answer
from dibs.services.running import GiveBack
from dibs.services.working import Until, WorkReport

from .runners import ScriptedRunner
from .world import TTL_S, Crash, World, crashing, outage, pipeline_of

PATIENCE_S = 0.03
WAIT_S = 60.0
"""For what comes at once, on however busy a machine."""


@pytest.fixture
def world(kind):
    return World(kind, patience_s=PATIENCE_S)


class Handler:
    """Notes what it is given and does what it is told to, attempt by attempt."""

    def __init__(self, *acts):
        self.acts = list(acts)
        self.seen = []
        self.at_once = 0
        self.most_at_once = 0
        self._lock = threading.Lock()

    def __call__(self, work):
        with self._lock:
            self.seen.append((work.issue["issue"], work.attempt))
            act = self.acts.pop(0) if len(self.acts) > 1 else (self.acts or [None])[0]
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return act(work) if callable(act) else act
        finally:
            with self._lock:
                self.at_once -= 1


def fail(work):
    raise ValueError("it broke")


def give_back(work):
    raise GiveBack("not now")


def make_worker(world, handler, *, name="w1", stages=("ready",), until=Until.DRAINED, **options):
    process = world.process(name, handlers={"ready": handler} if handler else {})
    process.told = []
    wanted = tuple(process.services.pipeline.stage(stage) for stage in stages)
    worker = process.services.worker(
        process.holder, wanted, until=until, tell=process.told.append, **options
    )
    worker._dice.seed(7)
    return process, worker


def work(world, handler, **options):
    process, worker = make_worker(world, handler, **options)
    return process, worker.run()


def all_in(world, issues, label):
    return all(world.labels(issue) == {label} for issue in issues)


# Until when


def test_once_means_one_issue(world):
    first, second = world.add(), world.add()
    handler = Handler(None)
    process, report = work(world, handler, until=Until.ONCE)
    assert f"{first} advanced to review" in process.told
    assert (report.claimed, report.attempts, report.outcomes) == (1, 1, {"advanced": 1})
    assert handler.seen == [("#1", 1)]
    assert world.labels(first) == {"stage:review"}
    assert world.labels(second) == {"stage:ready"}
    assert report.did_something


def test_once_with_nothing_to_do_goes_home_at_once(world):
    _, report = work(world, Handler(None), until=Until.ONCE)
    assert not report.did_something
    assert world.clock.passed_s == 0


def test_drained_means_every_issue_once(world):
    issues = [world.add() for _ in range(12)]
    handler = Handler(None)
    process, report = work(world, handler)
    assert sorted(handler.seen) == sorted((str(issue), 1) for issue in issues)
    assert report.outcomes == {"advanced": 12}
    assert report.lost_races == 0
    assert report.attempts == 12
    assert all_in(world, issues, "stage:review")
    assert [line for line in process.told if "claimed for ready" in line]


def test_several_jobs_run_at_once_and_no_more_than_asked(world):
    for _ in range(9):
        world.add()
    meeting = threading.Barrier(3)

    def meet(work):
        meeting.wait(timeout=WAIT_S)

    handler = Handler(meet)
    _, report = work(world, handler, jobs=3)
    assert report.outcomes == {"advanced": 9}
    assert handler.most_at_once == 3


def test_the_wip_limit_holds_for_a_worker_with_many_jobs(kind):
    world = World(kind, pipeline=pipeline_of(wip=1), patience_s=PATIENCE_S)
    issues = [world.add() for _ in range(4)]
    pause = threading.Event()

    def take_a_while(work):
        pause.wait(0.01)

    handler = Handler(take_a_while)
    _, report = work(world, handler, jobs=3)
    assert handler.most_at_once == 1
    assert report.outcomes == {"advanced": 4}
    assert all_in(world, issues, "stage:review")


def test_later_stages_are_finished_before_earlier_ones_are_begun(world):
    ready, approved = world.add(), world.add("stage:review", "approved")
    _, worker = make_worker(world, Handler(None), stages=("ready", "review"), until=Until.ONCE)
    worker.run()
    assert world.labels(ready) == {"stage:ready"}
    assert world.labels(approved) == {"stage:done"}
    assert not world.read(approved).issue.open


def test_a_shut_gate_does_not_keep_a_draining_worker_waiting(world):
    waiting = world.add("stage:review")
    _, report = work(world, Handler(None), stages=("ready", "review"))
    assert not report.did_something
    assert world.labels(waiting) == {"stage:review"}


def test_a_draining_worker_waits_for_what_others_hold(world):
    issue = world.add()
    other = world.process("other").claimed(issue)
    handler = Handler(None)
    process, report = work(world, handler)
    assert world.clock.server_now() >= other.lease.expires_at
    assert handler.seen == [("#1", 2)], "the holder that vanished counts as the first attempt"
    assert report.outcomes == {"advanced": 1}
    assert any("waiting for issues that others hold" in line for line in process.told)


# Failing


def test_a_failing_issue_backs_off_and_is_parked_after_its_attempts(kind):
    world = World(kind, pipeline=pipeline_of(attempts=3), patience_s=PATIENCE_S)
    issue = world.add()
    handler = Handler(fail)
    _, report = work(world, handler)
    assert handler.seen == [("#1", 1), ("#1", 2), ("#1", 3)]
    assert report.outcomes == {"failed": 2, "parked": 1}
    assert world.labels(issue) == {"stage:ready", "parked"}
    assert world.clock.passed_s >= 30 + 60, "it rested after each failure"


def test_one_failing_issue_does_not_hold_up_the_others(world):
    bad = world.add()
    good = [world.add() for _ in range(3)]
    handler = Handler(lambda work: fail(work) if work.issue["issue"] == str(bad) else None)
    _, report = work(world, handler)
    order = [issue for issue, _ in handler.seen]
    assert set(order[1:4]) == {str(issue) for issue in good}
    assert report.outcomes == {"advanced": 3, "failed": 2, "parked": 1}
    assert all_in(world, good, "stage:review")


def test_an_issue_whose_holders_vanished_too_often_is_parked_and_not_run(kind):
    world = World(kind, pipeline=pipeline_of(attempts=2), patience_s=PATIENCE_S)
    issue = world.add()
    for _ in range(2):
        world.process("vanishing").claimed(issue)
        world.clock.advance(TTL_S)
    handler = Handler(None)
    _, report = work(world, handler)
    assert handler.seen == []
    assert report.outcomes == {"parked": 1}
    assert world.labels(issue) == {"stage:ready", "parked"}


def test_an_issue_that_is_given_back_is_tried_again_later_and_uncounted(world):
    issue = world.add()
    handler = Handler(give_back, give_back, None)
    _, report = work(world, handler)
    assert handler.seen == [("#1", 1)] * 3
    assert report.outcomes == {"returned": 2, "advanced": 1}
    assert world.labels(issue) == {"stage:review"}
    assert world.clock.passed_s >= 5 + 10, "it was left longer each time"


def test_a_handler_that_cannot_be_used_is_found_before_anything_is_claimed(kind):
    world = World(kind, pipeline=pipeline_of(handler=Command("./x")), patience_s=PATIENCE_S)
    issue = world.add()
    process = world.process()
    process.services.runner = ScriptedRunner(world.clock, unusable="./x was not found")
    worker = process.services.worker(
        process.holder, (process.services.pipeline.stage("ready"),), until=Until.DRAINED
    )
    with pytest.raises(HandlerUnusable):
        worker.run()
    assert world.labels(issue) == {"stage:ready"}
    assert process.tracker.written == []


def test_a_handler_that_stops_being_usable_sends_the_worker_home(kind):
    world = World(kind, pipeline=pipeline_of(handler=Command("./x")), patience_s=PATIENCE_S)
    issues = [world.add() for _ in range(5)]
    process = world.process()
    process.services.runner = ScriptedRunner(world.clock, cannot_start="too many files")
    worker = process.services.worker(
        process.holder, (process.services.pipeline.stage("ready"),), until=Until.DRAINED
    )
    report = worker.run()
    assert report.unusable == "too many files"
    assert report.claimed < 5
    assert all_in(world, issues, "stage:ready")
    assert world.process("next").claimed(issues[0]).failed_attempts == 0


# Pausing


@pytest.mark.parametrize("scope", PauseScope)
def test_a_pause_of_everything_stops_claiming(world, scope):
    issue = world.add()
    world.pauses.pause(scope, repo="", reason="deploy", by="ada")
    handler = Handler(None)
    process, report = work(world, handler)
    assert handler.seen == []
    assert not report.did_something
    assert not [call for call in process.tracker.calls if call.args[:1] == (issue,)], "it was read"
    assert [pause.reason for pause in report.paused] == ["deploy"]
    assert world.labels(issue) == {"stage:ready"}
    world.pauses.resume(scope, repo="", by="ann")
    _, report = work(world, handler, name="w2")
    assert report.outcomes == {"advanced": 1}


def test_a_pause_lets_running_work_finish_and_begins_no_more(world):
    first, second = world.add(), world.add()
    handler = Handler(
        lambda work: world.pauses.pause(PauseScope.FLEET, repo="", reason="deploy", by="ada")
    )
    _, report = work(world, handler)
    assert report.outcomes == {"advanced": 1}
    assert report.paused
    assert world.labels(first) == {"stage:review"}
    assert world.labels(second) == {"stage:ready"}


def test_a_paused_issue_is_stopped_given_back_and_left_alone(world):
    issue = world.add()
    keeper_beats = threading.Event()

    def act(work):
        world.tracker.edit_labels(issue, add=("paused",))
        work.lease.over.wait(WAIT_S)
        keeper_beats.set()
        work.check()

    _, report = work(world, Handler(act))
    assert keeper_beats.is_set()
    assert report.outcomes == {"returned": 1}
    assert world.labels(issue) == {"stage:ready", "paused"}


# Sweeping


def test_a_worker_sweeps_what_a_crash_left_behind(world):
    decided, vanished = world.add(), world.add()
    dying = world.process("dying", reached=crashing(Step.FINISH_DECIDED))
    keeper = dying.hold(decided)
    with pytest.raises(Crash):
        dying.services.advancing.advance(keeper)
    world.process("vanishing").claimed(vanished)
    world.clock.advance(TTL_S)
    handler = Handler(None)
    process, report = work(world, handler)
    assert report.swept == 2
    assert handler.seen == [("#2", 2)], "what was decided is not run again"
    assert all_in(world, (decided, vanished), "stage:review")
    assert sum("swept" in line for line in process.told) == 2


# Losing


def test_a_lease_that_is_lost_is_not_finished(world):
    issue = world.add()

    def act(work):
        boss = world.process("boss")
        boss.services.steering.revoke(issue, work.run, by="ada", reason="x", force=True)
        work.lease.over.wait(WAIT_S)
        return "review"

    handler = Handler(act, give_back, None)
    _, report = work(world, handler)
    assert report.outcomes == {"refused": 1, "returned": 1, "advanced": 1}
    assert [state for _, state in world.states(issue)] == [
        "held",
        "released",
        "released",
    ]


def test_a_lost_race_widens_the_search(world):
    for _ in range(4):
        world.add()
    handler = Handler(None)
    process, worker = make_worker(world, handler)
    rival = world.process("rival")
    taken = []

    def be_first(call):
        if call.name == "acquire" and not taken:
            taken.append(rival.hold(call.args[0].issue))
        elif call.name == "acquire" and len(taken) == 1 and handler.seen:
            taken.append(rival.services.advancing.advance(taken[0]))

    process.leases.before = be_first
    report = worker.run()
    assert report.lost_races == 1
    assert report.attempts == report.claimed + 1
    assert report.outcomes == {"advanced": 3}
    assert worker._spread.window > 1


@pytest.mark.parametrize("ended", [False, True], ids=["at work", "ended"])
def test_an_issue_that_another_took_after_the_scan_widens_the_search(world, ended):
    first, *_ = [world.add() for _ in range(4)]
    handler = Handler(None)
    process, worker = make_worker(world, handler)
    worker._options = replace(worker._options, cheap_reads=True)  # it looks before each bid
    rival = world.process("rival")
    taken = []

    def be_first(call):
        if call.name == "read" and call.args[0] == first and not taken:
            taken.append(rival.hold(first))
            if ended:
                rival.services.advancing.advance(taken[0])
        elif taken and len(handler.seen) == 1 and not ended:
            handler.seen.append("the rival's")
            rival.services.advancing.advance(taken[0])

    process.tracker.before = be_first
    report = worker.run()
    assert report.outcomes == {"advanced": 3}
    assert report.refused == 1
    assert report.lost_races == 0
    assert worker._spread.window > 1


def test_an_issue_that_was_deleted_after_the_scan_is_passed_over(world):
    gone, kept = world.add(), world.add()
    process, worker = make_worker(world, Handler(None), until=Until.ONCE)

    def deleted(call):
        if call.name == "acquire" and call.args[0].issue == gone:
            raise NoSuchIssue(gone)

    process.leases.before = deleted
    report = worker.run()
    assert report.outcomes == {"advanced": 1}
    assert world.labels(kept) == {"stage:review"}


# Outages


def test_a_worker_whose_ending_cannot_be_written_says_so_and_leaves_within_its_grace(world, caplog):
    issue = world.add()
    process, worker = make_worker(world, Handler(None))

    def wedged(call):
        if call.name == "finish":
            if world.clock.passed_s > 300:
                worker.leave()
            raise Unavailable("a lock file is in the way")

    process.leases.before = wedged
    report = worker.run()
    assert report.claimed == 1
    assert 300 < world.clock.passed_s < 300 + 60
    said = [line for line in caplog.messages if "cannot be written yet" in line]
    assert 2 <= len(said) <= 7, "once a minute, not at every try"
    assert "a lock file is in the way" in said[0]
    assert world.labels(issue) >= {"stage:ready"}


def test_an_outage_is_waited_out(world):
    issues = [world.add() for _ in range(3)]
    process, worker = make_worker(world, Handler(None))
    process.tracker.before = outage("find", times=4)
    report = worker.run()
    assert report.outcomes == {"advanced": 3}
    assert all_in(world, issues, "stage:review")
    assert world.clock.passed_s > 0


def test_a_rate_limit_is_waited_out_for_as_long_as_asked(world):
    world.add()
    process, worker = make_worker(world, Handler(None))
    asked = []

    def limited(call):
        left_s = 120 - world.clock.passed_s
        if left_s > 0:
            asked.append(call.name)
            raise RateLimited("slow down", retry_after_s=left_s)

    process.tracker.before = limited
    assert worker.run().outcomes == {"advanced": 1}
    assert world.clock.passed_s >= 120
    assert len(asked) == 2, "once to sweep and once to claim"


def test_a_limit_on_claims_does_not_stop_sweeps(world):
    """An hour without a new comment is no reason to leave what has expired lying about."""
    world.add()
    expired = world.add()
    world.process("gone").claimed(expired)
    process, worker = make_worker(world, Handler(None))
    told = []
    worker._tell = lambda line: told.append((world.clock.passed_s, line))

    def limited(call):
        wanted = call.args[0].labels if call.name == "find" else ()
        left_s = 3600 - world.clock.passed_s
        if left_s > 0 and "stage:ready" in wanted and "claimed" not in wanted:
            raise RateLimited("500 an hour", retry_after_s=left_s)

    process.tracker.before = limited
    assert worker.run().outcomes == {"advanced": 2}
    (freed_s,) = [at_s for at_s, line in told if "swept" in line]
    assert TTL_S <= freed_s < 300
    assert world.clock.passed_s >= 3600


def test_a_limit_on_sweeps_does_not_stop_claims(world):
    """As where one of two budgets is spent: whoever has the other goes on."""
    issue = world.add()
    process, worker = make_worker(world, Handler(None))
    asked = []

    def limited(call):
        if call.name == "find" and "claimed" in call.args[0].labels:
            asked.append(call)
            raise RateLimited("the other budget is spent", retry_after_s=3000)

    process.tracker.before = limited
    assert worker.run().outcomes == {"advanced": 1}
    assert world.labels(issue) == {"stage:review"}
    assert world.clock.passed_s < 300
    assert len(asked) == 1


# Barred


@pytest.mark.parametrize("until", [Until.DRAINED, Until.ONCE])
def test_a_worker_that_may_claim_nothing_goes_home_and_says_why(world, until):
    issue = world.add()
    other = world.on_other_leases()
    other.process("before").advance(other.add())
    _, report = work(world, Handler(None), until=until)
    assert "leases are granted by" in report.barred
    assert report.claimed == 0
    assert world.labels(issue) == {"stage:ready"}
    assert world.clock.passed_s < 60


def test_an_outage_that_waiting_does_not_mend_ends_the_worker(world):
    world.add()
    process, worker = make_worker(world, Handler(None))

    def forbidden(call):
        if call.name == "find":
            raise NotPermitted("the token was revoked")

    process.tracker.before = forbidden
    with pytest.raises(NotPermitted):
        worker.run()


def test_a_worker_that_cannot_go_on_still_waits_for_its_running_jobs(world):
    for _ in range(2):
        world.add()
    begun = threading.Event()
    release = threading.Event()

    def act(work):
        begun.set()
        release.wait(0.3)

    process, worker = make_worker(world, Handler(act), jobs=2)

    def forbidden(call):
        if call.name == "find" and begun.is_set():
            raise NotPermitted("the token may not list issues any more")

    process.tracker.before = forbidden
    try:
        with pytest.raises(NotPermitted):
            worker.run()
        done = sum(worker.report.outcomes.values())
        assert done == worker.report.claimed, "the worker left while a handler was running"
    finally:
        release.set()
        wait_for(lambda: not worker._jobs)


def test_an_ending_that_cannot_be_written_does_not_take_the_worker_down(world):
    bad, good = world.add(), world.add()
    process, worker = make_worker(world, Handler(None), until=Until.STOPPED)

    def broken(call):
        if call.name == "finish" and call.args[0].issue == bad:
            raise Damaged("the store is broken")

    process.leases.before = broken
    watcher = threading.Thread(
        target=lambda: (wait_for(lambda: worker.report.outcomes["advanced"] == 1), worker.leave())
    )
    watcher.start()
    report = worker.run()
    watcher.join(WAIT_S)
    assert report.outcomes["broken"] >= 1
    assert any(line.startswith(f"{bad} was not finished: ") for line in process.told)
    assert world.labels(good) == {"stage:review"}


def refusing_endings(world, until_s):
    """A hook by which every ending is refused until then."""

    def refuse(call):
        if call.name == "finish" and world.clock.passed_s < until_s:
            raise NotPermitted("bad credentials")

    return refuse


def test_finished_work_is_not_thrown_away_because_its_ending_was_refused(world):
    issue, handler = world.add(), Handler(None)
    process, worker = make_worker(world, handler, until=Until.ONCE)
    process.leases.before = refusing_endings(world, 3 * TTL_S)
    report = worker.run()
    assert (report.outcomes, report.unrecorded) == ({"advanced": 1}, set())
    assert handler.seen == [(str(issue), 1)]
    assert world.labels(issue) == {"stage:review"}


def test_an_ending_that_did_not_get_through_while_trust_lasted_is_told(world):
    issue = world.add()
    process, worker = make_worker(world, Handler(None), until=Until.ONCE)

    def refuse(call):
        if call.name in ("finish", "renew"):
            raise NotPermitted("bad credentials")

    process.leases.before = refuse
    report = worker.run()
    assert (report.outcomes, report.unrecorded) == ({"broken": 1}, {issue})
    assert world.clock.passed_s >= world.trust_s - 1
    (line,) = [line for line in process.told if "not finished" in line]
    assert f"{issue} was not finished: bad credentials" in line
    assert "its output is with: dibs runs --output w1-1" in line


def test_a_worker_whose_tracker_refuses_leaves_once_its_work_is_recorded(world):
    """Nothing is claimed any more, but the work in hand has the time of its lease."""
    issue, handler = world.add(), Handler(lambda work: begun.set())
    process, worker = make_worker(world, handler, until=Until.STOPPED, stop_grace_s=1.0)
    begun = threading.Event()

    def forbidden(call):
        if call.name == "find" and begun.is_set():
            raise NotPermitted("the token may not list issues any more")

    process.tracker.before = forbidden
    process.leases.before = refusing_endings(world, 2 * TTL_S)
    with pytest.raises(NotPermitted):
        worker.run()
    assert worker.report.outcomes == {"advanced": 1}
    assert len(handler.seen) == 1
    assert world.labels(issue) == {"stage:review"}


@pytest.mark.parametrize("received", [[], [signal.SIGTERM]])
def test_a_worker_that_did_not_record_an_ending_exits_with_1_also_after_a_signal(received):
    report = WorkReport(claimed=1, unrecorded={IssueRef("acme/shop", "7")})
    answer = _answer(report, received, may_be_idle=True)
    assert answer.exit is Exit.ERROR
    assert "not recorded: acme/shop#7" in answer.lines
    assert answer.data["unrecorded"] == ["acme/shop#7"]


def wait_for(condition, *, within_s=WAIT_S):
    pause = threading.Event()
    for _ in range(int(within_s / 0.002)):
        if condition():
            return
        pause.wait(0.002)
    raise AssertionError("it never happened")


# Leaving


def test_a_worker_that_leaves_finishes_what_it_has_and_claims_no_more(world):
    for _ in range(3):
        world.add()
    workers = []
    handler = Handler(lambda work: workers[0].leave())
    _, worker = make_worker(world, handler, until=Until.STOPPED)
    workers.append(worker)
    report = worker.run()
    assert report.claimed == 1
    assert report.outcomes == {"advanced": 1}


def test_a_handler_that_outstays_the_grace_is_asked_to_stop_and_gives_back(world):
    issue = world.add()
    workers = []

    def stubborn(work):
        workers[0].leave()
        pause = threading.Event()
        for _ in range(10_000):
            work.check()
            pause.wait(0.001)

    _, worker = make_worker(world, Handler(stubborn), until=Until.STOPPED, stop_grace_s=2.0)
    workers.append(worker)
    report = worker.run()
    assert report.outcomes == {"returned": 1}
    assert world.labels(issue) == {"stage:ready"}
    assert world.process("next").claimed(issue).failed_attempts == 0


def test_leaving_now_stops_the_handlers_at_once(world):
    issue = world.add()
    workers = []

    def stubborn(work):
        workers[0].leave_now()
        work.check()
        raise AssertionError("it went on")

    _, worker = make_worker(world, Handler(stubborn), until=Until.STOPPED)
    workers.append(worker)
    report = worker.run()
    assert report.outcomes == {"returned": 1}
    assert world.labels(issue) == {"stage:ready"}


def test_a_worker_told_to_leave_before_it_began_does_nothing(world):
    world.add()
    _, worker = make_worker(world, Handler(None))
    worker.leave()
    assert not worker.run().did_something


# Together


def test_several_workers_share_a_backlog_and_nobody_works_an_issue_twice(kind):
    """Three workers in threads of their own, each with two jobs; the clock is turned from here."""
    world = World(kind)
    issues = [world.add() for _ in range(40)]
    handler = Handler(None)
    made = [make_worker(world, handler, name=f"w{number}", jobs=2)[1] for number in range(3)]
    threads = [threading.Thread(target=worker.run, daemon=True) for worker in made]
    for thread in threads:
        thread.start()
    for _ in range(10_000):
        if not any(thread.is_alive() for thread in threads):
            break
        world.clock.let_others()
        world.clock.advance(0.05)
    assert not any(thread.is_alive() for thread in threads), "a worker never goes home"
    assert sorted(handler.seen) == sorted((str(issue), 1) for issue in issues)
    assert all_in(world, issues, "stage:review")
    assert sum(worker.report.outcomes["advanced"] for worker in made) == 40


def test_the_dice_of_these_tests_are_seeded(world):
    _, worker = make_worker(world, Handler(None))
    assert worker._dice.random() == random.Random(7).random()
