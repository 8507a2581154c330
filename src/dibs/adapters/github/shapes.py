"""GitHub's JSON as Structs, over REST and over GraphQL, and their translation to the core's values.

The Structs have only the fields that dibs uses, under GitHub's names.

`Translator` makes `Issue` and `Comment` of them. All readers of a repository must come to the same
verdict, so the rules are few. A comment counts if `[github] trusted` names its author; without that
setting, if the author's association with the repository is OWNER, MEMBER or COLLABORATOR, until
`trust` has looked the author up. A label is spelt as in the settings, since GitHub ignores case.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from dibs.core.errors import Unavailable
from dibs.core.ids import IssueRef, ServerTime, server_time
from dibs.core.issue import Comment, Issue, Labelling, Person, Pull

Shape = TypeVar("Shape")
PAGE = 100
"""The most entries of a page, over REST and over GraphQL."""


def decode(body: bytes, shape: type[Shape]) -> Shape:
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.MsgspecError as flaw:
        raise Unavailable(f"GitHub answered something that it never does: {flaw}") from flaw


def convert(data: Any, shape: type[Shape]) -> Shape:
    try:
        return msgspec.convert(data, type=shape)
    except msgspec.ValidationError as flaw:
        raise Unavailable(f"GitHub answered something that it never does: {flaw}") from flaw


# REST


class RestUser(msgspec.Struct, frozen=True):
    login: str = ""
    type: str = "User"


class RestLabel(msgspec.Struct, frozen=True):
    name: str = ""
    node_id: str = ""


class RestIssue(msgspec.Struct, frozen=True):
    number: int
    title: str
    state: str
    created_at: datetime
    updated_at: datetime
    node_id: str = ""
    comments: int = 0
    body: str | None = None
    user: RestUser | None = None
    html_url: str = ""
    labels: list[RestLabel | str] = []
    assignees: list[RestUser] | None = None
    author_association: str = "NONE"
    pull_request: dict[str, Any] | None = None
    """Present if this is a pull request: GitHub lists pull requests among the issues."""
    repository_url: str = ""

    @property
    def label_names(self) -> list[str]:
        return [label if isinstance(label, str) else label.name for label in self.labels]


class RestComment(msgspec.Struct, frozen=True):
    id: int
    created_at: datetime
    updated_at: datetime
    node_id: str = ""
    body: str | None = ""
    user: RestUser | None = None
    author_association: str = "NONE"
    issue_url: str = ""


class RestPermissions(msgspec.Struct, frozen=True):
    admin: bool = False
    push: bool = False


class RestPermission(msgspec.Struct, frozen=True):
    permission: str = "none"


class RestCollaborator(msgspec.Struct, frozen=True):
    login: str
    permissions: RestPermissions | None = None


class RestRepository(msgspec.Struct, frozen=True):
    full_name: str
    private: bool = False
    archived: bool = False
    has_issues: bool = True
    permissions: RestPermissions | None = None
    """Missing for some tokens: an App's token gets none."""
    owner: RestUser = RestUser()


class RestPull(msgspec.Struct, frozen=True):
    title: str = ""
    body: str | None = None


# GraphQL


class Actor(msgspec.Struct, frozen=True):
    login: str
    kind: str = msgspec.field(name="__typename", default="User")


class PageInfo(msgspec.Struct, frozen=True):
    more: bool = msgspec.field(name="hasNextPage", default=False)
    earlier: bool = msgspec.field(name="hasPreviousPage", default=False)
    end: str | None = msgspec.field(name="endCursor", default=None)


class Node(msgspec.Struct, frozen=True, rename="camel"):
    """A comment."""

    id: str
    full_database_id: str | int
    body: str
    created_at: datetime
    updated_at: datetime
    author_association: str = "NONE"
    author: Actor | None = None


class Connection(msgspec.Struct, Generic[Shape], frozen=True):
    nodes: list[Shape | None] | None = None


