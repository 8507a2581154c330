"""Operations: why, status, runs, sweep, fsck."""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec
from msgspec.structs import asdict, replace

from dibs.core.durations import describe_span, format_instant
from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.errors import Unavailable
from dibs.core.ids import RunId
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
    Report,
    ago,
    reason_data,
    reason_lines,
    record_data,
    table,
    tell,
    text_lines,
    visible,
)
from dibs.services.board import FOR_PEOPLE, Overview, Row, RowState, StageSummary, Survey
from dibs.wiring import mask

APART = {
    "gated": RowState.GATED,
    "parked": RowState.PARKED,
    "paused": RowState.PAUSED,
    "blocked": RowState.BLOCKED,
    "theirs": RowState.THEIRS,
    "resting": RowState.RESTING,
}
"""The counts of a stage beside waiting and in flight, by their names in text and JSON."""
ASKED = {RowState.GATED: "approve", RowState.PARKED: "parked", RowState.PAUSED: "paused"}
"""What a person is asked to look at, in a word."""
_TAIL = 4096
_WHOLE = 2**40
_BRIEF = 60


@command("why", onlooker=True)
@reference
def why_command(context: Context, issue: str) -> Answer:
    """Say why an issue is not being picked: every reason, and what would have to change."""
    found = context.services.explaining.explain(context.ref(issue))
    if context.store_away:
        away = Reason(
            ReasonCode.STORE_AWAY,
            f"nothing is granted while the lease store cannot be reached: {context.store_away}",
            "look at the store with dibs doctor",
        )
        found = replace(found, reasons=(*found.reasons, away))
    ref, stage = found.snapshot.issue.ref, found.stage
    where = f"stage {stage.name}" if stage else "no stage"
    data = {
        "issue": str(ref),
        "title": found.snapshot.issue.title,
        "stage": stage.name if stage else None,
        "claimable": found.claimable,
        "failed_attempts": found.attempts.failed,
        "attempts_allowed": stage.attempts if stage else None,
        "reasons": reason_data(found.reasons),
        "strangers_pulls": (strange := found.strangers_pulls),
        "lease": record_data(found.standing.record),
    }
    notes = [f"  note: {note}" for note in strange]
    if found.claimable:
        heading = f"{ref} ({where}) can be claimed now; nothing keeps it back"
        return Answer(data, [heading, *notes])
    count = len(found.reasons)
    heading = f"{ref} ({where}) is not being picked, for {count} reason{'s' * (count > 1)}:"
    return Answer(data, [heading, *reason_lines(found.reasons), *notes])


@command("status", onlooker=True)
@click.option("--watch", is_flag=True, help="Show it again and again until q or an interrupt.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    help="With --watch: seconds between two looks; without it, by the tracker's price.",
)
def status_command(context: Context, watch: bool, every: float | None) -> Answer:
    """Show the stages, and the issues in flight with their holders."""
    services = context.services
    if watch and context.store_away:  # the board would go on by the cards when the store is back
        raise Unavailable(context.store_away)
    if not watch:
        survey = services.board.survey()
        objections = services.granting.objections()
        warnings = [f"{reason.text}; {reason.remedy}" for reason in objections]
        runs = context.settings.runs
        return Answer(survey_data(survey, runs), survey_lines(survey, runs), warnings=warnings)
    cheap = services.tracker.traits.cheap_reads

    def pace_s(survey: Survey) -> float:
        return every or (CHEAP_S if cheap else dear_s(survey))

    if context.as_json or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        _stream(context, pace_s)
    from dibs.frontends.cli.issues import details
    from dibs.frontends.cli.watching import Looks, Screen, show

    looks = Looks(services.board.survey, services.adapters.clock, pace_s, sparing=every is None)
    name, runs = services.tracker.traits.name, context.settings.runs
    show(looks, Screen(looks, name, runs, lambda issue: details(context, issue).lines))
    return Answer(None)


CHEAP_S = 1.0
"""Seconds between two looks, where reading costs next to nothing."""
_DEAR_S, _DEAR_PER_ISSUE_S = 60.0, 0.2


def dear_s(survey: Survey) -> float:
    """Seconds between two looks where reading costs requests: more for a long list of issues.

    A look costs about three requests, and one for each hundred open issues.
    """
    listed = sum(entry.issues for entry in survey.overview.stages if not entry.stage.final)
    return max(_DEAR_S, _DEAR_PER_ISSUE_S * listed)


