"""How long a lease runs, how often it is renewed, how early it stops being trusted.

A `LeaseTerms` that exists is coherent; the incoherent one cannot be built and says which pair
disagrees.
"""

from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.durations import format_duration
from dibs.core.ids import ZERO, LocalTime, local_after

SHORTEST_TTL = timedelta(milliseconds=300)


class LeaseTerms(Struct, frozen=True):
    ttl: timedelta
    renew_every: timedelta
    margin: timedelta
    """The time it takes to stop the work."""
    max_hold: timedelta = timedelta(days=1)
    """The absolute cap: evicts a wedged worker whose renewal thread is healthy."""
    grain: timedelta = ZERO
    """The step of the clock that stamps the lease: by so much it may begin earlier than it did."""

    def __post_init__(self) -> None:
        if self.ttl < SHORTEST_TTL:
            raise ValueError(f"ttl {format_duration(self.ttl)} is below {SHORTEST_TTL}")
        if self.renew_every <= ZERO or self.renew_every * 3 > self.ttl:
            raise ValueError(
                f"renew {format_duration(self.renew_every)} must fit three times into "
                f"ttl {format_duration(self.ttl)}"
            )
        if not ZERO < self.margin < self.renew_every:
            raise ValueError(
                f"margin {format_duration(self.margin)} must lie between zero and "
                f"renew {format_duration(self.renew_every)}"
            )
        if self.margin + self.grain >= self.renew_every:
            raise ValueError(
                f"margin {format_duration(self.margin)} and timestamps in steps of "
                f"{format_duration(self.grain)} must fit into "
                f"renew {format_duration(self.renew_every)}"
            )
        if self.max_hold < self.ttl:
            raise ValueError(
                f"max_hold {format_duration(self.max_hold)} is shorter than "
                f"ttl {format_duration(self.ttl)}"
            )

    @property
    def trust(self) -> timedelta:
        """How long after it was asked for a lease is acted upon."""
        return self.ttl - self.margin - self.grain

    def trusted_until(self, asked_at: LocalTime) -> LocalTime:
        """Counted from before the request: a slow reply shortens trust, never stretches it."""
        return local_after(asked_at, self.trust)

    def stamped_in(self, grain: timedelta) -> "LeaseTerms":
        """The same terms for a lease that is stamped in such steps. Raises ValueError."""
        return replace(self, grain=grain)


def terms_for(
    ttl: timedelta,
    *,
    grain: timedelta = ZERO,
    renew_every: timedelta | None = None,
    margin: timedelta | None = None,
    max_hold: timedelta = timedelta(days=1),
) -> LeaseTerms:
    """Fill in what was not set: renew at ttl/3; a margin of a tenth of the ttl, at most 5 s."""
    return LeaseTerms(
        ttl=ttl,
        renew_every=ttl // 3 if renew_every is None else renew_every,
        margin=min(ttl / 10, timedelta(seconds=5)) if margin is None else margin,
        max_hold=max(max_hold, ttl),
        grain=grain,
    )
