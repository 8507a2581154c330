"""The granter: which store grants a backlog's leases; and the log on the control issue.

There is one granter at a time, or none while leases move from one store to another. The granter is
written beside the backlog itself, where every worker looks. A worker reads the granter after it was
granted a lease and before it shows the lease; a mover first writes the granter and then looks for
leases. So of a worker and a mover, at least one sees the other.

A tracker without a place for the granter and for pauses keeps both in the comments of one issue,
the control issue: the comments are a log, in the server's order. This module decides the spelling
of the entries and the state after all of them (`fold_control`). An appointment counts only if it
names the appointment that stands at its place in the log: every reader of the whole log sees the
same winner, so appointing is a compare-and-swap. This module refuses to know how the control issue
is found, read or written on.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from msgspec import Struct, field

from dibs.core.eligibility import Pause, PauseScope, Reason, ReasonCode
from dibs.core.ids import Fence
from dibs.core.issue import Comment
from dibs.core.marker import (
    VERSION,
    Fields,
    plain,
    quoted,
    read_line,
    shortened,
    starts_as,
    write_line,
)


class Owner(Struct, frozen=True):
    """The backlog that a namespace of a store serves."""

    id: str
    """Different for every backlog."""
    name: str
    """Where the backlog is, for people."""


class Appointed(Struct, frozen=True):
    """One store grants, with fences above the floor."""

    store: str
    floor: Fence = Fence(0)


class Moving(Struct, frozen=True):
    """No store grants: the mover waits for the end of all leases of the origin."""

    origin: str
    target: str
    floor: Fence = Fence(0)
    mover: str = ""
    """Who moves the leases: only the mover may end the move, or call it off."""


Granter = Appointed | Moving


def objection(granter: Granter, store: str) -> Reason | None:
    """The reason why this store may not grant now; None if it may."""
    match granter:
        case Appointed(appointed) if appointed == store:
            return None
        case Appointed(appointed):
            return Reason(
                ReasonCode.GRANTED_ELSEWHERE,
                f"leases are granted by {appointed}, and this process is set up for {store}",
                "use the same leases setting everywhere, or move them: see dibs leases --help",
            )
        case Moving(origin, target):
            return Reason(
                ReasonCode.GRANTED_ELSEWHERE,
                f"leases are moving from {origin} to {target}; no store grants until that ends",
                "wait for dibs leases migrate to end, or run it again if it was interrupted",
            )


def keeps_house(granter: Granter, store: str) -> bool:
    """Whether a sweep may rely on this store: any other store does not know the held leases.

    During a move the held leases are in the origin.
    """
    match granter:
        case Appointed(appointed):
            return appointed == store
        case Moving(origin):
            return origin == store


CONTROL_LABEL = "dibs:control"
CONTROL_TITLE = "dibs: control"
CONTROL_BODY = (
    "Do not work on this issue. Its comments are the log of dibs for the whole repository: which"
    " store grants leases, and what is paused. Closing it changes nothing; if it is deleted or"
    " loses its label, the log is lost."
)
_LONGEST_STORE = 1000


class Appointment(Struct, frozen=True):
    """An entry of the control log: a new granter."""

    granter: Granter
    over: int
    """The id of the appointment's comment that this one replaces; 0 for the first of all."""


class PauseWord(Struct, frozen=True):
    """An entry of the control log: a person paused the scope."""

    scope: PauseScope
    by: str = ""
    reason: str = ""


class ResumeWord(Struct, frozen=True):
    """An entry of the control log: a person resumed the scope."""

    scope: PauseScope
    by: str = ""
    over: int = 0
    """The comment of the pause to lift: so a copy of the entry lifts no later pause; 0: any."""


Entry = Appointment | PauseWord | ResumeWord


class Control(Struct, frozen=True):
    """The state after all entries of the control log."""

    granter: Granter | None = None
    appointment: int = 0
    """The id of the comment that appointed the granter."""
    paused: Mapping[PauseScope, tuple[PauseWord, Comment]] = field(default_factory=dict)
    """The paused scopes, each with its entry and the entry's comment."""

    def pause(self, scope: PauseScope, *, repo: str) -> Pause | None:
        if scope not in self.paused:
            return None
        word, comment = self.paused[scope]
        return Pause(scope, word.reason, word.by, comment.created_at, repo)


