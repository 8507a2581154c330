"""What `dibs ready` lists and `dibs claim --next` takes: whatever a claim would get."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.core.eligibility import PauseScope
from dibs.core.events import Step
from dibs.core.presets import AGENT
from dibs.services.claiming import ClaimOptions

from .costly import CostlyWorld
from .world import TTL_S, Crash, World, crashing, pipeline_of


def offers(world, **options):
    board = world.process("onlooker").services.board
    return [row.issue.ref for row in board.offers(**options)]


def claim_next(world, name="agent", **options):
    process = world.process(name)
    found = process.services.queueing.claim_next(ClaimOptions(process.holder), **options)
    return found.lease.issue if found else None


def test_an_issue_whose_holder_vanished_is_offered_without_a_sweep(world):
    lost, free = world.add(), world.add()
    world.process("dead").claimed(lost)
    assert offers(world) == [free]
    world.clock.advance(TTL_S + 1)
    assert offers(world) == [lost, free]
    assert claim_next(world) == lost


def test_also_where_claimed_takes_the_place_of_the_stage_label(kind):
    world = World(kind, pipeline=replace(pipeline_of(), stages=AGENT.stages, labels=AGENT.labels))
    lost = world.add()
    world.process("dead").claimed(lost)
    world.clock.advance(AGENT.stages[0].terms.ttl.total_seconds() + 1)
    assert offers(world) == [lost]
    assert claim_next(world) == lost


def test_within_the_grace_it_is_the_holders(kind):
    world = World(kind, grace=timedelta(seconds=30))
    lost = world.add()
    world.process("dead").claimed(lost)
    world.clock.advance(TTL_S + 1)
    assert offers(world) == []
    world.clock.advance(30)
    assert offers(world) == [lost]


def test_issues_that_rest_do_not_hide_the_ones_behind_them(world):
    for _ in range(25):
        world.process().fail(world.add())
    fresh = world.add()
    assert offers(world) == [fresh]
    assert claim_next(world) == fresh
    assert claim_next(world) is None


def test_nothing_is_offered_that_a_claim_would_refuse(world):
    world.add("stage:ready", "paused")
    world.add("stage:ready", "parked")
    world.add("stage:review")
    held = world.add()
    world.process().claimed(held)
    assert offers(world) == []


def test_a_paused_fleet_is_offered_nothing_and_reads_nothing(world):
    world.add()
    world.pauses.pause(PauseScope.FLEET, repo="", reason="deploy", by="ada")
    onlooker = world.process("onlooker")
    assert list(onlooker.services.board.offers()) == []
    assert onlooker.tracker.calls == []


def test_a_full_stage_offers_nothing(kind):
    pipeline = pipeline_of()
    first = replace(pipeline.stages[0], wip=1)
    world = World(kind, pipeline=replace(pipeline, stages=(first, *pipeline.stages[1:])))
    world.process().claimed(world.add())
    world.add()
    assert offers(world) == []


def test_an_issue_without_attempts_left_is_parked_on_the_way(world):
    spent, fresh = world.add(), world.add()
    for _ in range(world.pipeline.stages[0].attempts):
        world.process("dead").claimed(spent)
        world.clock.advance(TTL_S + 1)
    assert offers(world) == [fresh]
    assert claim_next(world) == fresh
    assert "parked" in world.labels(spent)


@pytest.mark.parametrize("step", [Step.FINISH_DECIDED, Step.FINISH_PAINTED])
def test_an_ending_that_nobody_painted_is_finished_by_the_next_who_asks(kind, step):
    world = World(kind)
    issue = world.add()
    with pytest.raises(Crash):
        world.process("dead", reached=crashing(step)).advance(issue, "review")
    world.clock.advance(TTL_S + 1)
    assert claim_next(world) is None
    assert "stage:review" in world.labels(issue)
    assert "claimed" not in world.labels(issue)


def test_the_stage_that_was_asked_for_is_the_one_that_is_claimed(world):
    world.add()
    approved = world.add("stage:review", "approved")
    assert offers(world, stage="review") == [approved]
    assert claim_next(world, stage="review") == approved
    assert claim_next(world, stage="review") is None


def test_who_waits_gets_the_next_one_that_becomes_free(world):
    issue = world.add()
    world.process("dead").claimed(issue)
    assert claim_next(world, wait_s=TTL_S / 2) is None
    assert claim_next(world, wait_s=TTL_S) == issue


def test_the_last_second_of_a_wait_is_waited_too(world):
    issue = world.add()
    world.process("dead").claimed(issue)
    world.clock.advance(TTL_S - 0.3)
    assert claim_next(world, wait_s=0.9) == issue


def test_on_a_tracker_that_costs_an_offer_is_two_lists():
    world = CostlyWorld()
    lost, free = world.add(), world.add()
    world.process("dead").claimed(lost)
    world.clock.advance(TTL_S + 1)
    onlooker = world.process("onlooker")
    assert [row.issue.ref for row in onlooker.services.board.offers(stage="ready")] == [lost, free]
    assert dict(onlooker.tracker.requests) == {"find_snapshots": 1}
