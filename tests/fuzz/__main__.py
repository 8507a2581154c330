"""python -m tests.fuzz [TARGET ...]: coverage-guided fuzzing of what comes from outside.

Runs each target in a process of its own, on a copy of its corpus and of what ever failed, and
prints a table. Exits with 0 if nothing was found, 1 if something was, 2 for a target that does not
exist or did not run to its end, and 3 if nothing was run because atheris is not there.
"""

import argparse
import importlib.util
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from .kept import CORPUS, HERE, NAMES, REGRESSIONS, inputs

LONGEST_INPUT = 4096
ROOT = HERE.parent.parent


class Code(IntEnum):
    """How a target ended, and the exit code that says so."""

    NOTHING_FOUND = 0
    FOUND = 1
    UNFINISHED = 2
    NOT_RUN = 3


# libFuzzer's own codes: a hang, too much memory, an exception.
_ENDED = {0: Code.NOTHING_FOUND, 70: Code.FOUND, 71: Code.FOUND, 77: Code.FOUND}
_STATUS = re.compile(r"^#\d+\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)/", re.MULTILINE)
_RUNS = re.compile(r"^stat::number_of_executed_units:\s*(\d+)", re.MULTILINE)
_SPEED = re.compile(r"^stat::average_exec_per_sec:\s*(\d+)", re.MULTILINE)
_NOISE = re.compile(r'INFO|WARNING|#|stat::|Dictionary|"\\|Done |MS: |0x')


@dataclass(frozen=True, slots=True)
class Result:
    target: str
    code: Code
    said: str
    """All that the fuzzer printed."""
    folder: Path
    """Where the input is, if there is one that fails."""

    def row(self) -> tuple[str, ...]:
        status = _STATUS.findall(self.said)
        coverage, features, corpus = status[-1] if status else ("?", "?", "?")
        runs, speed = _last(_RUNS, self.said), _last(_SPEED, self.said)
        end = {Code.UNFINISHED: "?"}.get(self.code, str(int(self.code is Code.FOUND)))
        return (self.target, runs, coverage, features, corpus, end, speed)


def main() -> int:
    chosen = _arguments()
    if importlib.util.find_spec("atheris") is None:
        python = f"{platform.python_implementation()} {platform.python_version()}"
        where = f"{python}, {platform.system()} {platform.machine()}"
        print(f"not run: atheris is not available for this Python ({where})")
        return Code.NOT_RUN
    seed = chosen.seed or random.randrange(1, 2**31)
    length = f"{chosen.runs} runs" if chosen.runs else f"{chosen.seconds} seconds"
    print(f"each target for {length}, seed {seed}", flush=True)
    results = [_fuzz(name, chosen, seed) for name in chosen.targets or NAMES]
    for result in results:
        _explain(result)
    print(_table(results))
    codes = {result.code for result in results}
    return next(code for code in (Code.FOUND, Code.UNFINISHED, Code.NOTHING_FOUND) if code in codes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(NAMES))
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=_positive, default=60, help="for each target [60]")
    length.add_argument("--runs", type=_positive, help="for each target, instead of seconds")
    parser.add_argument("--seed", type=_positive, help="of the fuzzer's choices; random by default")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.targets if name not in NAMES]:
        parser.error(f"no such target: {', '.join(unknown)} (there are {', '.join(NAMES)})")
    return chosen


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _fuzz(name: str, chosen: argparse.Namespace, seed: int) -> Result:
    """One target, in a folder that is kept only if something was found."""
    folder = Path(tempfile.mkdtemp(prefix=f"dibs-fuzz-{name}-"))
    code = Code.UNFINISHED
    try:
        corpus, scratch = folder / "corpus", folder / "scratch"
        for made in (corpus, scratch):
            made.mkdir()
        for path in inputs(name, CORPUS, REGRESSIONS):
            shutil.copy(path, corpus / f"{path.parent.parent.name}-{path.name}")
        length = f"-runs={chosen.runs}" if chosen.runs else f"-max_total_time={chosen.seconds}"
        flags = [
            *(str(corpus), length, f"-seed={seed}", f"-max_len={LONGEST_INPUT}"),
            *(f"-dict={HERE / 'dictionaries' / name}.dict", f"-artifact_prefix={folder}/"),
            *("-print_final_stats=1", "-timeout=60", "-rss_limit_mb=2048"),
        ]
        code, said = _engine(name, flags, scratch, 600 if chosen.runs else chosen.seconds + 300)
        return Result(name, code, said, folder)
    finally:
        if code is not Code.FOUND:
            shutil.rmtree(folder, ignore_errors=True)


def _engine(name: str, flags: list[str], scratch: Path, limit_s: int) -> tuple[Code, str]:
    """libFuzzer takes its process over and never gives it back, so it gets one of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.engine", name, *flags],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(scratch)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"").decode("utf-8", "replace")
        return Code.UNFINISHED, f"{said}\nno end after {limit_s} seconds"
    return _ENDED.get(done.returncode, Code.UNFINISHED), done.stdout.decode("utf-8", "replace")


def _explain(result: Result) -> None:
    if result.code is Code.NOTHING_FOUND:
        return
    told = [line for line in result.said.splitlines() if line.strip() and not _NOISE.match(line)]
    print(f"\n{result.target}:", *told[-40:], sep="\n  ")
    for path in sorted(result.folder.glob("*-*")):
        print(f"  the input is {path}: {path.read_bytes()[:300]!r}")
        print(f"  keep it in tests/fuzz/{REGRESSIONS}/{result.target}, with its line in the README")


def _table(results: list[Result]) -> str:
    head = ("target", "runs", "coverage", "features", "corpus", "crashes", "runs/s")
    rows = [head, *(result.row() for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _last(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.findall(text)
    return found[-1] if found else "?"


if __name__ == "__main__":
    sys.exit(main())
