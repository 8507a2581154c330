"""Which leases were taken in a git working tree: its own note of them, for whoever pushes from it.

A person's lease and a script's outlive the command that took it, and the shell that pushes later
knows nothing of it. The note is in the working tree's own git folder, so it is in nobody's way, and
every linked working tree has its own. It proves nothing: the tracker says what the lease is worth.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dibs.adapters.files import replace_whole
from dibs.core.ids import IssueRef, RunId

RUN_FILE = "dibs-runs.json"
_MOST_NOTED = 50
_LARGEST = 65_536
_POINTER = "gitdir: "


class RunFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def runs(self) -> Mapping[RunId, str]:
        """The runs and the issues they are of; none if the file is not there, or is not ours."""
        try:
            with self.path.open("rb") as file:
                told = msgspec.json.decode(file.read(_LARGEST))
        except (OSError, ValueError, RecursionError):
            return {}
        noted = told.get("runs") if isinstance(told, dict) else None
        if not isinstance(noted, dict):
            return {}
        return {RunId(run): issue for run, issue in noted.items() if isinstance(issue, str)}

    def note(self, issue: IssueRef, run: RunId) -> None:
        kept = {known: place for known, place in self.runs().items() if known != run}
        self._write({**dict(list(kept.items())[1 - _MOST_NOTED :]), run: str(issue)})

    def forget(self, run: RunId) -> None:
        known = dict(self.runs())
        if known.pop(run, None) is not None:
            self._write(known)

    def _write(self, runs: Mapping[RunId, str]) -> None:
        with contextlib.suppress(OSError):  # a push asks for DIBS_RUN then
            replace_whole(self.path, msgspec.json.encode({"runs": runs}))


def run_file(folder: Path, environment: Mapping[str, str] = os.environ) -> RunFile | None:
    """Of the working tree that a folder is in; None if it is in none."""
    told = environment.get("GIT_DIR")
    if told:
        return RunFile(folder / told / RUN_FILE)
    for place in (folder, *folder.parents):
        found = _git_folder(place / ".git")
        if found is not None:
            return RunFile(found / RUN_FILE)
    return None


def _git_folder(place: Path) -> Path | None:
    if place.is_dir():
        return place if (place / "HEAD").exists() else None
    try:
        said = place.read_text("utf-8", errors="surrogateescape")
    except (OSError, ValueError):
        return None
    pointed = said.removeprefix(_POINTER).rstrip("\n") if said.startswith(_POINTER) else ""
    return (place.parent / pointed) if pointed else None
