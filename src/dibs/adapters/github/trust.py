"""Whose marks count: those of accounts that may write to the repository.

All readers must come to the same verdict. The author association that GitHub sends with a comment
depends on who asks: only members see a membership that is not public. So the author of a mark is
looked up by name, which has the same answer for every reader, and the answer is kept for ten
minutes (`WriterTrust`). For the account that reads, a GraphQL reading carries the same answer.
Markers of other tools are judged in the same way; a comment that is neither needs no verdict. The
setting `[github] trusted`, a list of logins, replaces all of this. Where GitHub refuses the lookup
to this token (403), or does not know the account (an App's bot), the association decides.

A stranger's forged mark costs one lookup, and one reading makes at most `LOOKUPS` of them
(`Judging`). If more accounts are unknown, the reading first fetches the list of all who may write.
Without that list such a reading is not whole, and the next reading continues with the accounts that
are still unknown. Only a holder does without a verdict: marks that came after its card change no
verdict about its lease. With a keyring, a mark whose signature does not hold is nobody's mark and
needs no verdict either.

`fetch_writers` reads one page of GitHub's list of collaborators, not one answer per account. GitHub
gives the list to accounts that may write and, where an organisation owns the repository, are its
members. A member also sees the true association with each comment. So an account that is neither on
the list nor associated may not write: two answers agree. An account that is associated but not on
the list is looked up by name. A list is not used if GitHub refuses it to this token, if it has no
permissions in it, or if it fills its page (there may be more).

`Viewer` tells about the token's own account: its login, what it may do, and whether it counts.

`RepositoryDoor` sends REST requests about one repository. GitHub answers 404 for an issue that
never existed, for a label that is on no issue, and for a repository that the token may not see. The
caller has to know which: after a 404 the door finds out.
"""

import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.github.cache import IdCache
from dibs.adapters.github.client import Purpose, Transport
from dibs.adapters.github.replies import Reply, lacks_scope, locked, refusal_of
from dibs.adapters.github.shapes import (
    GHOST,
    Edit,
    RestCollaborator,
    RestIssue,
    RestPermission,
    RestRepository,
    RestUser,
    Translator,
    decode,
    folded,
)
from dibs.core.bounded import Bounded
from dibs.core.card import UnknownMark, parse_mark
from dibs.core.eligibility import GATE_KINDS, is_ruling
from dibs.core.errors import (
    BadConfiguration,
    IssueMoved,
    NoSuchIssue,
    NotPermitted,
    Outage,
    Unavailable,
)
from dibs.core.following import LinkedPull
from dibs.core.foreign import is_foreign
from dibs.core.granter import parse_entry
from dibs.core.ids import IssueRef, LocalTime
from dibs.core.issue import Comment, Issue, Pull, Snapshot, TextChange
from dibs.core.marker import starts_as
from dibs.core.signing import Keyring, verify
from dibs.ports.tracker import Standpoint

_AnyPull = TypeVar("_AnyPull", Pull, LinkedPull)

_DONE = (200, 201, 204)
_ABSENT = (404, 410)
_MOVED = (301, 307, 308)  # GitHub redirects a request other than GET with 307 or 308
_FORBIDDEN = 403
_WHERE = re.compile(r"/repos/([^/]+/[^/]+)(?:/issues/(\d+))?(?:[/?#].*)?$", re.ASCII)


