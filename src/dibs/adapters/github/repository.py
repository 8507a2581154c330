"""One repository over REST: requests about it, and which error it is when something is not there.

GitHub answers 404 for an issue that never was, for a label that nobody has and for a repository
that this token may not see. Whoever asks has to know which: this module finds out, after the fact.
"""

import re
import threading
from collections.abc import Mapping

from dibs.adapters.github.client import Purpose, Reply, Transport
from dibs.adapters.github.replies import lacks_scope, locked, refusal_of
from dibs.adapters.github.shapes import RestIssue, RestRepository, decode, folded
from dibs.core.errors import (
    DibsError,
    IssueMoved,
    NoSuchIssue,
    NotPermitted,
    Outage,
)
from dibs.core.ids import IssueRef

_DONE = (200, 201, 204)
_ABSENT = (404, 410)
_MOVED = (301, 307, 308)  # a request that is no GET is sent on with the latter
_FORBIDDEN = 403
_WHERE = re.compile(r"/repos/([^/]+/[^/]+)(?:/issues/(\d+))?(?:[/?#].*)?$", re.ASCII)


class RepositoryDoor:
    """Asks about one repository, under the name that the settings give it."""

    def __init__(self, transport: Transport, repository: str) -> None:
        self.transport = transport
        self.name = repository
        self.path = f"/repos/{repository}"
        self._lock = threading.Lock()
        self._names = {folded(repository)}
        """What it was called in replies: it may have been renamed."""
        self._reached = False

    # Asking

    def look(
        self,
        path: str,
        *,
        purpose: Purpose,
        params: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> Reply:
        """Something that must be there. `path` begins at the repository, or is GitHub's own."""
        reply = self.transport.rest(
            "GET", self._at(path), purpose=purpose, params=params, conditional=True, fresh=fresh
        )
        self._reached = True
        return reply

    def about(
        self,
        issue: IssueRef,
        verb: str,
        path: str,
        *,
        purpose: Purpose,
        wanted: object = None,
        params: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> Reply:
        """Something of an issue. Raises NoSuchIssue, IssueMoved, IssueLocked."""
        reply = self.ask(verb, path, purpose=purpose, wanted=wanted, params=params, fresh=fresh)
        if reply.status in _MOVED:
            raise IssueMoved(issue, self._new_place(reply))
        if reply.status in _ABSENT:
            raise self.absent(issue, reply)
        self.permitted(reply, verb, path, issue)
        return reply

    def ask(
        self,
        verb: str,
        path: str,
        *,
        purpose: Purpose,
        wanted: object = None,
        params: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> Reply:
        """The reply, also if GitHub says that it is not there, elsewhere or not allowed.

        Raises NotPermitted if it says "not there" and means the token's scopes.
        """
        reply = self.transport.rest(
            verb,
            self._at(path),
            purpose=purpose,
            wanted=wanted,
            params=params,
            conditional=verb == "GET",
            fresh=fresh,
            ok=(*_DONE, *_MOVED, *_ABSENT, _FORBIDDEN),
        )
        if reply.status in _DONE:
            self._reached = True
        if verb != "GET" and lacks_scope(reply):
            raise refusal_of(reply, f"{verb} {self._at(path)}")
        return reply

    def permitted(self, reply: Reply, verb: str, path: str, issue: IssueRef | None = None) -> None:
        """Raises IssueLocked or NotPermitted for what GitHub forbids."""
        if reply.status != _FORBIDDEN:
            return
        if issue is not None and (full_or_locked := locked(issue, reply.message)) is not None:
            raise full_or_locked
        raise refusal_of(reply, f"{verb} {self._at(path)}")

    def insist_done(self, reply: Reply, verb: str, path: str) -> None:
        """Raises for whatever is no success, where no issue is asked about."""
        if reply.status not in _DONE:
            raise refusal_of(reply, f"{verb} {self._at(path)}")

    def _at(self, path: str) -> str:
        return path if "://" in path else f"{self.path}{path}"

    # What it means

    def absent(self, issue: IssueRef, reply: Reply | None = None) -> DibsError:
        """The error for an issue that was not found, once it is sure that the repository is."""
        gone = reply is not None and reply.status == _ABSENT[1]
        if not gone and not self._reached:
            self.told()
        return NoSuchIssue(issue)

    def _new_place(self, reply: Reply) -> str:
        """Where an issue was transferred to, as a person names it if GitHub tells."""
        there = reply.headers.get("location", "")
        try:
            told = self.transport.rest("GET", there, purpose=Purpose.LOOK)
            return decode(told.body, RestIssue).html_url or there
        except Outage:
            return there or "another repository"

    def told(self) -> RestRepository:
        """What GitHub says of the repository. Raises NotPermitted if it is not for this token."""
        reply = self.look("", purpose=Purpose.LOOK)
        told = decode(reply.body, RestRepository)
        with self._lock:
            self._names.add(folded(told.full_name))
        return told

    def insist_on(self, issue: IssueRef, shape: RestIssue) -> RestIssue:
        """Raises for what is no issue of this repository, although GitHub answered with it."""
        where, number = _WHERE.search(shape.repository_url), str(shape.number)
        if number != issue.key or (where is not None and not self.is_called(where[1])):
            raise IssueMoved(issue, f"{where[1] if where else self.name}#{number}")
        if shape.pull_request is not None:
            raise NoSuchIssue(issue)
        return shape

    def insist_said_on(self, issue: IssueRef, issue_url: str) -> None:
        """Raises IssueMoved if a comment came to stand on another issue than it was meant for."""
        where = _WHERE.search(issue_url)
        if where is None or where[2] is None:
            return
        if where[2] != issue.key or not self.is_called(where[1]):
            raise IssueMoved(issue, f"{where[1]}#{where[2]}")

    def is_called(self, name: str) -> bool:
        """Whether that is this repository, by its present name or by one that it had."""
        if self._knows(name):
            return True
        self.told()
        return self._knows(name)

    def _knows(self, name: str) -> bool:
        with self._lock:
            return folded(name) in self._names


def issue_number(issue_url: str) -> int | None:
    """Of which issue a comment is."""
    where = _WHERE.search(issue_url)
    return int(where[2]) if where is not None and where[2] is not None else None


def disabled(repository: str) -> NotPermitted:
    return NotPermitted(
        f"{repository} has its issues turned off, so it cannot be a backlog; "
        "somebody who administers it turns them on in its settings"
    )
