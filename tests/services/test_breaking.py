"""The breaker: a handler at fault is stopped, and no issue pays for it."""

import pytest
from msgspec.structs import replace

from dibs.core.ids import IssueRef
from dibs.core.pipeline import Command
from dibs.services.breaking import StageBreaker
from dibs.services.running import AskPerson, Fail
from dibs.services.working import Until

from .runners import ScriptedRunner
from .test_working import Handler, fail, make_worker, work
from .world import World, outage, pipeline_of


@pytest.fixture
def world(kind):
    return World(kind, patience_s=0.03)


def on_commands(world, **scripted):
    world.pipeline = pipeline_of(handler=Command("./agent"))
    world.settings = replace(world.settings, pipeline=world.pipeline)
    process, worker = make_worker(world, None)
    runner = ScriptedRunner(world.clock, **scripted)
    worker._running._runner = worker._runner = runner
    return process, worker, runner


def attempts(world, issue):
    return world.process("eye").services.explaining.explain(issue).attempts


def test_five_issues_that_fail_in_a_row_stop_the_stage_and_cost_no_attempt(world):
    issues = [world.add() for _ in range(12)]
    handler = Handler(fail)
    process, report = work(world, handler)
    assert len(handler.seen) == 5
    assert len({issue for issue, _ in handler.seen}) == 5
    assert [attempts(world, issue).failed for issue in issues] == [0] * 12
    assert all(world.process("eye").why(issue) == ["NOT_SERVED"] for issue in issues)
    assert list(report.tripped) == ["ready"]
    assert "5 issues failed in a row" in report.tripped["ready"]
    assert [line for line in process.told if "Mend the handler" in line]
    assert world.events().count("excused") == 4


def test_what_the_row_parked_is_put_back(kind):
    world = World(kind, pipeline=pipeline_of(attempts=1), patience_s=0.03)
    issues = [world.add() for _ in range(6)]
    work(world, Handler(fail))
    assert all("parked" not in world.labels(issue) for issue in issues)
    assert all(world.process("eye").why(issue) == ["NOT_SERVED"] for issue in issues)


def test_a_later_parking_for_another_reason_stays(kind):
    world = World(kind, pipeline=pipeline_of(attempts=1), patience_s=0.03)
    parked = world.add()
    process = world.process("one")
    breaker = StageBreaker(process.services.backlog)
    stage = world.pipeline.stages[0]
    claimed = process.claimed(parked)
    finished = process.services.advancing.fail(process.services.keep(claimed), "no such key")
    breaker.ended(stage, finished)
    world.process("person").services.steering.resume_issue(parked, by="ann")
    later = world.process("two")
    later.services.advancing.park(later.hold(parked), "asks: which?")
    for number in range(5):
        lead = replace(claimed, lease=replace(claimed.lease, issue=IssueRef("", str(100 + number))))
        breaker.judge(lead, Fail("no such key"))
    assert breaker.excuse() == 1
    assert "parked" in world.labels(parked)


def test_a_success_in_between_ends_the_row(world):
    for _ in range(9):
        world.add()
    handler = Handler(fail, fail, fail, fail, None, fail, fail, fail, fail, None)
    _, report = work(world, handler)
    assert report.tripped == {}
    assert report.outcomes["advanced"] == 9


def test_few_bad_issues_alone_are_parked_and_stop_nothing(world):
    issues = [world.add(), world.add()]
    _, report = work(world, Handler(fail))
    assert report.tripped == {}
    assert all("parked" in world.labels(issue) for issue in issues)


def test_zero_switches_it_off(kind):
    world = World(kind, pipeline=pipeline_of(breaker=0, attempts=1), patience_s=0.03)
    issues = [world.add() for _ in range(7)]
    _, report = work(world, Handler(fail))
    assert report.tripped == {}
    assert all("parked" in world.labels(issue) for issue in issues)


def test_other_stages_are_served_on(kind):
    world = World(kind, pipeline=pipeline_of(breaker=1), patience_s=0.03)
    world.add()
    other = world.add("stage:review", "approved")
    process, report = work(world, Handler(fail), stages=("ready", "review"))
    assert list(report.tripped) == ["ready"]
    assert "stage:done" in world.labels(other), process.told


@pytest.mark.parametrize("code", [126, 127])
def test_a_handler_that_cannot_run_stops_the_stage_at_once(world, code):
    issues = [world.add() for _ in range(3)]
    _, worker, runner = on_commands(world, exits=code, said="codexx: not found")
    report = worker.run()
    assert len(runner.runs) == 1
    assert "codexx: not found" in report.tripped["ready"]
    assert [attempts(world, issue).failed for issue in issues] == [0, 0, 0]


def test_the_same_code_after_a_while_is_a_failure_like_any_other(world):
    issue = world.add()
    _, worker, _ = on_commands(world, exits=127, after_s=5.0)
    assert worker.run().tripped == {}
    assert "parked" in world.labels(issue)


def test_attempts_are_given_back_after_an_outage_too(world):
    issues = [world.add() for _ in range(6)]
    process, worker = make_worker(world, Handler(fail), until=Until.STOPPED)
    tripping = outage("comment", "apply", times=2)

    def hook(call):
        if worker.report.tripped:
            tripping(call)

    process.tracker.before = hook
    told = process.told.append

    def leave_when_given_back(line):
        told(line)
        if "given back to their issues" in line:
            worker.leave()

    worker._tell = leave_when_given_back
    worker.run()
    assert [attempts(world, issue).failed for issue in issues] == [0] * 6


def test_a_handler_asks_a_person_and_no_attempt_is_counted(world):
    issue = world.add()

    def ask(work):
        raise AskPerson("Which database?")

    _, report = work(world, Handler(ask))
    assert report.outcomes == {"parked": 1}
    assert "parked" in world.labels(issue)
    (text,) = [c.body for c in world.read(issue).comments if c.body.startswith("<!-- parked ")]
    assert "asks: Which database?" in text
    assert "failed attempt" not in text
    assert attempts(world, issue).failed == 0


@pytest.mark.parametrize(
    ("exits", "left", "said", "note"),
    [
        (77, b"", "Which key?", "asks: Which key?"),
        (77, b'{"ask": "Which db?"}', "noise", "asks: Which db?"),
        (77, b'{"note": "Which db?"}', "noise", "asks: Which db?"),
        (0, b'{"ask": "Which db?"}', "noise", "asks: Which db?"),
        (77, b"", "", "asks: the handler gave no question"),
    ],
)
def test_a_program_asks_by_its_exit_code_or_its_result(world, exits, left, said, note):
    issue = world.add()
    _, worker, _ = on_commands(world, exits=exits, left=left, said=said)
    worker.run()
    assert world.process("eye").services.board.history(issue)[-1].note == note
    assert "parked" in world.labels(issue)


def test_questions_stay_parked_when_the_stage_is_stopped(world):
    issue = world.add()
    for _ in range(6):
        world.add()

    def ask(work):
        raise AskPerson("Which database?")

    _, report = work(world, Handler(ask, fail))
    assert report.tripped
    assert "parked" in world.labels(issue)


def test_the_end_of_the_output_is_in_the_note_of_a_failure(world):
    issue = world.add()
    _, worker, _ = on_commands(world, exits=1, said="401 key expired")
    worker.run()
    note = world.process("eye").services.board.history(issue)[0].note
    assert note == "the handler exited with 1: 401 key expired"
