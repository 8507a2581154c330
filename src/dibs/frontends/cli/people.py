"""Commands for people: take, give-back, approve, label, pause, resume, revoke."""

import sys
from collections.abc import Sequence
from datetime import timedelta

import click
from click.termui import confirm
from msgspec.structs import replace

from dibs.core.durations import describe_span
from dibs.core.eligibility import PauseScope, ReasonCode
from dibs.core.errors import Misuse
from dibs.core.ids import RunId
from dibs.frontends.cli.context import Context, as_name, command, dry_run, reference
from dibs.frontends.cli.leasing import describe_claim, duration, finish, note_run
from dibs.frontends.cli.output import Answer, Exit, lease_data, record_data, tell
from dibs.services.claiming import A_PERSON_MAY_OVERLOOK, Claimed, ClaimOptions
from dibs.services.resuming import NotHeld
from dibs.services.steering import Approved, NothingToRevoke


@command("take")
@reference
@click.option("--ttl", callback=duration, help="How long you need it; person_ttl by default.")
@click.option(
    "--wait", callback=duration, help="How long to wait for the present holder to finish or expire."
)
@as_name
@dry_run
def take_command(
    context: Context,
    issue: str,
    ttl: timedelta | None,
    wait: timedelta | None,
    name: str | None,
    dry_run: bool,
) -> Answer:
    """Take an issue yourself. Workers keep off until you give it back or the lease runs out."""
    ref, services = context.ref(issue), context.services
    options = ClaimOptions(
        context.holder(name),
        ttl=ttl or services.settings.person_ttl,
        overlook=A_PERSON_MAY_OVERLOOK,
    )
    if dry_run:
        found = services.explaining.explain(ref)
        held = [reason for reason in found.reasons if reason.code is ReasonCode.HELD]
        lines = [f"{ref} would wait: {held[0].text}" if held else f"{ref} would be taken"]
        return Answer({"issue": str(ref), "held": bool(held)}, lines)
    clock = services.adapters.clock
    wait_s = wait.total_seconds() if wait is not None else 0.0
    deadline, announced = clock.now() + wait_s, False
    while not isinstance(result := services.claiming.claim(ref, None, options), Claimed):
        left = deadline - clock.now()
        if left <= 0:
            return describe_claim(result)
        if not announced:
            tell(f"{ref} is not free yet; waiting up to {wait_s:.0f} s")
            announced = True
        clock.sleep(min(1.0, left))
    note_run(context, result.lease)
    answer = describe_claim(result)
    how_to_end = f"  give it back with: dibs give-back {ref.typed}"
    return replace(answer, lines=[*answer.lines, how_to_end])


@command("give-back")
@reference
@click.option("--to", metavar="STAGE", help="Move the issue to this stage: you finished it.")
@click.option("--note", default="", help="A note for the issue's card.")
@as_name
@dry_run
def give_back_command(
    context: Context, issue: str, to: str | None, note: str, name: str | None, dry_run: bool
) -> Answer:
    """Give back an issue you took: to its own stage, or on to another."""
    holder = context.holder(name)
    context.services.granting.insist()
    result = context.services.resuming.resume_as(context.ref(issue), holder)
    if isinstance(result, NotHeld):
        record = result.record
        if record is not None and record.live:
            line = f"{result.issue} is held by {record.lease.holder}, not by {holder}"
            data = {"issue": str(result.issue), "lease": record_data(record)}
            return Answer(data, [line], Exit.HELD)
        line = f"{holder} does not hold {result.issue}; nobody does"
        return Answer({"issue": str(result.issue), "lease": None}, [line], Exit.LOST)
    outcome = "advanced" if to else "returned"
    return finish(context, result, outcome, to, note, dry_run=dry_run)


@command("approve")
@click.argument("issues", metavar="ISSUE...", nargs=-1, required=True)
@as_name
@dry_run
def approve_command(
    context: Context, issues: Sequence[str], name: str | None, dry_run: bool
) -> Answer:
    """Approve issues that wait at a gate; the next worker moves them on.

    Exit 3 if none of the issues waits at a gate.
    """
    refs = [context.ref(issue) for issue in issues]
    if dry_run:
        lines = [f"{ref} would be approved" for ref in refs]
        return Answer({"would_approve": [str(ref) for ref in refs]}, lines)
    steering, by = context.services.steering, context.holder(name)
    approved, lines = {}, []
    for ref in refs:
        result = steering.approve(ref, by=by)
        if isinstance(result, Approved):
            approved[str(ref)] = result.stage.name
            lines.append(f"{ref} approved: it may leave {result.stage.name}")
        else:
            lines.append(f"{ref} waits at no gate")
    return Answer({"approved": approved}, lines, Exit.DONE if approved else Exit.NOTHING)


