"""How answers look: text for people, one JSON object for programs. stdout is the answer only.

Exit codes: proven outcomes are kept apart from failures, so that scripts can tell.
"""

import os
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any

from msgspec import Struct, field

from dibs.core.durations import describe_span, format_instant
from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.errors import (
    DibsError,
    GrantedElsewhere,
    IssueLocked,
    LeaseLost,
    Misuse,
    NoSuchComment,
    NoSuchIssue,
    NotGranted,
    NotPermitted,
    RateLimited,
)
from dibs.core.issue import Issue
from dibs.core.lease import Lease, Record


class Exit(IntEnum):
    DONE = 0
    ERROR = 1
    USAGE = 2
    NOTHING = 3
    HELD = 4
    LOST = 5
    SHUT = 6
    LIMITED = 7
    UNPROVEN = 8
    FORBIDDEN = 9
    INTERRUPTED = 130


_ERRORS: tuple[tuple[type[DibsError], Exit], ...] = (
    (NoSuchIssue, Exit.ERROR),
    (NoSuchComment, Exit.ERROR),
    (IssueLocked, Exit.FORBIDDEN),
    (Misuse, Exit.USAGE),
    (GrantedElsewhere, Exit.SHUT),
    (LeaseLost, Exit.LOST),
    (NotGranted, Exit.HELD),
    (RateLimited, Exit.LIMITED),
    (NotPermitted, Exit.FORBIDDEN),
)
_HELD = {
    ReasonCode.HELD,
    ReasonCode.BID_PENDING,
    ReasonCode.IN_GRACE,
    ReasonCode.UNPAINTED,
    ReasonCode.CLAIM_LABEL_ONLY,
    ReasonCode.ASSIGNED,
    ReasonCode.PULL_OPEN,
    ReasonCode.FOREIGN_CLAIM,
}
_NOTHING = {
    ReasonCode.CLOSED,
    ReasonCode.NO_STAGE,
    ReasonCode.SEVERAL_STAGES,
    ReasonCode.FINAL_STAGE,
    ReasonCode.NOT_SERVED,
}


def for_error(error: DibsError) -> Exit:
    for kind, code in _ERRORS:
        if isinstance(error, kind):
            return code
    return Exit.ERROR


def for_reasons(reasons: tuple[Reason, ...]) -> Exit:
    """The most telling of several: somebody has it; a person said no; nothing is there to do."""
    codes = {reason.code for reason in reasons}
    if codes & _HELD:
        return Exit.HELD
    if ReasonCode.UNREADABLE in codes:
        return Exit.UNPROVEN
    if codes - _NOTHING:
        return Exit.SHUT
    return Exit.NOTHING


class Answer(Struct, frozen=True):
    """What a command found out or did."""

    data: Any
    lines: Sequence[str] = ()
    exit: Exit | int = Exit.DONE
    warnings: Sequence[str] = field(default=())


def emit(answer: Answer, *, as_json: bool) -> int:
    for warning in answer.warnings:
        tell(warning)
    try:
        _emit(answer, as_json=as_json)
        sys.stdout.flush()
    except BrokenPipeError:
        unheard()
    return int(answer.exit)


def unheard() -> int:
    """The reader has seen enough. Keep the interpreter from complaining at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(Exit.DONE)


def _emit(answer: Answer, *, as_json: bool) -> None:
    if as_json:
        write_json({"ok": answer.exit == Exit.DONE, "exit": int(answer.exit), "data": answer.data})
    elif answer.exit == Exit.DONE:
        write("\n".join(answer.lines))
    else:
        tell("\n".join(answer.lines))


def emit_error(error: DibsError, exit_code: Exit, *, as_json: bool) -> int:
    if as_json:
        said = {"code": error.code, "message": str(error), "hint": error.hint}
        if isinstance(error, LeaseLost):
            said |= {"issue": str(error.issue), "fence": str(error.fence)}
        if isinstance(error, NotGranted):
            said |= {"issue": str(error.issue)}
        write_json({"ok": False, "exit": int(exit_code), "error": said})
    else:
        tell(f"dibs: {error}" + (f"\n  {error.hint}" if error.hint else ""))
    return int(exit_code)


def write(text: str) -> None:
    if text:
        sys.stdout.write(text + "\n")


def write_json(document: Any) -> None:
    import json

    sys.stdout.write(json.dumps(document, ensure_ascii=False, default=_plain) + "\n")


def tell(text: str) -> None:
    """For people watching; never part of the answer."""
    if text:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return format_instant(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Columns that line up. By hand, because importing a table costs more than most commands."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [
        max(len(heading), *(len(row[place]) for row in cells)) if cells else len(heading)
        for place, heading in enumerate(headings)
    ]
    lines = [list(headings), *cells]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in lines
    ]


# The same facts in the same words everywhere


def issue_data(issue: Issue) -> dict[str, Any]:
    return {
        "issue": str(issue.ref),
        "title": issue.title,
        "open": issue.open,
        "labels": sorted(issue.labels),
        "created_at": format_instant(issue.created_at),
        "updated_at": format_instant(issue.updated_at),
    }


def lease_data(lease: Lease) -> dict[str, Any]:
    return {
        "issue": str(lease.issue),
        "stage": lease.stage,
        "run": lease.run,
        "fence": lease.fence,
        "holder": lease.holder,
        "ttl_s": lease.ttl.total_seconds(),
        "granted_at": format_instant(lease.granted_at),
        "expires_at": format_instant(lease.expires_at),
        "beats": lease.beats,
    }


def record_data(record: Record | None) -> dict[str, Any] | None:
    if record is None:
        return None
    ending = record.ending
    return {
        **lease_data(record.lease),
        "live": record.live,
        "remaining_s": max(0.0, record.remaining.total_seconds()),
        "outcome": ending.outcome.value if ending else None,
        "next": ending.next if ending else None,
    }


def reason_data(reason: Reason) -> dict[str, Any]:
    return {
        "code": reason.code.value,
        "text": reason.text,
        "remedy": reason.remedy,
        "until": format_instant(reason.until) if reason.until else None,
    }


def reason_lines(reasons: Sequence[Reason]) -> list[str]:
    lines = []
    for reason in reasons:
        lines.append(f"  {reason.code.value}: {reason.text}")
        lines.append(f"    to change it: {reason.remedy}")
    return lines


def ago(then: datetime, now: datetime) -> str:
    return f"{describe_span(now - then)} ago"
