"""Operations: why, status, runs, sweep, fsck."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import click
import msgspec
from msgspec.structs import asdict

from dibs.core.durations import describe_span, format_instant
from dibs.frontends.cli import output
from dibs.frontends.cli.context import (
    Context,
    command,
    complete_issue,
    complete_run,
    dry_run,
    reference,
)
from dibs.frontends.cli.output import (
    Answer,
    Exit,
    ago,
    reason_lines,
    record_data,
    table,
    tell,
    text_lines,
    visible,
)
from dibs.services.board import Overview


@command("why")
@reference
def why_command(context: Context, issue: str) -> Answer:
    """Say why an issue is not being picked: every reason, and what would have to change."""
    found = context.services.explaining.explain(context.ref(issue))
    ref, stage = found.snapshot.issue.ref, found.stage
    where = f"stage {stage.name}" if stage else "no stage"
    data = {
        "issue": str(ref),
        "title": found.snapshot.issue.title,
        "stage": stage.name if stage else None,
        "claimable": found.claimable,
        "failed_attempts": found.attempts.failed,
        "attempts_allowed": stage.attempts if stage else None,
        "reasons": [asdict(reason) for reason in found.reasons],
        "lease": record_data(found.standing.record),
    }
    if found.claimable:
        return Answer(data, [f"{ref} ({where}) can be claimed now; nothing keeps it back"])
    count = len(found.reasons)
    heading = f"{ref} ({where}) is not being picked, for {count} reason{'s' * (count > 1)}:"
    return Answer(data, [heading, *reason_lines(found.reasons)])


@command("status")
@click.option("--watch", is_flag=True, help="Show it again and again until interrupted.")
@click.option(
    "--every", default=1.0, show_default=True, help="With --watch: seconds between two looks."
)
def status_command(context: Context, watch: bool, every: float) -> Answer:
    """Show the stages, and the issues in flight with their holders."""
    board = context.services.board
    if not watch:
        overview = board.overview()
        objections = context.services.granting.objections()
        warnings = [f"{reason.text}; {reason.remedy}" for reason in objections]
        return Answer(overview_data(overview), overview_lines(overview), warnings=warnings)
    _watch(board.overview, max(every, 0.1), as_json=context.as_json)
    return Answer(None)


def _watch(look: Callable[[], Overview], every_s: float, *, as_json: bool) -> None:
    """Show the board until interrupted: redrawn on a terminal, elsewhere only when it changes."""
    pause = threading.Event()
    if not as_json and sys.stdout.isatty():
        from rich.live import Live

        with Live(render(look()), refresh_per_second=8, screen=False) as live:
            while True:
                pause.wait(every_s)
                live.update(render(look()))
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
                for line in overview_lines(overview):
                    output.write(visible(line) or "\n")
            sys.stdout.flush()
        pause.wait(every_s)


_IN_FLIGHT = ("in flight", "stage", "holder", "fence", "renewed", "left")


def _in_flight(overview: Overview) -> list[tuple[str, ...]]:
    """The leases in flight as rows with the columns of `_IN_FLIGHT`."""
    leases = [(record.lease, describe_span(record.remaining)) for record in overview.in_flight]
    return [
        (str(lease.issue), lease.stage, lease.holder, str(lease.fence), str(lease.beats), left)
        for lease, left in leases
    ]


def render(overview: Overview, title: str = "dibs") -> Any:
    """The board for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    stages, flights = Table(title=title, title_justify="left"), Table(*_IN_FLIGHT)
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
    for row in _in_flight(overview):
        flights.add_row(*(Text(visible(cell)) for cell in row))
    pauses = [
        Text(visible(f"the {pause.scope} is paused: {pause.reason}"), style="yellow")
        for pause in overview.pauses
    ]
    return Group(*pauses, stages, flights)


def overview_data(overview: Overview) -> dict[str, Any]:
    return {
        "now": format_instant(overview.now),
        "stages": [
            {
                "stage": entry.stage.name,
                "issues": entry.issues,
                "in_flight": entry.in_flight,
                "wip": entry.stage.wip,
                "served": entry.stage.served,
            }
            for entry in overview.stages
        ],
        "in_flight": [record_data(record) for record in overview.in_flight],
        "paused": overview.paused,
        "parked": overview.parked,
        "pauses": [
            {"scope": pause.scope, "reason": pause.reason, "by": pause.by}
            for pause in overview.pauses
        ],
    }


def overview_lines(overview: Overview) -> list[str]:
    lines = [
        f"the {pause.scope.value} is paused by {pause.by} since {ago(pause.since, overview.now)}: "
        f"{pause.reason}"
        for pause in overview.pauses
    ]
    lines += table(
        ("stage", "issues", "in flight", "wip"),
        [
            (entry.stage.name, entry.issues, entry.in_flight, entry.stage.wip or "")
            for entry in overview.stages
        ],
    )
    if overview.paused or overview.parked:
        lines.append(f"paused {overview.paused}, parked for a person {overview.parked}")
    if overview.in_flight:
        lines += ["", *table(_IN_FLIGHT, _in_flight(overview))]
    return lines


