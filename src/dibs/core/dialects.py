"""Which spelling our cards have on the wire. Every reader reads all of them."""

from enum import StrEnum


class Dialect(StrEnum):
    NATIVE = "native"
    """`<!-- claim run=.. ttl=.. -->`, as `card` spells it."""
    AGENT = "agent"
    """As runners of the issue-claim state machine read it: see `agent_dialect`."""
