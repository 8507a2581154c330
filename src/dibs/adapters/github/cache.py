"""Caches of one process, filled from GitHub's replies: ids, reply bodies by ETag, renames.

All three only save requests; a missing entry is asked for again.

`IdCache` holds the GraphQL ids of issues, comments and labels. An id never changes, but a label
that was deleted and made again has a new id: the caller that finds an old label id refused must
call `forget_labels`. `IdCache` also knows which issues we bid for or hold.

`Replies` holds bodies with their ETag, so that GitHub can answer "unchanged". `Renames` holds the
new names of renamed repositories.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from dibs.adapters.github.shapes import (
    PAGE,
    Label,
    RestComment,
    RestIssue,
    RestLabel,
    WholeIssue,
    folded,
    present,
    whole_second,
)
from dibs.core.bounded import Bounded
from dibs.core.card import Card, CardState, parse_mark
from dibs.core.errors import RateLimited
from dibs.core.ids import LocalTime, ServerTime

_MOST = 20_000
_LIVE = (CardState.BID, CardState.HELD)


class CachedIssue(Struct, frozen=True):
    node: str
    """The GraphQL id."""
    created_at: ServerTime


class CachedComment(Struct, frozen=True):
    node: str
    """The GraphQL id."""
    number: int
    """The number of the issue that the comment is on."""


class IdCache:
    """The GraphQL ids of a repository, and our live cards in it. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._issues: Bounded[int, CachedIssue] = Bounded(_MOST)
        self._comments: Bounded[int, CachedComment] = Bounded(_MOST)
        self._labels: dict[str, Label] = {}
        self._own_cards: Bounded[int, tuple[CardState, LocalTime]] = Bounded(_MOST)
        """By issue number: the state of our card, and when its ttl is over."""
        self._long: Bounded[int, bool] = Bounded(_MOST)

    # Issues

    def issue(self, number: int) -> CachedIssue | None:
        with self._lock:
            return self._issues.get(number)

    def saw_issue(self, shape: RestIssue | WholeIssue) -> None:
        with self._lock:
            number, created_at = shape.number, whole_second(shape.created_at)
            match shape:
                case RestIssue():
                    self._issues[number] = CachedIssue(shape.node_id, created_at)
                    self.saw_labels(label for label in shape.labels if isinstance(label, RestLabel))
                case WholeIssue():
                    self._issues[number] = CachedIssue(shape.id, created_at)
                    self.saw_labels(present(shape.labels))
                    for node in present(shape.comments):
                        self._comments[int(node.full_database_id)] = CachedComment(node.id, number)
                    if shape.comments.page_info.more and shape.comments.total_count > PAGE:
                        self._long[number] = True

    def is_long(self, number: int) -> bool:
        """Whether the issue has more comments than one GraphQL request returns."""
        with self._lock:
            return self._long.get(number) is not None

    @contextmanager
    def writing_cards(self, number: int, bodies: Iterable[str], now: LocalTime) -> Iterator[None]:
        """Around the request which writes these comments: note which cards of ours are live.

        A bid or a held card makes the issue ours before the request is sent, until the ttl is over.
        A card in any later state ends our claim once the request succeeded. A rate limit means that
        GitHub wrote no comment, so the earlier state is restored; after any different error the
        issue stays ours, since GitHub may have written the comment.
        """
        cards = [mark for body in bodies if isinstance(mark := parse_mark(body), Card)]
        with self._lock:
            before = self._own_cards.get(number)
            for card in cards:
                if card.state in _LIVE:
                    until = LocalTime(now + card.ttl.total_seconds())
                    self._own_cards[number] = (card.state, until)
        try:
            yield
        except RateLimited:
            with self._lock:
                if before is None:
                    self._own_cards.pop(number, None)
                else:
                    self._own_cards[number] = before
            raise
        with self._lock:
            if any(card.state not in _LIVE for card in cards):
                self._own_cards.pop(number, None)

    def own_card(self, number: int, now: LocalTime) -> CardState | None:
        """The state of our live card on the issue: BID, HELD, or None.

        With a live card, a read of the issue decides about a lease.
        """
        with self._lock:
            state, until = self._own_cards.get(number) or (None, now)
        return state if now < until else None

    # Comments

    def comment(self, comment: int) -> CachedComment | None:
        with self._lock:
            return self._comments.get(comment)

    def saw_comment(self, shape: RestComment, number: int) -> None:
        with self._lock:
            self._comments[shape.id] = CachedComment(shape.node_id, number)

    def forget_comment(self, comment: int) -> None:
        with self._lock:
            self._comments.pop(comment, None)

    # Labels

    def label(self, name: str) -> str | None:
        with self._lock:
            found = self._labels.get(folded(name))
        return None if found is None else found.id

    def spelling(self, name: str) -> str:
        """The label as the repository spells it, as far as we know."""
        with self._lock:
            found = self._labels.get(folded(name))
        return name if found is None else found.name

    def unknown_labels(self, names: Collection[str]) -> list[str]:
        with self._lock:
            return [name for name in names if folded(name) not in self._labels]

    def saw_labels(self, labels: Iterable[Label] | Iterable[RestLabel]) -> None:
        with self._lock:
            for label in labels:
                node = label.node_id if isinstance(label, RestLabel) else label.id
                if node:
                    self._labels[folded(label.name)] = Label(node, label.name)

    def forget_labels(self, names: Iterable[str]) -> None:
        with self._lock:
            for name in names:
                self._labels.pop(folded(name), None)


