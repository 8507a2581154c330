"""Loops: many replicas on virtual time, one tick per window, and on schedule."""

import heapq
import random
from collections import Counter
from datetime import timedelta

import pytest
from msgspec.structs import force_setattr

from dibs.core.errors import BadConfiguration, BadTtl, LeaseLost
from dibs.core.granter import Appointed, Moving
from dibs.core.ids import HolderId
from dibs.core.named import loop_ref, window_at
from dibs.named.loops import Rhythm

from .world import World

EVERY = timedelta(seconds=30)
EVERY_S = 30.0


class Replicas:
    """Processes that wait and tick in the order in which their time comes."""

    def __init__(self, world, number, tick=lambda replica, turn: None, every=EVERY):
        self.world = world
        self.every = every
        self.ticks = []
        self.gone = set()
        self.loops = [self._loop(name, tick) for name in range(number)]
        self.due = [(world.clock.passed_s, name) for name in range(number)]

    def _loop(self, name, tick):
        def noted(turn):
            self.ticks.append((turn.window.number, name, self.world.clock.server_now(), turn.fence))
            tick(name, turn)

        rhythm = Rhythm("reconcile", self.every, noted, HolderId(f"r{name}"))
        services = self.world.process(f"r{name}").services
        services._dice = lambda: random.Random(name)
        return services.loop(rhythm)

    def go_on(self, seconds):
        until = self.world.clock.passed_s + seconds
        while self.due[0][0] < until:
            at, name = heapq.heappop(self.due)
            if name in self.gone:
                continue
            self.world.clock.advance(max(at - self.world.clock.passed_s, 0.0))
            wait_s = self.loops[name].step()
            heapq.heappush(self.due, (self.world.clock.passed_s + wait_s, name))

    @property
    def windows(self):
        return Counter(window for window, *_ in self.ticks)


@pytest.fixture
def world():
    return World("store")


@pytest.mark.parametrize("number", [1, 2, 7])
def test_an_hour_of_replicas_ticks_once_in_every_window_and_at_its_start(world, number):
    dice = random.Random(number)
    replicas = Replicas(
        world, number, lambda _, turn: world.clock.advance(dice.uniform(0, EVERY_S / 2))
    )
    replicas.go_on(3600)
    assert set(replicas.windows.values()) == {1}, "two ticks in one window"
    assert len(replicas.windows) in (120, 121), "a window was left out: the rate is not halved"
    late = [at - window_at(at, EVERY).starts_at for _, _, at, _ in replicas.ticks[1:]]
    assert max(late) <= EVERY / 25, f"a tick came {max(late)} into its window"
    fences = [fence for *_, fence in replicas.ticks]
    assert fences == sorted(set(fences))


def test_a_replica_that_dies_in_its_tick_costs_one_window_at_most(world):
    class Died(BaseException):
        pass

    replicas = Replicas(world, 3)
    replicas.go_on(300)
    before = len(replicas.windows)

    def die(turn):
        raise Died

    victim = replicas.loops[replicas.ticks[-1][1]]
    force_setattr(victim.rhythm, "tick", die)
    started = world.clock.server_now()
    with pytest.raises(Died):
        replicas.go_on(3600)
    replicas.gone.add(replicas.loops.index(victim))
    replicas.go_on(600)
    passed = (world.clock.server_now() - started) / EVERY
    assert len(replicas.windows) - before >= int(passed) - 1
    assert set(replicas.windows.values()) == {1}


def test_a_tick_that_outlasts_its_window_is_not_joined_by_another():
    """One replica is busy for twice its window, and another asks all the while."""
    world = World("store")
    others = Replicas(world, 1)

    def long_at_first(_, turn):
        if len(busy.ticks) > 1:
            return
        seen = len(others.ticks)
        for _ in range(60):
            world.clock.pass_on(1)
            turn.check()
            others.loops[0].step()
        assert turn.keeper.lease.beats > 0, "it was renewed"
        assert len(others.ticks) == seen, "another ticked beside it"

    busy = Replicas(world, 1, long_at_first)
    busy.go_on(1)
    assert busy.ticks
    world.clock.advance(5)
    busy.loops[0].step()  # gives back what it had extended
    world.clock.advance(EVERY_S)
    others.go_on(120)
    assert set(others.windows.values()) == {1}
    assert len(others.windows) >= 3


