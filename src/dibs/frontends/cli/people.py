"""Commands for people: take, give-back, approve, reject, plan, label, pause, resume, revoke."""

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import assert_never

import click
from click.termui import confirm
from msgspec.structs import replace

from dibs.core.approval import LONGEST_PLAN
from dibs.core.durations import describe_span
from dibs.core.eligibility import PauseScope, ReasonCode
from dibs.core.errors import LeaseLost, Misuse
from dibs.core.ids import HolderId, IssueRef, RunId
from dibs.core.lease import Record
from dibs.core.pipeline import Stage
from dibs.frontends.cli.context import (
    Context,
    as_name,
    command,
    complete_issue,
    complete_run,
    dry_run,
    duration,
    reference,
)
from dibs.frontends.cli.leasing import describe_claim, finish, note_run
from dibs.frontends.cli.output import Answer, Exit, lease_data, reason_lines, record_data, tell
from dibs.services.claiming import (
    A_PERSON_MAY_OVERLOOK,
    Beaten,
    Claimed,
    ClaimOptions,
    ClaimResult,
    Refused,
)
from dibs.services.resuming import NotHeld
from dibs.services.steering import (
    NoGateHere,
    NotEntitled,
    NothingToRevoke,
    Ruled,
    TextDiffers,
)


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
    import shlex  # few commands need it

    again = "" if name is None else f" --as {shlex.quote(name)}"
    how_to_end = f"  give it back with: dibs give-back {ref.typed}{again}"
    clock = services.adapters.clock
    wait_s = wait.total_seconds() if wait is not None else 0.0
    deadline, announced = clock.now() + wait_s, False
    while not isinstance(result := services.claiming.claim(ref, None, options), Claimed):
        if isinstance(result, Refused | Beaten) and not announced:
            mine = services.resuming.resume_as(ref, options.holder)
            # By the ttl: an agent of the same name may hold the issue, and that is not the person.
            if isinstance(mine, Claimed) and mine.lease.ttl == options.ttl:
                lease, span = mine.lease, describe_span(mine.lease.expires_at - mine.snapshot.now)
                until = f"{lease.expires_at:%Y-%m-%dT%H:%M:%SZ} ({span})"
                line = f"you have {lease.issue} already, until {until}"
                return Answer(lease_data(lease), [line, how_to_end])
        left = deadline - clock.now()
        if left <= 0:
            return describe_claim(result)
        if not announced:
            tell(f"{ref} is not free yet; waiting up to {wait_s:.0f} s")
            announced = True
        clock.sleep(min(1.0, left))
    note_run(context, result.lease)
    answer = describe_claim(result)
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
    answer = finish(context, result, outcome, to, note, dry_run=dry_run)
    if not dry_run:
        context.services.wake(result.lease.issue)  # a process of this name may still work on it
        context.services.wake()
    return answer


_text = click.option(
    "--text",
    metavar="DIGEST",
    help="The digest of the text that you read, as `dibs show` prints it: for no other text.",
)


