"""Running one claimed issue: the handler's contract, and what its end asks for."""

import itertools
import json
from datetime import timedelta

import pytest

from dibs.core.durations import REFUSED
from dibs.core.errors import HandlerUnusable, LeaseLost, NotPermitted, RateLimited
from dibs.core.lease import Outcome
from dibs.core.pipeline import Command, WhoseComments
from dibs.services.ending import Finished, FinishRefused
from dibs.services.running import (
    Advance,
    Fail,
    GiveBack,
    StopSignal,
    Work,
    issue_document,
    verdict_of,
)

from .runners import ScriptedRunner
from .world import BEAT_S, TRUST_S, TTL_S, World, outage, pipeline_of


def run_in_process(world, handler, issue=None, *, leaving=None, spoil=lambda process: None):
    process = world.process(handlers={"ready": handler})
    claimed = process.claimed(issue or world.add())
    spoil(process)
    return process.services.running.run(claimed, leaving or StopSignal())


def run_command(world, issue=None, *, spoil=lambda process, claimed: None, **script):
    process = world.process()
    runner = ScriptedRunner(world.clock, **script)
    process.services.runner = runner
    claimed = process.claimed(issue or world.add())
    spoil(process, claimed)
    return runner, process.services.running.run(claimed, StopSignal())


@pytest.fixture
def commands(kind):
    """A world whose first stage runs a command."""
    return World(kind, pipeline=pipeline_of(handler=Command("./implement.sh")))


# Answers


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (None, Advance()),
        ("review", Advance("review")),
        ({"next": "review"}, Advance("review")),
        ({"next": None}, Advance()),
        ({"note": "see PR 7"}, Advance(None, "see PR 7")),
        ({"next": "review", "note": "see\n PR 7"}, Advance("review", "see\n PR 7")),
    ],
)
def test_a_handlers_answer_says_where_to_go(answer, verdict):
    assert verdict_of(answer) == verdict


@pytest.mark.parametrize(
    "answer", [42, True, [], ["review"], {}, {"next": 7}, {"next": "review", "labels": ["x"]}, b"x"]
)
def test_an_answer_that_is_not_understood_is_a_failed_attempt(answer):
    assert isinstance(verdict_of(answer), Fail)


@pytest.mark.parametrize(
    ("exits", "left", "outcome", "note"),
    [
        (0, b"", Outcome.ADVANCED, ""),
        (0, b" \n", Outcome.ADVANCED, ""),
        (0, b'"review"', Outcome.ADVANCED, ""),
        (0, b'{"next": "review", "note": "see PR 7"}', Outcome.ADVANCED, "see PR 7"),
        (0, b"null", Outcome.ADVANCED, ""),
        (0, b"{oops", Outcome.FAILED, "DIBS_RESULT cannot be read"),
        (0, b"[1]", Outcome.FAILED, "not understood"),
        (0, b'"nowhere"', Outcome.FAILED, "may not move to 'nowhere'"),
        (0, b'"done"', Outcome.FAILED, "may not move to 'done'"),
        (75, b"", Outcome.RETURNED, "gave it back"),
        (75, b'"review"', Outcome.RETURNED, "gave it back"),
        (1, b"", Outcome.FAILED, "exited with 1"),
        (1, b'"review"', Outcome.FAILED, "exited with 1"),
        (2, b"", Outcome.FAILED, "exited with 2"),
        (137, b"", Outcome.FAILED, "exited with 137"),
        (-9, b"", Outcome.FAILED, "the handler was killed by SIGKILL"),
        (-63, b"", Outcome.FAILED, "the handler was killed by signal 63"),
    ],
)
def test_an_exit_code_and_a_result_decide_what_becomes_of_the_issue(
    commands, exits, left, outcome, note
):
    issue = commands.add()
    _, finished = run_command(commands, issue, exits=exits, left=left)
    assert isinstance(finished, Finished)
    assert finished.outcome is outcome
    assert note in finished.ending.note
    target = "stage:review" if outcome is Outcome.ADVANCED else "stage:ready"
    assert commands.labels(issue) == {target}