class RepositoryDoor:
    """Sends requests about a repository, under the name in the settings."""

    def __init__(self, transport: Transport, translator: Translator) -> None:
        self.transport = transport
        self.translator = translator
        self.ids = IdCache()
        self.name = translator.repository
        self.path = f"/repos/{self.name}"
        self._names = {folded(self.name)}
        """Its name in the settings and its names in replies, folded: it may have been renamed."""
        self.private: bool | None = None
        """Whether only members may read it, by the last reply that tells; None before."""

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
        return self.transport.rest(
            "GET", self._at(path), purpose=purpose, params=params, conditional=True, fresh=fresh
        )

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
        reply = self.ask(
            verb,
            path,
            purpose=purpose,
            wanted=wanted,
            params=params,
            fresh=fresh,
            final=(*_ABSENT, _FORBIDDEN),
        )
        if reply.status in _MOVED:
            # The issue was transferred: name its new place as people do, if GitHub shows it.
            address = reply.headers.get("location", "")
            place = address or "another repository"
            with suppress(Outage):
                moved = self.transport.rest("GET", address, purpose=Purpose.LOOK)
                place = decode(moved.body, RestIssue).html_url or address
            raise IssueMoved(issue, place)
        if reply.status in _ABSENT:
            raise NoSuchIssue(issue)
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
        final: Collection[int] = (_FORBIDDEN,),
    ) -> Reply:
        """Send a request; return also a reply for a missing, moved or forbidden thing.

        `final`: see `Transport.rest`. Raises NotPermitted if GitHub answers "not there" because of
        the token's scopes.
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
            final=final,
        )
        if verb != "GET" and lacks_scope(reply):
            raise refusal_of(reply, f"{verb} {self._at(path)}")
        return reply

    def permitted(self, reply: Reply, verb: str, path: str, issue: IssueRef) -> None:
        """Raises IssueLocked or NotPermitted if GitHub forbids the request."""
        if reply.status == _FORBIDDEN:
            refusal = refusal_of(reply, f"{verb} {self._at(path)}")
            raise locked(issue, reply.message) or refusal

    def insist_done(self, reply: Reply, verb: str, path: str) -> None:
        """Raises for a reply without success, for requests about no issue."""
        if reply.status not in _DONE:
            raise refusal_of(reply, f"{verb} {self._at(path)}")

    def _at(self, path: str) -> str:
        return path if "://" in path else f"{self.path}{path}"

    # The meaning of a reply

    def told(self, purpose: Purpose = Purpose.LOOK) -> RestRepository:
        """GitHub's description of the repository. Raises NotPermitted if hidden from the token."""
        reply = self.look("", purpose=purpose)
        described = decode(reply.body, RestRepository)
        self._names.add(folded(described.full_name))
        self.private = described.private
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
        if folded(name) not in self._names:
            self.told()
        return folded(name) in self._names


def issue_number(issue_url: str) -> int | None:
    """The number of a comment's issue, from the comment's `issue_url`."""
    where = _WHERE.search(issue_url)
    return int(where[2]) if where is not None and where[2] is not None else None


LOOKUPS = 5
_KEPT_S = 600.0
_MOST = 2000
_PAGE = 100
_MAY_WRITE = frozenset({"write", "maintain", "admin"})


class WriteAccess(Enum):
    """Whether an account may write to the repository, by GitHub's answer to a lookup."""

    YES = auto()
    NO = auto()
    UNKNOWN = auto()
    """GitHub refused to answer, or does not know the account: then the association decides."""


class Reader(Struct, frozen=True):
    """The account of our token, by GraphQL; that of an App ends with `[bot]`."""

    login: str
    may_write: bool | None
    """None: GitHub does not tell it to this token."""


def is_bot(login: str) -> bool:
    return folded(login).endswith("[bot]")


