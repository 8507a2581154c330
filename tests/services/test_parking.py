"""Three failed attempts park an issue, and one comment sums them up; people start it afresh."""

import contextlib
import re

import pytest

from dibs.core.errors import Unavailable
from dibs.core.events import Step
from dibs.core.pipeline import Command
from dibs.core.presets import AGENT
from dibs.services.claiming import Beaten, Claimed
from dibs.services.running import StopSignal
from dibs.services.working import Until

from .runners import ScriptedRunner
from .world import TTL_S, Crash, World, at, codes, crashing, outage, pipeline_of

PARKED = "needs:human-scope"


@pytest.fixture
def world(kind):
    return World(kind, pipeline=pipeline_of(AGENT, handler=Command("true")), patience_s=0.03)


def fail(world, issue, name="w1", note="it broke"):
    process = world.process(name)
    result = process.services.advancing.fail(process.hold(issue), note)
    world.clock.advance(400)
    return result


def vanish(world, issue, name="gone"):
    world.process(name).hold(issue)
    world.clock.advance(TTL_S + 1)


def said(world, issue):
    """Every comment that sums up, without its first line."""
    bodies = [comment.body for comment in world.read(issue).comments]
    return [body.partition("\n")[2] for body in bodies if body.startswith("<!-- parked ")]


def listed(text):
    return re.findall(r"^\d+\. .*$", text, re.MULTILINE)


def run_worker(world, handler, name="w1", until=Until.DRAINED):
    process = world.process(name, handlers={"implement": handler})
    stages = (process.services.pipeline.stage("implement"),)
    worker = process.services.worker(process.holder, stages, until=until)
    worker._dice.seed(7)
    return worker.run()


def test_flaw_18_the_third_failure_parks_it_and_a_comment_says_what_failed(world):
    issue = world.add("agent:implement")
    for name, note in (("w1", "no tests"), ("w2", "see https://ci.acme.example/9"), ("w3", "`x`")):
        fail(world, issue, name, note)
    assert world.labels(issue) == {"agent:implement", PARKED}
    (text,) = said(world, issue)
    first, second, third = listed(text)
    assert "`w1` (run `w1-1`): `no tests`" in first
    assert second.endswith("`see https://ci.acme.example/9`")
    assert "`w3`" in third
    assert third.endswith("`'x'`")
    assert "after 3 failed attempts in `implement`" in text
    assert re.search(r"2026-05-01T\d\d:\d\d:\d\d(\.\d+)?Z", first)


def test_a_worker_parks_what_vanished_holders_have_spent(world):
    issue = world.add("agent:implement")
    for name in ("a", "b", "c"):
        vanish(world, issue, name)
    report = run_worker(world, lambda work: pytest.fail("no attempt is left"))
    assert report.outcomes == {"parked": 1}
    assert world.labels(issue) == {"agent:implement", PARKED}
    (text,) = said(world, issue)
    assert len(listed(text)) == 3, "the run that parked it was no attempt"
    assert all("vanished without a word" in line for line in listed(text))


def test_two_workers_that_park_say_it_once(world):
    issue = world.add("agent:implement")
    for name in ("a", "b", "c"):
        vanish(world, issue, name)
    others = []

    def meanwhile():
        others.append(run_worker(world, lambda work: None, "w2", Until.ONCE))

    process = world.process(
        "w1", handlers={"implement": lambda work: None}, reached=at(Step.CLAIM_STARTED, meanwhile)
    )
    stages = (process.services.pipeline.stage("implement"),)
    process.services.worker(process.holder, stages, until=Until.ONCE).run()
    assert PARKED in world.labels(issue)
    assert len(said(world, issue)) == 1


@pytest.mark.parametrize(
    "step", [step for step in Step if step.name.startswith("FINISH")], ids=lambda step: step.name
)
def test_a_crash_while_parking_is_made_good_and_said_once(world, step):
    issue = world.add("agent:implement")
    fail(world, issue, "w1")
    fail(world, issue, "w2")
    doomed = world.process("w3", reached=crashing(step))
    with contextlib.suppress(Crash):
        doomed.services.advancing.fail(doomed.hold(issue), "the third")
    world.clock.advance(2 * TTL_S)
    world.process("w4").sweep()
    run_worker(world, lambda work: pytest.fail("no attempt is left"), "w5", Until.ONCE)
    assert PARKED in world.labels(issue)
    assert len(said(world, issue)) == 1, said(world, issue)
    assert len(listed(said(world, issue)[0])) == 3


def test_a_lost_reply_does_not_say_it_twice(world):
    issue = world.add("agent:implement")
    fail(world, issue, "w1")
    fail(world, issue, "w2")
    process = world.process("w3")
    keeper = process.hold(issue)
    process.tracker.after = outage("comment", times=1)
    with contextlib.suppress(Unavailable):
        process.services.advancing.fail(keeper, "the third")
    world.clock.advance(2 * TTL_S)
    process.tracker.after = lambda call: None
    world.process("w4").sweep()
    assert len(said(world, issue)) == 1


