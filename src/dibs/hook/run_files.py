"""The run file: a list of the leases taken in a git working tree, for a later push from it.

The lease of a person or a script outlives the command that took it, and the shell that pushes later
does not know the run. The file is in the git folder of the working tree, so it is in no one's way,
and every linked working tree has its own. It proves nothing: the push is judged by the tracker.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dibs.adapters.system import replace_whole, small_text, working_tree
from dibs.core.ids import IssueRef, RunId

RUN_FILE = "dibs-runs.json"
_MOST_NOTED = 50


class RunFile(msgspec.Struct, frozen=True):
    """The runs noted for a working tree."""

    path: Path

    def runs(self) -> Mapping[RunId, str]:
        """The noted runs with their issues; empty if the file is missing or has other content."""
        try:
            content = msgspec.json.decode(small_text(self.path))
        except (OSError, ValueError, RecursionError):
            return {}
        noted = content.get("runs") if isinstance(content, dict) else None
        if not isinstance(noted, dict):
            return {}
        return {RunId(run): issue for run, issue in noted.items() if isinstance(issue, str)}

    def note(self, issue: IssueRef, run: RunId) -> None:
        """Note a run; of more than `_MOST_NOTED` runs, the oldest are dropped."""
        others = [(noted, where) for noted, where in self.runs().items() if noted != run]
        self._write({**dict(others[1 - _MOST_NOTED :]), run: str(issue)})

    def forget(self, run: RunId) -> None:
        noted = dict(self.runs())
        if noted.pop(run, None) is not None:
            self._write(noted)

    def _write(self, runs: Mapping[RunId, str]) -> None:
        with contextlib.suppress(OSError):  # without the file, a push needs DIBS_RUN
            replace_whole(self.path, msgspec.json.encode({"runs": runs}))


def run_file(folder: Path, environment: Mapping[str, str] = os.environ) -> RunFile | None:
    """The run file of the working tree around a folder; None outside of a working tree."""
    git_dir = environment.get("GIT_DIR")
    if git_dir:
        return RunFile(folder / git_dir / RUN_FILE)
    tree = working_tree(folder)
    return RunFile(tree.git_dir / RUN_FILE) if tree is not None else None
