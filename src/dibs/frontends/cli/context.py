"""Shared by all commands: where the backlog is, who asks, how the answer is printed."""

import errno
import functools
import gc
import os
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct, field
from msgspec.structs import replace

from dibs.core.durations import parse_duration
from dibs.core.errors import DibsError, NotPermitted, Unavailable, Unwritable
from dibs.core.ids import HolderId, IssueRef, holder_name
from dibs.core.references import parse_reference
from dibs.frontends.cli import output
from dibs.frontends.cli.output import Answer
from dibs.settings import load as config
from dibs.settings.load import Settings

if TYPE_CHECKING:  # imported late, for a fast start of the program
    from dibs.wiring.services import Services


_BY_CARDS = "leases are shown as their cards have them"


class Context(Struct):
    directory: Path
    config_file: Path | None
    as_json: bool
    creates: bool = False
    """Whether the command creates a missing backlog; to all others it is an error."""
    onlooks: bool = False
    """Whether the command only reads, and may read leases from the cards on the tracker."""
    warnings: list[str] = field(default_factory=list)
    """What an onlooker should know of the store."""
    done: Mapping[str, Any] = {}
    """What a command had done when it failed, for the error in JSON."""
    store_away: str = ""
    """Why the lease store cannot be reached; then the services read leases from the cards."""
    _services: "Services | None" = field(default=None)

    @property
    def settings(self) -> Settings:
        return config.load(self.config_file, start=self.directory)

    @property
    def services(self) -> "Services":
        """The services, connected at the first use: `--help` and `config` open no backlog."""
        return self.connect(None)

    def connect(self, settings: Settings | None) -> "Services":
        from dibs.wiring.services import backlog_is_absent, connect, unused_above

        if not gc.isenabled():  # dibs.__main__ disables it for the start, which is over now
            gc.freeze()
            gc.enable()
        if self._services is None:
            settings = settings or self.settings
            if self.creates and backlog_is_absent(settings):
                output.tell(unused_above(settings))
            self._services = connect(
                settings,
                author=_of_printable(config.actor()),
                create=self.creates,
            )
            # Warnings of a short command go to logging's last resort, if anything logs at all.
            if (last := getattr(sys.modules.get("logging"), "lastResort", None)) is not None:
                from dibs.wiring import clean_record

                last.addFilter(clean_record)
            if self.onlooks:
                self._services = self._granted_elsewhere(self._services)
        return self._services

    def _granted_elsewhere(self, services: "Services") -> "Services":
        """The services, by the cards if another store has the leases; notes a warning if so.

        Where reading costs and the comments are the leases, any onlooker sees all of them.
        """
        if services.adapters.store is None and not services.tracker.traits.cheap_reads:
            return services
        reasons = services.granting.objections()
        self.warnings += [f"{reason.text}; {reason.remedy}" for reason in reasons]
        if not reasons or services.granting.keeps_house():
            return services
        by_cards = services.shown_by_cards()
        self.warnings += [_BY_CARDS] if by_cards is not None else []
        return by_cards or services

    def looked_up(self, ask: Callable[[], Answer]) -> Answer:
        """The answer, with a warning if this store grants nothing.

        From the cards on the tracker if the lease store cannot be reached, or if the leases are in
        another store. If the tracker cannot be reached, the second attempt fails in the same way.
        """
        self.onlooks = True
        try:
            answer = ask()
        except Unavailable as outage:
            by_cards = self._services.shown_by_cards() if self._services is not None else None
            if by_cards is None:
                raise
            self._services, self.store_away = by_cards, str(outage)
            away = f"the lease store cannot be reached; {_BY_CARDS}: {self.store_away}"
            self.warnings.append(away)
            answer = ask()
        return replace(answer, warnings=tuple(dict.fromkeys((*self.warnings, *answer.warnings))))

    def ref(self, text: str) -> IssueRef:
        traits = self.services.tracker.traits
        return parse_reference(text, default_repo=traits.repo, repos=traits.repos)

    def holder(self, name: str | None) -> HolderId:
        return holder_name(_of_printable(name or config.actor()))

    def close(self) -> None:
        if self._services is not None:
            self._services.close()


