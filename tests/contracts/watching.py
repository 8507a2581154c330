"""Every exchange with a fake GitHub in this process, checked against what GitHub publishes.

Answers are the fake's and are checked whoever asked. Requests are checked if they are ours: tests
of the fake itself, and other people's clients, ask what they like.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlencode

from dibs.adapters.github.documents import without_actors
from dibs_lab.fakehub.exchange import Request
from dibs_lab.fakehub.front import GRAPHQL_PATHS, Sent
from dibs_lab.fakehub.graphql_schema import published

from . import graphql
from .openapi import Exchange, flaws_of_answer, flaws_of_request

OURS = "dibs"
"""How our adapters call themselves."""
_INNER = "/_fakehub"


Seen = tuple[Request, Sent | None]


def flaws(seen: Iterable[Seen]) -> list[str]:
    """Each once, in the order they were met."""
    found = (flaw for request, sent in seen for flaw in _flaws(request, sent))
    return list(dict.fromkeys(found))


def _flaws(request: Request, sent: Sent | None) -> list[str]:
    if request.path.startswith(_INNER):
        return []
    ours = request.headers.get("user-agent", "").startswith(OURS)
    if request.verb == "POST" and request.path in GRAPHQL_PATHS:
        return list(_flaws_of_document(json.loads(request.body)["query"])) if ours else []
    exchange = _exchange(request, sent)
    asked = flaws_of_request(exchange) if ours else []
    return asked if sent is None or request.verb == "HEAD" else asked + flaws_of_answer(exchange)


@lru_cache(maxsize=1_000)
def _flaws_of_document(document: str) -> tuple[str, ...]:
    """By the fake's part of the schema, all of which is GitHub's: a test compares the two.

    Answers need no look. graphql-core types them by that schema.
    """
    plain = without_actors(document)  # gh asks for this field, and no published schema has it
    return tuple(f"{document[:60]!r}: {flaw}" for flaw in graphql.flaws(plain, published()))


def _exchange(request: Request, sent: Sent | None) -> Exchange:
    query = urlencode(request.query)
    target = f"{request.path}?{query}" if query else request.path
    status, raw = (sent.status, sent.raw) if sent else (0, b"")
    return Exchange(request.verb, target, status, request.body, raw)
