"""What a conformance run found: which check passed, and which guarantee that proves.

A check is a plain function that takes a harness and raises AssertionError. The report is what is
shown to people: a guarantee that is declared and that no check could prove is as bad as a check
that failed.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from dibs.ports.guarantees import Guarantee

Harness = TypeVar("Harness")
Factory = Callable[[], AbstractContextManager[Harness]]
"""Opens a fresh, empty adapter for one check, and closes it afterwards."""


class NotApplicable(Exception):
    """Raised by a check, or by a harness, for what this adapter does not offer."""


@dataclass(frozen=True, slots=True)
class Check(Generic[Harness]):
    """One behaviour, with the guarantee it proves. NONE: every adapter must have it."""

    run: Callable[[Harness], None]
    proves: Guarantee = Guarantee.NONE

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
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """How one check went."""

    check: str
    proves: Guarantee
    result: Result
    why: str = ""


@dataclass(frozen=True, slots=True)
class Report:
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
    def ok(self) -> bool:
        return not self.failed and not self.unproved

    def insist(self) -> None:
        """Raise AssertionError, with the whole report, unless everything held."""
        assert self.ok, str(self)

    def __str__(self) -> str:
        lines = [f"{self.subject}: {'conforms' if self.ok else 'DOES NOT CONFORM'}"]
        contract = tuple(
            finding.check
            for finding in self.findings
            if finding.proves is Guarantee.NONE and finding.result is Result.PASSED
        )
        lines.append(f"  every adapter's contract: {len(contract)} checks passed")
        for name in self.declared.names:
            checks = ", ".join(self.proved.get(name, ())) or "NOT PROVED"
            lines.append(f"  {name}: {checks}")
        lines += [
            f"  {finding.result.value}: {finding.check}: {finding.why}"
            for finding in self.findings
            if finding.result is not Result.PASSED
        ]
        return "\n".join(lines)


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
        return Finding(check.name, check.proves, Result.SKIPPED, str(reason))
    except Exception as flaw:  # noqa: BLE001 - whatever an adapter raises is what was found
        why = " ".join(f"{type(flaw).__name__}: {flaw}".split())[:300]
        return Finding(check.name, check.proves, Result.FAILED, why)
    return Finding(check.name, check.proves, Result.PASSED)
