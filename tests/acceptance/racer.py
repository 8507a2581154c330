"""One of two long-lived command lines that race.

    racer.py BARRIER PLACE ROUNDS RESULTS FOLDER (same|apart)

BARRIER is a file of two eight-byte counters. Both racers wait on each other's counter before every
round, so that they ask within microseconds; then each runs the program's own entry, as a fresh
command line would. `same`: both want issue N in round N, and keep what they get. `apart`: each
wants an issue of its own, and gives it back once both have their answer.
"""

import contextlib
import io
import json
import mmap
import os
import struct
import sys
from pathlib import Path
from typing import Any

from dibs.frontends.cli.main import run

_SLOT = struct.Struct("<q")


class Barrier:
    def __init__(self, path: str, place: int) -> None:
        with Path(path).open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 2 * _SLOT.size)
        self._mine, self._other = place * _SLOT.size, (1 - place) * _SLOT.size
        self._count = 0

    def meet(self) -> None:
        self._count += 1
        _SLOT.pack_into(self._shared, self._mine, self._count)
        while _SLOT.unpack_from(self._shared, self._other)[0] < self._count:
            os.sched_yield()


def _dibs(*arguments: str) -> dict[str, Any]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = run([*arguments, "--json"])
    return {"code": code, "answer": json.loads(said.getvalue())}


def main(barrier: str, place: str, rounds: str, results: str, folder: str, how: str) -> None:
    os.chdir(folder)
    meeting = Barrier(barrier, int(place))
    with Path(results).open("w") as answers:
        for number in range(1, int(rounds) + 1):
            issue = str(number if how == "same" else 2 * number - int(place))
            meeting.meet()
            answer = _dibs("claim", issue, "--as", f"racer-{place}")
            answers.write(json.dumps(answer) + "\n")
            if how == "apart":
                meeting.meet()
                if answer["code"] == 0:
                    _dibs("release", issue, "--run", answer["answer"]["data"]["run"])


if __name__ == "__main__":
    main(*sys.argv[1:])
