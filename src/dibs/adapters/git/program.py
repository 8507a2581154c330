"""Running the git program, and the addresses of git remotes.

`Address` keeps the secrets of a remote's address apart. Everybody on the machine can read the
arguments of a command, and errors and logs repeat an address. So the address that git is given
contains no secret: the account of an HTTP address reaches git through its environment, as the
answer of a credential helper for that server alone. An address that contains, or may contain, a
secret anywhere else is a wrong setting; the error does not repeat the address.

`GitCommands` runs git for leases in refs. Each call has a temporary git folder, on an object folder
that all calls share. No call sees a ref, an index or a `FETCH_HEAD` of another call, so threads and
processes need no lock between them. The settings that reach the remote (credentials, ssh, proxies,
`insteadOf`) are the user's, and a few of the repository that we are in (`_TAKEN`); hooks and
housekeeping are switched off.

`GitProgram` runs git in a user's own repository: git behaves as it does for the user, with the
user's settings and hooks. Only prompts are switched off, because nobody would answer them.

`outage` turns the messages of git into our errors, without secrets.
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

from dibs.adapters.system import Sharing, git_environment, share_around, without_git_variables
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
_TRANSPORT_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9+.-]*::")
_UNFIT = re.compile(r"[\x00-\x1f\x7f]")
_USER, _PASSWORD = "LEASES_GIT_USER", "LEASES_GIT_PASSWORD"
_ALIAS = "dibs-leases:"
_ANSWER = (
    '!answer() { if test "$1" = get; then'
    f' printf "username=%s\\npassword=%s\\n" "${_USER}" "${_PASSWORD}"; fi; }}; answer'
)


class Account(Struct, frozen=True):
    server: str
    """Scheme, host and port: git hands the account to this server only."""
    user: str
    password: str | None
    """None: git takes it from its own credential helpers."""


class Address(Struct, frozen=True):
    bare: str
    """The address; without the account if it is an HTTP address."""
    account: Account | None = None

    @property
    def shown(self) -> str:
        return without_secrets(self.bare)

    @property
    def is_path(self) -> bool:
        """Whether it is the path of a repository on this machine."""
        return is_local_path(self.bare)

    @property
    def local(self) -> str | None:
        """The path of the repository, if it is on this machine; git reads `~` in a path."""
        if self.is_path:
            return os.path.expanduser(self.bare)  # noqa: PTH111 - Path raises for an unknown user
        scheme, _, place = self.bare.partition(":")
        return "/" + unquote(place).lstrip("/") if scheme.lower() == "file" else None

    def identity(self, root: Path) -> str:
        """A name for the repository, the same in every working directory of the machine.

        No other repository has the same name.
        """
        whole = str((root / self.bare).absolute()) if self.is_path else self.bare
        return whole.encode("utf-8", "backslashreplace").decode()  # a file name may be any bytes

    @property
    def given(self) -> str:
        """The address as an argument of a git command.

        If the address has an account, the argument is an alias, which `settings` resolves. Git
        applies a single `insteadOf` rule, and the user has no rule for our alias. Hence no rule of
        the user can put an account back into the address.
        """
        return self.bare if self.account is None else _ALIAS

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """The settings that git needs for this address. None of them is secret."""
        if self.account is None:
            return ()
        alias = (f"url.{self.bare}.insteadOf", _ALIAS)
        credential = f"credential.{self.account.server}"
        if self.account.password is None:
            return alias, (f"{credential}.username", self.account.user)
        # An empty helper makes git forget the helpers before it.
        return alias, (f"{credential}.helper", ""), (f"{credential}.helper", _ANSWER)

    @property
    def secrets(self) -> Mapping[str, str]:
        """User and password as variables of git's environment."""
        if self.account is None or self.account.password is None:
            return {}
        return {_USER: self.account.user, _PASSWORD: self.account.password}


def is_local_path(address: str) -> bool:
    return not _URL.match(address) and not _SSH.match(address)


def parse_address(text: str) -> Address:
    """Raises BadConfiguration if a secret is, or may be, where others could see it."""
    if _TRANSPORT_PREFIX.match(text):
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
    userinfo, _, server = authority.rpartition("@")
    user, colon, password = userinfo.partition(":")
    bare = f"{scheme}://{server}{rest}"
    if scheme.lower() not in ("http", "https"):
        if colon:
            raise _exposed(bare, "a password")
        return Address(f"{scheme}://{authority}{rest}")
    account = Account(f"{scheme}://{server}", unquote(user), unquote(password) if colon else None)
    if _UNFIT.search(account.user + (account.password or "")):
        raise _exposed(bare, "an account that git cannot be told")
    return Address(bare, account if userinfo else None)


