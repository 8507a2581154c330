"""Real processes, started once and given one job after another, gone whatever happens.

A job is a module's function. It prepares, calls `start` (which waits until every process of the
crew is ready, and says when it began), works, and returns something that can be pickled.
"""

import multiprocessing
import signal
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

Start = Callable[[], float]
_PATIENCE_S = 120.0
"""No job takes that long; a process that does is stuck, and the benchmark fails."""
_FAREWELL_S = 3.0
_HEAD_START_S = 0.05
"""From the word to the start, so that the last to hear it is not late."""


class CrewFailure(Exception):
    """A process of the crew raised, died or got stuck."""


class Crew:
    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._members: list[tuple[Any, Connection]] = []
        try:
            for number in range(size):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_serve, args=(theirs,), name=f"crew-{number}", daemon=True
                )
                process.start()
                theirs.close()
                self._members.append((process, ours))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, job: Callable[..., Any], *arguments: object, members: int) -> list[Any]:
        """Run the job in the first `members` processes, all set off at the same moment."""
        pipes = [pipe for _, pipe in self._members[:members]]
        assert len(pipes) == members, "a crew cannot lend more than it has"
        try:
            for pipe in pipes:
                pipe.send((job, arguments))
            for pipe in pipes:
                _receive(pipe, "ready")
            together_at = time.perf_counter() + _HEAD_START_S  # a clock that all processes share
            for pipe in pipes:
                pipe.send(together_at)
            return [_receive(pipe, "done") for pipe in pipes]
        except BaseException:
            # Before anybody removes the folder: a process at work would make it again.
            self._end(lambda process: process.kill())
            raise

    def close(self) -> None:
        """Closed pipes end idle processes; whoever is left is killed."""
        for _, pipe in self._members:
            pipe.close()
        self._end(lambda _: None)
        self._end(lambda process: process.kill())
        self._members = []

    def _end(self, how: Callable[[Any], None]) -> None:
        alive = [process for process, _ in self._members if process.is_alive()]
        for process in alive:
            how(process)
        deadline = time.perf_counter() + _FAREWELL_S
        for process in alive:
            process.join(max(0.0, deadline - time.perf_counter()))


def _receive(pipe: Connection, wanted: str) -> Any:
    try:
        if not pipe.poll(_PATIENCE_S):
            raise CrewFailure(f"a process said nothing for {_PATIENCE_S:.0f} s")
        kind, value = pipe.recv()
    except (EOFError, ConnectionError) as gone:
        raise CrewFailure("a process died") from gone
    if kind != wanted:
        raise CrewFailure(f"a process failed:\n{value}")
    return value


def _serve(pipe: Connection) -> None:
    """A member's life: ended by its parent's end of the pipe going away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and cleans up

    def start() -> float:
        pipe.send(("ready", None))
        together_at: float = pipe.recv()
        threading.Event().wait(max(0.0, together_at - time.perf_counter()))
        return together_at

    try:
        while True:
            job, arguments = pipe.recv()
            try:
                answer = ("done", job(start, *arguments))
            except (EOFError, ConnectionError):
                raise
            except Exception:  # noqa: BLE001 - told to the parent, which raises it
                answer = ("failed", traceback.format_exc())
            pipe.send(answer)
    except (EOFError, ConnectionError):
        return
