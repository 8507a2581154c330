"""Durations and instants as text, the terms of a lease, and how often a failed try is repeated.

Decides the one spelling of `10m`, `1h30m`, `600s` and of RFC 3339 UTC, for people and for cards.
Decides also which durations make sense together in a lease: how long it runs, how often it is
renewed, how early its holder stops trusting it. A `LeaseTerms` that exists is coherent: building an
incoherent one raises ValueError and names the pair that disagrees.

`Retries` is the policy of every repeated try in dibs: the kinds below are all there are
(docs/internals/architecture.md, Retries).
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.ids import ZERO, LocalTime, local_after

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = r" *([0-9]{1,9}(?:\.[0-9]{1,6})?) *(ms|s|m|h|d)"
_WHOLE = rf"(?:{_PART})+"
_MAX = timedelta(days=3650)


@lru_cache(maxsize=256)  # every card names one, and a fleet has few
def parse_duration(text: str) -> timedelta:
    """Read `10m`, `1h30m`, `1.5s`. Raises ValueError, which names the expected form."""
    compact = text.strip().lower()
    # The length first: looking for parts in a long run of spaces takes the square of its length.
    if len(compact) > 100 or not re.fullmatch(_WHOLE, compact):
        raise ValueError(f"{text[:40]!r} is not a duration; write it like 90s, 10m or 1h30m")
    parts = re.findall(_PART, compact)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds > _MAX.total_seconds():
        raise ValueError(f"{text[:40]!r} is longer than ten years")
    return timedelta(seconds=seconds)


def format_duration(span: timedelta) -> str:
    """The shortest spelling which `parse_duration` reads back to the same millisecond."""
    total_ms = round(span.total_seconds() * 1000)
    if total_ms < 0:
        return "-" + format_duration(-span)
    if total_ms % 1000:
        return f"{total_ms}ms" if total_ms < 1000 else f"{total_ms / 1000:.3f}".rstrip("0") + "s"
    return "".join(_in_units(total_ms // 1000)) or "0s"


def format_seconds(span: timedelta) -> str:
    """The spelling on cards: whole seconds (`600s`), and the exact fraction, if any."""
    whole, rest = divmod(span // timedelta(microseconds=1), 1_000_000)
    return f"{whole}s" if not rest else f"{whole}.{rest:06d}".rstrip("0") + "s"


def parse_instant(text: str) -> datetime:
    """Read an RFC 3339 instant with a time zone. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{text[:40]!r} is not an RFC 3339 instant with a time zone")


def format_instant(moment: datetime) -> str:
    """RFC 3339 in UTC, exact: seconds, milliseconds or microseconds, the shortest that fits."""
    utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    fraction = "microseconds" if utc.microsecond % 1000 else "milliseconds"
    spec = fraction if utc.microsecond else "seconds"
    return utc.isoformat(timespec=spec).replace("+00:00", "Z")


def describe_span(span: timedelta) -> str:
    """A duration for people, two units at most: `9m 58s`, `2h`, `under 1s`."""
    return " ".join(_in_units(int(abs(span.total_seconds())))[:2]) or "under 1s"


def _in_units(seconds: int) -> list[str]:
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return parts


class Retries(Struct, frozen=True):
    """How often an operation is tried in all, and how long to wait before each further try."""

    most: int
    pause_s: float = 0.0
    doubling: bool = False
    """Each pause is twice as long as the one before."""

    def pauses(self) -> Iterator[float]:
        """The pause before each try; the first try has none."""
        for failed in range(self.most):
            yield self.pause_after(failed)

    def pause_after(self, failed: int) -> float:
        """The pause after so many failed tries."""
        return self.pause_s * (2 ** (failed - 1) if self.doubling else 1) if failed else 0.0


LOST_RACE = Retries(16)
"""A conditional write met another writer: decide again on the new state, at once."""
LOST_PUSH = Retries(5)
"""The same over a git remote, where a try is a push and two fetches, some seconds in all."""
UNSEEN_WRITE = Retries(4, pause_s=0.5)
"""A read does not show our own write yet: read again."""
UNANSWERED_WRITE = Retries(3, pause_s=0.5)
"""A write got no answer: wait until every reader would see it, look for it, then write again."""
UNANSWERED_PAINTING = Retries(6, pause_s=1.0, doubling=True)
"""A request that paints an ending got no answer. It is repeated for longer than another write,
because any part of it may have happened, and only this painter knows which labels are its own.
"""
REFUSED = Retries(2, pause_s=5.0)
"""The tracker refused a request, and may not mean it: ask again, and believe the second refusal."""
NEW_TOKEN = Retries(5, pause_s=0.5, doubling=True)
"""A new token of an App is refused until every server of the tracker knows it: send it again, so
often after the first try."""
OUTAGE_PAUSE_S = 0.5
"""A service is down and the caller has time: try again until the caller's deadline."""

SHORTEST_TTL = timedelta(milliseconds=300)


class LeaseTerms(Struct, frozen=True):
    ttl: timedelta
    renew_every: timedelta
    margin: timedelta
    """The time allowed for stopping the work: trust ends so long before the lease does."""
    max_hold: timedelta = timedelta(days=1)
    """The absolute cap: evicts a wedged worker whose renewal thread is healthy."""
    grain: timedelta = ZERO
    """The step of the clock that stamps the lease: a stamp may be early by so much."""

    def __post_init__(self) -> None:
        ttl, renew = format_duration(self.ttl), format_duration(self.renew_every)
        margin, grain = format_duration(self.margin), format_duration(self.grain)
        if self.ttl < SHORTEST_TTL:
            raise ValueError(f"ttl {ttl} is below {SHORTEST_TTL}")
        if self.renew_every <= ZERO or self.renew_every * 3 > self.ttl:
            raise ValueError(f"renew {renew} must fit three times into ttl {ttl}")
        if not ZERO < self.margin < self.renew_every:
            raise ValueError(f"margin {margin} must lie between zero and renew {renew}")
        if self.margin + self.grain >= self.renew_every:
            raise ValueError(
                f"margin {margin} and timestamps in steps of {grain} must fit into renew {renew}"
            )
        if self.max_hold < self.ttl:
            longest = format_duration(self.max_hold)
            raise ValueError(f"max_hold {longest} is shorter than ttl {ttl}")

    @property
    def trust(self) -> timedelta:
        """How long a holder trusts its lease, from the moment before the request for the lease."""
        return self.ttl - self.margin - self.grain

    def trusted_until(self, asked_at: LocalTime) -> LocalTime:
        """Counted from before the request: a slow reply shortens trust, never stretches it."""
        return local_after(asked_at, self.trust)

    def stamped_in(self, grain: timedelta) -> "LeaseTerms":
        """The same terms, for a tracker with timestamps in steps of `grain`. Raises ValueError."""
        return replace(self, grain=grain)


def terms_for(
    ttl: timedelta,
    *,
    grain: timedelta = ZERO,
    renew_every: timedelta | None = None,
    margin: timedelta | None = None,
    max_hold: timedelta = timedelta(days=1),
) -> LeaseTerms:
    """Fill in the defaults: renew at ttl/3; a margin of a tenth of the ttl, at most 5 s."""
    return LeaseTerms(
        ttl=ttl,
        renew_every=ttl // 3 if renew_every is None else renew_every,
        margin=min(ttl / 10, timedelta(seconds=5)) if margin is None else margin,
        max_hold=max(max_hold, ttl),
        grain=grain,
    )
