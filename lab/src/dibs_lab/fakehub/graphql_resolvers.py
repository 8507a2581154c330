"""Resolvers of a document's first level: repositories, users, nodes, budgets, lists.

The rules are the same as REST's: what a viewer may not see is not found.
"""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from . import access
from .faults import Wrong
from .graphql_asked import FIELDS, Asked, answers, plain
from .graphql_pages import Bounds, Page
from .graphql_refusals import Complaint, no_node
from .graphql_schema import GREATEST_INT, served
from .graphql_search import found
from .records import Comment, Event, Issue, Label, Reaction, Repository, User
from .refusal import Refusal, not_found
from .view import Node

# roots


@answers("Query")
def repository(
    _root: object,
    asked: Asked,
    *,
    owner: str,
    name: str,
    follow_renames: bool = True,
) -> Repository:
    there = asked.view.repository(owner, name)
    renamed = there is not None and there.full_name.lower() != f"{owner}/{name}".lower()
    if (
        there is None
        or (renamed and not follow_renames)
        or not access.may_see(asked.state, asked.viewer, there)
    ):
        text = f"Could not resolve to a Repository with the name '{owner}/{name}'."
        raise Complaint("NOT_FOUND", text)
    return there


@answers("Query")
def node(_root: object, asked: Asked, *, id: str) -> Node:  # noqa: A002 - the argument's name
    return seen(asked, id)


@answers("Query")
def nodes(_root: object, asked: Asked, *, ids: Sequence[str]) -> list[Node | Complaint]:
    """A missing node is null, with an error, and does not stop the others."""
    return [_seen_or_not(asked, one) for one in ids]


@answers("Query")
def viewer(_root: object, asked: Asked) -> User | None:
    return asked.viewer.user


@answers("Query")
def user(_root: object, asked: Asked, *, login: str) -> User:
    there = asked.view.user(login)
    if there is None or there.kind != "User":
        raise Complaint("NOT_FOUND", f"Could not resolve to a User with the login of '{login}'.")
    return there


@answers("Query")
def search(_root: object, asked: Asked, *, query: str, type: str, **bounds: Unpack[Bounds]) -> Page:  # noqa: A002 - the argument's name
    issues = found(asked, query) if type in {"ISSUE", "ISSUE_ADVANCED"} else []
    return Page(lambda: issues, bounds, "search")


@answers("Query", name="rateLimit")
def rate_limit(_root: object, asked: Asked, *, dry_run: bool = False) -> Asked:  # noqa: ARG001 - the schema has it
    return asked


def seen(asked: Asked, node_id: str) -> Node:
    """The node, if this viewer may see it."""
    there = asked.view.node(node_id)
    if there is None or not _visible(asked, there):
        raise no_node(node_id)
    return there


def _seen_or_not(asked: Asked, node_id: str) -> Node | Complaint:
    try:
        return seen(asked, node_id)
    except Complaint as complaint:
        return complaint


def _visible(asked: Asked, there: Node) -> bool:
    match there:
        case User():
            return True
        case Repository():
            return access.may_see(asked.state, asked.viewer, there)
        case Issue():
            return there.present and _sees(asked, there.repository_id)
        case Comment() | Event():
            issue = asked.view.issue_by_id(there.issue_id)
            return issue is not None and _visible(asked, issue)
        case Label():
            return _sees(asked, there.repository_id)
        case Reaction():
            subject = asked.view.issue_by_id(there.subject_id) or asked.view.comment(
                there.subject_id
            )
            return subject is not None and _visible(asked, subject)


def _sees(asked: Asked, repository_id: int) -> bool:
    return access.may_see(asked.state, asked.viewer, asked.repository(repository_id))


_BUDGET: dict[str, Callable[[Asked], object]] = {
    "cost": lambda asked: asked.price.points,
    "nodeCount": lambda asked: asked.price.nodes,
    "limit": lambda asked: asked.budget.limit,
    "remaining": lambda asked: asked.budget.remaining,
    "used": lambda asked: asked.budget.limit - asked.budget.remaining,
    "resetAt": lambda asked: asked.budget.reset_at,
}
for _name, _way in _BUDGET.items():
    FIELDS["RateLimit", _name] = lambda source, _asked, way=_way: way(source)


# people

PEOPLE = ("User", "Bot", "Organization")
plain({"id": "node_id", "login": "login", "name": "name"}, *PEOPLE)
plain({"databaseId": "id", "createdAt": "created_at"}, *PEOPLE)


@answers("Bot", name="login")
def bot_login(bot: User, _asked: Asked) -> str:
    """The login without `[bot]`, which REST adds; GitHub's own agent has two logins."""
    if bot.login == "Copilot":
        return "copilot-swe-agent"
    return bot.login.removesuffix("[bot]")


