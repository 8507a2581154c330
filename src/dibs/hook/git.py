"""The pre-push hook in a git repository, and the messages of the commits to be pushed.

`GitHooks` installs and uninstalls the hook. An existing hook is kept beside ours under another
name, and ours runs it first. No hook is ever lost: ours is recognized by its first lines, a hook
that a person changed is left alone, and after a crash between two steps either command can go on.

`PushedCommits` reads the messages that may close issues. Git itself searches for the keywords, so
even a push of a hundred thousand commits is searched without reading all messages here. A commit is
new if no known ref of the remote reaches it: the refs that git names to the hook, and those of the
last fetch. The reading is limited in commits, bytes and time; the result tells if a limit was
reached.
"""

import os
import selectors
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from enum import Enum
from functools import partial
from pathlib import Path

from msgspec import Struct

from dibs.adapters.git.program import GitProgram
from dibs.adapters.system import SystemClock, small_text, written
from dibs.core.errors import BadConfiguration, Unavailable
from dibs.hook.rules import RefUpdate

HOOK_NAME = "pre-push"
HOOK_BEFORE = f"{HOOK_NAME}.before-dibs"
_MARK = "# dibs pre-push hook, version 1"
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


class HookState(Enum):
    ABSENT = "absent"
    OURS = "ours"
    CHANGED = "changed"
    """Our hook, with changes by a person."""
    FOREIGN = "foreign"


class Done(Struct, frozen=True):
    path: Path
    changed: bool
    chained: bool
    """Whether a former hook is kept and run (install), or was put back (uninstall)."""
    remarks: tuple[str, ...] = ()


class GitHooks(Struct, frozen=True):
    """The folder in which git looks for hooks."""

    folder: Path
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(cls, directory: Path) -> "GitHooks":
        """The hooks of the repository around a folder; honours `core.hooksPath`.

        Raises `BadConfiguration` if there is no repository, or if hooks cannot be installed in its
        hooks folder.
        """
        # A repository may have a pipe where git reads: then git would wait for ever.
        git = partial(GitProgram(), timeout=_LOOK_S)
        top = git(["rev-parse", "--show-toplevel"], cwd=directory)
        if top.returncode:  # bare, or not a repository at all
            top = git(["rev-parse", "--absolute-git-dir"], cwd=directory)
        if top.returncode:
            raise BadConfiguration(f"{directory} is in no git repository: run it again inside one")
        root = Path(top.stdout.rstrip("\n"))
        # A relative core.hooksPath is relative to the folder in which hooks are run.
        hooks_path = git(["rev-parse", "--git-path", "hooks"], cwd=root).stdout.rstrip("\n")
        folder = root / hooks_path
        if folder.name == "_" and folder.parent.name == ".husky":
            raise BadConfiguration(
                f"the hooks in {folder} are husky's own, and are made anew by it; put this line "
                'into .husky/pre-push instead: dibs hook run -- "$@"'
            )
        scope = git(["config", "--show-scope", "--get", "core.hooksPath"], cwd=root).stdout.split()
        remarks: tuple[str, ...] = ()
        if scope and scope[0] in ("global", "system"):
            remarks = (f"core.hooksPath is set for all repositories: it is run in each ({folder})",)
        elif root in folder.parents and ".git" not in folder.parts:
            remarks = (f"{folder} is in the working tree: the hook may be committed with it",)
        if folder.exists() and not stat.S_ISDIR(folder.stat().st_mode):
            raise BadConfiguration(f"core.hooksPath names {folder}, which is no folder")
        return cls(folder, remarks)

    @property
    def path(self) -> Path:
        return self.folder / HOOK_NAME

    @property
    def before(self) -> Path:
        return self.folder / HOOK_BEFORE

    def install(self, *, dry_run: bool = False) -> Done:
        """Install our hook; a foreign hook is renamed, and run by ours.

        Raises `BadConfiguration` if a hook would be lost or run twice.
        """
        with written(self.path):
            state, script = _state(self.path), _script()
            foreign, kept = state is HookState.FOREIGN, os.path.lexists(self.before)
            if state is HookState.CHANGED:
                raise BadConfiguration(
                    f"somebody changed {self.path} since it was put in; look at it"
                )
            if foreign and kept:
                raise BadConfiguration(
                    f"both {self.path} and {self.before} are there, and one place can keep only "
                    "one; look which of them is wanted"
                )
            for sibling in sorted(self.folder.glob(f"{HOOK_NAME}.*")) if foreign else ():
                if _state(sibling) is HookState.OURS:
                    raise BadConfiguration(
                        f"another tool has moved our hook to {sibling}, "
                        f"and runs it from {self.path}"
                    )
            current = state is HookState.OURS and self.path.read_text("utf-8") == script
            if not dry_run and not current:
                self.folder.mkdir(parents=True, exist_ok=True)
                part = self.folder / f".{HOOK_NAME}.part"
                part.unlink(missing_ok=True)  # perhaps a link that came with an archive
                part.write_text(script, "utf-8")
                part.chmod(0o755)
                if foreign:
                    self.path.rename(self.before)
                part.replace(self.path)
            return Done(self.path, not current, foreign or kept, self.remarks)

    def uninstall(self, *, dry_run: bool = False) -> Done:
        """Remove our hook, and put a former hook back; a foreign hook is left alone."""
        with written(self.path):
            state, chained = _state(self.path), os.path.lexists(self.before)
            if state is HookState.CHANGED:
                raise BadConfiguration(
                    f"somebody changed {self.path} since it was put in; look at it before it goes"
                )
            ours = state is HookState.OURS or (state is HookState.ABSENT and chained)
            if ours and not dry_run:
                if chained:
                    self.before.replace(self.path)
                else:
                    self.path.unlink()
            return Done(self.path, ours, ours and chained)


