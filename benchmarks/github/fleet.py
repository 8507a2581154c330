"""Our workers against the fake: each with its own connections, threads of one process."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.github.hub import REPOSITORY, Hub
from dibs.core.ids import HolderId
from dibs.services.working import Until, Worker, WorkReport
from dibs.settings import load as config
from dibs.wiring.services import Services, connect

_PATIENCE_S = 900.0


def settings(folder: Path, **changes: Any) -> config.Settings:
    """The preset's stages with a handler in the first, no waiting for other readers, no pace."""
    file = {
        "tracker": f"github:{REPOSITORY}",
        "settle": "50ms",
        "journal": "",
        "github": {"pace": False},
        "worker": {"poll": "200ms", "sweep": "1h"},
        "stage": [{"name": "ready", "next": "done"}, {"name": "done", "closes": False}],
        **changes,
    }
    return config.from_mapping(file, source="benchmark", root=folder)


@contextmanager
def surroundings(hub: Hub, folder: Path) -> Iterator[None]:
    """The environment that our processes would have."""
    before = dict(os.environ)
    os.environ.update(hub.environment(folder / "state"))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@dataclass(slots=True)
class Fleet:
    """Counts what its handlers have done; leaves when there is enough."""

    enough: int
    done: int = 0
    workers: list[Worker] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, _: object) -> None:
        with self.lock:
            self.done += 1
            full = self.done >= self.enough
        if full:
            for worker in self.workers:
                worker.leave()


def run_fleet(
    file: config.Settings, size: int, *, enough: int, say: Callable[[str], None]
) -> list[WorkReport]:
    """Until so many issues are worked, or nothing is left."""
    fleet = Fleet(enough)
    crews: list[Services] = [
        connect(file, author=f"worker-{place}", handlers={"ready": fleet.work})
        for place in range(size)
    ]
    fleet.workers = [
        crew.worker(HolderId(f"worker-{place}"), crew.serving(["ready"]), until=Until.DRAINED)
        for place, crew in enumerate(crews)
    ]
    threads = [threading.Thread(target=worker.run, daemon=True) for worker in fleet.workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_S)
        assert not thread.is_alive(), "a worker is stuck"
    for crew in crews:
        crew.close()
    say(f"{size} workers: {fleet.done} issues")
    return [worker.report for worker in fleet.workers]