@command("label")
@reference
@click.option("--add", multiple=True, metavar="LABEL", help="Add this label; repeatable.")
@click.option("--remove", multiple=True, metavar="LABEL", help="Remove this label; repeatable.")
@dry_run
def label_command(
    context: Context, issue: str, add: Sequence[str], remove: Sequence[str], dry_run: bool
) -> Answer:
    """Change an issue's labels by hand, as you would in a tracker's own pages."""
    if not add and not remove:
        raise click.UsageError("name a label to --add or to --remove")
    if any(not label.strip() or "," in label for label in (*add, *remove)):
        raise click.UsageError("a label may not be empty or contain a comma")
    ref = context.ref(issue)
    if not dry_run:
        context.services.steering.relabel(ref, add=tuple(add), remove=tuple(remove))
    labels = sorted(context.services.tracker.read(ref).issue.labels)
    if dry_run:
        labels = sorted((set(labels) | set(add)) - set(remove))
    verb = "would carry" if dry_run else "carries"
    line = f"{ref} {verb} {', '.join(labels) or 'no label'}"
    return Answer({"issue": str(ref), "labels": labels}, [line])


def _scope(repository: bool, fleet: bool, issues: Sequence[str]) -> PauseScope | None:
    """The scope of a pause; None if issues are named. Exactly one kind of target must be given."""
    if sum((repository, fleet, bool(issues))) != 1:
        raise click.UsageError("name issues, or use --repository, or use --fleet")
    if fleet:
        return PauseScope.FLEET
    return PauseScope.REPOSITORY if repository else None


_TELL_EVERY = 20
_issues = click.argument("issues", metavar="[ISSUE]...", nargs=-1)
_repository = click.option("--repository", is_flag=True, help="The whole repository.")
_fleet = click.option("--fleet", is_flag=True, help="Every worker, whatever the repository.")


@command("pause")
@_issues
@_repository
@_fleet
@click.option("--reason", required=True, help="The reason, for everybody to read.")
@as_name
@dry_run
def pause_command(
    context: Context,
    issues: Sequence[str],
    repository: bool,
    fleet: bool,
    reason: str,
    name: str | None,
    dry_run: bool,
) -> Answer:
    """Pause issues, the repository or the whole fleet.

    Running work on a paused issue stops; a paused fleet finishes its running work.
    """
    scope, by = _scope(repository, fleet, issues), context.holder(name)
    refs = [context.ref(issue) for issue in issues]
    targets = [scope.value] if scope else [str(ref) for ref in refs]
    if not dry_run:
        if scope:
            context.services.steering.pause_all(scope, reason=reason, by=by)
        for ref in refs:
            context.services.steering.pause_issue(ref, reason=reason, by=by)
    verb = "would be paused" if dry_run else "paused"
    return Answer({"paused": targets, "reason": reason}, [f"{target} {verb}" for target in targets])


@command("resume")
@_issues
@_repository
@_fleet
@click.option("--parked", is_flag=True, help="Every parked issue; pauses stay.")
@click.option("--stage", metavar="STAGE", help="With --parked: only those of this stage.")
@as_name
@dry_run
def resume_command(
    context: Context,
    issues: Sequence[str],
    repository: bool,
    fleet: bool,
    parked: bool,
    stage: str | None,
    name: str | None,
    dry_run: bool,
) -> Answer:
    """Lift a pause, or re-queue a parked issue with all its attempts.

    Exit 3 if none was paused or parked.
    """
    if stage is not None and not parked:
        raise click.UsageError("--stage goes with --parked")
    if parked and (repository or fleet or issues):
        raise click.UsageError("--parked means every parked issue; name nothing beside it")
    by = context.holder(name)
    if parked:
        return _resume_parked(context, stage, by, dry_run=dry_run)
    scope = _scope(repository, fleet, issues)
    refs = [context.ref(issue) for issue in issues]
    if dry_run:
        targets = [scope.value] if scope else [str(ref) for ref in refs]
        return Answer({"would_resume": targets}, [f"{target} would resume" for target in targets])
    steering = context.services.steering
    lifted = [scope.value] if scope and steering.resume_all(scope, by=by) else []
    lifted += [str(ref) for ref in refs if steering.resume_issue(ref, by=by)]
    if not lifted:
        return Answer({"resumed": []}, ["nothing was paused or parked"], Exit.NOTHING)
    return Answer({"resumed": lifted}, [f"{target} resumed" for target in lifted])