@command("runs")
@click.argument("issue", metavar="[ISSUE]", required=False, shell_complete=complete_issue)
@click.option(
    "--output",
    "wanted",
    metavar="RUN",
    help="Print what this run's handler wrote.",
    shell_complete=complete_run,
)
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 10_000))
def runs_command(context: Context, issue: str | None, wanted: str | None, limit: int) -> Answer:
    """Show the runs of an issue, the latest runs on this machine, or the output of a run."""
    folder = context.settings.runs
    if wanted is not None:
        log = folder / wanted / "output.log"
        if "/" in wanted or not log.is_file():
            return Answer(None, [f"no output of run {wanted!r} under {folder}"], Exit.NOTHING)
        text = log.read_text("utf-8", errors="replace")
        return Answer({"run": wanted, "output": text}, text_lines(text.rstrip("\n")))
    if issue is None:
        if not folder.is_dir():
            return Answer([], [f"no handler ran here yet: {folder} does not exist"], Exit.NOTHING)
        newest = sorted(folder.iterdir(), key=lambda run: run.stat().st_mtime, reverse=True)[:limit]
        local = []
        for run in (run for run in newest if run.is_dir()):
            try:
                given = msgspec.json.decode((run / "issue.json").read_bytes())
            except (OSError, ValueError):
                given = {}
            facts = {key: given.get(key, "") for key in ("issue", "stage", "attempt", "title")}
            local.append({"run": run.name, **facts, "output": str(run / "output.log")})
        lines = table(
            ("run", "issue", "stage", "attempt", "title"),
            [(r["run"], r["issue"], r["stage"], r["attempt"], r["title"]) for r in local],
            cut_last=True,
        )
        return Answer(local, lines)
    history = context.services.board.history(context.ref(issue))[-limit:]
    if not history:
        return Answer([], [f"{issue} was never claimed"], Exit.NOTHING)
    lines = table(
        ("run", "stage", "holder", "outcome", "renewed", "note"),
        [
            (entry.run, entry.stage, entry.holder, entry.outcome, entry.beats, entry.note)
            for entry in history
        ],
    )
    logs = [folder / entry.run / "output.log" for entry in history]
    rows = [
        {**asdict(entry), "output": str(log) if log.is_file() else None}
        for entry, log in zip(history, logs, strict=True)
    ]
    return Answer(rows, lines)


@command("sweep")
@click.option("--limit", default=1000, show_default=True, type=click.IntRange(1, 1_000_000))
@dry_run
def sweep_command(context: Context, limit: int, dry_run: bool) -> Answer:
    """Free expired issues, and finish endings that a crash left half shown.

    Never ends a live lease.
    """
    report = context.services.sweeping.sweep(limit=limit, dry_run=dry_run)
    would = "would be " if dry_run else ""
    lines = [f"{entry.issue} {would}{entry.action}: {entry.text}" for entry in report.changed]
    swept = [asdict(entry) for entry in report.swept]
    data = {"looked_at": report.looked_at, "dry_run": dry_run, "swept": swept}
    if not lines:
        line = f"nothing to sweep: {report.looked_at} claimed, all in order"
        return Answer(data, [line], Exit.NOTHING)
    return Answer(data, lines)


@command("fsck")
@click.option("--repair", is_flag=True, help="Repair what the cards and leases explain.")
@dry_run
def fsck_command(context: Context, repair: bool, dry_run: bool) -> Answer:
    """Compare every issue's labels with its cards and leases. Exit 1 if a flaw remains."""
    services = context.services
    storage = services.tracker.flaws()
    findings = []
    for finding in services.checking.check(repair=repair and not dry_run):
        findings.append(finding)
        if sys.stderr.isatty():
            tell(f"{finding.flaw.issue}: {finding.flaw.text}")
    left = [entry for entry in findings if not entry.repaired]
    data = {
        "storage": list(storage),
        "flaws": [
            {
                "issue": str(entry.flaw.issue),
                "code": entry.flaw.code,
                "text": entry.flaw.text,
                "repairable": bool(entry.flaw.repair) or entry.repaired,
                "repaired": entry.repaired,
            }
            for entry in findings
        ],
    }
    lines = [f"the storage itself: {line}" for line in storage]
    lines += [
        f"{entry.flaw.issue} {entry.flaw.code}: {entry.flaw.text}"
        f"{' (repaired)' if entry.repaired else ''}"
        for entry in findings
    ]
    code = Exit.ERROR if left or storage else Exit.DONE
    return Answer(data, lines or ["labels, cards and leases agree"], code)