def _stream(context: Context, pace_s: Callable[[Survey], float]) -> NoReturn:
    """Print the board whenever it has changed, until interrupted."""
    board, runs, pause = context.services.board, context.settings.runs, threading.Event()
    last = ""
    while True:
        survey = board.survey()
        data = survey_data(survey, runs)
        shape = str({**data, "now": None, "in_flight": len(survey.running)})
        if shape != last:
            last = shape
            if context.as_json:
                output.write_json(data)
            else:
                for line in survey_lines(survey, runs):
                    output.write(visible(line) or "\n")
            sys.stdout.flush()
        pause.wait(pace_s(survey))


def render(overview: Overview, title: str) -> Any:
    """The counts and leases of the demo, for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    headings, rows = stage_table(overview.stages)
    stages = Table(*headings, title=title, title_justify="left")
    for row in rows:
        stages.add_row(*row)
    flights = Table("in flight", "stage", "holder", "fence", "renewed", "left")
    for record in overview.in_flight:
        lease, left = record.lease, describe_span(record.remaining)
        cells = (lease.issue, lease.stage, lease.holder, lease.fence, lease.beats, left)
        flights.add_row(*(Text(visible(str(cell))) for cell in cells))
    return Group(stages, flights)


def survey_data(survey: Survey, runs: Path) -> dict[str, Any]:
    overview = survey.overview
    return {
        "now": format_instant(overview.now),
        "stages": [
            {
                "stage": entry.stage.name,
                "issues": entry.issues,
                "waiting": None if entry.stage.final else entry.waiting,
                "in_flight": entry.in_flight,
                **{word: entry.apart.get(state, 0) for word, state in APART.items()},
                "wip": entry.stage.wip,
                "served": entry.stage.served,
            }
            for entry in overview.stages
        ],
        "in_flight": [
            {
                **(record_data(row.record) or {}),
                "title": row.issue.title,
                "attempt": row.attempt or None,
                "attempts_allowed": row.stage.attempts if row.stage else None,
                "output": last_line(runs, row.record.lease.run) if row.record else "",
            }
            for row in survey.running
        ],
        "for_a_person": [
            {**_row_data(row), "state": row.state.value, "note": row.note} for row in survey.people
        ],
        "next": [_row_data(row) for row in survey.coming],
        "paused": overview.paused,
        "parked": overview.parked,
        "pauses": [
            {"scope": pause.scope, "reason": pause.reason, "by": pause.by}
            for pause in overview.pauses
        ],
    }


def _row_data(row: Row) -> dict[str, Any]:
    return {
        "issue": str(row.issue.ref),
        "title": row.issue.title,
        "stage": row.stage.name if row.stage else None,
    }


_MOST_LISTED = 20


def shares(wanted: Sequence[int], rows: int) -> list[int]:
    """Deal the rows out, one to each list in turn, the first list first, as far as each wants."""
    dealt = [0] * len(wanted)
    while rows > 0 and dealt != list(wanted):
        for place, most in enumerate(wanted):
            if dealt[place] < most and rows > 0:
                dealt[place] += 1
                rows -= 1
    return dealt


def some_of_each(people: Sequence[Row], rows: int, first: int = 0) -> list[Row]:
    """So many rows, some of each kind; `first` are scrolled away, as far as a kind has more."""
    kinds = [[row for row in people if row.state is state] for state in FOR_PEOPLE]
    shown: list[Row] = []
    for kind, share in zip(kinds, shares([len(kind) for kind in kinds], rows), strict=True):
        start = min(first, len(kind) - share)
        shown += kind[start : start + share]
    return shown


def stage_table(stages: Sequence[StageSummary]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the counts by stage; a column of reasons only if one has an issue."""
    shown = [word for word, at in APART.items() if any(one.apart.get(at) for one in stages)]
    headings = ["stage", "issues", "waiting", "in flight", *shown]
    limited = any(entry.stage.wip for entry in stages)
    rows = []
    for entry in stages:
        row = [entry.stage.name, str(entry.issues)]
        if entry.stage.final:
            row += [""] * (len(headings) - 2)
        else:
            row += [str(entry.waiting), str(entry.in_flight)]
            row += [str(entry.apart.get(APART[word], 0)) for word in shown]
        rows.append(row + [str(entry.stage.wip or "")] * limited)
    return headings + ["wip"] * limited, rows


