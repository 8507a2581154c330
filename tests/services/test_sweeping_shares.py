"""A worker sweeps its share: so that a fleet does not read the square of its own size."""

import random
from datetime import timedelta

import pytest

from dibs.core.events import Step
from dibs.services.sweeping import Share, Sweep
from dibs.services.working import Until

from .world import BEAT_S, TTL_S, Crash, crashing


def share(looks=3, seed=1):
    return Share(looks, random.Random(seed))


class Sweeper:
    """One worker's sweeping, which remembers what it saw."""

    def __init__(self, world, name="sweeper"):
        self.process = world.process(name)
        self.sweeping = self.process.services.sweeping

    def sweep(self, looks=3, **options):
        return self.sweeping.sweep(share=share(looks), **options)


def held(world, count):
    return [world.process(f"w{number}").hold(world.add()) for number in range(count)]


def beat(world, keepers):
    world.clock.advance(BEAT_S)
    for keeper in keepers:
        keeper.beat()


def test_where_few_are_claimed_all_are_looked_at(world):
    held(world, 3)
    assert Sweeper(world).sweep(looks=3).looked_at == 3


def test_where_many_are_claimed_a_few_are_looked_at(world):
    held(world, 10)
    sweeper = Sweeper(world)
    report = sweeper.sweep(looks=3)
    assert [entry.action for entry in report.swept] == [Sweep.LIVE] * 3
    reads = [call for call in sweeper.process.tracker.calls if call.name == "read"]
    assert len(reads) == 3


def test_together_the_shares_of_a_fleet_cover_every_issue(world):
    keepers = held(world, 12)
    seen = {
        entry.issue
        for number in range(24)
        for entry in world.process(f"s{number}").sweep(share=share(seed=number)).swept
    }
    assert seen == {keeper.issue for keeper in keepers}


def test_a_share_goes_on_while_anything_is_amiss(world):
    """After a disaster one worker that is left frees everything at once."""
    keepers = held(world, 10)
    world.clock.advance(TTL_S)
    report = Sweeper(world).sweep(looks=2)
    assert {entry.issue for entry in report.changed} == {keeper.issue for keeper in keepers}


def test_a_lease_that_was_seen_is_not_looked_at_again_before_it_can_have_expired(world):
    keepers, sweeper = held(world, 3), Sweeper(world)
    assert sweeper.sweep().looked_at == 3
    for _ in range(2):
        beat(world, keepers)
        assert sweeper.sweep().looked_at == 0
    beat(world, keepers)
    assert [entry.action for entry in sweeper.sweep().swept] == [Sweep.LIVE] * 3


def test_a_lease_that_was_seen_and_not_renewed_is_freed_as_soon_as_it_has_expired(world):
    (keeper,), sweeper = held(world, 1), Sweeper(world)
    sweeper.sweep()
    world.clock.advance(TTL_S - 0.001)
    assert sweeper.sweep().looked_at == 0
    world.clock.advance(0.001)
    assert [entry.issue for entry in sweeper.sweep().changed] == [keeper.issue]


def test_leases_that_are_known_to_run_for_long_do_not_thin_out_the_share(world):
    """Thirty people hold an issue each; the one worker that died is found all the same."""
    for number in range(30):
        world.process(f"person{number}").claimed(world.add(), ttl=timedelta(hours=8))
    sweeper = Sweeper(world)
    sweeper.sweeping.sweep()  # at its start a worker looks at everything
    world.process("dying").claimed(dead := world.add())
    sweeper.sweep()
    world.clock.advance(TTL_S)
    assert [entry.issue for entry in sweeper.sweep().changed] == [dead]


def test_an_issue_that_changed_is_looked_at_however_long_its_lease_was_to_run(world):
    (keeper,), sweeper = held(world, 1), Sweeper(world)
    sweeper.sweep()
    world.clock.advance(1)
    boss = world.process("boss").services.steering
    boss.revoke(keeper.issue, keeper.run, by="ada", reason="dead", force=True)
    assert [entry.issue for entry in sweeper.sweep().changed] == [keeper.issue]


def test_an_ending_that_was_decided_before_it_was_seen_is_finished(world):
    issue = world.add()
    dying = world.process("dying", reached=crashing(Step.FINISH_DECIDED))
    keeper = dying.hold(issue)
    with pytest.raises(Crash):
        dying.services.advancing.advance(keeper)
    assert [entry.action for entry in Sweeper(world).sweep().swept] == [Sweep.ROLLED_FORWARD]


def test_a_share_goes_on_where_the_list_ended(world):
    keepers, sweeper = held(world, 5), Sweeper(world)
    first = sweeper.sweep(looks=10, limit=3)
    second = sweeper.sweep(looks=10, limit=3, after=first.resume_after)
    assert (first.looked_at, second.looked_at) == (3, 2)
    assert second.resume_after is None
    seen = {entry.issue for report in (first, second) for entry in report.swept}
    assert seen == {keeper.issue for keeper in keepers}


def test_what_has_expired_is_forgotten(world):
    held(world, 10)
    sweeper = Sweeper(world)
    sweeper.sweep(looks=10)
    assert len(sweeper.sweeping._seen_live) == 10
    world.clock.advance(TTL_S)
    sweeper.sweep(looks=10)
    assert sweeper.sweeping._seen_live == {}


# The worker


def _worker(world):
    process = world.process("w1", handlers={"ready": lambda _: None})
    stages = (process.services.pipeline.stage("ready"),)
    return process, process.services.worker(process.holder, stages, until=Until.STOPPED)


def test_a_worker_looks_at_everything_when_it_starts_and_at_its_share_from_then_on(world):
    held(world, 10)
    process, worker = _worker(world)
    worker._sweep_if_due()
    assert [call.name for call in process.tracker.calls].count("read") == 10
    world.clock.advance(TTL_S * 0.9)
    for keeper in held(world, 10):
        keeper.beat()
    process.tracker.calls.clear()
    worker._sweep_if_due()
    assert [call.name for call in process.tracker.calls].count("read") == 3


def test_a_worker_that_is_full_wakes_up_only_to_sweep(world):
    _, worker = _worker(world)
    worker._sweep_if_due()
    worker._jobs.add("a run")
    left_s = worker._idle()
    assert 10 <= left_s <= 20, "half to all of the sweep's interval"
    world.clock.advance(left_s + 1)
    assert worker._idle() == 0.0
    worker._sweep_if_due()
    assert worker._idle() > 0
