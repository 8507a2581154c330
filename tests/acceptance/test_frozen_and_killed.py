"""A worker that is frozen or killed: its handler ends in time, and its late word counts nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.adapters.runners import warden
from dibs.adapters.system import SystemClock

from .harness import EITHER_LEASES, LEDGER, Child, Project, alive, frozen, pipeline, until
from .terms import AMPLE, BRISK, time_passes

BEATER = f"exec '{sys.executable}' -S '{Path(__file__).with_name('beater.py')}'"
# Says that it is there, waits to be let go on, and then completes its step.
WAITING = f'touch "started.$DIBS_STAGE"; until test -e go; do sleep 0.02; done; {LEDGER}'
# With a lease that ends far away: from SIGTERM to SIGKILL in less than a second.
SOON = "margin = '1s'"
# SIGKILL comes after four fifths of the margin: a busy machine has more than half a second for it.
REAL_TTL, REAL_MARGIN = "9s", "margin = '2900ms'"


def _freeze(project: Project, worker: Child) -> None:
    """Stop it between two writes: one stopped inside a write keeps SQLite's file locked."""

    def stands_still() -> bool:
        worker.signal(signal.SIGSTOP)
        until(lambda: frozen(worker.pid), "the worker stands still")
        if project.writable():
            return True
        worker.signal(signal.SIGCONT)
        return False

    until(stands_still, "the worker stands still outside a write")


def _beats(project: Project, name: str, run: str) -> list[int]:
    return [int(line) for line in project.lines(f"{name}.{run}.beats")]


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_a_sleeper_that_wakes_after_its_lease_is_refused(project: Project, leases: str) -> None:
    project.begin(pipeline(leases, one=WAITING, ttl=AMPLE, extra=BRISK), 1)
    sleeper = project.worker("sleeper")
    project.appears("started.one")
    [first] = project.seen("handler_started")
    _freeze(project, sleeper)
    (project.root / "go").touch()
    until(project.lines, "the sleeper's handler completes while the worker is frozen")

    time_passes(project)
    project.drain()
    [second] = project.events("claimed", stage="one", holder="healthy")
    assert project.events("advanced", stage="one", run=second["run"]) != []

    sleeper.signal(signal.SIGCONT)
    [refused] = project.seen("finish_refused")
    assert refused["run"] == first["run"]
    assert refused["fence"] == first["fence"] < second["fence"]
    sleeper.signal(signal.SIGTERM)
    assert sleeper.wait().quiet().data["outcomes"] == {"refused": 1}
    project.assert_drained(1)
    assert project.ledger() == {("#1", "one"): 2, ("#1", "two"): 1}
    assert len(project.events("finish_refused")) == 1


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_a_frozen_workers_handler_is_gone_before_its_lease_is(
    project: Project, leases: str
) -> None:
    first_beats = f"if mkdir taken 2>/dev/null; then {BEATER} old children; fi; {BEATER} new"
    project.begin(pipeline(leases, one=first_beats, ttl=REAL_TTL, extra=REAL_MARGIN), 1)
    sleeper = project.worker("sleeper")
    project.pid("old-child.pids")
    project.pid("old.pids")
    [first] = project.seen("handler_started")
    project.seen("renewed", run=first["run"])
    _freeze(project, sleeper)
    expires_ms = _expiry_ms(project, leases)

    other = project.worker("other")
    [second] = project.seen("handler_started", holder="other")
    until(lambda: _beats(project, "new", second["run"]), "the next holder's handler beats")
    for name in ("old", "old-child"):
        last = _beats(project, name, first["run"])[-1]
        assert last < expires_ms
        assert last < _beats(project, "new", second["run"])[0]
        assert not alive(project.pid(f"{name}.pids"))
    assert second["fence"] > first["fence"]

    sleeper.signal(signal.SIGCONT)
    assert [event["run"] for event in project.seen("finish_refused")] == [first["run"]]
    assert other.running
    assert project.endings() == []


def _expiry_ms(project: Project, leases: str) -> int:
    """When the present lease ends, in the database's milliseconds."""
    if leases == "auto":
        [(expires_ms,)] = project.sql("SELECT expires_at FROM leases")
        return int(expires_ms)
    [(updated_ms,)] = project.sql("SELECT updated_at FROM comments")
    [card] = project.cards()
    return int(updated_ms) + round(card.ttl.total_seconds() * 1000)


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_a_killed_workers_handler_dies_with_its_whole_group(project: Project, leases: str) -> None:
    project.begin(pipeline(leases, one=f"{BEATER} mine children", ttl="10m", extra=SOON), 1)
    worker = project.worker("doomed")
    pids = [project.pid(name) for name in ("mine.pids", "mine-child.pids")]
    assert all(alive(pid) for pid in pids)
    worker.signal(signal.SIGKILL)
    assert worker.wait().code == -signal.SIGKILL
    until(lambda: not any(alive(pid) for pid in pids), "handler and grandchild end")
    project.nobody_left()
    assert project.endings() == []


def test_a_killed_warden_takes_the_group_with_it_and_the_issue_goes_back(project: Project) -> None:
    project.begin(pipeline(one=f"{BEATER} mine children", ttl="10m", extra=SOON), 1)
    worker = project.worker("worker", "--once")
    handler = project.pid("mine.pids")
    child = project.pid("mine-child.pids")
    warden = _parent(handler)
    assert _parent(warden) == worker.pid
    os.kill(warden, signal.SIGKILL)
    until(lambda: not (alive(handler) or alive(child)), "the group ends with its warden")
    assert worker.wait().quiet().data["outcomes"] == {"returned": 1}
    assert project.endings() == [("#1", "one", "returned")]
    assert project.labels() == {"stage:one"}
    assert project.failed_attempts() == 0


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_what_a_finished_handler_left_running_is_ended(project: Project) -> None:
    """A step is over when its lease is: no background process goes on without one."""
    left = f"({BEATER} left) & until test -e left.pids; do sleep 0.02; done; {LEDGER}"
    project.begin(pipeline(one=left, ttl=AMPLE), 1)
    project.drain()
    project.assert_drained(1)
    assert not alive(project.pid("left.pids"))
    project.nobody_left()


def test_a_handler_whose_worker_is_dead_before_it_starts_is_ended_all_the_same() -> None:
    """Its warden ends a group: it waits until the handler has one."""
    for _ in range(30):
        (orders, worker), (heard, told) = os.pipe(), os.pipe()
        os.close(worker)
        until_s = str(SystemClock().now() + 600)
        words = [str(orders), str(told), "0.05", until_s, "-1", "-1", "0", "", "--", "sleep", "600"]
        started = subprocess.Popen(
            [sys.executable, "-I", "-S", warden.__file__, *words],
            pass_fds=(orders, told),
            start_new_session=True,
        )
        os.close(orders)
        os.close(told)
        try:
            started.wait(60)
        finally:
            os.close(heard)
