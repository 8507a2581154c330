"""Leases by name: hold something while a command runs; run a loop once per window."""

import shlex
import signal
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from dibs.core.durations import describe_span, format_instant
from dibs.core.errors import BadConfiguration
from dibs.core.lease import Record
from dibs.core.named import LoopSpec, chosen_hold
from dibs.core.pipeline import Command
from dibs.frontends.cli.context import Context, answering, as_json, as_name
from dibs.frontends.cli.leasing import duration
from dibs.frontends.cli.output import Answer, Exit, record_data, table, tell
from dibs.ports.system import Exited

if TYPE_CHECKING:
    from dibs.named.holds import Hold, HoldRefused
    from dibs.named.loops import Loop, Tick
    from dibs.wiring.services import Services


@click.command("hold")
@click.argument("held", metavar="[NAME]", required=False)
@click.argument("command", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--slots", type=click.IntRange(1, 100_000), help="How many may hold it at once.")
@click.option("--ttl", callback=duration, help="How long the lease runs between renewals.")
@click.option("--wait", callback=duration, help="How long to wait for a slot.")
@as_name
@as_json
@answering
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

    The command finds the fence in DIBS_FENCE, and is ended if the lease is lost. Its exit code is
    the answer's; 4 if NAME could not be had, 5 if it was lost.
    """
    context.creates = True
    if held is None:
        return _holders(context.services.holds.holders())
    if not command:
        raise click.UsageError("say what to run: dibs hold NAME -- COMMAND")
    spec = chosen_hold(context.settings.holds, held, slots=slots, ttl=ttl, wait=wait)
    from dibs.named.holds import HoldRefused, HoldWish

    wish = HoldWish(
        spec.name, context.holder(name), spec.slots, spec.ttl, spec.wait.total_seconds()
    )
    taken = context.services.holds.take(wish)
    if isinstance(taken, HoldRefused):
        return _not_held(taken)
    try:
        line = Command(shlex.join(command))
        return _run(context.services, spec.name, taken, line, in_sight=not context.as_json)
    finally:
        taken.release()


def _holders(records: tuple[Record, ...]) -> Answer:
    if not records:
        return Answer([], ["nothing is held by name"], Exit.NOTHING)
    rows = [
        (record.lease.issue, record.lease.holder, record.lease.fence, record.lease.beats,
         describe_span(record.remaining))
        for record in records
    ]  # fmt: skip
    lines = table(("name/slot", "holder", "fence", "renewed", "left"), rows)
    return Answer([record_data(record) for record in records], lines)


def _not_held(taken: "HoldRefused") -> Answer:
    by = [f"{record.lease.holder} for another {describe_span(record.remaining)}"
          for record in taken.by]  # fmt: skip
    why = taken.why or f"held by {', '.join(by)}"
    data: dict[str, Any] = {"name": taken.name, "why": why}
    data["by"] = [record_data(record) for record in taken.by]
    return Answer(data, [f"{taken.name} could not be had: {why}"], Exit.HELD)


def _run(
    services: "Services", name: str, hold: "Hold", command: Command, *, in_sight: bool
) -> Answer:
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


@click.command("loop")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--once", is_flag=True, help="End after the first tick that fell to this process.")
@as_name
@as_json
@answering
def loop_command(context: Context, names: tuple[str, ...], once: bool, name: str | None) -> Answer:
    """Run configured loops, all or the named ones: each ticks once per window across replicas."""
    from dibs.named.loops import Rhythm

    context.creates = True
    specs = _wanted(context.settings.loops, names)
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


def _wanted(known: tuple[LoopSpec, ...], names: tuple[str, ...]) -> list[LoopSpec]:
    by_name = {spec.name: spec for spec in known}
    if missing := [wanted for wanted in names if wanted not in by_name]:
        listed = ", ".join(by_name) or "none"
        raise BadConfiguration(f"no loop {missing[0]!r} is configured; there are: {listed}")
    chosen = [by_name[wanted] for wanted in names] if names else list(known)
    if not chosen:
        raise BadConfiguration("no loop is configured; give dibs.toml a [[loop]]")
    return chosen


class _Ticks:
    """The loops of this process, each in a thread of its own."""

    def __init__(self, services: "Services", stop: threading.Event, *, once: bool) -> None:
        self._services, self._stop, self._once = services, stop, once
        self.counted: dict[str, int] = {}
        self._failure: BaseException | None = None

    def of(self, spec: LoopSpec) -> Any:
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
            said = f"exited with {end.code}" if isinstance(end, Exited) else f"ended: {end.why}"
            tell(f"{spec.name} window {turn.window.number} fence {turn.fence} {said}")
            self.counted[spec.name] = self.counted.get(spec.name, 0) + 1
            if self._once:
                self._stop.set()

        return tick

    def run(self, loops: "list[Loop]") -> None:
        """Until all have stopped. One that cannot go on stops them all, and says why."""
        threads = [
            threading.Thread(target=self._one, args=(loop,), name=f"dibs-loop-{loop.name}")
            for loop in loops
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _one(self, loop: "Loop") -> None:
        try:
            loop.run(self._stop)
        except BaseException as failure:  # noqa: BLE001 - raised again by whoever waits for us
            self._failure = failure
            self._stop.set()


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
