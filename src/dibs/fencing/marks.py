"""What a place of writing remembers of a resource, and what a new write is told about it. Pure.

Compared with "at least", not "greater": a holder writes more than once under its one fence. Steps
are counted up within a fence, so that one number remembers all that were applied.
"""

from dataclasses import dataclass

from dibs.core.errors import Misuse
from dibs.core.ids import Fence
from dibs.fencing.outcomes import Conflict, Duplicate, Stale

HIGHEST = 2**63 - 1
"""What a BIGINT column holds."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The highest fence that was seen, and the last step applied under it."""

    fence: int = 0
    step: int = 0

    def refusal(self, fence: int, step: int | None = None) -> Stale | Duplicate | Conflict | None:
        """What a write with this fence and step is told; None if it may go on."""
        if fence < self.fence:
            return Stale(Fence(self.fence))
        if fence > self.fence or step is None or step > self.step:
            return None
        return Duplicate() if step == self.step else Conflict(later_step(self.step))

    def after(self, fence: int, step: int | None = None) -> "Mark":
        """What is remembered once that write is applied. A new fence counts its steps anew."""
        known = self.step if fence == self.fence else 0
        return Mark(fence, known if step is None else step)


def later_step(seen: int) -> str:
    return f"step {seen} of this fence has been applied, which is a later one"


def other_version(seen: object, expected: object) -> str:
    return f"version {seen} is there, and not {expected}"


def check(fence: object, step: object = None) -> None:
    """Refuse what cannot be a fence or a step before anything is compared with it."""
    if not _counts(fence):
        raise Misuse(f"a fence is a whole number from 1 to 2^63-1, and not {fence!r}")
    if step is not None and not _counts(step):
        raise Misuse(f"steps are counted from 1, so {step!r} is none")


def _counts(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= HIGHEST
