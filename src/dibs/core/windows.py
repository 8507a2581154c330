"""The windows of a loop: equal stretches of the store's own time, counted from 1970."""

from datetime import UTC, datetime, timedelta

from msgspec import Struct

from dibs.core.ids import ServerTime, later
from dibs.core.terms import SHORTEST_TTL

SHORTEST_WINDOW = SHORTEST_TTL * 3

_EPOCH = ServerTime(datetime(1970, 1, 1, tzinfo=UTC))


class Window(Struct, frozen=True):
    number: int
    starts_at: ServerTime
    ends_at: ServerTime


def window_at(moment: ServerTime, every: timedelta) -> Window:
    number = (moment - _EPOCH) // every
    starts_at = later(_EPOCH, number * every)
    return Window(number, starts_at, later(starts_at, every))
