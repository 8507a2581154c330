"""Issues: add, list, ready, show."""

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import click
from msgspec.structs import asdict

from dibs.core.durations import describe_span
from dibs.core.eligibility import paused_by, strangers_pulls
from dibs.core.errors import DibsError
from dibs.core.ids import ZERO, StageName
from dibs.core.issue import LONGEST_TITLE, Draft
from dibs.frontends.cli.context import (
    Context,
    command,
    dry_run,
    duration,
    reference,
    stage_option,
)
from dibs.frontends.cli.output import (
    Answer,
    Exit,
    ago,
    gate_lines,
    issue_data,
    record_data,
    table,
    tell,
    text_lines,
    write_now,
)
from dibs.services.board import Row


@command("add")
@click.argument("titles", metavar="TITLE...", nargs=-1, required=True)
@click.option("--body", default="", help="The issue's text.")
@click.option(
    "--body-file",
    type=click.Path(path_type=Path, allow_dash=True, exists=True, dir_okay=False),
    help="Read the issue's text from this file; - for standard input.",
)
@click.option("--stage", metavar="STAGE", help="The stage to start in; the first one by default.")
@click.option("--label", "labels", multiple=True, help="A further label; may be repeated.")
@click.option(
    "--once", is_flag=True, help="Leave out each TITLE that an issue has already, open or closed."
)
@click.option(
    "--wait",
    callback=duration,
    metavar="DURATION",
    help="How long to wait for the tracker's limits: for several titles as long as it takes, "
    "for one not at all.",
)
@dry_run
def add_command(
    context: Context,
    titles: Sequence[str],
    body: str,
    body_file: Path | None,
    stage: str | None,
    labels: Sequence[str],
    once: bool,
    wait: timedelta | None,
    dry_run: bool,
) -> Answer:
    """Add issues to the backlog, one per TITLE; `-` reads titles from standard input."""
    context.creates = True
    pipeline = (context.settings if dry_run else context.services).pipeline
    entry = pipeline.stage(stage) if stage else pipeline.stages[0]
    if "DIBS_RUN" in os.environ:
        from dibs.core.roles import insist_before_gates, surrounding

        insist_before_gates(pipeline, entry, labels, surrounding(os.environ))
    if body_file is not None and str(body_file) == "-":
        body = sys.stdin.read()
    elif body_file is not None:
        try:
            body = body_file.read_text("utf-8")
        except UnicodeDecodeError as flaw:
            raise click.UsageError(f"{body_file} is not UTF-8 text") from flaw
    if list(titles) == ["-"]:
        titles = sys.stdin.read().splitlines()
    wanted = [title.strip() for title in titles if title.strip()]
    if not wanted:
        raise click.UsageError("every title is empty; name at least one")
    _check_texts(wanted, (body, *labels))
    drafts = [Draft(title, body, frozenset(labels) | {entry.label}) for title in wanted]
    if dry_run:
        lines = [f"would add {draft.title!r} in stage {entry.name}" for draft in drafts]
        return Answer([{"title": draft.title, "stage": entry.name} for draft in drafts], lines)
    if wait is None:
        wait = timedelta.max if len(drafts) > 1 else ZERO
    return _add(context, drafts, entry.name, once=once, patience_s=wait.total_seconds())


def _add(
    context: Context, drafts: Sequence[Draft], stage: str, *, once: bool, patience_s: float
) -> Answer:
    """Make the issues, and print each as soon as made; with --json, the answer or error lists them.

    After an interrupt with --json, standard error lists the issues made.
    """
    services, said, lines = context.services, list[dict[str, object]](), list[str]()

    def so_far() -> str:
        return f"{len(said)} of {len(drafts)} are there; the same with --once makes the rest"

    def waits(seconds: float, why: str) -> None:
        services.wake()
        span = describe_span(timedelta(seconds=seconds))
        tell(f"{len(said)} of {len(drafts)} done; waiting {span}: {why}")

    try:
        for added in services.adding.add(drafts, once=once, patience_s=patience_s, waits=waits):
            issue, there = added.issue, "" if added.made else "was there: "
            said.append({**issue_data(issue), "made": added.made})
            lines.append(f"{there}{issue.ref} {issue.title} ({stage})")
            if not context.as_json:
                write_now(lines[-1])
    except KeyboardInterrupt as interrupt:
        for line in lines if context.as_json else ():
            tell(line)
        tell(f"interrupted: {so_far()}")
        raise click.Abort from interrupt  # for a KeyboardInterrupt click prints an empty line
    except DibsError:
        context.done = {"added": said, "left": [draft.title for draft in drafts[len(said) :]]}
        if said:
            tell(so_far())
        raise
    finally:
        services.wake()
    return Answer(said)


def _check_texts(titles: Sequence[str], others: Sequence[str]) -> None:
    """Raises UsageError for a text that no tracker could take."""
    for text in (*titles, *others):
        if not text.isprintable() and any(0xD800 <= ord(char) <= 0xDFFF for char in text):
            raise click.UsageError("a title, text or label is not valid UTF-8")
    for title in titles:
        if (length := len(title.strip())) > LONGEST_TITLE:
            raise click.UsageError(
                f"a title may have {LONGEST_TITLE} characters, and this one has {length}: "
                f"{title.strip()[:40]!r}...; --body and --body-file take longer texts"
            )


