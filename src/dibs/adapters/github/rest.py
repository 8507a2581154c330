"""The tracker's whole port over REST: one request for each thing, several for a reading.

Used for everything that REST does in one request, and for all the rest too where GraphQL is not
there or its budget is spent. A reading takes the comments first and the issue last, so that a list
of comments which is shorter than the issue's count is known to be incomplete; its time is that of
the comments, since a lease that was renewed meanwhile must not look expired.

Lists of issues over REST: the cheapest way to look for work, since an unchanged list is free.

GitHub hands out a list in pages and tells where the next one is. An issue that leaves the list
moves all behind it forward, so a search that goes on behind an issue looks for where that issue
would stand now, and begins near where it stood. Pull requests are listed too, and left out.

Lists in pages over REST: walked to their end, and as they were at one moment.

GitHub counts pages from the front. What is deleted on one moves all behind it forward, so that a
walk may miss an entry that was there all the time, while the list's count agrees with what was
seen. So a walk of several pages counts only if all but the last are the same when they are asked
for again, which is free. That is a proof: an entry that was deleted never comes back and a new one
goes to the end, so a page that is the same twice was the same all the time between; all pages but
the last stood still while the last was read, and together they are the list of that moment. It is a
proof too if every page is still the one that was kept before the walk began. What is deleted or
added otherwise, also both, costs another round or the verdict, and never an entry.

A reply that says "unchanged" says nothing of further pages. A page that was full and the last one
is therefore asked for anew.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

from dibs.adapters.github.cache import Known
from dibs.adapters.github.client import Purpose, Transport
from dibs.adapters.github.replies import Reply
from dibs.adapters.github.repository import RepositoryDoor, disabled, issue_number
from dibs.adapters.github.shapes import (
    RestComment,
    RestIssue,
    RestLabel,
    Translator,
    decode,
    folded,
    label_name,
    rest_login,
    whole_second,
)
from dibs.adapters.github.trust import Believing, Judging
from dibs.core.errors import NoSuchComment, NoSuchIssue, NotPermitted, Unavailable
from dibs.core.granter import CONTROL_LABEL
from dibs.core.ids import IssueRef, LocalTime, ServerTime
from dibs.core.issue import Comment, Draft, Issue, Thread
from dibs.core.labels import LabelLook
from dibs.ports.tracker import Found, IssueQuery

PAGE = 100
_ROUNDS = 4
_MOST_PAGES = 1000

Ask = Callable[[str, Mapping[str, str] | None, bool], Reply]
"""A path or GitHub's own address, its parameters, and whether it must be sent anew."""


class _WatchedPage(Struct, frozen=True):
    path: str
    params: Mapping[str, str] | None
    reply: Reply


class Listed(Struct, frozen=True):
    bodies: tuple[bytes, ...]
    now: ServerTime
    """The server's time at which the list was this."""
    whole: bool
    """False if it had no end, or never stood still."""


