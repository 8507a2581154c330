"""What GitHub answered, as values: the server's time, where the next page is, what went wrong.

Knows the headers and the outer shape of a body, and nothing of issues or comments.
"""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec
from msgspec import Struct

from dibs.core.ids import LocalTime, ServerTime, server_time

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
