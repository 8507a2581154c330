"""Backlogs made in bulk, fleets of real workers over them, and the proof of what they did."""

import json
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dibs
from benchmarks.crew import Crew, Start
from dibs.adapters.sqlite.control import SqlitePauses
from dibs.adapters.sqlite.database import Database, Transaction
from dibs.adapters.sqlite.leases import SqliteLeases
from dibs.adapters.sqlite.tracker import SqliteTracker
from dibs.core.card import Card, CardState, parse_mark
from dibs.core.lease import Outcome
from dibs.core.presets import STAGES
from dibs.services.working import Until

READY, REVIEW, DONE = (stage.label for stage in STAGES.stages)
WORKING = STAGES.stages[0].working_label or ""
MARKS = STAGES.labels
SHELF = STAGES.vetoes | {MARKS.claimed}

# A short poll only shortens the end of a run, when the last issues are in other workers' hands.
# The handler stands for a stage that is served; the fleets here replace it by a function.
_CONFIGURATION = """
[worker]
poll = "250ms"

[[stage]]
name = "ready"
run = "true"
"""
_BODY = "Steps to reproduce, what was expected, what happened instead. " * 6
_CARD = (
    "<!-- claim run=0123456789ab ttl=600s v=1 holder=worker-1 stage=ready state=released"
    " prev=2026-01-01T00:10:00Z outcome=advanced next=review fence=1 -->\nEnded."
)


@dataclass(frozen=True, slots=True)
class Made:
    """An issue as the bulk loader writes it."""

    labels: tuple[str, ...] = (READY,)
    open: bool = True
    cards: int = 0


@contextmanager
def folder(more: str = "") -> Iterator[Path]:
    """A configured folder of its own, removed afterwards. `more`: settings of the stage."""
    with tempfile.TemporaryDirectory(prefix="dibs-bench-", ignore_cleanup_errors=True) as place:
        path = Path(place)
        (path / "dibs.toml").write_text(_CONFIGURATION + more, encoding="utf-8")
        yield path


def database_of(place: Path) -> Database:
    return Database(place / ".dibs" / "backlog.db")


def fill(place: Path, issues: Iterable[Made]) -> None:
    """Write the issues in one transaction, numbered in the order they come."""
    database = database_of(place)
    try:
        SqliteTracker(database, shelf=SHELF)
        SqliteLeases(database)
        SqlitePauses(database)
        with database.writing() as tx:
            _insert(tx, list(enumerate(issues, start=1)))
    finally:
        database.close()


def _insert(tx: Transaction, issues: list[tuple[int, Made]]) -> None:
    now = tx.now_ms
    tx.sql.executemany(
        "INSERT INTO issues (number, title, body, author, open, comment_count, created_at,"
        " updated_at) VALUES (?, ?, ?, 'bench', ?, ?, ?, ?)",
        ((n, f"Issue {n}", _BODY, made.open, made.cards, now, now) for n, made in issues),
    )
    tx.sql.executemany(
        "INSERT INTO issue_labels (label, open, shelved, number) VALUES (?, ?, ?, ?)",
        (
            (label, made.open, not SHELF.isdisjoint(made.labels), n)
            for n, made in issues
            for label in made.labels
        ),
    )
    tx.sql.executemany(
        "INSERT INTO comments (number, author, body, created_at, updated_at)"
        " VALUES (?, 'bench', ?, ?, ?)",
        ((n, _CARD, now, now) for n, made in issues for _ in range(made.cards)),
    )


# Fleets


@dataclass(frozen=True, slots=True)
class Worked:
    """What one worker process did."""

    began_at: float
    last_at: float
    """When it had last finished an issue; on a clock that all processes share."""
    handled: tuple[str, ...]
    attempts: int
    lost_races: int
    refused: int
    outcomes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Drained:
    """What a fleet did to a backlog, checked."""

    seconds: float
    workers: tuple[Worked, ...]
    grants: int
    """Leases granted, the ones given up at once included; 0 where comments are the leases."""
    flaw: str
    """Empty if every issue was handled and advanced exactly once."""

    def total(self, what: str) -> int:
        return sum(getattr(worker, what) for worker in self.workers)


