"""Leases in comments on a tracker that stamps whole seconds: trust leaves room for the step."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.adapters.memory.leases import MemoryLeases
from dibs.adapters.memory.tracker import MemoryTracker
from dibs.core.durations import terms_for
from dibs.core.errors import BadConfiguration, BadTtl
from dibs.testing.clock import FakeClock

from .world import TERMS, World, pipeline_of

SECOND = timedelta(seconds=1)


def world_of(kind="comments", *, ttl_s=60.0):
    """The server's clock moves in whole seconds; nobody's time of day is any finer."""
    terms = terms_for(timedelta(seconds=ttl_s))
    base = pipeline_of()
    world = World(
        kind,
        pipeline=replace(base, stages=tuple(replace(stage, terms=terms) for stage in base.stages)),
    )
    world.clock = FakeClock(grain=SECOND)
    world.tracker = MemoryTracker(world.clock.server_now, author="fleet", grain=SECOND)
    if world.store is not None:
        world.store = MemoryLeases(world.clock.server_now)
    return world


def test_a_lease_is_trusted_a_second_less():
    world = world_of()
    keeper = world.process().hold(world.add())
    assert keeper.remaining_s() == pytest.approx((TERMS.trust - SECOND).total_seconds())


def test_an_atomic_store_has_a_clock_of_its_own():
    world = world_of("store")
    keeper = world.process().hold(world.add())
    assert keeper.remaining_s() == pytest.approx(TERMS.trust.total_seconds())


def test_nobody_trusts_a_lease_that_the_server_calls_over():
    """Stamped a moment before it was sent, the lease ends almost a second early."""
    world = world_of(ttl_s=6)
    issue = world.add()
    world.clock.advance(0.999)
    keeper = world.process().hold(issue)
    trusted_s = keeper.remaining_s()
    world.clock.advance(trusted_s - 0.001)
    keeper.check()
    assert world.process("onlooker").services.leases.standing(world.read(issue)).live is not None


@pytest.mark.parametrize("ttl_s", [0.3, 1, 3, 4.2])
def test_a_ttl_that_is_too_short_for_whole_seconds_is_refused_at_the_start(ttl_s):
    with pytest.raises(BadConfiguration, match=r"stage 'ready': ttl .* too short .* memory:") as no:
        world_of(ttl_s=ttl_s).process()
    assert "steps of 1s" in str(no.value)
    world_of("store", ttl_s=ttl_s).process()


def test_a_ttl_of_five_seconds_is_long_enough():
    world = world_of(ttl_s=5)
    assert world.process().hold(world.add()).remaining_s() == pytest.approx(3.5)


def test_a_ttl_by_hand_that_is_too_short_is_refused_before_anything_is_written():
    world = world_of()
    issue, process = world.add(), world.process()
    with pytest.raises(BadTtl, match="steps of 1s"):
        process.claim(issue, ttl=timedelta(seconds=3))
    assert process.tracker.written == []


def test_a_lease_that_was_claimed_for_too_short_is_not_taken_up_again():
    """By a program that counts otherwise: nobody could say for how long to trust it."""
    finer, issue = world_of(ttl_s=60), None
    finer.tracker.traits = replace(finer.tracker.traits, grain=timedelta(milliseconds=1))
    issue = finer.add()
    run = finer.process().claimed(issue, ttl=timedelta(seconds=3)).lease.run
    finer.tracker.traits = replace(finer.tracker.traits, grain=SECOND)
    with pytest.raises(BadTtl, match="steps of 1s"):
        finer.process("other").services.resuming.resume(issue, run)
