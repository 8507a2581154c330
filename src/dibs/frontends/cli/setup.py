"""Commands that set up dibs: init, config, completion."""

import json
from pathlib import Path
from typing import Any, assert_never

import click

from dibs.core.durations import format_duration
from dibs.core.pipeline import (
    ApprovalGate,
    BundleWorktree,
    Command,
    InProcess,
    NoHandler,
    NoWorktree,
    OneWorktree,
    People,
    PythonCallable,
    Stage,
)
from dibs.core.references import without_secrets
from dibs.frontends.cli.context import Context, answering, as_json, dry_run
from dibs.frontends.cli.output import Answer, table
from dibs.settings import load as config
from dibs.settings.load import Settings

_TEMPLATE = """\
# dibs.toml: all of it optional. `dibs config show` prints what is in force.
tracker = {tracker}
leases  = "auto"        # the tracker's own database where it has one, else comments
preset  = "{preset}"

# What a worker runs in a stage. The issue comes as JSON on standard input; exit 0 moves it on,
# 75 gives it back, anything else is a failed attempt.
#
# [[stage]]
# name     = "{first}"
# run      = "./handler.sh"     # or python = "module:function"
# ttl      = "10m"
# attempts = 3
# wip      = 5
"""


@click.command("init")
@click.option("--preset", type=click.Choice(["stages", "agent"]), default="stages")
@click.option(
    "--tracker",
    default=config.EMBEDDED_TRACKER,
    metavar="PLACE",
    help="Where the issues are, for a file that is not there yet: github:OWNER/REPO.",
)
@dry_run
@as_json
@answering
def init_command(context: Context, preset: str, tracker: str, dry_run: bool) -> Answer:
    """Write a dibs.toml and make the backlog ready. Safe to run again; keeps existing files."""
    path = context.config_file or context.directory / config.FILE_NAME
    fresh = not path.exists()
    wanted = {"preset": preset, "tracker": tracker}
    first = config.from_mapping(wanted, source="preset", root=path.parent)
    done = []
    if fresh:
        done.append(f"wrote {path.name}")
        if not dry_run:
            stage = first.pipeline.stages[0].name
            text = _TEMPLATE.format(preset=preset, first=stage, tracker=json.dumps(tracker))
            path.write_text(text, encoding="utf-8")
    settings = first if fresh and dry_run else config.load(path)
    done.append(f"prepared {settings.tracker}")
    made = () if dry_run else context.connect(settings).prepare()
    done += [f"made {what}" for what in made]
    names = [stage.name for stage in settings.pipeline.stages]
    lines = [f"not done, only said: {line}" if dry_run else line for line in done]
    lines.append(f"stages: {' -> '.join(names)}")
    lines.append("next: dibs add 'a first issue'; then give a stage a handler and run dibs work")
    data = {"file": str(path), "wrote": fresh, "stages": names, "made": list(made)}
    return Answer(data, lines)


@click.group("config")
def config_command() -> None:
    """Look at the configuration: show, validate, schema."""


@config_command.command("show")
@as_json
@answering
def config_show(context: Context) -> Answer:
    """Print the settings in force and where they come from."""
    settings = context.settings
    data = settings_data(settings)
    lines = [f"from {settings.source}"]
    plain = {key: value for key, value in data.items() if isinstance(value, str | int)}
    lines += [f"  {key:<11} {value}" for key, value in plain.items()]
    rows = [
        (
            stage.name,
            stage.label,
            ", ".join(stage.next) or "(end)",
            _handler(stage),
            stage.gate.label if isinstance(stage.gate, ApprovalGate) else "",
            format_duration(stage.terms.ttl),
            stage.attempts,
            stage.wip or "",
        )
        for stage in settings.pipeline.stages
    ]
    headings = ("stage", "label", "next", "handler", "gate", "ttl", "attempts", "wip")
    return Answer(data, [*lines, "", *table(headings, rows)])


