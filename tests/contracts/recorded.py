"""What GitHub really answered once, and what it sends to webhooks, as others recorded it."""

import json
from functools import cache
from typing import Any

from . import npm
from .openapi import Exchange


@cache
def scenarios() -> dict[str, list[Exchange]]:
    """The recorded exchanges of each scenario. Ids, dates and tokens in them are made up."""
    return {
        path.parent.name: [_exchange(one) for one in json.loads(path.read_bytes())]
        for path in sorted(npm.fixtures().glob("*/normalized-fixture.json"))
    }


def answers(verb: str, ending: str) -> list[Any]:
    """Bodies of successful answers to such requests."""
    return [
        json.loads(exchange.answered)
        for recorded in scenarios().values()
        for exchange in recorded
        if exchange.verb == verb
        and exchange.target.partition("?")[0].endswith(ending)
        and exchange.status < 300
    ]


def webhooks(event: str) -> list[dict[str, Any]]:
    """Examples of a webhook's payload."""
    return next(one["examples"] for one in all_examples() if one["name"] == event)


@cache
def all_examples() -> list[dict[str, Any]]:
    """Of every event: its `name` and its `examples`."""
    return json.loads(npm.webhook_examples().read_bytes())


def _exchange(recorded: dict[str, Any]) -> Exchange:
    return Exchange(
        recorded["method"].upper(),
        recorded["path"],
        recorded["status"],
        _raw(recorded["body"]),
        b"" if recorded["responseIsBinary"] else _raw(recorded["response"]),
        {name.lower(): str(value) for name, value in recorded["headers"].items()},
    )


def _raw(body: object) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()
