"""GitHub Apps: their identity, their installations, and tokens for an installation.

An App authenticates with a JWT that its key signed. Checking a JWT needs PyJWT, which is imported
only here and only then; without PyJWT every JWT is refused.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from .records import Permission, Token
from .refusal import Kind, Refusal, not_found

if TYPE_CHECKING:
    from jwt.types import Options

    from .state import State

LIFE = timedelta(hours=1)
_UNTIMED: "Options" = {"verify_exp": False, "verify_iat": False, "verify_nbf": False}
LONGEST_JWT = timedelta(minutes=10)
SLACK = timedelta(seconds=60)
"""How much GitHub's clock and an App's may differ before a JWT from the future is refused."""


@dataclass(frozen=True, slots=True)
class App:
    id: int
    slug: str
    public_key: str = field(repr=False)

    @property
    def login(self) -> str:
        return f"{self.slug}[bot]"


@dataclass(frozen=True, slots=True)
class Installation:
    id: int
    app: App
    repositories: frozenset[int]
    permissions: tuple[tuple[str, str], ...]
    created_at: datetime


class Apps:
    def __init__(self, state: "State") -> None:
        self._state = state
        self._lock = threading.Lock()
        self._apps: dict[str, App] = {}
        self._installations: dict[int, Installation] = {}

    def install(
        self,
        slug: str,
        public_key: str,
        repositories: Sequence[str],
        *,
        permissions: Sequence[tuple[str, str]] = (("issues", "write"), ("metadata", "read")),
    ) -> Installation:
        """Create the App if it is new, and install it on these repositories."""
        state = self._state
        with self._lock:
            app = next((one for one in self._apps.values() if one.slug == slug), None)
            if app is None:
                app = App(state.next_id("small"), slug, public_key)
                self._apps[str(app.id)] = app
        state.add_user(app.login, kind="Bot")
        for name in repositories:
            state.grant(name, app.login, Permission.WRITE)
        where = frozenset(state.named(name).id for name in repositories)
        number = state.next_id("small")
        made = Installation(number, app, where, tuple(permissions), state.stamp())
        self._installations[number] = made
        return made

    def proven(self, jwt: str | None) -> App:
        """The App whose key signed this JWT."""
        if jwt is None:
            raise _unproven("A JSON web token could not be decoded")
        claims, app = self._decoded(jwt)
        now = self._state.now()
        issued, ends = _instant(claims, "iat"), _instant(claims, "exp")
        if ends <= now:
            raise _unproven(
                "'Expiration time' claim ('exp') must be a numeric value representing the future "
                "time at which the assertion expires"
            )
        if ends > now + LONGEST_JWT + SLACK:
            raise _unproven("'Expiration time' claim ('exp') is too far in the future")
        if issued > now + SLACK:
            raise _unproven("'Issued at' claim ('iat') must be an Integer in the past")
        return app

    def _decoded(self, text: str) -> tuple[dict[str, Any], App]:
        try:
            import jwt  # noqa: PLC0415 - only for Apps
        except ImportError:
            raise _unproven("A JSON web token could not be decoded (PyJWT is missing)") from None
        # The code above checks the JWT's times with the fake's clock.
        try:
            told = jwt.decode(text, options={"verify_signature": False, **_UNTIMED})
            app = self._apps.get(str(told.get("iss")))
            if app is None:
                raise _unproven("Integration not found")
            claims = jwt.decode(text, app.public_key, algorithms=["RS256"], options={**_UNTIMED})
        except jwt.PyJWTError:
            raise _unproven("A JSON web token could not be decoded") from None
        return dict(claims), app

    def on(self, app: App, repository_id: int) -> Installation:
        for one in self._installations.values():
            if one.app == app and repository_id in one.repositories:
                return one
        raise not_found()

    def installation(self, app: App, number: int) -> Installation:
        found = self._installations.get(number)
        if found is None or found.app != app:
            raise not_found()
        return found

    def all_of(self, app: App) -> list[Installation]:
        return [one for one in self._installations.values() if one.app == app]

    def token(self, installation: Installation) -> Token:
        """A new token; it is valid for an hour, for these repositories only."""
        given = dict(installation.permissions)
        kinds = ("issues", "contents", "pull_requests", "repository_hooks")
        lacks = frozenset(f"{kind}:write" for kind in kinds if given.get(kind) != "write")
        return self._state.add_token(
            f"ghs_{token_hex(18)}",
            installation.app.login,
            scopes=None,
            lacks=lacks,
            repositories=installation.repositories,
            expires_at=self._state.stamp() + LIFE,
        )


def _instant(claims: dict[str, Any], name: str) -> datetime:
    value = claims.get(name)
    if not isinstance(value, int | float):
        raise _unproven(f"'{name}' claim must be a number")
    return datetime.fromtimestamp(value, UTC)


def _unproven(message: str) -> Refusal:
    return Refusal(Kind.UNAUTHENTICATED, message)
