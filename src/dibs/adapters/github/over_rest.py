"""The tracker's whole port over REST: one request for each thing, several for a reading.

Used for everything that REST does in one request, and for all the rest too where GraphQL is not
there or its budget is spent. A reading takes the comments first and the issue last, so that a list
of comments which is shorter than the issue's count is known to be incomplete; its time is that of
the comments, since a lease that was renewed meanwhile must not look expired.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from dibs.adapters.github.believing import Believing, Judging
from dibs.adapters.github.known import Known
from dibs.adapters.github.listing import Listing, Position, number_of
from dibs.adapters.github.pages import PAGE, Ask, Pages
from dibs.adapters.github.repository import RepositoryDoor, disabled, issue_number
from dibs.adapters.github.shapes import RestComment, RestIssue, RestLabel, decode
from dibs.adapters.github.translating import Translator, folded, label_name, rest_login
from dibs.adapters.github.transport import Purpose, Transport
from dibs.core.control import CONTROL_LABEL
from dibs.core.errors import NoSuchComment, NoSuchIssue, NotPermitted
from dibs.core.ids import IssueRef, ServerTime
from dibs.core.issue import Comment, Draft, Issue, Thread
from dibs.core.label_looks import LabelLook
from dibs.ports.tracker import Found, IssueQuery

_PAGE = {"per_page": str(PAGE)}
_MOST_PAGES = 1000
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
