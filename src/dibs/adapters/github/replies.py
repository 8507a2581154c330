"""What GitHub answered, as values: the server's time, where the next page is, what went wrong.

Knows the headers and the outer shape of a body, and nothing of issues or comments.

What GitHub refuses, in the words of the core's errors: who must act, and on what.

A refusal means that nothing was done. `Unavailable` means that nobody knows: whoever wrote must
look for what he wrote before he writes again. Limits are told apart here too; what follows from
them is decided elsewhere.
"""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from dibs.core.errors import IssueLocked, NotPermitted, Outage, Unavailable
from dibs.core.ids import IssueRef, LocalTime, ServerTime, server_time

_NEXT = re.compile(r'<([^<>]+)>\s*;[^,<]*\brel="?next"?', re.IGNORECASE)
_LONGEST_MESSAGE = 200


class Reply(Struct, frozen=True):
    """One answer of the REST API."""

    status: int
    headers: Mapping[str, str]
    """By their names in small letters."""
    body: bytes
    now: ServerTime
    """The server's time of day when it answered, in whole seconds."""
    asked_at: LocalTime
    """Ours, before the request was sent."""
    unchanged: bool = False
    """The server said that nothing has changed: the body is the one that we kept, and was free."""
    kept_at: LocalTime | None = None
    """Since when we have that body; None if it is new."""
    address: str = ""
    """Where it came from in the end, after redirects."""

    @property
    def message(self) -> str:
        """What GitHub says is wrong, short enough for an error."""
        return message_of(self.body)

    @property
    def next_page(self) -> str | None:
        """The address of the next page as GitHub names it; it is never put together by us."""
        found = _NEXT.search(self.headers.get("link", ""))
        return found[1] if found else None


class GraphqlError(Struct, frozen=True):
    """One thing that went wrong in a document; the other fields may have been done."""

    type: str
    path: tuple[str | int, ...]
    message: str


class GraphqlReply(Struct, frozen=True):
    data: Mapping[str, Any]
    """Empty if nothing was done at all."""
    errors: tuple[GraphqlError, ...]
    now: ServerTime
    asked_at: LocalTime

    def at(self, *path: str | int) -> GraphqlError | None:
        """What went wrong with this field, or within it."""
        return next((one for one in self.errors if one.path[: len(path)] == path), None)


def served_at(headers: Mapping[str, str]) -> ServerTime | None:
    """The time of the reply; None if it has none, and then it orders nothing."""
    try:
        return server_time(parsedate_to_datetime(headers.get("date", "")))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def message_of(body: bytes) -> str:
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    if not isinstance(told, dict):
        return ""
    details = [
        one.get("message") or one.get("code") if isinstance(one, dict) else one
        for one in _listed(told.get("errors"))
    ]
    said = [part for part in (told.get("message"), *details) if isinstance(part, str) and part]
    return " ".join(": ".join(said).split())[:_LONGEST_MESSAGE]


def graphql_errors(told: object) -> tuple[GraphqlError, ...]:
    return tuple(_error(one) for one in _listed(told) if isinstance(one, dict))


def _error(one: dict[str, Any]) -> GraphqlError:
    path = tuple(step for step in _listed(one.get("path")) if isinstance(step, str | int))
    message = " ".join(str(one.get("message", "")).split())[:_LONGEST_MESSAGE]
    # Where a document cannot be run at all, GitHub gives a code instead of a type.
    extensions = one.get("extensions")
    code = extensions.get("code") if isinstance(extensions, dict) else None
    return GraphqlError(str(one.get("type") or code or ""), path, message)


def _listed(told: object) -> list[Any]:
    return told if isinstance(told, list) else []


_LIMITS = (HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)
_LIMIT_WORDS = ("rate limit", "abuse detection", "too many requests")
_LOCKED_WORDS = ("locked", "commenting is disabled", "unable to comment", "cannot comment")
_FULL_WORDS = "more than 2500 comments"
_FULL = (
    "is full: GitHub takes no more than 2500 comments on an issue, from anybody",
    "what is left to do needs an issue of its own; look at who wrote so much with: dibs show",
)
_WRITING_SCOPES = frozenset({"repo", "public_repo"})
_EXHAUSTED = "RATE_LIMITED"
_WHY: Mapping[int, str] = {
    HTTPStatus.UNAUTHORIZED: "the token is mistyped, revoked or expired",
    HTTPStatus.GONE: "it was deleted, or the repository has issues turned off",
    HTTPStatus.UNPROCESSABLE_ENTITY: "GitHub takes no such content from this account",
    HTTPStatus.UNAVAILABLE_FOR_LEGAL_REASONS: "the repository is blocked for legal reasons",
}
_BROKEN_WORDS = ("something went wrong", "timeout", "timed out", "try again")


