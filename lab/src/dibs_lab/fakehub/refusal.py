"""What the fake refuses, in GitHub's words: one exception for REST and GraphQL.

REST answers with `status`, `message` and `errors`; GraphQL with an error of `type` and `message`.
"""

from collections.abc import Mapping
from enum import StrEnum


class Kind(StrEnum):
    """GraphQL's names of errors, where it has one."""

    UNAUTHENTICATED = "UNAUTHENTICATED"
    FORBIDDEN = "FORBIDDEN"
    INSUFFICIENT_SCOPES = "INSUFFICIENT_SCOPES"
    NOT_FOUND = "NOT_FOUND"
    MOVED = "MOVED"
    GONE = "GONE"
    NOT_ALLOWED = "NOT_ALLOWED"
    CONFLICT = "CONFLICT"
    UNPROCESSABLE = "UNPROCESSABLE"


_STATUS = {
    Kind.UNAUTHENTICATED: 401,
    Kind.FORBIDDEN: 403,
    Kind.INSUFFICIENT_SCOPES: 404,  # of a classic token; headers say which scopes would do
    Kind.NOT_FOUND: 404,
    Kind.MOVED: 301,
    Kind.GONE: 410,
    Kind.NOT_ALLOWED: 405,
    Kind.CONFLICT: 409,
    Kind.UNPROCESSABLE: 422,
}

NO_BY_PERSON = "Resource not accessible by personal access token"
NO_BY_APP = "Resource not accessible by integration"
NO_RIGHTS = "Must have admin rights to Repository."
ARCHIVED = "Repository was archived so is read-only."
LOCKED = "Unable to create comment because issue is locked."
TOO_QUICKLY = "was submitted too quickly"
NO_NODE = "Could not resolve to a node with the global id of 'I_kwDOnew'."
FULL = "Commenting is disabled on issues with more than 2500 comments"


class Refusal(Exception):
    """A request that was understood and refused."""

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        errors: tuple[Mapping[str, object], ...] = (),
        location: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.errors = errors
        self.location = location
        """The new place, as a path below the API's address; only with `MOVED`."""

    @property
    def status(self) -> int:
        return _STATUS[self.kind]


def not_found(message: str = "Not Found") -> Refusal:
    return Refusal(Kind.NOT_FOUND, message)


def forbidden(message: str) -> Refusal:
    return Refusal(Kind.FORBIDDEN, message)


def gone(message: str) -> Refusal:
    return Refusal(Kind.GONE, message)


def moved(location: str) -> Refusal:
    return Refusal(Kind.MOVED, "Moved Permanently", location=location)


def unprocessable(message: str) -> Refusal:
    return Refusal(Kind.UNPROCESSABLE, message)


def invalid(resource: str, field: str, code: str, message: str | None = None) -> Refusal:
    """`Validation Failed`, with the one invalid field."""
    error: dict[str, object] = {"resource": resource, "field": field, "code": code}
    if message is not None:
        error["message"] = message
    return Refusal(Kind.UNPROCESSABLE, "Validation Failed", errors=(error,))
