"""`dibs doctor`: check the whole set-up. Changes nothing but a lease of its own, given back."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict, replace

from dibs.core.errors import DibsError
from dibs.core.references import without_secrets
from dibs.frontends.cli.context import Context, command
from dibs.frontends.cli.output import Answer, Exit, Report, tell
from dibs.ports.tracker import persons_word
from dibs.settings.load import Settings
from dibs.wiring import mask

if TYPE_CHECKING:
    from dibs.core.named import LoopSpec
    from dibs.core.pipeline import Stage
    from dibs.services.diagnosing import Finding


@command("doctor")
@click.option("--offline", is_flag=True, help="Make only the checks that need no network.")
@click.option("--handlers", is_flag=True, help="Import Python handlers, which runs their code.")
@click.option(
    "--live", is_flag=True, help="Try what dibs assumes of GitHub, on an issue made for that."
)
def doctor_command(context: Context, offline: bool, handlers: bool, live: bool) -> Answer:
    """Check settings, tracker, store, keys and handlers; name every problem.

    Changes no issue. Takes a lease on a name in the lease store, and gives the lease back.
    With --live the command announces a scratch issue on the tracker, writes there, and cleans up.
    """
    if live:
        if offline or handlers:
            raise click.UsageError("--live makes none of the other checks; leave out their options")
        return _live(context)
    # An error of a library may carry an address with a password.
    findings = [
        replace(finding, text=mask(finding.text), look=mask(finding.look))
        for finding in _findings(context, offline=offline, handlers=handlers)
    ]
    return _report(findings)


def _live(context: Context) -> Answer:
    """Run the tracker's probes; each is told as it ends."""
    trial = context.services.diagnosing.trial()
    tell(trial.probing.plan)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it cleans up
    findings = []
    try:
        with persons_word(), closing(trial.run()) as running:
            for finding in running:
                findings.append(replace(finding, text=mask(finding.text)))
                tell(f"{finding.check}: {finding.level.value}")
    finally:
        signal.signal(signal.SIGTERM, before)
    lags = [
        {
            "over": lag.over,
            "p50_s": round(median(lag.seconds), 3),
            "max_s": round(max(lag.seconds), 3),
            "writes": len(lag.seconds),
        }
        for lag in trial.lags
    ]
    answer = _report(findings)
    answer.data["live"] = {
        "lag": lags,
        "settle_s": trial.settle.total_seconds(),
        "proposed_settle_s": trial.proposed.total_seconds() if lags else None,
    }
    return answer


def _report(findings: Sequence["Finding"]) -> Answer:
    levels = [finding.level.value for finding in findings]
    counts = {level: levels.count(level) for level in ("ok", "warn", "fail")}
    data: dict[str, Any] = {
        "findings": [{**asdict(finding), "look": finding.look or None} for finding in findings],
        **counts,
    }
    lines = []
    for finding in findings:
        lines.append(f"{finding.level.value:<4}  {finding.check:<13}  {finding.text}")
        if finding.look:
            lines.append(f"{'':<21}{finding.look}")
    lines.append(", ".join(f"{count} {level}" for level, count in counts.items()))
    return Report(data, lines, Exit.ERROR if counts["fail"] else Exit.DONE)


