"""A POST to /graphql before it runs: its document, its name in the counts, and its cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from graphql import FieldNode, GraphQLError, OperationDefinitionNode, get_operation_ast, parse

from .exchange import Request
from .faults import Wrong
from .graphql_cut import cut
from .graphql_door import Budget, Price, execute, priced
from .graphql_mutations import CREATES
from .graphql_refusals import rate_limited, unknown_field
from .limits import Cost
from .records import Viewer
from .world import World


@dataclass(frozen=True, slots=True)
class Document:
    text: str
    variables: Mapping[str, object]
    operation_name: str | None
    kind: str
    """`graphql query NAME` or `graphql mutation NAME`; without a name, its fields."""
    mutations: int
    content: int

    @property
    def price(self) -> Price:
        return priced(self.text, self.variables, self.operation_name)

    @property
    def cost(self) -> Cost:
        return Cost("graphql", self.price.points, 5 if self.mutations else 1, self.content)


def read(request: Request) -> Document | None:
    """None if the request contains no document."""
    given = request.given
    text, variables, name = given.get("query"), given.get("variables"), given.get("operationName")
    if not isinstance(text, str):
        return None
    chosen = name if isinstance(name, str) else None
    kind, fields = _named(text, chosen)
    mutations = len(fields) if kind.startswith("graphql mutation") else 0
    content = sum(field in CREATES for field in fields) if mutations else 0
    values = variables if isinstance(variables, dict) else {}
    return Document(text, values, chosen, kind, mutations, content)


def run(world: World, viewer: Viewer, document: Document, web: str) -> dict[str, object]:
    faults = world.faults
    if faults.strikes(Wrong.RATE_LIMIT):
        return rate_limited(viewer)
    if older := faults.strikes(Wrong.UNKNOWN_FIELD):
        return unknown_field(older.containing)
    told = world.meter.budget(viewer, "graphql")
    resets_at = world.meter.resets_at(viewer, "graphql")
    body = execute(
        world.state,
        viewer,
        document.text,
        document.variables,
        document.operation_name,
        budget=Budget(told["limit"], told["remaining"], resets_at),
        web=web,
    )
    given_up = faults.strikes(Wrong.RESOURCE_LIMITS, nodes=document.price.nodes)
    return cut(body, given_up.cut) if given_up else body


@lru_cache(maxsize=512)
def _named(text: str, operation_name: str | None) -> tuple[str, tuple[str, ...]]:
    try:
        operation = get_operation_ast(parse(text, no_location=True), operation_name)
    except GraphQLError:
        operation = None
    if operation is None:
        return "graphql query unreadable", ()
    fields = _roots(operation)
    name = operation.name.value if operation.name else "+".join(fields)
    return f"graphql {operation.operation.value} {name}", fields


def _roots(operation: OperationDefinitionNode) -> tuple[str, ...]:
    chosen = operation.selection_set.selections
    return tuple(part.name.value for part in chosen if isinstance(part, FieldNode))
