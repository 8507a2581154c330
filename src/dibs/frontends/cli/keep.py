"""Commands run under a lease that dibs renews meanwhile: keep, and claim --exec."""

import os
import shlex
from typing import Any, cast

import click
from msgspec.structs import replace

from dibs.core.environment import passed_on
from dibs.core.ids import LocalTime
from dibs.core.lease import Outcome, asked
from dibs.core.pipeline import Command, Env, NoWorktree
from dibs.frontends.cli.context import Context, command
from dibs.frontends.cli.leasing import held_by, pass_env_option, resume
from dibs.frontends.cli.output import Answer, Exit, tell
from dibs.frontends.cli.work import catching_signals
from dibs.ports.system import Assignment, Exited, RunEnd, Runner, RunningHandler
from dibs.services.claiming import Claimed
from dibs.services.ending import FinishRefused
from dibs.services.running import StopSignal


@command("keep")
@click.argument("run", metavar="RUN")
@click.argument("command", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED, required=True)
@click.option("--end", is_flag=True, help="End the lease by the exit code, as `claim --exec` does.")
@pass_env_option
def keep_command(
    context: Context, run: str, command: tuple[str, ...], end: bool, pass_env: tuple[str, ...]
) -> Answer:
    """Run a command, and renew the lease of a run until the command ends.

    The command is ended if the lease is lost. The exit code is that of the command; 5 if the lease
    was lost.
    """
    if os.environ.get("DIBS_RUN") == run and "DIBS_DEADLINE" in os.environ:
        # A handler: its worker renews the lease, and a card has one writer.
        if end:
            raise click.UsageError("dibs ends the lease of this run: exit with the code instead")
        import subprocess

        # By the shell, as everywhere: a program that is missing is its 127.
        argv = ["/bin/sh", "-c", shlex.join(command)]
        code = _exit_of(subprocess.run(argv, check=False).returncode)
        return Answer({"run": run, "exit": code}, [], code)
    claimed = resume(context, *held_by(context, None, run))
    if end:
        return execute(context, claimed, command, pass_env)
    return _keep(context, claimed, command, pass_env)


def _keep(
    context: Context, claimed: Claimed, words: tuple[str, ...], pass_env: tuple[str, ...]
) -> Answer:
    """Run a command while this process renews the lease. The lease goes on after the command."""
    import threading

    from dibs.named.loops import run_kept

    services, stop = context.services, threading.Event()
    keeper = services.keep(claimed)
    keeper.renew_now()  # most of the ttl may be over by now
    keeper.check()
    supervision = services.supervise(keeper)
    environment = {
        "DIBS_ISSUE": str(keeper.issue),
        "DIBS_STAGE": keeper.stage_name,
        **_place(context),
    }
    try:
        with catching_signals(lambda _: stop.set()) as received:
            end = run_kept(
                services.runner,
                keeper,
                Command(shlex.join(words)),
                environment,
                stop=stop,
                env=Env.INHERIT,
                pass_env=pass_env,
                in_sight=not context.as_json,
                as_typed=True,
            )
    finally:
        supervision.stop()
    data = {"issue": str(keeper.issue), "run": keeper.run, "fence": keeper.fence}
    if isinstance(end, Exited):
        return Answer({**data, "exit": end.code}, [], _exit_of(end.code))
    line = f"{keeper.issue}: dibs ended the command: {end.why}"
    code = Exit.INTERRUPTED if received else Exit.LOST
    return Answer({**data, "stopped": end.why}, [line], code)


