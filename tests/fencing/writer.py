"""A process that writes to a place: `python -m tests.fencing.writer KIND ADDRESS`.

    {"do": "write", "value": "x", "fence": 7}     one write; its outcome
    {"do": "race", "seed": 1, "times": 30}        many, each adding itself to what it read

    {"do": "die", ..., "after": true}             one write of a file, killed at its rename

Where a place takes several steps to write, `"pause": true` freezes the process in the middle of
them, after it has compared and before it writes.
"""

import os
import random
import signal
import sys
from typing import Any

from dibs.fencing import Applied, Conflict, Stale, files

from .places import Place, S3Object, reach
from .processes import answer_lines


def told(outcome: Any) -> list[Any]:
    match outcome:
        case Stale(seen):
            return ["Stale", seen]
        case _:
            return [type(outcome).__name__]


def freeze_in_the_middle(place: Place) -> None:
    """Stop right before the step that makes the write count."""

    def stop(then: Any) -> Any:
        def stopping(*given: Any, **named: Any) -> Any:
            os.kill(os.getpid(), signal.SIGSTOP)
            return then(*given, **named)

        return stopping

    if isinstance(place, S3Object):
        place.client.put_object = stop(place.client.put_object)
    else:
        files._FencedFile.rename = stop(files._FencedFile.rename)


def write(place: Place, asked: dict[str, Any]) -> Any:
    if asked.get("pause"):
        freeze_in_the_middle(place)
    return told(place.write(asked["value"], asked["fence"]))


def die(place: Place, asked: dict[str, Any]) -> None:
    """Killed right before the rename, or right after it."""
    rename = files._FencedFile.rename

    def dying(*given: Any) -> None:
        if asked["after"]:
            rename(*given)
        os.kill(os.getpid(), signal.SIGKILL)

    files._FencedFile.rename = dying
    files.guarded_write(place.path, asked["value"].encode(), asked["fence"], step=asked["step"])


def race(place: Place, asked: dict[str, Any]) -> Any:
    """Fences that rise on the whole, but each writer's own way; everybody adds to one list."""
    dice = random.Random(asked["seed"])
    applied, refused = [], 0
    for turn in range(asked["times"]):
        fence = max(1, turn + dice.randint(-6, 6))
        entry = f"{fence}/{asked['seed']}/{turn}"
        while True:
            seen = place.read()
            assert seen is not None
            outcome = place.write(f"{seen.value} {entry}", fence, version=seen.version)
            if not isinstance(outcome, Conflict):
                break
        match outcome:
            case Applied():
                applied.append(entry)
            case Stale(higher):
                assert higher > fence
                refused += 1
            case _:
                raise AssertionError(outcome)
    return {"applied": applied, "refused": refused}


def main() -> None:
    place = reach(*sys.argv[1:])
    verbs = {"write": write, "race": race, "die": die}
    answer_lines(lambda asked: verbs[asked["do"]](place, asked))


if __name__ == "__main__":
    main()
