"""Runs one Python handler, `module:function`, in a process of its own.

Reads the issue on standard input like any handler, calls the function, and speaks the same contract
back: exit code and result file.
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
    """Find the callable. Whatever it raises says what is wrong."""
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
    named = arguments[:1] == ["--path"]
    # Handlers live in the user's project, and need not start there.
    sys.path.insert(0, arguments[1] if named else os.getcwd())  # noqa: PTH109
    check = arguments[:1] == ["--check"]
    try:
        handler = load(arguments[-1])
    except Exception as failure:  # noqa: BLE001 - a failed attempt, told in the run's output
        sys.stderr.write(f"{type(failure).__name__}: {failure}\n")
        return 1
    return 0 if check else _call(handler)


def _call(handler: Callable[..., Any]) -> int:
    from dibs.services.running import GIVE_BACK_EXIT, GiveBack, Work

    document = json.load(sys.stdin)
    work = Work(
        issue=document,
        stage=os.environ["DIBS_STAGE"],
        run=os.environ["DIBS_RUN"],
        fence=int(os.environ["DIBS_FENCE"]),
        attempt=int(os.environ["DIBS_ATTEMPT"]),
        **_place(),
    )
    try:
        answer = handler(work)
    except GiveBack:
        return GIVE_BACK_EXIT
    except Exception as failure:  # noqa: BLE001 - a failed attempt, told in the run's output
        traceback.print_exc()
        _leave({"note": f"{type(failure).__name__}: {failure}"})
        return 1
    if answer is not None:
        _leave(answer)
    return 0


def _place() -> dict[str, Any]:
    """The run's working trees, if it has any."""
    if "DIBS_WORKTREE" not in os.environ:
        return {}
    folders = json.loads(os.environ["DIBS_WORKTREES"])
    return {
        "folder": Path(os.environ["DIBS_WORKTREE"]),
        "folders": {name: Path(path) for name, path in folders.items()},
        "branch": os.environ["DIBS_BRANCH"],
    }


def _leave(answer: object) -> None:
    with open(os.environ["DIBS_RESULT"], "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(answer, file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