def _exposed(text: str, what: str) -> BadConfiguration:
    shown = without_secrets(text)
    if "://" not in shown:
        shown = shown.rpartition("@")[2]  # everything before the last @ may belong to an account
    return BadConfiguration(
        f"git:{shown} has {what}, which others could see; "
        "keep the secret in a credential helper, an ssh key, or as user:password of an https "
        "address"
    )


_RATE_LIMIT_S = 60.0
_LEASES_ENV = {
    "LC_ALL": "C",  # we read git's messages
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
    "fetch.unpackLimit=100000",  # no packs: old objects can be pruned file by file
    "push.followTags=false",
    "push.gpgSign=false",
    "push.recurseSubmodules=no",
    "push.pushOption=",
    "i18n.commitEncoding=UTF-8",
    "credential.interactive=never",
    "color.ui=false",
)
_GIVEN = re.compile(r"GIT_CONFIG_(COUNT|KEY_\d+|VALUE_\d+)")
"""Settings in the environment, which the operator gave to git."""
_TAKEN = re.compile(
    r"credential\.(.+\.)?(username|usehttppath)"
    r"|http\.(.+\.)?(extraheader|version|postbuffer|lowspeedlimit|lowspeedtime|useragent)",
    re.DOTALL,
)

# Tried in this order: git reports a full disk together with a refusal, and a refusal together with
# a hang-up.
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
    """The exit code and the output of a command."""

    code: int
    out: bytes
    err: str


