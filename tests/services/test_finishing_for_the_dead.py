"""A worker died when its handler had finished: another of its machine ends the lease, or nobody."""

import pytest
from msgspec.structs import replace

from dibs.core.errors import Unavailable
from dibs.core.pipeline import Command
from dibs.ports.system import FinishedRun
from dibs.services.ending import Finished
from dibs.services.running import StopSignal

from .runners import ScriptedRunner
from .world import STORE_ON_TRIPS, TTL_S, World, outage, pipeline_of


def world_on(kind):
    return World(kind, pipeline=pipeline_of(handler=Command("./implement.sh")))


@pytest.fixture(params=["store", STORE_ON_TRIPS])
def world(request):
    return world_on(request.param)


def heir(world, *left, name="heir"):
    process = world.process(name)
    process.services.runner = ScriptedRunner(world.clock, of_the_dead=list(left))
    return process


def finish(process):
    return list(process.services.running.finish_for_the_dead())


def dead_run(world, issue, result=b""):
    return FinishedRun(world.process("dead").claimed(issue).lease, result)


def test_the_lease_of_the_dead_worker_is_ended_under_its_own_run_and_fence(world):
    issue = world.add()
    left = dead_run(world, issue)
    process = heir(world, left)
    [(claimed, result)] = finish(process)
    assert isinstance(result, Finished)
    assert (claimed.lease.run, claimed.lease.fence) == (left.lease.run, left.lease.fence)
    assert claimed.lease.holder == "dead"
    assert world.labels(issue) == {"stage:review"}
    assert process.services.runner.of_the_dead == []


@pytest.mark.parametrize("kind", ["comments", "trips"])
def test_on_comments_it_is_left_alone(kind):
    world = world_on(kind)
    issue = world.add()
    process = heir(world, dead_run(world, issue))
    assert finish(process) == []
    assert process.tracker.written == []
    assert "claimed" in world.labels(issue)


@pytest.mark.parametrize(
    ("result", "labels"),
    [
        (b'"review"', {"stage:review"}),
        (b'{"ask": "Which?"}', {"stage:ready", "parked"}),
    ],
)
def test_the_result_decides_as_it_would_have(world, result, labels):
    issue = world.add()
    finish(heir(world, dead_run(world, issue, result)))
    assert world.labels(issue) == labels


@pytest.mark.parametrize("result", [b'"nowhere"', b"rubbish", b'{"x": 1}', b"[" * 100_000])
def test_an_answer_in_doubt_ends_nothing(world, result):
    issue = world.add()
    process = heir(world, dead_run(world, issue, result))
    assert finish(process) == []
    assert "claimed" in world.labels(issue)
    assert process.services.runner.of_the_dead == []


def expired(world, issue, left):
    world.clock.advance(TTL_S + 1)
    return left


def held_by_another(world, issue, left):
    world.clock.advance(TTL_S + 1)
    world.process("other").claimed(issue)
    return left


def another_fence(world, issue, left):
    return replace(left, lease=replace(left.lease, fence=left.lease.fence + 1))


def another_stage(world, issue, left):
    return replace(left, lease=replace(left.lease, stage="review"))


@pytest.mark.parametrize("change", [expired, held_by_another, another_fence, another_stage])
def test_a_lease_that_is_not_surely_that_runs_is_not_ended(world, change):
    issue = world.add()
    process = heir(world, change(world, issue, dead_run(world, issue)))
    before = world.labels(issue)
    assert finish(process) == []
    assert world.labels(issue) == before
    assert process.store.written == []


def test_after_an_outage_it_is_tried_again(world):
    issue = world.add()
    process = heir(world, dead_run(world, issue))
    process.tracker.before = outage("read", times=1)
    with pytest.raises(Unavailable):
        finish(process)
    [(_, result)] = finish(process)
    assert isinstance(result, Finished)


def test_two_heirs_end_it_once(world):
    issue = world.add()
    left = dead_run(world, issue)
    assert len(finish(heir(world, left))) == 1
    assert finish(heir(world, left, name="late")) == []
    assert world.labels(issue) == {"stage:review"}


@pytest.mark.parametrize("word", ["revoke", "pause", "blocker"])
def test_a_persons_word_since_then_counts(world, word):
    issue = world.add()
    left = dead_run(world, issue)
    person = world.process("person").services
    match word:
        case "revoke":
            person.steering.revoke(
                issue, left.lease.run, reason="wrong work", by="ann", force=False
            )
        case "pause":
            person.steering.pause_issue(issue, reason="do not ship", by="ann")
        case "blocker":
            world.tracker.edit_labels(issue, add=("do-not-pickup",))
    finish(heir(world, left))
    assert "stage:review" not in world.labels(issue)
    assert "claimed" not in world.labels(issue)


@pytest.mark.parametrize("leaves", [True, False])
def test_a_worker_that_leaves_before_its_ending_is_written_leaves_the_run_to_an_heir(world, leaves):
    issue = world.add()
    process = heir(world, name="w1")
    leaving, failures = StopSignal(), [Unavailable("a lock file is in the way")]

    def wedged(call):
        if call.name == "finish" and (leaves or failures):
            if leaves:
                leaving.stop_all("the worker is leaving")
            raise failures.pop() if failures else Unavailable("still there")

    process.leases.before = wedged
    claimed = process.claimed(issue)
    [result] = process.services.running.run_together((claimed,), leaving)
    assert isinstance(result, Unavailable if leaves else Finished)
    assert process.services.runner.settled == ([] if leaves else [claimed.lease.run])