class Pages:
    """Safe for many threads."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def listed(self, ask: Ask, path: str, params: Mapping[str, str]) -> Listed:
        for _ in range(_ROUNDS - 1):
            listed = self._once(ask, path, params)
            if listed.whole:
                return listed
        return self._once(ask, path, params)

    def _once(self, ask: Ask, path: str, params: Mapping[str, str]) -> Listed:
        started = self._transport.clock.now()
        pages, ended = self._walked(ask, path, params)
        first, last = pages[0].reply, pages[-1].reply
        bodies = tuple(page.reply.body for page in pages)
        if ended and all(_kept_before(started, page.reply) for page in pages):
            return Listed(bodies, first.now, whole=True)
        whole = ended and all(_same(ask, page) for page in pages[:-1])
        return Listed(bodies, last.now, whole=whole)

    def every(self, ask: Ask, path: str, params: Mapping[str, str]) -> tuple[bytes, ...]:
        """All pages, where nothing is decided by what a walk misses."""
        pages, _ = self._walked(ask, path, params)
        return tuple(page.reply.body for page in pages)

    def _walked(
        self, ask: Ask, path: str, params: Mapping[str, str] | None
    ) -> tuple[list[_WatchedPage], bool]:
        pages: list[_WatchedPage] = []
        while len(pages) < _MOST_PAGES:
            pages.append(_WatchedPage(path, params, whole_page(ask, path, params)))
            following = self._transport.follow(pages[-1].reply)
            if following is None:
                return pages, True
            path, params = following, None
        return pages, False


def whole_page(ask: Ask, path: str, params: Mapping[str, str] | None) -> Reply:
    """The page, and where the next one is if there is one by now."""
    reply = ask(path, params, False)
    outgrown = reply.unchanged and reply.next_page is None and _is_full(reply.body)
    return ask(path, params, True) if outgrown else reply


def _is_full(body: bytes) -> bool:
    try:
        return len(msgspec.json.decode(body, type=list[msgspec.Raw])) >= PAGE
    except msgspec.MsgspecError as flaw:
        raise Unavailable(f"GitHub answered something that it never does: {flaw}") from flaw


def _kept_before(started: LocalTime, reply: Reply) -> bool:
    return reply.kept_at is not None and reply.kept_at < started


def _same(ask: Ask, page: _WatchedPage) -> bool:
    return ask(page.path, page.params, False).body == page.reply.body


_MOST_LISTS = 64
_MOST_PLACES = 64
_MOST_LISTED_PAGES = 10_000
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


class _ListedPage(Struct, frozen=True):
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
    ) -> Iterator[tuple[_ListedPage, RestIssue | None]]:
        """What matches, page by page, and nothing at the end of each page."""
        for page in self._pages(query, after):
            for shape in page.shapes:
                behind = after is None or position_of(shape) > after
                if behind and self._matches(shape, query):
                    yield page, shape
            yield page, None

    def _pages(self, query: IssueQuery, after: Position | None) -> Iterator[_ListedPage]:
        page = self._page(query, *self._entry(query))
        while page.number > 0 and (after is None or page.begins_behind(after)):
            page = self._page(query, *self._address(query, page.number - 1))
        yield page
        while page.following is not None and page.number < _MOST_LISTED_PAGES:
            page = self._page(query, page.number + 1, page.following)
            yield page

    def _page(self, query: IssueQuery, number: int, address: str | None) -> _ListedPage:
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
        return _ListedPage(number, shapes, reply.now, following)

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


_PAGE = {"per_page": str(PAGE)}
_NO_SUCH_LABEL = "label does not exist"
_GONE = 410
_REFUSED_CONTENT = 422


class OverRest:
    """One repository's issues."""

    def __init__(
        self,
        transport: Transport,
        translator: Translator,
        known: Known,
        looks: Mapping[str, LabelLook],
        door: RepositoryDoor,
        believing: Believing,
    ) -> None:
        self._transport = transport
        self._translator = translator
        self._known = known
        self._looks = {folded(name): look for name, look in looks.items()}
        self._listing = Listing(transport, translator, known)
        self._pages = Pages(transport)
        self._believing = believing
        self.door = door

    # Reading

    def find(self, query: IssueQuery) -> Found:
        return self._listing.find(query, self.position(query.after))

    def position(self, after: IssueRef | None) -> Position | None:
        if after is None:
            return None
        number = self.number(after)
        known = self._known.issue(number)
        if known is None:
            self.issue(after, Purpose.DISCOVER)
            known = self._known.issue(number)
        assert known is not None, "what was just read is known"
        return known.created_at, number

    def read(self, issue: IssueRef, judging: Judging) -> Thread:
        comments, now, all_pages = self.comments(issue, judging)
        shape, _ = self.issue(issue, judging.purpose)
        return Thread(self._translator.rest_issue(shape), comments, now, all_pages=all_pages)

    def comments(
        self, issue: IssueRef, judging: Judging
    ) -> tuple[tuple[Comment, ...], ServerTime, bool]:
        """The comments in the server's order as they were at one time, and if those are all."""
        number, found = self.number(issue), dict[int, Comment]()
        listed = self._pages.listed(
            lambda path, params, fresh: self.door.about(
                issue, "GET", path, purpose=judging.purpose, params=params, fresh=fresh
            ),
            f"/issues/{number}/comments",
            _PAGE,
        )
        for body in listed.bodies:
            for shape in decode(body, list[RestComment]):
                self._known.saw_comment(shape, number)
                found[shape.id] = self._translator.rest_comment(shape)
        comments, judged = judging.comments(in_order(found), issue)
        return comments, listed.now, listed.whole and judged

    def issue(self, issue: IssueRef, purpose: Purpose) -> tuple[RestIssue, ServerTime]:
        reply = self.door.about(issue, "GET", f"/issues/{self.number(issue)}", purpose=purpose)
        shape = self.door.insist_on(issue, decode(reply.body, RestIssue))
        self._known.saw_issue(shape)
        return shape, reply.now

    def tally(self, labels: Sequence[str], *, closed_too: bool) -> Mapping[str, int]:
        """Walks every list to its end: pull requests are among them, so no count can be trusted."""
        return {label: self._count(label, closed_too=closed_too) for label in labels}

    def _count(self, label: str, *, closed_too: bool) -> int:
        everything = IssueQuery((label,), limit=_MOST_PAGES * 100, closed_too=closed_too)
        return len(self.find(everything).issues)

    def control_issue(self, judging: Judging) -> RestIssue | None:
        """The lowest number by somebody whose word counts; also a closed one: that somebody closed
        it must not change who grants.
        """
        parameters = {**_PAGE, "labels": CONTROL_LABEL, "state": "all"}
        bodies = self._pages.every(
            self._looking(judging.purpose),
            "/issues",
            {**parameters, "sort": "created", "direction": "asc"},
        )
        shapes = [shape for body in bodies for shape in decode(body, list[RestIssue])]
        found = {shape.number: shape for shape in shapes if shape.pull_request is None}
        number = judging.lowest(
            (shape.number, rest_login(shape.user), self._associated(shape))
            for shape in found.values()
        )
        if number is None:
            return None
        self._known.saw_issue(found[number])
        return found[number]

    def believes(self, shape: RestIssue, purpose: Purpose) -> bool:
        """Whether its author's word counts."""
        judging = self._believing.judging(purpose)
        return bool(judging.author(rest_login(shape.user), associated=self._associated(shape)))

    def _associated(self, shape: RestIssue) -> bool:
        return self._translator.believed(rest_login(shape.user), shape.author_association)

    def _looking(self, purpose: Purpose) -> Ask:
        return lambda path, params, fresh: self.door.look(
            path, purpose=purpose, params=params, fresh=fresh
        )

    def number(self, issue: IssueRef) -> int:
        number = number_of(issue)
        if number is None or issue.repo != self._translator.repository:
            raise NoSuchIssue(issue)
        return number

    # Writing

    def create(self, draft: Draft) -> Issue:
        return self._translator.rest_issue(self.make(draft))

    def make(self, draft: Draft) -> RestIssue:
        wanted = {"title": draft.title, "body": draft.body, "labels": sorted(draft.labels)}
        reply = self.door.ask("POST", "/issues", purpose=Purpose.FINISH, wanted=wanted)
        if reply.status == _GONE:
            raise disabled(self.door.name)
        self.door.insist_done(reply, "POST", "/issues")
        made = decode(reply.body, RestIssue)
        self._known.saw_issue(made)
        carried = {folded(label_name(label)) for label in made.labels}
        if not carried.issuperset(folded(label) for label in draft.labels):
            # GitHub drops labels in silence where the account may not put them on.
            raise NotPermitted(
                f"{self._translator.ref(made.number)} was made, but without its labels: this "
                "account may not put any on; it needs write access to the repository"
            )
        return made

    def comment(self, issue: IssueRef, body: str, purpose: Purpose) -> Comment:
        number = self.number(issue)
        path = f"/issues/{number}/comments"
        with self._known.saying(number, [body], self._transport.clock.now()):
            reply = self.door.about(issue, "POST", path, purpose=purpose, wanted={"body": body})
        shape = decode(reply.body, RestComment)
        self.door.insist_said_on(issue, shape.issue_url)
        self._known.saw_comment(shape, number)
        return self._translator.rest_comment(shape)

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        number = self.number(issue)
        known = self._known.comment(comment)
        if known is None or known.number != number:
            self._insist_on_comment(issue, comment)
        path = f"/issues/comments/{comment}"
        with self._known.saying(number, [body], self._transport.clock.now()):
            reply = self.door.ask("PATCH", path, purpose=Purpose.HOLD, wanted={"body": body})
            if reply.status in (404, _GONE):
                raise self.no_such_comment(issue, comment)
            self.door.permitted(reply, "PATCH", path, issue)
        shape = decode(reply.body, RestComment)
        self.door.insist_said_on(issue, shape.issue_url)
        self._known.saw_comment(shape, number)
        return self._translator.rest_comment(shape)

    def _insist_on_comment(self, issue: IssueRef, comment: int) -> None:
        """A comment is edited by its number alone, so first of all: is it this issue's?"""
        path = f"/issues/comments/{comment}"
        reply = self.door.ask("GET", path, purpose=Purpose.HOLD)
        if reply.status in (404, _GONE):
            raise self.no_such_comment(issue, comment)
        self.door.permitted(reply, "GET", path, issue)
        shape = decode(reply.body, RestComment)
        if issue_number(shape.issue_url) != self.number(issue):
            raise self.no_such_comment(issue, comment)

    def no_such_comment(self, issue: IssueRef, comment: int) -> NoSuchComment:
        """Raises NoSuchIssue or IssueMoved instead if that is why."""
        self._known.forget_comment(comment)
        self.issue(issue, Purpose.HOLD)
        return NoSuchComment(issue, comment)

    def edit_labels(self, issue: IssueRef, add: Sequence[str], remove: Sequence[str]) -> None:
        path = f"/issues/{self.number(issue)}/labels"
        if add:
            reply = self.door.about(
                issue, "POST", path, purpose=Purpose.FINISH, wanted={"labels": list(add)}
            )
            self._known.saw_labels(decode(reply.body, list[RestLabel]))
        for label in remove:
            self._remove(issue, f"{path}/{quote(label, safe='')}")

    def _remove(self, issue: IssueRef, path: str) -> None:
        reply = self.door.ask("DELETE", path, purpose=Purpose.FINISH)
        self.door.permitted(reply, "DELETE", path, issue)
        if reply.status in (404, _GONE) and _NO_SUCH_LABEL not in reply.message.lower():
            self.issue(issue, Purpose.FINISH)  # not the label, or not the issue: the latter raises

    def close(self, issue: IssueRef) -> None:
        path = f"/issues/{self.number(issue)}"
        wanted = {"state": "closed"}
        reply = self.door.about(issue, "PATCH", path, purpose=Purpose.FINISH, wanted=wanted)
        self.door.insist_on(issue, decode(reply.body, RestIssue))

    # Labels of the repository

    def labels(self) -> list[RestLabel]:
        bodies = self._pages.every(self._looking(Purpose.LOOK), "/labels", _PAGE)
        listed = [label for body in bodies for label in decode(body, list[RestLabel])]
        self._known.saw_labels(listed)
        return listed

    def prepare(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Makes those that are missing, and says which."""
        there = {folded(label.name) for label in self.labels()}
        missing = {folded(name): name for name in labels if folded(name) not in there}
        return tuple(name for name in missing.values() if self.make_label(name))

    def make_label(self, name: str) -> bool:
        """False if it was there already."""
        look = self._looks.get(folded(name), LabelLook())
        reply = self._transport.rest(
            "POST",
            f"{self.door.path}/labels",
            purpose=Purpose.FINISH,
            wanted={"name": name, "color": look.colour, "description": look.description},
            ok=(201, _REFUSED_CONTENT),
        )
        if reply.status == _REFUSED_CONTENT:
            if "already_exists" not in reply.message and "already exists" not in reply.message:
                raise NotPermitted(f"GitHub makes no label {name!r}: {reply.message}")
            return False
        self._known.saw_labels([decode(reply.body, RestLabel)])
        return True


def in_order(comments: Mapping[int, Comment]) -> tuple[Comment, ...]:
    """By the server's time and its ids: timestamps are whole seconds, and two may be the same."""
    return tuple(sorted(comments.values(), key=lambda one: (one.created_at, one.id)))