class Page(msgspec.Struct, Generic[Shape], frozen=True, rename="camel"):
    nodes: list[Shape | None]
    page_info: PageInfo = PageInfo()


class Comments(Page[Node], frozen=True, rename="camel", kw_only=True):
    total_count: int


class Label(msgspec.Struct, frozen=True):
    id: str
    name: str


class NamedRepository(msgspec.Struct, frozen=True, rename="camel"):
    name_with_owner: str


class LinkedPullNode(msgspec.Struct, frozen=True, rename="camel"):
    number: int
    state: str
    repository: NamedRepository
    author: Actor | None = None
    author_association: str = "NONE"

    @property
    def ref(self) -> IssueRef:
        return IssueRef(self.repository.name_with_owner, str(self.number))

    def is_elsewhere(self, home: str) -> bool:
        """Whether the pull request is in another repository than `home`."""
        return folded(self.repository.name_with_owner) != folded(home)


class ClosingPull(LinkedPullNode, frozen=True, rename="camel", kw_only=True):
    """A pull request which closes an issue, with state and times of closing and merging."""

    created_at: datetime
    closed_at: datetime | None = None
    merged_at: datetime | None = None
    head_ref_name: str = ""
    is_cross_repository: bool = False
    labels: Connection[Label] | None = None


class IssueWithPulls(msgspec.Struct, frozen=True, rename="camel"):
    repository: NamedRepository
    closed_by_pull_requests_references: Page[ClosingPull] | None = None


class EventLabel(msgspec.Struct, frozen=True):
    name: str = ""


class EventNode(msgspec.Struct, frozen=True, rename="camel"):
    """A label was put on, or the title was changed."""

    created_at: datetime
    actor: Actor | None = None
    label: EventLabel | None = None


class EditNode(msgspec.Struct, frozen=True, rename="camel"):
    """A revision of the body; the oldest one is the body as it was opened."""

    edited_at: datetime
    editor: Actor | None = None


class RestEvent(msgspec.Struct, frozen=True):
    event: str
    created_at: datetime
    actor: RestUser | None = None
    label: EventLabel | None = None


class Edit(msgspec.Struct, frozen=True):
    """A change of title or body, by an account that may or may not write."""

    by: str
    at: ServerTime


