"""What a GitHub is made of: frozen records, as the fake keeps them.

A change is a new record with the same key, so whoever holds an older one sees the past: that is
how lag and stale lists come about without copying the world. Times are whole seconds, as GitHub's.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Literal

UserKind = Literal["User", "Bot", "Organization"]
StateReason = Literal["completed", "not_planned", "duplicate", "reopened"]


class Permission(IntEnum):
    """What somebody may do in a repository; each includes those before it."""

    NONE = 0
    READ = 1
    TRIAGE = 2
    WRITE = 3
    MAINTAIN = 4
    ADMIN = 5


class Association(StrEnum):
    """How an author stands to a repository."""

    OWNER = "OWNER"
    MEMBER = "MEMBER"
    COLLABORATOR = "COLLABORATOR"
    CONTRIBUTOR = "CONTRIBUTOR"
    NONE = "NONE"


class Standing(StrEnum):
    """Whether a token still works."""

    OK = "ok"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class User:
    id: int
    node_id: str
    login: str
    kind: UserKind
    name: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Token:
    """What a request proves itself with. `scopes` is None for fine-grained and App tokens."""

    text: str = field(repr=False)
    login: str
    scopes: frozenset[str] | None = frozenset({"repo", "read:org", "admin:repo_hook"})
    standing: Standing = Standing.OK
    read_only: bool = False
    lacks: frozenset[str] = frozenset()
    """Permissions a fine-grained token was not given, as `issues:write` or `contents:write`."""
    repositories: frozenset[int] | None = None
    """Ids of the only repositories it reaches; None for all its user does."""
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who asks. Nobody, where there is no token."""

    user: User | None = None
    token: Token | None = None

    @property
    def login(self) -> str:
        return self.user.login if self.user else ""


@dataclass(frozen=True, slots=True)
class Repository:
    id: int
    node_id: str
    owner: str
    name: str
    private: bool
    archived: bool
    description: str | None
    default_branch: str
    created_at: datetime
    updated_at: datetime

    @property
    def full_name(self) -> str:
        return f"{self.owner}/{self.name}"


@dataclass(frozen=True, slots=True)
class Label:
    id: int
    node_id: str
    repository_id: int
    name: str
    color: str
    description: str | None
    created_at: datetime
    updated_at: datetime
    default: bool = False
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class PullPart:
    """What a pull request has beyond an issue."""

    head: str
    base: str
    head_sha: str
    base_sha: str
    draft: bool = False
    merged_at: datetime | None = None
    merged_by: str | None = None
    merge_sha: str | None = None
    closes: tuple[int, ...] = ()
    """Numbers of issues in its repository that its merge closes."""


@dataclass(frozen=True, slots=True)
class Issue:
    """An issue, or a pull request if `pull` is there: they share their numbers."""

    id: int
    node_id: str
    repository_id: int
    number: int
    title: str
    body: str | None
    author: str
    created_at: datetime
    updated_at: datetime
    state: Literal["open", "closed"] = "open"
    state_reason: StateReason | None = None
    labels: tuple[int, ...] = ()
    """Ids of its labels, in the order they were put on."""
    assignees: tuple[str, ...] = ()
    locked: bool = False
    lock_reason: str | None = None
    closed_at: datetime | None = None
    closed_by: str | None = None
    deleted: bool = False
    moved_to: tuple[int, int] | None = None
    """Repository id and number, once it was transferred."""
    converted: bool = False
    """It was made a discussion, so it is no issue any more."""
    pull: PullPart | None = None

    @property
    def present(self) -> bool:
        return not (self.deleted or self.moved_to or self.converted)


@dataclass(frozen=True, slots=True)
class Comment:
    id: int
    """Global, rising, and larger than 32 bits hold."""
    node_id: str
    repository_id: int
    issue_id: int
    author: str
    body: str
    created_at: datetime
    updated_at: datetime
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Reaction:
    id: int
    node_id: str
    subject_id: int
    """Id of an issue or of a comment: the two never share one."""
    author: str
    content: str
    created_at: datetime
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to an issue, comments apart."""

    id: int
    node_id: str
    repository_id: int
    issue_id: int
    kind: str
    """`labeled`, `unlabeled`, `closed`, `assigned` and so on, as GitHub spells them."""
    actor: str
    created_at: datetime
    label: tuple[str, str] | None = None
    """Name and colour as they were then."""
    assignee: str | None = None
    lock_reason: str | None = None
    rename: tuple[str, str] | None = None
    source: int | None = None
    """Id of the issue or pull request that mentions this one."""
    state_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Hook:
    id: int
    repository_id: int
    url: str
    secret: str | None = field(repr=False)
    content_type: Literal["json", "form"]
    events: tuple[str, ...]
    active: bool
    insecure_ssl: str
    created_at: datetime
    updated_at: datetime
    deleted: bool = False
    last_status: int | None = None


@dataclass(frozen=True, slots=True)
class Happening:
    """What webhooks tell: an event, its action, and what it is about."""

    event: str
    action: str
    repository: Repository
    sender: str
    issue: Issue | None = None
    comment: Comment | None = None
    label: Label | None = None
    assignee: str | None = None
    changes: dict[str, object] = field(default_factory=dict)
