"""Which store grants a backlog's leases, and what keeps every other one from doing so.

There is one granter at a time, or none while leases move from one store to another. It is written
where every worker looks, beside the backlog itself. A worker reads it after it was granted a lease
and before it shows that lease; whoever moves the leases writes first and looks for leases second.
So of a worker and a mover, one at least sees the other.
"""

from msgspec import Struct

from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.ids import Fence


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
