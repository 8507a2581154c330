"""Records with their past, so that a reader can see what a lagging replica would show.

Each version knows when replicas learn of it. The primary shows the newest version; a replica shows
the newest it has learned of, and does not know a record before one of its versions has arrived.
Versions older than the longest possible lag or staleness are forgotten.
"""

from collections.abc import Hashable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Generic, TypeVar

MEMORY = timedelta(minutes=10)
"""How far back a stale read can reach."""

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


class Table(Generic[K, R]):
    """The records of one kind by key. Writers hold the state's lock; readers need none."""

    def __init__(self) -> None:
        self._versions: dict[K, tuple[tuple[datetime, R], ...]] = {}

    def put(self, key: K, record: R, *, arrives_at: datetime, now: datetime) -> None:
        """Add a version of which replicas learn at `arrives_at`."""
        kept = self._versions.get(key, ())
        self._versions[key] = (*_recent(kept, now - MEMORY), (arrives_at, record))

    def newest(self, key: K) -> R | None:
        versions = self._versions.get(key)
        return versions[-1][1] if versions else None

    def at(self, key: K, instant: datetime) -> R | None:
        """The newest version that a replica knows at that instant."""
        for arrives_at, record in reversed(self._versions.get(key, ())):
            if arrives_at <= instant:
                return record
        return None

    def several(self, keys: Iterable[K], instant: datetime | None) -> list[R]:
        """The records with these keys that exist, as the primary or a replica has them."""
        if instant is not None:
            found = (self.at(key, instant) for key in keys)
            return [record for record in found if record is not None]
        versions = self._versions
        return [known[-1][1] for key in keys if (known := versions.get(key))]

    def __contains__(self, key: object) -> bool:
        return key in self._versions

    def __iter__(self) -> Iterator[K]:
        return iter(tuple(self._versions))

    def __len__(self) -> int:
        return len(self._versions)


def _recent(
    versions: tuple[tuple[datetime, R], ...], since: datetime
) -> tuple[tuple[datetime, R], ...]:
    """Versions that a reader may still see: the newest that all know, and the later ones."""
    for place in range(len(versions) - 1, -1, -1):
        if versions[place][0] <= since:
            return versions[place:]
    return versions
