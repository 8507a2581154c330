"""A run in a place of its own: made after the grant, told to the handler, left after the ending."""

import json
from pathlib import Path

import pytest

from dibs.core.errors import HandlerUnusable, WorktreeUnavailable
from dibs.core.lease import Outcome
from dibs.core.pipeline import Command, NoHandler, NoWorktree, OneWorktree
from dibs.services.running import StopSignal
from dibs.services.working import Until

from .places import NotedPlaces
from .runners import ScriptedRunner
from .world import TTL_S, World, pipeline_of

TREE = OneWorktree("../shop")
PATIENCE_S = 0.03


def in_places(kind="store", *, places=None, handlers=None, patience_s=0.0, worktree=TREE, **script):
    """A world whose first stage works in a worktree, a process in it, and what it made."""
    handler = Command("./implement.sh")
    world = World(
        kind, pipeline=pipeline_of(handler=handler, worktree=worktree), patience_s=patience_s
    )
    process = world.process(handlers=handlers)
    process.services.runner = ScriptedRunner(world.clock, **script)
    process.services.workplaces = places = places or NotedPlaces()
    return world, process, places


def run(process, issue):
    return process.services.running.run(process.claimed(issue), StopSignal())


def worker(process, **options):
    process.told = []
    stages = (process.services.pipeline.stage("ready"),)
    options = {"until": Until.DRAINED, **options}
    made = process.services.worker(process.holder, stages, tell=process.told.append, **options)
    made._dice.seed(7)
    return made


def test_a_handler_starts_in_the_runs_worktree_and_is_told_of_it(kind):
    world, process, places = in_places(kind)
    finished = run(process, world.add())
    assert finished.outcome is Outcome.ADVANCED
    [started] = process.services.runner.runs
    assert started.assignment.folder == Path("/trees/here")
    assert started.assignment.shared == (7,)
    environment = started.assignment.environment
    assert environment["DIBS_WORKTREE"] == "/trees/here"
    assert json.loads(environment["DIBS_WORKTREES"]) == {"": "/trees/here"}
    assert environment["DIBS_BRANCH"] == "dibs/w1-1"
    [wish] = places.wishes
    assert (wish.run, wish.name, wish.worktree) == ("w1-1", "#1", TREE)


def test_a_stage_that_asks_for_none_opens_none(kind):
    world, process, places = in_places(kind, worktree=NoWorktree())
    run(process, world.add())
    assert places.wishes == []
    [started] = process.services.runner.runs
    assert started.assignment.folder is None
    assert not {name for name in started.assignment.environment if "WORKTREE" in name}
    assert worker(process).run()
    assert (places.checked, places.recovered) == ([], 0)


def test_a_gate_that_a_worker_passes_by_itself_needs_no_place():
    world, process, places = in_places()
    stages = [*world.pipeline.stages]
    assert isinstance(stages[1].handler, NoHandler)
    issue = world.add("stage:review", "approved")
    process.services.running.run(process.claimed(issue), StopSignal())
    assert places.wishes == []


def test_a_function_in_this_process_is_handed_the_place():
    seen = []
    world, process, _ = in_places(handlers={"ready": seen.append})
    run(process, world.add())
    [work] = seen
    assert work.folder == Path("/trees/here")
    assert work.folders == {"": Path("/trees/here")}
    assert work.branch == "dibs/w1-1"
    assert work.leases == (work.lease,)


@pytest.mark.parametrize("exits", [0, 1, 75])
def test_the_place_is_left_once_the_issue_is_free(kind, exits):
    """Clearing may take long, and nobody has to wait for it."""
    labels = []
    places = NotedPlaces(on_leave=lambda wish: labels.append(world.labels(issue)))
    world, process, _ = in_places(kind, places=places, exits=exits)
    issue = world.add()
    run(process, issue)
    assert labels == [{"stage:review"} if exits == 0 else {"stage:ready"}]
    assert places.open_now == set()


def test_what_was_kept_is_in_the_journal():
    places = NotedPlaces(keeps=("kept as refs/dibs/recovered/x",))
    world, process, _ = in_places(places=places)
    run(process, world.add())
    [event] = [one for one in world.journal.events if one.kind.value == "work_kept"]
    assert (event.run, event.detail) == ("w1-1", {"what": "kept as refs/dibs/recovered/x"})


def test_a_lease_lost_while_the_place_was_made_starts_nothing(kind):
    def frozen(_wish):
        world.clock.advance(TTL_S * 2)

    places = NotedPlaces(on_open=frozen)
    world, process, _ = in_places(kind, places=places)
    run(process, world.add())
    assert process.services.runner.runs == []
    assert places.open_now == set()


# When there is none


def test_no_place_for_now_gives_the_issue_back_without_counting(kind):
    places = NotedPlaces(fails=[WorktreeUnavailable("origin does not answer")])
    world, process, _ = in_places(kind, places=places)
    issue = world.add()
    with pytest.raises(WorktreeUnavailable):
        run(process, issue)
    assert world.labels(issue) == {"stage:ready"}
    assert process.services.explaining.explain(issue).attempts.failed == 0
    assert process.services.runner.runs == []


def test_a_worker_without_a_place_claims_nothing_for_a_while_and_then_goes_on(kind):
    """Longer each time: what is in the way of one run is in the way of all."""
    places = NotedPlaces(fails=[WorktreeUnavailable("origin does not answer") for _ in range(4)])
    world, process, _ = in_places(kind, places=places, patience_s=PATIENCE_S)
    issues = [world.add() for _ in range(6)]
    report = worker(process).run()
    assert report.outcomes == {"returned": 4, "advanced": 6}
    assert world.clock.passed_s >= 5 + 10 + 20 + 40
    assert all(world.labels(issue) == {"stage:review"} for issue in issues)
    assert sum("was given back: origin" in line for line in process.told) == 4


def test_a_place_that_cannot_be_made_at_all_makes_the_worker_leave(kind):
    places = NotedPlaces(fails=[HandlerUnusable("no worktree can be made: no origin/main")])
    world, process, _ = in_places(kind, places=places, patience_s=PATIENCE_S)
    first, second = world.add(), world.add()
    report = worker(process).run()
    assert "no origin/main" in report.unusable
    assert world.labels(first) == world.labels(second) == {"stage:ready"}
    assert process.services.explaining.explain(first).attempts.failed == 0


def test_a_worker_looks_at_its_places_before_it_claims_anything():
    places = NotedPlaces(unusable=HandlerUnusable("there is no folder ../shop"))
    world, process, _ = in_places(places=places)
    issue = world.add()
    with pytest.raises(HandlerUnusable):
        worker(process).run()
    assert world.cards(issue) == []
    assert places.checked == [(TREE, ("",))]


def test_a_worker_clears_what_dead_ones_left_before_it_makes_anything():
    _, process, places = in_places(patience_s=PATIENCE_S)
    worker(process).run()
    assert places.recovered == 1
