"""Values of fenced writes: outcomes, errors, idempotency keys, and the comparison of fences.

A write has one of five outcomes. A refused write is a value; `insist` turns it into an error for
callers that cannot continue. `guarded` blocks raise by themselves, because the body of a `with`
cannot be skipped.

`Mark` compares fences with "at least", not "greater": a holder writes more than once under its one
fence. Steps are counted up within a fence, so one number stands for all steps applied.

`key_for` makes idempotency keys, for effects at places that compare no fence. Everything is pure.
"""

import hashlib
from dataclasses import dataclass
from typing import Generic, TypeVar, assert_never

from dibs.core.errors import DibsError, LeaseLost, Misuse
from dibs.core.ids import Fence, IssueRef


def key_for(issue: IssueRef | str, fence: int | None, step: int | str) -> str:
    """An idempotency key: equal for all retries of an effect, different for different effects.

    With a fence, the key is shared by the retries of a single holder. Without a fence, all holders
    of the issue share the key: use this for an effect which must happen only once, even if the
    first holder vanished before recording the effect.
    """
    parts = (str(issue), "" if fence is None else str(fence), str(step))
    # Each part has its length in front, so different parts never give the same text.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    return f"dibs-{digest}" if fence is None else f"dibs-{fence}-{digest}"


Version = int | str
"""A counter in SQL and Redis, an ETag of an object, a digest of a file."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The write was applied, and its fence was recorded."""

    version: Version | None = None
    """The value to pass as `version` with the next write; None where there are no versions."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The same step of the same fence was applied before: a retry after a lost reply."""


@dataclass(frozen=True, slots=True)
class Stale:
    """The place has seen a higher fence: another holder has the lease. Stop."""

    seen: Fence


@dataclass(frozen=True, slots=True)
class Conflict:
    """The fence is right, but another write of the same holder came in between."""

    why: str


@dataclass(frozen=True, slots=True)
class Missing:
    """The row, key, object or file to write to does not exist."""


Outcome = Applied | Duplicate | Stale | Conflict | Missing


class StaleFence(LeaseLost):
    """The place of writing has seen a higher fence: the lease is certainly lost."""

    code = "STALE_FENCE"

    def __init__(self, resource: str, *, fence: int, seen: int) -> None:
        self.resource, self.seen = resource, Fence(seen)
        why = f"a write was refused, because fence {seen} has been seen there"
        super().__init__(IssueRef("", resource), fence=Fence(fence), why=why)


class AlreadyApplied(DibsError):
    """The same step of the same fence was applied before; the block is not run again."""

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
    """Raise `StaleFence` or `NotApplied`, unless the write was applied now or before."""
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
"""The largest number in a BIGINT column."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The highest fence seen for a resource, and the last step applied under this fence."""

    fence: int = 0
    step: int = 0

    def refusal(self, fence: int, step: int | None = None) -> Stale | Duplicate | Conflict | None:
        """The outcome for a refused write with the given fence and step; None if allowed."""
        if fence < self.fence:
            return Stale(Fence(self.fence))
        if fence > self.fence or step is None or step > self.step:
            return None
        return Duplicate() if step == self.step else Conflict(later_step(self.step))

    def after(self, fence: int, step: int | None = None) -> "Mark":
        """The mark after a write was applied. A new fence counts its steps from the start."""
        last = self.step if fence == self.fence else 0
        return Mark(fence, last if step is None else step)


def later_step(seen: int) -> str:
    return f"step {seen} of this fence has been applied, which is a later one"


def other_version(seen: object, expected: object) -> str:
    return f"version {seen} is there, and not {expected}"


def check(fence: object, step: object = None) -> None:
    """Raise `Misuse` if the value cannot be a fence, or cannot be a step."""
    if not _counts(fence):
        raise Misuse(f"a fence is a whole number from 1 to 2^63-1, and not {fence!r}")
    if step is not None and not _counts(step):
        raise Misuse(f"steps are counted from 1, so {step!r} is none")


def _counts(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= HIGHEST


_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Reading(Generic[_V]):
    """A value read from a fenced place, the highest fence seen there, and the value's version."""

    value: _V
    fence: Fence
    version: Version
    """The value to pass as `version` with the next write."""
