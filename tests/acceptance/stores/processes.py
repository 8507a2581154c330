"""The processes of these tests, as the test sees them: told line by line, frozen, woken, killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acceptance.harness import Child, Project, alive, frozen, until

HERE = Path(__file__).parent


class Process:
    """A program of this folder, which answers each line with a line."""

    def __init__(
        self,
        program: str,
        arguments: tuple[str, ...],
        folder: Path,
        env: Mapping[str, str],
    ) -> None:
        self._err = folder / "err"
        with self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / program), str(folder), *arguments],
                cwd=folder,
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def tell(self, do: str, **words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **words}) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait(30)}:\n{self.err}"
        return json.loads(line)

    def ask(self, do: str, **words: object) -> Any:
        self.tell(do, **words)
        return self.hear()

    @property
    def err(self) -> str:
        return self._err.read_text("utf-8", errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)
        self.await_frozen()

    def await_frozen(self) -> None:
        def stands() -> bool:
            assert alive(self.pid), self.err
            return frozen(self.pid)

        until(stands, "the process stands still")

    def wake(self) -> None:
        self.signal(signal.SIGCONT)

    def close(self) -> None:
        """Frozen or not, it is gone when this returns."""
        self.process.kill()
        self.process.wait(30)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class Company:
    """All processes of one test, each in a folder of its own: they share the store and its names,
    and no backlog.

    (On one backlog the same store under two names, direct and through a proxy, would be two stores,
    and only one of them grants.)
    """

    def __init__(self, root: Path) -> None:
        self._project = Project(root)
        self._root = root
        self._all: list[Process] = []

    def start(
        self, program: str, name: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> Process:
        environment, folder = self._project.environment(env), self._root / name
        folder.mkdir(exist_ok=True)
        (folder / "dibs.toml").write_text('backlog = "company"\n', "utf-8")
        process = Process(program, arguments, folder, environment)
        self._all.append(process)
        return process

    def actor(self, name: str, leases: str, env: Mapping[str, str] | None = None) -> Process:
        """One that is ready to be told."""
        process = self.start("actor.py", name, leases, name, env=env)
        process.hear()
        return process

    def close(self) -> None:
        for process in self._all:
            process.close()
        self._project.end()
        assert not self._project.strays(), "every process dies with the test"


def freeze_between_writes(project: Project, worker: Child) -> None:
    """Not inside a write to the tracker's file: it would stay locked, and everybody would wait."""

    def stands_still() -> bool:
        worker.signal(signal.SIGSTOP)
        until(lambda: frozen(worker.pid), "the worker stands still")
        if project.writable():
            return True
        worker.signal(signal.SIGCONT)
        return False

    until(stands_still, "the worker stands still outside a write")


def kill(process: Process) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.process.wait(30)
