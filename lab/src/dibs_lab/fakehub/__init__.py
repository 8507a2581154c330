"""A fake GitHub for tests: REST, GraphQL, limits, webhooks, git refs, and faults on demand.

    from dibs_lab.fakehub import FakeHub, Limits, Permission

    with FakeHub(limits=Limits.off()) as hub:
        token = hub.user("alice", {"acme/shop": Permission.WRITE})
        ...  # a client of GitHub's API at hub.url

`python -m dibs_lab.fakehub` runs the same as a program.
"""

from .counting import Counts
from .faults import Cut, Fault, Faults, Wrong
from .limits import Limits
from .records import Permission, Standing
from .server import FakeHub
from .state import State

__all__ = [
    "Counts",
    "Cut",
    "FakeHub",
    "Fault",
    "Faults",
    "Limits",
    "Permission",
    "Standing",
    "State",
    "Wrong",
]
