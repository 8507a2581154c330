"""Issues that nobody may claim for a while cost a search nothing, and none is hidden for longer."""

import random
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.core.card import render_excuse
from dibs.core.eligibility import Reason, ReasonCode, rest_rules, rests_until
from dibs.core.pipeline import Backoff
from dibs.services.claiming import ClaimOptions
from dibs.services.scanning import CHEAP, Scanner, Spread

from .costly import CostlyWorld
from .world import World, outage, pipeline_of

REST_S = 30


def claim_next(world):
    process = world.process("agent")
    found = process.services.queueing.claim_next(ClaimOptions(process.holder))
    return process, found.lease.issue if found else None


def looks(process):
    """How many issues a process looked at, and how many it listed."""
    return sum(call.name == "read" for call in process.tracker.calls)


def scan(world):
    """What a new worker would try first, and what it took to find it."""
    process = world.process("worker")
    scanner = Scanner(process.services.backlog, CHEAP, dice=random.Random(1))
    found = scanner.next_candidate([world.pipeline.stages[0]], Spread(random.Random(1)))
    return process, found.issue.ref if found else None


@pytest.mark.parametrize("search", [claim_next, scan])
def test_failed_issues_ahead_are_not_read(world, search):
    fresh = World(world.kind)
    fresh.add()
    alone, _ = search(fresh)
    for _ in range(40):
        world.process().fail(world.add())
    free = world.add()
    process, found = search(world)
    assert found == free
    assert len(process.tracker.calls) == len(alone.tracker.calls)


@pytest.mark.parametrize("search", [claim_next, scan])
def test_an_issue_is_found_when_its_rest_is_over(world, search):
    issue = world.add()
    world.process().fail(issue)
    world.clock.advance(REST_S - 1)
    assert search(world)[1] is None
    world.clock.advance(1)
    assert search(world)[1] == issue


@pytest.mark.parametrize("search", [claim_next, scan])
def test_an_excused_failure_ends_the_rest(world, search):
    issue = world.add()
    world.process("one").fail(issue)
    run = world.cards(issue)[-1].run
    assert search(world)[1] is None
    world.tracker.comment(issue, render_excuse(run, "one", "the handler was at fault"))
    assert search(world)[1] == issue


@pytest.mark.parametrize("search", [claim_next, scan])
def test_a_shorter_backoff_counts_at_once(kind, search):
    world = World(kind, pipeline=pipeline_of(backoff=Backoff(timedelta(days=1), timedelta(days=1))))
    issue = world.add()
    world.process().fail(issue)
    assert search(world)[1] is None
    world.settings = replace(world.settings, pipeline=pipeline_of())
    world.pipeline = world.settings.pipeline
    world.clock.advance(REST_S)
    assert search(world)[1] == issue


def test_a_failure_that_the_tracker_was_not_told_of_is_read_once(world):
    """By a process that died after the ending, or an earlier version of dibs."""
    issue = world.add()
    world.process().fail(issue)
    world.tracker.edit_labels(issue, add=("seen",))
    first, _ = claim_next(world)
    second, _ = claim_next(world)
    assert (looks(first), looks(second)) == (1, 0)


def test_a_claim_of_the_issue_itself_asks_no_index(world):
    issue = world.add()
    world.process().fail(issue)
    snapshot = world.read(issue)
    rules = rest_rules(world.pipeline, world.settings.max_ttl)
    world.tracker.rest(snapshot.issue, snapshot.now + timedelta(days=365), rules)
    world.clock.advance(REST_S)
    assert world.process().claimed(issue)


def test_an_outage_when_it_is_noted_is_no_failure_of_the_ending(world):
    issue = world.add()
    process = world.process()
    keeper = process.hold(issue)
    process.tracker.before = outage("rest")
    assert process.services.advancing.fail(keeper, "it broke").outcome == "failed"
    assert "BACKING_OFF" in world.process().why(issue)


def test_issues_that_a_worker_leaves_alone_are_listed_once_in_a_pass(world):
    """They rest for this worker alone, so no index knows of them: its own handler returned them."""
    issues = [world.add() for _ in range(400)]
    process = world.process("worker")
    scanner = Scanner(process.services.backlog, CHEAP, dice=random.Random(1))
    listed = []
    process.tracker.change = lambda _, answer: listed.append(len(answer.issues)) or answer
    spread, stages = Spread(random.Random(1)), [world.pipeline.stages[0]]
    for issue in issues[:300]:
        assert scanner.next_candidate(stages, spread).issue.ref == issue
        scanner.resting.rest(issue, 3600)
    assert sum(listed) < 300 * 60  # and not 300 * 300 / 2
    scanner.resting.forget(issues[7])
    assert scanner.next_candidate(stages, spread).issue.ref == issues[300]
    world.clock.advance(2)
    assert scanner.next_candidate(stages, spread).issue.ref == issues[7]
    for issue in (issues[7], *issues[300:]):
        scanner.resting.rest(issue, 3600)
    assert scanner.next_candidate(stages, spread) is None
    scanner.resting.forget(issues[3])
    assert scanner.next_candidate(stages, spread).issue.ref == issues[3]


def test_a_tracker_that_keeps_no_rests_is_told_of_none():
    world = CostlyWorld()
    world.tracker.traits = replace(world.tracker.traits, keeps_rests=False)
    issue = world.add()
    process = world.process()
    process.fail(issue)
    assert "rest" not in process.tracker.requests


# What is known for sure


def reason(code, until):
    return Reason(code, "", "", until=until)


def test_a_rest_lasts_as_long_as_the_last_of_its_reasons(world):
    now = world.clock.server_now()
    soon, late = now + timedelta(seconds=1), now + timedelta(seconds=9)
    reasons = [reason(ReasonCode.BACKING_OFF, soon), reason(ReasonCode.HELD, late)]
    assert rests_until(reasons, held_too=False) == soon
    assert rests_until(reasons, held_too=True) == late


@pytest.mark.parametrize("code", [ReasonCode.FOREIGN_CLAIM, ReasonCode.WIP_LIMIT])
def test_what_another_may_lift_without_a_change_of_the_issue_is_no_rest(world, code):
    assert rests_until([reason(code, world.clock.server_now())], held_too=True) is None
    assert rests_until([reason(ReasonCode.UNPAINTED, None)], held_too=True) is None


@pytest.mark.parametrize("code", [ReasonCode.IN_GRACE, ReasonCode.CLAIM_LABEL_ONLY])
def test_what_a_shorter_grace_or_ttl_would_end_sooner_is_no_rest(world, code):
    assert rests_until([reason(code, world.clock.server_now())], held_too=True) is None
