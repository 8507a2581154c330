"""POST /graphql: one document in, `data` and `errors` out, as GitHub answers.

The server asks `priced` for a document's cost, charges that to its limits, then calls `execute`.
Reads go through the state's view, with its lag and its faults; payloads of mutations read the
primary. A field that fails is null, with an error beside the rest; the HTTP status stays 200.
"""

from collections.abc import Mapping
from datetime import timedelta
from functools import cache, lru_cache
from typing import Any

from graphql import (
    DocumentNode,
    GraphQLError,
    GraphQLResolveInfo,
    OperationDefinitionNode,
    OperationType,
    OverlappingFieldsCanBeMergedRule,
    execute_sync,
    get_operation_ast,
    parse,
    specified_rules,
    validate,
)

from . import graphql_issues, graphql_lists, graphql_mutations, graphql_timeline
from .graphql_asked import FIELDS, Asked, Budget
from .graphql_price import LEAST, MOST_NODES, Price, price
from .graphql_refusals import formatted
from .graphql_resolvers import type_of
from .graphql_schema import served
from .records import Viewer
from .state import State

__all__ = ["Budget", "Price", "execute", "priced"]

ENTERED = (graphql_issues, graphql_lists, graphql_mutations, graphql_timeline)
"""Modules whose import registers their resolvers."""
WEB = "https://github.com"
# GitHub accepts a document in which one name is an issue's state and a pull request's state, which
# are two enumerations; gh relies on it.
_RULES = tuple(rule for rule in specified_rules if rule is not OverlappingFieldsCanBeMergedRule)


def priced(
    document: str, variables: Mapping[str, object] | None = None, operation_name: str | None = None
) -> Price:
    """The cost of a document. A document that cannot run has the least cost."""
    parsed, errors = _read(document)
    operation = None if errors or parsed is None else get_operation_ast(parsed, operation_name)
    if parsed is None or operation is None:
        return LEAST
    return price(served(), parsed, operation, variables or {})


def execute(
    state: State,
    viewer: Viewer,
    document: str,
    variables: Mapping[str, object] | None = None,
    operation_name: str | None = None,
    *,
    budget: Budget | None = None,
    web: str = WEB,
) -> dict[str, object]:
    """The body of the answer: JSON values only."""
    parsed, errors = _read(document)
    if errors or parsed is None:
        return {"errors": [formatted(error) for error in errors]}
    cost = priced(document, variables, operation_name)
    if cost.nodes > MOST_NODES:
        return {"errors": [_too_many(cost.nodes)]}
    operation = get_operation_ast(parsed, operation_name)
    asked = Asked(
        state=state,
        view=state.view().primary if _writes(operation) else state.view(),
        viewer=viewer,
        web=web,
        price=cost,
        budget=budget or Budget(5_000, 5_000 - cost.points, state.stamp() + timedelta(hours=1)),
    )
    result = execute_sync(
        served(),
        parsed,
        context_value=asked,
        variable_values=dict(variables or {}),
        operation_name=operation_name,
        field_resolver=_resolved,
        type_resolver=type_of,
    )
    body: dict[str, object] = {"data": result.data}
    if result.errors:
        body["errors"] = [formatted(error) for error in result.errors]
    return body


@lru_cache(maxsize=512)
def _read(document: str) -> tuple[DocumentNode | None, tuple[GraphQLError, ...]]:
    """The parsed document and its errors; cached, because clients repeat a few documents."""
    try:
        parsed = parse(document)
    except GraphQLError as error:
        return None, (error,)
    return parsed, tuple(validate(served(), parsed, _RULES))


def _writes(operation: OperationDefinitionNode | None) -> bool:
    return operation is not None and operation.operation is OperationType.MUTATION


def _too_many(nodes: int) -> dict[str, object]:
    return {
        "type": "MAX_NODE_LIMIT_EXCEEDED",
        "message": f"This query requests up to {nodes:,} possible nodes which exceeds the "
        f"maximum limit of {MOST_NODES:,}.",
    }


def _resolved(source: object, info: GraphQLResolveInfo, **arguments: Any) -> object:
    way = FIELDS[info.parent_type.name, info.field_name]
    return way(source, info.context, **{_snake(name): arguments[name] for name in arguments})


@cache
def _snake(name: str) -> str:
    """`orderBy` becomes `order_by`, the name of the resolver's argument."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
