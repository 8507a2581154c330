"""Lists of issues with their comments over GraphQL: several lists in one request.

Each list is asked for by one label only and filtered here: whether GraphQL takes several labels as
"all of" or as "any of" is documented nowhere. A list that is continued begins at the page where it
was left; its cursors are positions, so that what has left the list since moves nothing.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct, field

from dibs.adapters.github import documents
from dibs.adapters.github.believing import Judging
from dibs.adapters.github.listing import Position, carries
from dibs.adapters.github.over_graphql import OverGraphql, insist_whole, states
from dibs.adapters.github.shapes import Label, Listed, WholeIssue, convert
from dibs.adapters.github.translating import folded, present, whole_second
from dibs.core.errors import Unavailable
from dibs.core.ids import ServerTime
from dibs.core.issue import Thread
from dibs.ports.tracker import FoundThreads, IssueQuery

_MOST_CURSORS = 256
_MOST_ROUNDS = 1000
_LISTS_AT_ONCE = 8

_Place = tuple[str, bool, int]


class _Search(Struct):
    """One query under way."""

    query: IssueQuery
    after: Position | None
    cursor: str | None
    skip: int
    now: ServerTime | None = None
    threads: list[Thread] = field(default_factory=list)
    more: bool = False
    over: bool = False

    @property
    def wanted(self) -> int:
        """How many to ask for next. As many as can be where few of those listed may be wanted.

        Which is so once a page did not do, and where the beginning of the list is known already.
        """
        if self.now is not None or (self.after is not None and self.cursor is None):
            return documents.MOST_AT_ONCE
        left = self.query.limit - len(self.threads)
        return max(1, min(documents.MOST_AT_ONCE, left + self.skip))

    @property
    def label(self) -> str:
        # The last is the rarest: stages come before what an issue of that stage must carry too.
        return self.query.labels[-1] if self.query.labels else ""

    def found(self) -> FoundThreads:
        assert self.now is not None, "every query is asked at least once"
        return FoundThreads(tuple(self.threads), self.now, self.more)


class FindingThreads:
    """For one repository."""

    def __init__(self, graphql: OverGraphql) -> None:
        self._graphql = graphql
        self._cursors: OrderedDict[_Place, str | None] = OrderedDict()
        self._lock = threading.Lock()

    def find_threads(
        self, queries: Sequence[IssueQuery], positions: Sequence[Position | None]
    ) -> tuple[FoundThreads, ...]:
        searches = [
            _Search(query, after, self._cursor(query), query.skip)
            for query, after in zip(queries, positions, strict=True)
        ]
        for _ in range(_MOST_ROUNDS):
            pending = [search for search in searches if not search.over]
            if not pending:
                break
            self._round(pending[:_LISTS_AT_ONCE])
        return tuple(search.found() for search in searches)

    def _round(self, searches: Sequence[_Search]) -> None:
        variables: dict[str, object] = {}
        for place, search in enumerate(searches):
            variables[f"l{place}"] = [search.label] if search.label else None
            variables[f"s{place}"] = states(closed_too=search.query.closed_too)
            variables[f"f{place}"] = min(search.wanted, self._graphql.at_once)
            variables[f"a{place}"] = search.cursor
        reply = self._graphql.query_many(documents.finding(len(searches)), variables)
        judging = self._graphql.judging_many()
        for place, search in enumerate(searches):
            told = reply.data["repository"].get(f"q{place}")
            if told is None:
                flaw = reply.at("repository", f"q{place}")
                said = flaw.message if flaw else "no answer"
                raise Unavailable(f"a list of issues could not be read: {said}")
            insist_whole(reply, "repository", f"q{place}")
            read = partial(self._read, now=reply.now, judging=judging)
            search.now = reply.now
            self._take(search, convert(told, Listed), told["nodes"], read)

    def _read(self, raw: object, *, now: ServerTime, judging: Judging) -> Thread:
        return self._graphql.thread(self._graphql.saw(raw), now, judging)

    def _take(
        self,
        search: _Search,
        page: Listed,
        told: Sequence[object],
        read: Callable[[object], Thread],
    ) -> None:
        for shape, raw in zip(page.nodes, told, strict=True):
            if shape is None or not _matches(shape, search):
                continue
            if search.skip:
                search.skip -= 1
            elif len(search.threads) == search.query.limit:
                search.more = search.over = True
                return
            else:
                search.threads.append(read(raw))
                self._remember(search, shape.number)
        search.cursor = page.page_info.end
        # Whether any of the others match is not worth a request: whoever goes on finds out.
        search.more = page.page_info.more and len(search.threads) == search.query.limit
        search.over = search.more or not page.page_info.more

    # Where we were

    def _cursor(self, query: IssueQuery) -> str | None:
        if query.after is None:
            return None
        label = query.labels[-1] if query.labels else ""
        with self._lock:
            return self._cursors.get((folded(label), query.closed_too, int(query.after.key)))

    def _remember(self, search: _Search, number: int) -> None:
        """The cursor that the issue's page began behind."""
        with self._lock:
            place = (folded(search.label), search.query.closed_too, number)
            self._cursors[place] = search.cursor
            self._cursors.move_to_end(place)
            while len(self._cursors) > _MOST_CURSORS:
                self._cursors.popitem(last=False)


def _matches(shape: WholeIssue, search: _Search) -> bool:
    position = (whole_second(shape.created_at), shape.number)
    if search.after is not None and position <= search.after:
        return False
    labels: list[Label] = present(shape.labels.nodes if shape.labels else None)
    shown = search.query.closed_too or shape.state == "OPEN"
    return shown and carries({label.name for label in labels}, search.query)
