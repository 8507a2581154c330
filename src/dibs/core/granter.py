"""Which store grants a backlog's leases, and what keeps every other one from doing so.

There is one granter at a time, or none while leases move from one store to another. It is written
where every worker looks, beside the backlog itself. A worker reads it after it was granted a lease
and before it shows that lease; whoever moves the leases writes first and looks for leases second.
So of a worker and a mover, one at least sees the other.

The log on a tracker's control issue: which store grants, and what a person has paused.

Where a tracker has no place for such things, one issue is that place: its comments are the log, in
the server's order. Decides the spelling of its entries and what stands after all of them. An
appointment counts only if it replaces the one that stands where it was written: whoever reads the
whole log sees the same winner, so that is compare-and-swap. Refuses to know how an issue is found,
read or written on.
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
    read_line,
    shortened,
    starts_as,
    write_line,
)


class Appointed(Struct, frozen=True):
    """One store grants, and every fence it hands out is above the floor."""

    store: str
    floor: Fence = Fence(0)


class Moving(Struct, frozen=True):
    """Nobody grants: what the origin has granted is waited for."""

    origin: str
    target: str
    floor: Fence = Fence(0)
    mover: str = ""
    """Who moves them: nobody else may end this move, or call it off."""


Granter = Appointed | Moving


def objection(granter: Granter, store: str) -> Reason | None:
    """Why this store may not grant now; None if it may."""
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
                f"leases are on the move from {origin} to {target}, and nobody grants meanwhile",
                "wait for dibs leases migrate to end, or run it again if it was interrupted",
            )


def keeps_house(granter: Granter, store: str) -> bool:
    """Whether this store's word may be used to sweep: another knows nothing of what is held."""
    match granter:
        case Appointed(appointed):
            return appointed == store
        case Moving(origin):
            return origin == store


CONTROL_LABEL = "dibs:control"
CONTROL_TITLE = "dibs: control"
CONTROL_BODY = (
    "This issue is no work. Its comments are the log of what dibs was told about the whole"
    " repository: which store grants leases, and what is paused. It may be closed; if it is deleted"
    " or loses its label, that is forgotten."
)
_LONGEST_STORE = 1000


class Appointment(Struct, frozen=True):
    granter: Granter
    over: int
    """The comment that it replaces; 0 for the first of all."""


class PauseWord(Struct, frozen=True):
    scope: PauseScope
    by: str = ""
    reason: str = ""


class ResumeWord(Struct, frozen=True):
    scope: PauseScope
    by: str = ""
    over: int = 0
    """The comment of the pause that it lifts, so that a copy lifts no later one; 0: any."""


Entry = Appointment | PauseWord | ResumeWord


class Control(Struct, frozen=True):
    """What stands after all entries."""

    granter: Granter | None = None
    appointment: int = 0
    """The comment that appointed it."""
    paused: Mapping[PauseScope, tuple[PauseWord, Comment]] = field(default_factory=dict)
    """What is paused, and by which comment."""

    def pause(self, scope: PauseScope, *, repo: str) -> Pause | None:
        if scope not in self.paused:
            return None
        word, said = self.paused[scope]
        return Pause(scope, word.reason, word.by, said.created_at, repo)


# Reading


def parse_entry(body: str) -> Entry | None:
    """Read a comment's first line. None for whatever is no entry, or of another version."""
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
    """What stands after a whole log. Whoever may not write to the repository says nothing in it."""
    there = {comment.id for comment in comments}
    control = Control()
    for comment in sorted(comments, key=lambda one: (one.created_at, one.id)):
        entry = parse_entry(comment.body) if comment.by_writer else None
        match entry:
            case None:
                pass
            case Appointment(granter, over):
                if _replaces(over, control.appointment, there):
                    control = Control(granter, comment.id, control.paused)
            case PauseWord(scope):
                said = {**control.paused, scope: (entry, comment)}
                control = Control(control.granter, control.appointment, said)
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


def _replaces(over: int, standing: int, there: set[int]) -> bool:
    """Also one that was deleted, or that this reading does not show yet, and came after it."""
    return over == standing or (over > standing and over not in there)


# Writing


def render_appointment(granter: Granter, *, over: int) -> str:
    match granter:
        case Appointed(store, floor):
            fields = [("store", store), ("floor", str(floor) if floor else "")]
            told = f"Leases are granted by `{plain(store)}`."
        case Moving(origin, target, floor, mover):
            fields = [
                ("store", origin),
                ("target", target),
                ("floor", str(floor) if floor else ""),
                ("mover", mover),
            ]
            told = f"Leases are on the move from `{plain(origin)}` to `{plain(target)}`."
        case _:
            assert_never(granter)
    line = write_line("granter", [*fields, ("over", str(over)), ("v", str(VERSION))])
    return f"{line}\n{told}"


def render_pause(word: PauseWord) -> str:
    fields = [
        ("scope", word.scope.value),
        ("by", shortened(word.by)),
        ("reason", shortened(word.reason)),
        ("v", str(VERSION)),
    ]
    why = f": {plain(word.reason)}" if word.reason else ""
    told = f"{plain(word.by) or 'Somebody'} paused the {word.scope.value}{why}."
    return f"{write_line('pause', fields)}\n{told}"


def render_resume(word: ResumeWord) -> str:
    fields = [
        ("scope", word.scope.value),
        ("by", shortened(word.by)),
        ("over", str(word.over) if word.over else ""),
        ("v", str(VERSION)),
    ]
    told = f"{plain(word.by) or 'Somebody'} resumed the {word.scope.value}."
    return f"{write_line('resume', fields)}\n{told}"
