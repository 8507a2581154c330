"""One repository's issues, comments and labels over REST.

`OverRest` is the tracker's whole port: most calls take one request, a reading of an issue several.
It does everything that REST does in one request, and everything if GraphQL is missing or its
budget is spent. A reading fetches the comments first and the issue last, so that a list of comments
which is shorter than the issue's count shows that it is incomplete. The time of a reading is the
time of the comments, since a lease that was renewed after them must not look expired.

`Listing` searches lists of issues: the cheapest way to look for work, since an unchanged list is
free. GitHub returns a list in pages and gives the address of the next page. An issue that leaves
the list moves all later issues forward. So a search that continues behind an issue begins on the
page where the issue was, and goes back until it is before the issue's position. Pull requests are
in these lists too, and are left out.

`steady_pages` reads a list to its end, as it was at one moment. GitHub counts pages from the front.
An entry that is deleted moves all later entries forward, so a walk may miss an entry that was there
all the time, although the list's count agrees with the number of entries seen. So a walk of several
pages counts only if all pages but the last are the same when they are requested again, which is
free. This is a proof: a deleted entry never comes back, and a new entry goes to the end, so a page
that is the same twice was the same all the time between. All pages but the last stood still while
the last was read, and together they are the list of that moment. It is also a proof if every page
is still the reply that was cached before the walk began. Any deletion or addition costs another
round or the proof, never an entry.

A reply that says "unchanged" does not tell whether there is a next page by now. A full last page is
therefore requested again without its ETag.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from urllib.parse import quote

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from dibs.adapters.github.client import Purpose, Transport
from dibs.adapters.github.replies import Reply
from dibs.adapters.github.shapes import (
    PAGE,
    RestComment,
    RestEvent,
    RestIssue,
    RestLabel,
    Shape,
    WholeIssue,
    decode,
    folded,
    rest_login,
    whole_second,
)
from dibs.adapters.github.trust import Judging, RepositoryDoor, WriterTrust, issue_number
from dibs.core.bounded import Bounded
from dibs.core.errors import NoSuchComment, NoSuchIssue, NotPermitted, Unconfirmed
from dibs.core.granter import CONTROL_LABEL
from dibs.core.ids import IssueRef, ServerTime
from dibs.core.issue import Comment, Draft, Issue, Snapshot
from dibs.core.labels import LabelLook
from dibs.ports.tracker import Found, IssueQuery

_ROUNDS = 4
_MOST_PAGES = 1000

Ask = Callable[[str, Mapping[str, str] | None, bool], Reply]
"""A GET of a path or of GitHub's own address, with parameters; True: without the cached ETag."""


class _WatchedPage(Struct, frozen=True):
    path: str
    params: Mapping[str, str] | None
    reply: Reply


class ListedPages(Struct, frozen=True):
    bodies: tuple[bytes, ...]
    now: ServerTime
    """The server's time at which the list had these pages."""
    whole: bool
    """False if the list was too long, or if a page changed during the walk."""


def steady_pages(
    transport: Transport, ask: Ask, path: str, params: Mapping[str, str]
) -> ListedPages:
    """All pages as they were at one moment; walked at most four times for the proof."""
    for _ in range(_ROUNDS - 1):
        listed = _walk_and_prove(transport, ask, path, params)
        if listed.whole:
            return listed
    return _walk_and_prove(transport, ask, path, params)


def _walk_and_prove(
    transport: Transport, ask: Ask, path: str, params: Mapping[str, str]
) -> ListedPages:
    """Walk the list once. For the proof see the module's docstring."""
    started = transport.clock.now()
    pages, ended = _walk(transport, ask, path, params)
    first, last = pages[0].reply, pages[-1].reply
    bodies = tuple(page.reply.body for page in pages)
    cached = all(page.reply.kept_at is not None and page.reply.kept_at < started for page in pages)
    if ended and cached:
        return ListedPages(bodies, first.now, whole=True)
    whole = ended and all(
        ask(page.path, page.params, False).body == page.reply.body for page in pages[:-1]
    )
    return ListedPages(bodies, last.now, whole=whole)


def _walk(
    transport: Transport, ask: Ask, path: str, params: Mapping[str, str] | None
) -> tuple[list[_WatchedPage], bool]:
    """The pages, and whether the walk reached the end of the list."""
    pages: list[_WatchedPage] = []
    while len(pages) < _MOST_PAGES:
        pages.append(_WatchedPage(path, params, whole_page(ask, path, params)))
        following = transport.follow(pages[-1].reply)
        if following is None:
            return pages, True
        path, params = following, None
    return pages, False


