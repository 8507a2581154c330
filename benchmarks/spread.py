"""Does a crowd of workers keep out of its own way?

Claims tried per issue against the number of worker processes. One is perfect; every lost race and
every look that finds another worker there adds to it. All workers set off at the same moment on
issues that take no time: the worst case there is.
"""

import itertools
import statistics

from benchmarks.crew import Crew
from benchmarks.fleet import Drained, drain
from benchmarks.tables import Check, Column, Result, Say, Table

QUESTION = "spread: claims tried per issue against the number of workers"
MOST_TRIES = 1.25
_NOTES = """\
tried: WorkReport.attempts and .refused over all workers: claims that were won, lost or refused,
because another worker held the issue or had moved it on between the scan and the claim
refused: those among them that were refused by the look, in the transaction that would have granted
given up: granted, and conceded at once; they count as tried
all workers begin at the first issue and end among the last few: this alone is about 1.15 with 32
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
    tries = statistics.median(map(_tries, runs[crowd])) / issues
    flaws = {done.flaw for drained in runs.values() for done in drained} - {""}
    result.checks = [
        Check(
            f"{tries:.3f} claims tried per issue with {crowd} workers (at most {MOST_TRIES})",
            tries <= MOST_TRIES,
        ),
        Check(f"every issue exactly once {'; '.join(sorted(flaws))}".rstrip(), not flaws),
    ]
    result.notes = [_NOTES]
    return result


def _tries(done: Drained) -> int:
    return done.total("attempts") + done.total("refused")


def _table(runs: dict[int, list[Drained]], issues: int, rounds: int) -> Table:
    rows = []
    for processes, drained in runs.items():
        tries = [_tries(done) / issues for done in drained]
        rows.append(
            (
                processes,
                statistics.median(tries),
                max(tries),
                statistics.median(done.total("lost_races") for done in drained),
                statistics.median(done.total("refused") for done in drained),
                statistics.median(done.grants - issues for done in drained),
            )
        )
    columns = (
        Column("workers"),
        Column("tried/issue", ".3f"),
        Column("worst round", ".3f"),
        Column("lost races", ".0f"),
        Column("refused", ".0f"),
        Column("given up", ".0f"),
    )
    title = f"{issues} ready issues, handlers that take no time, medians of {rounds}"
    return Table(title, columns, tuple(rows))
