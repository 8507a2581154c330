"""Control records in this process's memory: the store that grants, and pauses."""

import os
import threading
from collections.abc import Callable

from dibs.core.eligibility import Pause, PauseScope
from dibs.core.granter import Granter, Owner
from dibs.core.ids import LocalTime, ServerTime


class MemoryGranters:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._granter: Granter | None = None
        self._id = os.urandom(8).hex()

    def owner(self) -> Owner:
        return Owner(self._id, "a backlog in memory")

    def granter(self, *, since: LocalTime | None = None) -> Granter | None:  # noqa: ARG002
        return self._granter

    def lately(self) -> Granter | None:
        return self._granter

    def appoint(self, granter: Granter, *, instead_of: Granter | None) -> Granter:
        with self._lock:
            if self._granter == instead_of:
                self._granter = granter
            assert self._granter is not None, "nobody is ever dismissed without a successor"
            return self._granter


class MemoryPauses:
    def __init__(self, now: Callable[[], ServerTime]) -> None:
        self._now = now
        self._pauses: dict[tuple[PauseScope, str], Pause] = {}

    def pauses(self) -> tuple[Pause, ...]:
        return tuple(self._pauses.values())

    def pause(self, scope: PauseScope, *, repo: str, reason: str, by: str) -> None:
        self._pauses[scope, repo] = Pause(scope, reason, by, self._now(), repo)

    def resume(self, scope: PauseScope, *, repo: str, by: str) -> bool:  # noqa: ARG002 - no log
        return self._pauses.pop((scope, repo), None) is not None
