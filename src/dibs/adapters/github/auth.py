"""The server to ask and the token to show: the only module that looks for a token.

An explicit token wins over a GitHub App, an App over the token that the program gh has stored. A
token of the environment is for the server that the operator names; the settings refuse a server
that a repository names. As for gh, servers other than GitHub's own have variables of their own, so
that one environment can hold tokens for both. No repr and no error shows a credential. Knows no
HTTP: the caller sends the requests of an App.

A GitHub App proves itself with a short-lived signature made with its key, and gets tokens that last
an hour and are renewed before they end. Our time of day is only a first guess for the signature:
the server's is used as soon as a reply names it. A token's life is counted on the local clock.
"""

import ipaddress
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dibs.adapters.github.replies import message_of, served_at
from dibs.adapters.system import git_environment, wall_clock
from dibs.core.errors import BadConfiguration, NotPermitted, RateLimited, Unavailable
from dibs.core.ids import ZERO, LocalTime, local_after, server_time
from dibs.ports.system import Clock

APP_ID, KEY, KEY_FILE = "GITHUB_APP_ID", "GITHUB_APP_PRIVATE_KEY", "GITHUB_APP_PRIVATE_KEY_FILE"
INSTALLATION = "GITHUB_APP_INSTALLATION_ID"
_JWT_S = 540
"""GitHub takes ten minutes at most, by its own clock."""
_JWT_BACK_S = 60
_RENEW_BEFORE = timedelta(minutes=5)
_SHORTEST_USE = timedelta(seconds=30)
_AGAIN_S = 30.0
_NEW_S = 10.0
"""So long after it was made, not every server of GitHub may know an installation's token."""
_SUCCESSES = (200, 201)

Shape = TypeVar("Shape")


class Answered(Struct, frozen=True):
    """An answer of the server, before its meaning is examined."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    asked_at: LocalTime

    def __repr__(self) -> str:
        return f"Answered(status={self.status})"  # the body may be a token

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("status", self.status)]


Ask = Callable[[str, str, str], Answered]
"""Sends a request (verb, path, bearer) without a body. Raises Unavailable or RateLimited."""


class Remedy(Enum):
    """What may help after GitHub refused a token with 401."""

    NONE = auto()
    SAME_AGAIN = auto()
    """The token is so new that not every server of GitHub may know it."""
    ANOTHER = auto()


class AppInstallation:
    """A GitHub App at an owner who has installed the App. A `Credential`."""

    def __init__(
        self, app: str, key: str, clock: Clock, *, installation: str = "", repository: str = ""
    ) -> None:
        self._app, self._key, self._clock = app, key, clock
        self._installation, self._repository = installation, repository
        # An App is installed once for each owner, for some or all of the owner's repositories.
        self._place = installation or repository.partition("/")[0].lower()
        self._lock = threading.Lock()
        self._token, self._renew_at, self._until = "", LocalTime(0.0), LocalTime(0.0)
        self._made_at = LocalTime(0.0)
        self._ahead = ZERO
        """By how much the server's time of day is ahead of ours."""

    def __repr__(self) -> str:
        return f"AppInstallation(app={self._app!r}, installation={self._installation!r})"

    @property
    def identity(self) -> str:
        """The installation: GitHub's limits are for the installation, not for a token."""
        return f"app {self._app} at {self._place}"

    def token(self, ask: Ask) -> str:
        with self._lock:  # a thread that comes while another asks waits for the answer
            now = self._clock.now()
            if not self._token or now >= self._renew_at:
                try:
                    self._renew(ask)
                except (Unavailable, RateLimited, NotPermitted):
                    if not self._token or now >= self._until:
                        raise
                    self._renew_at = LocalTime(now + _AGAIN_S)  # the old token is still good
            return self._token

    def refused(self, token: str) -> Remedy:
        with self._lock:
            if token != self._token:
                return Remedy.ANOTHER
            if self._clock.now() < self._made_at + _NEW_S:
                return Remedy.SAME_AGAIN
            self._token = ""
            return Remedy.ANOTHER

    def _renew(self, ask: Ask) -> None:
        """Get a new token, and before the first the number of the installation."""
        if not self._installation:
            path = f"/repos/{self._repository}/installation"
            found = self._as_app(ask, "GET", path, _Installation)[0]
            self._installation = str(found.id)
        path = f"/app/installations/{self._installation}/access_tokens"
        given, answered = self._as_app(ask, "POST", path, _AccessToken)
        self._token, self._made_at = given.token, answered.asked_at
        now = served_at(answered.headers)
        lasts = server_time(given.expires_at) - now if now else _RENEW_BEFORE * 2
        early = max(lasts - _RENEW_BEFORE, _SHORTEST_USE)
        self._renew_at = local_after(answered.asked_at, early)
        self._until = local_after(answered.asked_at, max(lasts - _SHORTEST_USE, early))

    def _as_app(self, ask: Ask, verb: str, path: str, shape: type[Shape]) -> tuple[Shape, Answered]:
        """Send a request signed by the App. Raises NotPermitted or Unavailable if refused."""
        answered = ask(verb, path, self._signed(wall_clock() + self._ahead))
        if answered.status == 401 and (now := served_at(answered.headers)) is not None:
            # Our time of day may be wrong: sign again with the server's, which the reply names.
            self._ahead = timedelta(seconds=now.timestamp() - wall_clock().timestamp())
            answered = ask(verb, path, self._signed(now))
        if answered.status not in _SUCCESSES:
            text = f"GitHub answered {answered.status} {message_of(answered.body)}".rstrip()
            limited = "retry-after" in answered.headers or "rate limit" in text.lower()
            if answered.status >= 500 or answered.status == 429 or limited:
                raise Unavailable(f"{text} to the App {self._app}")
            if answered.status == 404 and path.endswith("/installation"):
                raise NotPermitted(
                    f"{text}: the App {self._app} is not installed for {self._repository}; "
                    "an owner of the repository installs it"
                )
            raise NotPermitted(
                f"{text}: the App {self._app} gets no token; "
                f"look at {APP_ID}, its key and {INSTALLATION}"
            )
        try:
            return msgspec.json.decode(answered.body, type=shape), answered
        except msgspec.MsgspecError as flaw:
            raise Unavailable("GitHub answered no token to the App") from flaw

    def _signed(self, now: datetime) -> str:
        """A JSON web token by which GitHub recognises the App."""
        import jwt

        at = int(now.timestamp())
        claims = {"iat": at - _JWT_BACK_S, "exp": at + _JWT_S, "iss": self._app}
        try:
            return jwt.encode(claims, self._key, algorithm="RS256")
        except (ValueError, TypeError, jwt.PyJWTError):
            raise BadConfiguration(
                f"the key of the App {self._app} is not a private RSA key; see {KEY} and {KEY_FILE}"
            ) from None  # the library's error may quote the key


