"""A process that executes a chain and dies where it is told to.

python -m tests.worktrees.doomed_chain PLACE STEP N
"""

import os
import signal
import sys
from pathlib import Path

from dibs.worktrees import CrossRepoPRChain

from .features import chain_in, planned, targets


def main(place: str, fatal: str, times: str, host: str = "") -> None:
    passed = []

    def reached(step) -> None:
        passed.append(step)
        if step.value == fatal and passed.count(step) == int(times):
            os.kill(os.getpid(), signal.SIGKILL)

    chain = chain_in(Path(place), reached=reached)
    if host == "github":
        chain = CrossRepoPRChain(state_dir=chain.state_dir, now=chain.now, reached=reached)
    chain.execute(planned(chain, targets(Path(place))))


if __name__ == "__main__":
    main(*sys.argv[1:])