def whole_page(ask: Ask, path: str, params: Mapping[str, str] | None) -> Reply:
    """The page, with the address of the next page if the list has a next page by now.

    A full, unchanged last page is requested again without the ETag: see the module.
    """
    reply = ask(path, params, False)
    if reply.unchanged and reply.next_page is None:
        entries = decode(reply.body, list[msgspec.Raw])
        if len(entries) >= PAGE:
            return ask(path, params, True)
    return reply


_MOST_LISTS = 64
_MOST_RETURNED = 64
_MOST_LISTED_PAGES = 10_000
_MOST = 2**31 - 1
"""The highest issue number that GraphQL takes."""

_ListKey = tuple[tuple[str, ...], bool]
"""The labels of a list, and whether closed issues are in it."""
Position = tuple[ServerTime, int]
"""When an issue was made, and its number: the order of every list."""


class _ListState(Struct):
    """The pages of a list, as far as they were walked."""

    addresses: list[str] = field(default_factory=list)
    """GitHub's own addresses of the pages; the first page has none, so page 1 is at index 0."""
    page_of: Bounded[int, int] = field(default_factory=lambda: Bounded(_MOST_RETURNED))
    """By number of an issue that was returned: the page it was on."""

    def note_address(self, page: int, address: str) -> None:
        """Record a page's address; a new address drops the addresses of all later pages."""
        if self.addresses[page - 1 : page] != [address]:
            self.addresses[page - 1 :] = [address]


class _ListedPage(Struct, frozen=True):
    number: int
    shapes: list[RestIssue]
    """In order, pull requests among them."""
    now: ServerTime
    following: str | None
    """The address of the next page."""

    def begins_behind(self, position: Position) -> bool:
        return not self.shapes or position_of(self.shapes[0]) > position


class Listing:
    """Searches the lists of a repository's issues. Safe for many threads."""

    def __init__(self, door: RepositoryDoor) -> None:
        self._transport, self._translator, self._ids = door.transport, door.translator, door.ids
        self._path = f"{door.path}/issues"
        self._lists: Bounded[_ListKey, _ListState] = Bounded(_MOST_LISTS)
        """The states of the lists used last."""
        self._lock = threading.Lock()

    def find(self, query: IssueQuery, after: Position | None = None) -> Found:
        """`after`: the position of `query.after`, which is the same in every list."""
        taken: list[Issue] = []
        skipped = 0
        key = (tuple(sorted(folded(label) for label in query.labels)), query.closed_too)
        with self._lock:
            state = self._lists[key] = self._lists.get(key) or _ListState()
        for page in self._pages(query, state, after):
            for shape in page.shapes:
                if shape.pull_request is not None or not asked_for(shape, query, after):
                    continue
                if skipped < query.skip:
                    skipped += 1
                elif len(taken) < query.limit:
                    taken.append(self._translator.rest_issue(shape))
                    with self._lock:
                        state.page_of[shape.number] = page.number
                else:
                    return Found(tuple(taken), page.now, more=True)
        return Found(tuple(taken), page.now)

    def _pages(
        self, query: IssueQuery, state: _ListState, after: Position | None
    ) -> Iterator[_ListedPage]:
        """The pages from the position `after` to the end of the list.

        Begins at the page that `query.after` was on when it was returned, or else at the first, and
        goes back while the page begins behind `after`.
        """
        number = 0
        if query.after is not None:
            with self._lock:
                number = state.page_of.get(int(query.after.key), 0)
        page = self._page(query, state, number)
        while page.number > 0 and (after is None or page.begins_behind(after)):
            page = self._page(query, state, page.number - 1)
        yield page
        while page.following is not None and page.number < _MOST_LISTED_PAGES:
            page = self._page(query, state, page.number + 1, page.following)
            yield page

    def _page(
        self, query: IssueQuery, state: _ListState, number: int, address: str | None = None
    ) -> _ListedPage:
        """Read the page; without an address, the last page up to `number` whose address we have."""
        if address is None:
            with self._lock:
                number = min(number, len(state.addresses))
                address = state.addresses[number - 1] if number else None
        reply = whole_page(
            lambda path, params, fresh: self._transport.rest(
                "GET",
                path,
                purpose=Purpose.DISCOVER,
                params=params,
                conditional=True,
                fresh=fresh,
            ),
            address or self._path,
            _parameters(query) if address is None else None,
        )
        shapes = sorted(decode(reply.body, list[RestIssue]), key=position_of)
        for shape in shapes:
            if shape.pull_request is None:
                self._ids.saw_issue(shape)
        following = self._transport.follow(reply)
        if following is not None:
            with self._lock:
                state.note_address(number + 1, following)
        return _ListedPage(number, shapes, reply.now, following)


