"""A handler that shows by the machine's local clock that it is alive, deaf to SIGTERM.

Writes its id into `pid`, and over and over the time into `beats`. Ends after a minute if nobody
ends it.
"""

import os
import signal
import threading
import time
from pathlib import Path

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path("pid").write_text(f"{os.getpid()}\n")
    with Path("beats").open("a", buffering=1) as beats:
        for _ in range(6000):
            beats.write(f"{time.clock_gettime(time.CLOCK_BOOTTIME)}\n")
            threading.Event().wait(0.01)
