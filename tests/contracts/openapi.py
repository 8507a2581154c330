"""One exchange over REST against the OpenAPI description that GitHub publishes.

The description is OpenAPI 3.0, whose `nullable` JSON Schema does not know: it becomes a second
choice, so that a nullable enumeration takes null although its list does not name it. GitHub's
routes by repository id are not described; they are the same as those by name.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from . import npm

_NAMES = "#/components/schemas/"
_BY_ID = re.compile(r"^/repositories/\d+(?=/|$)")
# Answered by GitHub's front door, whatever the route, and so not described for each.
_ANYWHERE = {301, 304, 307, 308, 400, 401, 403, 404, 410, 422, 429, 500, 502, 503}
_BODILESS = {204, 205, 304}
# Where nothing can be as described: an account that is a user and an enterprise at once. And where
# GitHub is known to answer otherwise (github/rest-api-description#1812): a label without a
# description has null there, in a list of pull requests as everywhere else.
_CONTRADICTIONS = {
    ("/app/installations", "get"): r"answer: \[\d+\]\.account: ",
    ("/repos/{owner}/{repo}/pulls", "get"): r"answer: \[\d+\]\.labels\[\d+\]\.description: None ",
}


@dataclass(frozen=True)
class Exchange:
    """What was asked and what was answered, as on the wire."""

    verb: str
    target: str
    """Path and query."""
    status: int
    asked: bytes = b""
    answered: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of the answer."""

    def __str__(self) -> str:
        return f"{self.verb} {self.target} -> {self.status}"


@cache
def _description() -> dict[str, Any]:
    return json.loads(npm.openapi().read_bytes())


def flaws(exchange: Exchange) -> list[str]:
    """Everything in which it differs from what is described."""
    return [*flaws_of_request(exchange), *flaws_of_answer(exchange)]


def flaws_of_request(exchange: Exchange) -> list[str]:
    found = _operation(exchange)
    if found is None:
        return [f"{exchange}: no such route"]
    query = urlsplit(exchange.target).query
    wrong = (*_flaws_of_query(*found, query), *_flaws_of_body(*found, exchange.asked))
    return [f"{exchange}: {flaw}" for flaw in wrong]


def flaws_of_answer(exchange: Exchange) -> list[str]:
    """Also of an answer to a request that was wrong. Of a route that is not there, none."""
    found = _operation(exchange)
    wrong = () if found is None else _flaws_of_answer(*found, exchange)
    return [f"{exchange}: {flaw}" for flaw in wrong]


# routes


@cache
def _routes() -> list[tuple[re.Pattern[str], str]]:
    """Those with the fewest variables first: `/issues/comments` before `/issues/{number}`."""
    templates = sorted(_description()["paths"], key=lambda one: (one.count("{"), -len(one)))
    return [(_pattern(template), template) for template in templates]


def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"(\{[^}]+\})", template)
    # A ref or a file's path has slashes of its own.
    many = {"{ref}", "{path}"}
    texts = [
        (".*" if part in many else "[^/]+") if part.startswith("{") else re.escape(part)
        for part in parts
    ]
    return re.compile("".join(texts))


def _operation(exchange: Exchange) -> tuple[str, str] | None:
    path = _BY_ID.sub("/repos/o/r", urlsplit(exchange.target).path)
    return _routed(exchange.verb.lower(), path)


@lru_cache(maxsize=10_000)
def _routed(verb: str, path: str) -> tuple[str, str] | None:
    for pattern, template in _routes():
        if pattern.fullmatch(path) and verb in _description()["paths"][template]:
            return template, verb
    return None


def _described(template: str, verb: str) -> dict[str, Any]:
    return _description()["paths"][template][verb]


# requests


def _flaws_of_query(template: str, verb: str, query: str) -> Iterator[str]:
    known = _parameters(template, verb)
    given = dict(parse_qsl(query, keep_blank_values=True))
    for name in given.keys() - known.keys():
        yield f"query parameter {name} is not described"
    for name, parameter in known.items():
        if name not in given:
            if parameter.get("required"):
                yield f"query parameter {name} is required"
        else:
            yield from _flaws_of_parameter(name, parameter["schema"], given[name])


def _parameters(template: str, verb: str) -> dict[str, dict[str, Any]]:
    shared = _description()["components"]["parameters"]
    described = _described(template, verb).get("parameters", [])
    whole = [shared[one["$ref"].rpartition("/")[2]] if "$ref" in one else one for one in described]
    return {one["name"]: one for one in whole if one["in"] == "query"}


def _flaws_of_parameter(name: str, schema: dict[str, Any], text: str) -> Iterator[str]:
    value: object = text
    if schema.get("type") == "integer":
        value = int(text) if re.fullmatch(r"-?\d+", text) else text
    elif schema.get("type") == "boolean":
        value = {"true": True, "false": False}.get(text, text)
    elif schema.get("type") == "array":
        value = text.split(",")
    checker = Draft202012Validator(
        _converted(schema), registry=_registry(), format_checker=_FORMATS
    )
    for error in checker.iter_errors(value):
        yield f"query parameter {name}: {error.message}"


