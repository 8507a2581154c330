"""One question under way: what its resolvers read, who asks, and the table of ways to answer.

Resolvers are functions of a record and this; each is entered for its type and field. A field that
no function is entered for is refused when the schema is first served, not when it is first asked.
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
    """What `rateLimit` tells: the primary budget for GraphQL after this document is charged."""

    limit: int
    remaining: int
    reset_at: datetime


@dataclass(frozen=True, slots=True)
class Asked:
    state: State
    view: View
    """A replica's for a query; the primary's for a mutation, whose payloads read their writes."""
    viewer: Viewer
    web: str
    """Where people's pages are."""
    price: Price
    budget: Budget

    def repository(self, repository_id: int) -> Repository:
        return self.state.repositories[repository_id]


Answer = Callable[..., Any]
FIELDS: dict[tuple[str, str], Answer] = {}
"""Type and field to how it is answered: `(source, asked, **arguments)`."""


def answers(*types: str, name: str = "") -> Callable[[Answer], Answer]:
    """Enter a function as the way these types answer the field of its name."""

    def enter(way: Answer) -> Answer:
        for one in types:
            FIELDS[one, name or way.__name__] = way
        return way

    return enter


def plain(attributes: dict[str, str], *types: str) -> None:
    """Fields that are an attribute of the record."""
    for name, attribute in attributes.items():
        for one in types:
            FIELDS[one, name] = _reading(attribute)


def _reading(attribute: str) -> Answer:
    def read(source: object, _asked: Asked) -> object:
        return getattr(source, attribute)

    return read
