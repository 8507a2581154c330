"""How many issues a second can be claimed and finished, beside the floor and a task queue?

The floor is the least that leaves the same facts in the same file: two transactions of raw SQL.
The queue is huey's SQLite storage. It does less for an item, on purpose, so the counts of
transactions and statements stand in the table beside the speed.
"""

import itertools
import sqlite3
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.crew import Crew, Start
from benchmarks.fleet import Made, database_of, drain, fill, folder, lease, proof, work
from benchmarks.floor import claim_and_end
from benchmarks.tables import Check, Column, Result, Say, Table, paired_ratio

QUESTION = "cycles: claim to end per second, beside the floor and huey's SQLite storage"
GOAL_OF_LEASE, MOST_OF_LEASE = 2.5, 10.0
GOAL_OF_WORKER, MOST_OF_WORKER = 4.0, 15.0
"""How many times as long as the floor they should take, and at most may."""

_SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
_MESSAGE = b"x" * 200
_TRACED = 200


@dataclass(slots=True)
class Side:
    """One of the things compared."""

    name: str
    drain: Callable[[Crew, int, int], tuple[float, str]]
    """Given a crew, processes and a number of items: seconds, and what was wrong, if anything."""
    trace: Callable[[Crew], tuple[Counter[str], str]]
    rates: dict[int, list[float]] = field(default_factory=dict)
    flaws: list[str] = field(default_factory=list)


def run(*, quick: bool, say: Say) -> Result:
    issues, rounds, levels = (60, 1, (1, 4)) if quick else (480, 5, (1, 4, 16))
    result = Result(QUESTION)
    floor = _floor()
    held = _ours("dibs, lease() and advance()", "auto", lease)
    worker = _ours("dibs, worker", "auto", work)
    sides = [floor, held, worker, _ours("dibs, worker, leases in comments", "comments", work)]
    if (version := _huey_version()) is None:
        result.notes.append("huey is not installed (extra 'bench'): its side is left out")
    else:
        sides += [
            _huey(_LIKE_FOR_LIKE, "NORMAL"),
            _huey("huey, fsync off", "OFF"),
            _huey("huey, as installed", None),
        ]
    with Crew(max(levels)) as crew:
        costs = {side.name: side.trace(crew) for side in sides}
        for processes, number in itertools.product(levels, range(rounds)):
            say(f"cycles: {processes} processes, round {number + 1} of {rounds}")
            # Every other round goes the other way about, so that nobody always comes first.
            for side in sides if number % 2 == 0 else reversed(sides):
                seconds, flaw = side.drain(crew, processes, issues)
                side.rates.setdefault(processes, []).append(issues / seconds)
                if flaw:
                    side.flaws.append(f"{processes} processes: {flaw}")
    result.tables.append(_speeds(sides, levels, issues, rounds))
    result.tables.append(_ratios(sides, levels))
    result.checks += [
        _near(held, floor, GOAL_OF_LEASE, MOST_OF_LEASE),
        _near(worker, floor, GOAL_OF_WORKER, MOST_OF_WORKER),
    ]
    result.tables.append(_costs(costs))
    result.notes += _notes(version)
    result.checks += [
        Check(
            f"{side.name}: each of them exactly once {'; '.join(side.flaws)}".rstrip(),
            not side.flaws,
        )
        for side in sides
    ]
    return result


# Tables


def _speeds(sides: list[Side], levels: tuple[int, ...], issues: int, rounds: int) -> Table:
    rows = []
    for processes, side in itertools.product(levels, sides):
        rates = side.rates[processes]
        alone = statistics.median(side.rates[levels[0]])
        median = statistics.median(rates)
        rows.append((processes, side.name, median, min(rates), max(rates), median / alone))
    columns = (
        Column("processes"),
        Column("side"),
        Column("cycles/s", ",.0f"),
        Column("min", ",.0f"),
        Column("max", ",.0f"),
        Column("of its own alone", ".2f"),
    )
    return Table(f"{issues} items a run, medians of {rounds} rounds in turns", columns, tuple(rows))