@answers(*PEOPLE, name="url")
def person_url(person: User, asked: Asked) -> str:
    return f"{asked.web}/{person.login}"


# repositories

plain({"id": "node_id", "name": "name", "nameWithOwner": "full_name"}, "Repository")
plain({"isArchived": "archived", "isPrivate": "private"}, "Repository")
plain({"description": "description"}, "Repository")
plain({"createdAt": "created_at", "updatedAt": "updated_at"}, "Repository")


@answers("Repository", name="databaseId")
def repository_number(repository: Repository, _asked: Asked) -> int | None:
    return small(repository.id)


@answers("Repository", name="hasIssuesEnabled")
def has_issues(_repository: Repository, _asked: Asked) -> bool:
    return True


@answers("Repository", name="isFork")
def is_fork(_repository: Repository, _asked: Asked) -> bool:
    return False


@answers("Repository")
def owner(repository: Repository, asked: Asked) -> User | None:
    return asked.view.user(repository.owner)


@answers("Repository", name="url")
def repository_url(repository: Repository, asked: Asked) -> str:
    return f"{asked.web}/{repository.full_name}"


@answers("Repository", name="viewerPermission")
def viewer_permission(repository: Repository, asked: Asked) -> str | None:
    held = access.permission(asked.state, repository, asked.viewer.login)
    return held.name if held else None


@answers("Repository", name="issue")
def issue_by_number(repository: Repository, asked: Asked, *, number: int) -> Issue:
    return _numbered(repository, asked, number, "an Issue", pull=False)


@answers("Repository", name="pullRequest")
def pull_by_number(repository: Repository, asked: Asked, *, number: int) -> Issue:
    return _numbered(repository, asked, number, "a PullRequest", pull=True)


@answers("Repository", name="issueOrPullRequest")
def either_by_number(repository: Repository, asked: Asked, *, number: int) -> Issue:
    return _numbered(repository, asked, number, "an issue or pull request", pull=None)


def _numbered(
    repository: Repository, asked: Asked, number: int, what: str, *, pull: bool | None
) -> Issue:
    try:
        if asked.state.strays(Wrong.NODE_NOT_FOUND_ONCE):
            raise not_found()
        there = access.seen_issue(asked.view, asked.viewer, repository, number)
    except Refusal:  # to GraphQL, deleted, moved and never existing are the same
        there = None
    if there is None or pull not in (None, there.pull is not None):
        text = f"Could not resolve to {what} with the number of {number}."
        raise Complaint("NOT_FOUND", text)
    if asked.state.forbids(number):
        raise _forbidden()
    return there


def _forbidden() -> Complaint:
    return Complaint("FORBIDDEN", "Resource not accessible by personal access token")


# lists


def _entered() -> None:
    """Register the resolvers of every connection and every edge."""
    for name in served().type_map:
        if name.endswith("Connection"):
            plain({"nodes": "nodes", "edges": "edges", "pageInfo": "info"}, name)
            plain({"totalCount": "count", "issueCount": "count"}, name)
        elif name.endswith("Edge"):
            plain({"node": "node", "cursor": "cursor"}, name)
    plain({"hasNextPage": "has_next", "hasPreviousPage": "has_previous"}, "PageInfo")
    plain({"startCursor": "start", "endCursor": "end"}, "PageInfo")


_entered()


@answers("IssueConnection", name="nodes")
def issues_listed(page: Page, asked: Asked) -> list[object]:
    """An issue that the token may not see is null, with an error, and does not stop the others."""
    return [_forbidden() if asked.state.forbids(one.number) else one for one in page.nodes]  # type: ignore[union-attr]


def small(number: int) -> int | None:
    """The number as an Int, or None if it is too large: `fullDatabaseId` is for those."""
    return number if number <= GREATEST_INT else None


def type_of(value: object, *_context: Any) -> str:
    """Which of GitHub's types a record has, where a field can be one of several."""
    match value:
        case User():
            return value.kind
        case Issue():
            return "PullRequest" if value.pull else "Issue"
        case Comment():
            return "IssueComment"
        case Event():
            return EVENTS[value.kind]
        case _:
            return type(value).__name__


EVENTS = {
    "assigned": "AssignedEvent",
    "unassigned": "UnassignedEvent",
    "labeled": "LabeledEvent",
    "unlabeled": "UnlabeledEvent",
    "closed": "ClosedEvent",
    "reopened": "ReopenedEvent",
    "locked": "LockedEvent",
    "unlocked": "UnlockedEvent",
    "renamed": "RenamedTitleEvent",
    "cross-referenced": "CrossReferencedEvent",
}
"""The schema's type of each kind of event that has one."""
