"""Does looking for work get slower as the backlog grows?

Times the scan exactly as a worker calls it, on backlogs of three sizes in turns, and counts the
steps of SQLite's virtual machine, which are the same on every computer.
"""

import random
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from benchmarks.fleet import (
    DONE,
    MARKS,
    READY,
    REVIEW,
    SHELF,
    WORKING,
    Made,
    database_of,
    fill,
    folder,
)
from benchmarks.tables import Check, Column, Result, Say, Table, paired_ratio
from dibs.adapters.sqlite.database import Database
from dibs.adapters.sqlite.tracker import SqliteTracker
from dibs.services.scanning import CHEAP, Scanner, Spread
from dibs.settings import load as config
from dibs.wiring.services import connect

QUESTION = "scan: the worker's scan against the size of the backlog"
MOST_RATIO = 2.0
"""The scan's time at the largest size over that at the smallest: flat is 1."""

_KINDS = {
    "done": Made((DONE,), open=False, cards=1),
    "review": Made((REVIEW,), cards=1),
    "ready": Made((READY,)),
    "parked": Made((READY, MARKS.parked), cards=3),
    "claimed": Made((READY, WORKING, MARKS.claimed), cards=1),
}
_SHARES = {"done": 0.85, "review": 0.06, "ready": 0.06, "parked": 0.02, "claimed": 0.01}
LAYOUTS = {
    "mixed": "ready issues spread over the backlog's life",
    "parked oldest": "parked and claimed issues are the oldest, as oldest-first leaves them",
    "none ready": "an idle worker's look: nothing is free",
}


def backlog(size: int, layout: str) -> list[Made]:
    kinds = [kind for kind, share in _SHARES.items() for _ in range(round(size * share))]
    random.Random(size).shuffle(kinds)
    if layout == "parked oldest":
        kinds.sort(key=lambda kind: kind not in ("parked", "claimed"))
    if layout == "none ready":
        kinds = ["review" if kind == "ready" else kind for kind in kinds]
    return [_KINDS[kind] for kind in kinds]


@dataclass(slots=True)
class Subject:
    """A worker's scan over one backlog."""

    size: int
    database: Database
    scanning: Scanner
    stages: tuple[config.Stage, ...]
    spread: Spread = field(default_factory=lambda: Spread(random.Random(0)))
    times_s: list[float] = field(default_factory=list)
    steps: int = 0
    found: int = 0

    def time(self) -> None:
        began_at = time.perf_counter()
        self.scanning.next_candidate(self.stages, self.spread)
        self.times_s.append(time.perf_counter() - began_at)

    def count_steps(self) -> None:
        """One thread borrows the same connection every time, so the handler stays on it."""

        def step() -> None:
            self.steps += 1

        with self.database.reading() as tx:
            tx.sql.set_progress_handler(step, 1)
        self.steps = 0
        self.found = self.scanning.next_candidate(self.stages, self.spread) is not None
        steps = self.steps
        with self.database.reading() as tx:
            tx.sql.set_progress_handler(None, 1)
        self.steps = steps


def run(*, quick: bool, say: Say) -> Result:
    sizes, rounds = ((1_000, 5_000), 30) if quick else ((1_000, 10_000, 100_000), 200)
    result = Result(QUESTION)
    rows = []
    worst = 0.0
    for layout in LAYOUTS:
        with ExitStack() as stack:
            subjects = []
            for size in sizes:
                say(f"scan: {layout}, filling {size:,} issues")
                place = stack.enter_context(folder())
                fill(place, backlog(size, layout))
                subjects.append(_subject(place, size, stack))
            say(f"scan: {layout}, {rounds} scans of each size in turns")
            _measure(subjects, rounds)
        smallest = subjects[0]
        for subject in subjects:
            ratio = paired_ratio(subject.times_s, smallest.times_s)
            rows.append(
                (
                    layout,
                    subject.size,
                    subject.found,
                    statistics.median(subject.times_s) * 1000,
                    ratio,
                    subject.steps,
                    subject.steps / smallest.steps,
                )
            )
            worst = max(worst, ratio)
    result.tables.append(_table(rows, rounds))
    shares = ", ".join(f"{share:.0%} {kind}" for kind, share in _SHARES.items())
    result.notes = [
        f"the backlog: {shares}",
        *(f"{layout}: {what}" for layout, what in LAYOUTS.items()),
        "steps are of SQLite's virtual machine: a count, the same on every computer",
    ]
    result.checks = [
        Check(
            f"{worst:.2f} times as long at worst, from {sizes[0]:,} to {sizes[-1]:,} issues"
            f" (at most {MOST_RATIO})",
            worst <= MOST_RATIO,
        )
    ]
    return result


def _subject(place: Path, size: int, stack: ExitStack) -> Subject:
    database = database_of(place)
    stack.callback(database.close)
    services = connect(config.load(start=place), author="benchmark")
    stack.callback(services.close)
    pipeline = services.pipeline
    served = tuple(stage for stage in reversed(pipeline.stages) if stage.served)
    tracker = SqliteTracker(database, shelf=SHELF)  # on the database that counts its steps
    scanning = Scanner(replace(services.backlog, tracker=tracker), CHEAP, dice=random.Random(0))
    return Subject(size, database, scanning, served)


def _measure(subjects: list[Subject], rounds: int) -> None:
    for subject in subjects:
        subject.count_steps()  # also warms the caches
    for _ in range(rounds):
        for subject in subjects:
            subject.time()


def _table(rows: list[tuple[str, int, int, float, float, int, float]], rounds: int) -> Table:
    columns = (
        Column("layout"),
        Column("issues", ",d"),
        Column("found"),
        Column("median ms", ".3f"),
        Column("time ratio", ".2f"),
        Column("steps", ",d"),
        Column("steps ratio", ".2f"),
    )
    return Table(
        f"Scanner.next_candidate, median of {rounds}; ratios to the smallest", columns, tuple(rows)
    )