def _ratios(sides: list[Side], levels: tuple[int, ...]) -> Table:
    """How many times as long as the floor each side takes, and as long as huey, if it is here."""
    floor, *others = sides
    queue = next((side for side in sides if side.name == _LIKE_FOR_LIKE), None)
    rows = tuple(
        (
            processes,
            side.name,
            paired_ratio(floor.rates[processes], side.rates[processes]),
            None if queue is None else paired_ratio(queue.rates[processes], side.rates[processes]),
        )
        for processes, side in itertools.product(levels, others)
    )
    columns = (
        Column("processes"),
        Column("side"),
        Column("of the floor's time", ".2f"),
        Column(f"of the time of {_LIKE_FOR_LIKE}", ".2f"),
    )
    return Table("Time for a cycle (median of each round's ratio)", columns, rows)


def _near(side: Side, floor: Side, goal: float, most: float) -> Check:
    ratios = {
        processes: paired_ratio(floor.rates[processes], rates)
        for processes, rates in side.rates.items()
    }
    shown = ", ".join(f"{ratio:.1f} ({processes})" for processes, ratio in ratios.items())
    text = f"{side.name}: times the floor: {shown}; the goal is {goal}, the limit {most}"
    return Check(text, max(ratios.values()) <= most)


def _costs(costs: dict[str, tuple[Counter[str], str]]) -> Table:
    rows = tuple(
        (name, synchronous, *(counts[kind] / _TRACED for kind in ("write", "read", "statement")))
        for name, (counts, synchronous) in costs.items()
    )
    columns = (
        Column("side"),
        Column("synchronous"),
        Column("write tx", ".1f"),
        Column("explicit read tx", ".1f"),
        Column("statements", ".1f"),
    )
    return Table(f"What a cycle costs (traced over {_TRACED} cycles, alone)", columns, rows)


_LIKE_FOR_LIKE = "huey, NORMAL"
_OURS = """\
floor per cycle, in two transactions: the first free issue by the index, lease granted with a fence,
card posted, labels painted; ending written, card edited, labels repainted; nothing is judged, and
there is no journal
dibs, lease() and advance(): each process takes its share of the issues by their numbers; granter
and pauses read, issue judged, the same two transactions, a keeper, two lines in the journal
dibs, worker: the backlog scanned for a free issue, handler called in a thread, four lines
with leases in comments: the card itself is bid, proved, confirmed and ended
"""
_THEIRS = """\
huey {} per cycle: storage.dequeue (look, then select and delete) and storage.put_data, nothing
else of its consumer; no lease and no acknowledgement (an item that was dequeued is gone if its
consumer dies), no history, nothing shown
dibs runs at synchronous=NORMAL, so 'huey, NORMAL' is like for like; what huey does by default
differs between its versions, and 'as installed' shows this one's
huey waits as long as dibs for a locked file, 30 s, instead of its own 5 s
"""


def _notes(version: str | None) -> list[str]:
    return [_OURS] if version is None else [_OURS, _THEIRS.format(version)]


# Our side


def _ours(name: str, leases: str, job: Callable[..., Any]) -> Side:
    def drained(crew: Crew, processes: int, issues: int) -> tuple[float, str]:
        done = drain(crew, processes, issues, leases, job)
        return done.seconds, done.flaw

    def traced(crew: Crew) -> tuple[Counter[str], str]:
        with folder() as place:
            fill(place, (Made() for _ in range(_TRACED)))
            (counts,) = crew.run(_trace_work, job, place, leases, members=1)
            database = database_of(place)
            try:
                with database.reading() as tx:
                    return counts, _synchronous(tx.sql)
            finally:
                database.close()

    return Side(name, drained, traced)


def _trace_work(start: Start, job: Callable[..., Any], place: Path, leases: str) -> Counter[str]:
    with _tracing() as counts:
        job(start, place, leases)
    return counts


# The floor


