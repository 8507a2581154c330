"""Taking up a lease again in a process that knows nothing but its run."""

import random
from datetime import timedelta

import pytest

from dibs.services.claiming import Claimed
from dibs.services.ending import Finished
from dibs.services.resuming import LeaseWaiter, NotHeld

from .world import TTL_S, World


def test_a_run_is_taken_up_where_it_stands_and_finished(world):
    issue = world.add()
    first = world.process("script").claimed(issue)
    world.clock.advance(10)
    process = world.process("later")
    resumed = process.services.resuming.resume(issue, first.lease.run)
    assert isinstance(resumed, Claimed)
    assert (resumed.lease.run, resumed.lease.fence) == (first.lease.run, first.lease.fence)
    keeper = process.services.keep(resumed)
    assert isinstance(process.services.advancing.advance(keeper), Finished)
    assert world.labels(issue) == {"stage:review"}
    assert world.states(issue) == [("script-1", "released")]


def test_trust_is_no_longer_than_what_the_store_says_is_left(world):
    issue = world.add()
    first = world.process("script").claimed(issue)
    world.clock.advance(30)
    process = world.process("later")
    keeper = process.services.keep(process.services.resuming.resume(issue, first.lease.run))
    assert keeper.remaining_s() == pytest.approx(world.trust_s - 30)
    keeper.renew_now()
    assert keeper.remaining_s() == pytest.approx(world.trust_s)


def test_a_run_that_does_not_hold_the_issue_is_told_who_does(world):
    issue = world.add()
    world.process("holder").claimed(issue)
    result = world.process("later").services.resuming.resume(issue, "somebody-1")
    assert isinstance(result, NotHeld)
    assert result.record.lease.holder == "holder"


def test_an_expired_run_cannot_be_taken_up_again(world):
    issue = world.add()
    first = world.process("script").claimed(issue)
    world.clock.advance(TTL_S)
    result = world.process("later").services.resuming.resume(issue, first.lease.run)
    assert isinstance(result, NotHeld)


def test_a_person_takes_up_a_lease_by_name(world):
    issue = world.add()
    held = world.process("ada").claimed(issue)
    resuming = world.process("later").services.resuming
    assert resuming.resume_as(issue, "ada").lease.run == held.lease.run
    assert isinstance(resuming.resume_as(issue, "bob"), NotHeld)
    assert isinstance(resuming.resume_as(world.add(), "ada"), NotHeld)


def test_failed_attempts_are_known_after_taking_up(world):
    issue = world.add()
    world.process("failing").fail(issue)
    world.clock.advance(31)
    held = world.process("script").claimed(issue)
    resumed = world.process("later").services.resuming.resume(issue, held.lease.run)
    assert resumed.failed_attempts == held.failed_attempts == 1


def test_who_waits_for_a_lease_asks_less_and_less_often():
    """Whatever remains of the lease: a crowd that asks all the time is load on the store."""
    world = World("store")
    issue, waiter = world.add(), LeaseWaiter(None, world.clock, random.Random(7))
    pauses = []
    for _ in range(12):
        before = world.clock.passed_s
        waiter.pause(issue, timedelta(hours=1), 3600.0)
        pauses.append(world.clock.passed_s - before)
    assert min(pauses) >= 0.025
    assert min(pauses[6:]) > max(pauses[:3])


def test_who_waits_for_a_lease_looks_again_when_it_is_over():
    world = World("store")
    issue, waiter = world.add(), LeaseWaiter(None, world.clock, random.Random(7))
    for _ in range(12):
        waiter.pause(issue, timedelta(hours=1), 3600.0)
    before = world.clock.passed_s
    waiter.pause(issue, timedelta(seconds=0.1), 3600.0)
    waiter.pause(issue, timedelta(hours=1), 0.2)
    assert world.clock.passed_s - before < 2.0
