"""The tables of the proof: `python -m dibs_lab.sim`."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import fields, replace

from dibs import __version__
from dibs.adapters.system import SystemClock
from dibs_lab.sim.campaign import Catch, Count, Order, Who, hunt, run_orders
from dibs_lab.sim.checkers import violations
from dibs_lab.sim.controls import seed_script, state_machine, two_claimants_of
from dibs_lab.sim.exhaustive import CASES, explore, survey
from dibs_lab.sim.mutants import MUTANTS
from dibs_lab.sim.runs import play
from dibs_lab.sim.scenarios import ALL, ATOMIC, BY_NAME, LATE, MODEL, ONE_TRIP, STORMS, TORN
from dibs_lab.sim.timeline import timeline
from dibs_lab.sim.world import Scenario

_CLOCK = SystemClock()
_TELL_EVERY_S = 15.0
_COMPARED = ("no lag", "writes seen within 2 s, settle 2.5 s", "network trouble")


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    logging.disable(logging.CRITICAL)  # services warn of every fault, and here faults are intended
    if asked.replay:
        return _replay(asked.replay, steps=asked.steps)
    if asked.list:
        print("\n".join(scenario.name for scenario in ALL))
        return 0
    proof = _Proof(asked)
    proof.exhaustive()
    proof.random()
    proof.mutants()
    return proof.conclude()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dibs_lab.sim", description=__doc__)
    parser.add_argument(
        "--schedules", type=int, default=20_000, help="random schedules of ours, over all scenarios"
    )
    parser.add_argument("--minutes", type=float, help="stop the random schedules after so long")
    parser.add_argument("--first-seed", type=int, default=0, help="where the seeds begin")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there as well")
    parser.add_argument("--replay", metavar="SCENARIO:SEED", help="print one run and stop")
    parser.add_argument("--steps", action="store_true", help="with --replay: every step as well")
    parser.add_argument("--list", action="store_true", help="print the scenarios and stop")
    return parser


def _replay(text: str, *, steps: bool) -> int:
    name, _, seed = text.rpartition(":")
    if name not in BY_NAME or not seed.isdigit():
        print(f"{text!r} is not SCENARIO:SEED; --list prints the scenarios", file=sys.stderr)
        return 2
    run = play(BY_NAME[name], int(seed))
    found = violations(run)
    print(timeline(run, found, steps=steps))
    return 1 if found else 0


class _Row(Struct, frozen=True):
    scenario: Scenario
    who: Who
    count: Count


class _Proof:
    """Runs each part, prints its table, and remembers whether every part passed."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self._asked = asked
        self._flaws: list[str] = []
        self._numbers: dict[str, object] = {"version": __version__}

    def exhaustive(self) -> None:
        rows = []
        for case in CASES:
            began = _CLOCK.now()
            with _telling(case.name, None) as told:
                tally = explore(case, progress=lambda _: told(1))
            spent_s = _CLOCK.now() - began
            rows.append((case.name, case.deaths, tally.schedules, tally.states, f"{spent_s:.0f} s"))
        _print_table(
            "Every interleaving, no violation in any",
            ("case", "deaths", "schedules", "states", "took"),
            rows,
        )
        surveys = [survey(two_claimants_of(one)) for one in (seed_script, state_machine)]
        _print_table(
            "Every interleaving of two claimants of the controls, in one second",
            ("whose", "schedules", "two holders"),
            [
                (who.value, found.schedules, found.two_holders)
                for who, found in zip(
                    Who, (survey(replace(CASES[0], deaths=0)), *surveys), strict=True
                )
            ],
        )
        self._numbers["exhaustive"] = {
            row[0]: {"schedules": row[2], "states": row[3]} for row in rows
        }

    def random(self) -> None:
        asked = self._asked
        each = max(1, asked.schedules // len(ALL))
        fewer = max(1, each // 4)
        orders = [Order(scenario, Who.OURS, each, asked.first_seed) for scenario in ALL]
        orders += [
            Order(BY_NAME[name], who, fewer, asked.first_seed)
            for who in (Who.SEED_SCRIPT, Who.STATE_MACHINE)
            for name in _COMPARED
        ]
        began = _CLOCK.now()
        with _telling("schedules", sum(order.schedules for order in orders)) as told:
            counts = run_orders(
                orders,
                jobs=asked.jobs,
                played=told,
                enough=lambda: (
                    asked.minutes is not None and _CLOCK.now() - began > 60 * asked.minutes
                ),
            )
        spent_s = _CLOCK.now() - began
        rows = [
            _Row(order.scenario, order.who, found)
            for order, found in zip(orders, counts, strict=True)
        ]
        self._print_random(rows)
        total = sum(row.count.schedules for row in rows)
        print(f"{total:,} schedules in {spent_s:.0f} s: {total / spent_s:,.0f} a second\n")
        self._numbers["random"] = [
            {"scenario": row.scenario.name, "who": row.who.value, **_numbers(row.count)}
            for row in rows
        ]
        self._numbers["schedules_per_second"] = total / spent_s
        self._judge_random(rows)

    def _print_random(self, rows: list[_Row]) -> None:
        ours = {row.scenario.name: row for row in rows if row.who is Who.OURS}
        for title, scenarios in (
            ("The protocol's section 10, on the shipped code", MODEL),
            ("Faults the model had not", STORMS),
            ("The same on an atomic store", ATOMIC),
            ("The same where several changes are one request", ONE_TRIP),
            ("Writes that take effect after their client has given up", LATE),
            ("Readings whose labels and comments are from two moments", TORN),
        ):
            _print_table(title, _HEAD, [_cells(ours[scenario.name]) for scenario in scenarios])
        compared = [row for row in rows if row.scenario.name in _COMPARED]
        compared.sort(
            key=lambda row: (_COMPARED.index(row.scenario.name), list(Who).index(row.who))
        )
        _print_table(
            "Ours and the controls, in the same world",
            ("whose", *_HEAD),
            [(row.who.value, *_cells(row)) for row in compared],
        )

    def _judge_random(self, rows: list[_Row]) -> None:
        for row in rows:
            if row.who is Who.OURS:
                self._flaws += [
                    f"{row.scenario.name}: {rule} broken in {times} schedules, "
                    f"first by seed {row.count.first[rule]}"
                    for rule, times in row.count.broken.items()
                ]
        for who in (Who.SEED_SCRIPT, Who.STATE_MACHINE):
            theirs = [row.count for row in rows if row.who is who]
            if not any(found.two_holders or found.lost for found in theirs):
                self._flaws.append(f"the control {who.value!r} was not caught")

    def mutants(self) -> None:
        rows: list[tuple[object, ...]] = []
        for mutant in MUTANTS:
            with _telling(mutant.name, None):
                catch = hunt(mutant)
            rows.append((mutant.name, *_caught(catch)))
            if catch is None:
                self._flaws.append(f"the mutant {mutant.name!r} was not caught")
        _print_table("Mutants of our own rules", ("mutant", "shown by", "seed", "as"), rows)
        self._numbers["mutants"] = {
            str(row[0]): {"shown_by": row[1], "seed": row[2]} for row in rows
        }

    def conclude(self) -> int:
        if self._asked.json:
            numbers = json.dumps(self._numbers, indent=2)
            Path(self._asked.json).write_text(numbers + "\n", encoding="utf-8")
        for flaw in self._flaws:
            print(f"FAILED  {flaw}")
        print(
            "failed"
            if self._flaws
            else "Nothing that was promised was broken; every control and mutant was caught."
        )
        return 1 if self._flaws else 0


_HEAD = (
    "scenario",
    "schedules",
    "holds",
    "two holders",
    "finished twice",
    "lost",
    "odd labels",
    "promised",
    "broken",
)


def _cells(row: _Row) -> tuple[object, ...]:
    found, scenario = row.count, row.scenario
    exact = scenario.exclusive if row.who is Who.OURS else False
    broken = sum(found.broken.values()) if row.who is Who.OURS else "-"
    return (
        scenario.name,
        found.schedules,
        found.holds,
        found.two_holders,
        found.finished_twice,
        found.lost,
        found.odd_labels,
        "exactly" if exact else "counted",
        broken,
    )


def _numbers(count: Count) -> dict[str, object]:
    return {
        one.name: dict(value) if isinstance(value := getattr(count, one.name), dict) else value
        for one in fields(count)
    }


def _caught(catch: Catch | None) -> tuple[object, ...]:
    if catch is None:
        return "NOT CAUGHT", "", ""
    return catch.where, "all" if catch.seed is None else catch.seed, catch.text


def _print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    cells = [tuple(_cell(value) for value in row) for row in rows]
    widths = [max(len(row[place]) for row in (head, *cells)) for place in range(len(head))]
    numeric = [all(isinstance(row[place], int) for row in rows) for place in range(len(head))]
    print(title)
    for line in (head, tuple("-" * width for width in widths), *cells):
        print(
            "  "
            + "  ".join(
                text.rjust(width) if right else text.ljust(width)
                for text, width, right in zip(line, widths, numeric, strict=True)
            ).rstrip()
        )
    print(flush=True)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextmanager
def _telling(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show progress on standard error: a bar on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield _Lines(what, total)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.advance(task, done)


class _Lines:
    def __init__(self, what: str, total: int | None) -> None:
        self._what, self._total, self._done = what, total, 0
        self._next_at = _CLOCK.now() + _TELL_EVERY_S

    def __call__(self, done: int) -> None:
        self._done += done
        if _CLOCK.now() >= self._next_at:
            self._next_at = _CLOCK.now() + _TELL_EVERY_S
            of = f" of {self._total:,}" if self._total else ""
            print(f"{self._what}: {self._done:,}{of}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
