"""Does a crowd of workers keep out of its own way?

Attempts per issue against the number of worker processes. One is perfect; every lost race adds to
it. All workers set off at the same moment on issues that take no time: the worst case there is.
"""

import itertools
import statistics

from benchmarks.crew import Crew
from benchmarks.fleet import Drained, drain
from benchmarks.tables import Check, Column, Result, Say, Table

QUESTION = "spread: attempts per issue against the number of workers"
MOST_ATTEMPTS = 1.15
_NOTES = """\
attempts: WorkReport.attempts over all workers: bids that were won or lost
given up: granted, and conceded at once, because somebody had finished the issue between the scan
and the bid; they count as attempts
grants + lost: everything that was bid for, from the store's fences and the lost races
"""


def run(*, quick: bool, say: Say) -> Result:
    issues, rounds, levels = (100, 1, (1, 4)) if quick else (500, 3, (1, 2, 4, 8, 16, 32))
    runs: dict[int, list[Drained]] = {processes: [] for processes in levels}
    with Crew(max(levels)) as crew:
        for processes, number in itertools.product(levels, range(rounds)):
            say(f"spread: {processes} workers, round {number + 1} of {rounds}")
            runs[processes].append(drain(crew, processes, issues, "auto"))
    result = Result(QUESTION)
    result.tables.append(_table(runs, issues, rounds))
    crowd = max(levels)
    attempts = statistics.median(done.total("attempts") for done in runs[crowd]) / issues
    flaws = {done.flaw for drained in runs.values() for done in drained} - {""}
    result.checks = [
        Check(
            f"{attempts:.3f} attempts per issue with {crowd} workers (at most {MOST_ATTEMPTS})",
            attempts <= MOST_ATTEMPTS,
        ),
        Check(f"every issue exactly once {'; '.join(sorted(flaws))}".rstrip(), not flaws),
    ]
    result.notes = [_NOTES]
    return result


def _table(runs: dict[int, list[Drained]], issues: int, rounds: int) -> Table:
    rows = []
    for processes, drained in runs.items():
        attempts = [done.total("attempts") / issues for done in drained]
        rows.append(
            (
                processes,
                statistics.median(attempts),
                max(attempts),
                statistics.median(done.total("lost_races") for done in drained),
                statistics.median(done.grants - issues for done in drained),
                statistics.median(done.grants + done.total("lost_races") for done in drained)
                / issues,
            )
        )
    columns = (
        Column("workers"),
        Column("attempts/issue", ".3f"),
        Column("worst round", ".3f"),
        Column("lost races", ".0f"),
        Column("given up", ".0f"),
        Column("(grants + lost)/issue", ".3f"),
    )
    title = f"{issues} ready issues, handlers that take no time, medians of {rounds}"
    return Table(title, columns, tuple(rows))
