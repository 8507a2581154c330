"""How answers look: text for people, one JSON object for programs. stdout is the answer only.

Exit codes keep proven outcomes apart from failures, so that scripts can tell them apart. Text for
people leaves through `write` and `tell`, which make control characters visible: a title, a note or
a line of output comes from a stranger, and must not steer the reader's terminal. Errors, warnings,
progress and log lines leave without secrets: a library's error may carry an address with a
password, and these lines end in files that others read.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TextIO

from msgspec import Struct, field
from msgspec.structs import asdict

from dibs.core.durations import describe_span, format_instant
from dibs.core.eligibility import MEANINGS, Reason, RefusalKind
from dibs.core.errors import (
    DibsError,
    GrantedElsewhere,
    HandlerMayNot,
    IssueHidden,
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
from dibs.core.ids import IssueRef
from dibs.core.issue import Issue
from dibs.core.lease import Lease, Record
from dibs.wiring import mask

if TYPE_CHECKING:
    from dibs.core.approval import AtGate


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
    (IssueHidden, Exit.FORBIDDEN),
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
    (HandlerMayNot, Exit.FORBIDDEN),
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


class Report(Answer, frozen=True):
    """An answer that was asked for as a whole: standard output gets it whatever was found."""


def emit(answer: Answer, *, as_json: bool) -> int:
    """Print an answer and return its exit code. Lines of a failure go to standard error.

    Lines of a report go to standard output.
    Warnings and all that a failure says are masked: they may carry the words of a library.
    """
    for warning in answer.warnings:
        tell(warning)
    done, exit_code = answer.exit == Exit.DONE, int(answer.exit)
    try:
        if as_json:
            warned = {"warnings": all_masked(answer.warnings)} if answer.warnings else {}
            data = answer.data if done else all_masked(answer.data)
            write_json({"ok": done, "exit": exit_code, "data": data, **warned})
        else:
            for line in answer.lines:
                asked = done or isinstance(answer, Report)
                words = line if done else mask(line)
                _put(sys.stdout if asked else sys.stderr, visible(words) + "\n")
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None if the caller closed the descriptor
                stream.flush()
    except BrokenPipeError:
        unheard()
    return exit_code


def unheard() -> int:
    """Discard further output, because the reader closed the pipe.

    Otherwise the interpreter would complain at exit, when flushing standard output.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(Exit.DONE)


def emit_error(error: DibsError, *, as_json: bool, done: Mapping[str, Any] | None = None) -> int:
    """Print an error and return the exit code. `done`: the command's results before the error."""
    exit_code = int(for_error(error))
    if as_json:
        problem = {"code": error.code, "message": mask(str(error)), "hint": mask(error.hint)}
        problem |= all_masked(done or {})
        if isinstance(error, LeaseLost):
            problem |= {"issue": str(error.issue), "fence": str(error.fence)}
        if isinstance(error, NotGranted):
            problem |= {"issue": str(error.issue)}
        write_json({"ok": False, "exit": exit_code, "error": problem})
    else:
        first, *more = text_lines(str(error)) or [""]
        for line in (f"dibs: {first}", *(f"  {line}" for line in more)):
            tell(line)
        if error.hint:
            tell(f"  {error.hint}")
    return exit_code


def visible(text: str) -> str:
    """A line with its control characters spelled out; see `core.words`, loaded if there are any."""
    if text.isprintable():
        return text
    from dibs.core.words import visible

    return visible(text)


def text_lines(text: str) -> list[str]:
    """The lines of a text of several: an issue's body, a handler's output."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def write(text: str) -> None:
    """Print lines of the answer. Within a line, control characters are made visible."""
    for line in text_lines(text):
        _put(sys.stdout, visible(line) + "\n")


def write_now(line: str) -> None:
    """Print a line of the answer at once; the command goes on without a reader.

    An end of line within the line is spelled out, too.
    """
    try:
        write(visible(line))
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        unheard()


def _put(stream: TextIO | None, text: str) -> None:
    """Write text, with what the stream's encoding lacks spelled out. A closed stream gets none."""
    if stream is None:
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        plain = text.replace("…", "...").encode(encoding, "backslashreplace")
        stream.write(plain.decode(encoding))


