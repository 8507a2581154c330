"""Pull requests as stages: `dibs follow` does once what every worker does as it goes."""

import click

from dibs.frontends.cli.context import Context, answering, as_json, as_name, dry_run
from dibs.frontends.cli.exits import Exit
from dibs.frontends.cli.output import Answer


@click.command("follow")
@click.option("--limit", default=1000, show_default=True, type=click.IntRange(1, 1_000_000))
@as_name
@dry_run
@as_json
@answering
def follow_command(context: Context, limit: int, name: str | None, dry_run: bool) -> Answer:
    """Move issues where their pull requests went: on if merged, back if closed unmerged."""
    following = context.services.following
    stages = [stage.name for stage in following.stages]
    data: dict[str, object] = {"stages": stages, "dry_run": dry_run}
    if not stages:
        line = "no stage follows pull requests, or the tracker has none"
        return Answer({**data, "looked_at": 0, "followed": []}, [line], Exit.NOTHING)
    report = following.follow(context.holder(name), limit=limit, dry_run=dry_run)
    data |= {
        "looked_at": report.looked_at,
        "followed": [
            {"issue": str(entry.issue), "action": entry.action.value, "text": entry.text}
            for entry in report.followed
        ],
    }
    would = "would be " if dry_run else ""
    lines = [
        f"{entry.issue} {would if entry.changed else ''}{entry.action.value}: {entry.text}"
        for entry in report.followed
    ]
    if not report.changed:
        lines.append(f"nothing to follow: {report.looked_at} looked at in {', '.join(stages)}")
        return Answer(data, lines, Exit.NOTHING)
    return Answer(data, lines)
