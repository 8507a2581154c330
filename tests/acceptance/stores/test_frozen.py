"""A holder is frozen after its check and before its write, and wakes when another holds the lease.

No check can prevent that write; the fence, compared where it is written, refuses it.
"""

import contextlib
from pathlib import Path

import pytest

from acceptance.harness import CLOCK, until

from . import data
from .places import Place
from .processes import Company, Process
from .writing import address_of

pytestmark = pytest.mark.long

TTL = "4s"
TTL_S = 4.0

# Where the leases are, and where what they protect is.
PAIRS = [
    *(("sqlite", "sqlite"), ("redis", "redis"), ("postgres", "postgres")),
    *(("redis", "sqlite"), ("etcd", "postgres")),
]


@pytest.fixture
def written(request: pytest.FixtureRequest, tmp_path: Path):
    """The number that everybody writes: its address."""
    address = address_of(request.param, tmp_path)
    with contextlib.closing(data.reach(address)) as number:
        number.make()
        yield address


def _value(address: str) -> int:
    with contextlib.closing(data.reach(address)) as number:
        return number.read()


def _freeze_before_a_write(holder: Process, to: str, number: int, *, bare: bool = False) -> float:
    """The time at which it stood still: it has checked, and nothing is left but to write."""
    holder.tell("check_freeze_write", to=to, number=number, bare=bare)
    holder.await_frozen()
    return CLOCK.now()


@pytest.mark.parametrize(("place", "written"), PAIRS, indirect=True)
def test_a_write_after_the_lease_is_refused(place: Place, company: Company, written: str) -> None:
    sleeper = company.actor("sleeper", place.url())
    other = company.actor("other", place.url())
    first = sleeper.ask("hold", name="resource", ttl=TTL)
    assert sleeper.ask("stamp", to=written) == ["Applied"]
    assert sleeper.ask("write", to=written, number=1) == ["Applied"]
    frozen_at = _freeze_before_a_write(sleeper, written, 666)

    second = other.ask("hold", name="resource", ttl="30s", wait="30s")
    assert second["fence"] > first["fence"]
    assert other.ask("stamp", to=written) == ["Applied"]  # it has written nothing yet

    until(lambda: CLOCK.now() > frozen_at + TTL_S, "it has slept for longer than its ttl")
    sleeper.wake()
    assert sleeper.hear() == ["Stale", second["fence"]]
    assert _value(written) == 1
    stopped = sleeper.ask("stopped")
    assert stopped["lost"]
    # The holder writes as often as it likes under the one fence it has.
    for number in (2, 3):
        assert other.ask("write", to=written, number=number) == ["Applied"]
        assert sleeper.ask("write", to=written, number=666) == ["Stale", second["fence"]]
    assert _value(written) == 3
    sleeper.ask("release")
    assert not other.ask("condition")["lost"]


@pytest.mark.parametrize(("place", "written"), [("redis", "redis")], indirect=True)
def test_without_a_fence_that_write_would_have_gone_through(
    place: Place, company: Company, written: str
) -> None:
    """So that it is known that the test above tests something."""
    sleeper = company.actor("sleeper", place.url())
    other = company.actor("other", place.url())
    sleeper.ask("hold", name="resource", ttl=TTL)
    _freeze_before_a_write(sleeper, written, 666, bare=True)
    other.ask("hold", name="resource", ttl="30s", wait="30s")
    assert other.ask("write", to=written, number=2) == ["Applied"]
    sleeper.wake()
    sleeper.hear()
    assert _value(written) == 666
