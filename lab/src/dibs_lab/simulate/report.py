"""The results of a simulated fleet in words: the same facts for the table, the page and JSON.

This module decides which figures matter and what they are called. It simulates nothing and draws
nothing.
"""

from collections.abc import Sequence
from datetime import timedelta
from math import ceil
from typing import Any

import msgspec
from msgspec.structs import asdict

from dibs._version import __version__
from dibs.core.durations import format_duration
from dibs.frontends.cli.output import table
from dibs_lab.plots import amount, clock
from dibs_lab.sim.loads import format_rate
from dibs_lab.sim.metering import (
    GITHUB_CREATING_A_MINUTE,
    GITHUB_CREATING_AN_HOUR,
    GITHUB_REQUESTS_AN_HOUR,
    NO_LIMITS,
)
from dibs_lab.sim.sizing import COMMENTS, Distribution, Fleet, Sizing

Row = tuple[str, str]


def fleet_rows(fleet: Fleet) -> list[Row]:
    """What was simulated, in the spelling of the options."""
    return [
        ("workers", str(fleet.workers)),
        ("jobs", str(fleet.jobs)),
        ("issues", amount(fleet.issues)),
        ("arrival", str(fleet.arrival)),
        ("work", str(fleet.work)),
        ("ttl", format_duration(fleet.ttl)),
        ("settle", format_duration(fleet.settle)),
        ("lag", format_duration(fleet.lag)),
        ("crash", f"{format_rate(fleet.crash_per_hour)} for each worker"),
        ("restart", format_duration(fleet.restart)),
        ("delay", format_duration(fleet.delay)),
        ("poll", format_duration(fleet.poll)),
        ("sweep", format_duration(fleet.sweep_every)),
        ("leases", fleet.leases),
        ("api-limit", str(fleet.limits)),
        ("seed", str(fleet.seed)),
    ]


def headline(fleet: Fleet, varied: str | None = None) -> str:
    """The fleet in one line, without the compared option."""
    said = {
        "workers": _count(fleet.workers, "worker"),
        "issues": _count(fleet.issues, "issue"),
        "work": f"work {fleet.work}",
        "ttl": f"ttl {format_duration(fleet.ttl)}",
        "settle": f"settle {format_duration(fleet.settle)}",
        "leases": f"leases in {'comments' if fleet.leases == COMMENTS else 'a store'}",
    }
    return ", ".join(words for key, words in said.items() if key != varied)


def tokens(sizing: Sizing) -> int | None:
    """How many GitHub tokens the busiest hour and minute would need.

    None if a limit kept the fleet from sending the requests it wanted.
    """
    if sizing.fleet.limits != NO_LIMITS:
        return None
    asked = sizing.requests
    return max(
        1,
        ceil(asked.busiest_hour / GITHUB_REQUESTS_AN_HOUR),
        ceil(asked.creating_busiest_hour / GITHUB_CREATING_AN_HOUR),
        ceil(asked.creating_busiest_minute / GITHUB_CREATING_A_MINUTE),
    )


def lengths(found: Distribution) -> str:
    if not found.count:
        return "none"
    return (
        f"half within {clock(found.p50_s)}, nine of ten within {clock(found.p90_s)}, "
        f"at most {clock(found.most_s)}"
    )


def outcome_rows(sizing: Sizing) -> list[Row]:
    """The main results."""
    at_rest = f"{amount(sizing.done)} done, {sizing.parked} parked"
    return [
        ("simulated", clock(sizing.passed_s)),
        ("throughput", f"{amount(sizing.an_hour)} issues an hour"),
        ("workers busy", f"{sizing.utilisation:.0%} of the time"),
        ("issues", f"{at_rest}, {sizing.unfinished} unfinished, {sizing.lost} lost"),
        ("waited for a worker", lengths(sizing.wait)),
        ("starts", amount(sizing.starts)),
        ("duplicate starts", str(sizing.duplicate_starts)),
        ("repeated starts", f"{sizing.repeated_starts}, {clock(sizing.wasted_s)} of work cut off"),
        ("advanced twice", str(sizing.advanced_twice)),
        ("crashes", f"{sizing.crashes}, {sizing.holders_died} of them while holding"),
        ("leases lost alive", str(sizing.leases_lost)),
        ("blocked by the dead", lengths(sizing.blocked)),
        ("taken over", lengths(sizing.takeover)),
    ]


def request_rows(sizing: Sizing) -> list[tuple[str, str, str, str]]:
    """Requests by purpose: all, per issue, per hour, and their share."""
    asked = sizing.requests
    settled = max(1, sizing.done + sizing.parked)
    hours = sizing.passed_s / 3600 or 1.0
    rows = [*asked.by_purpose.items(), ("all", asked.total)]
    return [
        (
            name,
            f"{count / settled:.1f}",
            amount(round(count / hours)),
            f"{count / max(1, asked.total):.0%}",
        )
        for name, count in rows
    ]


def limit_rows(sizing: Sizing) -> list[tuple[str, str, str, str]]:
    """The requests compared with the limits of one GitHub token."""
    asked = sizing.requests
    rows = (
        ("requests an hour", asked.busiest_hour, GITHUB_REQUESTS_AN_HOUR),
        ("new comments an hour", asked.creating_busiest_hour, GITHUB_CREATING_AN_HOUR),
        ("new comments a minute", asked.creating_busiest_minute, GITHUB_CREATING_A_MINUTE),
    )
    return [
        (name, amount(most), amount(allowed), amount(most / allowed))
        for name, most, allowed in rows
    ]


