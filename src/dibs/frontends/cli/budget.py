"""What is left of the tracker's patience, and what is spent of it."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from dibs.core.durations import describe_span
from dibs.frontends.cli.context import Context, answering, as_json
from dibs.frontends.cli.output import Answer, Exit, for_error, table

if TYPE_CHECKING:
    from dibs.core.ids import ServerTime
    from dibs.ports.tracker import Allowance, BudgetReport


@click.command("budget")
@as_json
@answering
def budget_command(context: Context) -> Answer:
    """Show what is left of the tracker's request limits, and what is spent an hour."""
    reports = context.services.budgets()
    if not reports:
        name = context.services.tracker.traits.name
        line = f"the tracker {name} counts no requests: there is no budget to keep to"
        return Answer({"budgets": []}, [line], Exit.NOTHING)
    lines = [line for report in reports for line in ("", *_lines(report))][1:]
    troubles = [report.trouble for report in reports if report.trouble is not None]
    return Answer(
        {"budgets": [_data(report) for report in reports]},
        lines,
        for_error(troubles[0]) if troubles else Exit.DONE,
        warnings=[f"the server was not heard: {trouble}" for trouble in troubles],
    )


def _lines(report: "BudgetReport") -> list[str]:
    lines = [f"{report.place}: {_state(report)}", *_allowances(report), ""]
    lines += table(
        ("kept to by this machine", "used", "most"),
        [(kept.name, kept.used, "any" if kept.most is None else kept.most) for kept in report.kept],
    )
    whose = "this machine" if report.shared else "this process"
    counted = [(name, count) for name, count in report.counted.items() if count]
    lines += ["", f"requests of {whose} in the last hour: {sum(report.counted.values())}"]
    return lines + [f"  {name}: {count}" for name, count in counted]


def _state(report: "BudgetReport") -> str:
    shut = report.shut
    if shut is None:
        return "requests pass"
    if shut.wait_s <= 0:
        return f"{shut.why}; the next request tries whether that is over"
    return f"{shut.why}; nothing is sent for {describe_span(timedelta(seconds=shut.wait_s))}"


def _allowances(report: "BudgetReport") -> list[str]:
    if report.now is None:
        return ["what is left was not asked for"]
    if not report.allowances:
        return ["the server sets no hourly limit"]
    now = report.now
    return table(
        ("hourly limit", "used by all machines", "left", "of", "starts anew in"),
        [_row(allowance, now) for allowance in report.allowances],
    )


def _row(allowance: "Allowance", now: "ServerTime") -> tuple[object, ...]:
    left = describe_span(max(allowance.resets_at - now, timedelta()))
    return (allowance.name, allowance.used, allowance.remaining, allowance.limit, left)


def _data(report: "BudgetReport") -> dict[str, Any]:
    return {
        "server": report.place,
        "now": report.now,
        "limits": [
            {
                "name": one.name,
                "limit": one.limit,
                "used": one.used,
                "remaining": one.remaining,
                "resets_at": one.resets_at,
            }
            for one in report.allowances
        ],
        "pace": [{"name": one.name, "used": one.used, "most": one.most} for one in report.kept],
        "counted": dict(report.counted),
        "shared": report.shared,
        "shut": None
        if report.shut is None
        else {"why": report.shut.why, "wait_s": round(report.shut.wait_s, 3)},
        "trouble": None
        if report.trouble is None
        else {"code": report.trouble.code, "message": str(report.trouble)},
    }
