"""python -m benchmarks [NAME ...]: run the questions named, or all; tables on standard output.

Exits with 1 if a check failed, 2 for a name that is not a question.
"""

import argparse
import importlib
import json
import signal
import sys
import time
from typing import NoReturn

from benchmarks.tables import Result, as_data, render

NAMES = ("cycles", "spread", "scan", "ahead", "startup", "memory")


def main() -> int:
    chosen = _arguments()
    signal.signal(signal.SIGTERM, _terminated)
    if chosen.list:
        for name in NAMES:
            print(importlib.import_module(f"benchmarks.{name}").QUESTION)
        return 0
    results: dict[str, Result] = {}
    began_at = time.perf_counter()
    for name in chosen.names or NAMES:
        module = importlib.import_module(f"benchmarks.{name}")
        result: Result = module.run(quick=chosen.quick, say=_say)
        results[name] = result
        if not chosen.json:
            print(render(result), flush=True)
    if chosen.json:
        print(json.dumps({name: as_data(result) for name, result in results.items()}, indent=2))
    failed = [name for name, result in results.items() if not result.passed]
    _say(f"{time.perf_counter() - began_at:.0f} s; {', '.join(failed) or 'nothing'} failed")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--list", action="store_true", help="say what the questions are")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it still run?")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.names if name not in NAMES]:
        parser.error(f"no such benchmark: {', '.join(unknown)} (there are {', '.join(NAMES)})")
    return chosen


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _terminated(*_: object) -> NoReturn:
    """Leave by way of every `finally`, so that no process and no folder stays behind."""
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