class WriterTrust:
    """Which accounts' marks count in a repository. Safe for many threads."""

    def __init__(self, door: RepositoryDoor, keyring: Keyring | None) -> None:
        self.door, self.keyring = door, keyring
        self._owner = folded(door.name.partition("/")[0])
        self._lock = threading.Lock()
        self._writers: frozenset[str] | None = None
        """The logins on GitHub's list in lower case; None if the list is not usable."""
        self._listed_at: LocalTime | None = None
        """When we last asked for the list."""
        self._access: Bounded[str, tuple[WriteAccess, LocalTime]] = Bounded(_MOST)
        """By login in lower case: the last answer, and when we had it."""
        self._refused_at: LocalTime | None = None
        self.reader: Reader | None = None
        """By the last GraphQL reading; None before."""

    def cached_verdict(self, login: str, *, associated: bool, marks: bool = True) -> bool | None:
        """Whether the account may write; None if only a request can answer.

        `associated`: whether the account may write by the association. `marks`: judge the account's
        marks, by `[github] trusted` alone if set.
        """
        name, by_name = folded(login), self.door.translator.believed(login, "")
        if by_name or (marks and self.door.translator.trusts_by_name):
            return by_name
        if name == self._owner:
            return True
        if name == GHOST or is_bot(name):
            return associated
        with self._lock:
            if self._is_fresh(self._refused_at):
                return associated
            access, since = self._access.get(name, (None, None))
            writers = self._writers if self._is_fresh(self._listed_at) else None
        if access is not None and self._is_fresh(since):
            return associated if access is WriteAccess.UNKNOWN else access is WriteAccess.YES
        if writers is None or (associated and name not in writers):
            return None
        return name in writers

    def fetch_writers(self, purpose: Purpose) -> None:
        """Fetch the list of accounts that may write, unless the last answer is still fresh."""
        with self._lock:
            if self._is_fresh(self._listed_at):
                return
        asked_at = self.door.transport.clock.now()
        params = {"per_page": str(_PAGE)}
        reply = self.door.ask("GET", "/collaborators", purpose=purpose, params=params, final=())
        writers: frozenset[str] | None = None
        if reply.status == HTTPStatus.OK:
            listed = decode(reply.body, list[RestCollaborator])
            may_push = {
                folded(account.login): account.permissions.push if account.permissions else None
                for account in listed
            }
            if len(listed) < _PAGE and None not in may_push.values():
                writers = frozenset(login for login, push in may_push.items() if push)
        with self._lock:
            self._writers, self._listed_at = writers, asked_at

    def _is_fresh(self, moment: LocalTime | None) -> bool:
        """Whether an answer of that moment still counts."""
        return moment is not None and self.door.transport.clock.now() < moment + _KEPT_S

    def needs_verdict(self, comment: Comment, issue: IssueRef | None) -> bool:
        """Whether the comment has an effect if its author counts.

        True for markers of other tools and for marks of dibs; with a keyring, only for marks whose
        signature the keyring accepts.
        """
        if not is_mark(comment.body):
            return is_foreign(comment.body)
        if self.keyring is None or issue is None:
            return True
        return self.keyring.believes(verify(comment.body, issue, self.keyring))

    def look_up(self, login: str, purpose: Purpose) -> None:
        """Ask GitHub whether the account may write, and keep the answer."""
        access, refused = self._request_access(login, purpose)
        now = self.door.transport.clock.now()
        with self._lock:
            self._refused_at = now if refused else None
            self._access[folded(login)] = access, now

    def note_reader(self, answer: Mapping[str, Any]) -> None:
        """Note from a GraphQL reading who reads, whether it may write, and the visibility.

        Only a yes spares the account its lookup.
        """
        repository, viewer = answer["repository"], answer.get("viewer")
        private, permission = repository.get("isPrivate"), repository.get("viewerPermission")
        if isinstance(private, bool):
            self.door.private = private
        login = viewer.get("login") if isinstance(viewer, Mapping) else None
        if not isinstance(login, str):
            return
        may_write = permission.lower() in _MAY_WRITE if isinstance(permission, str) else None
        with self._lock:
            self.reader = Reader(login, may_write)
            if may_write and not is_bot(login):
                self._access[folded(login)] = WriteAccess.YES, self.door.transport.clock.now()

    @property
    def lookups_refused(self) -> bool:
        """Whether GitHub refused the last lookup."""
        with self._lock:
            return self._refused_at is not None

    def refuses_lookup(self, login: str) -> bool:
        """Whether GitHub gives our token no answer about an account which is sure to exist."""
        access, _ = self._request_access(login, Purpose.LOOK)
        return access is WriteAccess.UNKNOWN

    def _request_access(self, login: str, purpose: Purpose) -> tuple[WriteAccess, bool]:
        """GitHub's answer about the account, and whether GitHub refused to answer (403)."""
        path = f"/collaborators/{quote(login, safe='')}/permission"
        final = (_FORBIDDEN, HTTPStatus.NOT_FOUND)
        reply = self.door.ask("GET", path, purpose=purpose, final=final)
        if reply.status in final:
            return WriteAccess.UNKNOWN, reply.status == _FORBIDDEN
        self.door.insist_done(reply, "GET", path)
        may = decode(reply.body, RestPermission).permission in _MAY_WRITE
        return WriteAccess.YES if may else WriteAccess.NO, False


