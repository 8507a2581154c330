"""Turns settings into adapters and services.

What leaves the process for people to read goes through `mask` and, in a log, `clean_record`.

Trackers and lease stores are rows of two registries, `trackers` and `stores`. Other distributions
add rows through entry points, which are read here.
"""

from typing import TYPE_CHECKING, TypeVar

from dibs.core.errors import BadConfiguration

if TYPE_CHECKING:
    from logging import LogRecord

_Kind = TypeVar("_Kind")


def mask(text: str) -> str:
    """The text without the secrets of this process; see `adapters.system.mask`."""
    from dibs.adapters.system import mask

    return mask(text)


def clean_record(record: "LogRecord") -> bool:
    """Take secrets and control characters out of a log record: a filter for a handler of `logging`.

    A traceback keeps its lines, each indented: no exception's text can pass for a line of the log.
    """
    from dibs.core.words import visible

    record.msg, record.args = visible(mask(record.getMessage())), ()
    if record.exc_info:
        from logging import Formatter

        trace = mask(Formatter().formatException(record.exc_info)).split("\n")
        record.exc_text = "\n".join(f"  {visible(line)}" for line in trace)
    return True


def kind_declared_as(scheme: str, group: str, expected: type[_Kind]) -> _Kind | None:
    """The row of the installed distribution which declares the scheme; None without a row.

    Raises BadConfiguration if the entry point cannot be loaded or is no row.
    """
    from importlib.metadata import entry_points

    found = tuple(entry_points(group=group, name=scheme))
    if not found:
        return None
    if len(found) > 1:
        owners = " and ".join(sorted(point.dist.name for point in found if point.dist))
        raise BadConfiguration(f"{scheme!r} is declared twice in {group}, by {owners}")
    try:
        kind = found[0].load()
    except Exception as flaw:
        raise BadConfiguration(
            f"{scheme!r} is declared in {group} as {found[0].value}, which cannot be loaded: {flaw}"
        ) from flaw
    if not isinstance(kind, expected):
        raise BadConfiguration(
            f"{scheme!r} is declared in {group} as {found[0].value}, "
            f"which is no {expected.__name__}"
        )
    return kind


def kinds_declared(group: str, expected: type[_Kind]) -> dict[str, _Kind | BadConfiguration]:
    """All rows of installed distributions, by scheme; for lists that people read.

    If a row cannot be loaded, the error takes the row's place: the rest of the list is still shown.
    """
    from importlib.metadata import entry_points

    rows: dict[str, _Kind | BadConfiguration] = {}
    for scheme in sorted({point.name for point in entry_points(group=group)}):
        try:
            row = kind_declared_as(scheme, group, expected)
            assert row is not None, "the entry point was found above"
            rows[scheme] = row
        except BadConfiguration as error:
            rows[scheme] = error
    return rows
