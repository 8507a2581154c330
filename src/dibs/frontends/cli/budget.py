"""`dibs budget`: the tracker's request limits, and the requests that were spent."""

from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from dibs.core.durations import describe_span
from dibs.frontends.cli.context import Context, command
from dibs.frontends.cli.output import Answer, Exit, for_error, table

if TYPE_CHECKING:
    from dibs.ports.tracker import BudgetReport


@command("budget")
def budget_command(context: Context) -> Answer:
    """Show the tracker's remaining request limits, and the requests of the last hour."""
    reports = context.services.budgets()
    if not reports:
        name = context.services.tracker.traits.name
        line = f"the tracker {name} has no limit for requests, so there is no budget"
        return Answer({"budgets": []}, [line], Exit.NOTHING)
    data = [
        {
            "server": report.place,
            "now": report.now,
            "limits": [asdict(limit) for limit in report.allowances],
            "pace": [asdict(kept) for kept in report.kept],
            "counted": dict(report.counted),
            "shared": report.shared,
            "shut": None
            if report.shut is None
            else {"why": report.shut.why, "wait_s": round(report.shut.wait_s, 3)},
            "trouble": None
            if report.trouble is None
            else {"code": report.trouble.code, "message": str(report.trouble)},
        }
        for report in reports
    ]
    lines = [line for report in reports for line in ("", *_report_lines(report))][1:]
    troubles = [report.trouble for report in reports if report.trouble is not None]
    return Answer(
        {"budgets": data},
        lines,
        for_error(troubles[0]) if troubles else Exit.DONE,
        warnings=[f"the server did not answer: {trouble}" for trouble in troubles],
    )


def _report_lines(report: "BudgetReport") -> list[str]:
    """For a server: whether requests pass, the server's limits, our own limits, and the counts."""
    shut = report.shut
    if shut is None:
        state = "requests pass"
    elif shut.wait_s <= 0:
        state = f"{shut.why}; the next request shows whether that is over"
    else:
        state = f"{shut.why}; nothing is sent for {describe_span(timedelta(seconds=shut.wait_s))}"
    lines = [f"{report.place}: {state}"]
    if report.now is None:
        lines.append("the remaining limits are unknown")
    elif not report.allowances:
        lines.append("the server sets no hourly limit")
    else:
        now = report.now
        lines += table(
            ("hourly limit", "used by all machines", "left", "of", "resets in"),
            [
                (
                    limit.name,
                    limit.used,
                    limit.remaining,
                    limit.limit,
                    describe_span(max(limit.resets_at - now, timedelta())),
                )
                for limit in report.allowances
            ],
        )
    lines.append("")
    lines += table(
        ("limit of this machine", "used", "most"),
        [(kept.name, kept.used, "any" if kept.most is None else kept.most) for kept in report.kept],
    )
    whose = "this machine" if report.shared else "this process"
    lines += ["", f"requests of {whose} in the last hour: {sum(report.counted.values())}"]
    return lines + [f"  {name}: {count}" for name, count in report.counted.items() if count]
