"""Which server is asked, and with what right: the one place that looks for a token.

An explicit token wins over a GitHub App, an App over what the program gh has stored. A credential
is shown by no repr and told by no error. Knows no HTTP.
"""

import ipaddress
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from dibs.adapters.github.app import APP_ID, INSTALLATION, KEY, KEY_FILE, AppInstallation, Ask
from dibs.core.errors import BadConfiguration, NotPermitted
from dibs.ports.clock import Clock

TOKENS = ("DIBS_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN")
"""The variables for a token; the first that is set counts."""
_API = "https://api.github.com"
_GH_S = 10.0


# The server


class Api(Struct, frozen=True):
    """Where GitHub's API is, or that of a GitHub Enterprise server."""

    rest: str
    """Without a slash at its end."""

    @property
    def graphql(self) -> str:
        if self.rest.endswith("/api/v3"):
            return self.rest.removesuffix("/v3") + "/graphql"
        return f"{self.rest}/graphql"

    @property
    def host(self) -> str:
        """What people call the server, and what gh keeps tokens for."""
        return urlsplit(self.rest).netloc.removeprefix("api.")

    def owns(self, address: str) -> bool:
        """Whether an address is of this server, so that it may be told the token."""
        return urlsplit(address)[:2] == urlsplit(self.rest)[:2]


def api_of(environment: Mapping[str, str]) -> Api:
    return api_at(environment.get("GITHUB_API_URL") or _API)


def api_at(address: str) -> Api:
    """Raises BadConfiguration, which shows no password."""
    address = address.strip().rstrip("/")
    if not set(address).isdisjoint("@?#"):
        raise BadConfiguration(
            "the address of GitHub's API (GITHUB_API_URL) takes no account and no query; "
            "the token has a variable of its own"
        )
    if not _is_address(address):
        raise BadConfiguration(
            f"GITHUB_API_URL {address!r} is not the address of an API; "
            f"it looks like {_API} or https://HOST/api/v3"
        )
    parts = urlsplit(address)
    if parts.scheme == "http" and not _is_this_machine(parts.hostname or ""):
        raise BadConfiguration(
            f"GITHUB_API_URL {address!r} would carry the token over the network for everybody to "
            "read; write it with https://"
        )
    return Api(address)


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_address(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # what is no port is found out when it is asked for
        return False


# The right


class Credential(Protocol):
    @property
    def identity(self) -> str:
        """The same for everybody who shares its limits. A secret, like the token."""
        ...

    def token(self, ask: Ask) -> str:
        """A token that is good now, or NotPermitted."""
        ...

    def refused(self, token: str) -> bool:
        """The server does not take this token. True if another can be had."""
        ...


@dataclass(frozen=True, slots=True)
class Token:
    """A token that somebody gave us: there is no other."""

    secret: str = field(repr=False)
    origin: str

    def __post_init__(self) -> None:
        if not self.secret.isascii() or not self.secret.isprintable() or " " in self.secret:
            # Never shown, and never sent: the error of the HTTP library would show it.
            raise BadConfiguration(f"{self.origin} is not a token: it has characters no token has")

    @property
    def identity(self) -> str:
        return self.secret

    def token(self, _ask: Ask) -> str:
        return self.secret

    def refused(self, _token: str) -> bool:
        return False


# Where it comes from


def credential_of(
    environment: Mapping[str, str], clock: Clock, api: Api, *, repository: str = ""
) -> Credential:
    """The first that is there: a token in a variable, a GitHub App, what gh has stored."""
    found = (
        token_of(environment)
        or _app_of(environment, clock, repository)
        or _stored_by_gh(environment, api)
    )
    if found is None:
        raise NotPermitted(
            f"no token for {api.host}: set one of {', '.join(TOKENS)}, or {APP_ID} with {KEY} or "
            f"{KEY_FILE}, or log in with gh"
        )
    return found


def token_of(environment: Mapping[str, str]) -> Token | None:
    for name in TOKENS:
        if secret := environment.get(name, "").strip():
            return Token(secret, name)
    return None


def _app_of(
    environment: Mapping[str, str], clock: Clock, repository: str
) -> AppInstallation | None:
    app = environment.get(APP_ID, "").strip()
    key = environment.get(KEY, "").replace("\\n", "\n").strip() or _key_in_file(environment)
    if not app and not key:
        return None
    if not app or not key:
        missing = f"{KEY} or {KEY_FILE}" if app else APP_ID
        raise BadConfiguration(f"a GitHub App needs its id and its key: {missing} is not set")
    installation = environment.get(INSTALLATION, "").strip()
    if not (installation.isdecimal() or (repository and not installation)):
        raise BadConfiguration(f"{INSTALLATION} {installation!r} is not the number of one")
    return AppInstallation(app, key, clock, installation=installation, repository=repository)


def _key_in_file(environment: Mapping[str, str]) -> str:
    place = environment.get(KEY_FILE, "").strip()
    if not place:
        return ""
    try:
        return Path(place).expanduser().read_text("ascii").strip()
    except (OSError, ValueError) as flaw:
        reason = flaw.strerror if isinstance(flaw, OSError) else "it is not text"
        raise BadConfiguration(f"{KEY_FILE} {place} cannot be read: {reason}") from None


def _stored_by_gh(environment: Mapping[str, str], api: Api) -> Token | None:
    """It gives a token only for the host it was stored for."""
    program = shutil.which("gh", path=environment.get("PATH"))
    if program is None:
        return None
    try:
        asked = subprocess.run(
            [program, "auth", "token", "--hostname", api.host],
            env=dict(environment),
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
