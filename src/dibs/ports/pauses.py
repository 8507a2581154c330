"""Where a person's word about the whole repository or fleet is kept for every worker to read."""

from typing import Protocol

from dibs.core.eligibility import Pause, PauseScope


class Pauses(Protocol):
    def pauses(self) -> tuple[Pause, ...]: ...

    def pause(self, scope: PauseScope, *, repo: str, reason: str, by: str) -> None: ...

    def resume(self, scope: PauseScope, *, repo: str) -> bool:
        """True if there was something to lift."""
        ...
