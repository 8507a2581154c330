"""Which issues a worker leaves alone, and for how long.

Local time only: what keeps an issue back is on the tracker, and is read again when its rest is
over. Where looking costs something, a change of the issue ends a rest that a refusal began, and so
the rest may be long.
"""

import threading
from collections import Counter

from msgspec import Struct

from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.ids import ZERO, IssueRef, LocalTime, ServerTime
from dibs.core.issue import Issue
from dibs.ports.clock import Clock

_MOST_RETURNS = 10_000
_LONGEST_REST_S = 900.0
_LASTING = frozenset(
    {
        ReasonCode.CLOSED,
        ReasonCode.NO_STAGE,
        ReasonCode.SEVERAL_STAGES,
        ReasonCode.FINAL_STAGE,
        ReasonCode.PAUSED,
        ReasonCode.PARKED,
        ReasonCode.BLOCKED,
        ReasonCode.GATE_SHUT,
        ReasonCode.ASSIGNED,
        ReasonCode.PULL_OPEN,
        ReasonCode.UNPROTECTED,
        ReasonCode.FOREIGN_CLAIM,
        ReasonCode.BUNDLE_WAITS,  # for what keeps one of it back that one's own reasons are told
    }
)
"""Only people and other programs lift these, so a draining worker does not wait for them."""
_SAID = frozenset({ReasonCode.REPOSITORY_PAUSED, ReasonCode.FLEET_PAUSED})
"""Nor for these. But lifting them changes no issue, so that the rest is a short one."""


class Patience(Struct, frozen=True):
    """How long a refused issue rests where its reasons do not say."""

    passing_s: float
    lasting_s: float
    until_changed: bool
    """Whether a change of the issue ends the rest."""


LOOKING_IS_CHEAP = Patience(passing_s=0.2, lasting_s=30.0, until_changed=False)
LOOKING_COSTS = Patience(passing_s=30.0, lasting_s=300.0, until_changed=True)
"""Long, for a change ends it; not for ever, for a pull request that is closed changes no issue."""


class _Rest(Struct, frozen=True):
    until: LocalTime
    unless_changed_since: ServerTime | None = None


class Resting:
    """Jobs that give back write here while the loop scans."""

    def __init__(self, clock: Clock, patience: Patience = LOOKING_IS_CHEAP) -> None:
        self._clock = clock
        self._patience = patience
        self._rests: dict[IssueRef, _Rest] = {}
        self._hopeless: set[IssueRef] = set()
        self._returns: Counter[IssueRef] = Counter()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rests)

    def leaves_alone(self, issue: Issue) -> bool:
        rest = self._rests.get(issue.ref)
        if rest is None:
            return False
        return rest.unless_changed_since in (None, issue.updated_at)

    @property
    def hopeless(self) -> int:
        return len(self._hopeless)

    def is_hopeless(self, issue: Issue) -> bool:
        """Whether only a person can free it, as far as is known."""
        return issue.ref in self._hopeless and self.leaves_alone(issue)

    def rest(self, issue: IssueRef, seconds: float) -> None:
        """Leave the issue alone for a while."""
        self._begin(issue, seconds, None)

    def returned(self, issue: IssueRef, seconds: float) -> None:
        """Our own handler gave it back: leave it to others, longer each time it happens."""
        with self._lock:
            self._returns[issue] += 1
            doublings = min(self._returns[issue] - 1, 10)
        self.rest(issue, min(seconds * (1 << doublings), _LONGEST_REST_S))

    def given_up(self, issue: Issue) -> None:
        """It cannot be had by us at all: gone, transferred or locked."""
        with self._lock:
            self._hopeless.add(issue.ref)
        unless = issue.updated_at if self._patience.until_changed else None
        self._begin(issue.ref, _LONGEST_REST_S, unless)

    def refused(
        self, issue: Issue, reasons: tuple[Reason, ...], now: ServerTime, *, paid: bool = False
    ) -> None:
        """Come back when the reasons have lifted, or much later if only a person can lift them.

        `paid`: it took a bid to find out, and the bid has changed the issue as well. So no change
        can end this rest, and it is short: the next look finds the reason without a bid.
        """
        patience = self._patience
        lasting = any(reason.code in _LASTING for reason in reasons)
        said = any(reason.code in _SAID for reason in reasons)
        if lasting or said:
            with self._lock:
                self._hopeless.add(issue.ref)
        waits = [reason.until - now for reason in reasons if reason.until is not None]
        waits_s = max(max(waits, default=ZERO).total_seconds(), patience.passing_s)
        seconds = patience.lasting_s if lasting else waits_s
        if not patience.until_changed:
            self._begin(issue.ref, seconds, None)
        elif paid:
            self._begin(issue.ref, patience.passing_s, None)
        else:
            self._begin(issue.ref, seconds, issue.updated_at)

    def forget(self, issue: IssueRef) -> None:
        with self._lock:
            self._rests.pop(issue, None)
            self._hopeless.discard(issue)

    def forget_what_is_over(self) -> None:
        """Most issues that rest are finished by somebody else and never seen again."""
        now = self._clock.now()
        with self._lock:
            over = [issue for issue, rest in self._rests.items() if rest.until <= now]
            for issue in over:
                del self._rests[issue]
                self._hopeless.discard(issue)
            if len(self._returns) > _MOST_RETURNS:
                self._returns.clear()

    def _begin(self, issue: IssueRef, seconds: float, unless: ServerTime | None) -> None:
        with self._lock:
            self._rests[issue] = _Rest(LocalTime(self._clock.now() + seconds), unless)