def last_line(folder: Path, run: RunId) -> str:
    """The last line that the handler of a run has written on this machine; empty if none has."""
    from dibs.wiring.services import run_file

    try:
        text = run_file(folder, run, "output.log", -_TAIL).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
    text = mask(text)
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def safe(text: str) -> str:
    """The text for a cell: as `visible`, and without tabs."""
    return visible(text).replace("\t", "\\t")


def brief(text: str) -> str:
    """The text for a cell of a table: safe, and cut with an ellipsis."""
    text = safe(text)
    return text if len(text) <= _BRIEF else text[: _BRIEF - 1] + "…"


def survey_lines(survey: Survey, runs: Path) -> list[str]:
    overview, people = survey.overview, survey.people
    lines = [
        f"the {pause.scope.value} is paused by {safe(pause.by)} "
        f"since {ago(pause.since, overview.now)}: {safe(pause.reason)}"
        for pause in overview.pauses
    ]
    lines += table(*stage_table(overview.stages))
    if people:
        rows = [
            (row.issue.ref, ASKED[row.state], row.stage.name if row.stage else "", row)
            for row in some_of_each(people, _MOST_LISTED)
        ]
        cells = [(*facts, brief(row.issue.title), brief(row.note)) for *facts, row in rows]
        lines += ["", *table(("for a person", "", "stage", "title", "why"), cells)]
        if len(people) > len(rows):
            lines.append(f"and {len(people) - len(rows)} more; dibs list shows all")
    if survey.running:
        running = []
        for row, record in ((row, row.record) for row in survey.running if row.record):
            lease, stage = record.lease, row.stage
            ran = describe_span(record.as_of - lease.granted_at)
            attempt = f"{row.attempt} of {stage.attempts}" if stage and row.attempt else ""
            facts = (lease.issue, lease.stage, lease.holder, ran, attempt)
            running.append((*facts, brief(row.issue.title), brief(last_line(runs, lease.run))))
        headings = ("in flight", "stage", "holder", "for", "attempt", "title", "output")
        lines += ["", *table(headings, running)]
    if survey.coming:
        coming = [
            (row.issue.ref, row.stage.name if row.stage else "", brief(row.issue.title))
            for row in survey.coming
        ]
        lines += ["", *table(("next in line", "stage", "title"), coming)]
    return lines


@command("runs", onlooker=True)
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
    from dibs.wiring.services import run_file

    folder = context.settings.runs
    if wanted is not None:
        try:
            text = run_file(folder, wanted, "output.log", _WHOLE).decode("utf-8", "replace")
        except PermissionError:
            line = f"{folder / wanted} belongs to another user, who alone may read its output"
            return Answer(None, [line], Exit.NOTHING)
        except (OSError, ValueError):
            return Answer(None, [f"no output of run {wanted!r} under {folder}"], Exit.NOTHING)
        text = mask(text)
        return Answer({"run": wanted, "output": text}, text_lines(text.rstrip("\n")))
    if issue is None:
        if not folder.is_dir():
            return Answer([], [f"no handler ran here yet: {folder} does not exist"], Exit.NOTHING)
        runs = folder.glob("[!.]*")  # `.open` is no run
        newest = sorted(runs, key=lambda run: run.stat().st_mtime, reverse=True)[:limit]
        local = []
        for run in (run for run in newest if run.is_dir()):
            try:
                given = msgspec.json.decode(run_file(folder, run.name, "issue.json", _WHOLE))
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
        # `Path.is_file` raises for the run of another user.
        {**asdict(entry), "output": str(log) if os.path.isfile(log) else None}  # noqa: PTH113
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


@command("fsck", onlooker=True)
@click.option("--repair", is_flag=True, help="Repair what the cards and leases explain.")
@dry_run
def fsck_command(context: Context, repair: bool, dry_run: bool) -> Answer:
    """Compare every issue's labels with its cards and leases. Exit 1 if a flaw remains."""
    services = context.services
    if repair and context.store_away:  # what the store knows may differ from the cards
        raise Unavailable(context.store_away)
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
    agreed = "labels and cards agree" if context.store_away else "labels, cards and leases agree"
    return Report(data, lines or [agreed], code)
