"""`dibs work`: a worker, until its end or a signal."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from dibs.core.pipeline import Command, Pipeline
from dibs.frontends.cli.context import Context, command, dry_run, duration
from dibs.frontends.cli.output import Answer, Exit, tell
from dibs.wiring import mask

if TYPE_CHECKING:
    from dibs.services.working import Worker, WorkReport


@command("work")
@click.option("--stage", "stages", multiple=True, metavar="STAGE", help="Serve only this stage.")
@click.option("--run", "command", metavar="COMMAND", help="The handler; needs exactly one --stage.")
@click.option("--jobs", type=click.IntRange(1, 1000), help="How many issues to work at once.")
@click.option("--once", is_flag=True, help="Work one issue, then end. Exit 3 if there is none.")
@click.option("--drain", is_flag=True, help="End when no issue is left to work or to wait for.")
@click.option("--grace", callback=duration, help="How long handlers may go on after SIGTERM.")
@click.option(
    "--pass-env",
    "passed",
    multiple=True,
    metavar="NAME",
    help="Give this variable to the handlers, and let dibs.toml do so; may be repeated.",
)
@click.option("--name", help="This worker's name on the cards; host and process by default.")
@click.option("--quiet", is_flag=True, help="Print no progress.")
@dry_run
def work_command(
    context: Context,
    stages: Sequence[str],
    command: str | None,
    jobs: int | None,
    once: bool,
    drain: bool,
    grace: timedelta | None,
    passed: Sequence[str],
    name: str | None,
    quiet: bool,
    dry_run: bool,
) -> Answer:
    """Work issues: claim one, run its stage's handler, advance it; then the next.

    The handler gets the issue as JSON on standard input. Exit 0 advances the issue, 75 gives it
    back, 77 sets it aside for a person, any other code is a failed attempt. If several issues fail
    in a row, the worker stops their stage and gives their attempts back. On SIGTERM handlers may
    finish, or their issues are given back; a second SIGTERM stops the handlers at once.
    """
    from dibs.services.working import Until
    from dibs.wiring.services import worker_name

    if once and drain:
        raise click.UsageError("use --once or --drain, not both")
    settings = context.settings
    if command is not None:
        settings = replace(settings, pipeline=served_by(settings.pipeline, stages, command))
    services = context.connect(settings.passing(passed) if passed else settings)
    served = services.serving(stages)
    if dry_run:
        rows = [row for stage in served for row in services.board.ready(stage=stage.name)]
        lines = [
            f"{row.issue.ref} would be tried for {row.stage.name}" for row in rows if row.stage
        ]
        return Answer([str(row.issue.ref) for row in rows], lines or ["nothing is ready"])
    say: Callable[[str], None] = (lambda _: None) if quiet else tell
    worker = services.worker(
        context.holder(name) if name else worker_name(),
        served,
        jobs=jobs,
        until=Until.ONCE if once else Until.DRAINED if drain else Until.STOPPED,
        stop_grace_s=grace.total_seconds() if grace is not None else None,
        tell=say,
    )
    with catching_signals(partial(stop_worker, worker, say)) as received:
        report = worker.run()
    return _answer(report, received, may_be_idle=not (once or drain))


def stop_worker(worker: "Worker", say: Callable[[str], None], signals: int) -> None:
    """Let the work finish at the first signal, and stop it at the second."""
    if signals > 1:
        say("stopping at once")
        worker.leave_now()
        return
    busy = worker.busy
    finishing = f"finishing {busy} issue{'s' * (busy > 1)}, again to stop at once"
    say(f"asked to stop: {finishing if busy else 'no issue is being worked'}")
    worker.leave()


def served_by(pipeline: Pipeline, stages: Sequence[str], command: str) -> Pipeline:
    """The pipeline with the command of `--run` as the handler of its one `--stage`."""
    if len(stages) != 1:
        raise click.UsageError("--run needs exactly one --stage")
    wanted = pipeline.stage(stages[0])
    if not wanted.next:
        onward = ", ".join(stage.name for stage in pipeline.stages if stage.next)
        raise click.UsageError(
            f"stage {wanted.name!r} is final: no work is done there, and it moves nowhere; "
            f"stages with work: {onward}"
        )
    changed = (
        replace(stage, handler=Command(command)) if stage is wanted else stage
        for stage in pipeline.stages
    )
    return replace(pipeline, stages=tuple(changed))


@contextmanager
def catching_signals(stop: Callable[[int], None]) -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT in a list; for each, call `stop` with the number received so far.

    `stop` runs in a thread, not in the signal handler: the handler may have interrupted a thread
    that holds a lock, or the very loop for whose end `stop` waits.
    """
    received: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        received.append(number)
        threading.Thread(target=stop, args=(len(received),), daemon=True).start()

    previous = {
        number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _answer(report: "WorkReport", received: list[int], *, may_be_idle: bool) -> Answer:
    """The counts of a finished worker, with the exit code.

    With --once or --drain: 1 if the last run of an issue here failed, was parked or broke off.
    For every worker: 1 if the end of an issue's last run could not be recorded.
    Without a claim, the exit code is 0 only if the worker may be idle, left on a signal, or swept.
    Otherwise the exit code gives the reason.
    """
    data: dict[str, Any] = {
        "attempts": report.attempts,
        "claimed": report.claimed,
        "lost_races": report.lost_races,
        "swept": report.swept,
        "followed": report.followed,
        "gated": report.gated,
        "outcomes": dict(report.outcomes),
        "unsuccessful": [str(issue) for issue in sorted(report.unsuccessful)],
        "unrecorded": [str(issue) for issue in sorted(report.unrecorded)],
        "paused": [pause.reason for pause in report.paused],
        "barred": report.barred,
        "unusable": mask(report.unusable),
        "stopped": report.tripped,
    }
    did = ", ".join(f"{count} {what}" for what, count in sorted(report.outcomes.items()))
    lines = [f"claimed {report.claimed} ({did or 'no outcome'})"]
    if signal.SIGINT in received or len(received) > 1:
        return Answer(data, lines, Exit.INTERRUPTED)
    if report.unusable:
        return Answer(data, [data["unusable"]], Exit.ERROR)
    faults = [f"stage {stage} is stopped: {why}" for stage, why in report.tripped.items()]
    if report.unsuccessful and not may_be_idle:
        faults.append(f"without success: {', '.join(data['unsuccessful'])}")
    if report.unrecorded:
        faults.append(f"not recorded: {', '.join(data['unrecorded'])}")
    if faults and (report.unrecorded or not received):
        return Answer(data, [*lines, *faults], Exit.ERROR)
    if received or report.claimed or may_be_idle:
        return Answer(data, lines)
    if report.barred:
        return Answer(data, [report.barred], Exit.SHUT)
    if report.paused:
        return Answer(data, [str(report.paused[0])], Exit.SHUT)
    if report.did_something or report.outcomes:
        return Answer(data, lines)
    return Answer(data, ["nothing to do"], Exit.NOTHING)
