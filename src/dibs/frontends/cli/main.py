"""The entry of the program, and the list of commands: each is imported when it is called."""

import gc
import importlib
import os
import sys
from typing import Any

import click
from click.core import ParameterSource

from dibs._version import __version__

# Each command, its module, and its line in `dibs --help`, which is printed without the module.
# No module: another distribution has the command, as an entry point of `dibs.commands`.
COMMANDS: dict[str, tuple[str | None, str]] = {
    "init": ("setup", "Write a dibs.toml and make the backlog ready."),
    "config": ("setup", "Look at the configuration: show, validate, schema."),
    "completion": (
        "setup",
        "Print the completion script for a shell; evaluate it in the shell's start-up file.",
    ),
    "help": ("setup", "Show the commands in groups, or the help of COMMAND."),
    "add": (
        "issues",
        "Add issues to the backlog, one per TITLE; `-` reads titles from standard input.",
    ),
    "list": ("issues", "List issues with their stage and who holds them, the oldest first."),
    "ready": ("issues", "List issues that could be claimed now, the most urgent first."),
    "show": ("issues", "Show an issue: stage, lease, history and text."),
    "claim": ("leasing", "Claim an issue and print its run and fence."),
    "heartbeat": ("leasing", "Renew a lease that `dibs claim` gave you."),
    "keep": ("keep", "Run a command, and renew the lease of a run until the command ends."),
    "release": (
        "leasing",
        "End a lease: advance the issue, give it back, count a failed attempt, or park the issue.",
    ),
    "prime": ("prime", "Print how an AI agent works in this backlog, with the exact commands."),
    "fence": ("fencing", "Check whether a run still holds its issue: check."),
    "work": ("work", "Work issues: claim one, run its stage's handler, advance it; then the next."),
    "listen": ("listen", "Wake the workers of this folder when the tracker reports a change."),
    "hold": ("named", "Run a command while holding NAME, alone or as one of --slots."),
    "loop": (
        "named",
        "Run all loops, or those named: in each window, one replica runs the command.",
    ),
    "take": ("people", "Take an issue yourself."),
    "give-back": ("people", "Give back an issue you took: to its own stage, or on to another."),
    "approve": (
        "people",
        "Approve issues that wait at a gate, and move them on where no handler has work first.",
    ),
    "reject": ("people", "Reject what stands at an issue's gate: it goes back, with your note."),
    "plan": ("people", "Post a plan on an issue, for a person to approve at its gate."),
    "label": ("people", "Change an issue's labels by hand, as you would in a tracker's own pages."),
    "pause": ("people", "Pause issues, the repository or the whole fleet."),
    "resume": ("people", "Lift a pause, or re-queue a parked issue with all its attempts."),
    "revoke": ("people", "Take a lease away from its holder."),
    "why": (
        "operating",
        "Say why an issue is not being picked: every reason, and what would have to change.",
    ),
    "status": ("operating", "Show the stages, and the issues in flight with their holders."),
    "runs": (
        "operating",
        "Show the runs of an issue, the latest runs on this machine, or the output of a run.",
    ),
    "sweep": ("operating", "Free expired issues, and finish endings that a crash left half shown."),
    "follow": (
        "listen",
        "Move issues where their pull requests went: on if merged, back if closed unmerged.",
    ),
    "fsck": ("operating", "Compare every issue's labels with its cards and leases."),
    "budget": (
        "budget",
        "Show the tracker's remaining request limits, and the requests of the last hour.",
    ),
    "doctor": ("doctor", "Check settings, tracker, store, keys and handlers; name every problem."),
    "hook": ("hook", "Refuse pushes for issues that another holds or that have a pull request."),
    "leases": (
        "stores",
        "Show which store grants leases, move them, or own a namespace: show, migrate, adopt.",
    ),
    "migrate": ("migrate", "Take over a repository from another system."),
    "stores": (
        "stores",
        "Show the promises of each lease store, and the state of the configured store.",
    ),
    "demo": (
        "demo",
        "Drain a fresh backlog with several workers; kill one, freeze another; show the outcome.",
    ),
    "simulate": (
        None,
        "Simulate a fleet: throughput, takeovers, duplicate starts, API requests.",
    ),
}


