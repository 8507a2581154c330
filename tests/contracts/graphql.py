"""GraphQL documents against the schema that GitHub publishes."""

from functools import cache

from graphql import GraphQLSchema, build_schema, parse, validate

from . import npm


@cache
def published() -> GraphQLSchema:
    """GitHub's own. Some of its fields are declared twice, which a strict reader refuses."""
    return build_schema(npm.graphql_schema().read_text("utf-8"), assume_valid_sdl=True)


def flaws(document: str, schema: GraphQLSchema | None = None) -> list[str]:
    """What is wrong with a document, by GitHub's schema or by another."""
    errors = validate(schema or published(), parse(document))
    return [error.message for error in errors]
