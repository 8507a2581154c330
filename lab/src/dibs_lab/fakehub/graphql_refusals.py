"""GraphQL's refusals: an error beside the data, with GitHub's `type` at its top level."""

from collections.abc import Mapping

from graphql import GraphQLError

from .records import Viewer
from .refusal import ARCHIVED, NO_BY_PERSON, Kind, Refusal


class Complaint(Exception):
    """A field has no answer."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def no_node(node_id: str) -> Complaint:
    return Complaint("NOT_FOUND", f"Could not resolve to a node with the global id of '{node_id}'.")


def worded(refusal: Refusal, viewer: Viewer, act: str, subject: str) -> Complaint:
    """A refusal of the state, in the words of a mutation on that node."""
    match refusal.kind:
        case Kind.NOT_FOUND | Kind.GONE | Kind.MOVED:
            return no_node(subject)
        case Kind.FORBIDDEN if refusal.message == ARCHIVED:
            return Complaint("UNPROCESSABLE", ARCHIVED.rstrip("."))
        case Kind.FORBIDDEN if refusal.message == NO_BY_PERSON and _classic(viewer):
            name = act[:1].upper() + act[1:]
            text = f"{viewer.login} does not have the correct permissions to execute `{name}`"
            return Complaint("FORBIDDEN", text)
        case Kind.INSUFFICIENT_SCOPES:
            text = (
                "Your token has not been granted the required scopes to execute this query. "
                f"The '{act}' field requires one of the following scopes: ['public_repo', 'repo']."
            )
            return Complaint("INSUFFICIENT_SCOPES", text)
        case Kind.UNPROCESSABLE | Kind.CONFLICT | Kind.NOT_ALLOWED:
            return Complaint("UNPROCESSABLE", _sentences(refusal))
        case Kind.FORBIDDEN | Kind.UNAUTHENTICATED:
            return Complaint("FORBIDDEN", refusal.message)


def rate_limited(viewer: Viewer) -> dict[str, object]:
    """The whole answer: GraphQL's refusal since 2026, in place of the type RATE_LIMITED."""
    number = viewer.user.id if viewer.user else 0
    text = f"API rate limit already exceeded for user ID {number}."
    return {"errors": [{"type": "RATE_LIMIT", "code": "graphql_rate_limit", "message": text}]}


def unknown_field(name: str) -> dict[str, object]:
    """The whole answer of an older server, whose schema has no such field of an issue."""
    told = {"code": "undefinedField", "typeName": "Issue", "fieldName": name}
    text = f"Field '{name}' doesn't exist on type 'Issue'"
    return {"errors": [{"path": ["fragment", name], "extensions": told, "message": text}]}


def _classic(viewer: Viewer) -> bool:
    return viewer.token is not None and viewer.token.scopes is not None


def _sentences(refusal: Refusal) -> str:
    return ", ".join(map(_sentence, refusal.errors)) or refusal.message


def _sentence(error: Mapping[str, object]) -> str:
    """The error `missing_field` of `title` becomes `Title can't be blank`."""
    if "message" in error:
        text = str(error["message"])
        return text[:1].upper() + text[1:]
    ends = {"missing_field": "can't be blank", "already_exists": "has already been taken"}
    field = str(error["field"]).replace("_", " ").capitalize()
    return f"{field} {ends.get(str(error['code']), 'is invalid')}"


def formatted(error: GraphQLError) -> dict[str, object]:
    """An error in GitHub's layout. An exception that is not a refusal is a bug, and is raised."""
    cause = error.original_error
    if cause is not None and not isinstance(cause, Complaint | GraphQLError):
        raise cause
    told: dict[str, object] = {"type": cause.kind} if isinstance(cause, Complaint) else {}
    if error.path is not None:
        told["path"] = list(error.path)
    if error.locations:
        told["locations"] = [place.formatted for place in error.locations]
    return {**told, "message": error.message}
