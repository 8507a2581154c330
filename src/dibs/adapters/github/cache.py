"""What was learned from replies and would cost a request to learn again: GraphQL's ids, above all.

A cache and nothing more. Ids never change; a label that was deleted and made again has another one,
so whoever finds that out forgets it here.

What one process remembers of earlier replies: bodies by their ETag, and repositories' new names.

Both only save requests: whatever is forgotten is asked for again.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from dibs.adapters.github.shapes import (
    Label,
    Node,
    RestComment,
    RestIssue,
    RestLabel,
    WholeIssue,
    folded,
    present,
    whole_second,
)
from dibs.core.card import Card, CardState, parse_mark
from dibs.core.errors import RateLimited
from dibs.core.ids import LocalTime, ServerTime

_MOST = 20_000
_LIVE = (CardState.BID, CardState.HELD)

Key = TypeVar("Key")
Value = TypeVar("Value")


class KnownIssue(Struct, frozen=True):
    node: str
    created_at: ServerTime


class KnownComment(Struct, frozen=True):
    node: str
    number: int
    """Of the issue that it is on."""


class _Remembered(Generic[Key, Value]):
    """The latest so many. Not safe for threads by itself."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        return self._entries.get(key)

    def put(self, key: Key, value: Value) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > _MOST:
            self._entries.popitem(last=False)

    def drop(self, key: Key) -> None:
        self._entries.pop(key, None)


class Known:
    """Of one repository. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._issues: _Remembered[int, KnownIssue] = _Remembered()
        self._comments: _Remembered[int, KnownComment] = _Remembered()
        self._labels: dict[str, str] = {}
        self._ours: _Remembered[int, tuple[CardState, LocalTime]] = _Remembered()
        self._long: _Remembered[int, bool] = _Remembered()

    # Issues

    def issue(self, number: int) -> KnownIssue | None:
        with self._lock:
            return self._issues.get(number)

    def saw_issue(self, shape: RestIssue | WholeIssue) -> None:
        with self._lock:
            match shape:
                case RestIssue():
                    self._issues.put(
                        shape.number, KnownIssue(shape.node_id, whole_second(shape.created_at))
                    )
                    self._saw_labels(one for one in shape.labels if isinstance(one, RestLabel))
                case WholeIssue():
                    self._issues.put(
                        shape.number, KnownIssue(shape.id, whole_second(shape.created_at))
                    )
                    self._saw_labels(present(shape.labels.nodes if shape.labels else None))
                    self._saw_comments(shape.comments.nodes, shape.number)
                    if shape.comments.page_info.more:
                        self._long.put(shape.number, value=True)

    def is_long(self, number: int) -> bool:
        """Whether it has more comments than one reading brings."""
        with self._lock:
            return self._long.get(number) is not None

    @contextmanager
    def saying(self, number: int, bodies: Iterable[str], now: LocalTime) -> Iterator[None]:
        """A bid or a lease makes the issue ours until its time is over, or we said so."""
        cards = [mark for body in bodies if isinstance(mark := parse_mark(body), Card)]
        with self._lock:
            before = self._ours.get(number)
            for card in cards:
                if card.state in _LIVE:
                    until = LocalTime(now + card.ttl.total_seconds())
                    self._ours.put(number, (card.state, until))
        try:
            yield
        except RateLimited:  # nothing was said
            self._put_back(number, before)
            raise
        with self._lock:
            if any(card.state not in _LIVE for card in cards):
                self._ours.drop(number)

    def _put_back(self, number: int, before: tuple[CardState, LocalTime] | None) -> None:
        with self._lock:
            if before is None:
                self._ours.drop(number)
            else:
                self._ours.put(number, before)

    def ours(self, number: int, now: LocalTime) -> CardState | None:
        """Whether we bid for it or hold it: then what is read of it decides about a lease."""
        with self._lock:
            state, until = self._ours.get(number) or (None, now)
        return state if now < until else None

    # Comments

    def comment(self, comment: int) -> KnownComment | None:
        with self._lock:
            return self._comments.get(comment)

    def saw_comment(self, shape: RestComment, number: int) -> None:
        with self._lock:
            self._comments.put(shape.id, KnownComment(shape.node_id, number))

    def _saw_comments(self, nodes: Iterable[Node | None], number: int) -> None:
        for node in nodes:
            if node is not None:
                self._comments.put(int(node.full_database_id), KnownComment(node.id, number))

    def forget_comment(self, comment: int) -> None:
        with self._lock:
            self._comments.drop(comment)

    # Labels

    def label(self, name: str) -> str | None:
        with self._lock:
            return self._labels.get(folded(name))

    def unknown_labels(self, names: Collection[str]) -> list[str]:
        with self._lock:
            return [name for name in names if folded(name) not in self._labels]

    def saw_labels(self, labels: Iterable[Label | RestLabel]) -> None:
        with self._lock:
            self._saw_labels(labels)

    def _saw_labels(self, labels: Iterable[Label | RestLabel]) -> None:
        for label in labels:
            node = label.node_id if isinstance(label, RestLabel) else label.id
            if node:
                self._labels[folded(label.name)] = node

    def forget_labels(self, names: Iterable[str]) -> None:
        with self._lock:
            for name in names:
                self._labels.pop(folded(name), None)


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
