"""What becomes of a fenced write: five outcomes, and the errors for who insists on one of them.

A refused write is a value. `insist` turns it into an error for callers that have no other way to go
on; `guarded` blocks raise by themselves, because the body of a `with` cannot be skipped.
"""

from dataclasses import dataclass
from typing import assert_never

from dibs.core.errors import DibsError, LeaseLost
from dibs.core.ids import Fence, IssueRef

Version = int | str
"""A counter in SQL and Redis, an ETag of an object, a digest of a file."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The write counts, and so does its fence."""

    version: Version | None = None
    """What to hand in as `version` with the next write, where there are versions."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The very same step of this fence was applied before: a retry after a lost reply."""


@dataclass(frozen=True, slots=True)
class Stale:
    """A higher fence has been here: the lease is another's. Stop."""

    seen: Fence


@dataclass(frozen=True, slots=True)
class Conflict:
    """The fence is right, but another write of the same holder came in between."""

    why: str


@dataclass(frozen=True, slots=True)
class Missing:
    """There is nothing to write to: no such row, key, object or file."""


Outcome = Applied | Duplicate | Stale | Conflict | Missing


class StaleFence(LeaseLost):
    """The place of writing has seen a higher fence, so the lease is lost, whatever else says."""

    code = "STALE_FENCE"

    def __init__(self, resource: str, *, fence: int, seen: int) -> None:
        self.resource, self.seen = resource, Fence(seen)
        why = f"a write was refused, because fence {seen} has been seen there"
        super().__init__(IssueRef("", resource), fence=Fence(fence), why=why)


class AlreadyApplied(DibsError):
    """The very same step of this fence was applied before, so the block is not run again."""

    code = "ALREADY_APPLIED"
    hint = "a retry after a lost reply may take this for success"

    def __init__(self, resource: str, *, fence: int, step: int | None) -> None:
        self.resource, self.fence, self.step = resource, Fence(fence), step
        super().__init__(f"{resource}: step {step} of fence {fence} has been applied already")


class NotApplied(DibsError):
    """The fence is right, and still the write could not be applied."""

    code = "NOT_APPLIED"
    hint = "read the resource again, and decide anew"

    def __init__(self, resource: str, outcome: Conflict | Missing) -> None:
        self.resource, self.outcome = resource, outcome
        why = outcome.why if isinstance(outcome, Conflict) else "there is no such resource"
        super().__init__(f"{resource} was not written: {why}")


def insist(outcome: Outcome, resource: str, fence: int) -> None:
    """Raise unless the write is there: `StaleFence`, or `NotApplied`."""
    match outcome:
        case Applied() | Duplicate():
            return
        case Stale(seen):
            raise StaleFence(resource, fence=fence, seen=seen)
        case Conflict() | Missing():
            raise NotApplied(resource, outcome)
        case never:
            assert_never(never)