def write_json(document: Any) -> None:
    import json

    def plain(value: object) -> object:
        if isinstance(value, datetime):
            return format_instant(value)
        if isinstance(value, timedelta):
            return value.total_seconds()
        return str(value)

    if sys.stdout is None:
        return
    text = json.dumps(document, ensure_ascii=False, default=plain)
    try:
        if visible(text) != text:
            text = json.dumps(document, default=plain)  # the same document, in ASCII
        sys.stdout.write(text + "\n")
    except UnicodeEncodeError:
        sys.stdout.write(json.dumps(document, default=plain) + "\n")


def tell(line: str) -> None:
    """Print a line to standard error, for people who watch; never part of the answer."""
    if line and sys.stderr is not None:
        _put(sys.stderr, visible(mask(line)) + "\n")
        sys.stderr.flush()


def table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], *, cut_last: bool = False
) -> list[str]:
    """Lines with aligned columns; with `cut_last`, the last column is cut at the terminal's edge.

    Importing a library for tables costs more than most commands.
    """
    lines = [[visible(str(cell)).replace("\t", " ") for cell in row] for row in (headings, *rows)]
    widths = [max(map(columns, column)) for column in zip(*lines, strict=True)]
    edge = terminal_width() if cut_last else None
    if edge is not None:
        room = max(edge - sum(widths[:-1]) - 2 * (len(widths) - 1), 1)
        lines = [[*row[:-1], cut(row[-1], room)] for row in lines]
    return [
        "  ".join(c + " " * (w - columns(c)) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in lines
    ]


def terminal_width() -> int | None:
    """The columns of the terminal that the answer is printed on; None if it is not a terminal."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (AttributeError, OSError, ValueError):
        return None


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: Chinese characters take two, accents none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


def cut(text: str, room: int) -> str:
    """The text within so many columns, with an ellipsis if not all of it fits."""
    if columns(text) <= room:
        return text
    kept, left = "", room - 1
    for char in text:
        left -= columns(char)
        if left < 0:
            break
        kept += char
    return f"{kept.rstrip()}…"


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


def all_masked(data: Any) -> Any:
    """The data of an answer with each text in it masked; names of fields stay."""
    match data:
        case str():
            return mask(data)
        case Mapping():
            return {key: all_masked(value) for key, value in data.items()}
        case list() | tuple():
            return [all_masked(value) for value in data]
        case _:
            return data


def reason_data(reasons: Sequence[Reason]) -> Any:
    return all_masked([asdict(reason) for reason in reasons])


def reason_lines(reasons: Sequence[Reason]) -> list[str]:
    return [
        mask(line)
        for reason in reasons
        for line in (f"  {reason.code}: {reason.text}", f"    to change it: {reason.remedy}")
    ]


def ago(then: datetime, now: datetime) -> str:
    return f"{describe_span(now - then)} ago"


def gate_lines(gate: "AtGate", ref: IssueRef, *, proven: bool) -> list[str]:
    """The text to approve, and every ruling with what it is worth."""
    lines = [f"  text    {gate.text}"]
    for one in gate.rulings:
        worth = f" (does not count: {one.void})" if one.void else ""
        note = f": {one.note}" if one.note else ""
        lines.append(f"  {one.kind.value:<8}by {one.by or 'somebody'}{note}{worth}")
    if gate.missing:
        ask = f"approve what you read: dibs approve {ref.typed} --text {gate.text}"
        lines.append(f"  gate    shut, {gate.missing} of {gate.needed} approvals missing; {ask}")
    else:
        lines.append("  gate    open")
    if gate.rulings and not proven:
        lines.append("  note    this tracker does not prove who approved")
    return lines
