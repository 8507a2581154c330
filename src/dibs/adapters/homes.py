"""Where things are kept that belong to a person's machine and to no project.

A fleet that ran on the published system goes on where it was: in `ALFRED_HOME`, or in `~/.alfred`
if that is there. Everybody else's is where the desktop's rules put what must survive a restart.
"""

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["chains_folder", "state_folder", "worktrees_folder"]


def state_folder(environment: Mapping[str, str]) -> Path:
    if named := environment.get("DIBS_STATE"):
        return Path(named).absolute()
    xdg = environment.get("XDG_STATE_HOME", "")
    if xdg.startswith("/"):  # others are to be ignored, says the standard
        return Path(xdg) / "dibs"
    return Path(environment.get("HOME") or "/") / ".local" / "state" / "dibs"


def worktrees_folder() -> Path:
    return (_published() or state_folder(os.environ)) / "worktrees"


def chains_folder() -> Path:
    published = _published()
    return (published / "state" if published else state_folder(os.environ)) / "pr-chains"


def _published() -> Path | None:
    if named := os.environ.get("ALFRED_HOME"):
        return Path(named).expanduser()
    usual = Path.home() / ".alfred"
    return usual if usual.is_dir() and not os.environ.get("DIBS_STATE") else None
