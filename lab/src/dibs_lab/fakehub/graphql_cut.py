"""A document that GraphQL gave up: what is left of its data, and the errors beside that.

The shapes are those that others reported of GitHub since it limits the resources of a document:
data with holes and an error for each hole, a first level that is null, errors that do not name the
hole, and errors that name nothing at all.
"""

from collections.abc import Iterator
from typing import Any, assert_never

from graphql import GraphQLNonNull, GraphQLObjectType

from .faults import Cut
from .graphql_schema import served

_EXCEEDED = {
    "type": "RESOURCE_LIMITS_EXCEEDED",
    "message": "Resource limits for this query exceeded.",
}

Path = tuple[str | int, ...]


def cut(body: dict[str, Any], how: Cut) -> dict[str, Any]:
    """The answer without what was not reached; changes `body`."""
    data = body.get("data") or {}
    lists = list(_lists(data, ()))
    paths = [(*path, "nodes") for path, _, _ in lists]
    first: list[Path] = [(name,) for name in data]
    told: list[Path | None]
    match how:
        case Cut.DEEP:
            told = [*paths] or [*first]
            for _, parent, name in lists:
                parent[name]["nodes"] = None
        case Cut.BUBBLED:
            told = [*paths[-1:]] or [*first]
            data.update(dict.fromkeys(data))
        case Cut.PREFIX | Cut.PATHLESS:
            told = [*first[:1]] if how is Cut.PREFIX else [None]
            for _, parent, name in lists:
                if name in _nullable():
                    parent[name] = None
        case _:
            assert_never(how)
    errors = [_EXCEEDED if path is None else {**_EXCEEDED, "path": list(path)} for path in told]
    return {**body, "errors": [*body.get("errors", ()), *errors]}


def _lists(found: Any, path: Path) -> Iterator[tuple[Path, dict[str, Any], str]]:
    """Every connection that holds no other one, with its path, its parent and its name."""
    if isinstance(found, list):
        for place, one in enumerate(found):
            yield from _lists(one, (*path, place))
    elif isinstance(found, dict):
        for name, one in found.items():
            below = list(_lists(one, (*path, name)))
            yield from below
            if isinstance(one, dict) and "nodes" in one and not below:
                yield (*path, name), found, name


def _nullable() -> set[str]:
    """The connections of an issue that may be null."""
    issue = served().type_map["Issue"]
    assert isinstance(issue, GraphQLObjectType)
    return {
        name for name, field in issue.fields.items() if not isinstance(field.type, GraphQLNonNull)
    }
