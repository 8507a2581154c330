"""`python -m dibs_lab.contract --repo me/scratch --out FILE`: the contract kit, as a program."""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from dibs.core.errors import DibsError

from . import differences, record, replayed, written


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(
        prog="python -m dibs_lab.contract",
        description="Try what dibs assumes of GitHub, write a redacted transcript, and compare it "
        "with the fake. The token is found as dibs finds it; it may write to the repository.",
    )
    parser.add_argument("--repo", required=True, metavar="OWNER/REPO", help="a repository of yours")
    parser.add_argument("--out", required=True, type=Path, help="the file for the transcript")
    parser.add_argument("--note", default="", help="who recorded it, and against what")
    asked = parser.parse_args(arguments)
    try:
        real = record(
            os.environ, asked.repo, note=asked.note, tell=lambda line: print(line, file=sys.stderr)
        )
        text = written(real)
    except (DibsError, ValueError) as error:
        print(f"contract: {error}", file=sys.stderr)
        return 1
    asked.out.write_text(text, "utf-8")
    found = differences(real, replayed(real))
    for line in found:
        print(line)
    print(f"{len(real.exchanges)} exchanges in {asked.out}; {len(found)} differences to the fake")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
