"""A GitHub App as a credential: its tokens last an hour, and are renewed before they end.

Proves itself with a short-lived signature made of the App's key. Knows no HTTP: whoever has a
connection sends what it wants sent. Our time of day is only a first guess: the server's is taken
as soon as it is known, and how long a token lasts is counted on the local clock.
"""

import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from dibs.adapters.clocks import wall_clock
from dibs.adapters.github.replies import message_of, served_at
from dibs.core.errors import BadConfiguration, NotPermitted, RateLimited, Unavailable
from dibs.core.ids import ZERO, LocalTime, local_after, server_time
from dibs.ports.clock import Clock

APP_ID, KEY, KEY_FILE = "GITHUB_APP_ID", "GITHUB_APP_PRIVATE_KEY", "GITHUB_APP_PRIVATE_KEY_FILE"
INSTALLATION = "GITHUB_APP_INSTALLATION_ID"
_JWT_S = 540
"""GitHub takes ten minutes at most, by its own clock."""
_JWT_BACK_S = 60
_RENEW_BEFORE = timedelta(minutes=5)
_SHORTEST_USE = timedelta(seconds=30)
_AGAIN_S = 30.0
_SUCCESSES = (200, 201)

Shape = TypeVar("Shape")


class Answered(Struct, frozen=True):
    """What the server said to a credential that asked for a token."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    asked_at: LocalTime

    def __repr__(self) -> str:
        return f"Answered(status={self.status})"  # the body may be a token

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("status", self.status)]


Ask = Callable[[str, str, str], Answered]
"""Sends a verb to a path with a bearer, and nothing else. Raises Unavailable or RateLimited."""


class AppInstallation:
    """The App where it is installed. A `Credential`."""

    def __init__(
        self, app: str, key: str, clock: Clock, *, installation: str = "", repository: str = ""
    ) -> None:
        self._app, self._key, self._clock = app, key, clock
        self._installation, self._repository = installation, repository
        # An App is installed once for each owner, for some or all of his repositories.
        self._place = installation or repository.partition("/")[0].lower()
        self._lock = threading.Lock()
        self._token, self._renew_at, self._until = "", LocalTime(0.0), LocalTime(0.0)
        self._ahead = ZERO
        """By how much the server's time of day is ahead of ours."""

    def __repr__(self) -> str:
        return f"AppInstallation(app={self._app!r}, installation={self._installation!r})"

    @property
    def identity(self) -> str:
        """Its limits are those of the installation, whichever token is used."""
        return f"app {self._app} at {self._place}"

    def token(self, ask: Ask) -> str:
        with self._lock:  # whoever comes while one asks waits for its answer
            now = self._clock.now()
            if not self._token or now >= self._renew_at:
                try:
                    self._renew(ask)
                except (Unavailable, RateLimited):
                    if not self._token or now >= self._until:
                        raise
                    self._renew_at = LocalTime(now + _AGAIN_S)  # the old one is still good
            return self._token

    def refused(self, token: str) -> bool:
        with self._lock:
            if token == self._token:
                self._token = ""
            return True

    def _renew(self, ask: Ask) -> None:
        if not self._installation:
            where = f"/repos/{self._repository}/installation"
            found = self._as_app(ask, "GET", where, _Installation)[0]
            self._installation = str(found.id)
        where = f"/app/installations/{self._installation}/access_tokens"
        given, answered = self._as_app(ask, "POST", where, _Given)
        self._token = given.token
        now = served_at(answered.headers)
        lasts = server_time(given.expires_at) - now if now else _RENEW_BEFORE * 2
        early = max(lasts - _RENEW_BEFORE, _SHORTEST_USE)
        self._renew_at = local_after(answered.asked_at, early)
        self._until = local_after(answered.asked_at, max(lasts - _SHORTEST_USE, early))

    def _as_app(self, ask: Ask, verb: str, path: str, shape: type[Shape]) -> tuple[Shape, Answered]:
        answered = ask(verb, path, self._signed(wall_clock() + self._ahead))
        if answered.status == 401 and (now := served_at(answered.headers)) is not None:
            # Our time of day may be wrong; theirs is what counts, and now it is known.
            self._ahead = timedelta(seconds=now.timestamp() - wall_clock().timestamp())
            answered = ask(verb, path, self._signed(now))
        if answered.status not in _SUCCESSES:
            raise self._refusal(path, answered)
        try:
            return msgspec.json.decode(answered.body, type=shape), answered
        except msgspec.MsgspecError as flaw:
            raise Unavailable("GitHub answered no token to the App") from flaw

    def _refusal(self, path: str, answered: Answered) -> NotPermitted | Unavailable:
        said = f"GitHub answered {answered.status} {message_of(answered.body)}".rstrip()
        limited = "retry-after" in answered.headers or "rate limit" in said.lower()
        if answered.status >= 500 or answered.status == 429 or limited:
            return Unavailable(f"{said} to the App {self._app}")
        if answered.status == 404 and path.endswith("/installation"):
            return NotPermitted(
                f"{said}: the App {self._app} is not installed for {self._repository}; "
                "an owner of the repository installs it"
            )
        return NotPermitted(
            f"{said}: the App {self._app} gets no token; "
            f"look at {APP_ID}, its key and {INSTALLATION}"
        )

    def _signed(self, now: datetime) -> str:
        import jwt

        at = int(now.timestamp())
        claims = {"iat": at - _JWT_BACK_S, "exp": at + _JWT_S, "iss": self._app}
        try:
            return jwt.encode(claims, self._key, algorithm="RS256")
        except (ValueError, TypeError, jwt.PyJWTError):
            raise BadConfiguration(
                f"the key of the App {self._app} is not a private RSA key; see {KEY} and {KEY_FILE}"
            ) from None  # what the library says may quote the key


class _Installation(Struct):
    id: int


class _Given(Struct):
    token: str
    expires_at: datetime

    def __repr__(self) -> str:
        return f"_Given(expires_at={self.expires_at})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("expires_at", self.expires_at)]
