"""The program's entry: the list of commands, loaded one by one when asked for."""

import importlib
import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from dibs._version import __version__
from dibs.core.errors import DibsError
from dibs.frontends.cli import output
from dibs.frontends.cli.context import Context, json_asked
from dibs.frontends.cli.exits import Exit, for_error

COMMANDS = {
    "init": "setup",
    "config": "setup",
    "completion": "setup",
    "add": "issues",
    "list": "issues",
    "ready": "issues",
    "show": "issues",
    "claim": "leasing",
    "heartbeat": "leasing",
    "release": "leasing",
    "fence": "fencing",
    "work": "work",
    "listen": "listen",
    "hold": "named",
    "loop": "named",
    "take": "people",
    "give-back": "people",
    "approve": "people",
    "label": "people",
    "pause": "people",
    "resume": "people",
    "revoke": "people",
    "why": "operating",
    "status": "operating",
    "runs": "operating",
    "sweep": "operating",
    "follow": "follow",
    "fsck": "operating",
    "budget": "budget",
    "doctor": "doctor",
    "hook": "hook",
    "leases": "stores",
    "migrate": "migrate",
    "stores": "stores",
    "demo": "demo",
    "simulate": "simulate",
}


class LazyGroup(click.Group):
    """Imports the file of a command only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"dibs.frontends.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_") + "_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            if close and args[0] not in COMMANDS:
                raise click.UsageError(
                    f"{error.message} Did you mean {close[0]!r}?", ctx
                ) from error
            raise


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dibs", message="%(prog)s %(version)s")
@click.option(
    "-C", "--directory", type=click.Path(path_type=Path), help="Work as if started there."
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    envvar="DIBS_CONFIG",
    help="The configuration file [$DIBS_CONFIG].",
)
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON [$DIBS_JSON].")
@click.option("-v", "--verbose", count=True, help="Say more on standard error.")
@click.pass_context
def cli(
    ctx: click.Context,
    directory: Path | None,
    config_file: Path | None,
    as_json: bool,
    verbose: int,
) -> None:
    """Many agents, many people, one backlog: nobody works the same issue twice."""
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    if directory is not None and not directory.is_dir():
        raise click.BadParameter(f"{directory} is not a folder", param_hint="--directory")
    if directory is not None:
        os.chdir(directory)
    ctx.obj = Context(Path.cwd(), config_file, json_asked(as_json))


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code. Never a traceback for what can be said."""
    as_json = "--json" in arguments or json_asked(False)
    try:
        result: Any = cli.main(args=arguments, prog_name="dibs", standalone_mode=False)
    except click.exceptions.Abort:
        return int(Exit.INTERRUPTED)
    except click.ClickException as error:
        return _usage(error, as_json=as_json)
    except DibsError as error:
        return output.emit_error(error, for_error(error), as_json=as_json)
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        return output.unheard()
    except SystemExit as asked:
        return int(asked.code or 0) if isinstance(asked.code, int | None) else int(Exit.ERROR)
    return result if isinstance(result, int) else int(Exit.DONE)


def _usage(error: click.ClickException, *, as_json: bool) -> int:
    if as_json:
        said = {"code": "USAGE", "message": error.format_message(), "hint": "see dibs --help"}
        output.write_json({"ok": False, "exit": int(Exit.USAGE), "error": said})
    else:
        error.show(sys.stderr)
    return int(Exit.USAGE)
