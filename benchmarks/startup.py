"""Does the program start fast enough to sit in a shell prompt or a git hook?

`dibs --version` against a bare Python of the same interpreter, in turns.
"""

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.fleet import Made, fill, folder
from benchmarks.tables import Check, Column, Result, Say, Table, paired_ratio

QUESTION = "startup: dibs --version against bare python"
MOST_RATIO = 3.0
_PATIENCE_S = 30.0


def program() -> str:
    """The console script beside this interpreter, or the one on the path."""
    beside = Path(sys.executable).with_name("dibs")
    return str(beside) if beside.exists() else shutil.which("dibs") or str(beside)


def run(*, quick: bool, say: Say) -> Result:
    rounds = 5 if quick else 25
    dibs = program()
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "python -c 'import sqlite3'": [sys.executable, "-c", "import sqlite3"],
        "dibs --version": [dibs, "--version"],
        "dibs --help": [dibs, "--help"],
        "dibs list": [dibs, "list"],
    }
    result = Result(QUESTION)
    times_s: dict[str, list[float]] = {}
    with folder() as place:
        fill(place, (Made() for _ in range(20)))
        for name, command in list(commands.items()):
            if (why := _try(command, place)) is not None:
                del commands[name]
                result.notes.append(f"{name} cannot be measured: {why}")
        say(f"startup: {len(commands)} commands, {rounds} rounds in turns")
        for _ in range(rounds):
            for name, command in commands.items():
                times_s.setdefault(name, []).append(_time(command, place))
    result.tables.append(_table(times_s, rounds))
    bare, ours = times_s["python -c pass"], times_s.get("dibs --version")
    if ours is None:
        result.checks = [Check("dibs --version runs", passed=False)]
    else:
        ratio = paired_ratio(ours, bare)
        text = f"dibs --version takes {ratio:.2f} times bare python (at most {MOST_RATIO})"
        result.checks = [Check(text, ratio <= MOST_RATIO)]
    result.notes.append("dibs list: of 20 issues, for information, as are the others")
    return result


def _try(command: list[str], place: Path) -> str | None:
    """Run it once, which also warms the caches. Says why it cannot be measured."""
    try:
        done = subprocess.run(
            command, cwd=place, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        return str(failure)
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines()
    return f"exit code {done.returncode}: {said[-1] if said else 'nothing was said'}"


def _time(command: list[str], place: Path) -> float:
    began_at = time.perf_counter()
    subprocess.run(
        command,
        cwd=place,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_PATIENCE_S,
        check=True,
    )
    return time.perf_counter() - began_at


def _table(times_s: dict[str, list[float]], rounds: int) -> Table:
    bare = times_s["python -c pass"]
    rows = tuple(
        (
            name,
            statistics.median(times) * 1000,
            min(times) * 1000,
            max(times) * 1000,
            paired_ratio(times, bare),
        )
        for name, times in times_s.items()
    )
    columns = (
        Column("command"),
        Column("median ms", ".1f"),
        Column("min", ".1f"),
        Column("max", ".1f"),
        Column("of bare python", ".2f"),
    )
    return Table(f"{rounds} rounds in turns", columns, rows)
