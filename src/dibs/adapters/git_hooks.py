"""The pre-push hook in a git repository: put in, taken out, and what was there before kept.

A hook that is there already is kept beside ours under another name and run first by it. Nothing is
ever lost: ours is told by its first lines, a hook that somebody changed is left alone, and a crash
between two steps leaves a state that either command goes on from.
"""

import os
import shlex
import shutil
import stat
import sys
from enum import Enum
from pathlib import Path

from msgspec import Struct

from dibs.adapters.git_program import GitProgram
from dibs.adapters.whole_files import written
from dibs.core.errors import BadConfiguration

NAME = "pre-push"
BEFORE = f"{NAME}.before-dibs"
_MARK = "# dibs pre-push hook, version 1"
_LARGEST = 65_536
_SCRIPT = """\
#!/bin/sh
# dibs pre-push hook, version 1. Put in by: dibs hook install. Taken out by: dibs hook uninstall.
# A hook that was here before is {before} beside it, and is run first.
python={python}
before="$(dirname "$0")/{before}"
if [ ! -x "$before" ]; then
    before=
fi
if [ -x "$python" ] && "$python" -P -c 'import dibs' 2>/dev/null; then
    exec "$python" -P -m dibs hook run --before "$before" -- "$@"
elif command -v dibs >/dev/null 2>&1; then
    exec dibs hook run --before "$before" -- "$@"
fi
echo "dibs: it is not installed any more where this hook looks for it, so nothing was checked;" >&2
echo "  look at $0" >&2
if [ -n "$before" ]; then
    exec "$before" "$@"
fi
"""


class State(Enum):
    ABSENT = "absent"
    OURS = "ours"
    CHANGED = "changed"
    """Ours, and somebody wrote into it."""
    FOREIGN = "foreign"


class Done(Struct, frozen=True):
    """What a command found and did."""

    path: Path
    changed: bool
    chained: bool
    """Whether a hook that was there before is kept and run, or was put back."""
    remarks: tuple[str, ...] = ()


class GitHooks(Struct, frozen=True):
    folder: Path
    """Where git looks for hooks."""
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(cls, directory: Path) -> "GitHooks":
        """Of the repository that a folder is in, by its settings. Raises BadConfiguration."""
        git = GitProgram()
        top = git(["rev-parse", "--show-toplevel"], cwd=directory)
        if top.returncode:  # bare, or not a repository at all
            top = git(["rev-parse", "--absolute-git-dir"], cwd=directory)
        if top.returncode:
            raise BadConfiguration(f"{directory} is in no git repository")
        root = Path(top.stdout.rstrip("\n"))
        # A relative core.hooksPath counts from where hooks are run.
        told = git(["rev-parse", "--git-path", "hooks"], cwd=root).stdout.rstrip("\n")
        folder = root / told
        if folder.name == "_" and folder.parent.name == ".husky":
            raise BadConfiguration(
                f"the hooks in {folder} are husky's own, and are made anew by it; put this line "
                'into .husky/pre-push instead: dibs hook run -- "$@"'
            )
        scope = git(["config", "--show-scope", "--get", "core.hooksPath"], cwd=root).stdout.split()
        return cls(folder, tuple(_remarks(folder, root, scope[0] if scope else "")))

    @property
    def path(self) -> Path:
        return self.folder / NAME

    @property
    def before(self) -> Path:
        return self.folder / BEFORE

    def state(self) -> State:
        return _state(self.path)

    # Putting it in

    def install(self, *, dry_run: bool = False) -> Done:
        with written(self.path):
            state, script = self.state(), _script()
            self._refuse_to_install(state)
            current = state is State.OURS and self.path.read_text("utf-8") == script
            chained = state is State.FOREIGN or _there(self.before)
            if not dry_run and not current:
                self._put_in(script, keeping=state is State.FOREIGN)
            return Done(self.path, not current, chained, self.remarks)

    def _refuse_to_install(self, state: State) -> None:
        if state is State.CHANGED:
            raise BadConfiguration(f"somebody changed {self.path} since it was put in; look at it")
        if state is State.FOREIGN and _there(self.before):
            raise BadConfiguration(
                f"both {self.path} and {self.before} are there, and one place can keep only one; "
                "look which of them is wanted"
            )
        for sibling in sorted(self.folder.glob(f"{NAME}.*")) if state is State.FOREIGN else ():
            if _state(sibling) is State.OURS:
                raise BadConfiguration(
                    f"another tool has moved our hook to {sibling}, and runs it from {self.path}"
                )

    def _put_in(self, script: str, *, keeping: bool) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f".{NAME}.part"
        part.write_text(script, "utf-8")
        part.chmod(0o755)
        if keeping:
            self.path.rename(self.before)
        part.replace(self.path)

    # Taking it out

    def uninstall(self, *, dry_run: bool = False) -> Done:
        with written(self.path):
            state, chained = self.state(), _there(self.before)
            if state is State.CHANGED:
                raise BadConfiguration(
                    f"somebody changed {self.path} since it was put in; look at it before it goes"
                )
            ours = state is State.OURS or (state is State.ABSENT and chained)
            if ours and not dry_run:
                if chained:
                    self.before.replace(self.path)
                else:
                    self.path.unlink()
            return Done(self.path, ours, ours and chained)


def _script() -> str:
    python = shlex.quote(sys.executable or shutil.which("python3") or "python3")
    return _SCRIPT.format(python=python, before=BEFORE)


def _state(path: Path) -> State:
    if not _there(path):
        return State.ABSENT
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST).decode("utf-8", "replace")
    except OSError:  # a link to nowhere, a folder
        return State.FOREIGN
    if _MARK not in text[:200]:
        return State.FOREIGN
    lines, ours = text.splitlines(), _script().splitlines()
    same = len(lines) == len(ours) and all(
        line == own or own.startswith("python=") for line, own in zip(lines, ours, strict=True)
    )
    return State.OURS if same else State.CHANGED


def _there(path: Path) -> bool:
    return os.path.lexists(path)


def _remarks(folder: Path, root: Path, scope: str) -> list[str]:
    told = []
    if scope in ("global", "system"):
        told.append(f"core.hooksPath is set for all repositories: it is run in each ({folder})")
    elif root in folder.parents and ".git" not in folder.parts:
        told.append(f"{folder} is in the working tree: the hook may be committed with it")
    if folder.exists() and not stat.S_ISDIR(folder.stat().st_mode):
        raise BadConfiguration(f"core.hooksPath names {folder}, which is no folder")
    return told