def _resume_parked(context: Context, stage: str | None, by: str, *, dry_run: bool) -> Answer:
    """Re-queue every parked issue. An issue that the tracker refuses is named and left."""
    services = context.services
    wanted = services.pipeline.stage(stage).name if stage is not None else None
    steering = services.steering
    refs = steering.parked(wanted)
    if dry_run:
        lines = [f"{ref} would resume" for ref in refs] or ["nothing is parked"]
        targets = [str(ref) for ref in refs]
        return Answer({"would_resume": targets}, lines, Exit.DONE if refs else Exit.NOTHING)
    resumed: list[str] = []
    refused: list[str] = []
    for number, ref in enumerate(refs, 1):
        try:
            if steering.requeue(ref, by=by):
                resumed.append(str(ref))
        except Misuse as refusal:
            refused.append(str(ref))
            tell(f"{ref} stays parked: {refusal}")
        if number % _TELL_EVERY == 0 and number < len(refs):
            tell(f"{number} of {len(refs)} parked issues are done")
    data = {"resumed": resumed, "refused": refused}
    if refused:
        return Answer(data, [f"{ref} resumed" for ref in resumed], Exit.ERROR)
    if not resumed:
        return Answer(data, ["nothing is parked"], Exit.NOTHING)
    return Answer(data, [f"{ref} resumed" for ref in resumed])


@command("revoke")
@reference
@click.option("--reason", required=True, help="The reason, for everybody to read.")
@click.option("--run", help="Revoke only this run; the present holder's by default.")
@click.option("--force", is_flag=True, help="End it at once: only for a holder known to be dead.")
@click.option("--yes", is_flag=True, help="With --force: you know what it risks.")
@as_name
@dry_run
def revoke_command(
    context: Context,
    issue: str,
    reason: str,
    run: str | None,
    force: bool,
    yes: bool,
    name: str | None,
    dry_run: bool,
) -> Answer:
    """Take a lease away from its holder.

    The holder stops at the next renewal, and gives the issue back. With --force the lease ends at
    once, and a holder that is alive works beside the next holder until the next renewal fails.
    """
    ref, services = context.ref(issue), context.services
    services.granting.insist()
    _, _, standing = services.board.show(ref)
    if standing.live is None:
        return Answer({"issue": str(ref)}, [f"nobody holds {ref}"], Exit.NOTHING)
    lease = standing.live.lease
    if force and not yes and not dry_run:
        risk = (
            f"{lease.holder} may still be working on {ref}. If the lease ends at once, another "
            f"holder may work beside {lease.holder}. Without --force, {lease.holder} stops first."
        )
        if not sys.stdin.isatty():
            hint = "A person must confirm this, and standard input is not a terminal."
            raise click.UsageError(f"{risk} {hint}")
        tell(risk)
        confirm("End the lease at once?", abort=True, err=True)
    if dry_run:
        return Answer(lease_data(lease), [f"the lease of {lease.holder} on {ref} would be revoked"])
    result = services.steering.revoke(
        ref, RunId(run or lease.run), by=context.holder(name), reason=reason, force=force
    )
    if isinstance(result, NothingToRevoke):
        line = f"run {run or lease.run} does not hold {ref}; nothing was changed"
        return Answer({"issue": str(ref), "lease": record_data(result.record)}, [line], Exit.HELD)
    left = describe_span(result.record.remaining)
    how = "ended" if force else f"revoked; the issue is free in {left} at the latest"
    return Answer(
        {**lease_data(lease), "force": force, "reason": reason},
        [f"{ref}: the lease of {lease.holder} (run {lease.run}) is {how}"],
    )
