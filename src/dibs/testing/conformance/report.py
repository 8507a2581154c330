"""What a conformance run found: which check passed, and which guarantee that proves.

A check is a plain function that takes a harness and raises AssertionError. The report is what is
shown to people: a guarantee that is declared and that no check could prove is as bad as a check
that failed, and so is a check that had to be made and was not.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Generic, TypeVar

from msgspec import Struct

from dibs.core.errors import Outage
from dibs.ports.leases import Guarantee

_LONGEST_WHY = 600

Harness = TypeVar("Harness")
Factory = Callable[[], AbstractContextManager[Harness]]
"""Opens a fresh, empty adapter for one check, and closes it afterwards."""


class NotApplicable(Exception):
    """Raised by a check, or by a harness, for what this adapter does not offer.

    Only an optional check may be skipped for it. Any other that it stops has been missed, and an
    adapter of which something was missed does not conform.
    """


class Check(Struct, Generic[Harness], frozen=True):
    """One behaviour, with the guarantee it proves. NONE: every adapter must have it."""

    run: Callable[[Harness], None]
    proves: Guarantee = Guarantee.NONE
    optional: bool = False
    """For what an adapter may lack, and for faults that a harness may be unable to cause."""

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def text(self) -> str:
        return (self.run.__doc__ or "").strip()

    def __str__(self) -> str:
        return self.name

    def __call__(self, harness: Harness) -> None:
        self.run(harness)


class Result(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    MISSED = "missed"
    """It had to be made, and the harness could not."""
    SKIPPED = "skipped"


class Finding(Struct, frozen=True):
    """How one check went."""

    check: str
    proves: Guarantee
    result: Result
    why: str = ""


class Report(Struct, frozen=True):
    """How an adapter did."""

    subject: str
    declared: Guarantee
    findings: tuple[Finding, ...]

    def named(self, result: Result) -> tuple[str, ...]:
        return tuple(finding.check for finding in self.findings if finding.result is result)

    @property
    def failed(self) -> tuple[str, ...]:
        """The checks that did not hold."""
        return self.named(Result.FAILED)

    @property
    def proved(self) -> Mapping[str, tuple[str, ...]]:
        """By which passing checks each declared guarantee was proved; failing ones spoil it."""
        return {
            guarantee.names[0]: tuple(
                finding.check
                for finding in self.findings
                if finding.result is Result.PASSED and guarantee in finding.proves
            )
            for guarantee in Guarantee
            if guarantee in self.declared and not self._spoilt(guarantee)
        }

    @property
    def unproved(self) -> tuple[str, ...]:
        """Declared guarantees with no passing check, or with a failing one."""
        proved = self.proved
        return tuple(name for name in self.declared.names if not proved.get(name))

    def _spoilt(self, guarantee: Guarantee) -> bool:
        return any(
            finding.result is Result.FAILED and guarantee in finding.proves
            for finding in self.findings
        )

    @property
    def missed(self) -> tuple[str, ...]:
        """The checks that had to be made and were not."""
        return self.named(Result.MISSED)

    @property
    def ok(self) -> bool:
        return not (self.failed or self.missed or self.unproved)

    def insist(self) -> None:
        """Raise AssertionError, with the whole report, unless everything held."""
        assert self.ok, str(self)

    def __str__(self) -> str:
        contract = [
            finding
            for finding in self.findings
            if finding.proves is Guarantee.NONE and finding.result is Result.PASSED
        ]
        lines = [
            f"{self.subject}: {'conforms' if self.ok else 'DOES NOT CONFORM'}",
            f"  every adapter's contract: {len(contract)} checks passed",
            *(
                self._told(guarantee)
                for guarantee in Guarantee
                if guarantee in self.declared or self._asked(guarantee)
            ),
            *(
                f"  {finding.result.value}: {finding.check}: {finding.why}"
                for finding in self.findings
                if finding.result is not Result.PASSED and finding.proves in self.declared
            ),
        ]
        return "\n".join(lines)

    def _asked(self, guarantee: Guarantee) -> int:
        """How many checks could prove it."""
        return sum(guarantee in finding.proves for finding in self.findings)

    def _told(self, guarantee: Guarantee) -> str:
        name = guarantee.names[0]
        if guarantee not in self.declared:
            return f"  {name}: not declared, {self._asked(guarantee)} checks skipped"
        return f"  {name}: {', '.join(self.proved.get(name, ())) or 'NOT PROVED'}"


def assert_outage(name: str, operation: Callable[[], object]) -> None:
    """The operation must raise an Outage: an answer would be a guess, another error a leak."""
    try:
        answer = operation()
    except Outage:
        return
    except Exception as flaw:
        raise AssertionError(f"{name} raised {type(flaw).__name__}, not an Outage") from flaw
    raise AssertionError(f"{name} answered {answer}, although nothing can be reached")


def examine(
    subject: str,
    declared: Guarantee,
    checks: Iterable[Check[Harness]],
    factory: Factory[Harness],
) -> Report:
    """Put a fresh adapter through every check that its declared guarantees ask for."""
    return Report(subject, declared, tuple(_find(check, declared, factory) for check in checks))


def _find(check: Check[Harness], declared: Guarantee, factory: Factory[Harness]) -> Finding:
    if check.proves not in declared:
        return Finding(check.name, check.proves, Result.SKIPPED, "the guarantee is not declared")
    try:
        with factory() as harness:
            check(harness)
    except NotApplicable as reason:
        result = Result.SKIPPED if check.optional else Result.MISSED
        return Finding(check.name, check.proves, result, str(reason))
    except Exception as flaw:  # noqa: BLE001 - whatever an adapter raises is what was found
        why = " ".join(f"{type(flaw).__name__}: {flaw}".split())[:_LONGEST_WHY]
        return Finding(check.name, check.proves, Result.FAILED, why)
    return Finding(check.name, check.proves, Result.PASSED)
