"""A handler that shows that it is alive: it writes the time of day over and over, deaf to SIGTERM.

    beater.py NAME [children]

Appends milliseconds since 1970 to NAME.RUN.beats, and its process id to NAME.pids; each child does
the same as NAME-child, in the same process group. Ends after a minute if nobody ends it.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path


def beat(name: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with Path(f"{name}.pids").open("a") as file:
        file.write(f"{os.getpid()}\n")
    with Path(f"{name}.{os.environ['DIBS_RUN']}.beats").open("a", buffering=1) as beats:
        for _ in range(6000):
            beats.write(f"{time.time_ns() // 1_000_000}\n")
            threading.Event().wait(0.01)


if __name__ == "__main__":
    if sys.argv[2:] and os.fork() == 0:
        beat(sys.argv[1] + "-child")
    else:
        beat(sys.argv[1])
