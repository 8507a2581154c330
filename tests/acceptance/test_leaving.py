"""SIGTERM finishes or gives back; the second one stops at once; no issue is stranded or blamed."""

import signal
import sys
from pathlib import Path

import pytest

from .harness import CLOCK, EITHER_LEASES, LEDGER, Child, Project, alive, pipeline, until
from .terms import AMPLE, BRISK

BEATER = f"exec '{sys.executable}' -S '{Path(__file__).with_name('beater.py')}' mine children"
WAITING = f'touch "started.$DIBS_STAGE"; until test -e go; do sleep 0.02; done; {LEDGER}'


def _pids(project: Project) -> list[int]:
    return [project.pid(name) for name in ("mine.pids", "mine-child.pids")]


def _noticed(child: Child) -> None:
    """Wait until the program itself has seen its signal.

    The kernel has handed it over, and the main thread has gone to sleep again several times since:
    two signals that meet inside the interpreter would be one.
    """
    until(lambda: int(_status(child, "ShdPnd"), 16) == 0, "the signal is delivered")
    asleep = int(_status(child, "voluntary_ctxt_switches"))
    until(
        lambda: int(_status(child, "voluntary_ctxt_switches")) >= asleep + 3,
        "the main thread goes on",
    )


def _status(child: Child, field: str) -> str:
    lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{field}:"))


def _assert_given_back(project: Project) -> None:
    assert project.labels() == {"stage:one"}
    assert project.endings() == [("#1", "one", "returned")]
    assert project.failed_attempts() == 0
    assert project.dibs("why", "1", "--json").data["claimable"] is True
    assert project.dibs("fsck").code == 0


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_a_long_handler_is_ended_after_the_grace_and_its_issue_given_back(
    project: Project, leases: str
) -> None:
    project.begin(pipeline(leases, one=BEATER, ttl=AMPLE, extra=BRISK), 1)
    worker = project.worker("leaver", "--grace", "1s")
    pids = _pids(project)
    asked_at = CLOCK.now()
    worker.signal(signal.SIGTERM)
    reply = worker.wait()  # not as long as the handler would have gone on
    assert (reply.code, reply.data["outcomes"]) == (0, {"returned": 1})
    assert CLOCK.now() - asked_at >= 1.0
    assert not any(alive(pid) for pid in pids)
    project.nobody_left()
    _assert_given_back(project)


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_a_short_handler_is_finished_first_and_nothing_more_is_claimed(
    project: Project, leases: str
) -> None:
    project.begin(pipeline(leases, one=WAITING, ttl=AMPLE), 2)
    worker = project.worker("leaver", "--grace", "60s")
    project.appears("started.one")
    worker.signal(signal.SIGTERM)
    _noticed(worker)
    (project.root / "go").touch()
    reply = worker.wait().quiet()
    assert (reply.code, reply.data["claimed"]) == (0, 1)
    assert reply.data["outcomes"] == {"advanced": 1}
    assert project.endings() == [("#1", "one", "advanced")]
    assert (project.labels(1), project.labels(2)) == ({"stage:two"}, {"stage:one"})
    assert project.ledger() == {("#1", "one"): 1}


@pytest.mark.parametrize("leases", EITHER_LEASES)
def test_a_second_sigterm_stops_at_once(project: Project, leases: str) -> None:
    project.begin(pipeline(leases, one=BEATER, ttl=AMPLE), 1)
    worker = project.worker("leaver", "--grace", "1h")
    pids = _pids(project)
    worker.signal(signal.SIGTERM)
    _noticed(worker)
    worker.signal(signal.SIGTERM)
    assert worker.wait().quiet().code == 130
    assert not any(alive(pid) for pid in pids)
    _assert_given_back(project)


def test_an_idle_worker_leaves_at_once_with_zero_or_as_interrupted(project: Project) -> None:
    project.begin(pipeline())
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        worker = project.worker("idle")
        until(lambda worker=worker: _catches(worker, signal.SIGTERM), "the worker is at work")
        worker.signal(number)
        assert worker.wait().quiet().code == code


def _catches(child: Child, number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for the signal."""
    return bool(int(_status(child, "SigCgt"), 16) & (1 << (number - 1)))


def test_several_jobs_are_all_given_back(project: Project) -> None:
    project.begin(pipeline(one='touch "on.$DIBS_ISSUE"; exec sleep 60', jobs=3, ttl=AMPLE), 4)
    worker = project.worker("leaver", "--grace", "0s")
    for number in (1, 2, 3):
        project.appears(f"on.#{number}")
    worker.signal(signal.SIGTERM)
    assert worker.wait().quiet().data["outcomes"] == {"returned": 3}
    assert sorted(project.endings()) == [(f"#{n}", "one", "returned") for n in (1, 2, 3)]
    assert not (project.root / "on.#4").exists()
    project.nobody_left()
