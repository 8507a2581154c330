"""The part of GitHub's GraphQL schema that the fake has, from the files in `schema/`.

Types, fields, arguments and nullability are spelled as GitHub's; a test compares them with the
published schema. `newer.graphql` adds what gh asks for and GitHub has not published.
"""

from collections.abc import Callable
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any

from graphql import GraphQLError, GraphQLSchema, build_schema
from graphql.type import GraphQLScalarType

FILES = ("query", "issues", "lists", "timeline", "mutations")
NEWER = "newer"
GREATEST_INT = 2**31 - 1
"""The largest Int of GraphQL. Larger ids are available only as `fullDatabaseId`."""


@cache
def published() -> GraphQLSchema:
    """The schema that dibs' own documents may use, without `assignedActors`."""
    return _built(*FILES)


@cache
def served() -> GraphQLSchema:
    """The schema that the fake serves."""
    return _built(*FILES, NEWER)


def _built(*names: str) -> GraphQLSchema:
    folder = resources.files(__package__) / "schema"
    schema = build_schema("\n".join((folder / f"{name}.graphql").read_text() for name in names))
    _scalar(schema, "DateTime", serialize=_instant, parse_value=_parsed)
    _scalar(schema, "BigInt", serialize=str)  # GitHub sends it as a string
    _scalar(schema, "URI", serialize=str)
    return schema


def _scalar(schema: GraphQLSchema, name: str, **ways: Callable[[Any], object]) -> None:
    found = schema.type_map[name]
    assert isinstance(found, GraphQLScalarType)
    for way, does in ways.items():
        setattr(found, way, does)


def _instant(value: datetime) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%SZ")


def _parsed(text: object) -> datetime:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        raise GraphQLError(f"{text!r} is not a DateTime") from None
