"""How much memory does a worker with nothing to do take, beside a bare Python?

Resident memory from /proc, once it has stopped changing.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fleet import fill, folder
from benchmarks.startup import program
from benchmarks.tables import Column, Result, Say, Table

QUESTION = "memory: resident memory of an idle worker against bare python"
_BARE = "import sys; sys.stdin.read()"
_WITH_SQLITE = f"import sqlite3; sqlite3.connect(':memory:').execute('SELECT 1'); {_BARE}"
_WORKER = "import sys, dibs; dibs.open(sys.argv[1]).worker().run()"
_SAMPLE_S = 0.25
_STILL = 6
"""Samples without a change that count as settled: longer than a few of the worker's polls."""


@dataclass(frozen=True, slots=True)
class Resident:
    now_kb: int
    private_kb: int
    threads: int


def run(*, quick: bool, say: Say) -> Result:
    result = Result(QUESTION)
    if not Path("/proc/self/status").exists():
        result.notes.append("skipped: this system has no /proc, so there is nothing to read")
        return result
    rounds = 1 if quick else 3
    seen: dict[str, list[Resident]] = {}
    for number in range(rounds):
        say(f"memory: round {number + 1} of {rounds}")
        with folder() as place:
            fill(place, ())
            for name, command in _commands(place).items():
                found = _settled(command, place)
                if isinstance(found, Resident):
                    seen.setdefault(name, []).append(found)
                elif number == 0:
                    result.notes.append(f"{name} cannot be measured: {found}")
    result.tables.append(_table(seen, rounds))
    result.notes.append("private: RssAnon, what is not shared with other processes by the kernel")
    return result


def _commands(place: Path) -> dict[str, list[str]]:
    return {
        "bare python": [sys.executable, "-c", _BARE],
        "python with sqlite3": [sys.executable, "-c", _WITH_SQLITE],
        "idle worker (dibs.open().worker)": [sys.executable, "-c", _WORKER, str(place)],
        "idle worker (dibs work)": [program(), "work"],
    }


@contextmanager
def _running(command: list[str], place: Path, errors: Path) -> Iterator[subprocess.Popen[bytes]]:
    with ExitStack() as stack:
        said = stack.enter_context(errors.open("wb"))
        process = subprocess.Popen(
            command, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.communicate(timeout=5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def _settled(command: list[str], place: Path) -> Resident | str:
    """What it takes once that has stopped changing, or why it cannot be said."""
    errors = place / "errors.txt"
    pause = threading.Event()
    try:
        with _running(command, place, errors) as process:
            last, still = None, 0
            for _ in range(60):
                pause.wait(_SAMPLE_S)
                if process.poll() is not None:
                    said = errors.read_text(errors="replace").strip().splitlines()
                    return f"it ended with {process.returncode}: {said[-1] if said else 'no word'}"
                found = _read(process.pid)
                still = still + 1 if found == last else 0
                last = found
                if still >= _STILL and found is not None:
                    return found
            return last or "it never settled"
    except OSError as failure:
        return str(failure)


def _read(pid: int) -> Resident | None:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    try:
        return Resident(
            int(fields["VmRSS"].split()[0]),
            int(fields["RssAnon"].split()[0]),
            int(fields["Threads"]),
        )
    except KeyError:
        return None


def _table(seen: dict[str, list[Resident]], rounds: int) -> Table:
    def median(values: list[int]) -> int:
        return sorted(values)[len(values) // 2]

    bare = median([found.now_kb for found in seen["bare python"]])
    rows = []
    for name, found in seen.items():
        now_kb = median([one.now_kb for one in found])
        private_kb = median([one.private_kb for one in found])
        threads = median([one.threads for one in found])
        rows.append((name, now_kb / 1024, private_kb / 1024, threads, now_kb / bare))
    columns = (
        Column("process"),
        Column("resident MiB", ".1f"),
        Column("private MiB", ".1f"),
        Column("threads"),
        Column("of bare python", ".2f"),
    )
    return Table(f"VmRSS of /proc/PID/status, settled, medians of {rounds}", columns, tuple(rows))
