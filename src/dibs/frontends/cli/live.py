"""`dibs status --watch`: a board that is redrawn on a terminal, plain lines elsewhere."""

import sys
import threading
from collections.abc import Callable
from typing import Any

from dibs.core.durations import describe_span
from dibs.frontends.cli import output
from dibs.services.board import Overview


def watch(look: Callable[[], Overview], every_s: float, *, as_json: bool) -> None:
    """Show the board every `every_s` seconds until interrupted; to a pipe, only when it changes."""
    from dibs.frontends.cli.operating import overview_data, overview_lines

    pause = threading.Event()
    if as_json or not sys.stdout.isatty():
        last = ""
        while True:
            overview = look()
            data = overview_data(overview)
            shape = str({**data, "now": None, "in_flight": len(overview.in_flight)})
            if shape != last:
                last = shape
                if as_json:
                    output.write_json(data)
                else:
                    output.write("\n".join(overview_lines(overview)))
                sys.stdout.flush()
            pause.wait(every_s)
    from rich.live import Live

    with Live(render(look()), refresh_per_second=8, screen=False) as live:
        while True:
            pause.wait(every_s)
            live.update(render(look()))


def render(overview: Overview, title: str = "dibs") -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    stages = Table(title=title, title_justify="left", expand=False)
    for entry in overview.stages:
        stages.add_column(entry.stage.name, justify="right")
    stages.add_row(
        *(
            f"{entry.issues} there"
            if entry.stage.final
            else f"{entry.issues - entry.in_flight} waiting"
            for entry in overview.stages
        )
    )
    stages.add_row(
        *("" if entry.stage.final else f"{entry.in_flight} in flight" for entry in overview.stages)
    )
    flights = Table(expand=False)
    for heading in ("in flight", "stage", "holder", "fence", "renewed", "left"):
        flights.add_column(heading)
    for record in overview.in_flight:
        lease = record.lease
        flights.add_row(
            str(lease.issue),
            lease.stage,
            lease.holder,
            str(lease.fence),
            str(lease.beats),
            describe_span(record.remaining),
        )
    pauses = [
        Text(f"the {pause.scope.value} is paused: {pause.reason}", style="yellow")
        for pause in overview.pauses
    ]
    return Group(*pauses, stages, flights)
