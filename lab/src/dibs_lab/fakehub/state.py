"""The fake's world: accounts, repositories, issues, and how they change. No HTTP, no GraphQL.

**Set it up** (without permission checks; for tests, the command line and the admin interface)

    state = State(clock=callable_returning_datetime)
    state.add_user("alice")                    # kind="User", "Bot" or "Organization"
    state.add_token("T", "alice", scopes=..., standing=..., read_only=..., lacks=...)
    state.add_repository("acme/shop", private=False)
    state.grant("acme/shop", "alice", Permission.WRITE)
    state.join("acme", "carol", public=True)
    state.grant_by_team("acme/shop", "carol", Permission.WRITE)   # and carol is no collaborator
    state.contribute("acme/shop", "dave")      # a commit of theirs was merged
    state.rename("acme/shop", "acme/store")
    state.archive("acme/shop")

**Read** by `view = state.view()` (lagging replicas) or `state.view().primary` (the last writes):

    user(login)  repository(owner, name)  repository_by_id(id)  node(node_id)
    issue(repository_id, number)  issue_by_id(id)  issues(repository_id, labels=("a", "b"))
    labels(repository_id)  label(id)  label_named(repository_id, name)  labels_on(issue)
    comments(issue_id)  comment(id)  comment_count(issue_id)  repository_comments(repository_id)
    reactions(subject_id)  events(issue_id)  repository_events(repository_id)
    pulls_closing(issue, closed_too=False)  issues_closed_by(pull)  hooks(repository_id)

Records are in `records.py`: frozen; an Issue with `.pull` is a pull request; authors, actors and
assignees are logins; `issue.labels` are label ids; `view.issue()` may return one not `.present`.

**Permissions** are in `access.py` (raises `refusal.Refusal`, with `.kind`, `.message`, `.status`):

    viewer = state.viewer("T")                 # Refusal if unknown, expired or revoked
    access.seen_repository(view, viewer, owner, name)     # NOT_FOUND for strangers to a private one
    access.seen_issue(view, viewer, repository, number)   # NOT_FOUND, GONE, MOVED
    access.permission(state, repository, login) -> Permission
    access.association(state, repository, author, viewer) -> Association

**Change** as a viewer, with GitHub's permissions, validation, events and webhooks:

    acts = state.acting(viewer)
    acts.create_issue(repository, title, body=None, labels=(), assignees=()) -> Issue
    acts.edit_issue(issue, title=, body=, state=, state_reason=, labels=, assignees=)   # or KEEP
    acts.close_issue(issue, reason="completed")  acts.reopen_issue(issue)
    acts.delete_issue(issue)  acts.transfer_issue(issue, repository)  acts.convert_issue(issue)
    acts.lock_issue(issue, reason=None)  acts.unlock_issue(issue)
    acts.assign(issue, logins)  acts.unassign(issue, logins)
    acts.create_comment(issue, body) -> Comment
    acts.edit_comment(comment, body)  acts.delete_comment(comment)
    acts.create_label(repository, name, color=..., description=None) -> Label
    acts.edit_label(label, name=KEEP, color=KEEP, description=KEEP)  acts.delete_label(label)
    acts.add_labels(issue, names)  acts.remove_label(issue, name)  acts.replace_labels(issue, names)
    acts.add_label_ids(issue, label_ids)  acts.remove_label_ids(issue, label_ids)   # GraphQL's way
    acts.react(subject, content) -> (Reaction, new)  acts.unreact(reaction)
    acts.create_pull(repository, title, head, base, body=None, draft=False)
    acts.link_pull(pull, closes=(1, 2))  acts.merge_pull(pull)
    acts.create_hook(...)  acts.edit_hook(...)  acts.delete_hook(hook)
    acts.create_repository(name, private=...)

Each returns the new record. Everything is thread-safe: writers take one lock, records are frozen.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from dibs.adapters.system import wall_clock

from .acts import Acts
from .faults import Wrong
from .node_ids import node_id
from .records import (
    Comment,
    Event,
    Happening,
    Hook,
    Issue,
    Label,
    Permission,
    Reaction,
    Repository,
    Standing,
    Token,
    User,
    UserKind,
    Viewer,
)
from .refusal import Kind, Refusal
from .tables import Table
from .view import View
from .writing import LabelledIssues, Write

__all__ = ["State", "View", "Viewer", "Write", "wall_clock"]

PAST_32_BITS = 4_300_000_000
"""The first id of comments and issues: above 2^31 and 2^32, so that a client which stores ids in
32 bits fails in tests and not in production."""

DEFAULT_SCOPES = frozenset({"repo", "read:org", "admin:repo_hook"})
MOST_COMMENTS = 2_500


class State:
    """Everything in the fake's world."""

    def __init__(self, *, clock: Callable[[], datetime] = wall_clock) -> None:
        self.lock = threading.RLock()
        self.clock = clock
        self.clock_offset = timedelta()
        self.lag: Callable[[], timedelta] = timedelta
        """Called once per write: how long replicas take to learn of it."""
        self.reading: Callable[[View], View] = lambda view: view
        """Called once per read: adds the faults of that read."""
        self.strays: Callable[[Wrong], bool] = lambda _wrong: False
        """Called for each field of GraphQL that may meet the fault; whether it does."""
        self.forbids: Callable[[int], bool] = lambda _number: False
        """Called for each issue that GraphQL is about to show, with its number."""
        self.listeners: list[Callable[[Happening], None]] = []
        self.changes = 0
        """Rises with every write, so an equal number means an unchanged world."""
        self.settles_at = datetime(1970, 1, 1, tzinfo=UTC)
        """When replicas have learned of every write."""
        self.most_comments: int | None = MOST_COMMENTS
        """An issue with this many comments accepts no more. None lifts the limit, unlike GitHub."""
        self.users: dict[str, User] = {}
        self.tokens: dict[str, Token] = {}
        self.members: dict[str, dict[str, bool]] = {}
        self.repositories: dict[int, Repository] = {}
        self.names: dict[str, int] = {}
        self.grants: dict[int, dict[str, Permission]] = {}
        self.teams: dict[int, dict[str, Permission]] = {}
        """Permissions that members of the organisation have without an invitation."""
        self.contributors: set[tuple[int, str]] = set()
        self.labels: Table[int, Label] = Table()
        self.issues: Table[int, Issue] = Table()
        self.comments: Table[int, Comment] = Table()
        self.reactions: Table[int, Reaction] = Table()
        self.events: Table[int, Event] = Table()
        self.hooks: dict[int, Hook] = {}
        self.numbers: dict[tuple[int, int], int] = {}
        self.labels_of: dict[int, list[int]] = {}
        self.issues_of: dict[int, list[int]] = {}
        self.pulls_of: dict[int, list[int]] = {}
        self.comments_of: dict[int, list[int]] = {}
        self.reactions_of: dict[int, list[int]] = {}
        self.events_of: dict[int, list[int]] = {}
        self.nodes: dict[str, tuple[str, int | str]] = {}
        self.labelled = LabelledIssues()
        self._last_number: dict[int, int] = {}
        self._last_id = {"small": 1_000, "repository": 1_300_000_000, "big": PAST_32_BITS}

    # time

    def now(self) -> datetime:
        """The time with microseconds, for lag and limits."""
        return self.clock() + self.clock_offset

    def stamp(self) -> datetime:
        """The time in whole seconds, as GitHub writes times."""
        return self.now().replace(microsecond=0)

    # reading, acting

    def view(self) -> View:
        """What a client's GET or query sees: replicas, with the current faults."""
        view = self.reading(View(self, at=self.now()))
        # Once replicas know everything they equal the primary, which is faster to read.
        up_to_date = view.at is not None and view.at >= self.settles_at
        return replace(view, at=None) if up_to_date else view

    def primary(self) -> View:
        """What was last written, without faults."""
        return View(self)

    def acting(self, viewer: Viewer) -> Acts:
        return Acts(self, viewer)

    def viewer(self, token: str | None) -> Viewer:
        """The viewer of this token; an anonymous one without a token."""
        if not token:
            return Viewer()
        found = self.tokens.get(token)
        over = found is not None and found.expires_at is not None and found.expires_at <= self.now()
        if found is None or over or found.standing is not Standing.OK:
            raise Refusal(Kind.UNAUTHENTICATED, "Bad credentials")
        return Viewer(self.users[found.login.lower()], found)

    def tell(self, happening: Happening) -> None:
        for listener in tuple(self.listeners):
            listener(happening)

    # setting up

    def add_user(self, login: str, *, kind: UserKind = "User", name: str | None = None) -> User:
        """The user of that login; created if it does not exist."""
        with self.lock:
            known = self.users.get(login.lower())
            if known:
                return known
            number = self.next_id("small")
            node = node_id(kind.lower(), number)
            user = User(number, node, login, kind, name, self.stamp())
            self.users[login.lower()] = user
            self.nodes[node] = ("user", login)
            return user

    def add_token(
        self,
        text: str,
        login: str,
        *,
        scopes: frozenset[str] | None = DEFAULT_SCOPES,
        standing: Standing = Standing.OK,
        read_only: bool = False,
        lacks: frozenset[str] = frozenset(),
        repositories: frozenset[int] | None = None,
        expires_at: datetime | None = None,
    ) -> Token:
        """Register a token of that user; call it again to change the token's rights."""
        self.add_user(login)
        token = Token(
            text, login, scopes, standing, read_only, frozenset(lacks), repositories, expires_at
        )
        self.tokens[text] = token
        return token

    def set_standing(self, text: str, standing: Standing) -> None:
        self.tokens[text] = replace(self.tokens[text], standing=standing)

    def add_repository(
        self, full_name: str, *, private: bool = False, description: str | None = None
    ) -> Repository:
        """Add an empty repository. Its owner is created, as an organization, if necessary."""
        owner, _, name = full_name.partition("/")
        with self.lock:
            if self.users.get(owner.lower()) is None:
                self.add_user(owner, kind="Organization")
            number, now = self.next_id("repository"), self.stamp()
            node = node_id("repository", number)
            repository = Repository(
                number, node, owner, name, private, False, description, "main", now, now
            )
            self.repositories[number] = repository
            self.names[full_name.lower()] = number
            self.nodes[node] = ("repository", number)
            self.changes += 1
            return repository

    def named(self, full_name: str) -> Repository:
        """The repository with that current or earlier name; KeyError if there is none."""
        return self.repositories[self.names[full_name.lower()]]

    def change_repository(self, full_name: str, **changes: str | bool | None) -> Repository:
        """Set `archived`, `private`, `description` or `default_branch`."""
        with self.lock:
            changed = replace(self.named(full_name), updated_at=self.stamp(), **changes)  # type: ignore[arg-type]
            self.repositories[changed.id] = changed
            self.changes += 1
            return changed

    def archive(self, full_name: str, *, archived: bool = True) -> Repository:
        return self.change_repository(full_name, archived=archived)

    def rename(self, full_name: str, new_full_name: str) -> Repository:
        """Give it a new name; the old one redirects until another repository takes it."""
        owner, _, name = new_full_name.partition("/")
        with self.lock:
            changed = self.change_repository(full_name, owner=owner, name=name)
            self.names[new_full_name.lower()] = changed.id
            return changed

    def grant(self, full_name: str, login: str, permission: Permission) -> None:
        """Make an account a collaborator; `Permission.NONE` removes it."""
        with self.lock:
            self.add_user(login)
            self.grants.setdefault(self.named(full_name).id, {})[login.lower()] = permission
            self.changes += 1

    def grant_by_team(self, full_name: str, login: str, permission: Permission) -> None:
        """Give a member of the organisation access without an invitation to the repository."""
        with self.lock:
            self.add_user(login)
            self.teams.setdefault(self.named(full_name).id, {})[login.lower()] = permission
            self.changes += 1

    def join(self, organization: str, login: str, *, public: bool = True) -> None:
        """Make an account a member. Only members see a membership that is not public."""
        with self.lock:
            self.add_user(login)
            self.members.setdefault(organization.lower(), {})[login.lower()] = public
            self.changes += 1

    def contribute(self, full_name: str, login: str) -> None:
        with self.lock:
            self.add_user(login)
            self.contributors.add((self.named(full_name).id, login.lower()))
            self.changes += 1

    # writing, for `acts`

    def next_id(self, kind: str) -> int:
        with self.lock:
            self._last_id[kind] += 1
            return self._last_id[kind]

    def next_number(self, repository_id: int) -> int:
        with self.lock:
            self._last_number[repository_id] = self._last_number.get(repository_id, 0) + 1
            return self._last_number[repository_id]

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """Hold the write lock, with one time and one lag for all writes inside."""
        with self.lock:
            now = self.now()
            arrives_at = now + self.lag()
            self.settles_at = max(self.settles_at, arrives_at)
            # Before and after: a reader in between sees neither of the two numbers.
            self.changes += 1
            try:
                yield Write(self, now, now.replace(microsecond=0), arrives_at)
            finally:
                self.changes += 1
