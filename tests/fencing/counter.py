"""A process that counts in a guarded block: `python -m tests.fencing.counter KIND PLACE TABLE`.

The counter is in a table without a fence; each turn reads it and writes it one higher.

    {"fence": 7, "times": 50}                 so many turns under this fence
    {"fence": 7, "times": 50, "rise": 3}      the same, under a fence that rises with the turns
    {"fence": 7, "freeze": true}              one turn, frozen inside the block
"""

import os
import signal
import sys
from typing import Any

from dibs.fencing import StaleFence, sql

from .connecting import BLOCKS, execute
from .processes import answer_lines


def count(connection: Any, fences: str, counter: str, asked: dict[str, Any]) -> Any:
    applied, refused = 0, 0
    for turn in range(asked.get("times", 1)):
        fence = asked["fence"] + (turn // asked["rise"] if "rise" in asked else 0)
        try:
            while not counted(connection, fences, counter, fence, freeze=asked.get("freeze")):
                pass
            applied += 1
        except StaleFence:
            refused += 1
    return {"applied": applied, "refused": refused}


def counted(connection: Any, fences: str, counter: str, fence: int, *, freeze: Any) -> bool:
    """One turn; or none, where SERIALIZABLE took it back in the body or at its commit."""
    try:
        with sql.guarded(connection, "the counter", fence, table=fences) as writes:
            n = execute(writes, f"SELECT n FROM {counter}")[0]
            if freeze:
                os.kill(os.getpid(), signal.SIGSTOP)
            execute(writes, f"UPDATE {counter} SET n = {n + 1}")
    except Exception as failure:
        if "could not serialize access due to read/write dependencies" not in str(failure):
            raise
        return False
    return True


def main() -> None:
    kind, place, name = sys.argv[1:]
    connection = BLOCKS[kind].connect(place)
    answer_lines(lambda asked: count(connection, f"fences_{name}", f"counter_{name}", asked))


if __name__ == "__main__":
    main()