# The groups of `dibs --help`, with a few words for each command: two columns fit a screen.
GROUPS: dict[str, dict[str, str]] = {
    "Every day": {
        "add": "add issues",
        "list": "list issues and holders",
        "ready": "list what can be claimed",
        "show": "show an issue",
        "why": "why it is not picked",
        "work": "work issues by handlers",
        "status": "stages, work in flight",
        "runs": "runs and their output",
    },
    "Agents": {
        "claim": "claim an issue",
        "keep": "renew while it runs",
        "heartbeat": "renew your lease",
        "release": "end your lease",
        "fence": "check that a run holds",
        "hold": "run a command alone",
        "loop": "run once in each window",
        "prime": "how agents work here",
    },
    "People": {
        "take": "take an issue yourself",
        "give-back": "give it back or pass on",
        "approve": "say yes at a gate",
        "reject": "say no at a gate",
        "plan": "post a plan to approve",
        "label": "change labels",
        "pause": "keep workers off",
        "resume": "lift a pause, or unpark",
        "revoke": "take a lease away",
        "hook": "check pushes for holders",
    },
    "Operators": {
        "doctor": "check the set-up",
        "fsck": "check labels and leases",
        "sweep": "free expired issues",
        "follow": "move with pull requests",
        "listen": "wake workers by webhooks",
        "budget": "show request limits",
        "leases": "show or move leases",
        "stores": "compare lease stores",
    },
    "Setup": {
        "init": "write dibs.toml",
        "config": "show and check settings",
        "completion": "complete in your shell",
        "migrate": "leave another system",
        "demo": "a fleet survives kills",
        "simulate": "try a fleet's settings",
        "help": "help of a command",
    },
}


# Who gives each command inside a run, that is where DIBS_RUN is set: `core.roles.GivenBy`.
GIVEN_BY: dict[str, str] = {
    **dict.fromkeys(
        (
            *("add", "list", "ready", "show", "why", "status", "runs", "budget", "doctor"),
            *("config show", "config validate", "config schema", "leases show", "stores"),
            *("prime", "fence check", "hold", "hook run", "completion", "help", "simulate"),
        ),
        "everybody",
    ),
    **dict.fromkeys(("heartbeat", "keep", "release", "plan"), "the holder of the run"),
    "claim": "an agent that drives itself",
    **dict.fromkeys(
        (
            *("take", "give-back", "approve", "reject", "label", "pause", "resume"),
            "revoke",
            *("work", "listen", "loop", "sweep", "follow", "fsck", "leases migrate"),
            "leases adopt",
            *("init", "hook install", "hook uninstall", "migrate alfred", "demo"),
        ),
        "an operator",
    ),
}


# Commands with time and origin in their log lines. All others print a warning as plain text.
LONG_RUNNING = {
    "work",
    "listen",
    "keep",
    "hold",
    "loop",
    "follow",
    "sweep",
    "migrate",
    "demo",
    "simulate",
}


