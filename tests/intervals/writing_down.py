"""What the holders have in common: their orders, their log, and the end that they are asked for."""

import os
import random
import signal
import sys

import msgspec
from msgspec import Struct
from tests.servers.process import die_with_parent

from dibs.adapters.system import SystemClock

from .judging import Record

CLOCK = SystemClock()


class Orders(Struct, frozen=True):
    """The one argument of a holder's program."""

    leases: str
    """The address of the store; empty: that of the folder's dibs.toml."""
    folder: str
    who: str
    names: tuple[str, ...]
    by_issue: bool
    """Whether the names are issues of the folder's backlog."""
    ttl_s: float
    log: str
    seed: int


class Holder:
    """A process that takes leases in turn until SIGTERM."""

    def __init__(self) -> None:
        die_with_parent()
        self.orders = msgspec.json.decode(sys.argv[1], type=Orders)
        self.dice = random.Random(self.orders.seed)
        self.stopped = False
        self._log = os.open(self.orders.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        # No event: its lock may be held by the very thread that the handler interrupts.
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.stopped = True

    def note(self, record: Record) -> None:
        """In one write, so that a kill leaves at most the last line incomplete."""
        os.write(self._log, msgspec.json.encode(record) + b"\n")
