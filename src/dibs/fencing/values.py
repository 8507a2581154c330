"""Idempotency keys, for effects at places that compare no fence.

What a place of writing remembers of a resource, and what a new write is told about it. Pure.

Compared with "at least", not "greater": a holder writes more than once under its one fence. Steps
are counted up within a fence, so that one number remembers all that were applied.

What becomes of a fenced write: five outcomes, and the errors for who insists on one of them.

A refused write is a value. `insist` turns it into an error for callers that have no other way to go
on; `guarded` blocks raise by themselves, because the body of a `with` cannot be skipped.

What is read back from a fenced place.
"""

import hashlib
from dataclasses import dataclass
from typing import Generic, TypeVar, assert_never

from dibs.core.errors import DibsError, LeaseLost, Misuse
from dibs.core.ids import Fence, IssueRef


def key_for(issue: IssueRef | str, fence: int | None, step: int | str) -> str:
    """A key that every retry of this effect has in common, and no other effect has.

    With a fence it tells the retries of one holder. Without one it stands for the effect on the
    issue whoever holds it: right for what must happen once, even if the first holder vanished
    before it could note that it had done it.
    """
    parts = (str(issue), "" if fence is None else str(fence), str(step))
    # With their lengths, so that no two lists of parts run into the same text.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    return f"dibs-{digest}" if fence is None else f"dibs-{fence}-{digest}"


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


_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Reading(Generic[_V]):
    """A value, the highest fence seen for it, and the version to hand in when it is changed."""

    value: _V
    fence: Fence
    version: Version
