"""The records of a GitHub: frozen values, as the fake keeps them.

A change is a new record with the same key, so a reader with an older record sees the past: this
gives lag and stale lists without copying the world. Times are whole seconds, as GitHub's.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Literal

UserKind = Literal["User", "Bot", "Organization"]
StateReason = Literal["completed", "not_planned", "duplicate", "reopened"]


class Permission(IntEnum):
    """What an account may do in a repository; each level includes those before it."""

    NONE = 0
    READ = 1
    TRIAGE = 2
    WRITE = 3
    MAINTAIN = 4
    ADMIN = 5


class Association(StrEnum):
    """An author's relation to a repository."""

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
    """The credential of a request. `scopes` is None for fine-grained and App tokens."""

    text: str = field(repr=False)
    login: str
    scopes: frozenset[str] | None = frozenset({"repo", "read:org", "admin:repo_hook"})
    standing: Standing = Standing.OK
    read_only: bool = False
    lacks: frozenset[str] = frozenset()
    """Permissions that a fine-grained token does not have, such as `issues:write`."""
    repositories: frozenset[int] | None = None
    """Ids of the only repositories it reaches; None: all that its user reaches."""
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who sends a request; no account if there is no token."""

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
    """The fields of a pull request that an issue does not have."""

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
    closes_elsewhere: tuple[tuple[int, int], ...] = ()
    """Repository id and number of issues of other repositories which the pull request names so."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A revision of an issue's body; the first one is the body as it was opened."""

    id: int
    node_id: str
    editor: str
    at: datetime


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
    """Ids of its labels, in the order in which they were added."""
    assignees: tuple[str, ...] = ()
    locked: bool = False
    lock_reason: str | None = None
    closed_at: datetime | None = None
    closed_by: str | None = None
    edits: tuple[Edit, ...] = ()
    """The body's revisions, oldest first; a change of the title is an event and no edit."""
    deleted: bool = False
    moved_to: tuple[int, int] | None = None
    """Repository id and number, after a transfer."""
    converted: bool = False
    """It was made a discussion, so it is no longer an issue."""
    pull: PullPart | None = None

    @property
    def edited_at(self) -> datetime | None:
        return self.edits[-1].at if self.edits else None

    def will_close(self, issue: "Issue") -> bool:
        """Whether this is a pull request that names the issue as one it closes."""
        if self.pull is None:
            return False
        if self.repository_id == issue.repository_id:
            return issue.number in self.pull.closes
        return (issue.repository_id, issue.number) in self.pull.closes_elsewhere

    @property
    def present(self) -> bool:
        return not (self.deleted or self.moved_to or self.converted)


@dataclass(frozen=True, slots=True)
class Comment:
    id: int
    """Global, rising, and too large for 32 bits."""
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
    """The id of an issue or of a comment: the two never share an id."""
    author: str
    content: str
    created_at: datetime
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """An event in an issue's history; comments are separate records."""

    id: int
    node_id: str
    repository_id: int
    issue_id: int
    kind: str
    """`labeled`, `unlabeled`, `closed`, `assigned` and so on, as GitHub spells them."""
    actor: str
    created_at: datetime
    label: tuple[str, str] | None = None
    """The label's name and colour at that time."""
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
    """The content of a webhook: an event, its action, and its subject."""

    event: str
    action: str
    repository: Repository
    sender: str
    issue: Issue | None = None
    comment: Comment | None = None
    label: Label | None = None
    assignee: str | None = None
    changes: dict[str, object] = field(default_factory=dict)