def position_of(shape: RestIssue | WholeIssue) -> Position:
    return whole_second(shape.created_at), shape.number


def asked_for(shape: RestIssue | WholeIssue, query: IssueQuery, after: Position | None) -> bool:
    """Whether the query asks for the issue, which never is the control issue.

    GitHub filtered the list by a part of the query only.
    """
    carried = {folded(label) for label in shape.label_names}
    return (
        (after is None or position_of(shape) > after)
        and (query.closed_too or shape.state.lower() == "open")
        and carried.issuperset(folded(label) for label in query.labels)
        and carried.isdisjoint(folded(label) for label in query.without)
        and CONTROL_LABEL not in carried
    )


def _parameters(query: IssueQuery) -> dict[str, str]:
    """The parameters of the first page of the query's list."""
    parameters = {
        "state": "all" if query.closed_too else "open",
        "sort": "created",
        "direction": "asc",
        "per_page": str(PAGE),
    }
    # GitHub would split a label at a comma; `asked_for` checks every label here in any case.
    labels = sorted(label for label in query.labels if "," not in label)
    return {**parameters, "labels": ",".join(labels)} if labels else parameters


def number_of(issue: IssueRef) -> int | None:
    """The issue's number; None if the key is no number that GitHub can have."""
    key = issue.key
    number = int(key) if key.isascii() and key.isdigit() and len(key) <= len(str(_MOST)) else None
    return number if number is not None and number <= _MOST else None


_PAGE = {"per_page": str(PAGE)}
_NO_SUCH_LABEL = "label does not exist"
_GONE, _FORBIDDEN = 410, 403
_ABSENT = (404, _GONE)
_REFUSED_CONTENT = 422


