"""python -m benchmarks.leases [PART ...]: our lease stores beside their floors and other locks.

Tables and verdicts on standard output, progress on standard error. Exits with 1 if a verdict is
FAIL, 2 for a part that there is not or a library that is missing.
"""

import argparse
import importlib
import json
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from benchmarks.tables import Result, as_data, render

PARTS = ("redis", "postgres", "etcd", "sqlite", "contention")


def main() -> int:
    chosen = _arguments()
    signal.signal(signal.SIGTERM, _terminated)
    began_at = time.perf_counter()
    results: dict[str, Result] = {}
    try:
        for name in chosen.parts or PARTS:
            part = importlib.import_module(f"benchmarks.leases.{name}")
            results[name] = part.run(rounds=chosen.rounds, durable=chosen.durable, say=_say)
            print(render(replace(results[name], checks=[])), flush=True)
    except ModuleNotFoundError as missing:  # nothing is compared with who is not there
        _say(f"{missing.name} is not installed; it comes with the extras dev and bench")
        return 2
    if chosen.json:
        told = {name: as_data(result) for name, result in results.items()}
        Path(chosen.json).write_text(json.dumps(told, indent=2) + "\n", "utf-8")
    _say(f"{time.perf_counter() - began_at:.0f} s")
    for name, result in results.items():
        for check in result.checks:
            print(f"{'PASS' if check.passed else 'FAIL'} {name}: {check.text}")
    return 0 if all(result.passed for result in results.values()) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leases", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument(
        "--rounds",
        type=int,
        default=400,
        help="of each side (default: %(default)s; contention: 3 runs, or 1 of fewer than 100)",
    )
    parser.add_argument(
        "--durable", action="store_true", help="servers that sync every write, as in production"
    )
    parser.add_argument("--json", metavar="FILE", help="write everything there as well")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.parts if name not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)} (there are {', '.join(PARTS)})")
    if chosen.rounds < 1:
        parser.error("--rounds must be at least 1")
    return chosen


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _terminated(*_: object) -> NoReturn:
    """Leave by way of every `finally`, so that no server stays behind."""
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
