"""GitHub's replies as values: server time, next page, and the error that a refusal means.

Reads the headers and the outer shape of a body; knows nothing of issues or comments.

A refusal (`NotPermitted`, `IssueLocked`) means that nothing was done. `Unavailable` means that
nobody knows: a writer must look for its write before it writes again. Replies about limits are
recognised here too; `client` decides what follows from them.
"""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from dibs.core.errors import (
    IssueHidden,
    IssueLocked,
    NotPermitted,
    Outage,
    Unavailable,
    Unconfirmed,
)
from dibs.core.ids import IssueRef, LocalTime, ServerTime, server_time

_NEXT = re.compile(r'<([^<>]+)>\s*;[^,<]*\brel="?next"?', re.IGNORECASE)
_LONGEST_MESSAGE = 200


class Reply(Struct, frozen=True):
    """An answer of the REST API."""

    status: int
    headers: Mapping[str, str]
    """By name, in lower case."""
    body: bytes
    now: ServerTime
    """The server's time of day when it answered, in whole seconds."""
    asked_at: LocalTime
    """Our clock, before the request was sent."""
    unchanged: bool = False
    """The server answered 304: the body is our cached one, and the request cost nothing."""
    kept_at: LocalTime | None = None
    """Since when we have the cached body; None: the body is new."""

    @property
    def message(self) -> str:
        """GitHub's description of the error, shortened."""
        return message_of(self.body)

    @property
    def next_page(self) -> str | None:
        """The address of the next page from the `Link` header; we never build such an address."""
        found = _NEXT.search(self.headers.get("link", ""))
        return found[1] if found else None


class GraphqlError(Struct, frozen=True):
    """An error of a GraphQL document; further fields of the document may have succeeded."""

    type: str
    path: tuple[str | int, ...]
    message: str


class GraphqlReply(Struct, frozen=True):
    data: Mapping[str, Any]
    """Empty if no field was carried out."""
    errors: tuple[GraphqlError, ...]
    now: ServerTime
    asked_at: LocalTime

    def at(self, *path: str | int) -> GraphqlError | None:
        """The first error at the field `path` or below."""
        return next((error for error in self.errors if error.path[: len(path)] == path), None)

    def flaws(self, *path: str | int) -> list[GraphqlError]:
        """The errors which may concern the field `path`: at the path, below, above, or without one.

        After GitHub gives up a document, the errors need not name the missing parts.
        """
        return [
            error
            for error in self.errors
            if all(one == other for one, other in zip(error.path, path, strict=False))
        ]


