"""Does a claim get slower by the issues ahead of it that nobody may take, or by an issue's past?

Ahead of the free issues are so many that rest after a failure, are parked, wait at a gate or are
held. They are made as a fleet makes them, by claims. The past of an issue are the cards of runs
that gave it back. Sizes are measured in turns, in one process.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

import dibs
from benchmarks.fleet import DONE, MARKS, READY, REVIEW, Made, fill, folder
from benchmarks.tables import Check, Column, Result, Say, Table, paired_ratio
from dibs.core.ids import HolderId, IssueRef
from dibs.services.claiming import Claimed, ClaimOptions
from dibs.services.working import Until
from dibs.settings import load as config
from dibs.wiring.services import connect

QUESTION = "ahead: a claim and a worker's start against the issues ahead and the cards of an issue"
MOST_RATIO = 1.5
"""The time at the worst size over that at the smallest: flat is 1."""
_BACKOFF = 'backoff = "2h"\nbackoff_max = "2h"\n'
_KINDS = ("resting", "parked", "gated", "held")
_PARKED, _GATED, _DONE = Made((READY, MARKS.parked)), Made((REVIEW,)), Made((DONE,), open=False)
_MIXED = (_PARKED, _GATED, Made(), *(_DONE,) * 17)


@dataclass(slots=True)
class Subject:
    """One backlog, and what is timed on it."""

    kind: str
    size: int
    times_s: dict[str, list[float]] = field(default_factory=dict)

    def timed(self, what: str, action: Callable[[], object]) -> None:
        began_at = time.process_time()
        action()
        self.times_s.setdefault(what, []).append(time.process_time() - began_at)


def run(*, quick: bool, say: Say) -> Result:
    sizes, rounds = ((0, 50), 5) if quick else ((0, 100, 1_000, 5_000), 15)
    histories = (1, 50) if quick else (1, 100, 1_000, 2_000)
    large = (1_000, 5_000) if quick else (1_000, 1_000_000)
    result = Result(QUESTION)
    rows = [row for kind in _KINDS for row in _measured(_ahead(kind, sizes, rounds, say))]
    rows += _measured(_past(histories, rounds, say))
    rows += _measured(_ahead("of all kinds", large, rounds, say))
    columns = (
        Column("what"),
        Column("how many", ",d"),
        Column("timed"),
        Column("median ms", ".2f"),
        Column("ratio", ".2f"),
    )
    title = f"CPU of one process, medians of {rounds}; ratios to the smallest"
    result.tables.append(Table(title, columns, tuple(rows)))
    worst = max(row[4] for row in rows)
    result.notes = [
        "next: try_next(), the library's claim --next, and advance()",
        "start: a new worker, until it has ended one issue",
        "claim: try_lease() of the issue with so many cards, and give_back()",
        "of all kinds: in 20 issues a parked one, one at a gate, a free one, and 17 done",
    ]
    text = f"{worst:.2f} times as long at worst (at most {MOST_RATIO})"
    result.checks = [Check(text, worst <= MOST_RATIO)]
    return result


def _measured(subjects: list[Subject]) -> list[tuple[str, int, str, float, float]]:
    return [
        (
            subject.kind,
            subject.size,
            what,
            statistics.median(times_s) * 1000,
            paired_ratio(times_s, subjects[0].times_s[what]),
        )
        for subject in subjects
        for what, times_s in subject.times_s.items()
    ]


def _ahead(kind: str, sizes: tuple[int, ...], rounds: int, say: Say) -> list[Subject]:
    subjects = [Subject(kind, size) for size in sizes]
    with ExitStack() as stack:
        places = []
        for subject in subjects:
            say(f"ahead: {subject.size:,} {kind}")
            places.append(place := stack.enter_context(folder(_BACKOFF)))
            _fill(place, kind, subject.size, 2 * rounds + 4)
        for turn in range(-1, rounds):
            for subject, place in zip(subjects, places, strict=True):
                spared = Subject(kind, subject.size) if turn < 0 else subject
                with dibs.open(place) as backlog:
                    backlog.handler("ready")(lambda _: None)
                    spared.timed("next", lambda: _take(backlog))
                    spared.timed("start", lambda: _work_once(backlog))
    return subjects


def _take(backlog: "dibs.Dibs") -> None:
    held = backlog.try_next(stage="ready")
    assert held is not None, "an issue is free"
    held.advance("review")


def _work_once(backlog: "dibs.Dibs") -> None:
    report = backlog.worker(stages=("ready",), until=Until.ONCE).run()
    assert report.outcomes["advanced"] == 1, report


def _fill(place: Path, kind: str, size: int, free: int) -> None:
    made = (
        _MIXED
        if kind == "of all kinds"
        else {"parked": (_PARKED,), "gated": (_GATED,)}.get(kind, (Made(),))
    )
    ahead = (made[number % len(made)] for number in range(size))
    fill(place, itertools.chain(ahead, (Made() for _ in range(free))))
    if kind not in ("resting", "held"):
        return
    services = connect(config.load(start=place), author="benchmark")
    options = ClaimOptions(HolderId("benchmark"), ttl=timedelta(hours=1))
    for number in range(1, size + 1):
        claimed = services.claiming.claim(IssueRef("", str(number)), None, options)
        assert isinstance(claimed, Claimed), claimed
        if kind == "resting":
            services.advancing.fail(services.keep(claimed))
    services.close()


def _past(histories: tuple[int, ...], rounds: int, say: Say) -> list[Subject]:
    """An issue with so many cards each, and for the shortest past a new one for each turn."""
    subjects = [Subject("cards", size) for size in histories]
    with ExitStack() as stack:
        places = []
        for subject in subjects:
            say(f"ahead: an issue with {subject.size:,} cards")
            places.append(place := stack.enter_context(folder(_BACKOFF)))
            fill(place, (Made() for _ in range(rounds + 1)))
            with dibs.open(place) as backlog:
                for turn in range(_issues(subject, rounds + 1)):
                    for _ in range(subject.size):
                        _give_back(backlog, turn + 1)
        for turn in range(rounds + 1):
            for subject, place in zip(subjects, places, strict=True):
                spared = Subject(subject.kind, subject.size) if turn == 0 else subject
                number = min(turn + 1, _issues(subject, rounds + 1))
                with dibs.open(place) as backlog:
                    spared.timed("claim", partial(_give_back, backlog, number))
    return subjects


def _issues(subject: Subject, turns: int) -> int:
    return turns if subject.size == 1 else 1


def _give_back(backlog: "dibs.Dibs", number: int) -> None:
    held = backlog.try_lease(number)
    assert isinstance(held, dibs.HeldLease), held
    held.give_back()
