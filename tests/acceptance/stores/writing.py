"""Fresh places to write to, on the servers of the test process."""

import itertools
import os
from functools import cache
from pathlib import Path

from tests.servers.postgres import postgres
from tests.servers.valkey import Valkey

_names = (f"numbers_{os.getpid()}_{number}" for number in itertools.count(1))


@cache
def _quick_valkey() -> Valkey:
    """Not the one with the leases: it syncs nothing, and it is not killed."""
    return Valkey(persistent=False)


def address_of(kind: str, folder: Path) -> str:
    """Of a number that is not there yet: see `data`."""
    match kind:
        case "sqlite":
            return f"sqlite:{folder / 'numbers.db'}"
        case "postgres":
            return f"{postgres().url()}/{next(_names)}"
        case "redis":
            return f"{_quick_valkey().url()}/{next(_names)}"
        case _:
            raise AssertionError(f"nothing is written to {kind} here")