# Reading


def parse_entry(body: str) -> Entry | None:
    """Read a comment's first line. None if the line is no entry, or of another version."""
    if not starts_as(body, _READERS):
        return None
    try:
        kind, fields = read_line(body)
        return _READERS[kind](fields)
    except (ValueError, OverflowError):
        return None


def _appointment(fields: Fields) -> Appointment:
    store, target = fields.take("store") or "", fields.take("target")
    floor = Fence(fields.count("floor", digits=18))
    over = fields.count("over", digits=18)
    if not store or len(store) > _LONGEST_STORE or len(target or "") > _LONGEST_STORE:
        raise ValueError("store is not the name of one")
    if target is None:
        return Appointment(Appointed(store, floor), over)
    return Appointment(Moving(store, target, floor, fields.take("mover") or ""), over)


def _pause(fields: Fields) -> PauseWord:
    scope = PauseScope(fields.take("scope") or "")
    return PauseWord(scope, fields.take("by") or "", fields.take("reason") or "")


def _resume(fields: Fields) -> ResumeWord:
    scope = PauseScope(fields.take("scope") or "")
    return ResumeWord(scope, fields.take("by") or "", fields.count("over", digits=18))


_READERS: dict[str, Callable[[Fields], Entry]] = {
    "granter": _appointment,
    "pause": _pause,
    "resume": _resume,
}


def fold_control(comments: Sequence[Comment]) -> Control:
    """The state after the whole log. Comments by authors who are no writers do not count.

    An appointment counts if `over` names the appointment in force. An appointment counts also if
    `over` names a later comment which is not in the list: deleted, or not visible yet.
    """
    present = {comment.id for comment in comments}
    control = Control()
    for comment in sorted(comments, key=lambda comment: (comment.created_at, comment.id)):
        entry = parse_entry(comment.body) if comment.by_writer else None
        match entry:
            case None:
                pass
            case Appointment(granter, over):
                standing = control.appointment
                if over == standing or (over > standing and over not in present):
                    control = Control(granter, comment.id, control.paused)
            case PauseWord(scope):
                more = {**control.paused, scope: (entry, comment)}
                control = Control(control.granter, control.appointment, more)
            case ResumeWord():
                left = {
                    scope: (word, paused)
                    for scope, (word, paused) in control.paused.items()
                    if scope is not entry.scope or entry.over not in (0, paused.id)
                }
                control = Control(control.granter, control.appointment, left)
            case _:
                assert_never(entry)
    return control


# Writing


def render_appointment(granter: Granter, *, over: int) -> str:
    match granter:
        case Appointed(store, floor):
            fields = [("store", store), ("floor", str(floor) if floor else "")]
            sentence = f"Leases are granted by `{plain(store)}`."
        case Moving(origin, target, floor, mover):
            fields = [
                ("store", origin),
                ("target", target),
                ("floor", str(floor) if floor else ""),
                ("mover", mover),
            ]
            sentence = f"Leases are on the move from `{plain(origin)}` to `{plain(target)}`."
        case _:
            assert_never(granter)
    line = write_line("granter", [*fields, ("over", str(over)), ("v", str(VERSION))])
    return f"{line}\n{sentence}"


def render_pause(word: PauseWord) -> str:
    fields = [
        ("scope", word.scope.value),
        ("by", shortened(word.by)),
        ("reason", shortened(word.reason)),
        ("v", str(VERSION)),
    ]
    why = f": {quoted(word.reason[:200])}" if word.reason else ""
    sentence = f"`{plain(word.by) or 'somebody'}` paused the {word.scope.value}{why}."
    return f"{write_line('pause', fields)}\n{sentence}"


def render_resume(word: ResumeWord) -> str:
    fields = [
        ("scope", word.scope.value),
        ("by", shortened(word.by)),
        ("over", str(word.over) if word.over else ""),
        ("v", str(VERSION)),
    ]
    sentence = f"`{plain(word.by) or 'somebody'}` resumed the {word.scope.value}."
    return f"{write_line('resume', fields)}\n{sentence}"