class GitCommands:
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
        """The name of the remote in errors."""

    def reach(self, address: Address) -> None:
        """Use the settings and secrets of the address in all later commands."""
        self._address = address
        self.name = f"git:{address.shown}"

    @contextmanager
    def folder(self, shallow: Sequence[str] = ()) -> Iterator[Path]:
        """A temporary repository for one call. Git does not look for parents of `shallow` commits.

        Yields the path of the git folder.
        """
        with tempfile.TemporaryDirectory(prefix="dibs-git-", ignore_cleanup_errors=True) as made:
            place = Path(made)
            (place / "refs").mkdir()
            (place / "HEAD").write_text("ref: refs/heads/none\n", encoding="ascii")
            if shallow:
                text = "".join(f"{commit}\n" for commit in sorted(set(shallow)))
                (place / "shallow").write_text(text, encoding="ascii")
            if share_around(self._objects / "new") is Sharing.GROUP:
                # Git reads this setting from this file only.
                (place / "config").write_text("[core]\n\tsharedRepository = group\n", "ascii")
            yield place

    def run(self, place: Path, *words: str, given: bytes = b"") -> Ran:
        """Run git with `place` from `folder()` as git folder, and with our settings.

        `given` is the input. Raises Unavailable if the command takes too long.
        """
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        env = {"GIT_OBJECT_DIRECTORY": str(self._objects)}
        # Those of the address come last: an empty helper in the user's settings makes git forget
        # the helpers before it, and must not hit ours.
        own = self._address.settings if self._address is not None else ()
        for number, (name, text) in enumerate((*self._taken, *own)):
            settings.append(f"--config-env={name}=LEASES_GIT_{number}")
            env[f"LEASES_GIT_{number}"] = text
        if self._address is not None:
            env |= self._address.secrets
        return self._run((*settings, f"--git-dir={place}", *words), given, env)

    def resolve(self, remote: str) -> Address:
        """The address to use for reading and writing. Raises BadConfiguration for a wrong one.

        A remote may have several addresses, or different addresses for reading and writing. We use
        the first to which git pushes. For a plain address, the `insteadOf` rules of the
        repository count, and the `pushInsteadOf` rules do not.
        """
        if not remote or remote.startswith("-"):  # git would read it as an option
            shown = without_secrets(remote)
            raise BadConfiguration(f"'git:{shown}' names no remote; write it as git:REMOTE")
        if remote.startswith("~/"):
            return parse_address(os.path.expanduser(remote))  # noqa: PTH111 - see `Address.local`
        # With a colon it is not a name, and may contain a password, which git must not be given.
        if ":" in remote and parse_address(remote).account is not None:
            return parse_address(remote)
        # A rule of the user (`insteadOf`) may add an account to the address.
        asked = ("ls-remote", "--get-url") if ":" in remote else ("remote", "get-url", "--push")
        address = parse_address(self._output_of(*asked, remote) or remote)
        if address.bare.startswith("-"):
            raise BadConfiguration(f"'git:{remote}' has an address that begins with a dash")
        return address

    def _output_of(self, *words: str) -> str:
        """The output of a git command in `root`, with the settings of the repository around it.

        Empty if the command failed.
        """
        ran = self._run(words, b"", {})
        return "" if ran.code else ran.out.decode("utf-8", "surrogateescape").strip()

    @cached_property
    def _taken(self) -> tuple[tuple[str, str], ...]:
        """The settings for leases of the repository around `root`; empty without a repository.

        The repository may have been unpacked from a stranger's archive. So no setting is taken
        which names a program, a file or a proxy (which would see a password), makes git trust
        another server, or changes the address: `reach` was given the address after the
        repository's rules (`insteadOf`).
        """
        listed = self._output_of("config", "--local", "--list", "-z").split("\0")
        pairs = (entry.partition("\n") for entry in listed)
        return tuple((name, value) for name, _, value in pairs if _TAKEN.fullmatch(name))

    def _run(self, words: Sequence[str], given: bytes, env: Mapping[str, str]) -> Ran:
        # Every process of this user can read the environment of a git that runs for the worker.
        needed = git_environment(named=True)
        needed |= {name: os.environ[name] for name in os.environ if _GIVEN.fullmatch(name)}
        return bounded(
            (self._program, *words),
            place=self._root,
            env={**needed, **_LEASES_ENV, **env},
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
    """Run a command in the folder `place`, for at most `timeout_s`.

    If the command takes longer, raise Unavailable with `name` in the text. Raises Unavailable as
    well if the command cannot start. If the command still runs when an error is raised, kill the
    command and all processes that it started. The command inherits the open files in `shared`.
    """
    # Errors go to a file: an ssh that stays to serve the next call would keep a pipe open.
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                words,
                cwd=place,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                pass_fds=tuple(shared),
            )
        except OSError as flaw:
            raise Unavailable(f"git cannot be started: {flaw.strerror}") from flaw
        try:
            out, _ = process.communicate(given, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            # `from None`, because TimeoutExpired repeats the whole command in a log.
            raise Unavailable(f"{name} did not answer within {timeout_s:g} s") from None
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
        errors.seek(0)
        return Ran(process.returncode, out, errors.read().decode("utf-8", "replace"))


def outage(ran: Ran, name: str) -> Outage:
    """The error for a failed command. `name`: of the remote."""
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
    """The complaints of git in one line. A rule of git may have put an account into an address."""
    from dibs.core.words import masked

    lines = [line.strip() for line in err.splitlines()]
    complaints = [
        line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ERROR"))
    ]
    return masked("; ".join((complaints or lines)[:3]))[:300]


_PROGRAM_ENV = {
    "LC_ALL": "C.UTF-8",  # we read git's messages, and must not re-encode the names of files
    "LANGUAGE": "",
    "GIT_TERMINAL_PROMPT": "0",
    "GCM_INTERACTIVE": "never",
    "GIT_OPTIONAL_LOCKS": "0",  # reading must not get in the way of a person at work
}
_NOTHING: Mapping[str, str] = {}


_REACHES = frozenset({"fetch", "ls-remote"})


class GitProgram(Struct, frozen=True):
    """Implements `ports.system.Git` with the git program; takes variables as well.

    A command that takes too long is killed, with all processes that the command started. No
    command has a secret in its environment, because an agent may have named programs in the
    settings of the repository. The exception is `push`: a worker never pushes, only the chains of
    the operator do.
    """

    shared: tuple[int, ...] = ()
    """Open files that every command inherits, so that a lock on a file lasts as long as the command
    runs."""

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
        verb = _verb(args)
        bare = git_environment(named=verb in _REACHES)
        ran = bounded(
            [program, *args],
            place=cwd,
            env={**(without_git_variables() if verb == "push" else bare), **_PROGRAM_ENV, **env},
            given=b"",
            timeout_s=timeout,
            name=f"git {verb} in {cwd}",
            shared=self.shared,
        )
        return GitResult(ran.code, os.fsdecode(ran.out), ran.err)


def _verb(args: Sequence[str]) -> str:
    """The git command among the arguments: errors name only the command.

    The remaining arguments may contain anything.
    """
    words = iter(args)
    for word in words:
        if word == "-c":
            next(words, None)
        elif not word.startswith("-"):
            return word
    return ""
