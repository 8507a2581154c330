"""What an issue costs from ready to advanced, and what a lost race does: alone and with rivals."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.github.fleet import run_fleet, settings, surroundings
from benchmarks.github.hub import Asked, backlog, serving
from benchmarks.tables import Check, Column, Result, Table

MOST_AN_ISSUE = 5
MOST_A_LOSS = 3
KINDS = (
    ("bid", ("/issues/{number}/comments",)),
    ("read or verify", ("query Read",)),
    ("confirm, finish, paint", ("mutation Trip",)),
    ("concede", ("/issues/comments/{comment_id}",)),
)


def run(*, say: Callable[[str], None], quick: bool = False) -> Result:
    result = Result("Requests an issue, from ready to advanced (counted at the server)")
    rows = []
    for size, issues in ((1, 10), (8, 40)) if quick else ((1, 40), (8, 120)):
        rows.append(_measure(size, issues, result, say))
    names = ("workers", "issues", "lost bids", *(name for name, _ in KINDS), "discovery", "other")
    columns = tuple(Column(name, ".2f" if place > 2 else "") for place, name in enumerate(names))
    result.tables.append(Table("requests for each issue worked", columns, tuple(rows)))
    result.notes.append(
        "discovery: listings and the looks at a hundred candidates at a time; other: labels and "
        "the control issue, once for each worker."
    )
    return result


def _measure(
    size: int, issues: int, result: Result, say: Callable[[str], None]
) -> tuple[str | int | float, ...]:
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(backlog(issues)) as hub,
        surroundings(hub, Path(folder)),
    ):
        file = settings(Path(folder))
        run_fleet(file, 1, enough=1, say=lambda _: None)  # makes the control issue, once for ever
        hub.reset()
        worked = issues - 1
        reports = run_fleet(file, size, enough=worked, say=say)
        asked = hub.asked()
    lost = sum(report.attempts - report.claimed for report in reports)
    spent = {name: asked.of(*kinds) for name, kinds in KINDS}
    discovery = _discovery(asked)
    used = sum(spent.values())
    most = MOST_AN_ISSUE * worked + MOST_A_LOSS * lost
    result.checks += [
        Check(
            f"{size} workers: {used} requests for {worked} issues and {lost} lost bids",
            used <= most,
        ),
        Check(
            f"{size} workers: {asked.comments} comments for {worked + lost} bids",
            asked.comments <= worked + lost,
        ),
    ]
    other = asked.requests - used - discovery
    return (
        size,
        worked,
        lost,
        *(count / worked for count in spent.values()),
        discovery / worked,
        other / worked,
    )


def _discovery(asked: Asked) -> int:
    return asked.of("/{repo}/issues", "query Threads", "query Find")
