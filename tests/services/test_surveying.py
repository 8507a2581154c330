"""The whole board: what is apart from waiting, what waits for people, and what it costs."""

import pytest
from msgspec.structs import replace
from tests.core.builders import ruling

from dibs.core.eligibility import PauseScope
from dibs.core.pipeline import Command
from dibs.services.board import RowState

from .costly import CostlyWorld
from .world import World, pipeline_of


def survey(world):
    return world.process("onlooker").services.board.survey()


def stage(found, name):
    return next(entry for entry in found.overview.stages if entry.stage.name == name)


@pytest.fixture(params=["store", "comments", "trips", "costly", "costly store"])
def world(request):
    pipeline = pipeline_of(handler=Command("true"))
    if request.param.startswith("costly"):
        kind = "store" if request.param.endswith("store") else "comments"
        return CostlyWorld(kind, pipeline=pipeline)
    return World(request.param, pipeline=pipeline)


def test_waiting_is_apart_from_parked_gated_paused_blocked_resting_and_in_flight(world):
    waiting = [world.add() for _ in range(2)]
    for labels in (("parked",), ("parked", "paused"), ("paused",), ("do-not-pickup",)):
        world.add("stage:ready", *labels)
    world.process().fail(world.add())
    running = world.add()
    world.process().claimed(running)
    gated = [world.add("stage:review") for _ in range(3)]
    approved = world.add("stage:review", "approved")
    found = survey(world)
    ready, review = stage(found, "ready"), stage(found, "review")
    assert dict(ready.apart) == {
        RowState.PARKED: 2,
        RowState.PAUSED: 1,
        RowState.BLOCKED: 1,
        RowState.RESTING: 1,
    }
    assert (ready.issues, ready.in_flight, ready.waiting) == (8, 1, 2)
    assert (dict(review.apart), review.waiting) == ({RowState.GATED: 3}, 1)
    assert [row.issue.ref for row in found.running] == [running]
    assert [row.issue.ref for row in found.people if row.state is RowState.GATED] == gated
    assert [row.state for row in found.people] == ["gated"] * 3 + ["parked"] * 2 + ["paused"]
    assert [row.issue.ref for row in found.coming] == [*waiting, approved]


def test_a_rest_that_is_over_is_waiting_again(world):
    issue = world.add()
    world.process().fail(issue)
    assert stage(survey(world), "ready").waiting == 0
    world.clock.advance(60)
    found = survey(world)
    assert stage(found, "ready").waiting == 1
    assert [row.issue.ref for row in found.coming] == [issue]


def test_what_runs_has_its_title_its_attempt_and_its_lease(world):
    issue = world.add(title="Prices are right")
    world.process().fail(issue)
    world.clock.advance(60)
    lease = world.process("second").claimed(issue).lease
    (row,) = survey(world).running
    assert (row.issue.title, row.attempt, row.stage.attempts) == ("Prices are right", 2, 3)
    assert row.record.lease.granted_at == lease.granted_at


def test_what_is_parked_or_paused_says_why(world):
    parked, paused = world.add(), world.add()
    holder = world.process()
    holder.services.advancing.park(holder.hold(parked), "three attempts failed: no such key")
    for reason in ("an old one", "legal asks for time"):
        holder.services.steering.pause_issue(paused, reason=reason, by="ada")
    by_hand = world.add("stage:ready", "paused")
    notes = {row.issue.ref: row.note for row in survey(world).people}
    assert notes == {
        parked: "three attempts failed: no such key",
        paused: "ada: legal asks for time",
        by_hand: "",
    }


def test_a_comment_that_mentions_a_pause_is_not_taken_for_its_words(world):
    issue = world.add("stage:ready", "paused")
    world.tracker.comment(issue, "A question. Paused by ada: never said")
    assert [row.note for row in survey(world).people] == [""]


def test_an_approved_issue_whose_text_was_changed_waits_for_a_person_again():
    """No label shows it, so it must not look as if a worker could take it."""
    world = World("store", pipeline=pipeline_of(handler=Command("true")))
    issue = world.add("stage:review", "approved")
    assert survey(world).people == ()
    read = replace(world.read(issue).issue, title="What ada has read")
    world.tracker.comment(issue, ruling(read))
    (row,) = survey(world).people
    assert (row.issue.ref, row.state) == (issue, RowState.GATED)
    assert "it is for another text" in row.note


def test_a_pause_of_the_fleet_leaves_nothing_next_in_line(world):
    world.add()
    world.pauses.pause(PauseScope.FLEET, repo="", reason="deploy", by="ada")
    found = survey(world)
    assert found.coming == ()
    assert [pause.reason for pause in found.overview.pauses] == ["deploy"]


@pytest.mark.parametrize("kind", ["comments", "store"])
def test_a_survey_where_requests_cost_is_a_handful_of_them(kind):
    world = CostlyWorld(kind, pipeline=pipeline_of(handler=Command("true")))
    for _ in range(60):
        world.add("stage:ready", "parked")
    for _ in range(15):
        world.add("stage:review")
    for _ in range(5):
        world.process().claimed(world.add())
    world.add()
    onlooker = world.process("onlooker")
    found = onlooker.services.board.survey()
    assert (len(found.people), len(found.running)) == (75, 5)
    requests = onlooker.tracker.requests
    assert sum(requests.values()) <= 7, requests
