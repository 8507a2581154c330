"""One of two processes with many threads that want one hold.

    threads.py FOLDER LEASES NAME INSIDE THREADS TIMES

Whoever is inside makes the file INSIDE, which must not be there, and takes it away again. Says when
each was inside, by the machine's local clock.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dibs
from dibs.adapters.system import SystemClock

CLOCK = SystemClock()


def enter(backlog: dibs.Dibs, inside: Path) -> tuple[int, float, float]:
    with backlog.hold("room", ttl="30s", wait="100s") as hold:
        came_at = CLOCK.now()
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
        os.sched_yield()  # if anybody else may come in, let them
        hold.check()
        inside.unlink()
        return hold.fence, came_at, CLOCK.now()


def main() -> None:
    folder, leases, name, inside, threads, times = sys.argv[1:]
    with (
        dibs.open(Path(folder), leases=leases, holder=name) as backlog,
        ThreadPoolExecutor(int(threads)) as crowd,
    ):
        print(json.dumps("ready"), flush=True)
        sys.stdin.readline()
        entries = [
            crowd.submit(enter, backlog, Path(inside)) for _ in range(int(threads) * int(times))
        ]
        print(json.dumps([entry.result() for entry in entries]), flush=True)


if __name__ == "__main__":
    main()
