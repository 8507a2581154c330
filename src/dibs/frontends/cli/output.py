"""How answers look: text for people, one JSON object for programs. stdout is the answer only.

Exit codes keep proven outcomes apart from failures, so that scripts can tell them apart.
"""

import os
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any

from msgspec import Struct, field

from dibs.core.durations import describe_span, format_instant
from dibs.core.eligibility import MEANINGS, Reason, RefusalKind
from dibs.core.errors import (
    DibsError,
    GrantedElsewhere,
    IssueLocked,
    LeaseLost,
    Misuse,
    NoSuchComment,
    NoSuchIssue,
    NoSuchRun,
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
    (NoSuchRun, Exit.LOST),
    (NotGranted, Exit.HELD),
    (RateLimited, Exit.LIMITED),
    (NotPermitted, Exit.FORBIDDEN),
    (DibsError, Exit.ERROR),
)


def for_error(error: DibsError) -> Exit:
    return next(code for kind, code in _ERRORS if isinstance(error, kind))


def for_reasons(reasons: tuple[Reason, ...]) -> Exit:
    """The exit code for a refused claim: the first match counts.

    HELD if another holder has or may have the issue, UNPROVEN if the issue could not be read, SHUT
    if a person or a rule forbids the claim, NOTHING if the issue offers no work.
    """
    said = {MEANINGS[reason.code].refusal for reason in reasons}
    ranked = (RefusalKind.HELD, RefusalKind.UNPROVEN, RefusalKind.SHUT)
    return next((Exit[refusal.name] for refusal in ranked if refusal in said), Exit.NOTHING)


class Answer(Struct, frozen=True):
    """The result of a command: data for JSON, lines for people, and the exit code."""

    data: Any
    lines: Sequence[str] = ()
    exit: Exit | int = Exit.DONE
    warnings: Sequence[str] = field(default=())


def emit(answer: Answer, *, as_json: bool) -> int:
    """Print an answer and return its exit code. Lines of a failure go to standard error."""
    for warning in answer.warnings:
        tell(warning)
    done, exit_code = answer.exit == Exit.DONE, int(answer.exit)
    try:
        if as_json:
            write_json({"ok": done, "exit": exit_code, "data": answer.data})
        elif done:
            write("\n".join(answer.lines))
        else:
            tell("\n".join(answer.lines))
        sys.stdout.flush()
    except BrokenPipeError:
        unheard()
    return exit_code


def unheard() -> int:
    """Discard further output, because the reader closed the pipe.

    Otherwise the interpreter would complain at exit, when flushing standard output.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(Exit.DONE)


def emit_error(error: DibsError, *, as_json: bool) -> int:
    exit_code = int(for_error(error))
    if as_json:
        problem = {"code": error.code, "message": str(error), "hint": error.hint}
        if isinstance(error, LeaseLost):
            problem |= {"issue": str(error.issue), "fence": str(error.fence)}
        if isinstance(error, NotGranted):
            problem |= {"issue": str(error.issue)}
        write_json({"ok": False, "exit": exit_code, "error": problem})
    else:
        tell(f"dibs: {error}" + (f"\n  {error.hint}" if error.hint else ""))
    return exit_code


def write(text: str) -> None:
    if text:
        sys.stdout.write(text + "\n")


def write_json(document: Any) -> None:
    import json

    def plain(value: object) -> object:
        if isinstance(value, datetime):
            return format_instant(value)
        if isinstance(value, timedelta):
            return value.total_seconds()
        return str(value)

    sys.stdout.write(json.dumps(document, ensure_ascii=False, default=plain) + "\n")


def tell(text: str) -> None:
    """Print to standard error, for people who watch; never part of the answer."""
    if text:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines with aligned columns. Importing a library for tables costs more than most commands."""
    lines = [[str(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
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


def reason_lines(reasons: Sequence[Reason]) -> list[str]:
    return [
        line
        for reason in reasons
        for line in (f"  {reason.code}: {reason.text}", f"    to change it: {reason.remedy}")
    ]


def ago(then: datetime, now: datetime) -> str:
    return f"{describe_span(now - then)} ago"
