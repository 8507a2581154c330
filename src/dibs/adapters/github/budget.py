"""What is left of a token's requests, and who may still spend it.

GitHub counts REST and GraphQL apart and says with each reply what is left and when it starts anew.
What is left is kept for those who need it most: looking for work is refused first, a heartbeat only
when there is nothing left at all. Pure: knows no clock, no file and no request.
"""

from collections.abc import Mapping
from enum import IntEnum, StrEnum

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.ids import LocalTime

HOUR_S = 3600.0
_SAME_WINDOW_S = 5.0
"""Replies of different servers name slightly different ends of one window."""


class Purpose(IntEnum):
    """What a request is for; the lower is shed first."""

    DISCOVER = 0
    """Finding out whether there is something to do: lists, sweeps, boards."""
    LOOK = 1
    """Reading one issue for somebody who asks."""
    CLAIM = 2
    FINISH = 3
    HOLD = 4
    """Heartbeats: without them, work that is being done is lost."""


class Resource(StrEnum):
    """What GitHub counts apart. The names are its own."""

    REST = "core"
    GRAPHQL = "graphql"


class _Need(Struct, frozen=True):
    """What must be left for a purpose to be served."""

    even: float
    """Of an even share of the limit over the time until it starts anew."""
    floor: float
    """Of the limit, however soon that is."""


_NEEDS: Mapping[Purpose, _Need] = {
    Purpose.DISCOVER: _Need(even=0.40, floor=0.020),
    Purpose.LOOK: _Need(even=0.20, floor=0.015),
    Purpose.CLAIM: _Need(even=0.10, floor=0.010),
    Purpose.FINISH: _Need(even=0.02, floor=0.002),
    Purpose.HOLD: _Need(even=0.0, floor=0.0),
}


class Budget(Struct, frozen=True):
    """One resource's window, as GitHub told it last."""

    limit: int
    remaining: int
    resets_at: LocalTime

    def wait_s(self, purpose: Purpose, now: LocalTime) -> float:
        """How long this purpose has to wait; 0 if it may go on."""
        left_s = self.resets_at - now
        if left_s <= 0:
            return 0.0  # another window began, and nobody has told us about it yet
        need = _NEEDS[purpose]
        if self.remaining <= need.floor * self.limit:
            return left_s
        # With nothing spent, what is left is a larger share of the time left from moment to moment.
        enough_for_s = self.remaining / (need.even * self.limit) * HOUR_S if need.even else left_s
        return max(0.0, left_s - enough_for_s)

    def spent(self, now: LocalTime) -> bool:
        return self.remaining <= 0 and now < self.resets_at

    def after(self, told: "Budget") -> "Budget":
        """Replies overtake each other: within a window, the least that was told is what is left."""
        if told.resets_at > self.resets_at + _SAME_WINDOW_S:
            return told
        if told.resets_at < self.resets_at - _SAME_WINDOW_S:
            return self
        return replace(told, remaining=min(self.remaining, told.remaining))


def budget_told(headers: Mapping[str, str], served_at_s: float, now: LocalTime) -> Budget | None:
    """What a reply says. `served_at_s`: the reply's own time of day, since 1970.

    None where the server does not count (GitHub Enterprise does not, unless it is told to).
    """
    try:
        limit = int(headers["x-ratelimit-limit"])
        remaining = int(headers["x-ratelimit-remaining"])
        left_s = int(headers["x-ratelimit-reset"]) - served_at_s
    except (KeyError, ValueError):
        return None
    if limit <= 0:
        return None
    # A window is an hour: a longer one is a clock that was set, and must not shut us out for days.
    return Budget(limit, max(0, remaining), LocalTime(now + min(max(left_s, 0.0), HOUR_S)))
