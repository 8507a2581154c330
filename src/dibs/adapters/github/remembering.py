"""What one process remembers of earlier replies: bodies by their ETag, and repositories' new names.

Both only save requests: whatever is forgotten is asked for again.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from dibs.core.ids import LocalTime

_MOST_REPLIES = 512
_MOST_BYTES = 32 * 1024 * 1024
_MOST_NAMES = 100
_REPOSITORY = re.compile(r"(/repos/[^/]+/[^/]+|/repositories/\d+)(/.*)?")


class Kept(Struct, frozen=True):
    """A reply that the server will not send again while it is the same."""

    etag: str
    headers: Mapping[str, str]
    body: bytes
    at: LocalTime
    """Ours, when it had arrived: the server told it before."""


class Replies:
    """The last ones that were asked for, by their address. Safe for many threads."""

    def __init__(self, *, most: int = _MOST_REPLIES, most_bytes: int = _MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._bytes = 0

    def get(self, address: str) -> Kept | None:
        with self._lock:
            if address in self._kept:
                self._kept.move_to_end(address)
            return self._kept.get(address)

    def put(self, address: str, kept: Kept) -> None:
        with self._lock:
            self._drop(address)
            self._kept[address] = kept
            self._bytes += len(kept.body)
            while len(self._kept) > self._most or self._bytes > self._most_bytes:
                self._drop(next(iter(self._kept)))

    def _drop(self, address: str) -> None:
        gone = self._kept.pop(address, None)
        self._bytes -= len(gone.body) if gone else 0


class Place(Struct, frozen=True):
    """An address, split at the repository that it is about."""

    root: str
    """The server, and the path of its API."""
    repository: str
    rest: str
    """What of the repository, with the query."""

    def __str__(self) -> str:
        return self.root + self.repository + self.rest

    @property
    def whole(self) -> str:
        """The repository itself."""
        return self.root + self.repository


def place_of(address: str, root: str) -> Place | None:
    """None if the address is not about a repository."""
    parts, base = urlsplit(address), urlsplit(root)
    found = _REPOSITORY.fullmatch(parts.path.removeprefix(base.path))
    if found is None or parts[:2] != base[:2] or not parts.path.startswith(base.path):
        return None
    return Place(root, found[1], urlunsplit(("", "", found[2] or "", parts.query, "")))


class Renames:
    """Repositories that are elsewhere now. Safe for many threads."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}

    def current(self, address: str) -> str:
        place = place_of(address, self._root)
        if place is None:
            return address
        with self._lock:
            now = self._names.get(place.repository.lower())
        return address if now is None else str(Place(place.root, now, place.rest))

    def learn(self, old: Place, repository: str) -> None:
        with self._lock:
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            self._names[old.repository.lower()] = repository
