"""Virtual time: who runs when, what a freeze and a death do, and that nothing depends on luck."""

import threading

import pytest

from dibs_lab.sim.fibres import Killed, Process, Simulation, microseconds


@pytest.fixture
def simulation():
    return Simulation()


def test_fibres_run_in_the_order_of_the_times_they_wait_for(simulation):
    process, told = Process(simulation, "p"), []

    def wait(name, seconds):
        process.sleep(seconds)
        told.append((name, simulation.passed_s))

    for name, seconds in (("late", 3.0), ("early", 1.0), ("middle", 2.0)):
        process.start(lambda name=name, seconds=seconds: wait(name, seconds), name)
    simulation.run(microseconds(10))
    assert told == [("early", 1.0), ("middle", 2.0), ("late", 3.0)]


def test_those_that_wait_for_the_same_moment_run_in_the_order_they_came(simulation):
    process, told = Process(simulation, "p"), []
    for number in range(5):
        process.start(lambda number=number: (process.sleep(1.0), told.append(number)), "f")
    simulation.run(microseconds(2))
    assert told == [0, 1, 2, 3, 4]


def test_any_wait_at_all_moves_the_clock(simulation):
    process = Process(simulation, "p", clock_offset_s=0.3)

    def wait_until():
        until = process.now() + 1.0
        while (left_s := until - process.now()) > 0:
            process.sleep(left_s)

    process.start(wait_until, "f")
    simulation.run(microseconds(5), over=lambda: not process.fibres)
    assert not process.fibres


def test_an_event_ends_a_wait_at_the_instant_it_is_set(simulation):
    process, event, told = Process(simulation, "p"), threading.Event(), []

    def waiter():
        told.append((process.wait(event, 60.0), simulation.passed_s))

    def setter():
        process.sleep(2.5)
        event.set()

    process.start(waiter, "waiter")
    process.start(setter, "setter")
    simulation.run(microseconds(100))
    assert told == [(True, 2.5)]


def test_a_wait_that_nobody_ends_is_over_in_time(simulation):
    process, told = Process(simulation, "p"), []
    process.start(lambda: told.append(process.wait(threading.Event(), 4.0)), "f")
    simulation.run(microseconds(100))
    assert told == [False]


def test_a_join_waits_for_the_end_and_never_for_itself(simulation):
    process, told = Process(simulation, "p"), []
    helper = process.start(lambda: process.sleep(3.0), "helper")

    def main():
        helper.join()
        told.append(simulation.passed_s)
        simulation.running.join()
        told.append("alive")

    process.start(main, "main")
    simulation.run(microseconds(10))
    assert told == [3.0, "alive"]


def test_a_frozen_process_runs_nothing_and_does_not_notice(simulation):
    frozen, other, told = Process(simulation, "frozen"), Process(simulation, "other"), []

    def tick(process):
        for _ in range(3):
            process.sleep(1.0)
            told.append((process.name, simulation.passed_s))

    frozen.start(lambda: tick(frozen), "f")
    other.start(lambda: tick(other), "f")
    frozen.freeze(5.0)
    simulation.run(microseconds(20))
    assert [at for name, at in told if name == "other"] == [1.0, 2.0, 3.0]
    assert [at for name, at in told if name == "frozen"] == [6.0, 7.0, 8.0]


def test_a_dead_process_says_nothing_more_not_even_while_cleaning_up(simulation):
    process, told = Process(simulation, "p"), []

    def careful():
        try:
            process.sleep(10.0)
        finally:
            told.append("cleaning up")
            process.sleep(1.0)  # refused: there is nobody who could wait
            told.append("never")

    process.start(careful, "careful")
    process.start(lambda: (process.sleep(1.0), process.die()), "fatal")
    simulation.run(microseconds(50))
    assert told == ["cleaning up"]
    assert not process.fibres
    with pytest.raises(Killed):
        process.start(lambda: None, "too late")


def test_no_ordinary_handler_catches_a_death(simulation):
    process, told = Process(simulation, "p"), []

    def stubborn():
        while True:
            try:
                process.sleep(1.0)
            except Exception:  # noqa: BLE001 - the point of the test
                told.append("caught")

    process.start(stubborn, "f")
    simulation.run(microseconds(3))
    process.kill()
    assert told == []
    assert not process.fibres


def test_clocks_differ_between_processes_and_the_servers_is_its_own(simulation):
    ahead = Process(simulation, "ahead", clock_offset_s=3600.0)
    behind = Process(simulation, "behind", clock_offset_s=-3600.0)
    assert ahead.now() - behind.now() == 7200.0
    before = simulation.server_now()
    ahead.start(lambda: ahead.sleep(5.0), "f")
    simulation.run(microseconds(5))
    assert (simulation.server_now() - before).total_seconds() == 5.0