def _findings(context: Context, *, offline: bool, handlers: bool) -> Iterator["Finding"]:
    """First the settings and this machine; then, unless offline, tracker and lease store."""
    from dibs.services import diagnosing
    from dibs.services.diagnosing import Finding, Level, failed, fine

    try:
        settings = context.settings
    except DibsError as error:
        yield failed("configuration", error)
        return
    from dibs.wiring import services as wiring
    from dibs.wiring.trackers import tracker_kind

    yield from _configuration(settings)
    pipeline = settings.pipeline
    try:
        keyring = wiring.keyring_of()
        yield from diagnosing.about_signing(keyring)
        yield from diagnosing.about_gates(pipeline, keyring)
    except DibsError as error:
        yield failed("signing", error)
    look_for = None if handlers else wiring.python_lookup(settings)
    yield from diagnosing.about_handlers(pipeline, wiring.runner_of(settings), look_for)
    yield from diagnosing.about_environment(pipeline, os.environ, settings.may_pass)
    started: list[Stage | LoopSpec] = [stage for stage in pipeline.stages if stage.served]
    for one in (*started, *settings.loops):
        try:
            wiring.refuse_to_pass(settings, [one])
        except DibsError as error:
            yield Finding("environment", Level.WARN, f"refused at the start: {error}", error.hint)
    try:
        kind = tracker_kind(settings.tracker)
    except DibsError as error:  # another distribution's, and broken
        yield failed("tracker", error)
        return
    yield from diagnosing.about_places(
        pipeline, lambda: wiring.places_of(settings), wiring.named_repos(settings)
    )
    yield from _this_machine(settings, receives=kind is not None and kind.deliveries is not None)
    tracker = without_secrets(settings.tracker)
    if offline:
        yield fine("tracker", f"{tracker}, not checked offline")
        yield fine("leases", f"{without_secrets(settings.leases)}, not checked offline")
        yield from diagnosing.about_terms(pipeline, settings.settle, None)
    elif wiring.backlog_is_absent(settings):
        text = f"there is no backlog yet at {tracker}"
        yield Finding("tracker", Level.WARN, text, "dibs init or dibs add creates it")
    else:
        yield from _connected(context, settings)


def _connected(context: Context, settings: Settings) -> Iterator["Finding"]:
    """What tracker and lease store say; the tracker alone if the store cannot be opened."""
    from dibs.services.diagnosing import failed

    unopened: Finding | None = None
    try:
        services = context.services
    except DibsError as error:
        from dibs.wiring.stores import store_page

        unopened = failed("leases", error, store_page(settings.leases))
        try:
            services = context.connect(replace(settings, leases="auto"))
        except DibsError as flaw:
            yield failed("tracker", flaw)
            if str(flaw) != str(error):
                yield unopened
            return
    yield from services.diagnosing.examine(unopened)


def _configuration(settings: Settings) -> Iterator["Finding"]:
    """Where the settings come from, and a backlog of a linked worktree that they leave out."""
    from dibs.services.diagnosing import Finding, Level, fine

    yield fine("configuration", f"read from {settings.source}")
    if settings.here is not None and (settings.here / ".dibs" / "backlog.db").exists():
        text = f"{settings.here / '.dibs'} is not used: the main working tree's backlog is"
        yield Finding("configuration", Level.WARN, text, "look into it with: dibs --config . list")


def _this_machine(settings: Settings, *, receives: bool) -> Iterator["Finding"]:
    """The files, the wires and the webhooks' secret; `receives`: the tracker sends webhooks."""
    from dibs.services import diagnosing
    from dibs.services.diagnosing import Finding, Level, failed, fine
    from dibs.wiring import services as wiring

    yield from _folder("runs", settings.runs)
    if settings.journal is not None:
        yield from _folder("journal", settings.journal.parent)
    bare, shut = wiring.wrongly_shared(settings)
    for found, text in (
        (bare, "other users of this machine may look into"),
        (shut, f"share is '{settings.share}', and this is closed:"),
    ):
        if found:
            look = "dibs changes no mode of what is there; see docs/reference/files.md#permissions"
            yield Finding("files", Level.WARN, f"{text} {', '.join(found)}", look)
    if not bare and not shut:
        who = "this user and the group" if settings.share == "group" else "this user alone"
        yield fine("files", f"what dibs keeps here is for {who}")
    for place in (settings.tracker, settings.leases):
        yield from diagnosing.about_wires(place, os.environ)
    if receives:
        try:
            text = "GITHUB_WEBHOOK_SECRET is not set, so dibs listen accepts nothing"
            if wiring.webhook_keys(os.environ):
                text = "a secret is set: dibs listen verifies what is delivered"
            yield fine("webhooks", text)
        except DibsError as error:
            yield failed("webhooks", error)


def _folder(name: str, path: Path) -> Iterator["Finding"]:
    """Whether a folder can be written, by its permissions: a trial would create files."""
    from dibs.services.diagnosing import Finding, Level, fine

    places = (path.absolute(), *path.absolute().parents)
    nearest = next(place for place in places if place.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        yield fine(name, f"{path} can be written")
    else:
        text = f"{path} cannot be written: dibs may not write to the folder {nearest}"
        yield Finding(name, Level.FAIL, text, f"look at the permissions of {nearest}")
