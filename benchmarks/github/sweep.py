"""One sweep over 20 issues in flight, three of them expired, and 80 in the queue."""

import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from benchmarks.github.fleet import settings, surroundings
from benchmarks.github.hub import Asked, backlog, serving
from benchmarks.tables import Check, Column, Result, Table
from dibs.core.ids import HolderId, IssueRef
from dibs.core.pipeline import Stage
from dibs.services.claiming import Claimed, ClaimOptions
from dibs.wiring.services import Services, connect

IN_FLIGHT, EXPIRED, QUEUED = 20, 3, 80
MOST = 4
_SHORT_S = 6


def run(*, say: Callable[[str], None], quick: bool = False) -> Result:  # noqa: ARG001 - it is short
    result = Result(f"A sweep: {IN_FLIGHT} in flight, {EXPIRED} of them expired, {QUEUED} queued")
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(backlog(IN_FLIGHT + QUEUED)) as hub,
        surroundings(hub, Path(folder)),
    ):
        services = connect(settings(Path(folder)), author="sweeper")
        _hold(services, say)
        services.adapters.clock.sleep(_SHORT_S + 2)
        hub.reset()
        report = services.sweeping.sweep()
        asked = hub.asked()
        services.close()
    freed = len(report.changed)
    columns = (Column("looked at"), Column("freed"), Column("requests"), Column("points"))
    row = (report.looked_at, freed, asked.requests, asked.points)
    result.tables.append(Table("at the server", columns, (row,)))
    result.notes.append(_kinds(asked))
    result.checks += [
        Check(
            f"{report.looked_at} looked at, {freed} freed",
            (report.looked_at, freed) == (IN_FLIGHT, EXPIRED),
        ),
        Check(f"a sweep costs {asked.requests} requests", asked.requests <= MOST),
    ]
    return result


def _hold(services: Services, say: Callable[[str], None]) -> None:
    """The first of them for a few seconds, the others for as long as it takes."""
    stage = services.pipeline.stage("ready")
    for number in range(IN_FLIGHT, 0, -1):
        _claim(services, stage, number, short=number <= EXPIRED)
    say(f"{IN_FLIGHT} held")


def _claim(services: Services, stage: Stage, number: int, *, short: bool) -> None:
    issue = IssueRef(services.tracker.traits.repo, str(number))
    ttl = timedelta(seconds=_SHORT_S) if short else None
    options = ClaimOptions(HolderId(f"worker-{number}"), ttl=ttl, look_first=False)
    claimed = services.claiming.claim(issue, stage, options)
    assert isinstance(claimed, Claimed), claimed


def _kinds(asked: Asked) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in asked.told["by_kind"].items())