class _Installation(Struct):
    id: int


class _AccessToken(Struct):
    token: str
    expires_at: datetime

    def __repr__(self) -> str:
        return f"_AccessToken(expires_at={self.expires_at})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("expires_at", self.expires_at)]


TOKENS = ("DIBS_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN")
"""The environment variables for a token; the first that is set counts."""
ENTERPRISE_TOKENS = ("GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN")
"""For a server that is neither github.com nor below ghe.com: they count before gh's other two."""
_API = "https://api.github.com"
_GH_S = 10.0


# The server


class Api(Struct, frozen=True):
    """The address of the API of GitHub or of a GitHub Enterprise server."""

    rest: str
    """Without a slash at its end."""

    @property
    def graphql(self) -> str:
        if self.rest.endswith("/api/v3"):
            return self.rest.removesuffix("/v3") + "/graphql"
        return f"{self.rest}/graphql"

    @property
    def host(self) -> str:
        """The server's name for people, and for gh, which stores tokens by host."""
        return urlsplit(self.rest).netloc.removeprefix("api.")

    @property
    def tokens(self) -> tuple[str, ...]:
        """The environment variables for a token of this server; the first that is set counts."""
        host = self.host.lower()
        githubs_own = host == "github.com" or host.endswith(".ghe.com")
        return TOKENS if githubs_own else (TOKENS[0], *ENTERPRISE_TOKENS, *TOKENS[1:])

    def insist_owns(self, address: str) -> None:
        """Raises Unavailable for an address of another server, which must not get the token."""
        if urlsplit(address)[:2] != urlsplit(self.rest)[:2]:
            raise Unavailable(
                f"{self.host} redirects to another server; the token is not sent there"
            )


def api_of(environment: Mapping[str, str]) -> Api:
    return api_at(environment.get("GITHUB_API_URL") or _API)