_MOST_REPLIES = 512
_MOST_BYTES = 32 * 1024 * 1024
_MOST_NAMES = 100
_REPOSITORY = re.compile(r"(/repos/[^/]+/[^/]+|/repositories/\d+)(/.*)?")


class CachedReply(Struct, frozen=True):
    """A reply with an ETag: the server answers "unchanged" instead of sending the body again."""

    etag: str
    headers: Mapping[str, str]
    body: bytes
    at: LocalTime
    """Our local time when the reply had arrived: the server wrote the reply earlier."""


class Replies:
    """The replies used last, by address; limited in number and in bytes. Safe for many threads."""

    def __init__(self, *, most: int = _MOST_REPLIES, most_bytes: int = _MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._lock = threading.Lock()
        self._by_address: OrderedDict[str, CachedReply] = OrderedDict()
        self._bytes = 0

    def get(self, address: str) -> CachedReply | None:
        with self._lock:
            if address in self._by_address:
                self._by_address.move_to_end(address)
            return self._by_address.get(address)

    def put(self, address: str, reply: CachedReply) -> None:
        with self._lock:
            self._drop(address)
            self._by_address[address] = reply
            self._bytes += len(reply.body)
            while len(self._by_address) > self._most or self._bytes > self._most_bytes:
                self._drop(next(iter(self._by_address)))

    def _drop(self, address: str) -> None:
        gone = self._by_address.pop(address, None)
        self._bytes -= len(gone.body) if gone else 0


class Place(Struct, frozen=True):
    """An address of GitHub's API, split into server, repository and the part behind them."""

    root: str
    """The server, and the path of its API."""
    repository: str
    """`/repos/OWNER/NAME` or `/repositories/ID`."""
    rest: str
    """The path behind the repository, with the query."""

    def __str__(self) -> str:
        return self.root + self.repository + self.rest

    @property
    def whole(self) -> str:
        """The address of the repository itself."""
        return self.root + self.repository


def place_of(address: str, root: str) -> Place | None:
    """The address in parts; None for an address without a repository below `root`."""
    parts, base = urlsplit(address), urlsplit(root)
    found = _REPOSITORY.fullmatch(parts.path.removeprefix(base.path))
    if found is None or parts[:2] != base[:2] or not parts.path.startswith(base.path):
        return None
    return Place(root, found[1], urlunsplit(("", "", found[2] or "", parts.query, "")))


class Renames:
    """The current names of renamed or transferred repositories. Safe for many threads."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._names: Bounded[str, str] = Bounded(_MOST_NAMES)

    def current(self, address: str) -> str:
        """The address, with the repository's new name if `learn` was called for the old name."""
        place = place_of(address, self._root)
        if place is None:
            return address
        with self._lock:
            now = self._names.get(place.repository.lower())
        return address if now is None else str(Place(place.root, now, place.rest))

    def learn(self, old: Place, repository: str) -> None:
        with self._lock:
            self._names[old.repository.lower()] = repository
