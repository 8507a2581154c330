"""Commands that set up dibs: init, config, completion."""

import json
from pathlib import Path

import click

from dibs.core.errors import BadConfiguration
from dibs.frontends.cli.context import Context, command, dry_run
from dibs.frontends.cli.output import Answer, text_lines
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
    context.creates = True
    path = _configuration(context)
    fresh = not path.exists()
    wanted = {"preset": preset, "tracker": tracker}
    named = context.config_file is not None
    first = config.from_mapping(wanted, source="--tracker", root=path.parent)
    first = first if named else config.as_found(first)
    done = []
    if fresh:
        shown = path.name if path.parent == context.directory else path
        done.append(f"{'would write' if dry_run else 'wrote'} {shown}")
        if not dry_run:
            stage = first.pipeline.stages[0].name
            text = _TEMPLATE.format(preset=preset, first=stage, tracker=json.dumps(tracker))
            path.write_text(text, encoding="utf-8")
    settings = first if fresh and dry_run else config.load(path, found=not named)
    place = "" if settings.root == context.directory else f" in {settings.root}"
    done.append(f"{'would prepare' if dry_run else 'prepared'} {settings.tracker}{place}")
    made = () if dry_run else context.connect(settings).prepare()
    done += [f"made {what}" for what in made]
    ignored, told, warnings = _ignore(settings.root, dry_run=dry_run)
    done += told
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
    data |= {"file": str(path), "wrote": fresh, "stages": names, "made": made, "ignored": ignored}
    return Answer(data, lines, warnings=warnings)


_DID = {"write": "wrote", "add": "added", "update": "updated", "keep": "kept"}


def _configuration(context: Context) -> Path:
    """The file that `dibs init` writes or finds: in a linked worktree, the main working tree's.

    A file of the worktree alone is kept: it comes with a branch that adds the file.
    """
    named = context.config_file
    if named is not None:
        return named / config.FILE_NAME if named.is_dir() else named
    own = context.directory / config.FILE_NAME
    main = config.main_folder(context.directory) / config.FILE_NAME
    return own if own.exists() and not main.exists() else main


def _ignore(root: Path, *, dry_run: bool) -> tuple[str | None, list[str], list[str]]:
    """Keep `.dibs/` out of git: the file with the line, lines for people, and warnings."""
    from dibs.settings.ignoring import LINE, Ignored, NotIgnored, ignore_in_git

    match ignore_in_git(root, dry_run=dry_run):
        case Ignored(file, wrote):
            verb = "would add" if dry_run else "added"
            shown = file.name if file.parent == Path.cwd() else file
            return str(file), [f"{verb} {LINE} to {shown}"] if wrote else [], []
        case NotIgnored(why):
            return None, [], [f"dibs: {LINE} is not ignored by git: {why}"]
        case None:
            return None, [], []


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

    try:
        settings = config.load(file, start=context.directory) if file else context.settings
        refuse_unknown(settings)
    except BadConfiguration as flaw:
        raise BadConfiguration(str(flaw)) from flaw  # without the hint to run this command
    return Answer({"source": settings.source, "valid": True}, [f"{settings.source} is valid"])


@command("schema", config_command)
def config_schema(_: Context) -> Answer:
    """Print the JSON Schema of dibs.toml."""
    schema = config.schema()
    return Answer(schema, json.dumps(schema, indent=2).splitlines())


@command("help")
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def help_command(ctx: click.Context, _: Context, words: tuple[str, ...]) -> Answer:
    """Show the commands in groups, or the help of COMMAND."""
    at: click.Context = ctx.find_root()
    for word in words:
        if not isinstance(at.command, click.Group):
            raise click.UsageError(f"{at.command_path} has no command {word!r}", at)
        name, found, _rest = at.command.resolve_command(at, [word])
        assert found is not None, "resolve_command raises for an unknown word"
        at = click.Context(found, parent=at, info_name=name)
    text = at.command.get_help(at)
    return Answer({"command": at.command_path, "help": text}, text_lines(text))


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(_: Context, shell: str) -> Answer:
    """Print the completion script for a shell; evaluate it in the shell's start-up file."""
    from click.shell_completion import get_completion_class

    from dibs.frontends.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click completes the shells offered above"
    script = kind(cli, {}, "dibs", "_DIBS_COMPLETE").source()
    return Answer({"shell": shell, "script": script}, text_lines(script))