def _of_printable(name: str) -> str:
    """The name, unless a card that shows it could do more than show it. Raises UsageError."""
    if output.visible(name) == name and "\t" not in name:
        return name
    text = f"a name may not contain control characters: '{output.visible(name)}'"
    raise click.UsageError(f"{text}; it comes from --as, --name, DIBS_ACTOR or your login")


def json_asked(value: bool) -> bool:
    return value or os.environ.get("DIBS_JSON", "") not in ("", "0")


def command(
    name: str, group: click.Group | None = None, *, onlooker: bool = False
) -> Callable[[Callable[..., Answer]], click.Command]:
    """Make a function a command of the program or of a group, with the option `--json`.

    The command prints the function's answer and exits with the answer's code. It prints errors of
    dibs too, and failures to write the output. The command of an `onlooker` only reads: while the
    lease store cannot be reached, it answers from the cards on the tracker, with a warning.
    """

    def make(function: Callable[..., Answer]) -> click.Command:
        @click.command(name)
        @functools.wraps(function)
        @click.pass_obj
        def made(context: Context, /, *args: Any, as_json: bool, **kwargs: Any) -> None:
            context.as_json |= as_json
            try:
                if "DIBS_RUN" in os.environ:
                    from dibs.core import roles
                    from dibs.frontends.cli.main import GIVEN_BY

                    path = click.get_current_context().command_path
                    given_by = GIVEN_BY.get(path.partition(" ")[2], roles.GivenBy.OPERATOR)
                    roles.insist_may(path, given_by, roles.surrounding(os.environ))
                asked = functools.partial(function, context, *args, **kwargs)
                answer = context.looked_up(asked) if onlooker else asked()
                code = output.emit(answer, as_json=context.as_json)
            except DibsError as error:
                code = output.emit_error(error, as_json=context.as_json, done=context.done)
            except BrokenPipeError:
                code = output.unheard()
            except OSError as failure:
                if failure.filename is None:  # a stream's: buffered output cannot be written either
                    output.unheard()
                code = output.emit_error(_of_files(failure), as_json=context.as_json)
            finally:
                context.close()
            if code:
                raise SystemExit(code)

        made.params.append(
            click.Option(
                ["--json", "as_json"],
                is_flag=True,
                help="Answer with one JSON object on standard output.",
            )
        )
        if group is not None:
            group.add_command(made)
        return made

    return make


def _of_files(failure: OSError) -> DibsError:
    """A failure of the file system as an error of dibs: NotPermitted, or else Unwritable."""
    if isinstance(failure, PermissionError) or failure.errno == errno.EROFS:
        refused = NotPermitted(str(failure))
        refused.hint = Unwritable.hint
        return refused
    return Unwritable(str(failure))


dry_run = click.option("--dry-run", is_flag=True, help="Say what would be done; write nothing.")
as_name = click.option(
    "--as", "name", metavar="NAME", help="Your name, for cards and comments [$DIBS_ACTOR]."
)
stage_option = click.option("--stage", metavar="STAGE", help="Only this stage.")


def duration(_: click.Context, __: click.Parameter, value: str | None) -> timedelta | None:
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as flaw:
        raise click.BadParameter(str(flaw)) from flaw


def complete_issue(ctx: click.Context, _: click.Parameter, incomplete: str) -> "list[Any]":
    """What the shell offers where an ISSUE is to be typed."""
    from dibs.frontends.cli import completing

    return completing.issues(ctx, incomplete)


def complete_run(ctx: click.Context, _: click.Parameter, incomplete: str) -> "list[Any]":
    """What the shell offers where a RUN is to be typed."""
    from dibs.frontends.cli import completing

    return completing.runs(ctx, incomplete)


reference = click.argument("issue", metavar="ISSUE", shell_complete=complete_issue)
