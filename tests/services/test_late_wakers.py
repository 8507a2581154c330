"""Processes that wake up late, replies that do not come, work that never ends.

Each of these was a hole that a reader of the first version found; the schedule that showed it is
kept here.
"""

from dataclasses import replace
from datetime import timedelta

import pytest

from dibs.core.lease import Outcome
from dibs.core.pipeline import NoGate
from dibs.core.steps import Step
from dibs.core.terms import terms_for
from dibs.services.advancing import Finished, FinishRefused
from dibs.services.claiming import Refused
from dibs.services.running import StopSignal

from .world import KINDS, TTL_S, World, at, outage, pipeline_of


def three_worked_stages():
    """ready, review (open, may send back), done."""
    base = pipeline_of()
    stages = [replace(stage, gate=NoGate()) for stage in base.stages]
    return replace(base, stages=tuple(stages))


@pytest.fixture(params=KINDS)
def world(request):
    return World(request.param, pipeline=three_worked_stages())


@pytest.mark.parametrize("target", ["ready", "done"])
def test_a_holder_that_slept_after_its_decision_does_not_paint_over_what_came_after(world, target):
    issue = world.add()

    def meanwhile() -> None:
        world.process("sweeper").sweep()
        world.process("b").advance(issue, target)

    sleeper = world.process("a", reached=at(Step.FINISH_DECIDED, meanwhile))
    assert isinstance(sleeper.advance(issue), Finished)
    assert world.labels(issue) == {f"stage:{target}"}


def test_a_sweeper_that_slept_does_not_paint_over_what_came_after(world):
    issue = world.add()
    crashed = world.process("a")
    crashed.leases.before = lambda call: None
    keeper = crashed.hold(issue)
    crashed.tracker.before = outage("edit_labels", "apply", "close")
    assert isinstance(crashed.services.advancing.advance(keeper), Finished)
    sweeper = world.process("sweeper")

    def meanwhile(call) -> None:
        if call.name == "roll_forward":
            world.process("other").sweep()
            world.process("b").advance(issue, "ready")

    sweeper.leases.before = meanwhile
    sweeper.sweep()
    assert world.labels(issue) == {"stage:ready"}


def test_a_stage_that_was_finished_between_the_scan_and_the_look_is_not_claimed_in_the_next(world):
    issue = world.add()
    world.process("other").advance(issue)
    late = world.process("late").claim(issue, stage="ready")
    assert isinstance(late, Refused)
    assert [reason.code.value for reason in late.reasons] == ["NOT_SERVED"]
    assert world.labels(issue) == {"stage:review"}


def test_a_handler_is_not_started_under_a_lease_that_ran_out_meanwhile(world):
    issue = world.add()
    called = []
    process = world.process("a", handlers={"ready": called.append})
    claimed = process.claimed(issue)
    world.clock.advance(TTL_S)
    finished = process.services.running.run(claimed, StopSignal())
    assert isinstance(finished, FinishRefused)
    assert called == []


def test_a_claim_that_took_longer_than_its_lease_is_not_shown(world):
    issue = world.add()
    late = world.process("a", reached=at(Step.CLAIM_JUDGED, lambda: world.clock.advance(TTL_S)))
    late.claim(issue)
    assert "claimed" not in world.labels(issue)
    assert world.process("b").claimed(issue)


def test_work_that_never_ends_is_a_failed_attempt(world):
    terms = terms_for(timedelta(seconds=60), max_hold=timedelta(seconds=90))
    stages = [replace(stage, terms=terms, attempts=2) for stage in world.pipeline.stages]
    world = World(world.kind, pipeline=replace(world.pipeline, stages=tuple(stages)))
    issue = world.add()
    outcomes = []
    for _ in range(2):
        process = world.process("w")
        keeper = process.hold(issue)
        while (pause_s := keeper.beat()) is not None:
            world.clock.advance(pause_s)
        outcomes.append(process.services.advancing.fail(keeper, "wedged").outcome)
        world.clock.advance(3600)
    assert outcomes == [Outcome.FAILED, Outcome.PARKED]


def test_finished_work_is_not_thrown_away_for_one_reply_that_does_not_come(world):
    issue = world.add()
    process = world.process("a", handlers={"ready": lambda work: None})
    process.leases.before = outage("finish", times=2)
    finished = process.services.running.run(process.claimed(issue), StopSignal())
    assert isinstance(finished, Finished)
    assert finished.outcome is Outcome.ADVANCED
    assert world.labels(issue) == {"stage:review"}


def test_a_confirmation_that_went_wrong_does_not_make_a_persons_requeue_skip_its_stage(world):
    issue = world.add()
    world.process("a").advance(issue)
    world.tracker.edit_labels(issue, add=("stage:ready",), remove=("stage:review",))
    unlucky = world.process("b")
    unlucky.leases.after = outage("show")
    with pytest.raises(Exception, match="did not answer"):
        unlucky.claim(issue)
    world.clock.advance(2 * TTL_S)
    world.process("sweeper").sweep()
    assert "stage:ready" in world.labels(issue)
    assert world.process("c").claimed(issue).stage.name == "ready"


def test_a_bounded_sweep_goes_on_where_it_ended(world):
    held = [world.add() for _ in range(3)]
    for issue in held:
        world.process("person").claimed(issue, ttl=timedelta(hours=8))
    crashed = world.add()
    world.process("crashed").claimed(crashed)
    world.clock.advance(TTL_S)
    sweeper = world.process("sweeper")
    first = sweeper.sweep(limit=3)
    assert (first.changed, first.resume_after) == ((), held[-1])
    second = sweeper.sweep(limit=3, after=first.resume_after)
    assert [entry.issue for entry in second.changed] == [crashed]
    assert second.resume_after is None
