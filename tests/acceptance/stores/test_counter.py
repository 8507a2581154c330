"""Sixteen processes count up one number a thousand times each: sixteen thousand, exactly."""

import contextlib
import random
import signal
from pathlib import Path

import pytest

from acceptance.harness import CLOCK, until
from dibs.core.named import hold_ref
from dibs.ports.leases import LeaseStore

from . import data
from .places import Place
from .processes import Company, Process
from .writing import address_of

pytestmark = pytest.mark.long

PROCESSES, TIMES = 16, 1000
PLAIN_BATCH, HELD_BATCH = 10, 25
"""Counts under one lease, so that two busy cores are done in time: 1,600 and 640 are fought for."""
REF = hold_ref("counter", 1)
TTL_S = 1.5
ROUNDS = 5
DONE = "everybody is done"


def _start(company: Company, place: Place, number: str, batch: int, ttl: str) -> dict[str, Process]:
    crowd = {}
    for one in range(PROCESSES):
        name = f"counter-{one}"
        words = (place.url(), name, number, str(TIMES), str(batch), ttl)
        crowd[name] = company.start("counter.py", name, *words)
    for process in crowd.values():
        assert process.hear() == "ready"
    for process in crowd.values():
        process.tell("go")
    return crowd


@pytest.mark.parametrize("place", ["sqlite", "redis", "postgres"], indirect=True)
def test_a_number_that_nothing_but_the_lease_protects(
    place: Place, company: Company, tmp_path: Path
) -> None:
    number = tmp_path / "number"
    number.write_bytes(data.digits(0))
    crowd = _start(company, place, f"file:{number}", PLAIN_BATCH, ttl="60s")
    said = [process.hear() for process in crowd.values()]
    assert int(number.read_bytes()) == PROCESSES * TIMES
    assert sum(one["leased"] for one in said) == PROCESSES * TIMES // PLAIN_BATCH
    assert sum(one["from another"] for one in said) > 4 * PROCESSES, (
        "they got in between each other"
    )


@pytest.mark.parametrize("place", ["sqlite", "redis", "postgres"], indirect=True)
def test_a_number_that_the_fence_protects_from_holders_that_oversleep(
    place: Place, company: Company, tmp_path: Path
) -> None:
    """Nobody checks before writing. What a sleeper writes is refused, and done again by it."""
    address = address_of(place.kind, tmp_path)
    with contextlib.closing(data.reach(address)) as number:
        number.make()
        crowd = _start(company, place, address, HELD_BATCH, ttl=f"{TTL_S}s")
        pauses = Pauses(crowd, place.open())
        for _ in range(ROUNDS):
            pauses.disturb()
        said = [process.hear() for process in crowd.values()]
        assert number.read() == PROCESSES * TIMES
    assert pauses.overtaken > 0, "a holder slept while another got the lease"
    assert sum(one["refused"] for one in said) > 0, "a late write was refused"


class Pauses:
    """Freezes the holder and somebody else, drawn by lot, for longer than the lease."""

    def __init__(self, crowd: dict[str, Process], store: LeaseStore) -> None:
        self._crowd, self._store = crowd, store
        self._lots = random.Random(7)
        self.overtaken = 0
        """How often another held the lease while its holder slept."""

    def disturb(self) -> None:
        """Until they have overslept; or not at all, if everybody is done."""
        holder = until(
            lambda: self._freeze_the_holder() if self._counting() else DONE,
            "somebody is frozen while it holds the lease",
        )
        if holder is DONE:
            return
        sleepers = {holder, self._freeze_any()}
        over_at = CLOCK.now() + 1.2 * TTL_S
        until(lambda: CLOCK.now() > over_at, "they have slept for longer than the ttl")
        self.overtaken += self._holder() not in sleepers
        for name in sleepers:
            self._crowd[name].wake()

    def _freeze_the_holder(self) -> str | None:
        """It has to be frozen before it can be asked whether it is the holder."""
        name = self._freeze_any()
        if self._holder() == name:
            return name
        self._crowd[name].wake()
        return None

    def _freeze_any(self) -> str:
        name = self._lots.choice(self._counting() or list(self._crowd))
        self._crowd[name].signal(signal.SIGSTOP)
        return name

    def _counting(self) -> list[str]:
        return [name for name, process in self._crowd.items() if process.running]

    def _holder(self) -> str | None:
        record = self._store.read(REF)
        return record.lease.holder if record is not None and record.live else None
