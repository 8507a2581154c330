"""Where a person's word about the whole repository or fleet is kept for every worker to read."""

from typing import Protocol, runtime_checkable

from dibs.core.eligibility import Pause, PauseScope


class Pauses(Protocol):
    def pauses(self) -> tuple[Pause, ...]: ...

    def pause(self, scope: PauseScope, *, repo: str, reason: str, by: str) -> None: ...

    def resume(self, scope: PauseScope, *, repo: str, by: str) -> bool:
        """True if there was something to lift."""
        ...


@runtime_checkable
class Worrying(Protocol):
    """Optional: an adapter that keeps these words where there may be no room for more one day."""

    def worries(self) -> tuple[str, ...]:
        """What a person should look at before that."""
        ...