def _flaws_of_body(template: str, verb: str, asked: bytes) -> Iterator[str]:
    described = _described(template, verb).get("requestBody")
    if described is None:
        if asked and verb != "get":
            yield "a body is sent and none is described"
        return
    if not asked:
        if described.get("required"):
            yield "a body is required and none is sent"
        return
    schema = described["content"].get("application/json", {}).get("schema")
    if schema is None:
        return
    body = _loaded(asked)
    yield from _mismatches(schema, body, "request")
    for name in _surplus(schema, body):
        yield f"request: {name} is not described"


def _surplus(schema: dict[str, Any], body: object) -> set[str]:
    """Names that GitHub would ignore without a word."""
    named = schema.get("properties")
    if not isinstance(body, dict) or not named or schema.get("additionalProperties"):
        return set()
    return body.keys() - named.keys()


# answers


def _flaws_of_answer(template: str, verb: str, exchange: Exchange) -> Iterator[str]:
    described = _described(template, verb)["responses"]
    status = str(exchange.status)
    if status not in described and exchange.status not in _ANYWHERE:
        yield f"status {status} is not among {', '.join(described)}"
        return
    if exchange.status in _BODILESS:
        if exchange.answered:
            yield f"a body with status {status}"
        return
    schema = _schema_of_answer(described.get(status))
    if schema is None:
        return
    forgiven = _CONTRADICTIONS.get((template, verb))
    for flaw in _mismatches(schema, _loaded(exchange.answered), "answer"):
        if not forgiven or not re.match(forgiven, flaw):
            yield flaw


def _schema_of_answer(described: dict[str, Any] | None) -> dict[str, Any] | None:
    """None where GitHub says nothing of a body; an error nobody described is a basic one."""
    if described is None:
        return {"$ref": f"{_NAMES}basic-error"}
    if "$ref" in described:
        name = described["$ref"].rpartition("/")[2]
        described = _description()["components"]["responses"][name]
    content = described.get("content", {})
    return content.get("application/json", {}).get("schema")


def _loaded(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return NotJson(body[:80])


@dataclass(frozen=True)
class NotJson:
    start: bytes


# schemas


def _mismatches(schema: dict[str, Any], body: object, what: str) -> list[str]:
    return [f"{what}: {flaw}" for flaw in _judged(json.dumps(schema), _Shape(body))]


@lru_cache(maxsize=10_000)
def _judged(schema: str, shape: "_Shape") -> tuple[str, ...]:
    errors = _validator(schema).iter_errors(shape.body)
    return tuple(flaw for error in errors for flaw in _told(error))


def _told(error: ValidationError) -> Iterator[str]:
    """Of choices that all fail, what is wrong with each: one of them was meant."""
    if error.context:
        for inner in error.context:
            yield from _told(inner)
        return
    place = error.json_path.removeprefix("$").lstrip(".") or "the whole"
    # The body may be long, and stands before what is said of it.
    yield f"{place}: {error.message if len(error.message) < 200 else '...' + error.message[-200:]}"


class _Shape:
    """A body that is the same as another if no schema could tell them apart.

    A test exchanges thousands of them; one of each shape is judged. Numbers are one, and so are
    texts that are neither a short word, an instant nor an address; a list is the shapes in it.
    """

    def __init__(self, body: object) -> None:
        self.body = body
        self._key = _shape(body)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shape) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)


def _shape(body: object) -> object:
    match body:
        case dict():
            return frozenset((key, _shape(value)) for key, value in body.items())
        case list():
            return ("list", frozenset(_shape(value) for value in body))
        case str() if len(body) < 20 and body.isidentifier():
            return body
        case str():
            return ("text", _is_instant(body), _is_address(body), not body)
        case None | bool():
            return body
        case _:
            return type(body)


@cache
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(
        _converted(json.loads(schema)), registry=_registry(), format_checker=_FORMATS
    )


@cache
def _registry() -> Registry[Any]:
    return Registry(retrieve=_named)


@cache
def _named(address: str) -> Resource[Any]:
    """A schema by its name, converted when first met: GitHub has a thousand of them."""
    schema = _description()["components"]["schemas"][address.removeprefix("github:")]
    return Resource.from_contents(_converted(schema), default_specification=DRAFT202012)


def _converted(schema: Any) -> Any:
    """OpenAPI 3.0's dialect as JSON Schema."""
    if isinstance(schema, list):
        return [_converted(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {"$ref": f"github:{schema['$ref'].removeprefix(_NAMES)}"}
    plain = {
        key: (
            {name: _converted(one) for name, one in value.items()}
            if key == "properties"
            else value
            if key in _LITERAL
            else _converted(value)
        )
        for key, value in schema.items()
        if key not in _PROSE
    }
    return {"anyOf": [plain, {"type": "null"}]} if schema.get("nullable") is True else plain


_LITERAL = {"enum", "required", "const", "default"}
_PROSE = {"nullable", "example", "examples", "discriminator", "externalDocs", "xml"}
_FORMATS = FormatChecker(formats=())


@_FORMATS.checks("date-time")
def _is_instant(value: object) -> bool:
    return not isinstance(value, str) or bool(
        re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", value)
    )


@_FORMATS.checks("uri")
def _is_address(value: object) -> bool:
    return not isinstance(value, str) or bool(re.match(r"^[a-z][a-z+.-]*:", value))
