"""One document being answered: its view, its viewer, and the table of resolvers.

Resolvers are functions of a record and this value; each is registered for its type and field. When
the schema is first served, a field without a resolver is refused, not when it is first asked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .graphql_price import Price
from .records import Repository, Viewer
from .state import State
from .view import View


@dataclass(frozen=True, slots=True)
class Budget:
    """The values of `rateLimit`: the primary budget for GraphQL after this document is charged."""

    limit: int
    remaining: int
    reset_at: datetime


@dataclass(frozen=True, slots=True)
class Asked:
    state: State
    view: View
    """A replica's for a query; the primary's for a mutation, whose payload shows its own writes."""
    viewer: Viewer
    web: str
    """The address of the pages for people."""
    price: Price
    budget: Budget

    def repository(self, repository_id: int) -> Repository:
        return self.state.repositories[repository_id]


Answer = Callable[..., Any]
FIELDS: dict[tuple[str, str], Answer] = {}
"""The resolver of each type and field: `(source, asked, **arguments)`."""


def answers(*types: str, name: str = "") -> Callable[[Answer], Answer]:
    """Register a function as the resolver of these types' field with its name."""

    def enter(way: Answer) -> Answer:
        for one in types:
            FIELDS[one, name or way.__name__] = way
        return way

    return enter


def plain(attributes: dict[str, str], *types: str) -> None:
    """Register fields that are an attribute of the record."""
    for name, attribute in attributes.items():
        for one in types:
            FIELDS[one, name] = _reading(attribute)


def _reading(attribute: str) -> Answer:
    def read(source: object, _asked: Asked) -> object:
        return getattr(source, attribute)

    return read