def api_at(address: str) -> Api:
    """Check the address of an API. Raises BadConfiguration, without showing a password."""
    address = address.strip().rstrip("/")
    if not set(address).isdisjoint("@?#"):
        raise BadConfiguration(
            "the address of GitHub's API (GITHUB_API_URL) takes no account and no query; "
            "the token has a variable of its own"
        )
    scheme, host = "", ""
    with suppress(ValueError):  # raised by `port` if it is no number
        parts = urlsplit(address)
        if parts.port != 0:
            scheme, host = parts.scheme, parts.hostname or ""
    if scheme not in {"http", "https"} or not host:
        raise BadConfiguration(
            f"GITHUB_API_URL {address!r} is not the address of an API; "
            f"it looks like {_API} or https://HOST/api/v3"
        )
    try:
        this_machine = ipaddress.ip_address(host).is_loopback
    except ValueError:
        this_machine = host == "localhost"
    if scheme == "http" and not this_machine:
        raise BadConfiguration(
            f"GITHUB_API_URL {address!r} would carry the token over the network for everybody to "
            "read; write it with https://"
        )
    return Api(address)


# The token


class Credential(Protocol):
    @property
    def identity(self) -> str:
        """Equal for all credentials that share GitHub's limits. A secret, like the token."""
        ...

    def token(self, ask: Ask) -> str:
        """A valid token; `ask` sends a request for a new token. Raises NotPermitted."""
        ...

    def refused(self, token: str) -> Remedy:
        """Note that the server refused `token`, and return what may help."""
        ...


@dataclass(frozen=True, slots=True)
class Token:
    """A fixed token from the environment or from gh, which cannot be renewed."""

    secret: str = field(repr=False)
    origin: str

    def __post_init__(self) -> None:
        if not self.secret.isascii() or not self.secret.isprintable() or " " in self.secret:
            # Neither shown nor sent: the error of the HTTP library would show it.
            raise BadConfiguration(f"{self.origin} is not a token: it has characters no token has")

    @property
    def identity(self) -> str:
        return self.secret

    def token(self, _ask: Ask) -> str:
        return self.secret

    def refused(self, _token: str) -> Remedy:
        return Remedy.NONE


# Where it comes from


def credential_of(
    environment: Mapping[str, str], clock: Clock, api: Api, *, repository: str = ""
) -> Credential:
    """The first that exists: a token in a variable, a GitHub App, a token stored by gh."""
    found = (
        token_of(environment, api)
        or _app_of(environment, clock, repository)
        or _stored_by_gh(environment, api)
    )
    if found is None:
        raise NotPermitted(
            f"no token for {api.host}: set one of {', '.join(api.tokens)}, or {APP_ID} with "
            f"{KEY} or {KEY_FILE}, or log in with gh"
        )
    return found


def token_of(environment: Mapping[str, str], api: Api) -> Token | None:
    for name in api.tokens:
        if secret := environment.get(name, "").strip():
            return Token(secret, name)
    return None


def _app_of(
    environment: Mapping[str, str], clock: Clock, repository: str
) -> AppInstallation | None:
    """The App of the environment; None if no variable names an App."""
    app = environment.get(APP_ID, "").strip()
    key = environment.get(KEY, "").replace("\\n", "\n").strip()
    key_file = environment.get(KEY_FILE, "").strip()
    if not key and key_file:
        try:
            key = Path(key_file).expanduser().read_text("ascii").strip()
        except (OSError, ValueError) as flaw:
            reason = flaw.strerror if isinstance(flaw, OSError) else "it is not text"
            raise BadConfiguration(f"{KEY_FILE} {key_file} cannot be read: {reason}") from None
    if not app and not key:
        return None
    if not app or not key:
        missing = f"{KEY} or {KEY_FILE}" if app else APP_ID
        raise BadConfiguration(f"a GitHub App needs its id and its key: {missing} is not set")
    installation = environment.get(INSTALLATION, "").strip()
    if not (installation.isdecimal() or (repository and not installation)):
        raise BadConfiguration(f"{INSTALLATION} {installation!r} is not the number of one")
    return AppInstallation(app, key, clock, installation=installation, repository=repository)


def _stored_by_gh(environment: Mapping[str, str], api: Api) -> Token | None:
    """The token that gh has stored for the API's host, if any.

    gh gets the environment of git: `environment` may hold secrets from files.
    """
    program = shutil.which("gh", path=environment.get("PATH"))
    if program is None:
        return None
    try:
        asked = subprocess.run(
            [program, "auth", "token", "--hostname", api.host],
            env=git_environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GH_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    secret = asked.stdout.strip()
    return Token(secret, "gh auth token") if asked.returncode == 0 and secret else None
