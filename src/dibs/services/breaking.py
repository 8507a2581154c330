"""Stopping a stage whose handler is at fault, before the handler spends every issue's attempts.

An expired key, a missing program or a bad deployment makes every run fail. The breaker of a worker
counts the different issues of a stage which failed in a row, without a success in between. Too many
of them, or a handler which could not even begin, put the handler at fault: the breaker trips, the
worker claims no more issues of the stage, and no issue pays. A failure that is not written yet
becomes a return; a failure that was written is excused, and an issue that was parked is re-queued.
"""

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dibs.core.card import render_excuse
from dibs.core.errors import Misuse
from dibs.core.events import EventKind, about
from dibs.core.ids import IssueRef, StageName
from dibs.core.labels import Effect, PostComment, RemoveLabels
from dibs.core.lease import Outcome, asked
from dibs.core.pipeline import Stage
from dibs.services.claiming import Claimed
from dibs.services.effects import apply
from dibs.services.ending import Finished
from dibs.services.running import Fail, Return, Verdict

if TYPE_CHECKING:
    from dibs.services.backlog import Backlog


class _Row(Struct):
    """The failures of a stage since its last success."""

    issues: set[IssueRef] = field(default_factory=set)
    written: list[Finished] = field(default_factory=list)
    """The endings that count a failure, and are not excused yet."""


class StageBreaker:
    """One for each worker, for all its stages. Jobs use it from their threads."""

    def __init__(self, backlog: "Backlog") -> None:
        self._tracker = backlog.tracker
        self._leases = backlog.leases
        self._parked = backlog.pipeline.labels.parked
        self._observer = backlog.observer
        self._lock = threading.Lock()
        self._rows: dict[StageName, _Row] = {}
        self._tripped: dict[StageName, str] = {}

    @property
    def tripped(self) -> Mapping[StageName, str]:
        """The stages that the worker serves no more, each with the reason."""
        with self._lock:
            return dict(self._tripped)

    def judge(self, lead: Claimed, verdict: Verdict) -> Verdict:
        """The verdict, or a return instead of a failure which is the handler's fault.

        A run counts once, by the issue of its lead, however often it is judged.
        """
        stage = lead.stage
        if not isinstance(verdict, Fail) or not stage.breaker:
            return verdict
        with self._lock:
            row = self._rows.setdefault(stage.name, _Row())
            row.issues.add(lead.lease.issue)
            if stage.name not in self._tripped:
                if verdict.unfit:
                    self._tripped[stage.name] = f"its handler cannot run ({verdict.note})"
                elif len(row.issues) >= stage.breaker:
                    self._tripped[stage.name] = (
                        f"{len(row.issues)} issues failed in a row (the last: {verdict.note})"
                    )
            return Return(verdict.note) if stage.name in self._tripped else verdict

    def ended(self, stage: Stage, finished: Finished) -> None:
        """Note how a run ended: a success ends the row, a written failure may be excused later."""
        with self._lock:
            match finished.outcome:
                case Outcome.ADVANCED if stage.name not in self._tripped:
                    self._rows.pop(stage.name, None)
                case Outcome.FAILED | Outcome.PARKED if not asked(finished.ending):
                    self._rows.setdefault(stage.name, _Row()).written.append(finished)

    def excuse(self) -> int:
        """Give back the attempts that the failures of tripped stages cost. Returns how many.

        Raises Outage; then the attempts that are left can be given back later.
        """
        count = 0
        for name, why in self.tripped.items():
            row = self._rows.get(name, _Row())
            while row.written:
                finished = row.written[0]
                lease, effects = finished.record.lease, list[Effect]()
                if finished.outcome is Outcome.PARKED and self._still_last(finished):
                    effects.append(RemoveLabels((self._parked,)))
                reason = f"the handler of {name} was at fault"
                effects.append(PostComment(render_excuse(lease.run, lease.holder, reason)))
                with suppress(Misuse):  # the issue was deleted, transferred or locked
                    apply(self._tracker, lease.issue, effects)
                self._observer.observe(about(EventKind.EXCUSED, lease, reason=why))
                row.written.remove(finished)
                count += 1
        return count

    def _still_last(self, finished: Finished) -> bool:
        """Whether no later run or person has parked the issue since, for another reason."""
        lease = finished.record.lease
        with suppress(Misuse):  # the issue was deleted, transferred or locked
            record = self._leases.standing(self._tracker.read(lease.issue)).record
            return record is not None and record.lease.run == lease.run
        return False
