"""Does the program start fast enough for a shell prompt, a git hook and an agent's loop?

Each command against a bare Python of the same interpreter, in turns. Compared is processor time,
which other programs on the machine disturb less than the time that passes.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.fleet import Made, fill, folder
from benchmarks.tables import Check, Column, Result, Say, Table, paired_ratio

QUESTION = "startup: what commands take against bare python"
BARE = "python -c pass"
LIMITS = {
    "dibs --version": 3.0,
    "dibs --help": 5.0,
    "dibs list": 7.0,
    "dibs status": 7.0,
    "dibs claim --next": 7.0,
    "dibs heartbeat": 7.0,
}
"""How many times a bare Python each may take."""
Times = dict[str, list[tuple[float, float]]]
"""Seconds of processor time, and seconds that passed."""


def program() -> str:
    """The console script beside this interpreter, or the one on the path."""
    beside = Path(sys.executable).with_name("dibs")
    return str(beside) if beside.exists() else shutil.which("dibs") or str(beside)


def run(*, quick: bool, say: Say) -> Result:
    rounds = 5 if quick else 25
    with folder() as place:
        fill(place, (Made() for _ in range(rounds + 20)))  # `claim --next` takes one each round
        commands = _commands(place)
        say(f"startup: {len(commands)} commands, {rounds} rounds in turns")
        times = _in_turns(commands, place, rounds)
    result = Result(QUESTION, tables=[_table(times, rounds)])
    for name, most in LIMITS.items():
        ratio = _ratio(times, name)
        text = f"{name} takes {ratio:.2f} times bare python (at most {most:g})"
        result.checks.append(Check(text, ratio <= most))
    return result


def _commands(place: Path) -> dict[str, list[str]]:
    dibs = program()
    claimed = subprocess.run(
        [dibs, "claim", "--next", "--ttl", "8h", "--json"],
        cwd=place,
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    lease = json.loads(claimed.stdout)["data"]
    return {
        BARE: [sys.executable, "-c", "pass"],
        "python -c 'import click'": [sys.executable, "-c", "import click"],
        "dibs --version": [dibs, "--version"],
        "dibs --help": [dibs, "--help"],
        "dibs list": [dibs, "list"],
        "dibs status": [dibs, "status"],
        "dibs claim --next": [dibs, "claim", "--next"],
        "dibs heartbeat": [dibs, "heartbeat", lease["issue"], "--run", lease["run"]],
    }


def _in_turns(commands: dict[str, list[str]], place: Path, rounds: int) -> Times:
    times: Times = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            took = _time(command, place)
            if number:  # the first round warms the caches
                times[name].append(took)
    return times


def _time(command: list[str], place: Path) -> tuple[float, float]:
    began_at = time.perf_counter()
    with subprocess.Popen(
        command, cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as child:
        patience = threading.Timer(60, child.kill)
        patience.start()
        _, status, used = os.wait4(child.pid, 0)
        patience.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - began_at


def _ratio(times: Times, name: str) -> float:
    return paired_ratio([cpu for cpu, _ in times[name]], [cpu for cpu, _ in times[BARE]])


def _table(times: Times, rounds: int) -> Table:
    rows = tuple(
        (
            name,
            statistics.median(cpu for cpu, _ in taken) * 1000,
            min(cpu for cpu, _ in taken) * 1000,
            statistics.median(passed for _, passed in taken) * 1000,
            _ratio(times, name),
        )
        for name, taken in times.items()
    )
    columns = (
        Column("command"),
        Column("processor ms, median", ".1f"),
        Column("least", ".1f"),
        Column("passed ms, median", ".1f"),
        Column("of bare python", ".2f"),
    )
    return Table(f"{rounds} rounds in turns", columns, rows)