def test_a_command_is_told_what_it_works_on(commands):
    issue = commands.add("stage:ready", "bug")
    commands.tracker.comment(issue, "please hurry")
    runner, _ = run_command(commands, issue)
    assignment = runner.runs[0].assignment
    document = json.loads(assignment.stdin)
    assert document["issue"] == "#1"
    assert document["stage"] == "ready"
    assert document["attempt"] == 1
    assert [comment["body"] for comment in document["comments"]] == ["please hurry"]
    environment = assignment.environment
    assert environment["DIBS_ISSUE"] == "#1"
    assert environment["DIBS_STAGE"] == "ready"
    assert environment["DIBS_RUN"] == assignment.run == "w1-1"
    assert int(environment["DIBS_FENCE"]) >= 1
    assert environment["DIBS_ATTEMPT"] == "1"
    assert environment["DIBS_DEADLINE"].endswith("Z")


def test_claim_cards_are_left_out_of_what_a_handler_reads(world):
    issue = world.add()
    world.tracker.comment(issue, "first")
    world.process().fail(issue)
    world.tracker.comment(issue, "second")
    document = issue_document(world.read(issue), "ready", 2)
    assert [comment["body"] for comment in document["comments"]] == ["first", "second"]
    assert document["attempt"] == 2
    json.dumps(document)


# A process of its own


def test_work_is_checked_by_the_lease_it_was_given_and_elsewhere_by_its_warden(world):
    keeper = world.process().hold(world.add())
    work = Work({}, "ready", "r", 1, 1, lease=keeper)
    work.check()
    keeper.give_up("the disk is full")
    with pytest.raises(LeaseLost, match="the disk is full"):
        work.check()
    Work({}, "ready", "r", 1, 1).check()


@pytest.mark.parametrize(
    ("comments", "shown", "left_out"),
    [(WhoseComments.ALL, 2, 0), (WhoseComments.WRITERS, 1, 1), (WhoseComments.NONE, 0, 2)],
)
def test_the_handler_is_told_how_many_comments_were_kept_from_it(world, comments, shown, left_out):
    issue = world.add()
    world.process().claimed(issue)
    world.tracker.comment(issue, "any news?")
    world.tracker.comment(issue, "me too", author="mallory", by_writer=False)
    document = issue_document(world.read(issue), "ready", 1, comments)
    assert (len(document["comments"]), document["comments_left_out"]) == (shown, left_out)


def test_a_long_handler_is_kept_alive_by_renewals_and_told_of_each(commands):
    runner, finished = run_command(commands, after_s=2.5 * TTL_S)
    assert isinstance(finished, Finished)
    assert finished.outcome is Outcome.ADVANCED
    trusted = runner.runs[0].trusted
    assert len(trusted) >= 5
    assert trusted == sorted(trusted)
    assert trusted[-1] - trusted[0] == pytest.approx(
        finished.record.lease.beats * BEAT_S, abs=BEAT_S
    )


def test_a_handler_is_stopped_when_its_lease_is_lost(commands):
    def revoke(process, claimed):
        boss = commands.process("boss")
        boss.services.steering.revoke(
            claimed.lease.issue, claimed.lease.run, by="ada", reason="x", force=True
        )

    runner, refused = run_command(commands, after_s=10 * TTL_S, spoil=revoke)
    assert isinstance(refused, FinishRefused)
    assert "the lease is lost" in runner.runs[0].stops[0]
    assert commands.clock.passed_s < TRUST_S, "it did not wait for the trust to run out"


def test_a_handler_that_a_person_stopped_gives_the_issue_back_uncounted(commands):
    def pause(process, claimed):
        commands.tracker.edit_labels(claimed.lease.issue, add=("paused",))

    runner, finished = run_command(commands, after_s=10 * TTL_S, spoil=pause)
    assert finished.outcome is Outcome.RETURNED
    assert "paused" in runner.runs[0].stops[0]
    issue = finished.record.lease.issue
    commands.tracker.edit_labels(issue, remove=("paused",))
    assert commands.process("next").claimed(issue).failed_attempts == 0


def test_a_handler_that_exceeds_its_time_limit_has_failed(kind):
    stage = {"handler": Command("x"), "timeout": timedelta(seconds=5)}
    world = World(kind, pipeline=pipeline_of(**stage))
    runner, finished = run_command(world, after_s=1000)
    assert finished.outcome is Outcome.FAILED
    assert "time limit" in finished.ending.note
    assert world.clock.passed_s == pytest.approx(5, abs=1)
    assert runner.runs[0].stops


