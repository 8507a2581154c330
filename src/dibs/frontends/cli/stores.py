"""Lease stores: what each kind promises, which store grants, and moving to another store."""

import os
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict, replace

from dibs.core.errors import BadConfiguration, DibsError, Misuse, NoBacklog
from dibs.core.granter import Appointed, Granter, Moving
from dibs.frontends.cli.context import Context, command, dry_run, duration
from dibs.frontends.cli.output import Answer, Exit, Report, table, tell

if TYPE_CHECKING:
    from dibs.services.migrating import Progress
    from dibs.wiring.services import Services


_SET_IT_EVERYWHERE = (
    "set leases to this store wherever dibs runs; workers with another store claim nothing"
)


@command("stores")
def stores_command(context: Context) -> Answer:
    """Show the promises of each lease store, and the state of the configured store."""
    from dibs.core.references import without_secrets
    from dibs.wiring import kinds_declared
    from dibs.wiring.stores import store_kinds
    from dibs.wiring.trackers import TrackerKind

    settings, (found, worries) = context.settings, _found(context)
    place = settings.tracker if settings.leases == "auto" else settings.leases
    configured = place.partition(":")[0]
    data: list[dict[str, Any]] = []
    rows = []
    for scheme, kind in store_kinds().items():
        if isinstance(kind, BadConfiguration):  # another distribution's, and broken
            row = {"leases": f"{scheme}:", "schemes": [scheme], "guarantees": ()}
            unknown = dict.fromkeys(("expiry", "waiting", "scope", "extra"))
            known = {"configured": scheme == configured, "found": None, "problem": str(kind)}
            data.append({**row, **unknown, **known})
            rows.append((f"{scheme}:", *("-" * 6), str(kind)))
            continue
        promised = kind.promises.names
        data.append(
            {
                "leases": kind.form,
                "schemes": [kind.scheme, *kind.also],
                "guarantees": promised,
                "expiry": kind.expiry,
                "waiting": kind.waiting,
                "scope": kind.scope,
                "extra": kind.extra or None,
                "configured": (here := configured in (scheme, *kind.also)),
                "found": found if here else None,
                "problem": None,
            }
        )
        marks = ["yes" if name in promised else "no" for name in ("atomic", "fenced", "counted")]
        install = f"dibs[{kind.extra}]" if kind.extra else "built in"
        rows.append((kind.form, *marks, kind.expiry, kind.waiting, kind.scope, install))
    declared = kinds_declared("dibs.trackers", TrackerKind).values()
    broken_trackers = [str(kind) for kind in declared if isinstance(kind, BadConfiguration)]
    headings = ("leases", "one holder", "fence", "wip", "expiry by", "waiting", "scope", "install")
    lines = [
        *table(headings, rows),
        "",
        f"configured: {without_secrets(settings.leases)}"
        + (f"; found there: {', '.join(found)}" if found is not None else ""),
        "one holder: at most one live lease on an issue, however many race for it (atomic)",
        "fence: a number that rises with every grant; the place of writing can refuse a stale one",
        "wip: the store checks a stage's limit in the same step in which it grants",
    ]
    return Answer(data, lines, warnings=(*broken_trackers, *worries))


