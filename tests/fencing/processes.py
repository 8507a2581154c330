"""A process of its own that writes: told what to do line by line, frozen and woken by a test."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.servers.process import wait_until

ROOT = Path(__file__).resolve().parents[2]


class Child:
    """`python -m tests.fencing.MODULE ARGUMENTS`, which answers each line with a line."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"tests.fencing.{module}", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait(30)} and said nothing"
        return json.loads(line)

    def ask(self, what: Any) -> Any:
        self.tell(what)
        return self.hear()

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        self.wait_until_frozen()

    def wait_until_frozen(self) -> None:
        wait_until(lambda: self._state() == "T", "the process is stopped")

    def _state(self) -> str:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text("ascii")
        return stat.rpartition(")")[2].split()[0]

    def wake(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@contextlib.contextmanager
def children(module: str, *arguments: str, count: int = 1) -> Iterator[list[Child]]:
    started = [Child(module, *arguments) for _ in range(count)]
    try:
        yield started
    finally:
        for child in started:
            child.close()


def answer_lines(answer: Any) -> None:
    """The child's side: call `answer` with each line's value, and print what it returns."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
