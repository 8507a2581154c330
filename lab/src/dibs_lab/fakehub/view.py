"""Reading the fake's world: as its primary has it, or as a lagging replica has it.

REST and GraphQL use the same questions here, so they give the same answers and have the same
faults. A view does not decide who may see what; `access.py` does.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from .records import Comment, Event, Hook, Issue, Label, Reaction, Repository, User
from .tables import K, R, Table

if TYPE_CHECKING:
    from .state import State

Node = User | Repository | Label | Issue | Comment | Reaction | Event
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class View:
    """One read of the world. Make it with `State.view()`; it costs nothing."""

    state: "State"
    at: datetime | None = None
    """The instant that a replica has reached; None reads the primary."""
    short_by: int = 0
    """How many entries every list of issues or comments lacks at its end, although counts include
    them: the fault of truncated lists."""
    hidden: str = ""
    """The login of a flagged account, whose comments this reader does not see, although counts
    include them."""
    exact_labels: bool = False
    """GraphQL's filters by label heed the case."""

    @property
    def primary(self) -> "View":
        """The same world as the writer sees it, without faults: for the payloads of mutations.

        A flagged account stays hidden there.
        """
        return View(self.state, hidden=self.hidden)

    def user(self, login: str) -> User | None:
        return self.state.users.get(login.lower())

    def repository(self, owner: str, name: str) -> Repository | None:
        """The repository by its current or an earlier name; compare `full_name` to know which."""
        found = self.state.names.get(f"{owner}/{name}".lower())
        return None if found is None else self.state.repositories[found]

    def repository_by_id(self, repository_id: int) -> Repository | None:
        return self.state.repositories.get(repository_id)

    def label(self, label_id: int) -> Label | None:
        return _there(self._one(self.state.labels, label_id))

    def label_named(self, repository_id: int, name: str) -> Label | None:
        """The label with that name, in upper or lower case."""
        wanted = name.lower()
        return next((la for la in self.labels(repository_id) if la.name.lower() == wanted), None)

    def labels(self, repository_id: int) -> list[Label]:
        """The repository's labels, oldest first."""
        ids = self.state.labels_of.get(repository_id, ())
        return [label for label in self._many(self.state.labels, ids) if not label.deleted]

    def labels_on(self, issue: Issue) -> list[Label]:
        return [label for label in self._many(self.state.labels, issue.labels) if not label.deleted]

    def issue(self, repository_id: int, number: int) -> Issue | None:
        """The issue or pull request, also if it is deleted, transferred or converted."""
        found = self.state.numbers.get((repository_id, number))
        return None if found is None else self._one(self.state.issues, found)

    def issue_by_id(self, issue_id: int) -> Issue | None:
        return self._one(self.state.issues, issue_id)

    def issues(self, repository_id: int, labels: Sequence[str] = ()) -> list[Issue]:
        """The existing issues and pull requests, by number, with all of these labels."""
        wanted = [self.label_named(repository_id, name) for name in labels]
        if None in wanted:
            return []
        needed = {label.id for label in wanted if label}
        ids: Iterable[int] = self.state.issues_of.get(repository_id, ())
        if needed:
            lagging = self.at is not None
            labelled = self.state.labelled
            ids = min([labelled.having(one, lately_too=lagging) for one in needed], key=_length)
        found = self._many(self.state.issues, ids)
        if needed:
            found = [issue for issue in found if needed.issubset(issue.labels)]
        return self._short([issue for issue in found if issue.present])

    def comment(self, comment_id: int) -> Comment | None:
        return _there(self._one(self.state.comments, comment_id))

    def comments(self, issue_id: int) -> list[Comment]:
        """The issue's comments by creation and id."""
        return self._short(self._comments(self.state.comments_of.get(issue_id, ())))

    def repository_comments(self, repository_id: int) -> list[Comment]:
        ids = [
            comment_id
            for issue_id in tuple(self.state.issues_of.get(repository_id, ()))
            for comment_id in tuple(self.state.comments_of.get(issue_id, ()))
        ]
        return self._short(self._comments(sorted(ids)))

    def comment_count(self, issue_id: int) -> int:
        """GitHub's own count, which includes the comments that a cut list lacks."""
        found = self._many(self.state.comments, self.state.comments_of.get(issue_id, ()))
        return sum(not comment.deleted for comment in found)

    def reactions(self, subject_id: int) -> list[Reaction]:
        found = self._many(self.state.reactions, self.state.reactions_of.get(subject_id, ()))
        return [reaction for reaction in found if not reaction.deleted]

    def events(self, issue_id: int) -> list[Event]:
        return self._many(self.state.events, self.state.events_of.get(issue_id, ()))

    def repository_events(self, repository_id: int) -> list[Event]:
        issues = tuple(self.state.issues_of.get(repository_id, ()))
        found = [event for issue_id in issues for event in self.events(issue_id)]
        return sorted(found, key=lambda event: event.id)

    def pulls_closing(self, issue: Issue, *, closed_too: bool = False) -> list[Issue]:
        """The pull requests that name the issue as one they close."""
        ids = [number for pulls in tuple(self.state.pulls_of.values()) for number in tuple(pulls)]
        return [
            pull
            for pull in self._many(self.state.issues, ids)
            if pull.present and (closed_too or pull.state == "open") and pull.will_close(issue)
        ]

    def issues_closed_by(self, pull: Issue) -> list[Issue]:
        if pull.pull is None:
            return []
        own = ((pull.repository_id, number) for number in pull.pull.closes)
        found = (self.issue(*place) for place in (*own, *pull.pull.closes_elsewhere))
        return [issue for issue in found if issue and issue.present]

    def hooks(self, repository_id: int) -> list[Hook]:
        hooks = tuple(self.state.hooks.values())
        return [hook for hook in hooks if hook.repository_id == repository_id]

    def node(self, node_id: str) -> Node | None:
        """The record with this node id, if it exists."""
        found = self.state.nodes.get(node_id)
        if found is None:
            return None
        kind, key = found
        ways: dict[str, Callable[[], Node | None]] = {
            "user": lambda: self.user(str(key)),
            "repository": lambda: self.repository_by_id(int(key)),
            "label": lambda: self.label(int(key)),
            "issue": lambda: self.issue_by_id(int(key)),
            "comment": lambda: self.comment(int(key)),
            "reaction": lambda: _there(self._one(self.state.reactions, int(key))),
            "event": lambda: self._one(self.state.events, int(key)),
        }
        return ways[kind]()

    def _comments(self, ids: Iterable[int]) -> list[Comment]:
        found = [
            comment
            for comment in self._many(self.state.comments, ids)
            if not comment.deleted and (not self.hidden or comment.author.lower() != self.hidden)
        ]
        return sorted(found, key=lambda comment: (comment.created_at, comment.id))

    def _one(self, table: Table[K, R], key: K) -> R | None:
        return table.newest(key) if self.at is None else table.at(key, self.at)

    def _many(self, table: Table[K, R], keys: Iterable[K]) -> list[R]:
        return table.several(tuple(keys), self.at)  # a copy, because a writer may be adding to it

    def _short(self, entries: list[T]) -> list[T]:
        return entries[: max(0, len(entries) - self.short_by)] if self.short_by else entries


def _length(ids: Iterable[int]) -> int:
    return sum(1 for _ in ids)


_Deletable = TypeVar("_Deletable", Label, Comment, Reaction)


def _there(record: _Deletable | None) -> _Deletable | None:
    return None if record is None or record.deleted else record
