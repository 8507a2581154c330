"""The program `label-state`, for people who work beside a fleet and for the daily clean-up.

Translates command lines into calls of this package. Exit codes are the published ones: 0 for yes
and done, 1 for not claimable and for an unreadable reference or a failing tracker, 2 for refused
and for a missing argument.
"""

import io
import json
import logging
import os
import re
from collections.abc import Sequence

import click

from dibs._version import __version__
from dibs.core.durations import format_instant
from dibs.core.errors import DibsError, HandlerMayNot, Misuse
from dibs.core.roles import GivenBy, insist_may, surrounding
from dibs.core.words import visible
from dibs.label_state import labels
from dibs.label_state.adopting import examine
from dibs.label_state.backlogs import backlog_of
from dibs.label_state.backlogs import dry_run as rehearsing
from dibs.label_state.labels import LabelStateConfig
from dibs.label_state.pauses import list_paused_repos, set_repo_paused
from dibs.label_state.stale import age_of, free, silent_on, stale_on, suspects
from dibs.wiring import clean_record, mask

_REFERENCE = re.compile(r"((?:[\w.-]+/)?[\w.-]+)#([1-9][0-9]{0,17})", re.ASCII)
_OK, _NO, _REFUSED = 0, 1, 2
NAMES = ("label-state", "alfred-label-state")
"""The documented name, and the name under which fleets have the program installed."""


class UnreadableReference(click.ClickException):
    exit_code = _NO


class CommandRefused(click.ClickException):
    exit_code = _REFUSED


def _reference(text: str) -> tuple[str, int]:
    """Split REPO#N or OWNER/REPO#N into slug and number."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise UnreadableReference(f"{text[:80]!r} is not of the form REPO#N or OWNER/REPO#N")
    return match[1], int(match[2])


class OperatorsCommand(click.Command):
    """A command which decides for others: it is refused inside a run of dibs."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            insist_may(ctx.command_path, GivenBy.OPERATOR, surrounding(os.environ))
        except HandlerMayNot as refusal:
            raise CommandRefused(f"{refusal} ({refusal.code})") from refusal
        return super().invoke(ctx)


_issue = click.argument("issue", metavar="REPO#N", type=_reference)
_as_json = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Take issues and repositories by hand, beside a fleet of agents."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(clean_record)


def _say(text: str, *, err: bool = False) -> None:
    """Print lines without secrets and control characters: labels and names are strangers' words."""
    for line in mask(text).split("\n"):
        click.echo(visible(line), err=err)


def run(arguments: Sequence[str], *, name: str = NAMES[0]) -> int:
    """Run a command line and return the exit code."""
    if os.environ.get("ALFRED_DOCTOR") == "1":
        _say(f"[{name.upper()}-DOCTOR-OK]")
        return _OK
    try:
        code = cli.main(args=list(arguments), prog_name=name, standalone_mode=False)
    except click.exceptions.Abort:
        return _NO
    except click.ClickException as error:
        error.message = visible(error.message)  # type: ignore[misc]
        error.show(shown := io.StringIO())
        _say(shown.getvalue().rstrip("\n"), err=True)
        return error.exit_code
    except DibsError as error:
        _say(f"{error} ({error.code})", err=True)
        return _NO
    return code if isinstance(code, int) else _OK


# One issue


@cli.command(cls=OperatorsCommand)
@_issue
@click.option(
    "--force", is_flag=True, help="Also if an agent is at it: it stops and gives it back."
)
def claim(issue: tuple[str, int], force: bool) -> int:  # noqa: FBT001
    """Take an issue yourself: agents leave it alone (do-not-pickup)."""
    slug, number = issue
    facts, reasons = _readable(slug, number)
    if facts["pr_open"]:
        raise CommandRefused(f"{slug}#{number} has a pull request open")
    if facts["in_flight"] and not force:
        claims = (reason for reason in reasons if reason.startswith("in-flight"))
        worker = next(claims, "in-flight")
        raise CommandRefused(
            f"{slug}#{number} is being worked: {worker}; it is over when its agent is done"
        )
    _edit(slug, number, add=(labels.DO_NOT_PICKUP,))
    _say(f"{slug}#{number} is yours: agents leave it alone")
    return _OK


@cli.command(cls=OperatorsCommand)
@_issue
def release(issue: tuple[str, int]) -> int:
    """Give back an issue that you took."""
    slug, number = issue
    _edit(slug, number, remove=(labels.DO_NOT_PICKUP,))
    _say(f"{slug}#{number} is not yours any more")
    return _OK


@cli.command("dedup-check")
@_issue
@_as_json
def dedup_check(issue: tuple[str, int], as_json: bool) -> int:  # noqa: FBT001
    """Check whether an issue is free to be worked. Exit 0 if free, 1 if not."""
    (slug, number), (facts, reasons) = issue, examine(*issue)
    if as_json:
        _write(_with_reasons(facts, reasons))
    elif reasons:
        _say(f"{slug}#{number} is not free: {', '.join(reasons)}")
    else:
        _say(f"{slug}#{number} is free")
    return _NO if reasons else _OK


@cli.command("status-issue")
@_issue
@_as_json
def status_issue(issue: tuple[str, int], as_json: bool) -> int:  # noqa: FBT001
    """Show all facts behind the answer of dedup-check."""
    facts = _with_reasons(*_readable(*issue))
    if as_json:
        _write(facts)
    else:
        for key, value in facts.items():
            shown = json.dumps(value) if isinstance(value, dict | list) else value
            _say(f"{key:<18} {shown}")
    return _OK