def test_a_loop_does_not_tick_under_a_grant_that_a_move_overtook(world):
    """It slept between its look and its grant, and the leases were moved meanwhile."""
    process = world.process("r1")

    def move(call):
        if call.name == "acquire":
            world.granters.appoint(Appointed("redis://x"), instead_of=world.granters.granter())

    ticks = []
    loop = process.services.loop(Rhythm("reconcile", EVERY, ticks.append, HolderId("r1")))
    loop.step()
    loop.step()
    assert len(ticks) == 1
    world.clock.advance(EVERY_S)
    process.store.before = move
    wait_s = loop.step()
    assert len(ticks) == 1
    assert world.store.live() == ()
    assert wait_s < 5, "it looks again soon"


def test_a_move_or_a_hitch_at_its_start_does_not_cost_a_long_window(world):
    day = timedelta(days=1)
    replicas = Replicas(world, 1, every=day)
    replicas.go_on(10)
    before = len(replicas.ticks)
    world.clock.advance(day.total_seconds())
    granter = world.granters.granter()
    world.granters.appoint(Moving("auto", "x"), instead_of=granter)
    assert replicas.loops[0].step() < 5
    world.granters.appoint(granter, instead_of=Moving("auto", "x"))
    replicas.loops[0].step()
    assert len(replicas.ticks) == before + 1


def test_a_grant_that_came_in_the_next_window_is_not_ticked_under(world):
    """Its ttl was what was left of the window before: it would end inside this one."""
    ticks = []
    process = world.process("r1")
    loop = process.services.loop(Rhythm("reconcile", EVERY, ticks.append, HolderId("r1")))
    loop.step()
    window = window_at(world.clock.server_now(), EVERY)

    def slow(call):
        if call.name == "acquire":
            process.store.before = lambda _: None
            left = window.ends_at - world.clock.server_now()
            world.clock.advance(left.total_seconds() + 1)

    process.store.before = slow
    assert loop.step() == 0.0
    assert ticks == []
    assert world.store.live() == ()
    loop.step()
    assert [tick.window.number for tick in ticks] == [window.number + 1]


def test_a_tick_that_was_revoked_learns_of_it(world):
    def revoked(_, turn):
        from dibs.core.lease import Revocation

        world.store.revoke(loop_ref("reconcile"), Revocation(turn.run, "ada", "stop", force=True))
        turn.keeper.renew_now()
        with pytest.raises(LeaseLost):
            turn.check()

    replicas = Replicas(world, 1, revoked)
    replicas.go_on(10)
    assert replicas.ticks


def test_a_bad_tick_does_not_end_the_loop(world):
    def fails(_, turn):
        raise RuntimeError("one bad tick")

    replicas = Replicas(world, 2, fails)
    replicas.go_on(300)
    assert len(replicas.windows) in (10, 11)


def test_a_loop_needs_an_atomic_store_with_a_clock():
    with pytest.raises(BadConfiguration, match="comments"):
        Replicas(World("comments"), 1)


def test_windows_that_are_too_short_for_a_store_that_lingers_are_refused(world):
    class Lingers(type(world.store)):
        def lingers(self, ttl):
            return timedelta(seconds=2)

    world.store = Lingers(world.clock.server_now)
    process = world.process("r1")
    process.services.adapters.store = world.store

    def loop(every):
        return process.services.loop(Rhythm("reconcile", every, lambda _: None, HolderId("r1")))

    with pytest.raises(BadTtl, match="2s"):
        loop(timedelta(seconds=7))
    loop(timedelta(seconds=8))


def test_a_window_that_no_lease_fits_in_is_refused(world):
    with pytest.raises(BadTtl):
        Replicas(world, 1, every=timedelta(milliseconds=100))
