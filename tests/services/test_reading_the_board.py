"""What a board, a check and a limit cost where reading many is one request."""

import pytest
from msgspec.structs import replace

from dibs.core.issue import Person, Pull
from dibs.services.board import RowState

from .costly import CostlyWorld
from .world import TTL_S, World, pipeline_of


@pytest.fixture
def world():
    return CostlyWorld()


def states(rows):
    return {row.issue.ref: row.state for row in rows}


def test_a_board_over_a_hundred_issues_is_one_request_with_their_cards(world):
    holder = world.process()
    issues = [world.add() for _ in range(100)]
    for issue in issues[:20]:
        holder.claimed(issue)
    onlooker = world.process("onlooker")
    rows = onlooker.services.board.rows()
    assert dict(onlooker.tracker.requests) == {"find_snapshots": 1}
    assert [row.issue.ref for row in rows] == issues
    assert [row.state for row in rows] == [RowState.CLAIMED] * 20 + [RowState.READY] * 80
    assert {row.record.lease.holder for row in rows[:20]} == {"w1"}
    world.clock.advance(TTL_S)
    rows = onlooker.services.board.rows()
    assert [row.state for row in rows[:20]] == [RowState.EXPIRED] * 20


def test_a_store_of_its_own_is_asked_who_holds_what():
    world = CostlyWorld("store")
    held, free = world.add(), world.add()
    world.process().claimed(held)
    rows = world.process("onlooker").services.board.rows()
    assert states(rows) == {held: RowState.CLAIMED, free: RowState.READY}


def test_what_is_in_flight_is_read_a_hundred_at_a_time(world):
    holder = world.process()
    for _ in range(120):
        holder.claimed(world.add())
    onlooker = world.process("onlooker")
    overview = onlooker.services.board.overview()
    assert len(overview.in_flight) == 120
    assert dict(onlooker.tracker.requests) == {"tally": 2, "find_snapshots": 2, "find": 1}


def test_what_is_ready_knows_of_pull_requests(world):
    free, pulled = world.add(), world.add()
    world.tracker.concern(pulled, pulls=(Pull(free, Person("ada")),))
    onlooker = world.process("onlooker")
    assert list(states(onlooker.services.board.ready(stage="ready"))) == [free]
    assert dict(onlooker.tracker.requests) == {"find_snapshots": 1}


@pytest.mark.parametrize("kind", [World, CostlyWorld])
def test_what_is_urgent_comes_first_however_far_back_it_is(kind):
    world = kind("comments", pipeline=replace(pipeline_of(), priorities=("urgent",)))
    plain = [world.add() for _ in range(12)]
    urgent = world.add("stage:ready", "urgent")
    rows = world.process().services.board.ready(stage="ready", limit=5)
    assert [row.issue.ref for row in rows] == [urgent, *plain[:4]]


def test_a_check_reads_a_hundred_at_a_time(world):
    for _ in range(150):
        world.add()
    stuck = world.add("stage:ready", "claimed")
    world.tracker.close(stuck)
    world.clock.advance(TTL_S)
    checker = world.process("checker")
    findings = list(checker.services.checking.check(repair=False))
    assert [finding.flaw.issue for finding in findings] == [stuck]
    assert dict(checker.tracker.requests) == {"find_snapshots": 3}


def test_whether_a_stage_has_room_is_read_off_the_labels():
    """Where the leases are comments; a claim counts them before it is one."""
    world = CostlyWorld(pipeline=pipeline_of(wip=2))
    claiming = (asking := world.process("asking")).services.claiming
    stage = world.pipeline.stage("ready")
    world.process().claimed(world.add())
    assert claiming.has_room(stage)
    world.process("w2").claimed(world.add())
    asking.tracker.calls.clear()
    assert not claiming.has_room(stage)
    assert dict(asking.tracker.requests) == {"find": 1}
