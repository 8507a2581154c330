"""Leases by hand, for scripts and agents: claim, heartbeat, release."""

import os
import re
from datetime import timedelta
from typing import Any

import click
from click.core import ParameterSource
from msgspec.structs import replace

from dibs.core.durations import describe_span
from dibs.core.eligibility import ReasonCode
from dibs.core.errors import LeaseLost, NoSuchRun
from dibs.core.ids import Fence, IssueRef, RunId, StageName
from dibs.core.lease import Lease, Record, asking
from dibs.core.pipeline import FollowsPull
from dibs.frontends.cli.context import (
    Context,
    as_name,
    command,
    complete_issue,
    complete_run,
    dry_run,
    duration,
)
from dibs.frontends.cli.output import (
    Answer,
    Exit,
    for_reasons,
    lease_data,
    reason_data,
    reason_lines,
    record_data,
)
from dibs.services.claiming import Beaten, Claimed, ClaimOptions, ClaimResult, Doubtful, Refused

run_option = click.option(
    "--run",
    envvar="DIBS_RUN",
    help="The run that `dibs claim` printed [$DIBS_RUN].",
    shell_complete=complete_run,
)
pass_env_option = click.option(
    "--pass-env",
    "pass_env",
    metavar="NAME",
    multiple=True,
    help="Give COMMAND this variable too, although it is a secret of dibs.",
)
run_or_issue = click.argument("named", metavar="[RUN|ISSUE]", required=False)
_A_RUN = re.compile("[0-9a-f]{12}")


