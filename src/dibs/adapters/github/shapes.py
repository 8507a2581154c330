"""GitHub's answers as it spells them, over REST and over GraphQL: only the fields that are used.

What they mean to the protocol is `translating`'s; nothing here decides anything.
"""

from datetime import datetime
from typing import Any, TypeVar

import msgspec

from dibs.core.errors import Unavailable

Shape = TypeVar("Shape")


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
    """There if it is a pull request: those are listed among the issues."""
    locked: bool = False
    repository_url: str = ""


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


class RestOwner(msgspec.Struct, frozen=True):
    type: str = "User"


class RestRepository(msgspec.Struct, frozen=True):
    full_name: str
    archived: bool = False
    has_issues: bool = True
    permissions: RestPermissions | None = None
    """Not told to everybody: an App's token has none."""
    owner: RestOwner = RestOwner()


class RestPull(msgspec.Struct, frozen=True):
    number: int
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


class Comments(msgspec.Struct, frozen=True, rename="camel"):
    total_count: int
    nodes: list[Node | None]
    page_info: PageInfo = PageInfo()


class Label(msgspec.Struct, frozen=True):
    id: str
    name: str


class Labels(msgspec.Struct, frozen=True):
    nodes: list[Label | None] | None = None


class Assignees(msgspec.Struct, frozen=True):
    nodes: list[Actor | None] | None = None


class NamedRepository(msgspec.Struct, frozen=True, rename="camel"):
    name_with_owner: str


class LinkedPull(msgspec.Struct, frozen=True):
    number: int
    state: str
    repository: NamedRepository
    author: Actor | None = None


class LinkedPulls(msgspec.Struct, frozen=True):
    nodes: list[LinkedPull | None] | None = None


class ClosingPull(msgspec.Struct, frozen=True, rename="camel"):
    """A pull request that closes an issue, with what became of it."""

    number: int
    state: str
    repository: NamedRepository
    created_at: datetime
    closed_at: datetime | None = None
    merged_at: datetime | None = None
    head_ref_name: str = ""
    is_cross_repository: bool = False
    author: Actor | None = None
    labels: Labels | None = None


class ClosingPulls(msgspec.Struct, frozen=True):
    nodes: list[ClosingPull | None] | None = None


class IssueWithPulls(msgspec.Struct, frozen=True, rename="camel"):
    closed_by_pull_requests_references: ClosingPulls | None = None


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
    labels: Labels | None = None
    assignees: Assignees | None = None
    closed_by_pull_requests_references: LinkedPulls | None = None
    repository: NamedRepository | None = None


class ControlIssue(msgspec.Struct, frozen=True, rename="camel"):
    number: int
    author_association: str = "NONE"
    author: Actor | None = None


class ControlIssues(msgspec.Struct, frozen=True, rename="camel"):
    nodes: list[ControlIssue | None]
    page_info: PageInfo


class ControlLog(msgspec.Struct, frozen=True, rename="camel"):
    number: int
    comments: Comments


class ControlLogs(msgspec.Struct, frozen=True):
    nodes: list[ControlLog | None]


class Listed(msgspec.Struct, frozen=True, rename="camel"):
    nodes: list[WholeIssue | None]
    page_info: PageInfo = PageInfo()
