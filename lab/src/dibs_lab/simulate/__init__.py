"""The command `dibs simulate`.

It runs the simulator with the chosen fleets and prints the results, with a progress bar. The
simulator decides what is simulated; it is imported when the command runs.
"""

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from dibs.core.errors import Unwritable
from dibs.frontends.cli.context import Context, command
from dibs.frontends.cli.output import Answer, tell
from dibs_lab.plots import clock

if TYPE_CHECKING:
    from dibs_lab.sim.sizing import Fleet, Progress, Sizing

_WORDS_EVERY = 25
OPTIONS = (
    ("workers", "INTEGER", "How many workers."),
    ("jobs", "INTEGER", "Issues each works at once."),
    ("issues", "INTEGER", "How many issues."),
    ("arrival", "WHEN", "When they come: all, 30/h or 2m."),
    ("work", "LENGTH", "How long each takes: 10m, 5m..20m or ~10m."),
    ("ttl", "DURATION", "How long a lease runs."),
    ("settle", "DURATION", "How long a bid waits before it is proved."),
    ("lag", "DURATION", "How late a write may be seen."),
    ("crash", "RATE", "How often each worker dies: 1/d, 0.5/h or 0."),
    ("restart", "DURATION", "How long until it is up again."),
    ("delay", "DURATION", "How long a request takes, at most."),
    ("poll", "DURATION", "How often an idle worker looks, at most."),
    ("sweep", "DURATION", "How often a worker sweeps, at most."),
    ("leases", "comments|store", "Where leases are kept."),
    ("api-limit", "LIMIT", "What the API allows: none, github, github*4, 15000/h."),
    ("for", "DURATION", "When to end, whatever is left."),
    ("seed", "INTEGER", "The same seed gives the same answer."),
)


def _place(name: str) -> str:
    return "set_" + name.replace("-", "_")


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, metavar, words in reversed(OPTIONS):
        place = _place(name)
        command = click.option(f"--{name}", place, metavar=metavar, help=words)(command)
    return command


@command("simulate")
@_options
@click.option(
    "--compare",
    metavar="KEY=VALUE,...",
    help="One row for each value of an option: ttl=2m,5m,10m.",
)
@click.option(
    "--from-journal",
    "journal",
    type=click.Path(path_type=Path),
    help="Take work, crashes and arrivals from a journal.",
)
@click.option(
    "--html", "page", type=click.Path(path_type=Path), help="Write a page with plots there too."
)
def simulate_command(
    context: Context, compare: str | None, journal: Path | None, page: Path | None, **said: Any
) -> Answer:
    """Simulate a fleet: throughput, takeovers, duplicate starts, API requests.

    The workers are those of `dibs work`; the tracker, the handlers and the time are simulated.
    """
    from dibs_lab.simulate import fleets, report
    from dibs_lab.simulate.page import document

    given = {name: said[_place(name)] for name, *_ in OPTIONS}
    asked = {name: text for name, text in given.items() if text is not None}
    compared = fleets.comparison(compare) if compare is not None else None
    past = fleets.past_of(journal, context.settings) if journal else None
    wanted = fleets.fleets(context.settings, past, asked, compared)
    _insist_on_a_place(page)
    key, values = compared or (None, [""])
    found = _simulate(wanted, [f"{key} {value}" if key else "simulating" for value in values])
    if page is not None:
        _write(page, document(key, values, found))
        tell(f"the page is {page}")
    lines = report.comparison(key, values, found) if key else report.lines(found[0])
    skipped = past.skipped if past else 0
    warning = f"{skipped} lines of the journal are no events and were left out"
    return Answer(report.data(key, values, found), lines, warnings=(warning,) if skipped else ())


def _insist_on_a_place(page: Path | None) -> None:
    """Check the page's path before the simulation, so that a typo does not waste ten minutes."""
    if page is None:
        return
    if page.is_dir():
        raise Unwritable(f"the page cannot be written: {page} is a folder")
    if not page.parent.is_dir():
        raise Unwritable(f"the page cannot be written: there is no folder {page.parent}")


def _write(page: Path, text: str) -> None:
    try:
        page.write_text(text, encoding="utf-8")
    except OSError as failure:
        raise Unwritable(f"the page cannot be written: {failure}") from failure


# Progress


def _simulate(fleets: Sequence["Fleet"], names: Sequence[str]) -> list["Sizing"]:
    from dibs_lab.sim.sizing import simulate

    found: list[Sizing] = []
    before = 0
    with (
        _quiet_workers(),
        _interruptible() as insist,
        _progress(sum(fleet.issues for fleet in fleets)) as show,
    ):
        for fleet, name in zip(fleets, names, strict=True):

            def progress(now: "Progress", name: str = name, before: int = before) -> None:
                insist()
                show(name, before + now.rested, now.passed_s)

            found.append(simulate(fleet, progress=progress))
            before += fleet.issues
    return found


Show = Callable[[str, int, float], None]


@contextmanager
def _progress(issues: int) -> Iterator[Show]:
    """A bar on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield _plain_lines(issues)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %  {task.fields[passed]} simulated"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("simulating", total=issues, passed="0s")

        def show(name: str, rested: int, passed_s: float) -> None:
            bar.update(line, description=name, completed=rested, passed=clock(passed_s))

        yield show


def _plain_lines(issues: int) -> Show:
    calls, told = 0, 0

    def show(name: str, rested: int, passed_s: float) -> None:
        nonlocal calls, told
        calls += 1
        tenths = rested * 10 // issues
        if tenths > told and calls >= _WORDS_EVERY and rested < issues:
            calls, told = 0, tenths
            tell(f"{name}: {rested} of {issues} issues at rest, {clock(passed_s)} simulated")

    return show


@contextmanager
def _quiet_workers() -> Iterator[None]:
    """Silence the simulated workers' warnings, unless the user asked for all logs."""
    log = logging.getLogger("dibs")
    before = log.level
    if not log.isEnabledFor(logging.INFO):
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Handle Ctrl-C between two steps: within a step it would hit a worker, which would go on."""
    asked = False

    def on_signal(_: int, __: FrameType | None) -> None:
        nonlocal asked
        asked = True

    def insist() -> None:
        if asked:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield insist
    finally:
        signal.signal(signal.SIGINT, before)
