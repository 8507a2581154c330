"""Asking the store whether a lease still stands: for scripts, before what cannot be taken back.

Renews nothing and changes nothing. It can only say how things stood when the store answered: the
process may be put to sleep right after, so the place of writing still has to compare the fence.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from dibs.core.durations import describe_span, format_instant
from dibs.core.errors import LeaseLost, Unavailable
from dibs.core.ids import Fence, IssueRef, RunId
from dibs.core.lease import Record
from dibs.frontends.cli.context import Context, answering, as_json
from dibs.frontends.cli.leasing import duration, lost
from dibs.frontends.cli.output import Answer, Exit
from dibs.ports.leases import Guarantee
from dibs.services.resuming import NotHeld

if TYPE_CHECKING:
    from dibs.wiring.services import Services


@click.group("fence")
def fence_command() -> None:
    """Ask whether a fence still counts: check."""


@fence_command.command("check")
@click.argument("issue", metavar="[ISSUE]", required=False, envvar="DIBS_ISSUE")
@click.option("--run", required=True, envvar="DIBS_RUN", help="The run that holds it [$DIBS_RUN].")
@click.option(
    "--fence", type=click.IntRange(min=1), envvar="DIBS_FENCE", help="Its fence [$DIBS_FENCE]."
)
@click.option(
    "--for", "span", metavar="DURATION", callback=duration, help="It must last that long, too."
)
@as_json
@answering
def check_command(
    context: Context, issue: str | None, run: str, fence: int | None, span: timedelta | None
) -> Answer:
    """Ask the store whether a run still holds its issue. Exit 5 if not.

    This narrows the window in which a late write can happen; it cannot close it, because this
    process may be put to sleep after the answer. Only a fence that is compared where it is
    written, in the same step as the write, closes it.
    """
    if issue is None:
        raise click.UsageError("name an issue, or set DIBS_ISSUE")
    try:
        ref = context.ref(issue)
        if (why := _cannot_tell(context.services, span)) is not None:
            return Answer({"issue": issue, "why": why}, [f"{ref}: {why}"], Exit.UNPROVEN)
        record = _record(context, ref)
    except Unavailable as outage:
        line = f"{issue}: whether the lease stands could not be asked: {outage}"
        return Answer({"issue": issue, "why": str(outage)}, [line], Exit.UNPROVEN)
    return _judge(ref, record, RunId(run), fence, span)


def _cannot_tell(services: "Services", span: timedelta | None) -> str | None:
    """Why the store that this process is set up for cannot answer, if so."""
    if not services.granting.keeps_house():
        return services.granting.objections()[0].text
    if span is not None and Guarantee.SERVER_CLOCK not in services.leases.guarantees:
        return "the store has no clock, so how long the lease lasts is known to its holder only"
    return None


def _record(context: Context, ref: IssueRef) -> Record | None:
    services = context.services
    return services.leases.standing(services.tracker.read(ref)).record


def _judge(
    ref: IssueRef, record: Record | None, run: RunId, fence: int | None, span: timedelta | None
) -> Answer:
    if record is None or record.lease.run != run:
        raise lost(NotHeld(ref, record), run)
    lease = record.lease
    if record.revocation is not None:
        why = f"revoked by {record.revocation.by}: {record.revocation.reason}"
        raise LeaseLost(ref, fence=lease.fence, why=why)
    if not record.live:
        raise lost(NotHeld(ref, record), run)
    if fence is not None and fence != lease.fence:
        raise LeaseLost(ref, fence=Fence(fence), why=f"run {run} has fence {lease.fence}")
    left = describe_span(record.remaining)
    data = {
        "issue": str(ref),
        "run": run,
        "fence": lease.fence,
        "holder": lease.holder,
        "expires_at": format_instant(lease.expires_at),
        "remaining_s": record.remaining.total_seconds(),
    }
    if span is not None and record.remaining < span:
        line = f"{ref} is held, but only for another {left} unless it is renewed"
        return Answer(data, [line], Exit.UNPROVEN)
    return Answer(data, [f"ok: {ref} is held with fence {lease.fence} for another {left}"])
