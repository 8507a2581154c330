"""Connections: a page of a list, with cursors, counts and whether there is more.

A cursor is the id of an entry, so a page continues after the entries that were seen, whatever was
added or removed before them.
"""

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

from .graphql_refusals import Complaint
from .records import Comment, Edit, Event, Issue, Label, Reaction, User

Entry = Issue | Comment | Label | User | Event | Reaction | Edit
MOST = 100


class Bounds(TypedDict, total=False):
    first: int | None
    last: int | None
    after: str | None
    before: str | None


class Order(TypedDict):
    field: str
    direction: str


@dataclass(frozen=True, slots=True)
class Edge:
    node: Entry

    @property
    def cursor(self) -> str:
        return b64encode(f"cursor:v2:{self.node.id}".encode()).decode()


@dataclass(frozen=True, slots=True)
class Info:
    has_previous: bool
    has_next: bool
    start: str | None
    end: str | None


@dataclass(frozen=True)
class Page:
    """The value of a connection. Its count may exceed its entries: a fault can cut lists."""

    entries: Callable[[], Sequence[Entry]]
    """The whole list; called only if entries are requested, not only their count."""
    bounds: Bounds
    name: str
    counted: Callable[[], int] | None = None

    @property
    def count(self) -> int:
        return self.counted() if self.counted else len(self._all)

    @property
    def nodes(self) -> Sequence[Entry]:
        start, stop, entries = self._cut
        return entries[start:stop]

    @property
    def edges(self) -> list[Edge]:
        return [Edge(entry) for entry in self.nodes]

    @property
    def info(self) -> Info:
        start, stop, entries = self._cut
        edges = self.edges
        return Info(
            has_previous=start > 0,
            has_next=stop < len(entries),
            start=edges[0].cursor if edges else None,
            end=edges[-1].cursor if edges else None,
        )

    @cached_property
    def _cut(self) -> tuple[int, int, Sequence[Entry]]:
        first, last = self.bounds.get("first"), self.bounds.get("last")
        self._check(first, last)
        entries = self._all
        start = _behind(entries, self.bounds.get("after"))
        stop = _place(entries, self.bounds.get("before"), len(entries))
        stop = max(start, stop)
        if first is not None:
            stop = min(stop, start + first)
        if last is not None:
            start = max(start, stop - last)
        return start, stop, entries

    @cached_property
    def _all(self) -> Sequence[Entry]:
        return self.entries()

    def _check(self, first: int | None, last: int | None) -> None:
        if first is None and last is None:
            raise Complaint(
                "MISSING_PAGINATION_BOUNDARIES",
                f"You must provide a `first` or `last` value to properly paginate the "
                f"`{self.name}` connection.",
            )
        for bound, value in (("first", first), ("last", last)):
            if value is not None and not 0 <= value <= MOST:
                raise Complaint(
                    "EXCESSIVE_PAGINATION" if value > MOST else "INVALID_CURSOR_ARGUMENTS",
                    f"Requesting {value} records on the `{self.name}` connection exceeds the "
                    f"`{bound}` limit of {MOST} records.",
                )


def _behind(entries: Sequence[Entry], cursor: str | None) -> int:
    if cursor is None:
        return 0
    number = _entry(cursor)
    place = _place(entries, cursor, len(entries))
    return place + (place < len(entries) and entries[place].id == number)


def _place(entries: Sequence[Entry], cursor: str | None, otherwise: int) -> int:
    """The index of the cursor's entry; if that is deleted, of the next younger one."""
    if cursor is None:
        return otherwise
    number = _entry(cursor)
    for place, entry in enumerate(entries):
        if entry.id == number:
            return place
    return next((place for place, entry in enumerate(entries) if entry.id > number), otherwise)


def _entry(cursor: str) -> int:
    try:
        head, _, number = b64decode(cursor, validate=True).decode().rpartition(":")
        if head == "cursor:v2":
            return int(number)
    except (NotBase64, ValueError):
        pass
    raise Complaint("INVALID_CURSOR_ARGUMENTS", f"`{cursor}` does not appear to be a valid cursor.")
