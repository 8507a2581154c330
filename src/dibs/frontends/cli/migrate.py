"""`dibs migrate`: take over a repository from another system, for now the alfred state machine."""

import click

from dibs.frontends.cli.context import Context, command
from dibs.frontends.cli.output import Answer, Exit


@click.group("migrate")
def migrate_command() -> None:
    """Take over a repository from another system."""


@command("alfred", migrate_command)
@click.option("--apply", is_flag=True, help="Make the changes; without this they are only listed.")
@click.option(
    "--max-age-hours",
    type=click.FloatRange(min=0),
    default=4,
    show_default=True,
    metavar="N",
    help="How long a claim without a lease counts.",
)
def alfred_command(context: Context, apply: bool, max_age_hours: float) -> Answer:
    """Take over the labels and comments of the issue-claim state machine, as they are.

    Running work goes on. You may run the command often: a later run makes the remaining changes.
    """
    from dibs.label_state.adopting import Adopting
    from dibs.label_state.stale import age_of

    adopting = Adopting(context.services, window=age_of(max_age_hours), apply=apply)
    findings = list(adopting.adopt())
    changes = [finding for finding in findings if finding.changes]
    done = sum(finding.done for finding in changes)
    lines = []
    for finding in findings:
        mark = ""
        if finding.changes and not apply:
            mark = " (would change)"
        elif finding.changes:
            mark = " (done)" if finding.done else " (not done: the issue changed meanwhile)"
        lines.append(f"{finding.place} {finding.code.value}{mark}: {finding.text}")
    if changes and apply:
        lines.append(f"{done} of {len(changes)} changes done")
    elif changes:
        lines.append(f"{len(changes)} changes; nothing was written, --apply makes them")
    elif findings:
        lines.append(f"nothing to change; the {len(findings)} findings are above")
    else:
        lines.append("nothing to change")
    data = {
        "dry_run": not apply,
        "changes": len(changes),
        "done": done,
        "findings": [
            {
                "place": finding.place,
                "found": finding.code.value,
                "text": finding.text,
                "changes": finding.changes,
                "done": finding.done,
            }
            for finding in findings
        ],
    }
    code = Exit.DONE if changes else Exit.NOTHING
    if apply and done < len(changes):
        code = Exit.ERROR
    return Answer(data, lines, code)