def test_a_handler_that_cannot_start_costs_the_issue_no_attempt(commands):
    issue = commands.add()
    with pytest.raises(HandlerUnusable):
        run_command(commands, issue, cannot_start="no such file")
    assert commands.labels(issue) == {"stage:ready"}
    assert commands.process("next").claimed(issue).failed_attempts == 0


def test_a_worker_that_leaves_stops_the_process_and_gives_the_issue_back(commands):
    process = commands.process()
    runner = ScriptedRunner(commands.clock, after_s=1000)
    process.services.runner = runner
    leaving = StopSignal()
    leaving.stop_all("the worker is leaving")
    finished = process.services.running.run(process.claimed(commands.add()), leaving)
    assert finished.outcome is Outcome.RETURNED
    assert runner.runs[0].stops == ["the worker is leaving"]


# In this process


def test_a_python_handler_is_handed_the_issue_and_its_lease(world):
    seen = []
    issue = world.add("stage:ready", "bug")

    def handler(work):
        seen.append(work)
        work.check()
        work.lease.ensure(10)

    finished = run_in_process(world, handler, issue)
    (work,) = seen
    assert (work.stage, work.run, work.attempt) == ("ready", "w1-1", 1)
    assert work.fence == finished.record.lease.fence
    assert work.issue["title"] == "Prices are wrong"
    assert "bug" in work.issue["labels"]


@pytest.mark.parametrize(
    ("answer", "outcome", "note"),
    [
        (None, Outcome.ADVANCED, ""),
        ("review", Outcome.ADVANCED, ""),
        ({"note": "see PR 7"}, Outcome.ADVANCED, "see PR 7"),
        ("nowhere", Outcome.FAILED, "nowhere"),
        (42, Outcome.FAILED, "not understood"),
    ],
    ids=str,
)
def test_what_a_python_handler_returns_decides(world, answer, outcome, note):
    finished = run_in_process(world, lambda work: answer)
    assert finished.outcome is outcome
    assert note in finished.ending.note


def test_giving_back_is_raised_and_counts_no_attempt(world):
    def handler(work):
        raise GiveBack("the tests need a GPU")

    issue = world.add()
    finished = run_in_process(world, handler, issue)
    assert finished.outcome is Outcome.RETURNED
    assert finished.ending.note == "the tests need a GPU"
    assert world.process("next").claimed(issue).failed_attempts == 0


def test_whatever_else_a_handler_raises_is_a_failed_attempt(world):
    def handler(work):
        raise ZeroDivisionError("by zero")

    issue = world.add()
    finished = run_in_process(world, handler, issue)
    assert finished.outcome is Outcome.FAILED
    assert finished.ending.note == "ZeroDivisionError: by zero"
    assert world.events()[-3:] == ["handler_started", "handler_exited", "failed"]


def test_the_last_failure_parks_the_issue(kind):
    world = World(kind, pipeline=pipeline_of(attempts=2))

    def handler(work):
        raise ValueError(f"attempt {work.attempt}")

    issue = world.add()
    outcomes = []
    for _ in range(2):
        outcomes.append(run_in_process(world, handler, issue).outcome)
        world.clock.advance(600)
    assert outcomes == [Outcome.FAILED, Outcome.PARKED]
    assert world.labels(issue) == {"stage:ready", "parked"}
    assert world.cards(issue)[-1].ending.note == "ValueError: attempt 2"


def test_a_handler_whose_lease_is_over_is_told_so_and_finishes_nothing(world):
    reached_the_end = []

    def handler(work):
        world.clock.advance(TTL_S)
        work.check()
        reached_the_end.append(True)

    issue = world.add()
    refused = run_in_process(world, handler, issue)
    assert isinstance(refused, FinishRefused)
    assert not reached_the_end
    assert world.labels(issue) == {"stage:ready", "stage:processing", "claimed"}


def test_a_handler_that_never_checks_finishes_nothing_either(world):
    refused = run_in_process(world, lambda work: world.clock.advance(TTL_S))
    assert isinstance(refused, FinishRefused)


