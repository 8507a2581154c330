"""One server process: a free port, a wait until it answers, a kill that leaves its data behind.

A server that cannot be started raises: a missing component fails the run, it is never skipped.
"""

import atexit
import contextlib
import ctypes
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from dibs.adapters.system import SystemClock

_PATIENCE_S = 60
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG: a test process that is killed takes its servers along


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(ready: Callable[[], bool], what: str, seconds: float = _PATIENCE_S) -> None:
    """Wait on a condition; it may raise as long as it is not yet so."""
    clock, pause = SystemClock(), threading.Event()
    until = clock.now() + seconds
    failure: Exception | None = None
    while clock.now() < until:
        try:
            if ready():
                return
        except Exception as not_yet:  # noqa: BLE001 - the last one is told
            failure = not_yet
        pause.wait(0.02)
    raise TimeoutError(f"{what} was not so within {seconds:.0f} s ({failure})")


class ServerProcess:
    """A command that serves, with a folder of its own, which outlives a kill."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = Path(tempfile.mkdtemp(prefix=f"dibs-{name}-"))
        self.process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def start(
        self, command: Sequence[str | Path], ready: Callable[[], bool], **options: object
    ) -> None:
        log = (self.folder / "server.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
                **options,
            )
        try:
            wait_until(lambda: self._alive() and ready(), f"{self.name} answers")
        except TimeoutError as failure:
            raise RuntimeError(f"{failure}\n{self.log()}") from failure

    def _alive(self) -> bool:
        assert self.process is not None, "started before"
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} exited with {self.process.returncode}\n{self.log()}")
        return True

    def log(self) -> str:
        return (self.folder / "server.log").read_text("utf-8", errors="replace")[-4000:]

    def kill(self, how: int = signal.SIGKILL) -> None:
        """End it now; its folder stays."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(how)
            self.process.wait(timeout=_PATIENCE_S)
            self.process = None

    def freeze(self) -> None:
        assert self.process is not None, "started before"
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None, "started before"
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        import shutil

        atexit.unregister(self.close)
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