class Judging:
    """The verdicts of a reading, which may make at most `LOOKUPS` lookups.

    `holding`: a holder reads, and marks of strangers must not make the reading fail. So it ignores
    outages of lookups, and is whole without all verdicts.
    """

    def __init__(self, trust: WriterTrust, purpose: Purpose, *, holding: bool = False) -> None:
        self.purpose = purpose
        self.holding = holding
        self._trust = trust
        self._lookups_left = LOOKUPS

    def author(self, login: str, *, associated: bool, marks: bool = True) -> bool | None:
        """Whether the account may write; None if no lookup is left, or a holder's failed.

        `marks`: judge the account's marks.
        """
        verdict = self._trust.cached_verdict(login, associated=associated, marks=marks)
        if verdict is not None or self._lookups_left == 0:
            return verdict
        self._lookups_left -= 1
        if not self._try_request(lambda: self._trust.look_up(login, self.purpose)):
            return None
        return self._trust.cached_verdict(login, associated=associated, marks=marks)

    def _try_request(self, request: Callable[[], None]) -> bool:
        """False if the request failed and a holder reads: then no further lookup is made."""
        try:
            request()
        except Outage:
            if not self.holding:
                raise
            self._lookups_left = 0
            return False
        return True

    def comments(
        self, comments: Sequence[Comment], issue: IssueRef | None = None
    ) -> tuple[tuple[Comment, ...], bool]:
        """The comments with `by_writer` set by each mark's verdict, and whether they are whole.

        They are whole if every mark has a verdict, or if a holder reads. On entry `by_writer` is
        set by the association. If more strangers are unknown than lookups are left, the list of
        writers is fetched first. Then associated authors are looked up before strangers, so that
        strangers cannot use up the lookups. `issue`: the issue of the comments, to verify
        signatures.
        """
        marks = [comment for comment in comments if self._trust.needs_verdict(comment, issue)]
        verdicts = self.authors((mark.author, mark.by_writer) for mark in marks)
        judged = {
            mark.id: replace(mark, by_writer=verdict)
            for mark in marks
            if (verdict := verdicts[mark.author]) is not None
        }
        whole = self.holding or None not in verdicts.values()
        return tuple(judged.get(comment.id, comment) for comment in comments), whole

    def everybody(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with a verdict about each author: of the issue and of all comments.

        Marks keep the verdict of the reading. If several accounts are unknown, the list of writers
        is fetched first: a single request for any number of accounts.
        """
        issue, trust = snapshot.issue, self._trust
        said = [one for one in snapshot.comments if not trust.needs_verdict(one, issue.ref)]
        authors = [(issue.author, issue.by_writer), *((one.author, one.by_writer) for one in said)]
        unknown = {
            login
            for login, associated in authors
            if trust.cached_verdict(login, associated=associated, marks=False) is None
        }
        if len(unknown) > 1:
            self._try_request(lambda: trust.fetch_writers(self.purpose))
        verdicts = self.authors(authors, marks=False)
        judged = {one.id: verdicts[one.author] for one in said}
        comments = tuple(
            replace(one, by_writer=verdict) if (verdict := judged.get(one.id)) is not None else one
            for one in snapshot.comments
        )
        by_writer = verdicts[issue.author]
        issue = issue if by_writer is None else replace(issue, by_writer=by_writer)
        return replace(snapshot, issue=issue, comments=comments)

    def pulls(self, pulls: Sequence[_AnyPull]) -> tuple[_AnyPull, ...]:
        """The pull requests with `by_writer` set by each author's verdict.

        On entry `by_writer` is set by the association, which decides if no lookup is left.
        """
        authors = ((pull.author.login, pull.by_writer) for pull in pulls)
        verdicts = self.authors(authors, marks=False)
        return tuple(
            replace(pull, by_writer=verdict)
            if (verdict := verdicts[pull.author.login]) is not None
            else pull
            for pull in pulls
        )

    def change(self, edits: Sequence[Edit], issue: Issue) -> TextChange | None:
        """The last of the edits by an account without write access.

        Only the issue's author may edit the issue without write access, so the association of the
        author judges an edit. An edit without a verdict counts as a stranger's, except in a reading
        of many issues: a claim reads the issue again.
        """
        latest = {edit.by: edit.at for edit in sorted(edits, key=lambda edit: edit.at)}
        author = folded(issue.author) if issue.by_writer else ""
        verdicts = self.authors(((by, folded(by) == author) for by in latest), marks=False)
        doubted = (False,) if self.purpose is Purpose.DISCOVER else (False, None)
        found = [TextChange(by, at) for by, at in latest.items() if verdicts[by] in doubted]
        return max(found, key=lambda change: change.at, default=None)

    def authors(
        self, authors: Iterable[tuple[str, bool]], *, marks: bool = True
    ) -> dict[str, bool | None]:
        """The verdict about each account, from its login and whether it is associated."""
        associated: dict[str, bool] = {}
        for login, is_associated in authors:
            associated[login] = associated.get(login, False) or is_associated
        unknown = [
            login
            for login, is_associated in associated.items()
            if not is_associated
            and self._trust.cached_verdict(login, associated=False, marks=marks) is None
        ]
        if len(unknown) > self._lookups_left > 0:
            self._try_request(lambda: self._trust.fetch_writers(self.purpose))
        return {
            login: self.author(login, associated=associated[login], marks=marks)
            for login in sorted(associated, key=lambda login: not associated[login])
        }

    def lowest(self, authors: Iterable[tuple[int, str, bool]]) -> int | None:
        """The lowest issue number whose author counts; from (number, login, associated)."""
        for number, login, associated in sorted(authors):
            verdict = self.author(login, associated=associated)
            if verdict is None:
                raise Unavailable(f"#{number}: too many accounts to ask about at once")
            if verdict:
                return number
        return None


def is_mark(body: str) -> bool:
    """Whether the comment is a mark or control log entry of dibs, or a person's ruling."""
    if starts_as(body, GATE_KINDS) or is_ruling(body):
        return True
    mark = parse_mark(body)
    return not isinstance(mark, UnknownMark) if mark is not None else parse_entry(body) is not None


class Viewer:
    """The token's own account and its rights in a repository. Safe for many threads."""

    def __init__(self, trust: WriterTrust, ask_for_reader: Callable[[], None]) -> None:
        """`ask_for_reader`: has `trust` note who asks, if GraphQL is to be had."""
        self._trust, self._door, self._translator = trust, trust.door, trust.door.translator
        self._ask_for_reader = ask_for_reader
        self._lock = threading.Lock()
        self._login: str | None = None
        """None before we asked; empty if the account has none."""

    def login(self) -> str | None:
        """The account's login, asked for once; None if GitHub does not tell it."""
        with self._lock:
            if self._login is None:
                reader = self.reader()
                if reader is not None:
                    self._login = reader.login
                else:
                    self._login = self._login_over_rest()
            return self._login or None

    def _login_over_rest(self) -> str:
        """Empty for the token of an App's installation: to it REST names no account."""
        try:
            reply = self._door.transport.rest("GET", "/user", purpose=Purpose.LOOK)
        except NotPermitted:
            return ""
        return decode(reply.body, RestUser).login

    def reader(self) -> Reader | None:
        """Who asks, by the last GraphQL reading, or by a request; None without GraphQL."""
        if self._trust.reader is None:
            self._ask_for_reader()
        return self._trust.reader

    def insist_counts(self) -> None:
        """Raises NotPermitted if what we would post could not count, as far as GraphQL tells."""
        reader = self.reader()
        if reader is None:
            return
        by_name = self._translator.believed(reader.login, "")
        may_write = reader.may_write is not False and not is_bot(reader.login)
        if not (by_name or (may_write and not self._translator.trusts_by_name)):
            raise self.not_believed(reader.login)

    def not_believed(self, author: str) -> NotPermitted:
        """The error for a comment or issue of ours which does not count."""
        if self._translator.trusts_by_name:
            how = "is not among those that [github] trusted names"
        elif is_bot(author):
            how = "is an App's, which GitHub calls nobody in particular"
        else:
            how = "may not write to the repository, as far as GitHub tells"
        return NotPermitted(
            f"what {author!r} writes counts for nothing in {self._door.name}: the account "
            f"{how}, so its cards would be a stranger's; give it write access, or name all "
            "accounts of the fleet in [github] trusted of every worker's dibs.toml"
        )

    def may_write(self) -> bool | None:
        """Whether our account may write to the repository; None if GitHub does not answer."""
        permissions = self._door.told().permissions
        return None if permissions is None else permissions.push

    def standpoint(self) -> Standpoint:
        repository = self._door.told()
        permission, may_write = "", None
        if (ours := repository.permissions) is not None:
            permission = "admin" if ours.admin else "write" if ours.push else "read"
            may_write = ours.push
        if not self._translator.trusts_by_name:
            return Standpoint(
                "those by accounts that may write to the repository",
                permission,
                may_write,
                ours_count=may_write if not is_bot(self.login() or "") else False,
                doubt=self._doubt(repository),
            )
        login = self.login()
        counts = None if login is None else self._translator.believed(login, "")
        return Standpoint("those by [github] trusted", permission, may_write, ours_count=counts)

    def flaws(self) -> tuple[str, ...]:
        """Why the repository cannot be a backlog, or needs another name in the settings."""
        try:
            repository = self._door.told()
        except Outage as flaw:
            return (str(flaw),)
        name, found = self._translator.repository, []
        if folded(repository.full_name) != folded(name):
            found.append(
                f"{name} is called {repository.full_name} now; it still answers to its old name, "
                "until another repository takes that name: set tracker to the new one, in every "
                "worker at once"
            )
        if repository.archived:
            found.append(f"{name} is archived: nothing can be written to it")
        if not repository.has_issues:
            found.append(f"{name} has its issues turned off")
        return tuple(found)

    def _doubt(self, repository: RestRepository) -> str:
        """Why readers may come to different verdicts about a card; empty if they cannot."""
        login = self.login()
        if login is None or is_bot(login):
            why = "an App's bot cannot be looked up"
        elif self._trust.refuses_lookup(login):
            why = "GitHub does not tell this token who may write"
        else:
            return ""
        depends = "" if repository.owner.type == "User" else ", which depends on who asks"
        return f"{why}, so cards are judged by what GitHub says with each comment{depends}"


_REPOSITORY = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}/(?!\.{1,2}$)[A-Za-z0-9_.-]{1,100}", re.ASCII
)


def repositories(place: str) -> tuple[str, ...]:
    """The repositories in a setting. Raises BadConfiguration if invalid or named twice."""
    names = tuple(name.strip() for name in place.split(","))
    for name in names:
        if not _REPOSITORY.fullmatch(name):
            raise BadConfiguration(
                f"tracker 'github:{place}' names no repository; write it as github:OWNER/REPO, "
                "several with commas between them"
            )
    if len({folded(name) for name in names}) < len(names):
        raise BadConfiguration(f"tracker 'github:{place}' names a repository twice")
    return names
