"""The accounts that may write to the repository, in one list: what a crowd of strangers calls for.

To look up each account that wrote a mark is a request each. One page of GitHub's list of
collaborators tells of all of them, to whoever may write and, where an organisation owns the
repository, is its member. A member also sees the membership of others with each comment. So who is
neither on the list nor said to belong here may not write, by two answers that agree; who is said to
belong here and is not on the list is for others to look up.

Refuses to be in doubt: a list that this token is not given, that tells no permissions or that fills
its page is none.
"""

import threading

from dibs.adapters.github.repository import RepositoryDoor
from dibs.adapters.github.shapes import RestCollaborator, decode
from dibs.adapters.github.translating import folded
from dibs.adapters.github.transport import Purpose
from dibs.core.ids import LocalTime

_PAGE = 100
_OK = 200


class Writers:
    """Of one repository. Safe for many threads."""

    def __init__(self, door: RepositoryDoor, *, kept_s: float) -> None:
        self._door = door
        self._kept_s = kept_s
        self._lock = threading.Lock()
        self._names: frozenset[str] | None = None
        self._asked_at: LocalTime | None = None

    def at_hand(self) -> frozenset[str] | None:
        """The list, if it was asked for lately and is to be had."""
        with self._lock:
            return self._names if self._is_fresh() else None

    def ask(self, purpose: Purpose) -> None:
        """Unless that was done lately."""
        with self._lock:
            if self._is_fresh():
                return
        asked_at = self._door.transport.clock.now()
        names = self._listed(purpose)
        with self._lock:
            self._names, self._asked_at = names, asked_at

    def _is_fresh(self) -> bool:
        now = self._door.transport.clock.now()
        return self._asked_at is not None and now < self._asked_at + self._kept_s

    def _listed(self, purpose: Purpose) -> frozenset[str] | None:
        params = {"per_page": str(_PAGE)}
        reply = self._door.ask("GET", "/collaborators", purpose=purpose, params=params)
        if reply.status != _OK:
            return None
        told = decode(reply.body, list[RestCollaborator])
        if len(told) >= _PAGE or any(one.permissions is None for one in told):
            return None
        return frozenset(
            folded(one.login) for one in told if one.permissions and one.permissions.push
        )
