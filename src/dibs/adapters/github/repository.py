"""REST requests about one repository, and the error to raise if GitHub answers "not there".

GitHub answers 404 for an issue that never existed, for a label that is on no issue, and for a
repository that the token may not see. The caller has to know which: after a 404 this module finds
out.
"""

import re
import threading
from collections.abc import Mapping
from contextlib import suppress

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
_MOVED = (301, 307, 308)  # GitHub redirects a request other than GET with 307 or 308
_FORBIDDEN = 403
_WHERE = re.compile(r"/repos/([^/]+/[^/]+)(?:/issues/(\d+))?(?:[/?#].*)?$", re.ASCII)


class RepositoryDoor:
    """Sends requests about a repository, under the name in the settings."""

    def __init__(self, transport: Transport, repository: str) -> None:
        self.transport = transport
        self.name = repository
        self.path = f"/repos/{repository}"
        self._lock = threading.Lock()
        self._names = {folded(repository)}
        """Its name in the settings and its names in replies, folded: it may have been renamed."""
        self._reached = False
        """Whether GitHub has answered any request about the repository with success."""

    # Asking

    def look(
        self,
        path: str,
        *,
        purpose: Purpose,
        params: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> Reply:
        """GET a resource that must exist. `path`: below the repository, or a whole address."""
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
        """Send a request about an issue. Raises NoSuchIssue, IssueMoved, IssueLocked."""
        reply = self.ask(verb, path, purpose=purpose, wanted=wanted, params=params, fresh=fresh)
        if reply.status in _MOVED:
            # The issue was transferred: name its new place as people do, if GitHub shows it.
            address = reply.headers.get("location", "")
            place = address or "another repository"
            with suppress(Outage):
                moved = self.transport.rest("GET", address, purpose=Purpose.LOOK)
                place = decode(moved.body, RestIssue).html_url or address
            raise IssueMoved(issue, place)
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
        """Send a request; return also a reply that means: not there, moved or forbidden.

        Raises NotPermitted if GitHub answers "not there" because of the token's scopes.
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
        """Raises IssueLocked or NotPermitted if GitHub forbids the request."""
        if reply.status != _FORBIDDEN:
            return
        if issue is not None and (full_or_locked := locked(issue, reply.message)) is not None:
            raise full_or_locked
        raise refusal_of(reply, f"{verb} {self._at(path)}")

    def insist_done(self, reply: Reply, verb: str, path: str) -> None:
        """Raises for a reply without success, for requests about no issue."""
        if reply.status not in _DONE:
            raise refusal_of(reply, f"{verb} {self._at(path)}")

    def _at(self, path: str) -> str:
        return path if "://" in path else f"{self.path}{path}"

    # The meaning of a reply

    def absent(self, issue: IssueRef, reply: Reply | None = None) -> DibsError:
        """The error for an issue that was not found.

        If no request has reached the repository yet, asks for the repository first, which raises
        NotPermitted if hidden from the token. A 410 proves that the repository exists.
        """
        gone = reply is not None and reply.status == _ABSENT[1]
        if not gone and not self._reached:
            self.told()
        return NoSuchIssue(issue)

    def told(self) -> RestRepository:
        """GitHub's description of the repository. Raises NotPermitted if hidden from the token."""
        reply = self.look("", purpose=Purpose.LOOK)
        described = decode(reply.body, RestRepository)
        with self._lock:
            self._names.add(folded(described.full_name))
        return described

    def insist_on(self, issue: IssueRef, shape: RestIssue) -> RestIssue:
        """Return `shape` if it is the issue asked for.

        Raises IssueMoved if its repository or number differs, NoSuchIssue for a pull request.
        """
        where, number = _WHERE.search(shape.repository_url), str(shape.number)
        if number != issue.key or (where is not None and not self.is_called(where[1])):
            raise IssueMoved(issue, f"{where[1] if where else self.name}#{number}")
        if shape.pull_request is not None:
            raise NoSuchIssue(issue)
        return shape

    def insist_said_on(self, issue: IssueRef, issue_url: str) -> None:
        """Raises IssueMoved if a comment was posted on an issue different from `issue`."""
        where = _WHERE.search(issue_url)
        if where is None or where[2] is None:
            return
        if where[2] != issue.key or not self.is_called(where[1]):
            raise IssueMoved(issue, f"{where[1]}#{where[2]}")

    def is_called(self, name: str) -> bool:
        """Whether `name` is a present or former name of the repository; asks GitHub if unknown."""
        if self._has_name(name):
            return True
        self.told()
        return self._has_name(name)

    def _has_name(self, name: str) -> bool:
        with self._lock:
            return folded(name) in self._names


def issue_number(issue_url: str) -> int | None:
    """The number of a comment's issue, from the comment's `issue_url`."""
    where = _WHERE.search(issue_url)
    return int(where[2]) if where is not None and where[2] is not None else None


def disabled(repository: str) -> NotPermitted:
    """The error for a repository without issues."""
    return NotPermitted(
        f"{repository} has its issues turned off, so it cannot be a backlog; "
        "somebody who administers it turns them on in its settings"
    )