class LazyGroup(click.Group):
    """Imports the module of a command only when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command, from its module or from another distribution.

        If the distribution is not installed: a command that raises BadConfiguration.
        """
        if cmd_name not in COMMANDS:
            return None
        command: click.Command
        module_name, about = COMMANDS[cmd_name]
        if module_name is not None:
            module = importlib.import_module(f"dibs.frontends.cli.{module_name}")
            command = getattr(module, cmd_name.replace("-", "_") + "_command")
            return command
        from importlib.metadata import entry_points

        found = entry_points(group="dibs.commands", name=cmd_name)
        if found:
            command = found[cmd_name].load()
            return command
        about = f"{about} Needs the distribution dibs-lab, which is not installed."

        @click.command(cmd_name, help=about, context_settings={"ignore_unknown_options": True})
        @click.argument("arguments", nargs=-1)
        def missing(arguments: tuple[str, ...]) -> None:  # noqa: ARG001
            from dibs.core.errors import BadConfiguration

            hint = f"install it with: pip install dibs-lab=={__version__}"
            text = f"dibs {cmd_name} needs the distribution dibs-lab, which is not installed"
            raise BadConfiguration(text, hint=hint)

        return missing

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        names = max(map(len, COMMANDS)) + 2
        cells = names + max(len(few) for group in GROUPS.values() for few in group.values()) + 1
        columns = 2 if 2 * cells + 2 <= formatter.width else 1
        formatter.write_paragraph()
        for title, group in GROUPS.items():
            entries = [f"{name:<{names}}{few}" for name, few in group.items()]
            rows = -(-len(entries) // columns)
            formatter.write(f"{title}:\n")
            for row in range(rows):
                line = "".join(f"  {entry:<{cells}}" for entry in entries[row::rows])
                formatter.write(f"{line.rstrip()}\n")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if args[0] in COMMANDS:
                raise
            from dibs.frontends.cli.suggesting import suggestion

            meant = suggestion(args[0], COMMANDS)
            advice = f"Did you mean {meant!r}?" if meant else "dibs help lists the commands."
            raise click.UsageError(f"{error.message} {advice}", ctx) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dibs", message="%(prog)s %(version)s")
@click.option("-C", "--directory", type=click.Path(), help="Run as if started in this folder.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(),
    envvar="DIBS_CONFIG",
    help="The configuration file, or a folder to search from [$DIBS_CONFIG].",
)
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON [$DIBS_JSON].")
@click.option("-v", "--verbose", count=True, help="Log to standard error; -vv logs more.")
@click.pass_context
def cli(
    ctx: click.Context,
    directory: str | None,
    config_file: str | None,
    as_json: bool,
    verbose: int,
) -> None:
    """Many agents, many people, one backlog: nobody works the same issue twice."""
    from pathlib import Path

    from dibs.frontends.cli.context import Context, json_asked

    if ctx.invoked_subcommand in LONG_RUNNING:
        gc.enable()
    if verbose or ctx.invoked_subcommand in LONG_RUNNING:
        import logging

        from dibs.wiring import clean_record

        level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
        shape = "%(asctime)s %(name)s %(levelname)s %(message)s"
        logging.basicConfig(level=level, stream=sys.stderr, format=shape)
        for handler in logging.getLogger().handlers:
            handler.addFilter(clean_record)
    if directory is not None:
        folder = Path(directory)
        if not folder.is_dir():
            raise click.BadParameter(f"{folder} is not a folder", param_hint="--directory")
        os.chdir(folder)
    if config_file == "":  # a script whose variable is not set; as a path it would be this folder
        from dibs.core.errors import BadConfiguration

        raise BadConfiguration("the configuration '' cannot be read: its name is empty")
    file = Path(config_file) if config_file is not None else None
    from_environment = ctx.get_parameter_source("config_file") is ParameterSource.ENVIRONMENT
    if from_environment and (directory is not None or ctx.invoked_subcommand == "init"):
        file = None  # a handler that names a folder, or begins a backlog, means that one
    ctx.obj = Context(Path.cwd(), file, json_asked(as_json))


def run(arguments: list[str]) -> int:
    """Run a command line and return the exit code.

    Errors of dibs and of click are printed; an error of any other kind is a bug, and is raised.
    """
    try:
        result: Any = cli.main(args=arguments, prog_name="dibs", standalone_mode=False)
    except SystemExit as asked:
        return int(asked.code or 0) if isinstance(asked.code, int | None) else 1
    except (KeyboardInterrupt, click.exceptions.Abort):
        return 130  # Exit.INTERRUPTED, without an import that another Ctrl-C could break off
    except BaseException as error:
        from dibs.core.errors import DibsError
        from dibs.frontends.cli import output
        from dibs.frontends.cli.context import json_asked
        from dibs.frontends.cli.output import Exit
        from dibs.wiring import mask

        as_json = json_asked("--json" in arguments)
        match error:
            case click.ClickException() if as_json:
                problem = {
                    "code": "USAGE",
                    "message": mask(error.format_message()),
                    "hint": "see dibs --help",
                }
                output.write_json({"ok": False, "exit": int(Exit.USAGE), "error": problem})
                return int(Exit.USAGE)
            case click.ClickException():
                import io

                # It quotes arguments: a line break in one would begin a line of its own.
                error.message = output.visible(error.message)  # type: ignore[misc]
                error.show(shown := io.StringIO())
                for line in output.text_lines(shown.getvalue()):
                    output.tell(line)
                return int(Exit.USAGE)
            case DibsError():
                return output.emit_error(error, as_json=as_json)
            case BrokenPipeError():
                return output.unheard()
        raise
    return result if isinstance(result, int) else 0