def _readable(slug: str, number: int) -> tuple[dict[str, object], tuple[str, ...]]:
    """Examine an issue. Raises a ClickException if the issue cannot be read."""
    facts, reasons = examine(slug, number)
    if facts["state"] == "UNKNOWN":
        raise click.ClickException(f"{slug}#{number}: {', '.join(reasons)}")
    return facts, reasons


def _with_reasons(facts: dict[str, object], reasons: tuple[str, ...]) -> dict[str, object]:
    return {**facts, "reasons": list(reasons)} if reasons else facts


def _edit(slug: str, number: int, *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
    if rehearsing():
        _say("a dry run: nothing is written", err=True)
        return
    backlog = backlog_of(slug)
    backlog.services.tracker.edit_labels(backlog.ref(number), add=add, remove=remove)


# A repository


@cli.group()
def repo() -> None:
    """Take a whole repository offline, and back."""


def _repository_name(_: click.Context, __: click.Parameter, slug: str) -> str:
    if not slug.strip():
        raise click.BadParameter("it names no repository")
    return slug


@repo.command("pause", cls=OperatorsCommand)
@click.argument("slug", metavar="REPO", callback=_repository_name)
def repo_pause(slug: str) -> int:
    """Take a repository offline: agents claim no issue there."""
    set_repo_paused(slug, True)
    _say(f"{slug} is paused")
    return _OK


@repo.command("resume", cls=OperatorsCommand)
@click.argument("slug", metavar="REPO", callback=_repository_name)
def repo_resume(slug: str) -> int:
    """Bring a repository back: agents may claim its issues again."""
    set_repo_paused(slug, False)
    _say(f"{slug} is not paused")
    return _OK


@repo.command("list")
@click.argument("slug", metavar="[REPO]", required=False)
@_as_json
def repo_list(slug: str | None, as_json: bool) -> int:  # noqa: ARG001, FBT001 - it was always allowed
    """List the repositories paused on this machine."""
    paused = list_paused_repos()
    if as_json:
        _write({"paused": paused})
    else:
        _say("\n".join(paused) if paused else "nothing is paused")
    return _OK


# Sweeping


def _checked_age(_: click.Context, __: click.Parameter, hours: float) -> float:
    """Refuse a bad age before the first repository is swept."""
    try:
        age_of(hours)
    except Misuse as flaw:
        raise click.BadParameter(str(flaw)) from flaw
    return hours


@cli.command("sweep-claims", cls=OperatorsCommand)
@click.option(
    "--max-age-hours", type=float, default=4, show_default=True, metavar="N", callback=_checked_age
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
    """Give back issues whose claims are over, in every repository in LABEL_STATE_SWEEP_REPOS."""
    dry_run = dry_run or rehearsing()
    repos = slugs or LabelStateConfig.from_env().sweep_repos
    if not repos:
        raise CommandRefused("no repository to sweep: say --repo, or set LABEL_STATE_SWEEP_REPOS")
    silent: list[dict[str, object]] = []
    swept = {
        slug: _sweep_repository(slug, max_age_hours, silent, dry_run=dry_run) for slug in repos
    }
    rows = [row for claims in swept.values() for row in claims or ()]
    unread = [slug for slug, claims in swept.items() if claims is None]
    if as_json:
        _write({"dry_run": dry_run, "claims": rows, "not_over": silent, "not_swept": unread})
        return _NO if len(unread) == len(swept) else _OK
    for row in rows:
        claim = f"{row['repo']}#{row['number']} {row['codename']}:{row['firing_id']}"
        unclaimed = row.get("missing_claim")
        age = "no claim says whose it is" if unclaimed else f"{row['age_hours']} h silent"
        drift = ", its label is gone" if row["label_drift"] else ""
        done = f": released {row['released']}" if row["released"] else ""
        _say(f"{claim}, {age}{drift}{done}")
    for row in silent:
        claim = f"{row['repo']}#{row['number']} {row['codename']}:{row['firing_id']}"
        until = f"its lease runs until {row['lease_until']}"
        _say(f"{claim}, {row['age_hours']} h silent, but {until}: not released")
    _say(f"{len(rows)} stale claims" + (", nothing written" if dry_run else ""))
    return _NO if len(unread) == len(swept) else _OK


def _sweep_repository(
    slug: str, max_age_hours: float, silent: list[dict[str, object]], *, dry_run: bool
) -> list[dict[str, object]] | None:
    """Release the stale claims of a repository, and return a row for each.

    Appends to `silent` a row for each claim of that age whose lease is not over. Returns None if
    the repository cannot be read: the sweep goes on with the next repository.
    """
    try:
        backlog, max_age = backlog_of(slug), age_of(max_age_hours)
        snapshots = list(suspects(backlog))
        claims = [claim for one in snapshots for claim in stale_on(backlog, one, max_age)]
        kept = [claim for one in snapshots if (claim := silent_on(backlog, one, max_age))]
    except DibsError as failure:
        _say(f"{slug}: not swept: {failure} ({failure.code})", err=True)
        return None
    silent += [
        {**claim.row(slug, max_age_hours), "lease_until": format_instant(claim.lease_until)}
        for claim in kept
        if claim.lease_until is not None
    ]
    rows = []
    for claim in claims:
        released = ""
        if not dry_run:
            sweep_id = claim.snapshot.now.strftime("%Y%m%d-%H%M%S-manual")
            try:
                answer = free(backlog, claim, sweep_id=sweep_id, max_age=max_age)
                released = "yes" if answer else answer.reason
            except DibsError as failure:
                _say(f"{claim.snapshot.issue.ref}: not released: {failure}", err=True)
                released = failure.code
        row = claim.row(slug, max_age_hours)
        if not claim.identified:
            row["age_hours"] = None  # JSON has no infinity
        rows.append({**row, "released": released})
    return rows


def _write(document: dict[str, object]) -> None:
    click.echo(json.dumps(document, indent=2))
