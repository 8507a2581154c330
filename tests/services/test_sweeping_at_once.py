"""A sweep where reading many is one request: few requests, and the reply is looked at."""

import random
from datetime import timedelta

import pytest

from dibs.core.errors import IssueLocked
from dibs.core.events import Step
from dibs.core.granter import Appointed
from dibs.services.claiming import Claimed
from dibs.services.sweeping import Share, Sweep

from .costly import CostlyWorld
from .world import BEAT_S, TTL_S, Crash, crashing

HELD = {"stage:ready", "stage:processing", "claimed"}


@pytest.fixture(params=["store", "comments"])
def world(request):
    return CostlyWorld(request.param)


def held(world, count):
    return [world.process(f"w{number}").hold(world.add()) for number in range(count)]


def vanished(world, count):
    """Held by nobody any more, and still shown as held."""
    issues = [world.add() for _ in range(count)]
    for issue in issues:
        world.process("vanishing").claimed(issue)
    world.clock.advance(TTL_S)
    return issues


def actions(report):
    return [entry.action for entry in report.swept]


def test_twenty_in_flight_eighty_queued_and_three_expired_are_four_requests(world):
    dead = vanished(world, 3)
    held(world, 20)
    for _ in range(80):
        world.add()
    sweeper = world.process("sweeper")
    report = sweeper.sweep()
    assert dict(sweeper.tracker.requests) == {"find_snapshots": 1, "apply": 3}
    assert [entry.issue for entry in report.changed] == dead
    assert report.looked_at == 23
    assert all(world.labels(issue) == {"stage:ready"} for issue in dead)


def test_working_labels_that_strayed_are_in_the_same_request(world):
    dead = vanished(world, 1)
    stray = world.add("stage:ready", "stage:processing")
    world.tracker.close(stray)
    world.clock.advance(TTL_S)
    sweeper = world.process("sweeper")
    assert {entry.issue for entry in sweeper.sweep().changed} == {*dead, stray}
    assert dict(sweeper.tracker.requests) == {"find_snapshots": 1, "apply": 2}
    assert world.labels(stray) == {"stage:ready"}


def test_a_dry_run_says_the_same_and_writes_nothing(world):
    vanished(world, 2)
    held(world, 2)
    onlooker = world.process("onlooker")
    told = onlooker.sweep(dry_run=True)
    assert onlooker.tracker.written == []
    assert dict(onlooker.tracker.requests) == {"find_snapshots": 1}
    assert actions(told) == actions(world.process("sweeper").sweep())


def test_a_sweep_is_bounded_and_goes_on_where_it_ended(world):
    dead = vanished(world, 230)
    sweeper = world.process("sweeper")
    first = sweeper.sweep(limit=150)
    assert [entry.issue for entry in first.changed] == dead[:150]
    assert first.resume_after == dead[149]
    rest = sweeper.sweep(limit=150, after=first.resume_after)
    assert [entry.issue for entry in rest.changed] == dead[150:]
    assert rest.resume_after is None
    assert sweeper.tracker.requests["find_snapshots"] == 3


def test_an_issue_that_was_taken_after_it_was_read_shows_its_lease_again(world):
    (issue,) = vanished(world, 1)
    sweeper = world.process("sweeper")
    quick = []

    def meanwhile(call):
        if call.name == "apply" and not quick:
            quick.append(world.process("quick").claimed(issue))

    sweeper.tracker.before = meanwhile
    report = sweeper.sweep()
    assert actions(report) == [Sweep.YOUNG]
    assert isinstance(quick[0], Claimed)
    assert world.labels(issue) == HELD
    assert "freed" not in world.events()
    world.clock.advance(BEAT_S)
    assert world.process("next").sweep().swept[0].action is Sweep.LIVE


def test_an_issue_that_refuses_is_passed_over(world):
    bad, good = vanished(world, 2)
    sweeper = world.process("sweeper")

    def refuse(call):
        if call.name == "apply" and call.args[0] == bad:
            raise IssueLocked(bad)

    sweeper.tracker.before = refuse
    assert [entry.issue for entry in sweeper.sweep().swept] == [good]


def test_a_store_that_does_not_grant_sweeps_nothing(world):
    vanished(world, 2)
    world.granters.appoint(Appointed("another store"), instead_of=world.granters.granter())
    sweeper = world.process("sweeper")
    assert sweeper.sweep().looked_at == 0
    assert sweeper.tracker.written == []


def test_an_ending_that_may_still_be_painted_is_left_to_whoever_decided_it():
    world = CostlyWorld(in_flight=timedelta(seconds=20))
    issue = world.add()
    dying = world.process("dying", reached=crashing(Step.FINISH_DECIDED))
    keeper = dying.hold(issue)
    with pytest.raises(Crash):
        dying.services.advancing.advance(keeper)
    sweeper = world.process("sweeper")
    world.clock.advance(19)
    assert actions(sweeper.sweep()) == [Sweep.YOUNG]
    world.clock.advance(1)
    assert actions(sweeper.sweep()) == [Sweep.ROLLED_FORWARD]
    assert world.labels(issue) == {"stage:review"}


# A worker's share


def share(seed=1, looks=3):
    return Share(looks, random.Random(seed))


def test_a_share_is_one_list_and_one_look_at_those_that_are_due(world):
    held(world, 10)
    sweeper = world.process("sweeper")
    sweeping = sweeper.services.sweeping
    assert actions(sweeping.sweep(share=share())) == [Sweep.LIVE] * 3
    assert dict(sweeper.tracker.requests) == {"find": 2, "read_many": 1}


def test_a_share_of_what_has_not_changed_is_lists_alone(world):
    held(world, 3)
    sweeper = world.process("sweeper")
    sweeping = sweeper.services.sweeping
    sweeping.sweep(share=share())
    sweeper.tracker.calls.clear()
    for _ in range(10):
        world.clock.advance(1)
        assert sweeping.sweep(share=share()).looked_at == 0
    assert dict(sweeper.tracker.requests) == {"find": 20}


def test_after_a_disaster_the_rest_is_looked_at_a_hundred_at_a_time(world):
    dead = vanished(world, 120)
    sweeper = world.process("sweeper")
    report = sweeper.services.sweeping.sweep(share=share(), limit=200)
    assert {entry.issue for entry in report.changed} == set(dead)
    assert dict(sweeper.tracker.requests) == {"find": 2, "read_many": 3, "apply": 120}
