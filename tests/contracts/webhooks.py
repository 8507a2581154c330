"""Payloads of webhooks against the schemas that GitHub's own JavaScript client is made from.

They were last published in 2024, and forbid what they do not name: a field that came later is
forgiven, one that is missing or of another type is not.
"""

import json
from functools import cache
from typing import Any

from jsonschema import Draft7Validator
from jsonschema.exceptions import ValidationError

from . import npm


@cache
def _schemas() -> dict[str, Any]:
    return json.loads(npm.webhook_schema().read_bytes())


@cache
def _validator(name: str) -> Draft7Validator:
    return Draft7Validator(
        {"$ref": f"#/definitions/{name}", "definitions": _schemas()["definitions"]}
    )


def flaws(event: str, payload: dict[str, Any]) -> list[str]:
    name = f"{event}${payload.get('action', 'event')}"
    if name not in _schemas()["definitions"]:
        return [f"{name} is no event"]
    return [
        f"{name}: {flaw}"
        for error in _validator(name).iter_errors(payload)
        for flaw in _told(error)
    ]


def _told(error: ValidationError) -> list[str]:
    if error.validator == "additionalProperties":
        return []
    if error.context:
        choices: dict[Any, list[str]] = {}
        for inner in error.context:
            choices.setdefault(inner.relative_schema_path[0], []).extend(_told(inner))
        # A choice that only surplus fields speak against is the one that was meant.
        return (
            [] if not all(choices.values()) else [one for told in choices.values() for one in told]
        )
    return [f"{error.json_path.removeprefix('$.')}: {error.message[-200:]}"]
