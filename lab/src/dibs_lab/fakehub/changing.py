"""What all acts have in common: the viewer, the record, and the events they leave.

An act first checks and then makes one write: a refused act has changed nothing. The record that is
passed in may be old; the act changes the newest version.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar, Unpack

from . import access
from .node_ids import node_id
from .records import Comment, Event, Happening, Issue, Label, Permission, Repository, Viewer
from .refusal import invalid, not_found, unprocessable
from .traces import Details

if TYPE_CHECKING:
    from .state import State, Write

MOST_CHARACTERS = 65_536
MOST_LABELS = 100


class Keep(Enum):
    """A field that an edit leaves unchanged; None would empty it."""

    KEEP = "keep"


KEEP: Final = Keep.KEEP


P = ParamSpec("P")
T = TypeVar("T")


def alone(act: Callable[P, T]) -> Callable[P, T]:
    """Run the whole act under the write lock, so that no act undoes another."""

    @wraps(act)
    def locked(*args: P.args, **kwargs: P.kwargs) -> T:
        who = args[0]
        assert isinstance(who, Changing)
        with who.state.lock:
            return act(*args, **kwargs)

    return locked


class Changing:
    """One viewer who changes one state."""

    def __init__(self, state: "State", viewer: Viewer) -> None:
        self.state = state
        self.viewer = viewer

    def repository_of(self, record: Issue | Comment | Label) -> Repository:
        return self.state.repositories[record.repository_id]

    def _newest(self, issue: Issue) -> Issue:
        found = self.state.issues.newest(issue.id)
        if found is None:
            raise not_found()
        access.check_present(self.state, self.viewer, found)
        return found

    def _needs(self, repository: Repository, least: Permission, what: str = access.ISSUES) -> None:
        access.needs(self.state, self.viewer, repository, least, what)

    def _tell(self, event: str, action: str, repository: Repository, **about: object) -> None:
        # `Happening` has these fields: each caller names its own.
        told = Happening(event, action, repository, self.viewer.login, **about)  # type: ignore[arg-type]
        self.state.tell(told)

    def _tell_issue(self, issue: Issue, action: str, **about: object) -> None:
        event = "pull_request" if issue.pull else "issues"
        self._tell(event, action, self.repository_of(issue), issue=issue, **about)

    def _trace(self, write: "Write", issue: Issue, kind: str, **details: Unpack[Details]) -> None:
        """Add an event to the issue's history."""
        number = self.state.next_id("big")
        node = node_id("event", issue.repository_id, number)
        login = self.viewer.login
        write.event(
            Event(number, node, issue.repository_id, issue.id, kind, login, write.stamp, **details)
        )

    def _touch(self, write: "Write", issue: Issue) -> Issue:
        """Update the issue's time of change: somebody wrote on it."""
        return write.issue(replace(issue, updated_at=write.stamp))

    def _logins(self, logins: Iterable[str]) -> list[str]:
        """The logins as their accounts spell them. All must exist."""
        found = []
        for login in logins:
            user = self.state.users.get(login.lower())
            if user is None:
                raise invalid("Issue", "assignees", "invalid", f"{login} is not a user")
            found.append(user.login)
        return found


def checked_body(resource: str, body: str | None) -> None:
    if body is not None and len(body) > MOST_CHARACTERS:
        raise invalid(
            resource,
            "body",
            "custom",
            f"body is too long (maximum is {MOST_CHARACTERS} characters)",
        )


def checked_filled(resource: str, field: str, text: str) -> None:
    if not text.strip():
        raise invalid(resource, field, "missing_field")


def checked_label_count(names: Iterable[object]) -> None:
    if len(list(names)) > MOST_LABELS:
        raise unprocessable("An issue can have at most 100 labels")
