"""What GitHub refuses, in the words of the core's errors: who must act, and on what.

A refusal means that nothing was done. `Unavailable` means that nobody knows: whoever wrote must
look for what he wrote before he writes again. Limits are told apart here too; what follows from
them is decided elsewhere.
"""

from collections.abc import Mapping
from http import HTTPStatus

from msgspec import Struct

from dibs.adapters.github.replies import GraphqlError, Reply
from dibs.core.errors import IssueLocked, NotPermitted, Outage, Unavailable
from dibs.core.ids import IssueRef

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
    wanted = _listed(reply.headers.get("x-accepted-oauth-scopes", ""))
    if reply.status != HTTPStatus.NOT_FOUND or not wanted:
        return False
    given = reply.headers.get("x-oauth-scopes")
    return given is not None and _listed(given).isdisjoint(wanted | _WRITING_SCOPES)


def _listed(scopes: str) -> frozenset[str]:
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
