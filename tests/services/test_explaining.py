"""Why an issue is not being picked: the same verdict as a claim, with every reason."""

import pytest

from dibs.core.eligibility import PauseScope
from dibs.core.errors import NoSuchIssue
from dibs.core.events import Step
from dibs.core.ids import IssueRef
from dibs.core.pipeline import Command
from dibs.services.claiming import Claimed

from .world import TTL_S, Crash, World, codes, crashing, pipeline_of


@pytest.fixture
def world(kind):
    return World(kind, pipeline=pipeline_of(handler=Command("true"), wip=2, attempts=2))


def test_a_free_issue_has_no_reason_against_it(world):
    issue = world.add()
    explanation = world.process().services.explaining.explain(issue)
    assert explanation.claimable
    assert explanation.stage.name == "ready"
    assert explanation.attempts.failed == 0


def test_an_issue_that_does_not_exist_is_said_not_to(world):
    with pytest.raises(NoSuchIssue):
        world.process().why(IssueRef("", "99"))


def test_a_stage_that_nobody_serves_is_named(kind):
    world = World(kind)
    issue = world.add()
    assert world.process().why(issue) == ["NOT_SERVED"]
    assert isinstance(world.process().claim(issue), Claimed), "a person may still take it"


def hold(world, issue):
    world.process("holder").claimed(issue)


def pause(world, issue):
    world.tracker.edit_labels(issue, add=("paused", "do-not-pickup"))
    world.pauses.pause(PauseScope.FLEET, repo="", reason="deploy", by="ada")


def fail(world, issue):
    world.process("failing").fail(issue)


def vanish_twice(world, issue):
    for _ in range(2):
        world.process("vanishing").claimed(issue)
        world.clock.advance(TTL_S)


def decide_and_die(world, issue):
    dying = world.process("dying", reached=crashing(Step.FINISH_DECIDED))
    keeper = dying.hold(issue)
    with pytest.raises(Crash):
        dying.services.advancing.give_back(keeper)


def fill_the_stage(world, issue):
    for _ in range(2):
        world.process("busy").claimed(world.add())
        world.clock.advance(1)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (hold, ["HELD"]),
        (pause, ["FLEET_PAUSED", "PAUSED", "BLOCKED"]),
        (fail, ["BACKING_OFF"]),
        (vanish_twice, ["ATTEMPTS_SPENT"]),
        (decide_and_die, ["UNPAINTED"]),
        (fill_the_stage, ["WIP_LIMIT"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_reason_is_given_and_nothing_is_written(world, spoil, expected):
    issue = world.add()
    spoil(world, issue)
    onlooker = world.process("onlooker")
    assert onlooker.why(issue) == expected
    assert onlooker.tracker.written == []
    assert onlooker.store is None or not [
        call for call in onlooker.store.calls if call.name not in ("read", "live")
    ]


@pytest.mark.parametrize("spoil", [hold, pause, fail, vanish_twice, fill_the_stage])
def test_a_claim_is_told_the_same_as_a_person_who_asks_why(world, spoil):
    issue = world.add()
    spoil(world, issue)
    said = world.process("onlooker").why(issue)
    assert codes(world.process("claimer").claim(issue)) == said


def test_a_reason_that_lifts_by_itself_says_when(world):
    issue = world.add()
    world.process().claimed(issue)
    (reason,) = world.process("onlooker").services.explaining.explain(issue).reasons
    assert (reason.until - world.clock.server_now()).total_seconds() == TTL_S


def test_failures_are_counted_for_the_one_who_asks(world):
    issue = world.add()
    world.process().fail(issue)
    world.clock.advance(3600)
    explanation = world.process().services.explaining.explain(issue)
    assert explanation.claimable
    assert explanation.attempts.failed == 1