def _floor() -> Side:
    def drained(crew: Crew, processes: int, issues: int) -> tuple[float, str]:
        with folder() as place:
            fill(place, (Made() for _ in range(issues)))
            done = crew.run(claim_and_end, place, members=processes)
            seconds = max(last_at for _, last_at, _ in done) - min(began for began, _, _ in done)
            flaw = proof(place, issues, [handled for _, _, handled in done], journal=False)[1]
            return seconds, flaw

    def traced(crew: Crew) -> tuple[Counter[str], str]:
        with folder() as place:
            fill(place, (Made() for _ in range(_TRACED)))
            (counts,) = crew.run(_trace_floor, place, members=1)
            return counts, "NORMAL"

    return Side("the floor", drained, traced)


def _trace_floor(start: Start, place: Path) -> Counter[str]:
    with _tracing() as counts:
        claim_and_end(start, place)
    return counts


# Huey's side


def _huey_version() -> str | None:
    try:
        import huey
    except ImportError:
        return None
    return str(huey.__version__)


def _storage(file: Path, synchronous: str | None) -> Any:
    from huey import SqliteHuey

    storage = SqliteHuey(filename=str(file), timeout=30).storage
    if synchronous is not None:
        storage.conn.execute(f"PRAGMA synchronous = {synchronous}")
    return storage


def _huey(name: str, synchronous: str | None) -> Side:
    def drained(crew: Crew, processes: int, items: int) -> tuple[float, str]:
        with folder() as place:
            _enqueue(place, items)
            done = crew.run(_consume, place, synchronous, members=processes)
            seconds = max(last_at for _, last_at, _ in done) - min(began for began, _, _ in done)
            keys = Counter(key for _, _, keys in done for key in keys)
            storage = _storage(place / "huey.db", synchronous)
            kept = storage.result_store_size()
            storage.close()
            whole = len(keys) == keys.total() == kept == items
            return seconds, "" if whole else f"{len(keys)} keys, {kept} results of {items}"

    def traced(crew: Crew) -> tuple[Counter[str], str]:
        with folder() as place:
            _enqueue(place, _TRACED)
            (counts,) = crew.run(_trace_consume, place, synchronous, members=1)
            storage = _storage(place / "huey.db", synchronous)
            try:
                return counts, _synchronous(storage.conn)
            finally:
                storage.close()

    return Side(name, drained, traced)


def _enqueue(place: Path, items: int) -> None:
    storage = _storage(place / "huey.db", "OFF")
    for number in range(items):
        storage.enqueue(b"%06d " % number + _MESSAGE)
    storage.close()


def _consume(
    start: Start, place: Path, synchronous: str | None
) -> tuple[float, float, tuple[str, ...]]:
    storage = _storage(place / "huey.db", synchronous)
    keys: list[str] = []
    began_at = last_at = start()
    while (data := storage.dequeue()) is not None:
        key = bytes(data[:6]).decode()
        storage.put_data(key, b"done", is_result=True)
        keys.append(key)
        last_at = time.perf_counter()
    storage.close()
    return began_at, last_at, tuple(keys)


def _trace_consume(start: Start, place: Path, synchronous: str | None) -> Counter[str]:
    with _tracing() as counts:
        _consume(start, place, synchronous)
    return counts


# Counting


@contextmanager
def _tracing() -> Iterator[Counter[str]]:
    """Count the statements of every connection opened meanwhile, by what they begin."""
    counts: Counter[str] = Counter()

    def note(statement: str) -> None:
        words = statement.upper().split()
        if words[0] == "BEGIN":
            counts["read" if len(words) == 1 else "write"] += 1
        elif words[0] not in ("COMMIT", "ROLLBACK", "PRAGMA"):
            counts["statement"] += 1

    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        sql: sqlite3.Connection = connect(*arguments, **options)
        sql.set_trace_callback(note)
        return sql

    sqlite3.connect = traced  # type: ignore[assignment]
    try:
        yield counts
    finally:
        sqlite3.connect = connect


def _synchronous(sql: sqlite3.Connection) -> str:
    return _SYNCHRONOUS[sql.execute("PRAGMA synchronous").fetchone()[0]]
