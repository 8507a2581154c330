"""Commands that set up dibs: init, config, completion."""

import json
from pathlib import Path

import click

from dibs.frontends.cli.context import Context, command, dry_run
from dibs.frontends.cli.output import Answer
from dibs.settings import load as config

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


@command("init")
@click.option("--preset", type=click.Choice(["stages", "agent"]), default="stages")
@click.option(
    "--tracker",
    default=config.EMBEDDED_TRACKER,
    metavar="PLACE",
    help="The tracker of a new dibs.toml: github:OWNER/REPO, for example.",
)
@click.option(
    "--agents-md", is_flag=True, help="Put the text of `dibs prime` into AGENTS.md or CLAUDE.md."
)
@dry_run
def init_command(
    context: Context, preset: str, tracker: str, agents_md: bool, dry_run: bool
) -> Answer:
    """Write a dibs.toml and make the backlog ready. Safe to run again; keeps existing files."""
    path = context.config_file or context.directory / config.FILE_NAME
    fresh = not path.exists()
    wanted = {"preset": preset, "tracker": tracker}
    first = config.from_mapping(wanted, source="preset", root=path.parent)
    done = []
    if fresh:
        done.append(f"{'would write' if dry_run else 'wrote'} {path.name}")
        if not dry_run:
            stage = first.pipeline.stages[0].name
            text = _TEMPLATE.format(preset=preset, first=stage, tracker=json.dumps(tracker))
            path.write_text(text, encoding="utf-8")
    settings = first if fresh and dry_run else config.load(path)
    done.append(f"{'would prepare' if dry_run else 'prepared'} {settings.tracker}")
    made = () if dry_run else context.connect(settings).prepare()
    done += [f"made {what}" for what in made]
    data: dict[str, object] = {}
    if agents_md:
        from dibs.frontends.cli.prime import agents_file, primer, put_section

        file = agents_file(path.parent)
        change = put_section(file, primer(settings.pipeline), dry_run=dry_run)
        verb = f"would {change}" if dry_run else _DID[change]
        done.append(f"{verb} the section for agents in {file.name}")
        data["agents_md"] = {"file": str(file), "change": change}
    names = [stage.name for stage in settings.pipeline.stages]
    lines = [*done, f"stages: {' -> '.join(names)}"]
    lines.append("next: dibs add 'a first issue'; then give a stage a handler and run dibs work")
    data |= {"file": str(path), "wrote": fresh, "stages": names, "made": made}
    return Answer(data, lines)


_DID = {"write": "wrote", "add": "added", "update": "updated", "keep": "kept"}


@click.group("config")
def config_command() -> None:
    """Look at the configuration: show, validate, schema."""


@command("show", config_command)
def config_show(context: Context) -> Answer:
    """Print the settings in force and where they come from."""
    from dibs.settings.show import as_lines, shown

    settings = context.settings
    return Answer(shown(settings), list(as_lines(settings)))


@command("validate", config_command)
@click.argument("file", required=False, type=click.Path(path_type=Path))
def config_validate(context: Context, file: Path | None) -> Answer:
    """Check the configuration, or FILE. Exit 1 and name the mistake if invalid."""
    from dibs.wiring.services import refuse_unknown

    settings = config.load(file, start=context.directory) if file else context.settings
    refuse_unknown(settings)
    return Answer({"source": settings.source, "valid": True}, [f"{settings.source} is valid"])


@command("schema", config_command)
def config_schema(_: Context) -> Answer:
    """Print the JSON Schema of dibs.toml."""
    schema = config.schema()
    return Answer(schema, [json.dumps(schema, indent=2)])


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(_: Context, shell: str) -> Answer:
    """Print the completion script for a shell; evaluate it in the shell's start-up file."""
    from click.shell_completion import get_completion_class

    from dibs.frontends.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click completes the shells offered above"
    script = kind(cli, {}, "dibs", "_DIBS_COMPLETE").source()
    return Answer({"shell": shell, "script": script}, [script])
