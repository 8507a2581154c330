"""The program run inside the test's own process: for what only looks at output and exit codes.

A start of the program costs more than most of what it is asked to do. Where death, signals, races
or the start itself are the subject, tests start a process instead.
"""

import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


class Ran(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run_in_process(
    program: Callable[[list[str]], int],
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    given: str | bytes = "",
) -> Ran:
    """One command to its end, in that folder and with that environment alone."""
    told, out, err = _stream(given), _stream(), _stream(errors="backslashreplace")
    with _elsewhere(cwd, env, told, out, err):
        code = program(list(arguments))
        out.flush()
        err.flush()
    return Ran(code, _written(out), _written(err))


def _stream(given: str | bytes = "", errors: str = "strict") -> io.TextIOWrapper:
    written = given.encode() if isinstance(given, str) else given
    return io.TextIOWrapper(io.BytesIO(written), "utf-8", errors, write_through=True)


def _written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


@contextmanager
def _elsewhere(cwd: Path, env: Mapping[str, str], *streams: io.TextIOWrapper) -> Iterator[None]:
    """Everything of this process that a command may look at or change, put back afterwards."""
    here, environment = Path.cwd(), dict(os.environ)
    ours = sys.stdin, sys.stdout, sys.stderr
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    hooked = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        sys.stdin, sys.stdout, sys.stderr = streams
        root.handlers[:] = []  # as in a new process: pytest's own would keep ours from being set
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = ours
        root.handlers[:] = handlers
        root.setLevel(level)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(here)
        for number, handler in hooked.items():
            signal.signal(number, handler)
