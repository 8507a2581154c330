"""The fake's schema beside the one GitHub publishes: the same names, types and nullability."""

from collections.abc import Iterator

from graphql import (
    GraphQLEnumType,
    GraphQLInputObjectType,
    GraphQLInterfaceType,
    GraphQLNamedType,
    GraphQLObjectType,
    GraphQLSchema,
    GraphQLUnionType,
    is_introspection_type,
    is_specified_scalar_type,
    validate_schema,
)

from dibs_lab.fakehub import graphql_door
from dibs_lab.fakehub.graphql_asked import FIELDS
from dibs_lab.fakehub.graphql_schema import published as ours
from dibs_lab.fakehub.graphql_schema import served

from .graphql import published


def declared(schema: GraphQLSchema) -> Iterator[GraphQLNamedType]:
    for kind in schema.type_map.values():
        if not is_introspection_type(kind) and not is_specified_scalar_type(kind):
            yield kind


def spelled(kind: GraphQLNamedType) -> Iterator[str]:
    """One line for everything that a type promises."""
    yield f"{type(kind).__name__} {kind.name}"
    match kind:
        case GraphQLObjectType() | GraphQLInterfaceType():
            yield from (f"{kind.name} implements {one.name}" for one in kind.interfaces)
            for name, field in kind.fields.items():
                yield f"{kind.name}.{name}: {field.type}"
                for argument, value in field.args.items():
                    default = value.default_value
                    yield f"{kind.name}.{name}({argument}: {value.type} = {default})"
        case GraphQLInputObjectType():
            for name, field in kind.fields.items():
                yield f"{kind.name}.{name}: {field.type} = {field.default_value}"
        case GraphQLEnumType():
            yield from (f"{kind.name}.{value}" for value in kind.values)
        case GraphQLUnionType():
            yield from (f"{kind.name} = {one.name}" for one in kind.types)


def lines(schema: GraphQLSchema) -> set[str]:
    return {line for kind in declared(schema) for line in spelled(kind)}


def required(schema: GraphQLSchema) -> set[str]:
    """Arguments and input fields without which a document is refused."""
    found = set()
    for kind in declared(schema):
        match kind:
            case GraphQLInputObjectType():
                inputs = {kind.name: kind.fields}
            case GraphQLObjectType() | GraphQLInterfaceType():
                inputs = {f"{kind.name}.{name}": field.args for name, field in kind.fields.items()}
            case _:
                inputs = {}
        found |= {
            f"{place}.{name}"
            for place, taken in inputs.items()
            for name, value in taken.items()
            if str(value.type).endswith("!")
        }
    return found


def test_both_schemas_of_the_fake_are_valid():
    assert validate_schema(ours()) == []
    assert validate_schema(served()) == []


def test_all_that_the_fake_declares_is_github_s():
    assert sorted(lines(ours()) - lines(published())) == []


def test_what_github_requires_of_a_document_the_fake_requires_too():
    places = {line.split(":")[0].split("(")[0] for line in lines(ours())}
    theirs = {name for name in required(published()) if name.rpartition(".")[0] in places}
    assert sorted(theirs - required(ours())) == []


def test_what_is_newer_than_the_published_schema_is_still_unpublished():
    """Once GitHub publishes it, it belongs in the files that are compared."""
    newer = lines(served()) - lines(ours())
    assert newer
    assert sorted(newer & lines(published())) == []


def test_every_field_of_the_fake_is_answered():
    assert graphql_door.ENTERED
    asked = {
        (kind.name, field)
        for kind in declared(served())
        if isinstance(kind, GraphQLObjectType) and kind.name not in NEVER_MET
        for field in kind.fields
    }
    assert sorted(asked - set(FIELDS)) == []


# gh asks for them; the fake's lists of them are empty.
NEVER_MET = {
    "Milestone",
    "ProjectV2",
    "ProjectV2Item",
    "ProjectV2ItemFieldSingleSelectValue",
    "IssueType",
}