@command("claim")
@click.argument("issue", metavar="[ISSUE]", required=False, shell_complete=complete_issue)
@click.argument("command", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--next", "next_one", is_flag=True, help="Claim the most urgent issue that is ready.")
@click.option("--stage", metavar="STAGE", help="With --next: only from this stage.")
@click.option("--ttl", callback=duration, help="Length of the lease; the stage's ttl by default.")
@click.option(
    "--wait",
    callback=duration,
    help="How long to wait: for the holder of the issue, or for an issue that is ready.",
)
@click.option(
    "--exec",
    "executes",
    is_flag=True,
    help="Run COMMAND under the lease, renew meanwhile, and end the lease by its exit code.",
)
@pass_env_option
@as_name
@dry_run
def claim_command(
    context: Context,
    issue: str | None,
    command: tuple[str, ...],
    next_one: bool,
    stage: str | None,
    ttl: timedelta | None,
    wait: timedelta | None,
    executes: bool,
    pass_env: tuple[str, ...],
    name: str | None,
    dry_run: bool,
) -> Answer:
    """Claim an issue and print its run and fence.

    Renew the lease with heartbeat or keep, and end it with release; with --exec, dibs does both.
    """
    if next_one and executes and issue is not None:
        command, issue = (issue, *command), None
    if executes is not bool(command) or (pass_env and not executes):
        raise click.UsageError(
            "--exec and a command go together: dibs claim --next --exec -- COMMAND"
        )
    if (issue is None) is not next_one:
        raise click.UsageError("name an issue or use --next, one of the two")
    if stage is not None and not next_one:
        raise click.UsageError("--stage needs --next: an issue is claimed in the stage it is in")
    options, services = ClaimOptions(context.holder(name), ttl=ttl), context.services
    wait_s = wait.total_seconds() if wait is not None else 0.0
    wanted = services.pipeline.stage(stage).name if stage else None
    if dry_run:
        return _would_claim(context, context.ref(issue) if issue else None, wanted)
    result: ClaimResult | None
    if issue is not None:
        result = services.queueing.claim(context.ref(issue), options, wait_s=wait_s)
    else:
        result = services.queueing.claim_next(options, stage=wanted, wait_s=wait_s)
    if result is None:
        return _nothing_ready(context)
    if isinstance(result, Claimed):
        note_run(context, result.lease)
        if executes:
            from dibs.frontends.cli.keep import execute

            return execute(context, result, command, pass_env)
        snapshot = services.tracker.with_authors(result.snapshot)  # an agent reads the body
        answer, title = describe_claim(replace(result, snapshot=snapshot)), snapshot.issue.title
        advice = [f"  {sentence}" for sentence in what_to_do(result)]
        return replace(answer, lines=[*answer.lines, f"  title  {title}", *advice])
    return describe_claim(result)


def _nothing_ready(context: Context) -> Answer:
    if reasons := context.services.claiming.closed():
        data = {"reasons": reason_data(reasons)}
        return Answer(
            data, ["nothing can be claimed:", *reason_lines(reasons)], for_reasons(reasons)
        )
    line = "no issue is ready; dibs why ISSUE shows the reasons for one"
    return Answer(None, [line], Exit.NOTHING)


def _would_claim(context: Context, ref: IssueRef | None, stage: StageName | None) -> Answer:
    """The answer of `claim --dry-run`."""
    if ref is None:
        ready = context.services.board.ready(stage=stage, limit=1)
        if not ready:
            return _nothing_ready(context)
        ref = ready[0].issue.ref
    explained = context.services.explaining.explain(ref).reasons
    reasons = tuple(r for r in explained if r.code is not ReasonCode.NOT_SERVED)
    if reasons:
        return describe_claim(Refused(ref, reasons))
    return Answer({"issue": str(ref), "claimable": True}, [f"{ref} would be claimed"])


def note_run(context: Context, lease: Lease) -> None:
    """Note the run in the git working tree, where `dibs hook` looks for the pusher's runs."""
    from dibs.hook.run_files import run_file

    if (noted := run_file(context.directory)) is not None:
        noted.note(lease.issue, lease.run)


def describe_claim(result: ClaimResult) -> Answer:
    match result:
        case Claimed(lease):
            lines = [
                f"{lease.issue} claimed for {lease.stage}",
                f"  run    {lease.run}",
                f"  fence  {lease.fence}",
                f"  until  {lease.expires_at:%Y-%m-%dT%H:%M:%SZ} ({describe_span(lease.ttl)})",
            ]
            return Answer(claim_data(result), lines)
        case Refused(issue, reasons):
            data = {"issue": str(issue), "reasons": reason_data(reasons)}
            lines = [f"{issue} cannot be claimed:", *reason_lines(reasons)]
            return Answer(data, lines, for_reasons(reasons))
        case Beaten(issue, record):
            left = describe_span(record.remaining)
            line = f"{issue} is held by {record.lease.holder} for another {left}"
            return Answer({"issue": str(issue), "lease": record_data(record)}, [line], Exit.HELD)
        case Doubtful(issue, why):
            line = f"{issue}: dibs could not confirm the claim, so you do not hold it: {why}"
            return Answer({"issue": str(issue), "why": why}, [line], Exit.UNPROVEN)


def claim_data(claimed: Claimed) -> dict[str, Any]:
    """The lease and the issue, with all that an agent needs to work on it."""
    issue = claimed.snapshot.issue
    return {
        **lease_data(claimed.lease),
        "title": issue.title,
        "body": issue.body,
        "trusted": issue.by_writer,
        "url": issue.url,
        "labels": sorted(issue.labels),
        "attempt": claimed.failed_attempts + 1,
        "attempts": claimed.stage.attempts,
        "next": list(claimed.stage.next),
        "do": what_to_do(claimed),
    }


def what_to_do(claimed: Claimed) -> list[str]:
    """How to renew and how to end the lease, as sentences with commands."""
    run, release = claimed.lease.run, f"dibs release {claimed.lease.run} --outcome"
    renew = describe_span(claimed.terms.renew_every)
    first, *others = claimed.stage.next
    choice = f", or with --to {' or --to '.join(others)}" if others else ""
    return [
        f"renew at least every {renew} with: dibs heartbeat {run}",
        f"or have dibs renew while a command runs, with: dibs keep {run} -- COMMAND",
        f"finish with: {release} advanced (moves it to {first}{choice})",
        f"give it back with: {release} returned --note WHY",
        f"count a failed attempt with: {release} failed --note WHY",
        f"leave it to a person with: {release} parked --note QUESTION",
        "exit 5 of any command: the lease is lost; stop, and write nothing more",
    ]


@command("heartbeat")
@run_or_issue
@run_option
@dry_run
def heartbeat_command(
    context: Context, named: str | None, run: str | None, dry_run: bool
) -> Answer:
    """Renew a lease that `dibs claim` gave you. Exit 5 if the lease is lost."""
    claimed = resume(context, *held_by(context, named, run))
    keeper = context.services.keep(claimed)
    if not dry_run:
        if (hitch := keeper.renew_now()) is not None:
            raise hitch.failure
        keeper.check()
    lease = keeper.lease
    verb = "would be renewed" if dry_run else "renewed"
    line = f"{lease.issue} {verb} until {lease.expires_at:%Y-%m-%dT%H:%M:%SZ}"
    return Answer(lease_data(lease), [line])


def held_by(context: Context, named: str | None, run: str | None) -> tuple[IssueRef, str]:
    """The issue and the run of a command line which names the run, and perhaps the issue.

    The argument is a run if it looks like a run and no `--run` was typed beside it. Without an
    issue, the issue is found by the run: in the environment of a command that dibs started, in the
    note of the git working tree, or among the live leases. Raises NoSuchRun, and HandlerMayNot in a
    handler of another run.
    """
    typed = click.get_current_context().get_parameter_source("run") is ParameterSource.COMMANDLINE
    if named is not None and not typed and _A_RUN.fullmatch(named):
        named, run = None, named
    if not run:
        other = "" if named is None else f"; {named!r} is no run"
        raise click.UsageError(f"name the run that dibs claim printed, or set DIBS_RUN{other}")
    if "DIBS_RUN" in os.environ:
        from dibs.core.roles import insist_own, surrounding

        insist_own(run, surrounding(os.environ))
    if named is not None and named != run:
        return context.ref(named), run
    if run == os.environ.get("DIBS_RUN") and (issue := os.environ.get("DIBS_ISSUE")):
        return context.ref(issue), run
    from dibs.hook.run_files import run_file

    noted = run_file(context.directory)
    if noted is not None and (issue := noted.runs().get(RunId(run))) is not None:
        return context.ref(issue), run
    context.services.granting.insist()
    if (found := context.services.resuming.find(RunId(run))) is None:
        raise NoSuchRun(run)
    return found, run


def resume(context: Context, ref: IssueRef, run: str) -> Claimed:
    """The lease of a run, taken up by this process. Raises LeaseLost."""
    from dibs.services.resuming import NotHeld

    context.services.granting.insist()
    result = context.services.resuming.resume(ref, RunId(run))
    if isinstance(result, NotHeld):
        raise lost(ref, result.record, run)
    return result


def lost(issue: IssueRef, record: Record | None, run: str) -> LeaseLost:
    """The error for a run that does not hold the issue, with the reason."""
    if record is None:
        return LeaseLost(issue, fence=Fence(0), why=f"run {run} never held the issue")
    if record.lease.run != run:
        holding = f"run {record.lease.run} of {record.lease.holder}"
        why = f"the latest lease belongs to {holding}, not to run {run}"
    elif record.ending is not None:
        why = f"run {run} already ended its lease ({record.ending.outcome.value})"
    else:
        why = f"the lease of run {run} expired"
    return LeaseLost(issue, fence=record.lease.fence, why=why)


@command("release")
@run_or_issue
@run_option
@click.option(
    "--outcome",
    type=click.Choice(["advanced", "returned", "failed", "parked"]),
    default="returned",
    show_default=True,
    help="How the work ended.",
)
@click.option("--to", metavar="STAGE", help="With advanced: the next stage, if there are several.")
@click.option("--note", default="", help="A note for the issue's card.")
@dry_run
def release_command(
    context: Context,
    named: str | None,
    run: str | None,
    outcome: str,
    to: str | None,
    note: str,
    dry_run: bool,
) -> Answer:
    """End a lease: advance the issue, give it back, count a failed attempt, or park the issue."""
    claimed = resume(context, *held_by(context, named, run))
    return finish(context, claimed, outcome, to, note, dry_run=dry_run)


def finish(
    context: Context, claimed: Claimed, outcome: str, to: str | None, note: str, *, dry_run: bool
) -> Answer:
    """End a lease with an outcome, and drop the note of the run from the git working tree.

    The note stays if the issue now follows a pull request, which may get more commits from there.
    Raises LeaseLost if the lease was lost before, and IllegalMove for a stage out of reach.
    """
    from dibs.hook.run_files import run_file
    from dibs.services.ending import FinishRefused

    if to is not None and outcome != "advanced":
        raise click.UsageError("--to needs --outcome advanced")
    if outcome == "parked" and not note.strip():
        raise click.UsageError("--outcome parked needs --note with the question for a person")
    services = context.services
    if outcome == "advanced":
        services.pipeline.target(claimed.stage.name, to)
    if dry_run:
        plan = {"issue": str(claimed.lease.issue), "outcome": outcome, "next": to}
        return Answer(plan, [f"{claimed.lease.issue} would be {outcome}"])
    keeper = services.keep(claimed)
    advancing = services.advancing
    if outcome == "advanced":
        result = advancing.advance(keeper, to, note)
    else:
        ends = {"failed": advancing.fail, "parked": advancing.park}
        words = asking(note) if outcome == "parked" else note
        result = ends.get(outcome, advancing.give_back)(keeper, words)
    if isinstance(result, FinishRefused):
        raise LeaseLost(keeper.issue, fence=keeper.fence, why=result.why)
    ending = result.ending
    follows = ending.next and services.pipeline.stage(ending.next).follows
    if not isinstance(follows, FollowsPull) and (noted := run_file(context.directory)) is not None:
        noted.forget(keeper.run)
    onward = f" to {ending.next}" if ending.next else ""
    data = {
        "issue": str(keeper.issue),
        "outcome": ending.outcome.value,
        "next": ending.next,
        "fence": keeper.fence,
    }
    return Answer(data, [f"{keeper.issue} {ending.outcome.value}{onward}"])
