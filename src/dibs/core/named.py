"""Named leases: holds, which several holders may share, and loops with their windows.

Named leases live in the same store as leases on issues, under names that no issue can have. The
tracker knows nothing of them. The windows of a loop are equal stretches of the store's own time,
counted from 1970.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.durations import SHORTEST_TTL
from dibs.core.errors import BadName
from dibs.core.ids import IssueRef, ServerTime, StageName, later
from dibs.core.pipeline import Command, Env

_HOLD, _LOOP = "~hold", "~loop"
HOLD_STAGE, LOOP_STAGE = StageName("~hold"), StageName("~loop")
_NAME = r"[A-Za-z][A-Za-z0-9._-]{0,63}"


class HoldSpec(Struct, frozen=True):
    """A hold from the configuration: at most `slots` holders at a time."""

    name: str
    slots: int = 1
    ttl: timedelta = timedelta(seconds=30)
    wait: timedelta = timedelta()


def chosen_hold(
    known: Iterable[HoldSpec],
    name: str,
    *,
    slots: int | None = None,
    ttl: timedelta | None = None,
    wait: timedelta | None = None,
) -> HoldSpec:
    """The configured hold of this name, or a default hold; the caller's values take precedence."""
    spec = next((spec for spec in known if spec.name == name), HoldSpec(name))
    return replace(
        spec,
        slots=spec.slots if slots is None else slots,
        ttl=spec.ttl if ttl is None else ttl,
        wait=spec.wait if wait is None else wait,
    )


class LoopSpec(Struct, frozen=True):
    """A loop from the configuration: the command runs at most once in each window."""

    name: str
    every: timedelta
    command: Command
    env: Env = Env.LISTED
    """What the command gets of our own environment."""
    pass_env: tuple[str, ...] = ()
    """Names of further variables that the command gets."""


@lru_cache(maxsize=1024)
def checked_name(name: str) -> str:
    if not re.fullmatch(_NAME, name):
        raise BadName(name)
    return name


def hold_ref(name: str, slot: int) -> IssueRef:
    """The name of a hold's slot. Each slot is a separate lease: taking a slot is atomic."""
    return IssueRef(_HOLD, f"{checked_name(name)}/{slot}")


def loop_ref(name: str) -> IssueRef:
    return IssueRef(_LOOP, checked_name(name))


def is_named(ref: IssueRef) -> bool:
    """Whether a lease is on a name, and on no issue: no repository's name begins like that."""
    return ref.repo.startswith("~")


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
