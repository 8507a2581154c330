"""Run a Python handler, `module:function`, in a process of its own.

Like any handler, the process reads the issue on standard input and answers with an exit code and a
result file.
"""

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

USAGE = "python -m dibs.frontends.handler_host [--check | --path FOLDER] module:function"


def load(target: str) -> Callable[..., Any]:
    """Import the function. Raises an error of any type, with the cause as text."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise ValueError(f"{target!r} is not of the form module:function")
    found: Any = importlib.import_module(module_name)
    for part in path.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{target!r} is a {type(found).__name__}, not a callable")
    return found  # type: ignore[no-any-return]


def main(arguments: list[str]) -> int:
    """Load the handler and, unless `--check` is given, call it; returns the exit code."""
    named = arguments[:1] == ["--path"]
    # Handlers live in the user's project, and need not start there.
    sys.path.insert(0, arguments[1] if named else os.getcwd())  # noqa: PTH109
    try:
        handler = load(arguments[-1])
    except Exception as failure:  # noqa: BLE001 - a failed attempt, told in the run's output
        sys.stderr.write(f"{type(failure).__name__}: {failure}\n")
        return 1
    if arguments[:1] == ["--check"]:
        return 0
    from dibs.services.running import ASK_EXIT, GIVE_BACK_EXIT, AskPerson, GiveBack, Work

    document = json.load(sys.stdin)
    worktrees: dict[str, Any] = {}
    if "DIBS_WORKTREE" in os.environ:
        folders = json.loads(os.environ["DIBS_WORKTREES"])
        worktrees = {
            "folder": Path(os.environ["DIBS_WORKTREE"]),
            "folders": {name: Path(path) for name, path in folders.items()},
            "branch": os.environ["DIBS_BRANCH"],
        }
    work = Work(
        issue=document,
        stage=os.environ["DIBS_STAGE"],
        run=os.environ["DIBS_RUN"],
        fence=int(os.environ["DIBS_FENCE"]),
        attempt=int(os.environ["DIBS_ATTEMPT"]),
        **worktrees,
    )
    try:
        answer = handler(work)
    except GiveBack:
        return GIVE_BACK_EXIT
    except AskPerson as question:
        _write_result({"ask": str(question)})
        return ASK_EXIT
    except Exception as failure:  # noqa: BLE001 - a failed attempt; the run's output has the trace
        traceback.print_exc()
        _write_result({"note": f"{type(failure).__name__}: {failure}"})
        return 1
    if answer is not None:
        _write_result(answer)
    return 0


def _write_result(answer: object) -> None:
    with open(os.environ["DIBS_RESULT"], "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(answer, file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
