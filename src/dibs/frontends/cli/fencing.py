"""`dibs fence check`: ask the store whether a lease still stands, before a step without return.

The command renews nothing and changes nothing. Its answer is only true for the moment when the
store answered: the process may be put to sleep right after. So the place of writing still has to
compare the fence.
"""

from datetime import timedelta

import click

from dibs.core.durations import describe_span, format_instant
from dibs.core.errors import LeaseLost, Unavailable
from dibs.core.ids import Fence
from dibs.frontends.cli.context import Context, command, complete_issue, complete_run, duration
from dibs.frontends.cli.leasing import lost
from dibs.frontends.cli.output import Answer, Exit
from dibs.ports.leases import Guarantee

_NO_CLOCK = "the store has no clock, so only the holder knows how long the lease lasts"


@click.group("fence")
def fence_command() -> None:
    """Check whether a run still holds its issue: check."""


@command("check", fence_command)
@click.argument(
    "issue",
    metavar="[ISSUE]",
    required=False,
    envvar="DIBS_ISSUE",
    shell_complete=complete_issue,
)
@click.option(
    "--run",
    required=True,
    envvar="DIBS_RUN",
    help="The run that holds it [$DIBS_RUN].",
    shell_complete=complete_run,
)
@click.option(
    "--fence", type=click.IntRange(min=1), envvar="DIBS_FENCE", help="Its fence [$DIBS_FENCE]."
)
@click.option(
    "--for", "span", metavar="DURATION", callback=duration, help="Exit 8 if the lease ends sooner."
)
def check_command(
    context: Context, issue: str | None, run: str, fence: int | None, span: timedelta | None
) -> Answer:
    """Ask the store whether a run still holds its issue. Exit 5 if not.

    This narrows the window in which a late write can happen, but cannot close the window: the
    script may be put to sleep after the answer. Only a fence that is compared where it is written,
    in the same step as the write, closes the window.
    """
    if issue is None:
        raise click.UsageError("name an issue, or set DIBS_ISSUE")
    try:
        ref, services = context.ref(issue), context.services
        cannot_answer = None
        if not services.granting.keeps_house():
            cannot_answer = services.granting.objections()[0].text
        elif span is not None and Guarantee.SERVER_CLOCK not in services.leases.guarantees:
            cannot_answer = _NO_CLOCK
        if cannot_answer is not None:
            reason = {"issue": issue, "why": cannot_answer}
            return Answer(reason, [f"{ref}: {cannot_answer}"], Exit.UNPROVEN)
        record = services.leases.standing(services.tracker.read(ref)).record
    except Unavailable as outage:
        line = f"{issue}: dibs could not ask whether the run still holds it: {outage}"
        return Answer({"issue": issue, "why": str(outage)}, [line], Exit.UNPROVEN)
    revoked = record is not None and record.revocation is not None
    if record is None or record.lease.run != run or not (record.live or revoked):
        raise lost(ref, record, run)
    lease = record.lease
    if record.revocation is not None:
        why = f"revoked by {record.revocation.by}: {record.revocation.reason}"
        raise LeaseLost(ref, fence=lease.fence, why=why)
    if fence is not None and fence != lease.fence:
        raise LeaseLost(ref, fence=Fence(fence), why=f"run {run} holds fence {lease.fence}")
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