@command("approve")
@click.argument(
    "issues", metavar="ISSUE...", nargs=-1, required=True, shell_complete=complete_issue
)
@_text
@as_name
@dry_run
def approve_command(
    context: Context, issues: Sequence[str], text: str | None, name: str | None, dry_run: bool
) -> Answer:
    """Approve issues that wait at a gate, and move them on where no handler has work first.

    Exit 3 if none of the issues waits at a gate, 6 if an approval would not count or another
    text is there than DIGEST.
    """
    if text is not None and len(issues) > 1:
        raise click.UsageError("--text goes with one issue")
    refs = [context.ref(issue) for issue in issues]
    services, by = context.services, context.holder(name)
    approved: dict[str, str] = {}
    moved: dict[str, str] = {}
    refused: dict[str, str] = {}
    lines: list[str] = []
    for ref in refs:
        result = services.steering.approve(ref, by=by, text=text, dry_run=dry_run)
        if not isinstance(result, Ruled):
            lines.append(refused.setdefault(str(ref), _not_ruled(ref, result)))
            continue
        stage, verb = result.stage, "would be approved" if dry_run else "approved"
        approved[str(ref)] = stage.name
        if result.again:
            verb = "is approved already"
        if result.missing or dry_run:
            more = f"; {result.missing} more missing" if result.missing else ""
            lines.append(f"{ref} {verb}, out of {stage.name}{more}")
        elif not stage.passes_by_itself or stage.name in services.present.handled:
            lines.append(f"{ref} {verb}: a worker may work it in {stage.name} now")
        elif isinstance(outcome := _move_on(context, ref, stage, by), Answer):
            moved[str(ref)] = outcome.data["next"]
            lines.append(f"{ref} {verb}, and moved on to {outcome.data['next']}")
        else:
            lines += [f"{ref} {verb}, but it is still in {stage.name}:", *outcome]
    if approved and not dry_run:
        services.wake()
    data = {"approved": approved, "moved": moved, "refused": refused}
    gateless = all(line.endswith(_NO_GATE) for line in refused.values())
    none = Exit.NOTHING if gateless else Exit.SHUT
    return Answer(data, lines, Exit.DONE if approved else none)


_NO_GATE = "waits at no gate"


def _not_ruled(ref: IssueRef, result: TextDiffers | NotEntitled | NoGateHere) -> str:
    """Why a ruling was not written."""
    match result:
        case NoGateHere():
            return f"{ref} {_NO_GATE}"
        case TextDiffers(text):
            return f"{ref} has another text now, {text}: read it again with dibs show {ref.typed}"
        case NotEntitled(by, why):
            return f"{ref}: a ruling by {by or 'nobody'} would not count: {why}"
        case never:
            assert_never(never)


@command("reject")
@reference
@click.option("--note", required=True, help="What is wrong, for the next attempt to read.")
@_text
@as_name
@dry_run
def reject_command(
    context: Context, issue: str, note: str, text: str | None, name: str | None, dry_run: bool
) -> Answer:
    """Reject what stands at an issue's gate: it goes back, with your note.

    After several times in a row it is parked instead. Exit 3 if it waits at no gate.
    """
    if not note.strip():
        raise click.UsageError("--note is empty: say what is wrong")
    ref, services, by = context.ref(issue), context.services, context.holder(name)
    result = services.steering.reject(ref, by=by, note=note, text=text, dry_run=dry_run)
    if not isinstance(result, Ruled):
        line = _not_ruled(ref, result)
        exit_code = Exit.NOTHING if isinstance(result, NoGateHere) else Exit.SHUT
        return Answer({"issue": str(ref), "rejected": False, "reason": line}, [line], exit_code)
    stage = result.stage.name
    data = {"issue": str(ref), "rejected": True, "stage": stage, "act": None}
    if dry_run:
        return Answer(data, [f"{ref} would be rejected, out of {stage}"])
    done = services.gatekeeping.look(ref, by)
    services.wake()
    if done is None or not done.changed:
        more = done.text if done is not None else "a worker sends it back once it is free"
        return Answer(data, [f"{ref} rejected, and still in {stage}: {more}"])
    return Answer({**data, "act": done.act.value}, [f"{ref} {done.text}"])


