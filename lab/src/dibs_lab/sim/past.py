"""What a journal tells about its fleet: how long work took, who vanished, what arrived.

Reads the lines that `dibs` appends to `.dibs/events.jsonl`. Only runs with a handler count, because
people and scripts take any time. Each stage of each issue is one piece of work, because the
simulated pipeline has one stage with a handler. A line that is no event is skipped and counted: a
journal is for people, and somebody may have edited it.
"""

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import pairwise

from msgspec import Struct, field

from dibs.core.durations import parse_instant
from dibs.core.events import EventKind

_LAST_WORDS = frozenset(
    {
        EventKind.HANDLER_EXITED,
        EventKind.LEASE_LOST,
        EventKind.ADVANCED,
        EventKind.RETURNED,
        EventKind.FAILED,
        EventKind.PARKED,
        EventKind.FINISH_REFUSED,
        EventKind.ROLLED_FORWARD,
    }
)
_OF_RUNS = _LAST_WORDS | {EventKind.CLAIMED, EventKind.HANDLER_STARTED, EventKind.RENEWED}


class Past(Struct, frozen=True):
    """What can be learned from a journal."""

    work_s: tuple[float, ...]
    """The duration of each handler that ended by itself."""
    gaps_s: tuple[float, ...]
    """The time from the first start of each piece of work to that of the next."""
    issues: int
    """Pieces of work: issues, or their stages where they have several."""
    workers: int
    """Holders with different names."""
    vanished: int
    """Runs that have no ending."""
    held_s: float
    """How long all runs together held their leases."""
    skipped: int
    """Lines that could not be read."""

    @property
    def crash_per_hour(self) -> float:
        """How often a holder vanished, for each hour of holding."""
        return self.vanished / self.held_s * 3600 if self.held_s else 0.0


class _Run(Struct):
    began_at: datetime
    seen_at: datetime
    started_at: datetime | None = None
    over: bool = False


class _Reading(Struct):
    runs: dict[str, _Run] = field(default_factory=dict)
    first_starts: dict[tuple[str, str], datetime] = field(default_factory=dict)
    holders: set[str] = field(default_factory=set)
    work_s: list[float] = field(default_factory=list)
    until: datetime | None = None
    skipped: int = 0

    def take(self, kind: EventKind, said: dict[str, object], at: datetime) -> None:
        self.until = max(self.until, at) if self.until else at
        run = self.runs.setdefault(str(said["run"]), _Run(at, at))
        run.seen_at = max(run.seen_at, at)
        match kind:
            case EventKind.HANDLER_STARTED:
                run.started_at = at
                piece = (str(said.get("issue")), str(said.get("stage")))
                self.first_starts.setdefault(piece, at)
                self.holders.add(str(said.get("holder")))
            case EventKind.HANDLER_EXITED if run.started_at and said.get("verdict") != "return":
                self.work_s.append((at - run.started_at).total_seconds())
        run.over = run.over or kind in _LAST_WORDS


def read_journal(lines: Iterable[str], *, ttl: timedelta) -> Past:
    """Read a journal. A run with an event less than a ttl before its end may still go on."""
    reading = _Reading()
    for line in lines:
        _read_line(reading, line)
    starts = sorted(reading.first_starts.values())
    runs = [run for run in reading.runs.values() if run.started_at is not None]
    vanished = [
        run
        for run in runs
        if not run.over and reading.until is not None and run.seen_at < reading.until - ttl
    ]
    return Past(
        work_s=tuple(reading.work_s),
        gaps_s=tuple((after - before).total_seconds() for before, after in pairwise(starts)),
        issues=len(starts),
        workers=len(reading.holders),
        vanished=len(vanished),
        held_s=sum((run.seen_at - run.began_at).total_seconds() for run in runs),
        skipped=reading.skipped,
    )


def _read_line(reading: _Reading, line: str) -> None:
    if not line.strip():
        return
    try:
        said = json.loads(line)
        kind = EventKind(said["event"])
        if kind in _OF_RUNS and "run" in said:
            reading.take(kind, said, parse_instant(said["logged_at"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        reading.skipped += 1
