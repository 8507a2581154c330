"""What is left of a token's budget, for people: what GitHub says, and what we counted ourselves."""

from datetime import UTC, datetime

import msgspec

from dibs.adapters.github.budget import Purpose, Resource
from dibs.adapters.github.pace import Limits
from dibs.adapters.github.spending import Spending
from dibs.core.ids import LocalTime, ServerTime
from dibs.ports.budget import Allowance, Kept, Shut

_NAMES = {Resource.REST: "REST", Resource.GRAPHQL: "GraphQL"}


class _Left(msgspec.Struct):
    limit: int
    remaining: int
    reset: int
    used: int = 0


class _Rates(msgspec.Struct):
    resources: dict[str, _Left]


def allowances_in(body: bytes) -> tuple[Allowance, ...]:
    """From the body of GET /rate_limit, which costs nothing. Raises msgspec.MsgspecError."""
    told = msgspec.json.decode(body, type=_Rates).resources
    return tuple(
        Allowance(
            name,
            left.limit,
            max(left.used, left.limit - left.remaining),
            left.remaining,
            ServerTime(datetime.fromtimestamp(left.reset, UTC)),
        )
        for resource, name in _NAMES.items()
        if (left := told.get(resource.value)) is not None
    )


def kept_in(spending: Spending, limits: Limits, now: LocalTime) -> tuple[Kept, ...]:
    free = limits == Limits.none()
    return tuple(
        Kept(rule.name, spending.pace.used(rule, now), None if free else rule.most)
        for rule in limits.rules
    )


def shut_in(spending: Spending, now: LocalTime) -> Shut | None:
    """Until when a heartbeat would be refused; None if everything passes."""
    breaker = spending.breaker
    return None if breaker.closed else Shut(breaker.why, breaker.wait_s(Purpose.HOLD, now))