@command("list", onlooker=True)
@stage_option
@click.option("--all", "everything", is_flag=True, help="List closed issues too.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 100_000))
def list_command(context: Context, stage: StageName | None, everything: bool, limit: int) -> Answer:
    """List issues with their stage and who holds them, the oldest first."""
    rows = context.services.board.rows(stage=stage or None, closed_too=everything, limit=limit)
    return _listing(rows, limit)


@command("ready")
@stage_option
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 100_000))
def ready_command(context: Context, stage: StageName | None, limit: int) -> Answer:
    """List issues that could be claimed now, the most urgent first. Exit 3 if there are none."""
    rows = context.services.board.ready(stage=stage or None, limit=limit)
    if rows:
        return _listing(rows, limit)
    shut = [f"{reason.text}; {reason.remedy}" for reason in context.services.claiming.closed()]
    line = "no issue is ready; dibs why ISSUE shows the reasons for one"
    return Answer([], [line], Exit.NOTHING, shut)


def _listing(rows: Sequence[Row], limit: int) -> Answer:
    """A table of issues, with a warning if the limit may have cut off the rest."""
    lines = table(
        ("issue", "stage", "state", "holder", "title"),
        [
            (
                row.issue.ref,
                row.stage.name if row.stage else "-",
                row.state.value,
                row.record.lease.holder if row.record else "",
                row.issue.title,
            )
            for row in rows
        ],
        cut_last=True,
    )
    warnings = [f"only the first {limit}; --limit lists more"] if len(rows) == limit else []
    return Answer(
        [row_data(row) for row in rows], lines if rows else ["no issues"], Exit.DONE, warnings
    )


def row_data(row: Row) -> dict[str, object]:
    return {
        **issue_data(row.issue),
        "stage": row.stage.name if row.stage else None,
        "state": row.state.value,
        "lease": record_data(row.record),
    }


@command("show", onlooker=True)
@reference
def show_command(context: Context, issue: str) -> Answer:
    """Show an issue: stage, lease, history and text."""
    return details(context, issue)


def details(context: Context, issue: str) -> Answer:
    """An issue with its stage, lease, history and text: for `show`, and for the board."""
    snapshot, row, standing = context.services.board.show(context.ref(issue))
    history = context.services.board.history(snapshot.issue.ref)
    lines = [
        f"{snapshot.issue.ref} {snapshot.issue.title}",
        f"  stage   {row.stage.name if row.stage else 'none'} ({row.state.value})",
        f"  labels  {', '.join(sorted(snapshot.issue.labels)) or 'none'}",
        f"  created {ago(snapshot.issue.created_at, snapshot.now)}",
    ]
    pause = paused_by(snapshot, context.services.pipeline)
    if pause is not None:
        when = ago(pause.since, snapshot.now)
        lines.append(f"  paused  by {pause.by or 'somebody'} {when}: {pause.reason}")
    if standing.live is not None:
        lease = standing.live.lease
        left = describe_span(standing.live.remaining)
        lines.append(f"  lease   {lease.holder}, run {lease.run}, fence {lease.fence}, {left} left")
    for entry in history:
        note = f" ({entry.note})" if entry.note else ""
        lines.append(
            f"  run     {entry.run} {entry.stage} by {entry.holder}: {entry.outcome}{note}"
        )
    strange = strangers_pulls(snapshot.issue, context.services.pipeline.people)
    lines += [f"  note    {note}" for note in strange]
    gate = context.services.board.gate(snapshot, standing, row)
    if gate is not None:
        proven = context.services.tracker.traits.accounts
        lines += gate_lines(gate, snapshot.issue.ref, proven=proven)
    from dibs.core.approval import plans  # no listing needs it

    posted = plans(snapshot)
    plan = gate.plan if gate is not None else posted[-1] if posted else None
    if snapshot.issue.body:
        lines += ["", *text_lines(snapshot.issue.body)]
    if plan is not None:
        edited = "" if plan.as_posted else ", edited since it was posted"
        head = f"Plan by {plan.by or 'somebody'}, {ago(plan.at, snapshot.now)}{edited}:"
        lines += ["", head, *text_lines(plan.text)]
    data = {
        **row_data(row),
        "body": snapshot.issue.body,
        "paused": asdict(pause) if pause is not None else None,
        "lease": record_data(standing.live),
        "runs": [asdict(entry) for entry in history],
        "strangers_pulls": strange,
        "plan": asdict(plan) if plan is not None else None,
        "gate": None
        if gate is None
        else {
            "text": gate.text,
            "visit": gate.visit.name,
            "since": gate.since,
            "missing": gate.missing,
            "needed": gate.needed,
            "rulings": [asdict(one) for one in gate.rulings],
        },
    }
    return Answer(data, lines)
