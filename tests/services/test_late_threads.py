"""Work that has to wait at first costs no thread if it is joined before."""

import os
import threading
from contextvars import ContextVar

import pytest

from dibs.adapters.system import LateThreads, SystemClock, SystemThread

WAIT_S = 60.0
"""For what comes soon, on however busy a machine."""


@pytest.fixture
def late():
    return LateThreads(SystemClock())


def never():
    raise AssertionError("no thread was wanting")


def started_by_now():
    return {thread.name for thread in threading.enumerate()}


def test_work_starts_within_its_time(late):
    ran = threading.Event()
    began_at = SystemClock().now()
    work = late.start_within(0.05, ran.set, "late", never)
    assert ran.wait(WAIT_S)
    assert SystemClock().now() - began_at >= 0.05
    work.join()


def test_work_that_is_joined_before_never_starts(late):
    ran, after = threading.Event(), threading.Event()
    for number in range(100):
        late.start_within(0.1, ran.set, f"joined-{number}", never).join()
    late.start_within(0.1, after.set, "after", never)
    assert after.wait(WAIT_S)
    assert not ran.is_set()
    assert not [name for name in started_by_now() if name.startswith("joined")]


def test_work_that_was_joined_before_its_time_may_be_joined_again_after(late):
    after = threading.Event()
    work = late.start_within(0.02, never, "joined", never)
    work.join()
    late.start_within(0.03, after.set, "after", never)
    assert after.wait(WAIT_S)
    again = threading.Thread(target=work.join, daemon=True)
    again.start()
    again.join(WAIT_S)
    assert not again.is_alive()


def test_handlers_find_nothing_of_the_work_before(late):
    """In-process handlers keep log contexts, sessions and event loops in both places."""
    kept, context, found = threading.local(), ContextVar("context", default="clean"), []

    def work():
        found.append((getattr(kept, "work", "clean"), context.get()))
        kept.work = "used"
        context.set("used")

    for _ in range(3):
        late.start(work, "job").join()
    assert found == [("clean", "clean")] * 3


def test_work_that_fails_takes_no_other_work_with_it(late, monkeypatch):
    told = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    late.start(never, "fails").join()
    done = threading.Event()
    late.start(done.set, "goes on").join()
    assert done.is_set()
    assert [arguments.exc_type for arguments in told] == [AssertionError]


def test_work_that_joins_itself_goes_on(late):
    made, joined = threading.Event(), threading.Event()

    def work():
        assert made.wait(WAIT_S)
        started.join()
        joined.set()

    started = late.start(work, "itself")
    made.set()
    assert joined.wait(WAIT_S)


def test_one_thread_waits_for_all_and_ends_with_the_last(late):
    began, alike = threading.Barrier(21, timeout=WAIT_S), "dibs-late-threads"
    before = sum(thread.name == alike for thread in threading.enumerate())
    works = [late.start_within(0.3, began.wait, "many", never) for _ in range(20)]
    assert sum(thread.name == alike for thread in threading.enumerate()) <= before + 1
    began.wait()
    for work in works:
        work.join()
    for thread in threading.enumerate():
        if thread.name == alike:
            thread.join(WAIT_S)
    assert late._looks_at is None
    again = threading.Event()
    late.start_within(0.01, again.set, "again", never)
    assert again.wait(WAIT_S)


def test_work_that_is_due_sooner_is_not_kept_waiting_by_other_work(late):
    long, short = threading.Event(), threading.Event()
    work = late.start_within(1.0, long.set, "long", never)
    late.start_within(0.02, short.set, "short", never)
    assert short.wait(WAIT_S)
    work.join()


def test_work_that_is_overdue_starts_at_once(late):
    ran = threading.Event()
    assert isinstance(late.start_within(-1.0, ran.set, "overdue", never), SystemThread)
    assert ran.wait(WAIT_S)


def test_a_join_waits_for_work_that_has_started(late):
    began, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work():
        began.set()
        go_on.wait(WAIT_S)
        done.set()

    started = late.start_within(0.01, work, "started", never)
    assert began.wait(WAIT_S)
    threading.Timer(0.05, go_on.set).start()
    started.join()
    assert done.is_set()


def test_work_without_a_thread_is_said_to_the_one_who_wanted_it(late, monkeypatch):
    told = threading.Event()
    late.start_within(0.05, never, "none", told.set)

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("dibs.adapters.system.SystemThread", refuse)
    assert told.wait(WAIT_S)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_of_a_fork_starts_its_own_work_and_not_its_parents(late):
    parents = threading.Event()
    work = late.start_within(0.5, parents.set, "parent's", never)
    child = os.fork()
    if child == 0:
        own = threading.Event()
        late.start_within(0.01, own.set, "own", never)
        os._exit(0 if own.wait(WAIT_S) and not parents.is_set() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    work.join()