def _handler(stage: Stage) -> str:
    match stage.handler:
        case Command(line):
            return f"run {line}"
        case PythonCallable(target):
            return f"python {target}"
        case InProcess():
            return "in process"
        case NoHandler():
            return ""


def settings_data(settings: Settings) -> dict[str, Any]:
    return {
        "source": settings.source,
        "tracker": settings.tracker,
        "leases": without_secrets(settings.leases),
        "preset": settings.preset,
        "max_ttl": format_duration(settings.max_ttl),
        "grace": format_duration(settings.grace),
        "settle": format_duration(settings.settle) if settings.settle is not None else "tracker's",
        "person_ttl": format_duration(settings.person_ttl),
        "runs": str(settings.runs),
        "journal": str(settings.journal or ""),
        "jobs": settings.jobs,
        "poll": format_duration(settings.poll),
        "sweep": format_duration(settings.sweep),
        "stop_grace": format_duration(settings.stop_grace),
        "labels": {
            "claimed": settings.pipeline.labels.claimed,
            "paused": settings.pipeline.labels.paused,
            "parked": settings.pipeline.labels.parked,
            "blockers": sorted(settings.pipeline.blockers),
            "priorities": list(settings.pipeline.priorities),
        },
        "people": people_data(settings.pipeline.people),
        "repos": {name: str(path) for name, path in settings.repos.items()},
        "stages": [stage_data(stage) for stage in settings.pipeline.stages],
    }


def people_data(people: People) -> dict[str, Any]:
    return {
        "assignees": people.assignees,
        "pulls": people.pulls,
        "markers": people.markers,
        "fleet": sorted(people.fleet),
        "marker_ttl": format_duration(people.marker_ttl),
    }


def stage_data(stage: Stage) -> dict[str, Any]:
    worktree: dict[str, str | None]
    match stage.worktree:
        case NoWorktree():
            worktree = {"worktree": None, "worktree_base": None}
        case OneWorktree(repository, base):
            worktree = {"worktree": repository, "worktree_base": base}
        case BundleWorktree(base):
            worktree = {"worktree": "bundle", "worktree_base": base}
        case _:
            assert_never(stage.worktree)
    return {
        "name": stage.name,
        "label": stage.label,
        "working_label": stage.working_label,
        "next": list(stage.next),
        "handler": _handler(stage),
        "gate": stage.gate.label if isinstance(stage.gate, ApprovalGate) else None,
        "closes": stage.closes,
        "ttl": format_duration(stage.terms.ttl),
        "renew": format_duration(stage.terms.renew_every),
        "margin": format_duration(stage.terms.margin),
        "max_hold": format_duration(stage.terms.max_hold),
        "timeout": format_duration(stage.timeout) if stage.timeout else None,
        "attempts": stage.attempts,
        "backoff": format_duration(stage.backoff.first),
        "backoff_max": format_duration(stage.backoff.most),
        "wip": stage.wip,
        "pass_env": list(stage.pass_env),
        **worktree,
    }


@config_command.command("validate")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@as_json
@answering
def config_validate(context: Context, file: Path | None) -> Answer:
    """Check the configuration, or FILE. Exit 1 and name the mistake if invalid."""
    from dibs.wiring.services import refuse_unknown

    settings = config.load(file, start=context.directory) if file else context.settings
    refuse_unknown(settings)
    return Answer({"source": settings.source, "valid": True}, [f"{settings.source} is valid"])


@config_command.command("schema")
@as_json
@answering
def config_schema(_: Context) -> Answer:
    """Print the JSON Schema of dibs.toml."""
    schema = config.schema()
    return Answer(schema, [json.dumps(schema, indent=2)])


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@as_json
@answering
def completion_command(_: Context, shell: str) -> Answer:
    """Print the completion script for a shell; evaluate it in the shell's start-up file."""
    from click.shell_completion import get_completion_class

    from dibs.frontends.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click completes the shells offered above"
    script = kind(cli, {}, "dibs", "_DIBS_COMPLETE").source()
    return Answer({"shell": shell, "script": script}, [script])
