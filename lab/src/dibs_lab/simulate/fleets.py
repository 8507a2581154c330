"""Builds fleets from options, a dibs.toml and a journal.

An option overrides the journal, and the journal overrides the file. The module that defines a
value's meaning parses it; an error names the option.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from dibs.core.durations import parse_duration
from dibs.core.errors import Unwritable
from dibs.core.pipeline import Stage
from dibs.settings.load import Settings
from dibs_lab.sim.loads import Recorded, Sampled, parse_arrival, parse_rate, parse_work
from dibs_lab.sim.metering import parse_limits
from dibs_lab.sim.past import Past, read_journal
from dibs_lab.sim.sizing import COMMENTS, STORE, Fleet

_MOST_VALUES = 20
_IN_STORES = ("sqlite", "memory")
"""The kinds of `leases` in a dibs.toml that keep leases in a store."""


def _whole(text: str) -> int:
    compact = text.strip()
    if not compact.isascii() or not compact.isdigit() or len(compact) > 9:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(compact)


def _kept_in(text: str) -> str:
    if text not in (COMMENTS, STORE):
        raise ValueError(f"{text[:40]!r} is not one of {COMMENTS}, {STORE}")
    return text


READERS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "workers": ("workers", _whole),
    "jobs": ("jobs", _whole),
    "issues": ("issues", _whole),
    "arrival": ("arrival", parse_arrival),
    "work": ("work", parse_work),
    "ttl": ("ttl", parse_duration),
    "settle": ("settle", parse_duration),
    "lag": ("lag", parse_duration),
    "crash": ("crash_per_hour", parse_rate),
    "restart": ("restart", parse_duration),
    "delay": ("delay", parse_duration),
    "poll": ("poll", parse_duration),
    "sweep": ("sweep", parse_duration),
    "leases": ("leases", _kept_in),
    "api-limit": ("limits", parse_limits),
    "for": ("longest", parse_duration),
    "seed": ("seed", _whole),
}
"""Each option's field of a fleet, and its parser."""


def fleets(
    settings: Settings,
    past: Past | None,
    asked: Mapping[str, str],
    compared: tuple[str, Sequence[str]] | None,
) -> list[Fleet]:
    """One fleet, or one for each compared value."""
    known = {
        **_from_settings(settings),
        **(_from_past(past) if past else {}),
        **dict(_read(name, text, f"--{name}") for name, text in asked.items()),
    }
    if compared is None:
        return [_fleet(known)]
    key, values = compared
    return [_fleet({**known, **dict([_read(key, value, "--compare")])}) for value in values]


def comparison(text: str) -> tuple[str, list[str]]:
    """Read `ttl=2m,5m,10m`."""
    key, _, rest = text.partition("=")
    values = [value.strip() for value in rest.split(",") if value.strip()]
    if key not in READERS or not values:
        raise click.BadParameter(
            f"{text[:60]!r} names no option and its values; write it like ttl=2m,5m,10m; "
            f"the options are {', '.join(READERS)}",
            param_hint="--compare",
        )
    if len(values) > _MOST_VALUES:
        raise click.BadParameter(
            f"{len(values)} values are more than {_MOST_VALUES}", param_hint="--compare"
        )
    return key, values


def _read(name: str, text: str, said_as: str) -> tuple[str, Any]:
    field, read = READERS[name]
    try:
        return field, read(text)
    except ValueError as flaw:
        raise click.BadParameter(str(flaw), param_hint=said_as) from flaw


def _fleet(known: Mapping[str, Any]) -> Fleet:
    try:
        return Fleet(**known)
    except ValueError as flaw:
        raise click.UsageError(str(flaw)) from flaw


# A dibs.toml, or its defaults


def _stage(settings: Settings) -> Stage:
    """The stage that a worker would serve first; the first stage if none has a handler."""
    stages = settings.pipeline.stages
    return next((stage for stage in stages if stage.served), stages[0])


def _from_settings(settings: Settings) -> dict[str, Any]:
    stage = _stage(settings)
    usual = min(one.terms.ttl for one in settings.pipeline.stages) / 3
    in_store = settings.leases.partition(":")[0] in _IN_STORES
    return {
        "ttl": stage.terms.ttl,
        "attempts": stage.attempts,
        "settle": settings.settle or timedelta(),
        "jobs": settings.jobs,
        "poll": settings.poll,
        "sweep": None if settings.sweep == usual else settings.sweep,
        "leases": STORE if in_store else COMMENTS,
    }


# A journal


def past_of(journal: Path, settings: Settings) -> Past:
    try:
        with journal.open(encoding="utf-8", errors="replace") as lines:
            past = read_journal(_bounded(lines), ttl=_stage(settings).terms.ttl)
    except OSError as failure:
        raise Unwritable(f"the journal cannot be read: {failure}") from failure
    if not past.work_s:
        raise click.BadParameter(
            f"no handler came to an end in {journal}; it needs lines with handler_started and "
            "handler_exited",
            param_hint="--from-journal",
        )
    return past


def _bounded(lines: Iterator[str]) -> Iterator[str]:
    """Skip lines that are too long for a journal."""
    return (line if len(line) < 100_000 else "?" for line in lines)


def _from_past(past: Past) -> dict[str, Any]:
    known: dict[str, Any] = {
        "work": Sampled(past.work_s),
        "crash_per_hour": past.crash_per_hour,
        "issues": past.issues,
        "workers": past.workers,
    }
    if any(past.gaps_s):
        known["arrival"] = Recorded(past.gaps_s)
    return known