class WholeIssue(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    number: int
    title: str
    state: str
    created_at: datetime
    updated_at: datetime
    comments: Comments
    body: str = ""
    url: str = ""
    author: Actor | None = None
    labels: Page[Label] | None = None
    assignees: Connection[Actor] | None = None
    closed_by_pull_requests_references: Page[LinkedPullNode] | None = None
    author_association: str = "NONE"
    last_edited_at: datetime | None = None
    editor: Actor | None = None
    user_content_edits: Page[EditNode] | None = None
    """Newest first. Empty for a text that nobody edited, or if we may not see its history."""
    timeline_items: Page[EventNode] | None = None
    """The last hundred, oldest first."""
    repository: NamedRepository | None = None

    @property
    def label_names(self) -> list[str]:
        return [label.name for label in present(self.labels)]

    @property
    def is_cut(self) -> bool:
        """Whether a page of a hundred would show more labels, or all comments."""
        more_comments = self.comments.page_info.more and len(self.comments.nodes) < PAGE
        return self.lacks_labels or (more_comments and self.comments.total_count <= PAGE)

    @property
    def lacks_labels(self) -> bool:
        return self.labels is not None and self.labels.page_info.more


class ControlIssueNode(msgspec.Struct, frozen=True, rename="camel"):
    number: int
    author_association: str = "NONE"
    author: Actor | None = None


class ControlLog(msgspec.Struct, frozen=True, rename="camel"):
    number: int
    comments: Comments


_WRITERS = frozenset({"OWNER", "MEMBER", "COLLABORATOR"})
GHOST = "ghost"
"""The login that GitHub shows for a deleted account."""


class Translator:
    """Translates GitHub's Structs for a repository, under the name in the settings."""

    def __init__(
        self, repository: str, *, labels: Collection[str] = (), trusted: Collection[str] = ()
    ) -> None:
        self.repository = repository
        self._spellings = {folded(label): label for label in labels}
        self._trusted = frozenset(folded(login) for login in trusted)

    def ref(self, number: int) -> IssueRef:
        return IssueRef(self.repository, str(number))

    def believed(self, login: str, association: str) -> bool:
        """Whether the author's marks count, by `trusted` or, without `trusted`, the association."""
        if self._trusted:
            return folded(login) in self._trusted
        return association in _WRITERS

    def may_write(self, login: str, association: str) -> bool:
        """Whether the account may write, by the association or by `trusted`.

        For acts of people: `trusted` lists accounts for marks, and not all people.
        """
        return association in _WRITERS or folded(login) in self._trusted

    @property
    def trusts_by_name(self) -> bool:
        return bool(self._trusted)

    def labels(self, names: Iterable[str]) -> frozenset[str]:
        """The labels, each spelt as in the settings if the settings name the label."""
        return frozenset(self._spellings.get(folded(name), name) for name in names)

    def rest_issue(self, shape: RestIssue) -> Issue:
        return Issue(
            ref=self.ref(shape.number),
            title=shape.title,
            open=shape.state == "open",
            labels=self.labels(shape.label_names),
            comment_count=shape.comments,
            created_at=whole_second(shape.created_at),
            updated_at=whole_second(shape.updated_at),
            body=shape.body or "",
            author=rest_login(shape.user),
            by_writer=self.may_write(rest_login(shape.user), shape.author_association),
            url=shape.html_url,
            assignees=tuple(
                Person(user.login, human=user.type == "User") for user in shape.assignees or ()
            ),
        )

    def issue(self, shape: WholeIssue) -> Issue:
        return Issue(
            ref=self.ref(shape.number),
            title=shape.title,
            open=shape.state == "OPEN",
            labels=self.labels(shape.label_names),
            comment_count=shape.comments.total_count,
            created_at=whole_second(shape.created_at),
            updated_at=whole_second(shape.updated_at),
            body=shape.body,
            author=login_of(shape.author),
            by_writer=self.may_write(login_of(shape.author), shape.author_association),
            url=shape.url,
            assignees=tuple(map(person_of, present(shape.assignees))),
            pulls=self.open_pulls(
                present(shape.closed_by_pull_requests_references),
                shape.repository.name_with_owner if shape.repository else self.repository,
            ),
            labelled=tuple(
                Labelling(label, login_of(event.actor), whole_second(event.created_at))
                for event in present(shape.timeline_items)
                if event.label is not None
                for label in self.labels([event.label.name])
            ),
        )

    def edits(self, shape: WholeIssue) -> list[Edit]:
        """The changes of the body and of the title, except by an App's bot.

        A bot edits issues only in repositories where the App has the permission. Edits of the body
        that GitHub did not list count as the author's, at the time of the oldest listed edit. New
        titles before the listed events count likewise, at the time of the oldest event.
        """
        listed, events = shape.user_content_edits, present(shape.timeline_items)
        made = [(event.actor, event.created_at) for event in events if event.label is None]
        if shape.timeline_items is not None and shape.timeline_items.page_info.earlier:
            oldest = min((event.created_at for event in events), default=shape.updated_at)
            made.append((shape.author, oldest))
        history = [(one.editor, one.edited_at) for one in present(listed)]
        made += [(editor, at) for editor, at in history if at > shape.created_at]
        if shape.last_edited_at is not None:
            made.append((shape.editor, shape.last_edited_at))
            if listed is None or listed.page_info.more or not history:
                oldest = min((at for _, at in history), default=shape.last_edited_at)
                made.append((shape.author, oldest))
        return [
            Edit(login_of(actor), whole_second(at))
            for actor, at in made
            if actor is None or actor.kind != "Bot"
        ]

    def edited_at(self, shape: WholeIssue) -> ServerTime:
        """When title or body was last changed, by anybody; the creation if neither was.

        A title may have changed before the listed events: then the oldest event, at the latest.
        """
        events = present(shape.timeline_items)
        times = [event.created_at for event in events if event.label is None]
        if shape.timeline_items is not None and shape.timeline_items.page_info.earlier:
            times.append(min((event.created_at for event in events), default=shape.updated_at))
        if shape.last_edited_at is not None:
            times.append(shape.last_edited_at)
        return whole_second(max((shape.created_at, *times)))

    def rest_edits(self, events: Sequence[RestEvent]) -> list[Edit]:
        """The changes of the title: REST does not report changes of the body."""
        return [
            Edit(rest_login(event.actor), whole_second(event.created_at))
            for event in events
            if event.event == "renamed" and (event.actor is None or event.actor.type != "Bot")
        ]

    def rest_labelled(self, events: Sequence[RestEvent]) -> tuple[Labelling, ...]:
        return tuple(
            Labelling(label, rest_login(event.actor), whole_second(event.created_at))
            for event in events
            if event.event == "labeled" and event.label is not None
            for label in self.labels([event.label.name])
        )

    def open_pulls(self, pulls: Iterable[LinkedPullNode], home: str) -> tuple[Pull, ...]:
        """Those of the pull requests that are open; `home`: the repository of their issue."""
        return tuple(
            Pull(pull.ref, person_of(pull.author), by_writer=self.associated(pull, home))
            for pull in pulls
            if pull.state == "OPEN"
        )

    def associated(self, pull: LinkedPullNode, home: str) -> bool:
        """Whether the author of the pull request may write, by `trusted` or the association.

        An App's bot opens pull requests only in repositories where the App has the permission. In
        another repository than `home` neither counts: anybody owns a repository, where the owner
        may write and installs bots.
        """
        if pull.is_elsewhere(home):
            return self.may_write(login_of(pull.author), "")
        bot = pull.author is not None and pull.author.kind == "Bot"
        return bot or self.may_write(login_of(pull.author), pull.author_association)

    def comment(self, shape: RestComment | Node) -> Comment:
        if isinstance(shape, RestComment):
            number, author = shape.id, rest_login(shape.user)
        else:
            number, author = int(shape.full_database_id), login_of(shape.author)
        return Comment(
            id=number,
            body=shape.body or "",
            created_at=whole_second(shape.created_at),
            updated_at=whole_second(shape.updated_at),
            author=author,
            by_writer=self.believed(author, shape.author_association),
        )


def whole_second(moment: datetime) -> ServerTime:
    """The time without microseconds, as GitHub writes times in bodies and in the Date header.

    If a server were more exact in bodies than in the header, comments would seem to come from the
    future.
    """
    return server_time(moment.replace(microsecond=0))


def folded(name: str) -> str:
    """The name in lower case: GitHub ignores case in labels and in logins."""
    return name.lower()


def login_of(actor: Actor | None) -> str:
    """The login in REST's spelling: a bot's login ends in `[bot]`, which GraphQL leaves out.

    GitHub's own agent has a name of its own over REST.
    """
    if actor is None:
        return GHOST
    if actor.kind == "Bot" and actor.login == "copilot-swe-agent":
        return "Copilot"
    bare = actor.kind != "Bot" or actor.login.endswith("[bot]")
    return actor.login if bare else f"{actor.login}[bot]"


def present(entries: Connection[Shape] | Page[Shape] | None) -> list[Shape]:
    """The entries; GitHub writes null for an entry that it does not show."""
    return [node for node in (entries and entries.nodes) or () if node is not None]


def rest_login(user: RestUser | None) -> str:
    return user.login if user is not None else GHOST


def person_of(actor: Actor | None) -> Person:
    if actor is None:
        return Person(GHOST)
    return Person(login_of(actor), human=actor.kind == "User")
