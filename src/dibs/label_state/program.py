"""`label-state`: for people beside a fleet, and for its daily clean-up.

Translates words into calls of this package. Exit codes are the published ones: 0 for yes and done,
1 for not claimable and for what is not understood, 2 for refused and for a missing argument.
"""

import json
import logging
import os
import re
from collections.abc import Sequence
from datetime import timedelta

import click

from dibs._version import __version__
from dibs.core.errors import DibsError, Misuse
from dibs.label_state import labels
from dibs.label_state.adopting import Examined, examine
from dibs.label_state.backlogs import Backlog, backlog_of
from dibs.label_state.claims import dry_run as rehearsing
from dibs.label_state.labels import LabelStateConfig
from dibs.label_state.pauses import list_paused_repos, set_repo_paused
from dibs.label_state.stale import Stale, age_of, free, stale_claims

_REFERENCE = re.compile(r"((?:[\w.-]+/)?[\w.-]+)#([1-9][0-9]{0,17})", re.ASCII)
_OK, _NO, _REFUSED = 0, 1, 2
NAMES = ("label-state", "alfred-label-state")
"""What the documents call it; the second one is the name that fleets have it under."""


class BadReference(click.ClickException):
    exit_code = _NO


class Refused(click.ClickException):
    exit_code = _REFUSED


def _reference(text: str) -> tuple[str, int]:
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise BadReference(f"{text[:80]!r} is not of the form REPO#N or OWNER/REPO#N")
    return match[1], int(match[2])


_issue = click.argument("issue", metavar="REPO#N", type=_reference)
_as_json = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Take issues and repositories by hand, beside a fleet of agents."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")


def run(arguments: Sequence[str], *, name: str = NAMES[0]) -> int:
    """Run one command line; returns the exit code."""
    if os.environ.get("ALFRED_DOCTOR") == "1":
        click.echo(f"[{name.upper()}-DOCTOR-OK]")
        return _OK
    try:
        code = cli.main(args=list(arguments), prog_name=name, standalone_mode=False)
    except click.exceptions.Abort:
        return _NO
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except DibsError as error:
        click.echo(f"{error} ({error.code})", err=True)
        return _NO
    return code if isinstance(code, int) else _OK


# One issue


@cli.command()
@_issue
@click.option(
    "--force", is_flag=True, help="Also if an agent is at it: it stops and gives it back."
)
def claim(issue: tuple[str, int], force: bool) -> int:  # noqa: FBT001
    """Take an issue yourself: agents leave it alone (do-not-pickup)."""
    slug, number = issue
    found = _look(slug, number)
    told = found.told()
    if told["pr_open"]:
        raise Refused(f"{slug}#{number} has a pull request open")
    if told["in_flight"] and not force:
        raise Refused(
            f"{slug}#{number} is being worked: {_first(found)}; it is over when its agent is done"
        )
    _edit(slug, number, add=(labels.DO_NOT_PICKUP,))
    click.echo(f"{slug}#{number} is yours: agents leave it alone")
    return _OK


@cli.command()
@_issue
def release(issue: tuple[str, int]) -> int:
    """Give an issue back that you took."""
    slug, number = issue
    _edit(slug, number, remove=(labels.DO_NOT_PICKUP,))
    click.echo(f"{slug}#{number} is not yours any more")
    return _OK


@cli.command("dedup-check")
@_issue
@_as_json
def dedup_check(issue: tuple[str, int], as_json: bool) -> int:  # noqa: FBT001
    """Whether an issue is free to be worked: 0 if it is, 1 if not."""
    found = examine(*issue)
    if as_json:
        _write(_told(found))
    elif found.claimable:
        click.echo(f"{found.slug}#{found.number} is free")
    else:
        click.echo(f"{found.slug}#{found.number} is not free: {', '.join(found.reasons)}")
    return _OK if found.claimable else _NO


@cli.command("status-issue")
@_issue
@_as_json
def status_issue(issue: tuple[str, int], as_json: bool) -> int:  # noqa: FBT001
    """Everything that dedup-check looks at."""
    told = _told(_look(*issue))
    if as_json:
        _write(told)
    else:
        for key, value in told.items():
            shown = json.dumps(value) if isinstance(value, dict | list) else value
            click.echo(f"{key:<18} {shown}")
    return _OK


def _look(slug: str, number: int) -> Examined:
    found = examine(slug, number)
    if found.thread is None:
        raise click.ClickException(f"{slug}#{number}: {', '.join(found.reasons)}")
    return found


def _told(found: Examined) -> dict[str, object]:
    told = found.told()
    return told if found.claimable else {**told, "reasons": list(found.reasons)}


def _first(found: Examined) -> str:
    return next((one for one in found.reasons if one.startswith("in-flight")), "in-flight")


