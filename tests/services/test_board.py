"""The one read model: what every frontend shows."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.core.eligibility import PauseScope
from dibs.core.errors import NoSuchStage
from dibs.core.pipeline import Command
from dibs.core.presets import AGENT
from dibs.services.board import RowState

from .world import TTL_S, World, pipeline_of


def board(world):
    return world.process("onlooker").services.board


def state(world, issue):
    rows = board(world).rows(closed_too=True, limit=1000)
    return next(row.state for row in rows if row.issue.ref == issue)


def test_the_overview_counts_issues_and_what_is_in_flight(world):
    for _ in range(3):
        world.add()
    world.add("stage:review")
    world.add("stage:ready", "paused")
    world.add("stage:ready", "parked")
    world.process().claimed(world.add())
    done = world.add("stage:review", "approved")
    world.process().advance(done, "done")
    world.pauses.pause(PauseScope.FLEET, repo="", reason="deploy", by="ada")
    overview = board(world).overview()
    assert {summary.stage.name: summary.issues for summary in overview.stages} == {
        "ready": 6,
        "review": 1,
        "done": 1,
    }
    assert {summary.stage.name: summary.in_flight for summary in overview.stages} == {
        "ready": 1,
        "review": 0,
        "done": 0,
    }
    assert [record.lease.holder for record in overview.in_flight] == ["w1"]
    assert (overview.paused, overview.parked, overview.claimed) == (1, 1, 1)
    assert [pause.reason for pause in overview.pauses] == ["deploy"]
    assert overview.now == world.clock.server_now()


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (("stage:ready",), RowState.READY),
        (("stage:ready", "paused"), RowState.PAUSED),
        (("stage:ready", "parked"), RowState.PARKED),
        (("stage:ready", "paused", "parked"), RowState.PARKED),
        (("stage:ready", "do-not-pickup"), RowState.BLOCKED),
        (("stage:review",), RowState.GATED),
        (("stage:review", "approved"), RowState.READY),
        (("stage:done",), RowState.DONE),
        (("stage:ready", "stage:review"), RowState.UNCLEAR),
        (("bug",), RowState.UNCLEAR),
        (("stage:ready", "claimed"), RowState.EXPIRED),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else value,
)
def test_a_row_shows_its_state(world, labels, expected):
    assert state(world, world.add(*labels)) is expected


def test_a_row_is_claimed_while_its_lease_lives_and_expired_after(world):
    issue = world.add()
    world.process().claimed(issue)
    assert state(world, issue) is RowState.CLAIMED
    world.clock.advance(TTL_S)
    assert state(world, issue) is RowState.EXPIRED


def test_a_closed_issue_is_done_and_listed_only_when_asked_for(world):
    issue = world.add()
    world.tracker.close(issue)
    assert state(world, issue) is RowState.DONE
    assert board(world).rows() == ()


def test_a_stage_without_handler_gate_and_working_label_waits_for_a_person(kind):
    world = World(kind, pipeline=pipeline_of(AGENT))
    assert state(world, world.add("agent:pr-open")) is RowState.WAITING


def test_rows_come_oldest_first_by_stage_and_limited(world):
    ready = [world.add() for _ in range(3)]
    review = world.add("stage:review")
    assert [row.issue.ref for row in board(world).rows()] == [*ready, review]
    assert [row.issue.ref for row in board(world).rows(stage="review")] == [review]
    assert [row.issue.ref for row in board(world).rows(limit=2)] == ready[:2]
    with pytest.raises(NoSuchStage):
        board(world).rows(stage="nowhere")


def test_rows_go_through_all_pages(world):
    issues = [world.add() for _ in range(450)]
    assert [row.issue.ref for row in board(world).rows(limit=1000)] == issues
    assert len(board(world).rows(limit=430)) == 430


def test_ready_lists_what_could_be_claimed_the_most_urgent_first(kind):
    pipeline = replace(pipeline_of(handler=Command("true")), priorities=("urgent", "soon"))
    world = World(kind, pipeline=pipeline)
    plain = world.add()
    world.clock.advance(1)
    soon = world.add("stage:ready", "soon")
    world.clock.advance(1)
    urgent = world.add("stage:ready", "urgent")
    for labels in (("paused",), ("parked",), ("do-not-pickup",), ("claimed",)):
        world.add("stage:ready", *labels)
    world.add("stage:review")
    approved = world.add("stage:review", "approved")
    assert [row.issue.ref for row in board(world).ready()] == [urgent, soon, plain, approved]
    assert [row.issue.ref for row in board(world).ready(stage="ready")] == [urgent, soon, plain]


def test_a_short_list_of_what_is_ready_still_begins_with_the_most_urgent(kind):
    world = World(kind, pipeline=replace(pipeline_of(), priorities=("urgent",)))
    for _ in range(3):
        world.add()
        world.clock.advance(1)
    urgent = world.add("stage:ready", "urgent")
    assert [row.issue.ref for row in board(world).ready(limit=1)] == [urgent]


def test_a_short_list_of_what_is_ready_is_not_filled_up_with_what_is_not(kind):
    world = World(kind)
    for _ in range(3):
        world.add("stage:review")
    approved = world.add("stage:review", "approved")
    assert [row.issue.ref for row in board(world).ready(limit=2)] == [approved]


def test_showing_one_issue_tells_its_lease_and_its_history(world):
    issue = world.add()
    world.process().fail(issue)
    world.clock.advance(60)
    claimed = world.process("second").claimed(issue)
    snapshot, row, standing = board(world).show(issue)
    assert snapshot.issue.ref == issue
    assert row.state is RowState.CLAIMED
    assert row.record.lease.run == claimed.lease.run
    assert [attempt.outcome for attempt in standing.tries] == ["failed", None]


def test_the_history_names_every_run_and_what_came_of_it(world):
    issue = world.add()
    world.process("failing").fail(issue)
    world.clock.advance(60)
    world.process("vanishing").claimed(issue, ttl=timedelta(seconds=10))
    world.clock.advance(60)
    world.process("running").claimed(issue)
    history = board(world).history(issue)
    assert [(row.holder, row.outcome) for row in history] == [
        ("failing", "failed"),
        ("vanishing", "vanished"),
        ("running", "running"),
    ]
    assert history[0].note == "it broke"
    assert history[-1].ended_at is None