def served_at(headers: Mapping[str, str]) -> ServerTime | None:
    """The time in the reply's `Date` header; None if invalid: the reply cannot be ordered."""
    try:
        return server_time(parsedate_to_datetime(headers.get("date", "")))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def message_of(body: bytes) -> str:
    """GitHub's error message and its details in one line; empty if the body has none."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    if not isinstance(answer, dict):
        return ""
    details = [
        error.get("message") or error.get("code") if isinstance(error, dict) else error
        for error in _list_or_empty(answer.get("errors"))
    ]
    parts = [part for part in (answer.get("message"), *details) if isinstance(part, str) and part]
    return " ".join(": ".join(parts).split())[:_LONGEST_MESSAGE]


def graphql_errors(listed: object) -> tuple[GraphqlError, ...]:
    """The field `errors` of a GraphQL answer as values."""
    errors = []
    for error in _list_or_empty(listed):
        if isinstance(error, dict):
            steps = _list_or_empty(error.get("path"))
            path = tuple(step for step in steps if isinstance(step, str | int))
            message = " ".join(str(error.get("message", "")).split())[:_LONGEST_MESSAGE]
            # If a document cannot be run at all, GitHub gives a code instead of a type.
            extensions = error.get("extensions")
            code = extensions.get("code") if isinstance(extensions, dict) else error.get("code")
            errors.append(GraphqlError(str(error.get("type") or code or ""), path, message))
    return tuple(errors)


def _list_or_empty(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


_LIMITS = (HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)
_LIMIT_WORDS = ("rate limit", "abuse detection", "too many requests")
_TOO_QUICKLY = "submitted too quickly"
_NO_NODE = "could not resolve to a node"
"""A replica of GitHub may not know yet what was just made."""
_DOUBTFUL = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.UNPROCESSABLE_ENTITY,
)
_LOCKED_WORDS = ("locked", "commenting is disabled", "unable to comment", "cannot comment")
_FULL_WORDS = "more than 2500 comments"
_FULL = (
    "is full: GitHub takes no more than 2500 comments on an issue, from anybody",
    "what is left to do needs an issue of its own; look at who wrote so much with: dibs show",
)
_WRITING_SCOPES = frozenset({"repo", "public_repo"})
_EXHAUSTED = frozenset({"RATE_LIMITED", "RATE_LIMIT", "graphql_rate_limit"})
_TOO_MUCH = ("RESOURCE_LIMITS_EXCEEDED", "MAX_NODE")
_WHY: Mapping[int, str] = {
    HTTPStatus.UNAUTHORIZED: "the token is mistyped, revoked or expired",
    HTTPStatus.GONE: "it was deleted, or the repository has issues turned off",
    HTTPStatus.UNPROCESSABLE_ENTITY: "GitHub takes no such content from this account",
    HTTPStatus.UNAVAILABLE_FOR_LEGAL_REASONS: "the repository is blocked for legal reasons",
}
_BROKEN_WORDS = ("something went wrong", "timeout", "timed out", "try again")


class NoGraphql(Unavailable):
    """The server has no GraphQL, only REST. The document was not carried out."""


class TooMuch(Unavailable):
    """GitHub gave a GraphQL document up: it asked for too much. Any part of it may be missing."""


class Doubted(Exception):
    """A refusal in a GraphQL reply of status 200, which may be a mistake of GitHub."""

    def __init__(self, refusal: NotPermitted | IssueHidden) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class Exhausted(Struct, frozen=True):
    """The budget of a resource is spent until the next window."""


class SlowDown(Struct, frozen=True):
    """GitHub wants a rest from all users of the token."""

    told_s: float | None
    """For how many seconds; None: the server named no time."""


def limit_in(reply: Reply) -> Exhausted | SlowDown | None:
    """The limit that the reply reports, if any; then GitHub did not carry out the request."""
    if reply.status == HTTPStatus.UNPROCESSABLE_ENTITY:
        return SlowDown(None) if _TOO_QUICKLY in reply.message.lower() else None
    if reply.status not in _LIMITS:
        return None
    retry_after = reply.headers.get("retry-after", "")
    if retry_after.isdecimal():
        return SlowDown(float(retry_after[:9]))
    if reply.headers.get("x-ratelimit-remaining") == "0":
        return Exhausted()
    message = reply.message.lower()
    limited = reply.status == HTTPStatus.TOO_MANY_REQUESTS
    return SlowDown(None) if limited or any(word in message for word in _LIMIT_WORDS) else None


def limit_among(errors: tuple[GraphqlError, ...], reply: Reply) -> Exhausted | SlowDown | None:
    """The limit that refused a GraphQL document, if any: GitHub answers 200 with errors.

    If the headers say that some of the budget is left, to wait for the next window may be an hour
    too long.
    """
    if any(error.type in _EXHAUSTED for error in errors):
        secondary = any("secondary" in error.message.lower() for error in errors)
        left = reply.headers.get("x-ratelimit-remaining", "0") != "0"
        return SlowDown(None) if secondary or left else Exhausted()
    if any(_TOO_QUICKLY in error.message.lower() for error in errors):
        return SlowDown(None)
    messages = (error.message.lower() for error in errors if not error.path)
    return SlowDown(None) if any("secondary rate limit" in text for text in messages) else None


def asked_too_much(errors: tuple[GraphqlError, ...]) -> bool:
    """Whether GitHub gave up the document for its size, with no data or with a part of them."""
    return any(error.type.startswith(_TOO_MUCH) for error in errors)


def is_broken(errors: tuple[GraphqlError, ...]) -> bool:
    """Whether the server gave up inside a document, so that any part may have been carried out."""
    return any(
        not error.type
        and not error.path
        and any(word in error.message.lower() for word in _BROKEN_WORDS)
        for error in errors
    )


def locked(issue: IssueRef, message: str) -> IssueLocked | None:
    """The error if `message` means: the issue takes no comments from this account, or from any.

    An issue with 2500 comments never takes more, from any account; edits remain possible.
    """
    if not _says_locked(message):
        return None
    return IssueLocked(issue, *(_FULL if _FULL_WORDS in message.lower() else ()))


def _says_locked(message: str) -> bool:
    return any(word in message.lower() for word in _LOCKED_WORDS)


def lacks_scope(reply: Reply) -> bool:
    """Whether a write was answered "not found" because of a classic token's scopes.

    GitHub answers "not found" if a token may not write, even if the token may read.
    """
    wanted = _scope_set(reply.headers.get("x-accepted-oauth-scopes", ""))
    if reply.status != HTTPStatus.NOT_FOUND or not wanted:
        return False
    given = reply.headers.get("x-oauth-scopes")
    return given is not None and _scope_set(given).isdisjoint(wanted | _WRITING_SCOPES)


def _scope_set(scopes: str) -> frozenset[str]:
    return frozenset(scope.strip() for scope in scopes.split(",") if scope.strip())


def is_doubtful(reply: Reply) -> bool:
    """Whether GitHub may have refused by mistake: the reply names no reason of its own."""
    if reply.status not in _DOUBTFUL or lacks_scope(reply):
        return False
    return reply.status != HTTPStatus.FORBIDDEN or _known_reason(reply) is None


def refusal_of(reply: Reply, what: str) -> Outage:
    """The error for a reply without success. `what`: the server and the request, for people."""
    text = f"{what}: GitHub answered {reply.status} {reply.message}".rstrip()
    if reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Unavailable(text)
    if HTTPStatus.MULTIPLE_CHOICES <= reply.status < HTTPStatus.BAD_REQUEST:
        return Unavailable(f"{text}: it points somewhere else")
    if reply.status == HTTPStatus.UNPROCESSABLE_ENTITY and _NO_NODE in text.lower():
        return Unconfirmed(text)
    match reply.status:
        case HTTPStatus.FORBIDDEN:
            why = _known_reason(reply) or f"the token may not do this{_scopes(reply)}"
        case HTTPStatus.NOT_FOUND:
            why = f"it is not there, or this token may not see it{_scopes(reply)}"
        case status:
            why = _WHY.get(status, "")
    return NotPermitted(f"{text}: {why}" if why else text)


def _known_reason(reply: Reply) -> str | None:
    """Why GitHub forbids the request, if the reply says so; None if the token lacks a right."""
    message = reply.message.lower()
    if "archived" in message:
        return "the repository is archived, and nothing can be written to it"
    if _says_locked(message):
        return "the conversation takes no comments from this account"
    if reply.headers.get("x-github-sso", "").startswith("required"):
        return "the organisation wants the token authorised for its single sign-on"
    if "ip allow list" in message:
        return "the organisation takes requests from other addresses only"
    return None


def _scopes(reply: Reply) -> str:
    """The scopes that the token needs and has (classic), or the permissions that it needs."""
    headers = reply.headers
    if needed := headers.get("x-accepted-github-permissions"):
        return f"; it needs {needed}"
    if "x-oauth-scopes" not in headers:
        return ""
    needed = headers.get("x-accepted-oauth-scopes") or "none in particular"
    given = headers["x-oauth-scopes"] or "none"
    return f"; scopes that would do: {needed}; scopes that it has: {given}"