def alarms(sizing: Sizing) -> list[str]:
    """What a reader must not overlook."""
    fleet, said = sizing.fleet, []
    if sizing.lost:
        said.append(f"{_count(sizing.lost, 'issue')} lost: begun once, and then nobody's")
    if sizing.duplicate_starts:
        said.append(
            f"{_count(sizing.duplicate_starts, 'start')} while another run was at work: "
            f"settle {format_duration(fleet.settle)}, lag {format_duration(fleet.lag)}"
        )
    if sizing.leases_lost:
        said.append(
            f"{_count(sizing.leases_lost, 'holder')} lost the lease alive, and had to stop the work"
        )
    if sizing.unfinished:
        said.append(f"{_count(sizing.unfinished, 'issue')} left when the time was over")
    if sizing.requests.refused:
        said.append(
            f"the API refused {_count(sizing.requests.refused, 'request')}; calls waited "
            f"{clock(sizing.requests.limited_s)} in all"
        )
    return said


def findings(sizing: Sizing) -> list[str]:
    """What follows from the figures: facts only, no advice."""
    fleet, said = sizing.fleet, alarms(sizing)
    if sizing.parked:
        said.append(
            f"{_count(sizing.parked, 'issue')} parked: {fleet.attempts} attempts ended in a crash "
            "or a lost lease"
        )
    if (needed := tokens(sizing) or 1) > 1:
        said.append(f"on GitHub this needs {needed} tokens, or a slower fleet")
    return said


def lines(sizing: Sizing) -> list[str]:
    """One fleet, as a page of text."""
    made = [headline(sizing.fleet), ""]
    made += table(("what", "came of it"), outcome_rows(sizing))
    made += ["", *table(("requests for", "an issue", "an hour", "share"), request_rows(sizing))]
    made += [
        "",
        *table(("on GitHub", "busiest", "one token", "tokens"), limit_rows(sizing)),
    ]
    if said := findings(sizing):
        made += ["", *(f"- {line}" for line in said)]
    return made


def comparison(key: str, values: Sequence[str], found: Sequence[Sizing]) -> list[str]:
    """One line for each value of the compared option."""
    made = [headline(found[0].fleet, key), ""]
    made += table((key, *COMPARED), compared_rows(values, found))
    said = [
        f"- {key} {value}: {line}"
        for value, sizing in zip(values, found, strict=True)
        for line in alarms(sizing)
    ]
    return [*made, *([""] if said else []), *said]


COMPARED = (
    "an hour",
    "done",
    "parked",
    "lost",
    "duplicates",
    "repeats",
    "blocked p50",
    "blocked p90",
    "taken over p50",
    "requests/issue",
    "requests/h",
    "tokens",
)


def compared_rows(values: Sequence[str], found: Sequence[Sizing]) -> list[tuple[str, ...]]:
    return [
        (
            value,
            amount(sizing.an_hour),
            amount(sizing.done),
            str(sizing.parked),
            str(sizing.lost),
            str(sizing.duplicate_starts),
            str(sizing.repeated_starts),
            _length(sizing.blocked, sizing.blocked.p50_s),
            _length(sizing.blocked, sizing.blocked.p90_s),
            _length(sizing.takeover, sizing.takeover.p50_s),
            f"{sizing.requests.an_issue:.1f}",
            amount(round(sizing.requests.an_hour)),
            str(tokens(sizing) or "-"),
        )
        for value, sizing in zip(values, found, strict=True)
    ]


def data(key: str | None, values: Sequence[str], found: Sequence[Sizing]) -> dict[str, Any]:
    """All results, for programs."""
    results = [
        {"value": value, **sizing_data(sizing)} if key else sizing_data(sizing)
        for value, sizing in zip(values, found, strict=True)
    ]
    return {"version": __version__, "compared": key, "results": results}


def sizing_data(sizing: Sizing) -> dict[str, Any]:
    figures = {name: value for name, value in asdict(sizing).items() if name != "switches"}
    return {
        **msgspec.to_builtins({**figures, "fleet": fleet_data(sizing.fleet)}),
        "an_hour": sizing.an_hour,
        "utilisation": sizing.utilisation,
        "github_tokens": tokens(sizing),
        "findings": findings(sizing),
    }


def fleet_data(fleet: Fleet) -> dict[str, Any]:
    spans = ("ttl", "settle", "lag", "restart", "delay", "poll")
    return {
        "workers": fleet.workers,
        "jobs": fleet.jobs,
        "issues": fleet.issues,
        "arrival": str(fleet.arrival),
        "work": str(fleet.work),
        "work_mean_s": fleet.work.mean_s,
        **{f"{name}_s": _seconds(getattr(fleet, name)) for name in spans},
        "sweep_s": _seconds(fleet.sweep_every),
        "crash_per_hour": fleet.crash_per_hour,
        "attempts": fleet.attempts,
        "leases": fleet.leases,
        "api_limit": str(fleet.limits),
        "seed": fleet.seed,
    }


def _seconds(span: timedelta) -> float:
    return span.total_seconds()


def _length(found: Distribution, length_s: float) -> str:
    return clock(length_s) if found.count else "-"


def _count(number: int, what: str) -> str:
    return f"{amount(number)} {what}{'s' * (number != 1)}"
