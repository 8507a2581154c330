"""What was learned from replies and would cost a request to learn again: GraphQL's ids, above all.

A cache and nothing more. Ids never change; a label that was deleted and made again has another one,
so whoever finds that out forgets it here.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from msgspec import Struct

from dibs.adapters.github.shapes import Label, Node, RestComment, RestIssue, RestLabel, WholeIssue
from dibs.adapters.github.translating import folded, present, whole_second
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
