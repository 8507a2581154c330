"""A process that asks a ledger for leave again and again, and says what it was told.

`python -m tests.github.asker FILE MOST SECONDS`: asks once, waits for a line, and then asks for so
long, and until it was refused many times in a row; prints when it was let through, by the uptime.
"""

import sys
from pathlib import Path

from dibs.adapters.github.ledger import FileLedger
from dibs.adapters.github.limits import Kind, Limits, Purpose
from dibs.adapters.system import SystemClock

_MANY = 20


def main(place: str, most: int, seconds: float) -> None:
    clock = SystemClock()
    # However busy the machine is: who does not get the file in time goes by what it knew last.
    limits = Limits(creations_a_minute=most)
    ledger = FileLedger(Path(place), clock, limits)
    ledger._tries = 30_000
    first = ledger.admit(Kind.REST_CREATE, Purpose.HOLD)
    print("ready" if first is None else "refused", flush=True)
    sys.stdin.readline()
    until, in_a_row = clock.now() + seconds, 0
    while clock.now() < until or in_a_row < _MANY:
        if ledger.admit(Kind.REST_CREATE, Purpose.HOLD) is None:
            in_a_row = 0
            print(repr(clock.now()), flush=True)
        else:
            in_a_row += 1
            clock.sleep(0.005)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
