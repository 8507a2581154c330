"""python -m benchmarks.github [PART ...]: what a fleet asks of GitHub, counted at a server.

Tables and verdicts on standard output, progress on standard error. Exits with 1 if a verdict is
FAIL, 2 for a part that there is not.
"""

import argparse
import importlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.tables import Result, as_data, render

PARTS = ("costs", "idle", "sweep", "script", "growth")


def main() -> int:
    chosen = _arguments()
    began_at = time.perf_counter()
    results: dict[str, Result] = {}
    for name in chosen.parts or PARTS:
        part = importlib.import_module(f"benchmarks.github.{name}")
        results[name] = part.run(say=_say, quick=chosen.quick)
        print(render(replace(results[name], checks=[])), flush=True)
    if chosen.json:
        told = {name: as_data(result) for name, result in results.items()}
        Path(chosen.json).write_text(json.dumps(told, indent=2) + "\n", "utf-8")
    _say(f"{time.perf_counter() - began_at:.0f} s")
    for name, result in results.items():
        for check in result.checks:
            print(f"{'PASS' if check.passed else 'FAIL'} {name}: {check.text}")
    return 0 if all(result.passed for result in results.values()) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.github", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that it runs")
    parser.add_argument("--json", metavar="FILE", help="write everything there as well")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.parts if name not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)} (there are {', '.join(PARTS)})")
    return chosen


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
