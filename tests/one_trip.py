"""The memory tracker as one that takes several effects in one request, though not in one step.

Each effect happens by itself: one that fails does not stop those after it, and whatever a test lets
others do comes between any two of them.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from dibs.adapters.memory.tracker import MemoryTracker
from dibs.core.errors import DibsError
from dibs.core.ids import IssueRef, ServerTime
from dibs.core.issue import Snapshot
from dibs.core.labels import (
    Effect,
)
from dibs.ports.tracker import Applies, apply_one


class OneTripMemory(MemoryTracker):
    """Effects in one request."""

    def __init__(
        self,
        now: Callable[[], ServerTime],
        *,
        in_flight: timedelta | None = None,
        before: Callable[[Effect], None] = lambda _: None,
        **options: Any,
    ) -> None:
        """`before` is called before each effect of a trip; if it raises, that one does not happen.

        `options` are the memory tracker's.
        """
        super().__init__(now, **options)
        self.before = before
        self.traits = replace(
            self.traits, in_flight=in_flight, cheap_reads=False, applies=Applies.IN_ONE_REQUEST
        )

    def apply(self, issue: IssueRef, effects: Sequence[Effect], **_: Any) -> Snapshot:
        failure: DibsError | None = None
        for effect in effects:
            try:
                self.before(effect)
                apply_one(self, issue, effect)
            except DibsError as refusal:
                failure = failure or refusal
        if failure is not None:
            raise failure
        return self.read(issue)
