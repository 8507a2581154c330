"""The clock of these tests: it moves when its owner waits, and never by itself."""

import subprocess
import sys
import threading
from datetime import timedelta

import pytest

from dibs.testing.clock import EPOCH, FakeClock


def test_time_stands_still_until_somebody_waits():
    clock = FakeClock()
    before = clock.now()
    assert clock.now() == before
    clock.sleep(2.5)
    assert clock.now() == before + 2.5
    assert clock.passed_s == 2.5


def test_server_time_goes_with_it_in_whole_grains():
    clock = FakeClock(grain=timedelta(seconds=1))
    assert clock.server_now() == EPOCH
    clock.advance(1.9)
    assert clock.server_now() == EPOCH + timedelta(seconds=1)


def test_local_time_cannot_be_mistaken_for_time_that_passed():
    assert FakeClock().now() != 0


def test_time_never_runs_backwards():
    clock = FakeClock()
    clock.sleep(-5)
    assert clock.passed_s == 0
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


def test_a_wait_ends_early_and_costs_nothing_if_the_event_is_set():
    clock, event = FakeClock(), threading.Event()
    assert not clock.wait(event, 3)
    assert clock.passed_s == 3
    event.set()
    assert clock.wait(event, 3)
    assert clock.passed_s == 3


def test_a_patient_wait_lets_another_thread_set_the_event_first():
    clock, event = FakeClock(patience_s=10), threading.Event()
    threading.Timer(0.01, event.set).start()
    assert clock.wait(event, 3600)
    assert clock.passed_s == 0


def test_another_thread_waits_until_the_owner_has_moved_time():
    clock, event, woken = FakeClock(), threading.Event(), []

    def wait():
        woken.append(clock.wait(event, 10))
        clock.sleep(5)
        woken.append("slept")

    thread = threading.Thread(target=wait)
    thread.start()
    for expected in (1, 2):
        while len(woken) < expected:
            clock.advance(1)
            threading.Event().wait(0.002)
    thread.join(10)
    assert woken == [False, "slept"]
    assert clock.passed_s >= 15


def test_another_thread_is_woken_by_its_event():
    clock, event, woken = FakeClock(), threading.Event(), []
    thread = threading.Thread(target=lambda: woken.append(clock.wait(event, 10)))
    thread.start()
    event.set()
    thread.join(10)
    assert woken == [True]
    assert clock.passed_s == 0


def test_the_owner_waits_for_whoever_is_at_work_and_not_for_those_who_wait_for_time():
    """However slow the machine is: time does not move under a thread that has not got there yet."""
    clock, done = FakeClock(patience_s=0.001), threading.Event()
    seen = []

    def work():
        sum(number * number for number in range(300_000))
        clock.sleep(5)
        seen.append(clock.passed_s)
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    assert not clock.wait(done, 5), "it sleeps, so time moves"
    assert clock.wait(done, 100), "it is awake, so time stands"
    worker.join()
    assert seen == [5.0]


COLLECTED_WHILE_IT_LOOKS = """
import gc, threading
from dibs.testing.clock import FakeClock

class Knot:
    def __init__(self):
        self.itself, self.own = self, threading.local()
        self.own.something = 1

clock, over = FakeClock(patience_s=0.001), threading.Event()
for within in range(1, 40):
    sleepers = [threading.Thread(target=over.wait) for _ in range(4)]
    for sleeper in sleepers:
        sleeper.start()
    gc.disable()
    gc.set_threshold(1_000_000)
    gc.collect()
    for _ in range(50):
        Knot()
    gc.set_threshold(gc.get_count()[0] + within)
    gc.enable()
    clock.wait(threading.Event(), 1)
    assert gc.isenabled()
    over.set()
    for sleeper in sleepers:
        sleeper.join()
    over.clear()
"""


def test_rubbish_that_is_collected_while_it_looks_at_others_does_not_stop_it():
    """It did, for good, on Python 3.11: a worker of `make test` stood still and heard no signal."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECTED_WHILE_IT_LOOKS],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
