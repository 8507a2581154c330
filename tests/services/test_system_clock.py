"""The machine's clock as leases need it: monotonic, and going on while the machine sleeps."""

import threading
import time

import pytest

from dibs.adapters.system import SystemClock, uptime_ms

from .world import TTL_S, World


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux tells them apart")
def test_local_time_counts_the_time_that_the_machine_is_suspended():
    """CLOCK_MONOTONIC stands still during suspend, and a laptop would believe its old leases."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = SystemClock().now()
    assert before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_all_processes_of_a_machine_read_the_same_uptime():
    assert 0 <= uptime_ms() - int(SystemClock().now() * 1000) <= 1000


def test_a_wait_ends_with_its_event_and_never_lasts_a_negative_time():
    event = threading.Event()
    clock = SystemClock()
    clock.sleep(-1)
    assert not clock.wait(event, -1)
    event.set()
    assert clock.wait(event, 60)


def test_a_machine_that_slept_through_its_lease_knows_it_on_waking(world: World):
    """No thread ran meanwhile: the first thing the holder does is to look at the clock."""
    process = world.process()
    keeper = process.hold(world.add())
    written = len(process.tracker.written)
    world.clock.advance(120 * TTL_S)
    assert keeper.remaining_s() == 0.0
    assert keeper.beat() is None
    assert len(process.tracker.written) == written
