"""The pre-push hook in a git repository: put in, taken out, and what was there before kept.

A hook that is there already is kept beside ours under another name and run first by it. Nothing is
ever lost: ours is told by its first lines, a hook that somebody changed is left alone, and a crash
between two steps leaves a state that either command goes on from.

The messages of the commits that a push would bring to a remote, as far as they may close issues.

Git itself looks for the keywords, so that a push of a hundred thousand commits is looked through
without being read here. New is what the remote's refs do not reach, as they are known of: the ones
that git names to the hook, and those of the last fetch. Bounded in commits, in bytes and in time;
where a bound is reached, that is said.
"""

import os
import selectors
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path

from msgspec import Struct

from dibs.adapters.files import written
from dibs.adapters.git.program import GitProgram
from dibs.adapters.system import SystemClock
from dibs.core.errors import BadConfiguration, Unavailable
from dibs.hook.rules import RefUpdate

HOOK_NAME = "pre-push"
HOOK_BEFORE = f"{HOOK_NAME}.before-dibs"
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
        return self.folder / HOOK_NAME

    @property
    def before(self) -> Path:
        return self.folder / HOOK_BEFORE

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
        for sibling in sorted(self.folder.glob(f"{HOOK_NAME}.*")) if state is State.FOREIGN else ():
            if _state(sibling) is State.OURS:
                raise BadConfiguration(
                    f"another tool has moved our hook to {sibling}, and runs it from {self.path}"
                )

    def _put_in(self, script: str, *, keeping: bool) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f".{HOOK_NAME}.part"
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
    return _SCRIPT.format(python=python, before=HOOK_BEFORE)


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


_MOST_COMMITS = 5_000
_MOST_BYTES = 16 * 1024 * 1024
_CHUNK = 65_536
_SET = {
    "LC_ALL": "C",  # bytes that are no text in any language are still looked through
    "LANGUAGE": "",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PAGER": "cat",
}
_LOG = (
    *("-c", "i18n.logOutputEncoding=UTF-8", "-c", "log.showSignature=false"),
    *("log", "--stdin", "--ignore-missing", f"--max-count={_MOST_COMMITS + 1}"),
    *("--format=%B", "-z", "--no-color", "--no-notes", "--no-patch", "--no-decorate"),
    *("--regexp-ignore-case", "--grep=clos", "--grep=fix", "--grep=resolv"),
)


class PushedMessages(Struct, frozen=True):
    messages: tuple[str, ...] = ()
    unread: str = ""
    """Why there may be more than these; empty if these are all."""


class PushedCommits:
    """Of the repository that a folder is in. Safe to use in a hook, which git tells where it is."""

    def __init__(self, folder: Path, *, timeout_s: float = 20.0) -> None:
        program = shutil.which("git")
        if program is None:
            raise BadConfiguration("git is not installed here")
        self._program = program
        self._folder = folder
        self._timeout_s = timeout_s
        self._clock = SystemClock()

    def messages(self, updates: Sequence[RefUpdate], remote: str) -> PushedMessages:
        """Raises Unavailable if git cannot tell."""
        pushed = [update.commit for update in updates if not update.deletes]
        if not pushed:
            return PushedMessages()
        known = [update.before for update in updates if not update.creates]
        known += self._fetched_from(remote)
        lines = [*pushed, *(f"^{commit}" for commit in known)]
        told, whole = self._run(_LOG, "".join(f"{line}\n" for line in dict.fromkeys(lines)))
        messages = [text.decode("utf-8", "replace") for text in told.split(b"\0") if text.strip()]
        if not whole:
            return PushedMessages(tuple(messages), "its messages are too long to be read")
        if len(messages) > _MOST_COMMITS:
            text = f"only {_MOST_COMMITS} of its commits were looked at"
            return PushedMessages(tuple(messages[:_MOST_COMMITS]), text)
        return PushedMessages(tuple(messages))

    def _fetched_from(self, remote: str) -> list[str]:
        """What we know of the remote's branches; of all remotes if it is pushed to by address."""
        named = remote and "/" not in remote and ":" not in remote
        place = f"refs/remotes/{remote}/" if named else "refs/remotes/"
        told, _ = self._run(("for-each-ref", "--format=%(objectname)", place))
        return told.decode("ascii", "replace").split()

    def _run(self, words: Sequence[str], given: str = "") -> tuple[bytes, bool]:
        """What git says, and whether that is all of it."""
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as complaints:
            asked.write(given.encode("ascii", "replace"))
            asked.seek(0)
            try:
                process = subprocess.Popen(
                    [self._program, *words],
                    cwd=self._folder,
                    env={**os.environ, **_SET},
                    stdin=asked,
                    stdout=subprocess.PIPE,
                    stderr=complaints,
                )
            except OSError as flaw:
                raise Unavailable(f"git cannot be started: {flaw.strerror}") from flaw
            told, whole = self._read(process)
            if whole and process.returncode:
                complaints.seek(0)
                said = complaints.read(300).decode("utf-8", "replace").strip()
                raise Unavailable(f"git cannot tell what is pushed: {said}")
            return told, whole

    def _read(self, process: subprocess.Popen[bytes]) -> tuple[bytes, bool]:
        told = bytearray()
        try:
            for chunk in self._chunks(process):
                told += chunk
                if len(told) > _MOST_BYTES:
                    return bytes(told[:_MOST_BYTES]), False
            process.wait(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            raise Unavailable(_too_slow(self._timeout_s)) from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                with suppress(OSError):
                    process.stdout.close()
        return bytes(told), True

    def _chunks(self, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
        assert process.stdout is not None, "it is a pipe"
        until = self._clock.now() + self._timeout_s
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            while True:
                if not ready.select(max(0.0, until - self._clock.now())):
                    raise Unavailable(_too_slow(self._timeout_s))
                chunk = os.read(process.stdout.fileno(), _CHUNK)
                if not chunk:
                    return
                yield chunk


def _too_slow(seconds: float) -> str:
    return f"git did not find out within {seconds:g} s what is pushed"


def main_folder(folder: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The repository's first working tree, where a linked one's backlog may be; None if none."""
    program = shutil.which("git")
    if program is None:
        return None
    told = subprocess.run(
        [program, "worktree", "list", "--porcelain"],
        cwd=folder,
        env={**environment, **_SET},
        capture_output=True,
        timeout=20,
        check=False,
    )
    first = told.stdout.partition(b"\n\n")[0].splitlines()
    if told.returncode or not first or b"bare" in first:
        return None
    return Path(os.fsdecode(first[0].removeprefix(b"worktree ")))