def test_a_handler_that_swallows_the_loss_finishes_nothing(world):
    def handler(work):
        world.clock.advance(TTL_S)
        try:
            work.check()
        except LeaseLost:
            return "review"

    assert isinstance(run_in_process(world, handler), FinishRefused)


def test_a_python_handler_is_asked_to_stop_when_the_worker_leaves(world):
    leaving = StopSignal()

    def handler(work):
        work.check()
        leaving.stop_all("the worker is leaving")
        work.check()
        raise AssertionError("it went on")

    finished = run_in_process(world, handler, leaving=leaving)
    assert finished.outcome is Outcome.RETURNED
    assert finished.ending.note == "the worker is leaving"


def test_a_stage_without_handler_passes_once_its_gate_is_open(world):
    issue, process = world.add("stage:review", "approved"), world.process()
    finished = process.services.running.run(process.claimed(issue), StopSignal())
    assert finished.outcome is Outcome.ADVANCED
    assert world.labels(issue) == {"stage:done"}
    assert not world.read(issue).issue.open


def test_an_issue_with_no_attempt_left_is_parked_under_the_lease(world):
    issue, process = world.add(), world.process()
    finished = process.services.running.park(process.claimed(issue))
    assert finished.outcome is Outcome.PARKED
    assert world.labels(issue) == {"stage:ready", "parked"}


# The worker's wish to leave


class Job:
    def __init__(self):
        self.heard = []

    def stop(self, why):
        self.heard.append(why)

    def kill(self):
        self.heard.append("kill")


def test_running_jobs_hear_of_the_wish_to_leave_and_later_ones_too():
    signal, early, gone, late = StopSignal(), Job(), Job(), Job()
    signal.enter(early)
    signal.enter(gone)
    signal.leave(gone)
    assert signal.why is None
    signal.stop_all("bye")
    signal.enter(late)
    signal.kill_all("now")
    assert early.heard == ["bye", "kill"]
    assert gone.heard == []
    assert late.heard == ["bye", "kill"]
    assert signal.why == "now"


# Endings that cannot be written yet


def limited(*, times, asked_s):
    """The tracker and the store ask to slow down, so many times, when the lease is to be ended."""
    left = [None] * times
    asked = []

    def hook(call):
        ends = call.name == "release" or "state=released" in str(call.args)
        if ends and left:
            left.pop()
            asked.append(call)
            raise RateLimited("slow down", retry_after_s=asked_s)

    return hook, asked


def slowed_down(hook):
    def spoil(process):
        (process.store or process.tracker).before = hook

    return spoil


def test_an_ending_that_was_refused_for_now_waits_as_long_as_was_asked(world):
    hook, asked = limited(times=2, asked_s=15)
    finished = run_in_process(world, lambda work: None, spoil=slowed_down(hook))
    assert isinstance(finished, Finished)
    assert len(asked) == 2
    assert world.clock.passed_s >= 30


def test_an_ending_that_would_have_to_wait_longer_than_the_lease_is_given_up_while_it_is_ours(kind):
    world = World(kind)
    hook, asked = limited(times=100, asked_s=3600)
    process = world.process(handlers={"ready": lambda work: None})
    (process.store or process.tracker).before = hook
    claimed = process.claimed(world.add())
    # Nobody can renew it either, so it lasts as long as it was granted for.
    process.leases.before = outage("renew")
    with pytest.raises(RateLimited):
        process.services.running.run(claimed, StopSignal())
    assert len(asked) == 1
    assert world.clock.passed_s < world.trust_s


def test_an_ending_that_is_refused_for_good_is_asked_for_less_and_less():
    """Each try costs requests, and a refusal ends only when a person changes access."""
    world, asked = World("comments"), []

    def refuse(call):
        if "state=released" in str(call.args):
            asked.append(world.clock.passed_s)
            if world.clock.passed_s < asked[0] + 60:
                raise NotPermitted("no")

    finished = run_in_process(world, lambda work: None, spoil=slowed_down(refuse))
    assert isinstance(finished, Finished)
    pauses = [late - early for early, late in itertools.pairwise(asked)]
    assert pauses[0] == pytest.approx(REFUSED.pause_s, abs=1)
    assert len(asked) <= 7
