"""Leases by name: `dibs hold` for the time of a command, `dibs loop` for a tick in every window."""

import os
import shlex
import signal
import threading
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import click

from dibs.core.durations import describe_span, format_instant
from dibs.core.errors import BadConfiguration
from dibs.core.named import LoopSpec, chosen_hold
from dibs.core.pipeline import Command, Env
from dibs.core.roles import handed_on
from dibs.frontends.cli.context import Context, as_name, command, duration
from dibs.frontends.cli.leasing import pass_env_option
from dibs.frontends.cli.output import Answer, Exit, record_data, table, tell
from dibs.ports.system import Exited

if TYPE_CHECKING:
    from dibs.named.loops import Loop, Tick


@command("hold")
@click.argument("held", metavar="[NAME]", required=False)
@click.argument("command", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--slots", type=click.IntRange(1, 100_000), help="How many may hold NAME at once.")
@click.option("--ttl", callback=duration, help="How long the lease lasts without a renewal.")
@click.option("--wait", callback=duration, help="How long to wait for a slot.")
@pass_env_option
@as_name
def hold_command(
    context: Context,
    held: str | None,
    command: tuple[str, ...],
    slots: int | None,
    ttl: timedelta | None,
    wait: timedelta | None,
    pass_env: tuple[str, ...],
    name: str | None,
) -> Answer:
    """Run a command while holding NAME, alone or as one of --slots. Without a name, list holders.

    The command finds the fence in DIBS_FENCE, and is ended if the lease is lost. The exit code is
    that of the command; 4 if NAME was not granted, 5 if the lease was lost.
    """
    context.creates = True
    if held is None:
        records = context.services.holds.holders()
        if not records:
            return Answer([], ["no name is held"], Exit.NOTHING)
        rows = [
            (one.lease.issue, one.lease.holder, one.lease.fence, one.lease.beats,
             describe_span(one.remaining)) for one in records
        ]  # fmt: skip
        lines = table(("name/slot", "holder", "fence", "renewed", "left"), rows)
        return Answer(list(map(record_data, records)), lines)
    if not command:
        raise click.UsageError("a command is missing: dibs hold NAME -- COMMAND")
    spec = chosen_hold(context.settings.holds, held, slots=slots, ttl=ttl, wait=wait)
    from dibs.named.holds import HoldRefused, HoldWish
    from dibs.named.loops import run_kept

    wanted = (spec.name, context.holder(name), spec.slots, spec.ttl, spec.wait.total_seconds())
    taken = context.services.holds.take(HoldWish(*wanted))
    if isinstance(taken, HoldRefused):
        by = [f"{one.lease.holder} for another {describe_span(one.remaining)}" for one in taken.by]
        why = taken.why or f"held by {', '.join(by)}"
        refusal = {"name": taken.name, "why": why, "by": list(map(record_data, taken.by))}
        return Answer(refusal, [f"{taken.name} was not granted: {why}"], Exit.HELD)
    try:
        stop = _stop_on_signals()
        end = run_kept(
            context.services.runner,
            taken.keeper,
            Command(shlex.join(command)),
            {"DIBS_HOLD": spec.name, **handed_on(os.environ)},
            stop=stop,
            env=Env.INHERIT,
            pass_env=pass_env,
            in_sight=not context.as_json,
            as_typed=True,
        )
    finally:
        taken.release()
    data = {"name": spec.name, "fence": taken.fence, "run": taken.run}
    if isinstance(end, Exited):
        return Answer({**data, "exit": end.code}, [], end.code)
    code = Exit.INTERRUPTED if stop.is_set() else Exit.LOST
    line = f"{spec.name}: dibs ended the command: {end.why}"
    return Answer({**data, "stopped": end.why}, [line], code)


@command("loop")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--once", is_flag=True, help="End after the first tick that this process runs.")
@click.option(
    "--pass-env",
    "passed",
    multiple=True,
    metavar="NAME",
    help="Give this variable to the loops, and let dibs.toml do so; may be repeated.",
)
@as_name
def loop_command(
    context: Context, names: tuple[str, ...], once: bool, passed: tuple[str, ...], name: str | None
) -> Answer:
    """Run all loops, or those named: in each window, one replica runs the command."""
    from concurrent.futures import ThreadPoolExecutor

    from dibs.named.loops import Rhythm, run_kept
    from dibs.wiring.services import refuse_to_pass

    context.creates = True
    settings = context.settings.passing(passed)
    configured = {spec.name: spec for spec in settings.loops}
    if missing := [wanted for wanted in names if wanted not in configured]:
        listed = ", ".join(configured) or "none"
        raise BadConfiguration(f"no loop {missing[0]!r} is configured; configured: {listed}")
    specs = [configured[wanted] for wanted in names or configured]
    if not specs:
        raise BadConfiguration("no loop is configured; add a [[loop]] to dibs.toml")
    refuse_to_pass(settings, specs)
    services, stop = context.connect(settings), _stop_on_signals()
    for spec in specs:
        services.runner.check(spec.command)
    ticks: Counter[str] = Counter()

    def tick(spec: LoopSpec, turn: "Tick") -> None:
        """Run the command of a loop; print and count the result."""
        environment = {
            "DIBS_LOOP": spec.name,
            "DIBS_WINDOW": str(turn.window.number),
            "DIBS_WINDOW_START": format_instant(turn.window.starts_at),
        }
        end = run_kept(
            services.runner,
            turn.keeper,
            spec.command,
            environment,
            stop=stop,
            env=spec.env,
            pass_env=spec.pass_env,
        )
        result = f"exited with {end.code}" if isinstance(end, Exited) else f"ended: {end.why}"
        tell(f"{spec.name} window {turn.window.number} fence {turn.fence} {result}")
        ticks[spec.name] += 1
        if once:
            stop.set()

    def run(loop: "Loop") -> None:
        """Run a loop until `stop` is set; an error in a loop stops all loops."""
        try:
            loop.run(stop)
        finally:
            stop.set()

    holder = context.holder(name)
    loops = [
        services.loop(Rhythm(spec.name, spec.every, partial(tick, spec), holder)) for spec in specs
    ]
    with ThreadPoolExecutor(len(loops), thread_name_prefix="dibs-loop") as pool:
        list(pool.map(run, loops))
    return Answer({"ticks": ticks}, [f"{count} ticks of {loop}" for loop, count in ticks.items()])


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