class NoGraphql(Unavailable):
    """The server has no GraphQL: what was asked can only be had over REST. Nothing was done."""


class Exhausted(Struct, frozen=True):
    """The budget of one resource is spent, until it starts anew."""


class SlowDown(Struct, frozen=True):
    """A rest is wanted from everybody who uses the token."""

    told_s: float | None
    """How long; None if the server does not say."""


def limit_in(reply: Reply) -> Exhausted | SlowDown | None:
    """Whether the refusal is about how often we ask. Then nothing was done."""
    if reply.status not in _LIMITS:
        return None
    told = reply.headers.get("retry-after", "")
    if told.isdecimal():
        return SlowDown(float(told[:9]))
    if reply.headers.get("x-ratelimit-remaining") == "0":
        return Exhausted()
    said = reply.message.lower()
    limited = reply.status == HTTPStatus.TOO_MANY_REQUESTS
    return SlowDown(None) if limited or any(word in said for word in _LIMIT_WORDS) else None


def limit_among(errors: tuple[GraphqlError, ...]) -> Exhausted | SlowDown | None:
    """The same for a document, which is refused with a status of success."""
    if any(one.type == _EXHAUSTED for one in errors):
        secondary = any("secondary" in one.message.lower() for one in errors)
        return SlowDown(None) if secondary else Exhausted()
    said = (one.message.lower() for one in errors if not one.path)
    return SlowDown(None) if any("secondary rate limit" in text for text in said) else None


def is_broken(errors: tuple[GraphqlError, ...]) -> bool:
    """Whether the server gave up in the middle of a document, and nobody knows how far it came."""
    return any(
        not one.type and not one.path and any(w in one.message.lower() for w in _BROKEN_WORDS)
        for one in errors
    )


def locked(issue: IssueRef, message: str) -> IssueLocked | None:
    """The error, if it is the conversation that takes no comments, from this account or from any.

    An issue with 2500 comments takes no more, from nobody and for ever; they can still be edited.
    """
    if not _says_locked(message):
        return None
    if _FULL_WORDS in message.lower():
        return IssueLocked(issue, *_FULL)
    return IssueLocked(issue)


def _says_locked(message: str) -> bool:
    return any(word in message.lower() for word in _LOCKED_WORDS)


def lacks_scope(reply: Reply) -> bool:
    """Whether a write is told "not found" because of a classic token's scopes.

    GitHub says so for whatever a token may not write to, also if it may read it.
    """
    wanted = _scope_set(reply.headers.get("x-accepted-oauth-scopes", ""))
    if reply.status != HTTPStatus.NOT_FOUND or not wanted:
        return False
    given = reply.headers.get("x-oauth-scopes")
    return given is not None and _scope_set(given).isdisjoint(wanted | _WRITING_SCOPES)


def _scope_set(scopes: str) -> frozenset[str]:
    return frozenset(scope.strip() for scope in scopes.split(",") if scope.strip())


def refusal_of(reply: Reply, what: str) -> Outage:
    """The error for a reply that is no success. `what`: the server and the request, for people."""
    said = f"{what}: GitHub answered {reply.status} {reply.message}".rstrip()
    if reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Unavailable(said)
    if HTTPStatus.MULTIPLE_CHOICES <= reply.status < HTTPStatus.BAD_REQUEST:
        return Unavailable(f"{said}: it points somewhere else")
    why = _why(reply)
    return NotPermitted(f"{said}: {why}" if why else said)


def _why(reply: Reply) -> str:
    match reply.status:
        case HTTPStatus.FORBIDDEN:
            return _why_forbidden(reply)
        case HTTPStatus.NOT_FOUND:
            return f"it is not there, or this token may not see it{_scopes(reply)}"
        case status:
            return _WHY.get(status, "")


def _why_forbidden(reply: Reply) -> str:
    said = reply.message.lower()
    if "archived" in said:
        return "the repository is archived, and nothing can be written to it"
    if _says_locked(said):
        return "the conversation takes no comments from this account"
    if reply.headers.get("x-github-sso", "").startswith("required"):
        return "the organisation wants the token authorised for its single sign-on"
    if "ip allow list" in said:
        return "the organisation takes requests from other addresses only"
    return f"the token may not do this{_scopes(reply)}"


def _scopes(reply: Reply) -> str:
    """What the token would need and what it has: of a classic token, or of a fine-grained one."""
    headers = reply.headers
    if needed := headers.get("x-accepted-github-permissions"):
        return f"; it needs {needed}"
    if "x-oauth-scopes" not in headers:
        return ""
    needed = headers.get("x-accepted-oauth-scopes") or "none in particular"
    given = headers["x-oauth-scopes"] or "none"
    return f"; scopes that would do: {needed}; scopes that it has: {given}"
