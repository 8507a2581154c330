"""Dying on purpose: `DIBS_FAILPOINT=claim.granted` or `claim.granted:3` kills this process there.

For the tests that prove a crash anywhere does no harm, and for operators' own drills.
"""

import os
import signal
import threading

from dibs.core.errors import BadConfiguration
from dibs.core.steps import Reached, Step, unwatched


def from_environment(value: str) -> Reached:
    """An observer that kills the process the n-th time it passes the named step."""
    if not value:
        return unwatched
    name, _, count = value.partition(":")
    try:
        return _killing(Step(name), int(count or "1"))
    except ValueError as flaw:
        known = ", ".join(Step)
        raise BadConfiguration(f"DIBS_FAILPOINT={value!r} is not a step; steps: {known}") from flaw


def _killing(fatal: Step, times: int) -> Reached:
    left = times
    lock = threading.Lock()

    def reached(step: Step) -> None:
        nonlocal left
        if step is not fatal:
            return
        with lock:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return reached
