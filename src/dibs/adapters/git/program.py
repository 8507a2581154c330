"""One git command at a time: where it works, which settings count, how long it may take.

Git runs in a folder that lives for one call, on an object folder that is shared: no ref, no index
and no `FETCH_HEAD` of one call is ever another's, so threads and processes need no lock between
them. The settings that reach the remote (credentials, ssh, proxies, `insteadOf`) are the user's,
with those of the repository that we are in; hooks and housekeeping are not. What git says is
turned into our errors here, and what nobody may see is left out: it is never among the words of
a command, which everybody on the machine can read.

The git program in somebody's own repository: their settings and hooks count, prompts do not.

What leases in refs need of git is in `git_process`: there, nothing of the user's repository takes
part. Here it is the user's repository, and git behaves as it does for them, but for what could
wait for an answer that nobody gives.

The address of a git remote: what may be seen of it, and what is handed to git unseen.

Whoever is on the machine reads the words of a command, and errors and logs repeat an address. So
no secret may be in the one that git is given: the account of an HTTP address reaches git through
its environment, as the answer of a credential helper for that server alone. An address that hides
a secret anywhere else, or may do so, is a wrong setting; the error does not repeat it.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct

from dibs.adapters.system import without_git_variables
from dibs.core.errors import (
    BadConfiguration,
    Damaged,
    NotPermitted,
    Outage,
    RateLimited,
    Unavailable,
)
from dibs.core.references import without_secrets
from dibs.ports.system import GitResult

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)", re.DOTALL)
_SSH = re.compile(r"[^/:]*:(.*)", re.DOTALL)  # host:path, with no slash before the colon
_OF_A_PROGRAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9+.-]*::")
_UNFIT = re.compile(r"[\x00-\x1f\x7f]")
_USER, _PASSWORD = "LEASES_GIT_USER", "LEASES_GIT_PASSWORD"
_ALIAS = "dibs-leases:"
_ANSWER = (
    '!answer() { if test "$1" = get; then'
    f' printf "username=%s\\npassword=%s\\n" "${_USER}" "${_PASSWORD}"; fi; }}; answer'
)


class Account(Struct, frozen=True):
    server: str
    """Scheme, host and port: nobody else is told."""
    user: str
    password: str | None
    """None: git's own credentials know it."""


class Address(Struct, frozen=True):
    bare: str
    """Without an account, if it is reached by HTTP."""
    account: Account | None = None

    @property
    def shown(self) -> str:
        return without_secrets(self.bare)

    def identity(self, root: Path) -> str:
        """The same for nobody else's repository, wherever on this machine it is asked from."""
        near = not _URL.match(self.bare) and not _SSH.match(self.bare)
        whole = str((root / self.bare).absolute()) if near else self.bare
        return whole.encode("utf-8", "backslashreplace").decode()  # any bytes make a file's name

    @property
    def given(self) -> str:
        """What stands for it among a command's words.

        Where the account is ours to hand over, no rule of the user's (`insteadOf`) may put it back
        into the address: there is none for a name of our own, and git applies one rule only.
        """
        return self.bare if self.account is None else _ALIAS

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """What git must be told, none of it secret."""
        if self.account is None:
            return ()
        alias = (f"url.{self.bare}.insteadOf", _ALIAS)
        ours = f"credential.{self.account.server}"
        if self.account.password is None:
            return alias, (f"{ours}.username", self.account.user)
        # An empty helper makes git forget those before it.
        return alias, (f"{ours}.helper", ""), (f"{ours}.helper", _ANSWER)

    @property
    def secrets(self) -> Mapping[str, str]:
        """For git's environment."""
        if self.account is None or self.account.password is None:
            return {}
        return {_USER: self.account.user, _PASSWORD: self.account.password}


def parse_address(text: str) -> Address:
    """Raises BadConfiguration if a secret is, or may be, where it could be seen."""
    if _OF_A_PROGRAM.match(text):
        raise BadConfiguration(
            f"git:{text.partition(':')[0]}::... is the address of a remote helper, which may hide "
            "a secret; write one that git reaches by itself"
        )
    url = _URL.fullmatch(text)
    if url is None:
        ssh = _SSH.match(text)
        if ssh is not None and "@" in ssh[1]:
            raise _exposed(text, "an '@' after the first colon")
        return Address(text)
    scheme, authority, rest = url.groups()
    if scheme.lower() == "file":
        return Address(text)
    if "@" in rest:
        raise _exposed(text, "an '@' after the host (%40 in a path, %2F for a / in a password)")
    if "?" in rest or "#" in rest:
        raise _exposed(text, "a query")
    return _of_server(scheme, authority, rest)


