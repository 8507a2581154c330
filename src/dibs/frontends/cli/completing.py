"""What the shell offers for an ISSUE or a RUN. Quick, silent, and without a request over a network.

Issues come from the embedded backlog, and elsewhere from the runs on this machine. Any failure
means that nothing is offered: the command itself will say what is wrong.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
import msgspec
from click.shell_completion import CompletionItem

from dibs.core.ids import IssueRef
from dibs.frontends.cli.context import Context
from dibs.frontends.cli.output import visible
from dibs.ports.tracker import IssueQuery
from dibs.settings.load import Settings, override

_MOST = 50
_LONGEST_NUMBER = 7
_Offered = tuple[str, str]
"""A value and the words that describe it."""


def issues(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    def offered(context: Context) -> Iterator[_Offered]:
        if _embedded(context.settings):
            found = _open_issues(context, incomplete)
        else:
            found = ((issue, title) for _, issue, title in _runs_here(context.settings))
        yield from found

    return _items(ctx, incomplete, offered)


def runs(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    def offered(context: Context) -> Iterator[_Offered]:
        if _embedded(context.settings) and context.settings.leases == "auto":
            for record in context.services.board.overview().in_flight:
                lease = record.lease
                yield lease.run, f"{lease.issue} {lease.stage}, held by {lease.holder}"
        for run, issue, title in _runs_here(context.settings):
            yield run, f"{issue} {title}"

    return _items(ctx, incomplete, offered)


def _items(
    ctx: click.Context, incomplete: str, offered: Callable[[Context], Iterable[_Offered]]
) -> list[CompletionItem]:
    """The first values that begin like what was typed, each once."""
    asked = ctx.find_root().params
    folder = Path(asked.get("directory") or ".").absolute()
    file = asked.get("config_file") or os.environ.get("DIBS_CONFIG")
    context = Context(folder, Path(file) if file else None, as_json=False)
    found: dict[str, str] = {}
    try:
        for value, about in offered(context):
            if value.startswith(incomplete) and value.isprintable():
                found.setdefault(value, about)
            if len(found) == _MOST:
                break
    except Exception:  # noqa: BLE001, S110 - a shell must not show why it has no more to offer
        pass
    finally:
        context.close()
    return [CompletionItem(value, help=visible(about)) for value, about in found.items()]


def _embedded(settings: Settings) -> bool:
    return settings.tracker.startswith("sqlite:")


def _open_issues(context: Context, incomplete: str) -> Iterator[_Offered]:
    """Open issues whose number begins with what was typed: of 12, also 120 to 129 and so on."""
    if incomplete and not incomplete.isdecimal():
        return
    tracker = context.connect(override(context.settings, leases="auto")).tracker
    for power in range(_LONGEST_NUMBER - len(incomplete)) if incomplete else (0,):
        first = int(incomplete or 1) * 10**power
        query = IssueQuery(after=IssueRef("", str(first - 1)), limit=_MOST)
        for issue in tracker.find(query).issues:
            yield issue.ref.typed, issue.title


def _runs_here(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """The newest runs of handlers on this machine: run, issue and title."""
    folders = sorted(settings.runs.iterdir(), key=lambda run: run.stat().st_mtime, reverse=True)
    for folder in folders[: 4 * _MOST]:
        try:
            given = msgspec.json.decode((folder / "issue.json").read_bytes())
            yield folder.name, str(given["issue"]).removeprefix("#"), str(given["title"])
        except (OSError, ValueError, LookupError, TypeError):
            continue
