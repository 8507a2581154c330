"""Work that keeps the interpreter busy: renewal goes on, or the loss is found before the write."""

import contextlib
import ctypes
import sys

import pytest

import dibs

from .harness import CLOCK, LEASES, Project, pipeline, until

pytestmark = pytest.mark.long

TTL = "3s"
TTL_S = 3.0
# A lease that is never lost is renewed before nine tenths of its ttl are over: so often, at least.
LONG_S, BEATS = 2.8 * TTL_S, 3


def _busy(seconds: float) -> int:
    """Pure Python without a pause: the interpreter switches threads only when it wants to."""
    until_at, rounds = CLOCK.now() + seconds, 0
    while CLOCK.now() < until_at:
        rounds += sum(number * number for number in range(2000))
    return rounds


def _hog(seconds: float) -> None:
    """C code that never lets go of the interpreter: no other thread runs meanwhile."""
    ctypes.PyDLL(None).usleep(round(seconds * 1_000_000))


@pytest.mark.parametrize("leases", LEASES)
def test_a_lease_is_kept_while_python_computes_for_more_than_two_ttls(
    project: Project, leases: str
) -> None:
    project.begin(pipeline(leases, ttl=TTL), 1)
    with dibs.open(project.root) as backlog, backlog.lease(1) as lease:
        assert _busy(LONG_S) > 0
        lease.check()
        lease.advance()
    assert len(project.events("renewed")) >= BEATS
    assert project.endings() == [("#1", "one", "advanced")]
    assert project.events("lease_lost") == []


@pytest.mark.parametrize("leases", LEASES)
def test_a_lease_that_ran_out_under_c_code_is_known_to_be_lost_before_the_next_write(
    project: Project, leases: str
) -> None:
    """Nothing can renew it in this process. What counts is that the next check says so."""
    project.begin(pipeline(leases, ttl=TTL), 1)
    written: list[int] = []
    told: list[str] = []

    def write(lease: dibs.HeldLease) -> None:
        lease.check()
        written.append(lease.fence)

    with (
        dibs.open(project.root) as backlog,
        contextlib.suppress(dibs.LeaseLost),
        backlog.lease(1) as lease,
    ):
        lease.on_lost(told.append)
        write(lease)
        _hog(1.2 * TTL_S)
        with pytest.raises(dibs.LeaseLost):
            write(lease)
        with pytest.raises(dibs.LeaseLost):
            lease.advance()
        until(lambda: told, "the callback")
    assert len(written) == 1, "the write after the loss landed"
    assert project.endings() == []
    project.drain()
    project.assert_drained(1)


@pytest.mark.parametrize("leases", LEASES)
def test_a_handler_in_a_process_of_its_own_may_hog_that_one(project: Project, leases: str) -> None:
    """Its worker renews all the while: C-heavy work belongs in a command or module:function."""
    hog = f"import ctypes; ctypes.PyDLL(None).usleep({LONG_S * 1_000_000:.0f})"
    project.begin(pipeline(leases, one=f"exec '{sys.executable}' -S -c '{hog}'", ttl=TTL), 1)
    project.drain()
    project.assert_drained(1)
    [claimed] = project.events("claimed", stage="one")
    assert len(project.events("renewed", run=claimed["run"])) >= BEATS
    assert project.events("lease_lost") == []