def _of_server(scheme: str, authority: str, rest: str) -> Address:
    account, at, server = authority.rpartition("@")
    user, colon, password = account.partition(":")
    bare = f"{scheme}://{server}{rest}"
    if scheme.lower() not in ("http", "https"):
        if colon:
            raise _exposed(bare, "a password")
        return Address(f"{scheme}://{authority}{rest}")
    known = Account(f"{scheme}://{server}", unquote(user), unquote(password) if colon else None)
    if _UNFIT.search(known.user + (known.password or "")):
        raise _exposed(bare, "an account that git cannot be told")
    return Address(bare, known if at and account else None)


def _exposed(text: str, what: str) -> BadConfiguration:
    return BadConfiguration(
        f"git:{_harmless(text)} has {what}, which others could see; "
        "keep the secret in a credential helper, an ssh key, or as user:password of an https "
        "address"
    )


def _harmless(text: str) -> str:
    """Only what comes after the last sign that may belong to an account."""
    shown = without_secrets(text)
    return shown if "://" in shown else shown.rpartition("@")[2]


_RATE_LIMIT_S = 60.0
_LEASES_ENV = {
    "LC_ALL": "C",  # its messages are read
    "LANGUAGE": "",
    "GIT_TERMINAL_PROMPT": "0",
    "GCM_INTERACTIVE": "never",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_AUTHOR_NAME": "dibs",
    "GIT_AUTHOR_EMAIL": "dibs@localhost",
    "GIT_COMMITTER_NAME": "dibs",
    "GIT_COMMITTER_EMAIL": "dibs@localhost",
}
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "gc.auto=0",
    "maintenance.auto=false",
    "fetch.writeCommitGraph=false",
    "fetch.recurseSubmodules=false",
    "fetch.prune=false",
    "fetch.unpackLimit=100000",  # no packs: what is old can be pruned file by file
    "push.followTags=false",
    "push.gpgSign=false",
    "push.recurseSubmodules=no",
    "push.pushOption=",
    "i18n.commitEncoding=UTF-8",
    "credential.interactive=never",
    "color.ui=false",
)
# A rule of git's own settings may have put an account into an address. Rather too much than that.
_SECRET = re.compile(r"(?<=//)[^\s'\"]*@")

# In this order: a full disk is told together with a refusal, a refusal with a hang-up.
_FULL = re.compile(
    r"no space left|disk quota exceeded|read-only file system|corrupt", re.IGNORECASE
)
_TOO_FAST = re.compile(r"returned error: 429|HTTP 429|rate limit", re.IGNORECASE)
_FORBIDDEN = re.compile(
    r"authentication failed|permission denied|insufficient permission|access denied"
    r"|could not read (username|password)|returned error: 40[134]|HTTP 40[134]"
    r"|host key verification failed|dubious ownership|repository .*not found|not authorized"
    r"|permission to .* denied|could not be found or you don.t have permission",
    re.IGNORECASE,
)
_NOT_TOGETHER = "does not support --atomic push"


class Ran(Struct, frozen=True):
    """How a command ended, and what it said."""

    code: int
    out: bytes
    err: str

    @property
    def failed_loudly(self) -> bool:
        return any(line.startswith(("fatal:", "error:")) for line in self.err.splitlines())


class Git:
    """Git commands on one object folder, each bounded in time."""

    def __init__(self, objects: Path, root: Path, *, timeout_s: float) -> None:
        found = shutil.which("git")
        if found is None:
            raise BadConfiguration("leases in git refs need git, which is not installed here")
        self._program = found
        self._objects = objects
        self._root = root
        self._timeout_s = timeout_s
        self._address: Address | None = None
        self.name = "git"
        """What an error calls the place that was asked."""

    def reach(self, address: Address) -> None:
        """From now on, commands know how to get in there."""
        self._address = address
        self.name = f"git:{address.shown}"

    @contextmanager
    def folder(self, shallow: Sequence[str] = ()) -> Iterator[Path]:
        """A repository for one call. The parents of `shallow` commits are not asked for."""
        with tempfile.TemporaryDirectory(prefix="dibs-git-", ignore_cleanup_errors=True) as made:
            place = Path(made)
            (place / "refs").mkdir()
            (place / "HEAD").write_text("ref: refs/heads/none\n", encoding="ascii")
            if shallow:
                text = "".join(f"{commit}\n" for commit in sorted(set(shallow)))
                (place / "shallow").write_text(text, encoding="ascii")
            yield place

    def run(self, place: Path, *words: str, given: bytes = b"") -> Ran:
        """In a folder of our own, with our settings. Raises Unavailable if it takes too long."""
        settings = [word for one in (*self._included, *_SETTINGS) for word in ("-c", one)]
        where = {"GIT_OBJECT_DIRECTORY": str(self._objects)}
        if self._address is not None:
            # Last, so that what makes git forget helpers in the user's settings spares ours.
            for number, (name, text) in enumerate(self._address.settings):
                settings.append(f"--config-env={name}=LEASES_GIT_{number}")
                where[f"LEASES_GIT_{number}"] = text
            where |= self._address.secrets
        return self._finish((*settings, f"--git-dir={place}", *words), given, where)

    def ask(self, *words: str) -> Ran:
        """About the repository that the settings are in, if they are in one."""
        return self._finish(words, b"", {})

    @cached_property
    def _included(self) -> tuple[str, ...]:
        """The settings of the repository that we are in: its credentials and proxies count."""
        found = self.ask("rev-parse", "--git-common-dir")
        folder = found.out.decode("utf-8", "surrogateescape").strip()
        if found.code or not folder:
            return ()
        return (f"include.path={self._root / folder / 'config'}",)

    def _finish(self, words: Sequence[str], given: bytes, where: Mapping[str, str]) -> Ran:
        return bounded(
            (self._program, *words),
            place=self._root,
            env={**without_git_variables(), **_LEASES_ENV, **where},
            given=given,
            timeout_s=self._timeout_s,
            name=self.name,
        )