def test_flaw_18_lost_races_are_no_attempts(world):
    issue = world.add("agent:implement")
    keeper = world.process("winner").hold(issue)
    for number in range(4):
        result = world.process(f"loser{number}").claim(issue, "implement", look_first=False)
        assert isinstance(result, Beaten)
    world.process("winner").services.advancing.give_back(keeper)
    assert isinstance(world.process("next").claim(issue), Claimed)
    assert world.process("next").services.explaining.explain(issue).attempts.failed == 0
    assert said(world, issue) == []


def test_given_back_and_revoked_leases_are_no_attempts(world):
    issue = world.add("agent:implement")
    for _ in range(3):
        world.process("w1").give_back(issue)
    assert PARKED not in world.labels(issue)
    assert isinstance(world.process("w1").claim(issue), Claimed)


def test_flaw_18_a_person_who_takes_the_label_off_starts_it_afresh(world):
    issue = world.add("agent:implement")
    for _ in range(3):
        fail(world, issue)
    assert codes(world.process().claim(issue)) == ["PARKED"]
    world.tracker.edit_labels(issue, remove=[PARKED])
    for number in range(3):
        claimed = world.process("again").claimed(issue)
        assert claimed.failed_attempts == number
        process = world.process("again")
        process.services.advancing.fail(process.services.keep(claimed), f"once more {number}")
        world.clock.advance(400)
    assert PARKED in world.labels(issue)
    first, second = said(world, issue)
    assert len(listed(first)) == len(listed(second)) == 3
    assert "once more 0" in second
    assert "once more" not in first


def test_flaw_18_a_person_who_puts_the_stage_back_starts_it_afresh(world):
    """As fleets that take the stage's label off when they park are used to."""
    issue = world.add("agent:implement")
    for _ in range(3):
        fail(world, issue)
    world.tracker.edit_labels(issue, remove=["agent:implement"])
    assert codes(world.process().claim(issue)) == ["NO_STAGE", "PARKED"]
    world.tracker.edit_labels(issue, add=["agent:implement"], remove=[PARKED])
    assert world.process().claimed(issue).failed_attempts == 0


def test_flaw_18_no_label_counts_attempts_so_none_can_be_missing(world):
    issue = world.add("agent:implement")
    fail(world, issue)
    fail(world, issue)
    assert world.labels(issue) == {"agent:implement"}
    assert world.process().claimed(issue).failed_attempts == 2


def test_a_stranger_cannot_silence_it(world):
    issue = world.add("agent:implement")
    fail(world, issue)
    fail(world, issue)
    process = world.process("w3")
    keeper = process.hold(issue)
    line = f"<!-- parked run={keeper.run} v=1 -->"
    world.tracker.comment(issue, line, author="mallory", by_writer=False)
    process.services.advancing.fail(keeper, "the third")
    assert [text for text in said(world, issue) if "Set aside" in text]


def test_what_a_note_says_pings_and_breaks_nothing(world):
    issue = world.add("agent:implement")
    for _ in range(3):
        fail(world, issue, note="@everyone --> `rm` </code>\n# big\n" + "x" * 1000)
    (text,) = said(world, issue)
    assert len(text) < 2000
    for line in listed(text):
        before, code, after = line.partition(": `")[0], line.partition(": `")[2], line[-1]
        assert "@" not in before
        assert "`" not in code[:-1]
        assert after == "`"


def test_many_attempts_are_summed_up_in_a_bounded_comment(kind):
    pipeline = pipeline_of(AGENT, handler=Command("true"), attempts=25)
    world = World(kind, pipeline=pipeline)
    issue = world.add("agent:implement")
    for number in range(25):
        fail(world, issue, note=f"no. {number}")
        world.clock.advance(1000)
    (text,) = said(world, issue)
    assert "after 25 failed attempts" in text
    assert len(listed(text)) == 10
    assert "15 more before these" in text
    assert "no. 24" in text


def test_one_attempt_is_one(kind):
    world = World(kind, pipeline=pipeline_of(AGENT, handler=Command("true"), attempts=1))
    issue = world.add("agent:implement")
    fail(world, issue, note="hopeless")
    (text,) = said(world, issue)
    assert "after 1 failed attempt in" in text
    assert "with 1 attempt." in text


def test_the_next_handler_reads_what_failed_before(world):
    issue = world.add("agent:implement")
    for _ in range(3):
        fail(world, issue, note="the tests are red")
    world.tracker.edit_labels(issue, remove=[PARKED])
    seen = []
    run_worker(world, lambda work: seen.append(work.issue["comments"]), until=Until.ONCE)
    assert any("the tests are red" in comment["body"] for comment in seen[0])


@pytest.mark.parametrize(
    ("left", "note"),
    [
        (b"", "the handler exited with 3"),
        (b'{"note": "the tests are red"}', "the handler exited with 3: the tests are red"),
        (b'{"note": " "}', "the handler exited with 3"),
        (b'{"note": 7}', "the handler exited with 3"),
        (b'"review"', "the handler exited with 3"),
        (b"rubbish", "the handler exited with 3"),
        (b"[" * 100_000, "the handler exited with 3"),
    ],
)
def test_a_handler_that_fails_may_say_why(world, left, note):
    issue = world.add("agent:implement")
    process = world.process()
    process.services.runner = ScriptedRunner(world.clock, exits=3, left=left)
    result = process.services.running.run(process.claimed(issue), StopSignal())
    assert (result.outcome.value, result.ending.note) == ("failed", note)
