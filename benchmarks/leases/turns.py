"""What one process of a crowd does: wait for the key, hold it, give it back, stay away, come again.

Apart from `contention`, which starts and judges the crowd, so that a process imports little.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.crew import Start
from benchmarks.leases.contenders import Contender

Opens = Callable[[str], AbstractContextManager[Contender]]
_WARMING = 10


@dataclass(frozen=True, slots=True)
class Plan:
    tally: Path
    """Grows by a byte with each grant, so that all know when to stop and no server is asked."""
    grants: int
    hold_s: float = 0.0
    away_s: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Turn:
    granted_at: float
    """When acquire returned."""
    released_at: float
    """When release was called."""
    fence: int | None


@dataclass(frozen=True, slots=True)
class Part:
    turns: tuple[Turn, ...]
    asked: int


def take_part(start: Start, opens: Opens, url: str, plan: Plan) -> Part:
    """A job for `benchmarks.crew`."""
    with opens(url) as contender:
        own = f"own-{os.getpid()}"
        for _ in range(_WARMING):  # connected, scripts known, statements prepared
            contender.acquire(own)
            contender.release(own)
        start()
        before = contender.asked
        return Part(tuple(_turns(contender, plan)), contender.asked - before)


def _turns(contender: Contender, plan: Plan) -> Iterator[Turn]:
    tally = os.open(plan.tally, os.O_WRONLY | os.O_APPEND)
    try:
        while os.fstat(tally).st_size < plan.grants:
            fence = contender.acquire("crowd")
            granted_at = time.perf_counter()
            os.write(tally, b".")
            _pause(plan.hold_s)
            released_at = time.perf_counter()
            contender.release("crowd")
            yield Turn(granted_at, released_at, fence)
            _pause(random.uniform(*plan.away_s))
    finally:
        os.close(tally)


def _pause(seconds: float) -> None:
    if seconds:
        threading.Event().wait(seconds)
