"""How requests grow with the backlog and with the fleet, for the same number of issues worked."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.github.fleet import run_fleet, settings, surroundings
from benchmarks.github.hub import backlog, serving
from benchmarks.tables import Check, Column, Result, Table

BACKLOGS = (100, 1_000, 10_000)
FLEETS = (1, 8, 64)
MOST_WITHOUT_RIVALS = 6.0


def run(*, say: Callable[[str], None], quick: bool = False) -> Result:
    result = Result("How requests grow: the backlog's size and the fleet's")
    rows = [
        _measure(issues, size, result, say)
        for issues in (BACKLOGS[:1] if quick else BACKLOGS)
        for size in (FLEETS[:2] if quick else FLEETS)
    ]
    names = (
        "issues in the backlog",
        "workers",
        "worked",
        "lost bids",
        "requests an issue",
        "points an issue",
    )
    columns = tuple(Column(name, ".2f" if place > 3 else "") for place, name in enumerate(names))
    result.tables.append(Table("at the server, each worker's start included", columns, tuple(rows)))
    return result


def _measure(
    issues: int, size: int, result: Result, say: Callable[[str], None]
) -> tuple[int | float, ...]:
    worked = 90 if size < 64 else 192
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(backlog(max(issues, worked + 1) if issues == 100 else issues)) as hub,
        surroundings(hub, Path(folder)),
    ):
        file = settings(Path(folder))
        run_fleet(file, 1, enough=1, say=lambda _: None)
        hub.reset()
        reports = run_fleet(file, size, enough=worked, say=say)
        asked = hub.asked()
    claimed = sum(report.claimed for report in reports)
    lost = sum(report.attempts - report.claimed for report in reports)
    each = asked.requests / claimed
    say(f"{issues} issues, {size} workers: {each:.2f} requests an issue")
    if size == 1:
        result.checks.append(
            Check(
                f"{issues} issues, one worker: {each:.2f} requests an issue",
                each <= MOST_WITHOUT_RIVALS,
            )
        )
    return issues, size, claimed, lost, each, asked.points / claimed