def _found(context: Context) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The promises of the configured store on the present server, and warnings about the server.

    None if the store cannot be asked, or without a backlog.
    """
    from dibs.services.diagnosing import worries_of

    try:
        store = context.services.adapters.store
        if store is not None:
            store.live(None, 1)
        return context.services.leases.guarantees.names, worries_of(store)
    except NoBacklog:
        return None, ()
    except DibsError as error:
        return None, (f"the configured store cannot be asked: {error}",)


@click.group("leases")
def leases_command() -> None:
    """Show which store grants leases, move them, or own a namespace: show, migrate, adopt."""


@command("show", leases_command)
def show_command(context: Context) -> Answer:
    """Say which store grants, and whether this configuration agrees."""
    granting = context.services.granting
    objections = granting.objections()
    data, line = _describe(granting.granter)
    lines = [line, f"configured here: {granting.store}"]
    lines += [f"{reason.text}; {reason.remedy}" for reason in objections]
    data |= {"configured": granting.store, "agrees": not objections}
    return Report(data, lines, Exit.SHUT if objections else Exit.DONE)


@command("adopt", leases_command)
@click.option(
    "--instead-of", "instead_of", metavar="ID", default="", help="Take over from this owner."
)
def adopt_command(context: Context, instead_of: str) -> Answer:
    """Make this backlog the owner of the store's namespace, whose leases are its own.

    Needed once if an earlier dibs, which kept no owners, used the namespace from another folder;
    and with --instead-of, if the file of this backlog was lost and made anew; not while a lease of
    that owner is live. No other backlog may use the namespace afterwards: a running worker of the
    former owner notices within ten seconds.
    """
    from dibs.services.backlog import ISSUES, OwnedStore

    store = context.services.adapters.store
    if not isinstance(store, OwnedStore):
        raise Misuse("the leases of this backlog are kept beside it: no other backlog has them")
    adopted = store.adopt(instead_of)
    owner = store.owner(ISSUES)
    data = {
        "store": store.name,
        "owner": asdict(owner) if owner else None,
        "new": bool(adopted),
        "adopted": ["issues" if kind == ISSUES else "names" for kind in adopted],
    }
    words = "owns its namespace now" if adopted else "owned its namespace already"
    return Answer(data, [f"{owner.name if owner else 'this backlog'} {words}: {store.name}"])


@command("migrate", leases_command)
@click.option(
    "--from",
    "origin",
    metavar="STORE",
    help="The store that grants now; env:NAME reads a variable.",
)
@click.option(
    "--to", "target", metavar="STORE", help="The new store; the configured store by default."
)
@click.option(
    "--wait",
    default="1h",
    show_default=True,
    callback=duration,
    help="How long to wait for running work to end; after that the move is called off.",
)
@dry_run
def migrate_command(
    context: Context, origin: str | None, target: str | None, wait: timedelta, dry_run: bool
) -> Answer:
    """Move a running fleet's leases to another store: never two granters, fences go on rising.

    No store grants while the move waits for the leases of the old store to end. Workers set up for
    the new store may be running already: they wait until the new store is appointed.
    """
    from dibs.services.migrating import Draining, GaveUp, Moved
    from dibs.wiring.services import granter_name

    target = _place(target) if target else context.settings.leases
    origin = _place(origin) if origin else _origin(context, target)
    if dry_run:  # opening the target might create it
        there_name = granter_name(replace(context.settings, leases=target))
        with closing(_connect(context, origin)) as here:
            held = [str(record.lease.issue) for record in here.leases.live()]
        data = {"from": here.granting.store, "to": there_name, "held": held}
        line = f"leases would move from {data['from']} to {data['to']}; {len(held)} are held now"
        return Answer(data, [line])
    with closing(_connect(context, origin)) as here, closing(_connect(context, target)) as there:
        there.leases.live(limit=1)  # the target has to answer before any grant is stopped
        last: Progress | None = None
        for progress in here.migrating.migrate(
            here.granting.store, there.granting.store, patience_s=wait.total_seconds()
        ):
            changed, last = progress != last, progress
            if changed and isinstance(progress, Draining) and not context.as_json:
                issues = progress.issues
                more = f" and {len(issues) - 5} more" if len(issues) > 5 else ""
                tell(f"no store grants; waiting for {', '.join(issues[:5])}{more}")
        match last:
            case Moved(granter):
                line = f"leases are granted by {granter.store} now, above fence {granter.floor}"
                lines = [line, _SET_IT_EVERYWHERE]
                return Answer({"moved": True, **_describe(granter)[0]}, lines)
            case GaveUp(issues):
                line = f"leases did not end in time: {', '.join(issues[:5])}; nothing was moved"
                return Answer({"moved": False, "held": list(issues)}, [line], Exit.HELD)
            case _:
                raise AssertionError("a migration ends with Moved or GaveUp")


def _place(place: str) -> str:
    """The place of a store; `env:NAME` reads it from a variable.

    A place may contain a password, and a password does not belong on a command line.
    """
    kind, _, name = place.partition(":")
    if kind != "env":
        return place
    if not os.environ.get(name):
        raise click.UsageError(f"the variable {name!r} is not set")
    return os.environ[name]


def _origin(context: Context, target: str) -> str:
    """The place of the store that grants now. Raises Misuse before the first grant."""
    from dibs.settings import load as config
    from dibs.wiring.services import granter_name, place_of

    settings = context.settings
    match context.services.granting.granter:
        case Appointed(store) if store == granter_name(replace(settings, leases=target)):
            return target  # the caller's spelling has the credentials
        case Appointed(store) | Moving(store):
            place = place_of(store, settings)  # the backlog's word, as little worth as the file's
            found = settings.origin is config.Origin.FOUND
            return config.as_found(replace(settings, leases=place)).leases if found else place
        case None:
            raise Misuse("no lease was granted here yet: set leases to the store that you want")


def _connect(context: Context, leases: str) -> "Services":
    from dibs.settings import load as config
    from dibs.wiring.services import connect

    settings = replace(context.settings, leases=leases)
    return connect(settings, author=config.actor(), create=False)


def _describe(granter: Granter | None) -> tuple[dict[str, Any], str]:
    """The granter as data and in words."""
    data = {"granter": None, "floor": 0, "moving_from": None, "moving_to": None}
    match granter:
        case Appointed(store, floor):
            line = f"leases are granted by {store}" + (f", above fence {floor}" if floor else "")
            return {**data, "granter": store, "floor": floor}, line
        case Moving(origin, target, floor):
            line = f"leases are on the move from {origin} to {target}; no store grants"
            return {**data, "floor": floor, "moving_from": origin, "moving_to": target}, line
        case None:
            return data, "no lease was granted yet; the first store that grants becomes the granter"