class OverRest:
    """A repository's issues, comments and labels over REST. Safe for many threads."""

    def __init__(self, trust: WriterTrust, looks: Mapping[str, LabelLook]) -> None:
        self.trust, self.door = trust, trust.door
        self.looks = {folded(name): look for name, look in looks.items()}
        self._transport, self._translator = trust.door.transport, trust.door.translator
        self._ids = trust.door.ids
        self._listing = Listing(trust.door)

    # Reading

    def find(self, query: IssueQuery) -> Found:
        return self._listing.find(query, self.position(query.after))

    def archive(self, issue: IssueRef, comments: Collection[int]) -> None:
        """Do nothing: GitHub has no archive, and a deleted comment cannot be read again."""

    def rest(self, issue: Issue, until: ServerTime, rules: str) -> None:
        """Do nothing: no list of the server could leave an issue out until a time."""

    def position(self, after: IssueRef | None) -> Position | None:
        """The issue's place in every list; reads an issue which is not in the cache."""
        if after is None:
            return None
        number = self.number(after)
        cached = self._ids.issue(number)
        if cached is None:
            self.issue(after, Purpose.DISCOVER)
            cached = self._ids.issue(number)
        assert cached is not None, "what was just read is known"
        return cached.created_at, number

    def read_pages(self, issue: IssueRef, judging: Judging) -> Snapshot:
        """Read the comments page by page, and then the issue."""
        comments, now, all_pages = self.comments(issue, judging)
        shape, _ = self.issue(issue, judging.purpose)
        found = self._translator.rest_issue(shape)
        if not found.by_writer:  # its author may change the text, and may not write
            path = f"/issues/{shape.number}/events"
            events = self._every(path, _PAGE, judging.purpose, list[RestEvent])
            found = replace(
                found,
                changed=judging.change(self._translator.rest_edits(events), found),
                labelled=self._translator.rest_labelled(events),
            )
        return Snapshot(found, comments, now, all_pages=all_pages)

    def comments(
        self, issue: IssueRef, judging: Judging
    ) -> tuple[tuple[Comment, ...], ServerTime, bool]:
        """The comments in the server's order, as they were at one time; that time; if all of them.

        Not all if the list never stood still, or if a mark has no verdict.
        """
        number, found = self.number(issue), dict[int, Comment]()
        listed = steady_pages(
            self._transport,
            lambda path, params, fresh: self.door.about(
                issue, "GET", path, purpose=judging.purpose, params=params, fresh=fresh
            ),
            f"/issues/{number}/comments",
            _PAGE,
        )
        for body in listed.bodies:
            for shape in decode(body, list[RestComment]):
                self._ids.saw_comment(shape, number)
                found[shape.id] = self._translator.comment(shape)
        comments, judged = judging.comments(in_order(found), issue)
        return comments, listed.now, listed.whole and judged

    def issue(self, issue: IssueRef, purpose: Purpose) -> tuple[RestIssue, ServerTime]:
        reply = self.door.about(issue, "GET", f"/issues/{self.number(issue)}", purpose=purpose)
        shape = self.door.insist_on(issue, decode(reply.body, RestIssue))
        self._ids.saw_issue(shape)
        return shape, reply.now

    def tally(self, labels: Sequence[str], *, closed_too: bool = False) -> Mapping[str, int]:
        """Count the issues with each label, by a walk to the end of each list.

        GitHub's own counts would include pull requests.
        """
        counts: dict[str, int] = {}
        for label in labels:
            everything = IssueQuery((label,), limit=_MOST_PAGES * 100, closed_too=closed_too)
            counts[label] = len(self.find(everything).issues)
        return counts

    def control_issue(self, judging: Judging) -> RestIssue | None:
        """The control issue with the lowest number whose author counts, open or closed.

        To close the issue must not change who grants.
        """
        parameters = {**_PAGE, "labels": CONTROL_LABEL, "state": "all"}
        parameters |= {"sort": "created", "direction": "asc"}
        shapes = self._every("/issues", parameters, judging.purpose, list[RestIssue])
        found = {shape.number: shape for shape in shapes if shape.pull_request is None}
        number = judging.lowest(
            (shape.number, rest_login(shape.user), self._associated(shape))
            for shape in found.values()
        )
        if number is None:
            return None
        self._ids.saw_issue(found[number])
        return found[number]

    def believes(self, shape: RestIssue, purpose: Purpose) -> bool:
        """Whether marks of the issue's author count."""
        judging = Judging(self.trust, purpose)
        return bool(judging.author(rest_login(shape.user), associated=self._associated(shape)))

    def _associated(self, shape: RestIssue) -> bool:
        return self._translator.believed(rest_login(shape.user), shape.author_association)

    def _every(
        self, path: str, params: Mapping[str, str], purpose: Purpose, shape: type[list[Shape]]
    ) -> list[Shape]:
        """The entries of all pages, for lists where a missed entry does no harm."""
        pages, _ = _walk(
            self._transport,
            lambda path, params, fresh: self.door.look(
                path, purpose=purpose, params=params, fresh=fresh
            ),
            path,
            params,
        )
        return [entry for page in pages for entry in decode(page.reply.body, shape)]

    def number(self, issue: IssueRef) -> int:
        """Raises NoSuchIssue for an issue of another repository, or without a valid number."""
        number = number_of(issue)
        if number is None or issue.repo != self._translator.repository:
            raise NoSuchIssue(issue)
        return number

    # Writing

    def create(self, draft: Draft) -> Issue:
        return self._translator.rest_issue(self.make(draft))

    def make(self, draft: Draft) -> RestIssue:
        """Make an issue; raises NotPermitted if GitHub left out the labels."""
        wanted = {"title": draft.title, "body": draft.body, "labels": sorted(draft.labels)}
        reply = self.door.ask("POST", "/issues", purpose=Purpose.FINISH, wanted=wanted)
        if reply.status == _GONE:
            raise NotPermitted(
                f"{self.door.name} has its issues turned off, so it cannot be a backlog; "
                "an administrator turns them on in its settings"
            )
        self.door.insist_done(reply, "POST", "/issues")
        made = decode(reply.body, RestIssue)
        self._ids.saw_issue(made)
        carried = {folded(label) for label in made.label_names}
        if not carried.issuperset(folded(label) for label in draft.labels):
            # GitHub silently drops labels that the account may not add.
            raise NotPermitted(
                f"{self._translator.ref(made.number)} was made, but without its labels: this "
                "account may not put any on; it needs write access to the repository"
            )
        return made

    def post_comment(self, issue: IssueRef, body: str, purpose: Purpose) -> Comment:
        number = self.number(issue)
        path = f"/issues/{number}/comments"
        with self._ids.writing_cards(number, [body], self._transport.clock.now()):
            reply = self.door.about(issue, "POST", path, purpose=purpose, wanted={"body": body})
        return self._written(issue, number, reply)

    def edit_comment(self, issue: IssueRef, comment: int, body: str) -> Comment:
        number, path = self.number(issue), f"/issues/comments/{comment}"
        cached = self._ids.comment(comment)
        if cached is None or cached.number != number:
            # GitHub edits a comment by its id alone, so check first that it is on this issue.
            self.look_for_comment(issue, comment)
        with self._ids.writing_cards(number, [body], self._transport.clock.now()):
            reply = self.door.ask("PATCH", path, purpose=Purpose.HOLD, wanted={"body": body})
            if reply.status in _ABSENT:
                self.look_for_comment(issue, comment)
                self.issue(issue, Purpose.HOLD)  # raises NoSuchIssue or IssueMoved
                raise Unconfirmed(f"{issue}: GitHub found comment {comment} at a second look only")
            self.door.permitted(reply, "PATCH", path, issue)
        return self._written(issue, number, reply)

    def _written(self, issue: IssueRef, number: int, reply: Reply) -> Comment:
        """The comment that a request of ours wrote; raises IssueMoved if it is elsewhere."""
        shape = decode(reply.body, RestComment)
        self.door.insist_said_on(issue, shape.issue_url)
        self._ids.saw_comment(shape, number)
        return self._translator.comment(shape)

    def look_for_comment(self, issue: IssueRef, comment: int) -> None:
        """Read the comment from its own endpoint, into the cache: the only proof of a deletion.

        Raises NoSuchComment, or NoSuchIssue or IssueMoved if the issue is gone.
        """
        number, path = self.number(issue), f"/issues/comments/{comment}"
        absent = (*_ABSENT, _FORBIDDEN)
        reply = self.door.ask("GET", path, purpose=Purpose.HOLD, final=absent)
        self.door.permitted(reply, "GET", path, issue)
        shape = None if reply.status in _ABSENT else decode(reply.body, RestComment)
        if shape is None or issue_number(shape.issue_url) != number:
            self._ids.forget_comment(comment)
            self.issue(issue, Purpose.HOLD)
            raise NoSuchComment(issue, comment)
        self._ids.saw_comment(shape, number)

    def edit_labels(
        self, issue: IssueRef, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        path = f"/issues/{self.number(issue)}/labels"
        if add:
            reply = self.door.about(
                issue, "POST", path, purpose=Purpose.FINISH, wanted={"labels": list(add)}
            )
            self._ids.saw_labels(decode(reply.body, list[RestLabel]))
        for label in remove:
            label_path = f"{path}/{quote(label, safe='')}"
            reply = self.door.ask("DELETE", label_path, purpose=Purpose.FINISH)
            self.door.permitted(reply, "DELETE", label_path, issue)
            if reply.status in _ABSENT and _NO_SUCH_LABEL not in reply.message.lower():
                # Either the label or the issue is missing; a missing issue raises here.
                self.issue(issue, Purpose.FINISH)

    def close(self, issue: IssueRef) -> None:
        path = f"/issues/{self.number(issue)}"
        wanted = {"state": "closed"}
        reply = self.door.about(issue, "PATCH", path, purpose=Purpose.FINISH, wanted=wanted)
        self.door.insist_on(issue, decode(reply.body, RestIssue))

    # Labels of the repository

    def labels(self, purpose: Purpose = Purpose.LOOK) -> list[RestLabel]:
        listed = self._every("/labels", _PAGE, purpose, list[RestLabel])
        self._ids.saw_labels(listed)
        return listed

    def prepare(self, labels: Sequence[str], looks: Mapping[str, LabelLook] | None = None) -> None:
        """Make the labels which the repository does not have."""
        existing = {folded(label.name) for label in self.labels()}
        missing = {folded(name): name for name in labels if folded(name) not in existing}
        for name in missing.values():
            self.make_label(name, (looks or {}).get(name))

    def make_label(self, name: str, look: LabelLook | None = None) -> bool:
        """Make the label; False if the repository already has the label."""
        look = look or self.looks.get(folded(name), LabelLook())
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
        self._ids.saw_labels([decode(reply.body, RestLabel)])
        return True


def in_order(comments: Mapping[int, Comment]) -> tuple[Comment, ...]:
    """By the server's time, then by id: timestamps are whole seconds, and two may be the same."""
    return tuple(sorted(comments.values(), key=lambda comment: (comment.created_at, comment.id)))
