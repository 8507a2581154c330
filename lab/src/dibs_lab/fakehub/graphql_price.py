"""The cost of a document before it runs, by the rule that GitHub publishes.

A connection inside another is requested once for each entry that its parent may have. The number of
requests, divided by a hundred, gives the points. The number of entries that all connections may
have together gives the nodes; a document may ask for half a million nodes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLSchema,
    InlineFragmentNode,
    NamedTypeNode,
    OperationDefinitionNode,
    OperationType,
    SelectionNode,
    SelectionSetNode,
    ValueNode,
    get_named_type,
    value_from_ast_untyped,
)
from graphql.type import GraphQLInterfaceType, GraphQLNamedType, GraphQLObjectType

MOST_NODES = 500_000


@dataclass(frozen=True, slots=True)
class Price:
    points: int
    """Points of the primary budget for GraphQL; at least one."""
    nodes: int
    writes: int
    """The number of mutations among its root fields; 0 in a query."""


LEAST = Price(1, 0, 0)


def price(
    schema: GraphQLSchema,
    document: DocumentNode,
    operation: OperationDefinitionNode,
    variables: Mapping[str, object],
) -> Price:
    """The cost of a valid document."""
    fragments = {
        part.name.value: part
        for part in document.definitions
        if isinstance(part, FragmentDefinitionNode)
    }
    defaults = {
        one.variable.name.value: value_from_ast_untyped(one.default_value)
        for one in operation.variable_definitions
        if one.default_value
    }
    walk = _Walk(schema, fragments, {**defaults, **variables})
    writes = operation.operation is OperationType.MUTATION
    root = schema.mutation_type if writes else schema.query_type
    assert root is not None, "the document is valid"
    asked = list(walk.connections(operation.selection_set, root, 1))
    points = round(sum(times for times, _ in asked) / 100)
    nodes = sum(times * size for times, size in asked)
    count = len(list(walk.fields(operation.selection_set))) if writes else 0
    return Price(max(1, points), nodes, count)


@dataclass(frozen=True, slots=True)
class _Walk:
    schema: GraphQLSchema
    fragments: Mapping[str, FragmentDefinitionNode]
    variables: Mapping[str, object]

    def fields(self, chosen: SelectionSetNode) -> Iterator[tuple[FieldNode, str | None]]:
        """The fields of a selection and of its fragments, each with the type of its fragment."""
        for part in filter(self._included, chosen.selections):
            match part:
                case FieldNode():
                    yield part, None
                case InlineFragmentNode():
                    condition: NamedTypeNode | None = part.type_condition
                    on = None if condition is None else condition.name.value
                    yield from _within(self.fields(part.selection_set), on)
                case FragmentSpreadNode():
                    fragment = self.fragments[part.name.value]
                    on = fragment.type_condition.name.value
                    yield from _within(self.fields(fragment.selection_set), on)

    def _included(self, part: SelectionNode) -> bool:
        """Whether `@include` and `@skip` leave this part in."""
        wanted = {"include": True, "skip": False}
        return all(
            self._value(directive.arguments[0].value) is wanted[directive.name.value]
            for directive in part.directives
            if directive.name.value in wanted
        )

    def connections(
        self, chosen: SelectionSetNode, parent: GraphQLNamedType, times: int
    ) -> Iterator[tuple[int, int]]:
        """How often each connection is requested, and how many entries it may have."""
        for field, on in self.fields(chosen):
            owner = self.schema.type_map[on] if on else parent
            kind = self._kind(owner, field.name.value)
            if kind is None or field.selection_set is None:
                continue
            size = 1
            if kind.name.endswith("Connection"):
                size = self._size(field)
                yield times, size
            elif field.name.value == "nodes" and parent is self.schema.query_type:
                size = self._length(field)
            yield from self.connections(field.selection_set, kind, times * max(1, size))

    def _kind(self, owner: GraphQLNamedType, name: str) -> GraphQLNamedType | None:
        if not isinstance(owner, GraphQLObjectType | GraphQLInterfaceType):
            return None
        field = owner.fields.get(name)
        return None if field is None else get_named_type(field.type)

    def _size(self, field: FieldNode) -> int:
        for name in ("first", "last"):
            value = self._argument(field, name)
            if isinstance(value, int):
                return value
        return 0

    def _length(self, field: FieldNode) -> int:
        value = self._argument(field, "ids")
        return len(value) if isinstance(value, list) else 1

    def _argument(self, field: FieldNode, name: str) -> object:
        for argument in field.arguments:
            if argument.name.value == name:
                return self._value(argument.value)
        return None

    def _value(self, node: ValueNode) -> object:
        return value_from_ast_untyped(node, dict(self.variables))


def _within(
    fields: Iterator[tuple[FieldNode, str | None]], on: str | None
) -> Iterator[tuple[FieldNode, str | None]]:
    for field, nearer in fields:
        yield field, nearer or on
