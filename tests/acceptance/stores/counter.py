"""One of many processes that count up one number, under one lease.

    counter.py FOLDER LEASES NAME NUMBER TIMES BATCH TTL

NUMBER is a plain file (`file:PATH`), which nothing protects but the lease, asked of the store
itself; or a number that is guarded by the fence (see `data`), counted under a hold. Counts as often
as it was told, in leases of a few counts each, and says what came of it. What was refused is done
again under a new lease.
"""

import contextlib
import json
import os
import random
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import data
import dibs
from dibs.adapters.system import SystemClock
from dibs.core.durations import parse_duration
from dibs.core.ids import Fence, HolderId, RunId
from dibs.core.lease import Bid, Busy, Ending, Granted, Outcome
from dibs.core.named import HOLD_STAGE, hold_ref
from dibs.services.resuming import LeaseWaiter

REF = hold_ref("counter", 1)
PATIENCE_S = 600
THINKING_S = 0.02
"""At most so long between two leases, so that others get in between."""


class PlainFile:
    """Read, add one, write: whoever does that at the same time as another loses a count."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR)

    def enter(self, _: Fence) -> bool:
        return True

    def count(self, _: Fence) -> bool:
        number = int(os.pread(self._file, data.DIGITS, 0))
        os.sched_yield()  # if anybody else is inside, it shows
        os.pwrite(self._file, data.digits(number + 1), 0)
        return True


class Guarded:
    """The same, and nobody asks whether the lease still stands: the fence is what protects."""

    def __init__(self, address: str) -> None:
        self._number = data.reach(address)

    def enter(self, fence: Fence) -> bool:
        """Stamped first: from here on nobody before us writes, so what is read next stays true."""
        return data.applied(self._number.stamp(fence))

    def count(self, fence: Fence) -> bool:
        return data.applied(self._number.write(self._number.read() + 1, fence))


@contextlib.contextmanager
def held(backlog: dibs.Dibs, ttl: str) -> Iterator[Fence]:
    """As everybody does it."""
    with backlog.hold("counter", ttl=ttl, wait=timedelta(seconds=PATIENCE_S)) as hold:
        yield hold.fence


@contextlib.contextmanager
def leased(store: Any, name: str, turn: int, ttl: str) -> Iterator[Fence]:
    """The bare store: nothing is renewed, so the ttl must be long enough."""
    bid = Bid(REF, RunId(f"{name}-{turn}"), HolderId(name), HOLD_STAGE, parse_duration(ttl))
    waiting = LeaseWaiter(store, SystemClock(), random.Random())
    while isinstance(told := store.acquire(bid), Busy):
        waiting.pause(REF, told.record.remaining, PATIENCE_S)
    assert isinstance(told, Granted), told
    yield told.lease.fence
    store.release(told.lease, Ending(Outcome.CONCEDED))


class Counting:
    def __init__(self, number: PlainFile | Guarded, times: int, batch: int) -> None:
        self._number, self._batch = number, batch
        self.left, self._last = times, Fence(0)
        self.said = {"leased": 0, "refused": 0, "from another": 0}

    def work(self, fence: Fence) -> None:
        """As much as one lease is for."""
        self.said["leased"] += 1
        self.said["from another"] += fence != self._last + 1
        self._last = fence
        allowed = self._number.enter(fence)
        for _ in range(min(self._batch, self.left)):
            allowed = allowed and self._number.count(fence)
            self.left -= allowed
        self.said["refused"] += not allowed


def main() -> None:
    folder, leases, name, address, times, batch, ttl = sys.argv[1:]
    plain = address.startswith("file:")
    number = PlainFile(address.removeprefix("file:")) if plain else Guarded(address)
    counting = Counting(number, int(times), int(batch))
    with dibs.open(Path(folder), leases=leases, holder=name) as backlog:
        store = backlog._services.adapters.store
        print(json.dumps("ready"), flush=True)
        sys.stdin.readline()
        clock, never, dice = SystemClock(), threading.Event(), random.Random()
        while counting.left:
            clock.wait(never, dice.uniform(0, THINKING_S))
            turn = counting.said["leased"]
            with leased(store, name, turn, ttl) if plain else held(backlog, ttl) as fence:
                counting.work(fence)
    print(json.dumps(counting.said), flush=True)


if __name__ == "__main__":
    main()