def _edit(slug: str, number: int, *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
    if rehearsing():
        click.echo("a dry run: nothing is written", err=True)
        return
    backlog = backlog_of(slug)
    backlog.services.tracker.edit_labels(backlog.ref(number), add=add, remove=remove)


# A repository


@cli.group()
def repo() -> None:
    """Take a whole repository offline, and back."""


def _named(_: click.Context, __: click.Parameter, slug: str) -> str:
    if not slug.strip():
        raise click.BadParameter("it names no repository")
    return slug


@repo.command("pause")
@click.argument("slug", metavar="REPO", callback=_named)
def repo_pause(slug: str) -> int:
    """Nobody claims anything in it."""
    set_repo_paused(slug, True)
    click.echo(f"{slug} is paused")
    return _OK


@repo.command("resume")
@click.argument("slug", metavar="REPO", callback=_named)
def repo_resume(slug: str) -> int:
    """It is worked again."""
    set_repo_paused(slug, False)
    click.echo(f"{slug} is not paused")
    return _OK


@repo.command("list")
@click.argument("slug", metavar="[REPO]", required=False)
@_as_json
def repo_list(slug: str | None, as_json: bool) -> int:  # noqa: ARG001, FBT001 - it was always allowed
    """What is paused on this machine."""
    paused = list_paused_repos()
    if as_json:
        _write({"paused": paused})
    else:
        click.echo("\n".join(paused) if paused else "nothing is paused")
    return _OK


# Sweeping


def _aged(_: click.Context, __: click.Parameter, hours: float) -> float:
    """Understood before anything is swept."""
    try:
        age_of(hours)
    except Misuse as flaw:
        raise click.BadParameter(str(flaw)) from flaw
    return hours


@cli.command("sweep-claims")
@click.option(
    "--max-age-hours", type=float, default=4, show_default=True, metavar="N", callback=_aged
)
@click.option("--repo", "slugs", multiple=True, metavar="REPO", help="Instead of the variable's.")
@click.option("--dry-run", is_flag=True, help="Say what would be released; write nothing.")
@_as_json
def sweep_claims(
    max_age_hours: float,
    slugs: tuple[str, ...],
    dry_run: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> int:
    """Give issues back whose claim is over: of every repository in LABEL_STATE_SWEEP_REPOS."""
    dry_run = dry_run or rehearsing()
    repos = slugs or LabelStateConfig.from_env().sweep_repos
    if not repos:
        raise Refused("no repository to sweep: say --repo, or set LABEL_STATE_SWEEP_REPOS")
    swept = {slug: _swept(slug, max_age_hours, dry_run=dry_run) for slug in repos}
    rows = [row for found in swept.values() for row in found or ()]
    unread = [slug for slug, found in swept.items() if found is None]
    if as_json:
        _write({"dry_run": dry_run, "claims": rows, "not_swept": unread})
    else:
        for row in rows:
            click.echo(_sentence(row))
        click.echo(f"{len(rows)} stale claims" + (", nothing written" if dry_run else ""))
    return _NO if len(unread) == len(swept) else _OK


def _swept(slug: str, max_age_hours: float, *, dry_run: bool) -> list[dict[str, object]] | None:
    """One repository that cannot be read does not keep the others from being swept: None."""
    try:
        backlog, max_age = backlog_of(slug), age_of(max_age_hours)
        found = list(stale_claims(backlog, max_age))
        return [
            {
                **one.row(slug, max_age_hours),
                "released": "" if dry_run else _released(backlog, one, max_age),
            }
            for one in found
        ]
    except DibsError as failure:
        click.echo(f"{slug}: not swept: {failure} ({failure.code})", err=True)
        return None


def _released(backlog: Backlog, stale: Stale, max_age: timedelta) -> str:
    sweep_id = stale.thread.now.strftime("%Y%m%d-%H%M%S-manual")
    try:
        answer = free(backlog, stale, sweep_id=sweep_id, max_age=max_age)
    except DibsError as failure:
        click.echo(f"{stale.thread.issue.ref}: not released: {failure}", err=True)
        return failure.code
    return "yes" if answer else answer.reason


def _sentence(row: dict[str, object]) -> str:
    what = f"{row['repo']}#{row['number']} {row['codename']}:{row['firing_id']}"
    age = (
        "no claim says whose it is" if row.get("missing_claim") else f"{row['age_hours']} h silent"
    )
    drift = ", its label is gone" if row["label_drift"] else ""
    done = f": released {row['released']}" if row["released"] else ""
    return f"{what}, {age}{drift}{done}"


def _write(told: dict[str, object]) -> None:
    click.echo(json.dumps(_plain(told), indent=2))


def _plain(value: object) -> object:
    """JSON knows no infinity."""
    match value:
        case dict():
            return {key: _plain(one) for key, one in value.items()}
        case list():
            return [_plain(one) for one in value]
        case float() if value == float("inf"):
            return None
        case _:
            return value
