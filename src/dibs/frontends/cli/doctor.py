"""Whether everything is in order: `dibs doctor`."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dibs.core.errors import DibsError
from dibs.core.references import without_secrets
from dibs.frontends.cli.context import Context, answering, as_json
from dibs.frontends.cli.output import Answer, Exit
from dibs.settings.load import Settings

if TYPE_CHECKING:
    from dibs.services.diagnosing import Finding


@click.command("doctor")
@click.option("--offline", is_flag=True, help="Only what needs no network.")
@as_json
@answering
def doctor_command(context: Context, offline: bool) -> Answer:
    """Check settings, tracker, store, keys and handlers; say what to look at. Changes nothing."""
    findings = list(_findings(context, offline=offline))
    levels = [finding.level.value for finding in findings]
    counts = {level: levels.count(level) for level in ("ok", "warn", "fail")}
    data = {"findings": [_data(finding) for finding in findings], **counts}
    lines = [line for finding in findings for line in _lines(finding)]
    lines.append(", ".join(f"{count} {level}" for level, count in counts.items()))
    return Answer(data, lines, Exit.ERROR if counts["fail"] else Exit.DONE)


def _findings(context: Context, *, offline: bool) -> Iterator["Finding"]:
    from dibs.services.diagnosing import failed, fine

    try:
        settings = context.settings
    except DibsError as error:
        yield failed("configuration", error)
        return
    yield fine("configuration", f"read from {settings.source}")
    yield from _local(settings)
    if offline:
        yield from _told_of(settings)
    else:
        yield from _asked(context, settings)


def _local(settings: Settings) -> Iterator["Finding"]:
    """What this machine can say by itself."""
    from dibs.services.diagnosing import about_handlers, about_places, about_signing
    from dibs.wiring.services import keyring_of, named_repos, places_of, runner_of
    from dibs.wiring.trackers import tracker_kind

    yield from _trying("signing", lambda: about_signing(keyring_of(os.environ)))
    yield from about_handlers(settings.pipeline, runner_of(settings))
    yield from about_places(settings.pipeline, lambda: places_of(settings), named_repos(settings))
    yield from _folder("runs", settings.runs)
    if settings.journal is not None:
        yield from _folder("journal", settings.journal.parent)
    kind = tracker_kind(settings.tracker)
    if kind is not None and kind.deliveries is not None:
        yield from _webhooks()


def _told_of(settings: Settings) -> Iterator["Finding"]:
    from dibs.services.diagnosing import about_terms, fine

    place, leases = without_secrets(settings.tracker), without_secrets(settings.leases)
    yield fine("tracker", f"{place}, not asked")
    yield fine("leases", f"{leases}, not asked")
    yield from about_terms(settings.pipeline, settings.settle, None)


def _asked(context: Context, settings: Settings) -> Iterator["Finding"]:
    from dibs.services.diagnosing import Finding, Level
    from dibs.wiring.services import backlog_is_absent

    if backlog_is_absent(settings):
        text = f"there is no backlog yet at {without_secrets(settings.tracker)}"
        yield Finding("tracker", Level.WARN, text, "dibs init or dibs add makes it")
        return

    def connect_and_look() -> Iterator[Finding]:
        return context.services.diagnosing.examine()

    yield from _trying("tracker", connect_and_look)


def _trying(check: str, look: Callable[[], Iterable["Finding"]]) -> Iterator["Finding"]:
    from dibs.services.diagnosing import failed

    try:
        yield from look()
    except DibsError as error:
        yield failed(check, error)


def _folder(name: str, path: Path) -> Iterator["Finding"]:
    """Asked of the file system and not tried: looking makes nothing."""
    from dibs.services.diagnosing import Finding, Level, fine

    nearest = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        yield fine(name, f"{path} can be written")
    else:
        text = f"{path} cannot be written: {nearest} is no folder that we may write to"
        yield Finding(name, Level.FAIL, text, f"look at the permissions of {nearest}")


def _webhooks() -> Iterator["Finding"]:
    from dibs.services.diagnosing import fine
    from dibs.wiring.services import webhook_keys

    if webhook_keys(os.environ):
        yield fine("webhooks", "a secret is set: dibs listen verifies what is delivered")
    else:
        yield fine("webhooks", "no GITHUB_WEBHOOK_SECRET, so dibs listen accepts nothing")


def _data(finding: "Finding") -> dict[str, Any]:
    return {
        "check": finding.check,
        "level": finding.level.value,
        "text": finding.text,
        "look": finding.look or None,
    }


def _lines(finding: "Finding") -> Iterator[str]:
    yield f"{finding.level.value:<4}  {finding.check:<13}  {finding.text}"
    if finding.look:
        yield f"{'':<21}{finding.look}"
