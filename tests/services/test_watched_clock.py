"""The clock of the worlds: it sees who has not had a turn yet, however long that takes."""

import _thread
import threading

import pytest

from .clock import WatchedClock

A_WHILE_S = 0.1
WAIT_S = 60.0


@pytest.fixture
def later():
    """Do something after a while of real time, in a thread that no clock made since counts."""
    started, done, actions = threading.Event(), threading.Event(), []

    def act():
        if started.wait(WAIT_S):
            done.wait(A_WHILE_S)
            for action in actions:
                action()

    thread = threading.Thread(target=act)
    thread.start()

    def ask(action):
        actions.append(action)
        started.set()

    yield ask
    started.set()
    thread.join(WAIT_S)


def test_time_does_not_move_under_a_thread_that_was_started_and_has_not_run(later, monkeypatch):
    clock, go, done = WatchedClock(patience_s=0.001), threading.Event(), threading.Event()
    worker = threading.Thread(target=done.set)
    starter = threading.Thread(target=lambda: (go.wait(WAIT_S), worker.start()))
    starter.start()
    turn, bootstrap = _thread.allocate_lock(), threading.Thread._bootstrap
    turn.acquire()

    def late(thread):
        with turn:
            bootstrap(thread)

    monkeypatch.setattr(threading.Thread, "_bootstrap", late)
    go.set()
    later(turn.release)
    assert clock.wait(done, 5), "time moved"
    assert clock.passed_s == 0
    for thread in (starter, worker):
        thread.join(WAIT_S)


def test_time_does_not_move_under_a_thread_that_was_woken_and_has_not_run(later):
    clock, bell, done = WatchedClock(patience_s=0.001), threading.Condition(), threading.Event()
    inside, ringing = threading.Event(), threading.Event()

    def sleep():
        with bell:
            inside.set()
            bell.wait(WAIT_S)
        done.set()

    def ring():
        inside.wait(WAIT_S)
        with bell:
            bell.notify()
            ringing.wait(WAIT_S)  # the woken one has to wait until the bell is let go

    threads = [threading.Thread(target=target) for target in (sleep, ring)]
    for thread in threads:
        thread.start()
    later(ringing.set)
    assert clock.wait(done, 5), "time moved"
    assert clock.passed_s == 0
    for thread in threads:
        thread.join(WAIT_S)


def test_time_moves_past_threads_that_wait_for_others_and_for_each_other():
    clock, never, over = WatchedClock(patience_s=0.001), threading.Event(), threading.Event()
    waiting = threading.Thread(target=lambda: over.wait(WAIT_S))
    joining = threading.Thread(target=lambda: waiting.join(WAIT_S))
    for thread in (waiting, joining):
        thread.start()
    assert not clock.wait(never, 5)
    assert clock.passed_s == 5
    over.set()
    for thread in (waiting, joining):
        thread.join(WAIT_S)


def test_time_that_is_passed_on_by_hand_has_done_its_work_when_that_returns():
    clock, stop, seen = WatchedClock(), threading.Event(), []

    def beat():
        while not clock.wait(stop, 10):
            sum(number * number for number in range(20_000))
            seen.append(clock.passed_s)

    threads = [threading.Thread(target=beat) for _ in range(3)]
    for thread in threads:
        thread.start()
    for beats in (1, 2, 3):
        clock.pass_on(10)
        assert seen == [10.0 * n for n in range(1, beats + 1) for _ in threads]
    stop.set()
    for thread in threads:
        thread.join(WAIT_S)


def test_who_passes_time_on_in_a_thread_of_its_own_is_waited_for_by_the_owner():
    clock, done, seen = WatchedClock(patience_s=0.001), threading.Event(), []

    def work():
        for _ in range(20):
            clock.pass_on(1)
            seen.append(clock.passed_s)
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    assert clock.wait(done, 1000)
    worker.join(WAIT_S)
    assert seen == [float(number) for number in range(1, 21)]
