"""What is wrong with a configuration, in words that say what to write instead.

Loaded only when a configuration is refused. The checks themselves are msgspec's and the core's.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, get_args, get_origin

from msgspec import Meta
from msgspec.structs import fields

from dibs.core.durations import format_duration
from dibs.core.pipeline import Stage
from dibs.core.presets import PRESETS
from dibs.settings.load import ConfigFile, Duration, Size, _structs

_WRONG_TYPE = re.compile(r"Expected `([^`]+)`(?:, got `(\w+)`| matching regex .*) - at `\$\.(.+)`")
_WRONG_WORD = re.compile(r"Invalid enum value .* - at `\$\.(.+)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)` - at `\$\.(.+)`")
_KINDS = {
    "str": "text in quotes",
    "int": "a whole number, without quotes",
    "bool": "true or false, without quotes",
}
_KINDS |= {"array": "a list in brackets", "object": "a table"}
_GOT = {"str": "text", "int": "a number", "float": "a number with a fraction", "bool": "a boolean"}
_GOT |= {"array": "a list", "object": "a table"}
_LONGEST_S = 1e8
_YES_OR_NO = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false"}
_YES_OR_NO |= {"off": "false"}


def in_plain_words(flaw: str, document: object) -> str:
    """The flaw of a document with the key, its value, and what to write, if there is advice."""
    if (missing := _MISSING.fullmatch(flaw)) is not None:
        key, place = missing.groups()
        return f"{place}: {key} is missing; every {place.partition('[')[0]} needs one"
    if (wrong := _WRONG_TYPE.fullmatch(flaw)) is not None:
        expected, got, place = wrong.groups()
        value, kind = _at(place, document, ConfigFile)
        if value is not None:
            return f"{place}: {_advice(place, value, kind, expected.split(' | '), got)}"
    if (wrong := _WRONG_WORD.fullmatch(flaw)) is not None:
        place = wrong[1]
        value, kind = _at(place, document, ConfigFile)
        if value is not None:
            return f"{place}: {_short(value)} is not one of {', '.join(_words(kind))}"
    preset = document.get("preset", "stages") if isinstance(document, Mapping) else None
    base = PRESETS.get(preset) if isinstance(preset, str) else None
    return flaw + _meant_stage(flaw, base.stages if base else ())


def _at(place: str, document: Any, shape: Any) -> tuple[Any, Any]:
    """The value at a place such as `stage[0].ttl`, and its type in the file's structs."""
    value, kind = document, shape
    for key, index in re.findall(r"([A-Za-z_]\w*)|\[(\d+)\]", place):
        try:
            value = value[int(index)] if index else value[key]
        except (KeyError, IndexError, TypeError):
            return None, None
        if key:
            inner = next(iter(_structs(kind)), None)
            known = {field.encode_name: field.type for field in fields(inner)} if inner else {}
            kind = known.get(key)
    return (None, None) if "[...]" in place else (value, kind)


def _advice(place: str, value: Any, kind: Any, expected: list[str], got: str | None) -> str:
    key = re.sub(r"\[\d+\]$", "", place).rpartition(".")[2]
    assign = "" if place.endswith("]") else f"{key} = "
    if _is_of(Duration, kind):
        written = _short(value)
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if plain and 0 < value < _LONGEST_S:
            spelled = _short(format_duration(timedelta(seconds=value)))
            return f"{written} has no unit; write {assign}{spelled} for {written} seconds"
        return f'{written} is not a duration; write it like {assign}"90s", "10m" or "1h30m"'
    if _is_of(Size, kind):
        return f'{_short(value)} is not a size; write it like {assign}"50MB" or "1GB"'
    if got is None:
        allowed = "a letter or digit, then up to 63 letters, digits, dots, dashes and underscores"
        return f"{_short(value)} is not a name; a name is {allowed}"
    if expected[0] == "object":
        table = f"[{key}]" if assign else f"[[{key}]]"
        return f"it must be a table; write {table}, and its settings below"
    if (meant := _meant_value(expected[0], value)) is not None:
        return f"it must be {_KINDS[expected[0]]}; write {assign}{meant}"
    if expected[0] == "array" and isinstance(value, dict):
        return f"there may be several, so write [[{key}]] with two brackets, not [{key}]"
    wanted = " or ".join(_KINDS.get(one, one) for one in expected if one != "null")
    return f"it must be {wanted}, and {_short(value)} is {_GOT.get(got, got)}"


def _meant_value(expected: str, value: Any) -> str | None:
    """The value in the spelling of the expected type; None if it has no such spelling."""
    match expected, value:
        case "array", str():
            return f"[{_short(value)}]"
        case "int", str() if value.strip().isdecimal():
            return value.strip()
        case "bool", str():
            return _YES_OR_NO.get(value.strip().lower())
        case "str", int() | float():
            return _short(_short(value))
        case _:
            return None


def _short(value: Any) -> str:
    """The value as the file spells it, or its beginning."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
        text = text if text.isprintable() else json.dumps(value, default=str)
    except (ValueError, RecursionError):
        return "the value"
    return text if len(text) <= 60 else f"{text[:60]}..."


def _words(kind: Any) -> list[str]:
    """The words that a key of this type accepts."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [word for part in get_args(kind) for word in _words(part)]


def _is_of(wanted: Any, kind: Any) -> bool:
    """Whether the pattern of the type `wanted` is among the annotations of a key's type."""
    patterns = [meta.pattern for meta in get_args(wanted) if isinstance(meta, Meta)]
    return any(
        part.pattern in patterns
        if isinstance(part, Meta) and part.pattern
        else _is_of(wanted, part)
        for part in get_args(kind)
    )


def _meant_stage(flaw: str, stages: Sequence[Stage]) -> str:
    """Which of the preset's stages a misspelled stage in the flaw may mean."""
    from difflib import get_close_matches

    known = [stage.name for stage in stages]
    for name in re.findall(r"'([^']*)'", flaw):
        close = get_close_matches(name, known, n=1)
        if name not in known and close:
            return f"; did you mean {close[0]!r}?"
    return ""
