"""Where leases are kept: what each store promises, who grants, and moving from one to another."""

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from dibs.core.errors import Misuse
from dibs.core.granter import Appointed, Granter, Moving
from dibs.frontends.cli.context import Context, answering, as_json, dry_run
from dibs.frontends.cli.leasing import duration
from dibs.frontends.cli.output import Answer, Exit, table, tell

if TYPE_CHECKING:
    from dibs.services.migrating import Progress
    from dibs.wiring.services import Services
    from dibs.wiring.stores import StoreKind


@click.command("stores")
@as_json
@answering
def stores_command(context: Context) -> Answer:
    """Show what each lease store promises, and which one is configured."""
    from dibs.wiring.stores import store_kind, store_kinds

    settings = context.settings
    place = settings.tracker if settings.leases == "auto" else settings.leases
    configured, kinds = store_kind(place), store_kinds()
    data = [_kind_data(kind, configured=kind is configured) for kind in kinds]
    lines = table(
        ("leases", "one holder", "fence", "wip", "expiry by", "waiting", "scope", "install"),
        [_kind_row(kind) for kind in kinds],
    )
    lines += [
        "",
        f"configured: {_shown(settings.leases)}",
        "one holder: at most one live lease on an issue, however many race for it (atomic)",
        "fence: rises with every grant, so that the place of writing can refuse the stale one",
        "wip: a stage's limit is kept in the step that grants, not counted afterwards",
    ]
    return Answer(data, lines)


def _kind_row(kind: "StoreKind") -> tuple[str, ...]:
    promised = set(kind.promises.names)
    marks = ["yes" if name in promised else "no" for name in ("atomic", "fenced", "counted")]
    install = f"dibs[{kind.extra}]" if kind.extra else "built in"
    return (kind.form, *marks, kind.expiry.value, kind.waiting.value, kind.scope, install)


def _kind_data(kind: "StoreKind", *, configured: bool) -> dict[str, Any]:
    return {
        "leases": kind.form,
        "schemes": [kind.scheme, *kind.also],
        "guarantees": list(kind.promises.names),
        "expiry": kind.expiry.value,
        "waiting": kind.waiting.value,
        "scope": kind.scope,
        "extra": kind.extra or None,
        "configured": configured,
    }


@click.group("leases")
def leases_command() -> None:
    """Which store grants leases, and moving them to another."""


@leases_command.command("show")
@as_json
@answering
def show_command(context: Context) -> Answer:
    """Say which store grants, and whether this configuration agrees."""
    granting = context.services.granting
    against = granting.objections()
    granter = granting.granter
    lines = [_granter_line(granter), f"configured here: {granting.store}"]
    lines += [f"{reason.text}; {reason.remedy}" for reason in against]
    data = {**_granter_data(granter), "configured": granting.store, "agrees": not against}
    return Answer(data, lines, Exit.SHUT if against else Exit.DONE)


@leases_command.command("migrate")
@click.option(
    "--from", "origin", metavar="STORE", help="Where they are; env:NAME reads a variable."
)
@click.option(
    "--to", "target", metavar="STORE", help="Where they go; the configured store by default."
)
@click.option(
    "--wait",
    default="1h",
    show_default=True,
    callback=duration,
    help="How long running work may take to end before it is called off.",
)
@dry_run
@as_json
@answering
def migrate_command(
    context: Context, origin: str | None, target: str | None, wait: timedelta, dry_run: bool
) -> Answer:
    """Move a running fleet's leases to another store: never two granters, fences go on rising.

    Nobody is granted anything while what the old store granted is waited for. Workers set up for
    the new store may be running already: they wait until it is appointed.
    """
    target = _named(target) if target else context.settings.leases
    origin = _named(origin) if origin else _origin(context, target)
    if dry_run:
        return _plan(context, origin, target)
    here, there = _connect(context, origin), _connect(context, target)
    try:
        there.leases.live(limit=1)  # it has to answer before anything is stopped
        last: Progress | None = None
        for progress in here.migrating.migrate(
            here.granting.store, there.granting.store, patience_s=wait.total_seconds()
        ):
            if progress != last and not context.as_json:
                _tell(progress)
            last = progress
        assert last is not None, "a migration has a last word"
        return _answer(last)
    finally:
        here.close()
        there.close()


def _named(place: str) -> str:
    """A place, or the name of the variable it is in: a password has no place on a command line."""
    kind, _, name = place.partition(":")
    if kind != "env":
        return place
    if not os.environ.get(name):
        raise click.UsageError(f"the variable {name!r} is not set")
    return os.environ[name]


def _origin(context: Context, target: str) -> str:
    from dibs.wiring.services import granter_name, place_of

    settings = context.settings
    match context.services.granting.granter:
        case Appointed(store) if store == granter_name(replace(settings, leases=target)):
            return target  # with its credentials
        case Appointed(store) | Moving(store):
            return place_of(store, settings)
        case None:
            raise Misuse("nothing was ever granted here: just set leases to the store you want")


def _connect(context: Context, leases: str) -> "Services":
    from dibs.settings import load as config
    from dibs.wiring.services import connect

    settings = replace(context.settings, leases=leases)
    return connect(settings, author=config.actor(), create=True)


def _plan(context: Context, origin: str, target: str) -> Answer:
    """Without so much as opening the target, which opening might make."""
    from dibs.wiring.services import granter_name

    there = granter_name(replace(context.settings, leases=target))
    here = _connect(context, origin)
    try:
        held = [str(record.lease.issue) for record in here.leases.live()]
    finally:
        here.close()
    data = {"from": here.granting.store, "to": there, "held": held}
    line = f"leases would move from {data['from']} to {data['to']}; {len(held)} are held now"
    return Answer(data, [line])


def _tell(progress: "Progress") -> None:
    from dibs.services.migrating import Waiting

    if isinstance(progress, Waiting):
        shown = ", ".join(progress.issues[:5])
        more = f" and {len(progress.issues) - 5} more" if len(progress.issues) > 5 else ""
        tell(f"nobody grants; waiting for {shown}{more}")


def _answer(last: "Progress") -> Answer:
    from dibs.services.migrating import GaveUp, Moved

    match last:
        case Moved(granter):
            lines = [
                f"leases are granted by {granter.store} now, above fence {granter.floor}",
                "set leases to it wherever dibs runs; whoever is set up for another claims nothing",
            ]
            return Answer({"moved": True, **_granter_data(granter)}, lines)
        case GaveUp(issues):
            line = f"called off: {', '.join(issues[:5])} did not end in time; nothing has moved"
            return Answer({"moved": False, "held": list(issues)}, [line], Exit.HELD)
        case _:
            raise AssertionError("a migration ends with Moved or GaveUp")


def _granter_line(granter: Granter | None) -> str:
    match granter:
        case Appointed(store, floor):
            return f"granted by {store}" + (f", above fence {floor}" if floor else "")
        case Moving(origin, target):
            return f"on the move from {origin} to {target}; nobody grants"
        case None:
            return "nothing was granted yet; the first store that grants is appointed by it"


def _granter_data(granter: Granter | None) -> dict[str, Any]:
    match granter:
        case Appointed(store, floor):
            return {"granter": store, "floor": floor, "moving_from": None, "moving_to": None}
        case Moving(origin, target, floor):
            return {"granter": None, "floor": floor, "moving_from": origin, "moving_to": target}
        case None:
            return {"granter": None, "floor": 0, "moving_from": None, "moving_to": None}


def _shown(place: str) -> str:
    from dibs.core.references import without_secrets

    return without_secrets(place)
