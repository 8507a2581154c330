"""A hundred polls of a worker that finds nothing to do: what they cost."""

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from benchmarks.github.fleet import settings, surroundings
from benchmarks.github.hub import Asked, Hub, backlog, serving
from benchmarks.tables import Check, Column, Result, Table
from dibs.core.ids import HolderId
from dibs.services.working import Until
from dibs.wiring.services import connect

POLLS = 100
_LOOK_S = 0.05
_PATIENCE_S = 300.0


def run(*, say: Callable[[str], None], quick: bool = False) -> Result:
    polls = 20 if quick else POLLS
    result = Result(f"{polls} idle polls")
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(backlog(0, review=150)) as hub,
        surroundings(hub, Path(folder)),
    ):
        asked = _idle(hub, Path(folder), polls)
    say(f"{asked.requests} requests, {asked.free} of them answered with 304")
    columns = (Column("requests"), Column("not modified"), Column("points"))
    row = (asked.requests, asked.free, asked.points)
    result.tables.append(Table("at the server", columns, (row,)))
    result.checks.append(Check(f"{polls} idle polls cost {asked.points} points", asked.points == 0))
    return result


def _idle(hub: Hub, folder: Path, polls: int) -> Asked:
    """The first looks are paid for; those after them are counted."""
    file = settings(folder, worker={"poll": "20ms", "sweep": "100ms"})
    services = connect(file, author="idle", handlers={"ready": lambda _: None})
    stages = services.serving(["ready"])
    worker = services.worker(HolderId("idle"), stages, until=Until.STOPPED)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    _wait(lambda: hub.asked().free >= 5)
    hub.reset()
    _wait(lambda: hub.asked().free >= polls)
    asked = hub.asked()
    worker.leave()
    thread.join(_PATIENCE_S)
    services.close()
    return asked


def _wait(ready: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(_PATIENCE_S / _LOOK_S)):
        if ready():
            return
        pause.wait(_LOOK_S)
    raise AssertionError("the worker does not poll")
