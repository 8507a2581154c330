"""Coming from another system: `dibs migrate alfred`."""

from typing import TYPE_CHECKING, Any

import click

from dibs.frontends.cli.context import Context, answering, as_json
from dibs.frontends.cli.output import Answer, Exit

if TYPE_CHECKING:
    from dibs.label_state.adopting import Finding


@click.group("migrate")
def migrate_command() -> None:
    """Take over a repository that another system has worked."""


@migrate_command.command("alfred")
@click.option("--apply", is_flag=True, help="Do it. Without this it only says what it would do.")
@click.option(
    "--max-age-hours",
    type=click.FloatRange(min=0),
    default=4,
    show_default=True,
    metavar="N",
    help="How long a claim without a lease counts.",
)
@as_json
@answering
def alfred_command(context: Context, apply: bool, max_age_hours: float) -> Answer:
    """Take over the labels and comments of the issue-claim state machine, as they are.

    What runs is left to run. Run it as often as you like: it changes what is left to change.
    """
    from dibs.label_state.adopting import Adopting
    from dibs.label_state.stale import age_of

    adopting = Adopting(context.services, window=age_of(max_age_hours), apply=apply)
    found = list(adopting.adopt())
    changes = [one for one in found if one.changes]
    data = {
        "dry_run": not apply,
        "changes": len(changes),
        "done": sum(one.done for one in changes),
        "findings": [_data(one) for one in found],
    }
    lines = [f"{one.place} {one.found.value}{_mark(one, apply=apply)}: {one.text}" for one in found]
    lines.append(_summary(found, changes, apply=apply))
    undone = apply and any(not one.done for one in changes)
    code = Exit.ERROR if undone else Exit.DONE if changes else Exit.NOTHING
    return Answer(data, lines, code)


def _data(finding: "Finding") -> dict[str, Any]:
    return {
        "place": finding.place,
        "found": finding.found.value,
        "text": finding.text,
        "changes": finding.changes,
        "done": finding.done,
    }


def _mark(finding: "Finding", *, apply: bool) -> str:
    if not finding.changes:
        return ""
    if not apply:
        return " (would change)"
    return " (done)" if finding.done else " (not done: it changed meanwhile)"


def _summary(found: "list[Finding]", changes: "list[Finding]", *, apply: bool) -> str:
    if not changes:
        return f"nothing to change; {len(found)} things are said above" if found else "all is well"
    if apply:
        return f"{sum(one.done for one in changes)} of {len(changes)} changes done"
    return f"{len(changes)} changes, nothing written; --apply does them"