def _script() -> str:
    python = shlex.quote(sys.executable or shutil.which("python3") or "python3")
    return _SCRIPT.format(python=python, before=HOOK_BEFORE)


def _state(path: Path) -> HookState:
    """Compare a hook with our script; the path of the interpreter may differ."""
    if not os.path.lexists(path):
        return HookState.ABSENT
    try:
        text = small_text(path, errors="replace")
    except OSError:  # a link to nowhere, a folder, a pipe
        return HookState.FOREIGN
    if _MARK not in text[:200]:
        return HookState.FOREIGN
    lines, ours = text.splitlines(), _script().splitlines()
    same = len(lines) == len(ours) and all(
        line == own or own.startswith("python=") for line, own in zip(lines, ours, strict=True)
    )
    return HookState.OURS if same else HookState.CHANGED


_MOST_COMMITS = 5_000
_MOST_BYTES = 16 * 1024 * 1024
_CHUNK = 65_536
_LOOK_S = 15.0
_MOST_S = 20.0
_GIT_ENV = {
    "LC_ALL": "C",  # bytes in no known encoding are searched as well
    "LANGUAGE": "",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PAGER": "cat",
}
_LOG = (
    *("-c", "i18n.logOutputEncoding=UTF-8", "-c", "log.showSignature=false"),
    # Commits that were never fetched are missing here; git reads the input as soon as it is named.
    *("log", "--ignore-missing", "--stdin", f"--max-count={_MOST_COMMITS + 1}"),
    *("--format=%B", "-z", "--no-color", "--no-notes", "--no-patch", "--no-decorate"),
    *("--regexp-ignore-case", "--grep=clos", "--grep=fix", "--grep=resolv"),
    "--grep=^agent-firing-id:",  # the text of a pull request may close what these commits do not
)


class PushedMessages(Struct, frozen=True):
    """The messages of the commits to be pushed, if they contain a keyword or name a firing."""

    messages: tuple[str, ...] = ()
    unread: str = ""
    """The reason why messages may be missing; empty if none is."""


class PushedCommits(Struct, frozen=True):
    """Reads commits of the repository around a folder."""

    folder: Path

    def messages(self, updates: Sequence[RefUpdate], remote: str) -> PushedMessages:
        """Messages with a keyword or a firing, of commits new to the remote.

        Raises as `_run_git` does.
        """
        pushed = [update.commit for update in updates if not update.deletes]
        if not pushed:
            return PushedMessages()
        old = [update.before for update in updates if not update.creates]
        # Commits of the last fetch: of this remote, or of all remotes if an address is pushed to.
        named = remote and "/" not in remote and ":" not in remote
        fetched = f"refs/remotes/{remote}/" if named else "refs/remotes/"
        output, _ = _run_git(self.folder, ("for-each-ref", "--format=%(objectname)", fetched))
        old += output.decode("ascii", "replace").split()
        lines = [*pushed, *(f"^{commit}" for commit in old)]
        given = "".join(f"{line}\n" for line in dict.fromkeys(lines))
        output, complete = _run_git(self.folder, _LOG, given)
        messages = [text.decode("utf-8", "replace") for text in output.split(b"\0") if text.strip()]
        unread = "" if complete else "its messages are too long to be read"
        if complete and len(messages) > _MOST_COMMITS:
            unread = f"only {_MOST_COMMITS} of its commits were looked at"
        return PushedMessages(tuple(messages[:_MOST_COMMITS]), unread)


def _run_git(folder: Path, words: Sequence[str], given: str = "") -> tuple[bytes, bool]:
    """Run git with `given` as its input; the output, and whether the output is complete.

    Works in a hook, too: git sets environment variables for the hook, which are passed on. Stops
    reading after `_MOST_BYTES`. Raises `Unavailable` if git fails, or does not answer in time.
    """
    program = shutil.which("git")
    if program is None:
        raise BadConfiguration("git is not installed here")
    clock = SystemClock()
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        stdin.write(given.encode("ascii", "replace"))
        stdin.seek(0)
        try:
            process = subprocess.Popen(
                [program, *words],
                cwd=folder,
                env={**os.environ, **_GIT_ENV},
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        except OSError as flaw:
            raise Unavailable(f"git cannot be started: {flaw.strerror}") from flaw
        assert process.stdout is not None, "it is a pipe"
        output, complete = bytearray(), False
        until = clock.now() + _MOST_S
        late = Unavailable(f"git did not find out within {_MOST_S:g} s what is pushed")
        with process, selectors.DefaultSelector() as ready:
            try:
                ready.register(process.stdout, selectors.EVENT_READ)
                while len(output) <= _MOST_BYTES and not complete:
                    if not ready.select(max(0.0, until - clock.now())):
                        raise late
                    chunk = os.read(process.stdout.fileno(), _CHUNK)
                    output += chunk
                    complete = not chunk
                if complete:
                    process.wait(timeout=_MOST_S)
            except subprocess.TimeoutExpired:
                raise late from None
            finally:
                process.kill()  # does nothing if the process has ended
        if complete and process.returncode:
            stderr.seek(0)
            complaint = stderr.read(300).decode("utf-8", "replace").strip()
            raise Unavailable(f"git cannot tell what is pushed: {complaint}")
        return bytes(output[:_MOST_BYTES]), complete
