"""Leases by name: `dibs hold` for the time of a command, `dibs loop` for a tick in every window."""

import shlex
import signal
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from dibs.core.durations import describe_span, format_instant
from dibs.core.errors import BadConfiguration
from dibs.core.named import LoopSpec, chosen_hold
from dibs.core.pipeline import Command
from dibs.frontends.cli.context import Context, as_name, command
from dibs.frontends.cli.leasing import duration
from dibs.frontends.cli.output import Answer, Exit, record_data, table, tell
from dibs.ports.system import Exited

if TYPE_CHECKING:
    from dibs.named.holds import Hold
    from dibs.named.loops import Loop, Tick
    from dibs.wiring.services import Services


@command("hold")
@click.argument("held", metavar="[NAME]", required=False)
@click.argument("command", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--slots", type=click.IntRange(1, 100_000), help="How many may hold it at once.")
@click.option("--ttl", callback=duration, help="How long the lease runs between renewals.")
@click.option("--wait", callback=duration, help="How long to wait for a slot.")
@as_name
def hold_command(
    context: Context,
    held: str | None,
    command: tuple[str, ...],
    slots: int | None,
    ttl: timedelta | None,
    wait: timedelta | None,
    name: str | None,
) -> Answer:
    """Run a command while holding NAME, alone or as one of --slots. Without a name, list holders.

    The command finds the fence in DIBS_FENCE, and is ended if the lease is lost. The exit code is
    that of the command; 4 if NAME could not be had, 5 if the lease was lost.
    """
    context.creates = True
    if held is None:
        records = context.services.holds.holders()
        if not records:
            return Answer([], ["nothing is held by name"], Exit.NOTHING)
        rows = [
            (record.lease.issue, record.lease.holder, record.lease.fence, record.lease.beats,
             describe_span(record.remaining))
            for record in records
        ]  # fmt: skip
        lines = table(("name/slot", "holder", "fence", "renewed", "left"), rows)
        return Answer([record_data(record) for record in records], lines)
    if not command:
        raise click.UsageError("say what to run: dibs hold NAME -- COMMAND")
    spec = chosen_hold(context.settings.holds, held, slots=slots, ttl=ttl, wait=wait)
    from dibs.named.holds import HoldRefused, HoldWish

    wait_s = spec.wait.total_seconds()
    wish = HoldWish(spec.name, context.holder(name), spec.slots, spec.ttl, wait_s)
    taken = context.services.holds.take(wish)
    if isinstance(taken, HoldRefused):
        by = [f"{record.lease.holder} for another {describe_span(record.remaining)}"
              for record in taken.by]  # fmt: skip
        why = taken.why or f"held by {', '.join(by)}"
        holders = [record_data(record) for record in taken.by]
        data = {"name": taken.name, "why": why, "by": holders}
        return Answer(data, [f"{taken.name} could not be had: {why}"], Exit.HELD)
    try:
        line = Command(shlex.join(command))
        return _run_holding(context.services, spec.name, taken, line, in_sight=not context.as_json)
    finally:
        taken.release()


def _run_holding(
    services: "Services", name: str, hold: "Hold", command: Command, *, in_sight: bool
) -> Answer:
    """Run the command until it exits, the lease is lost, or a signal comes."""
    from dibs.named.loops import run_kept

    stop = _stop_on_signals()
    end = run_kept(
        services.runner,
        hold.keeper,
        command,
        {"DIBS_HOLD": name},
        stop=stop,
        in_sight=in_sight,
        as_typed=True,
    )
    data = {"name": name, "fence": hold.fence, "run": hold.run}
    if isinstance(end, Exited):
        return Answer({**data, "exit": end.code}, [], end.code)
    code = Exit.INTERRUPTED if stop.is_set() else Exit.LOST
    return Answer({**data, "stopped": end.why}, [f"{name}: the command was ended: {end.why}"], code)


@command("loop")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--once", is_flag=True, help="End after the first tick that fell to this process.")
@as_name
def loop_command(context: Context, names: tuple[str, ...], once: bool, name: str | None) -> Answer:
    """Run configured loops, all or the named ones: each ticks once per window across replicas."""
    from dibs.named.loops import Rhythm

    context.creates = True
    specs = list(context.settings.loops)
    configured = {spec.name: spec for spec in specs}
    if missing := [wanted for wanted in names if wanted not in configured]:
        listed = ", ".join(configured) or "none"
        raise BadConfiguration(f"no loop {missing[0]!r} is configured; there are: {listed}")
    if names:
        specs = [configured[wanted] for wanted in names]
    if not specs:
        raise BadConfiguration("no loop is configured; give dibs.toml a [[loop]]")
    services, stop = context.services, _stop_on_signals()
    for spec in specs:
        services.runner.check(spec.command)
    ticks = _Ticks(services, stop, once=once)
    loops = [
        services.loop(Rhythm(spec.name, spec.every, ticks.of(spec), context.holder(name)))
        for spec in specs
    ]
    ticks.run(loops)
    return Answer({"ticks": ticks.counted}, [f"{n} ticks of {k}" for k, n in ticks.counted.items()])


class _Ticks:
    """Runs each loop in a thread, and counts the ticks."""

    def __init__(self, services: "Services", stop: threading.Event, *, once: bool) -> None:
        self._services, self._stop, self._once = services, stop, once
        self.counted: dict[str, int] = {}
        self._failure: BaseException | None = None

    def of(self, spec: LoopSpec) -> Any:
        """The tick of a loop: run the command, print and count the result."""
        from dibs.named.loops import run_kept

        def tick(turn: "Tick") -> None:
            environment = {
                "DIBS_LOOP": spec.name,
                "DIBS_WINDOW": str(turn.window.number),
                "DIBS_WINDOW_START": format_instant(turn.window.starts_at),
            }
            end = run_kept(
                self._services.runner, turn.keeper, spec.command, environment, stop=self._stop
            )
            result = f"exited with {end.code}" if isinstance(end, Exited) else f"ended: {end.why}"
            tell(f"{spec.name} window {turn.window.number} fence {turn.fence} {result}")
            self.counted[spec.name] = self.counted.get(spec.name, 0) + 1
            if self._once:
                self._stop.set()

        return tick

    def run(self, loops: "list[Loop]") -> None:
        """Run all loops until they stop. An error in a loop stops all loops, and is raised."""

        def run_loop(loop: "Loop") -> None:
            try:
                loop.run(self._stop)
            except BaseException as failure:  # noqa: BLE001 - raised again below
                self._failure = failure
                self._stop.set()

        threads = [
            threading.Thread(target=run_loop, args=(loop,), name=f"dibs-loop-{loop.name}")
            for loop in loops
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
