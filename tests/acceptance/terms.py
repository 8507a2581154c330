"""Terms that no machine is too slow for, and time that passes when a test says so.

Only the store's clock is put on. That a holder stops by its own clock, too, is shown with a clock
that is turned by hand in tests/services/test_keeping.py, and in real time in the long tier.
"""

from .harness import Project

AMPLE = "60s"
"""A ttl that nothing in these tests outlives by itself, however busy the machine is."""
BRISK = "renew = '500ms'\nmargin = '400ms'"
"""More of such a lease, for the first stage: it is renewed often, and a handler is ended soon."""


def time_passes(project: Project, seconds: float = 120.0) -> None:
    """Put the database's clock on: a lease whose holder is dead or frozen is over at once.

    Those who are alive would lose theirs, too, and trust them until they ask.
    """
    project.sql("UPDATE clock SET high = high + ?", round(seconds * 1000))