def execute(
    context: Context, claimed: Claimed, words: tuple[str, ...], pass_env: tuple[str, ...]
) -> Answer:
    """Run a command as the handler of a claimed issue, and end the lease as a worker does.

    The command runs as the user who typed it, with the variables of `pass_env` and of the stage.
    """
    from dibs.hook.run_files import run_file

    lease, leaving = claimed.lease, StopSignal()
    allowed = [name for name in claimed.stage.pass_env if context.settings.may_pass(name)]
    given = passed_on(os.environ, Env.INHERIT, (*pass_env, *allowed))
    for name in sorted({*claimed.stage.pass_env} & {*os.environ} - {*given}):
        tell(f"a found file does not pass {name} on: if you want this, use --pass-env {name}")
    stage = replace(
        claimed.stage,
        handler=Command(shlex.join(words)),
        worktree=NoWorktree(),
        env=Env.INHERIT,
        pass_env=(*pass_env, *allowed),
        run_as="",
    )
    typed = _Typed(context)
    if not context.as_json:
        tell(f"{lease.issue} claimed for {lease.stage}: run {lease.run}, fence {lease.fence}")
    running = context.services.running_by(cast("Runner", typed))
    with catching_signals(lambda _: leaving.stop_all("dibs was told to stop")) as received:
        result = running.run(replace(claimed, stage=stage), leaving)
    if (noted := run_file(context.directory)) is not None:
        noted.forget(lease.run)
    data = {
        "issue": str(lease.issue),
        "stage": lease.stage,
        "run": lease.run,
        "fence": lease.fence,
        "exit": typed.end.code if isinstance(typed.end, Exited) else None,
    }
    if isinstance(result, FinishRefused):
        _, _, standing = context.services.board.show(lease.issue)
        record = standing.record
        if record is None or record.lease.run != lease.run or record.ending is None:
            line = f"{lease.issue}: the lease was lost: {result.why}"
            return Answer({**data, "outcome": None, "why": result.why}, [line], Exit.LOST)
        ending, released = record.ending, True  # the command called `dibs release` itself
    else:
        ending, released = result.ending, False
    onward = f" to {ending.next}" if ending.next else ""
    note = f" ({ending.note})" if ending.note else ""
    data |= {"outcome": ending.outcome.value, "next": ending.next, "note": ending.note}
    line = f"{lease.issue} {ending.outcome.value}{onward}{note}"
    if isinstance(typed.end, Exited):
        blamed = ending.outcome in (Outcome.FAILED, Outcome.PARKED)
        code = _exit_of(typed.end.code)
        if code == Exit.DONE and blamed and not released and not asked(ending):
            code = Exit.ERROR  # the result file was wrong
    elif released:
        code = Exit.DONE
    else:
        code = Exit.INTERRUPTED if received else Exit.LOST
    return Answer(data, [], code, [] if context.as_json else [line])


class _Typed:
    """A runner which runs a command where the user typed the command, and notes the exit.

    For all else it is the backlog's runner.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._runner = context, context.services.runner
        self._started: _Noted | None = None

    @property
    def end(self) -> RunEnd | None:
        """How the command ended; None if the command was never started."""
        return self._started.end if self._started is not None else None

    def start(self, assignment: Assignment, trusted_until: LocalTime) -> RunningHandler:
        environment = {**assignment.environment, **_place(self._context)}
        in_sight = not self._context.as_json
        wanted = replace(assignment, environment=environment, in_sight=in_sight, as_typed=True)
        self._started = _Noted(self._runner.start(wanted, trusted_until))
        return cast("RunningHandler", self._started)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


class _Noted:
    """A running command, with a note of its end."""

    def __init__(self, running: RunningHandler) -> None:
        self._running = running
        self.end: RunEnd | None = None

    def poll(self, seconds: float) -> RunEnd | None:
        self.end = self._running.poll(seconds)
        return self.end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._running, name)


def _place(context: Context) -> dict[str, str]:
    """For a command: DIBS_CONFIG, the configuration file in force, or the folder of the backlog.

    DIBS_OPERATOR is emptied: the operator vouched for this process, and not for its command.
    """
    return {**context.services.settings.variables, "DIBS_OPERATOR": ""}


def _exit_of(code: int) -> int:
    """The exit code as a shell reports it: 128 and the signal, if a signal ended the command."""
    return code if code >= 0 else 128 - code