def bounded(
    words: Sequence[str],
    *,
    place: Path,
    env: Mapping[str, str],
    given: bytes,
    timeout_s: float,
    name: str,
    shared: Collection[int] = (),
) -> Ran:
    """One command to its end, or to the end of its time, with all that it started.

    Raises Unavailable, in the name of the place that was asked, if it cannot start or takes too
    long. The open files in `shared` stay open in it.
    """
    # Its errors go to a file: an ssh that stays to serve the next call keeps a pipe open.
    with tempfile.TemporaryFile() as told:
        try:
            process = subprocess.Popen(
                words,
                cwd=place,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=told,
                start_new_session=True,
                pass_fds=tuple(shared),
            )
        except OSError as flaw:
            raise Unavailable(f"git cannot be started: {flaw.strerror}") from flaw
        try:
            out, _ = process.communicate(given, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            # Not from it: it repeats the whole command to whoever logs it.
            raise Unavailable(f"{name} did not answer within {timeout_s:g} s") from None
        finally:
            _end(process)
        told.seek(0)
        return Ran(process.returncode, out, told.read().decode("utf-8", "replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Whatever it started with it, if it has not ended by itself."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def outage(ran: Ran, name: str) -> Outage:
    """Which of our errors a failed command is."""
    if _NOT_TOGETHER in ran.err:
        return NotPermitted(
            f"{name}: its server does not move several refs together (atomic push), "
            "so leases cannot be kept there"
        )
    text = f"{name}: {spoken(ran.err) or f'git ended with code {ran.code}'}"
    if _FULL.search(ran.err):
        return Damaged(text)
    if _TOO_FAST.search(ran.err):
        return RateLimited(text, retry_after_s=_RATE_LIMIT_S)
    return NotPermitted(text) if _FORBIDDEN.search(ran.err) else Unavailable(text)


def spoken(err: str) -> str:
    """What git complains of, in one line and without what nobody may see."""
    lines = [line.strip() for line in err.splitlines()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ERROR"))]
    return _SECRET.sub("", "; ".join((telling or lines)[:3]))[:300]


_PROGRAM_ENV = {
    "LC_ALL": "C.UTF-8",  # its messages are read; names of files are not ours to re-encode
    "LANGUAGE": "",
    "GIT_TERMINAL_PROMPT": "0",
    "GCM_INTERACTIVE": "never",
    "GIT_OPTIONAL_LOCKS": "0",  # looking must not get in the way of somebody at work
}
_NOTHING: Mapping[str, str] = {}


class GitProgram(Struct, frozen=True):
    """A `Git`: each command is bounded in time and ended with all that it started."""

    shared: tuple[int, ...] = ()
    """Open files that every command keeps open, so that a lock on one lasts as long as it runs."""

    def __call__(
        self,
        args: Sequence[str],
        *,
        cwd: Path,
        timeout: float = 60,
        env: Mapping[str, str] = _NOTHING,
    ) -> GitResult:
        program = shutil.which("git")
        if program is None:
            raise BadConfiguration("worktrees need git, which is not installed here")
        ran = bounded(
            [program, *args],
            place=cwd,
            env={**without_git_variables(), **_PROGRAM_ENV, **env},
            given=b"",
            timeout_s=timeout,
            name=f"git {_verb(args)} in {cwd}",
            shared=self.shared,
        )
        return GitResult(ran.code, os.fsdecode(ran.out), ran.err)


def _verb(args: Sequence[str]) -> str:
    """Which command it is: an error never repeats the other words, which may be anything."""
    words = iter(args)
    for word in words:
        if word == "-c":
            next(words, None)
        elif not word.startswith("-"):
            return word
    return ""
