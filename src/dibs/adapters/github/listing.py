"""Lists of issues over REST: the cheapest way to look for work, since an unchanged list is free.

GitHub hands out a list in pages and tells where the next one is. An issue that leaves the list
moves all behind it forward, so a search that goes on behind an issue looks for where that issue
would stand now, and begins near where it stood. Pull requests are listed too, and left out.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from dibs.adapters.github.known import Known
from dibs.adapters.github.pages import PAGE, whole_page
from dibs.adapters.github.shapes import RestIssue, decode
from dibs.adapters.github.translating import Translator, folded, label_name, whole_second
from dibs.adapters.github.transport import Purpose, Reply, Transport
from dibs.core.control import CONTROL_LABEL
from dibs.core.ids import IssueRef, ServerTime
from dibs.core.issue import Issue
from dibs.ports.tracker import Found, IssueQuery

_MOST_LISTS = 64
_MOST_PLACES = 64
_MOST_PAGES = 10_000
_MOST = 2**31 - 1
"""The highest number: GraphQL takes no more."""

_Kind = tuple[tuple[str, ...], bool]
Position = tuple[ServerTime, int]
"""When an issue was made, and its number: the order of every list."""


class _List(Struct):
    """One list as far as it was walked: where its pages begin, and what was handed out from which.

    The addresses are GitHub's own, and the first page has none.
    """

    addresses: list[str] = field(default_factory=list)
    places: OrderedDict[int, int] = field(default_factory=OrderedDict)

    def begins(self, page: int, at: str) -> None:
        """What was known of the pages behind it holds only if it begins where it did."""
        if self.addresses[page - 1 : page] != [at]:
            self.addresses[page - 1 :] = [at]


class _Page(Struct, frozen=True):
    number: int
    shapes: list[RestIssue]
    """In order, pull requests among them."""
    now: ServerTime
    following: str | None
    """Where the next one is."""

    def begins_behind(self, position: Position) -> bool:
        return not self.shapes or position_of(self.shapes[0]) > position


class Listing:
    """The lists of one repository."""

    def __init__(self, transport: Transport, translator: Translator, known: Known) -> None:
        self._transport = transport
        self._translator = translator
        self._known = known
        self._path = f"/repos/{translator.repository}/issues"
        self._lists: OrderedDict[_Kind, _List] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, query: IssueQuery, after: Position | None = None) -> Found:
        """`after`: where `query.after` stands in every list."""
        taken: list[Issue] = []
        left_out = 0
        for page, shape in self._walk(query, after):
            if shape is None:
                continue
            if left_out < query.skip:
                left_out += 1
            elif len(taken) < query.limit:
                taken.append(self._translator.rest_issue(shape))
                self._remember(query, shape.number, page.number)
            else:
                return Found(tuple(taken), page.now, more=True)
        return Found(tuple(taken), page.now)

    def _walk(
        self, query: IssueQuery, after: Position | None
    ) -> Iterator[tuple[_Page, RestIssue | None]]:
        """What matches, page by page, and nothing at the end of each page."""
        for page in self._pages(query, after):
            for shape in page.shapes:
                behind = after is None or position_of(shape) > after
                if behind and self._matches(shape, query):
                    yield page, shape
            yield page, None

    def _pages(self, query: IssueQuery, after: Position | None) -> Iterator[_Page]:
        page = self._page(query, *self._entry(query))
        while page.number > 0 and (after is None or page.begins_behind(after)):
            page = self._page(query, *self._address(query, page.number - 1))
        yield page
        while page.following is not None and page.number < _MOST_PAGES:
            page = self._page(query, page.number + 1, page.following)
            yield page

    def _page(self, query: IssueQuery, number: int, address: str | None) -> _Page:
        parameters = _parameters(query) if address is None else None
        reply = whole_page(self._ask, address or self._path, parameters)
        shapes = sorted(decode(reply.body, list[RestIssue]), key=position_of)
        for shape in shapes:
            if shape.pull_request is None:
                self._known.saw_issue(shape)
        following = self._transport.follow(reply)
        if following is not None:
            listed = self._list(query)
            with self._lock:
                listed.begins(number + 1, following)
        return _Page(number, shapes, reply.now, following)

    def _ask(self, address: str, parameters: Mapping[str, str] | None, fresh: bool) -> Reply:  # noqa: FBT001
        return self._transport.rest(
            "GET",
            address,
            purpose=Purpose.DISCOVER,
            params=parameters,
            conditional=True,
            fresh=fresh,
        )

    def _matches(self, shape: RestIssue, query: IssueQuery) -> bool:
        """The server filtered by most of it; and the control issue is no work."""
        if shape.pull_request is not None:
            return False
        return carries({label_name(label) for label in shape.labels}, query) and (
            query.closed_too or shape.state == "open"
        )

    # Where we were

    def _list(self, query: IssueQuery) -> _List:
        kind = (tuple(sorted(folded(label) for label in query.labels)), query.closed_too)
        with self._lock:
            listed = self._lists.setdefault(kind, _List())
            self._lists.move_to_end(kind)
            while len(self._lists) > _MOST_LISTS:
                self._lists.popitem(last=False)
            return listed

    def _entry(self, query: IssueQuery) -> tuple[int, str | None]:
        """The page that the issue was on when it was handed out; the first if nobody knows."""
        if query.after is None:
            return 0, None
        listed = self._list(query)
        with self._lock:
            place = listed.places.get(int(query.after.key), 0)
        return self._address(query, place)

    def _address(self, query: IssueQuery, page: int) -> tuple[int, str | None]:
        listed = self._list(query)
        with self._lock:
            known = min(page, len(listed.addresses))
            return known, listed.addresses[known - 1] if known else None

    def _remember(self, query: IssueQuery, number: int, page: int) -> None:
        listed = self._list(query)
        with self._lock:
            listed.places[number] = page
            listed.places.move_to_end(number)
            while len(listed.places) > _MOST_PLACES:
                listed.places.popitem(last=False)


def position_of(shape: RestIssue) -> Position:
    return whole_second(shape.created_at), shape.number


def carries(labels: set[str], query: IssueQuery) -> bool:
    """Whether an issue with these labels is asked for."""
    carried = {folded(label) for label in labels}
    return (
        carried.issuperset(folded(label) for label in query.labels)
        and carried.isdisjoint(folded(label) for label in query.without)
        and CONTROL_LABEL not in carried
    )


def _parameters(query: IssueQuery) -> dict[str, str]:
    parameters = {
        "state": "all" if query.closed_too else "open",
        "sort": "created",
        "direction": "asc",
        "per_page": str(PAGE),
    }
    # A comma would part the label in two there; it is looked at here in any case.
    labels = sorted(label for label in query.labels if "," not in label)
    return {**parameters, "labels": ",".join(labels)} if labels else parameters


def number_of(issue: IssueRef) -> int | None:
    """The issue's number; None if its key is none, and then GitHub has no such issue."""
    key = issue.key
    number = int(key) if key.isascii() and key.isdigit() and len(key) <= len(str(_MOST)) else None
    return number if number is not None and number <= _MOST else None