def drain(
    crew: Crew, processes: int, issues: int, leases: str, job: Callable[..., Worked] | None = None
) -> Drained:
    """Fresh issues, all ready; the processes work until nothing is left."""
    with folder() as place:
        fill(place, (Made() for _ in range(issues)))
        workers = tuple(crew.run(job or work, place, leases, members=processes))
        seconds = max(worker.last_at for worker in workers) - min(
            worker.began_at for worker in workers
        )
        grants, flaw = proof(place, issues, [worker.handled for worker in workers])
        return Drained(seconds, workers, grants, flaw)


def work(start: Start, place: Path, leases: str) -> Worked:
    """A worker as a user would write it: open, register a handler, run until drained."""
    last_at = 0.0
    handled: list[str] = []

    def tell(text: str) -> None:
        nonlocal last_at
        if " advanced" in text:
            last_at = time.perf_counter()

    with dibs.open(place, leases=leases) as backlog:
        backlog.handler("ready")(lambda work: handled.append(work.issue["issue"]))
        worker = backlog.worker(stages=("ready",), until=Until.DRAINED, tell=tell)
        began_at = start()
        report = worker.run()
    return Worked(
        began_at,
        last_at,
        tuple(handled),
        report.attempts,
        report.lost_races,
        report.refused,
        dict(report.outcomes),
    )


def lease(start: Start, place: Path, leases: str) -> Worked:
    """A program that claims its share of the issues one by one, and advances them."""
    handled: list[str] = []
    seat = 0
    with dibs.open(place, leases=leases) as backlog:
        last = max(int(row.issue.ref.key) for row in backlog.board.offers())
        while True:  # the processes agree who takes which share: each sits down where nobody sits
            try:
                (place / f"seat-{seat}").touch(exist_ok=False)
                break
            except FileExistsError:
                seat += 1
        began_at = last_at = start()
        seats = len(list(place.glob("seat-*")))
        for number in range(1 + seat, last + 1, seats):
            with backlog.lease(number) as held:
                held.advance()
            handled.append(f"#{number}")
            last_at = time.perf_counter()
    return Worked(began_at, last_at, tuple(handled), len(handled), 0, 0, {})


def proof(
    place: Path, issues: int, worked: Iterable[Iterable[str]], *, journal: bool = True
) -> tuple[int, str]:
    """Asked of four witnesses: the handlers, the journal, the cards and the labels."""
    handled = Counter(issue for one in worked for issue in one)
    lines = (place / ".dibs" / "events.jsonl").read_text(encoding="utf-8") if journal else ""
    events = (json.loads(line) for line in lines.splitlines())
    advanced = Counter(event["issue"] for event in events if event["event"] == "advanced")
    witnesses = [("handlers", handled), *([("journal", advanced)] if journal else [])]
    database = database_of(place)
    try:
        with database.reading() as tx:
            shown = _endings(tx.sql)
            moved = _count(tx.sql, "issue_labels WHERE label = ?", REVIEW)
            left = _count(
                tx.sql, "issue_labels WHERE label IN (?, ?, ?)", READY, WORKING, MARKS.claimed
            )
            grants = tx.sql.execute("SELECT COALESCE(SUM(fence), 0) FROM leases").fetchone()[0]
    finally:
        database.close()
    flaws = [
        f"{name}: {len(counts)} of {issues} issues, {counts.total() - len(counts)} of them again"
        for name, counts in (*witnesses, ("cards", shown))
        if len(counts) != issues or counts.total() != issues
    ]
    if (moved, left) != (issues, 0):
        flaws.append(f"labels: {moved} of {issues} moved on, {left} labels left behind")
    return grants, "; ".join(flaws)


def _endings(sql: sqlite3.Connection) -> Counter[str]:
    found: Counter[str] = Counter()
    for number, body in sql.execute("SELECT number, body FROM comments"):
        match parse_mark(body):
            case Card(state=CardState.RELEASED, ending=ending) if (
                ending is not None and ending.outcome is Outcome.ADVANCED
            ):
                found[str(number)] += 1
            case _:
                pass
    return found


def _count(sql: sqlite3.Connection, source: str, *values: str) -> int:
    return int(sql.execute(f"SELECT COUNT(*) FROM {source}", values).fetchone()[0])
