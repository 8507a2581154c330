"""What an adapter promises, so that an unsafe pairing can be refused at the start."""

from enum import Flag, auto


class Guarantee(Flag):
    NONE = 0
    ATOMIC = auto()
    """At most one live grant per issue, even under contention."""
    FENCED = auto()
    """Each grant carries a higher fence than any before it on that issue."""
    SERVER_CLOCK = auto()
    """Expiry is judged by the store's clock, never by a client's."""
    IDEMPOTENT = auto()
    """A retried acquire of the same run returns the same grant."""
    DURABLE = auto()
    """Grants and fences survive the death of every process."""
    COUNTED = auto()
    """A bid's limit on live leases is kept in the step that grants, even under contention."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name.lower() for member in Guarantee if member in self and member.name)


PROTECTIVE = Guarantee.ATOMIC | Guarantee.FENCED
"""What a stage that cannot be undone asks of the store: one holder, and a fence to check."""
