"""The messages of the commits that a push would bring to a remote, as far as they may close issues.

Git itself looks for the keywords, so that a push of a hundred thousand commits is looked through
without being read here. New is what the remote's refs do not reach, as they are known of: the ones
that git names to the hook, and those of the last fetch. Bounded in commits, in bytes and in time;
where a bound is reached, that is said.
"""

import os
import selectors
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from dibs.adapters.clocks import SystemClock
from dibs.core.errors import BadConfiguration, Unavailable
from dibs.core.pushing import RefUpdate

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