@command("plan")
@reference
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, allow_dash=True, exists=True, dir_okay=False),
    required=True,
    help="The plan, as Markdown; - for standard input.",
)
@as_name
@dry_run
def plan_command(
    context: Context, issue: str, path: Path, name: str | None, dry_run: bool
) -> Answer:
    """Post a plan on an issue, for a person to approve at its gate."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
    except UnicodeDecodeError as flaw:
        raise click.UsageError(f"{path} is not UTF-8 text") from flaw
    if not text.strip():
        raise click.UsageError(f"{path} is empty: a plan has words")
    if len(text) > LONGEST_PLAN:
        raise click.UsageError(f"the plan has {len(text)} characters; {LONGEST_PLAN} fit a comment")
    ref, by = context.ref(issue), context.holder(name)
    data = {"issue": str(ref), "by": by, "characters": len(text)}
    if dry_run:
        return Answer(data, [f"a plan of {len(text)} characters would be posted on {ref}"])
    run = RunId(os.environ["DIBS_RUN"]) if "DIBS_RUN" in os.environ else None
    context.services.steering.plan(ref, text, by=by, run=run)
    return Answer(data, [f"{ref} has a new plan; dibs show {ref.typed} prints it with its digest"])


def _move_on(context: Context, ref: IssueRef, stage: Stage, by: HolderId) -> Answer | list[str]:
    """Move an approved issue out of a stage without a handler, under a lease of the person.

    A lease that the person has already is used: of `dibs take`, or of an approval that was killed.
    It is known by its ttl: an agent of the same name may hold the issue, and its work is not done.
    Returns lines with the reasons if a worker could not move the issue either.
    """
    services = context.services
    options = ClaimOptions(by, ttl=services.settings.person_ttl)
    result: ClaimResult = services.claiming.claim(ref, stage, options)
    if isinstance(result, Refused | Beaten):
        mine = services.resuming.resume_as(ref, by)
        by_hand = isinstance(mine, Claimed) and mine.lease.ttl == options.ttl
        result = mine if isinstance(mine, Claimed) and by_hand and mine.stage == stage else result
    if not isinstance(result, Claimed):
        if isinstance(result, Refused):
            return reason_lines(result.reasons)
        return [f"  {line}" for line in describe_claim(result).lines]
    try:
        return finish(context, result, "advanced", None, f"approved by {by}", dry_run=False)
    except LeaseLost as lost:
        return [f"  {lost}"]


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
        by = context.holder(None)
        context.services.steering.relabel(ref, add=tuple(add), remove=tuple(remove), by=by)
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
_issues = click.argument("issues", metavar="[ISSUE]...", nargs=-1, shell_complete=complete_issue)
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

    Running work on a paused issue stops: on this machine within seconds, elsewhere at its next
    renewal. A paused fleet finishes its running work.
    """
    scope, by = _scope(repository, fleet, issues), context.holder(name)
    refs = [context.ref(issue) for issue in issues]
    targets = [scope.value] if scope else [str(ref) for ref in refs]
    if dry_run:
        lines = [f"{target} would be paused" for target in targets]
        return Answer({"paused": targets, "reason": reason}, lines)
    steering, holders = context.services.steering, {}
    if scope:
        steering.pause_all(scope, reason=reason, by=by)
        lines = [f"{scope.value} paused: no new claims; running work is finished"]
    else:
        lines = []
    for ref in refs:
        live = steering.pause_issue(ref, reason=reason, by=by)
        lines.append(f"{ref} paused" if live is None else f"{ref} paused; {_stops(context, live)}")
        if live is not None:
            holders[str(ref)] = live.lease.holder
    return Answer({"paused": targets, "reason": reason, "holders": holders}, lines)


def _stops(context: Context, live: Record) -> str:
    """When the holder of a live lease learns of a person's word."""
    services, lease = context.services, live.lease
    if lease.ttl == services.settings.person_ttl:
        left, who = describe_span(live.remaining), lease.holder
        return f"{who} took it by hand, for another {left}, and is not told: speak with {who}"
    stages = [stage for stage in services.pipeline.stages if stage.name == lease.stage]
    own_ttl = any(stage.terms.ttl == lease.ttl for stage in stages)
    latest = describe_span(stages[0].terms.renew_every if own_ttl else live.remaining)
    return (
        f"{lease.holder} is told within seconds if a dibs process on this machine keeps the lease, "
        f"else at its next renewal, within {latest}"
    )


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
@click.option(
    "--run",
    help="Revoke only this run; the present holder's by default.",
    shell_complete=complete_run,
)
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

    The holder stops, on this machine within seconds, elsewhere at the next renewal, and gives the
    issue back. With --force the lease ends at once, and a holder that is alive works beside the
    next holder until it stops.
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
    lines = [f"{ref}: the lease of {lease.holder} (run {lease.run}) is {how}"]
    lines.append(f"  {_stops(context, standing.live)}")
    return Answer({**lease_data(lease), "force": force, "reason": reason}, lines)
