"""Whose marks count: those of accounts that may write to the repository.

Everybody who reads must come to the same verdict. What GitHub says with a comment of its author's
association depends on who asks: a membership that is not public is told to members only. So whoever
wrote a mark is looked up by name, which has the same answer for every asker, and that is kept for
ten minutes. Of the account that reads, a reading says as much by itself. Other tools' markers are
judged likewise; comments that are neither need no verdict. A list of logins in the settings
replaces all of it. Where GitHub does not tell this token (403), or does not know the account (an
App's bot), the association decides.

A stranger's forged mark costs a lookup, once, and at most so many in one reading. Where there are
more strangers than that, the list of all who may write is asked for (`writers`). Without it such a
reading is not whole, and the next one goes on from there; only somebody who holds already does
without: marks that came after his card's turn no verdict. With a key, what it does not hold for is
no mark of anybody's, and needs no verdict either.

The accounts that may write to the repository, in one list: what a crowd of strangers calls for.

To look up each account that wrote a mark is a request each. One page of GitHub's list of
collaborators tells of all of them, to whoever may write and, where an organisation owns the
repository, is its member. A member also sees the membership of others with each comment. So who is
neither on the list nor said to belong here may not write, by two answers that agree; who is said to
belong here and is not on the list is for others to look up.

Refuses to be in doubt: a list that this token is not given, that tells no permissions or that fills
its page is none.

Who we are to a repository: the account of the token, what it may do, and whether it counts.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from dibs.adapters.github.client import Purpose, Transport
from dibs.adapters.github.repository import RepositoryDoor
from dibs.adapters.github.shapes import (
    GHOST,
    RestCollaborator,
    RestPermission,
    RestRepository,
    RestUser,
    Translator,
    decode,
    folded,
)
from dibs.core.card import UnknownMark, parse_mark
from dibs.core.errors import NotPermitted, Outage, Unavailable
from dibs.core.foreign import is_foreign
from dibs.core.granter import parse_entry
from dibs.core.ids import IssueRef, LocalTime
from dibs.core.issue import Comment
from dibs.core.signing import Keyring, verify
from dibs.ports.tracker import Standpoint

_PAGE = 100
_OK = 200


class Writers:
    """Of one repository. Safe for many threads."""

    def __init__(self, door: RepositoryDoor, *, kept_s: float) -> None:
        self._door = door
        self._kept_s = kept_s
        self._lock = threading.Lock()
        self._names: frozenset[str] | None = None
        self._asked_at: LocalTime | None = None

    def at_hand(self) -> frozenset[str] | None:
        """The list, if it was asked for lately and is to be had."""
        with self._lock:
            return self._names if self._is_fresh() else None

    def ask(self, purpose: Purpose) -> None:
        """Unless that was done lately."""
        with self._lock:
            if self._is_fresh():
                return
        asked_at = self._door.transport.clock.now()
        names = self._listed(purpose)
        with self._lock:
            self._names, self._asked_at = names, asked_at

    def _is_fresh(self) -> bool:
        now = self._door.transport.clock.now()
        return self._asked_at is not None and now < self._asked_at + self._kept_s

    def _listed(self, purpose: Purpose) -> frozenset[str] | None:
        params = {"per_page": str(_PAGE)}
        reply = self._door.ask("GET", "/collaborators", purpose=purpose, params=params)
        if reply.status != _OK:
            return None
        told = decode(reply.body, list[RestCollaborator])
        if len(told) >= _PAGE or any(one.permissions is None for one in told):
            return None
        return frozenset(
            folded(one.login) for one in told if one.permissions and one.permissions.push
        )


LOOKUPS = 5
_KEPT_S = 600.0
_MOST = 2000
_MAY_WRITE = frozenset({"write", "maintain", "admin"})
_FORBIDDEN, _NOT_FOUND = 403, 404
_USER = "User"


class Told(Enum):
    """What GitHub says of an account."""

    WRITES = auto()
    WRITES_NOT = auto()
    NOTHING = auto()
    """Not to this token, or not of this account: then the association decides."""


class Believing:
    """For one repository. Safe for many threads."""

    def __init__(
        self, door: RepositoryDoor, translator: Translator, keyring: Keyring | None = None
    ) -> None:
        self._door = door
        self._translator = translator
        self._keyring = keyring
        self._writers = Writers(door, kept_s=_KEPT_S)
        self._owner = folded(translator.repository.partition("/")[0])
        self._lock = threading.Lock()
        self._told: OrderedDict[str, tuple[Told, LocalTime]] = OrderedDict()
        self._refused_at: LocalTime | None = None

    def judging(self, purpose: Purpose, *, holding: bool = False) -> "Judging":
        """For one reading. `holding`: by somebody who holds, and must not fail by strangers."""
        return Judging(self, purpose, holding=holding)

    def at_hand(self, login: str, *, associated: bool) -> bool | None:
        """The verdict, if it needs no request."""
        name = folded(login)
        if self._translator.trusts_by_name:
            return self._translator.believed(login, "")
        if name == self._owner:
            return True
        if name == GHOST or name.endswith("[bot]"):
            return associated
        now = self._door.transport.clock.now()
        with self._lock:
            if self._refused_at is not None and now < self._refused_at + _KEPT_S:
                return associated
            told, since = self._told.get(name, (None, now))
        if told is None or now >= since + _KEPT_S:
            return self._as_listed(name, associated=associated)
        return associated if told is Told.NOTHING else told is Told.WRITES

    def _as_listed(self, name: str, *, associated: bool) -> bool | None:
        writers = self._writers.at_hand()
        if writers is None or (associated and name not in writers):
            return None
        return name in writers

    def ask_for_all(self, purpose: Purpose) -> None:
        """Who may write, in one request, if GitHub tells this token."""
        self._writers.ask(purpose)

    def needs_verdict(self, comment: Comment, issue: IssueRef | None) -> bool:
        """Whether it decides something if its author counts."""
        if not is_mark(comment.body):
            return is_foreign(comment.body)
        if self._keyring is None or issue is None:
            return True
        return self._keyring.believes(verify(comment.body, issue, self._keyring))

    def ask(self, login: str, purpose: Purpose) -> Told:
        told, refused = self._look_up(login, purpose)
        now = self._door.transport.clock.now()
        with self._lock:
            self._refused_at = now if refused else None
            self._told[folded(login)] = told, now
            self._told.move_to_end(folded(login))
            while len(self._told) > _MOST:
                self._told.popitem(last=False)
        return told

    def hear(self, told: Mapping[str, Any]) -> None:
        """What a reading says of the account that reads: whether it may write, and which it is.

        Only a yes is heard: anything else is looked up like everybody's.
        """
        if str(told.get("viewerPermission")).lower() in _MAY_WRITE:
            login = next(_written_by_the_reader(told), None)
            if login is not None:
                with self._lock:
                    self._told[folded(login)] = Told.WRITES, self._door.transport.clock.now()

    @property
    def in_the_dark(self) -> bool:
        """Whether GitHub refused to tell this token, lately."""
        with self._lock:
            return self._refused_at is not None

    def refused(self, login: str) -> bool:
        """Whether GitHub tells this token nothing; asked about an account that is sure to exist."""
        told, _ = self._look_up(login, Purpose.LOOK)
        return told is Told.NOTHING

    def _look_up(self, login: str, purpose: Purpose) -> tuple[Told, bool]:
        path = f"/collaborators/{quote(login, safe='')}/permission"
        reply = self._door.ask("GET", path, purpose=purpose)
        if reply.status in (_FORBIDDEN, _NOT_FOUND):
            return Told.NOTHING, reply.status == _FORBIDDEN
        self._door.insist_done(reply, "GET", path)
        may = decode(reply.body, RestPermission).permission in _MAY_WRITE
        return Told.WRITES if may else Told.WRITES_NOT, False


class Judging:
    """One reading's verdicts, with its share of lookups."""

    def __init__(self, believing: Believing, purpose: Purpose, *, holding: bool = False) -> None:
        self.purpose = purpose
        self._believing = believing
        self._holding = holding
        self._left = LOOKUPS

    def author(self, login: str, *, associated: bool) -> bool | None:
        """Whether what this account says counts; None if this reading cannot tell any more."""
        verdict = self._believing.at_hand(login, associated=associated)
        if verdict is not None or self._left == 0:
            return verdict
        self._left -= 1
        if not self._told(lambda: self._believing.ask(login, self.purpose)):
            return None
        return self._believing.at_hand(login, associated=associated)

    def _told(self, ask: Callable[[], object]) -> bool:
        try:
            ask()
        except Outage:
            if not self._holding:
                raise
            self._left = 0
            return False
        return True

    def _meet(self, marks: Sequence[Comment]) -> None:
        """Of a crowd, nobody is asked about singly whom one list can tell of."""
        at_hand = self._believing.at_hand
        strangers = {mark.author for mark in marks if not mark.by_writer}
        unknown = [one for one in strangers if at_hand(one, associated=False) is None]
        if len(unknown) > self._left > 0:
            self._told(lambda: self._believing.ask_for_all(self.purpose))

    def comments(
        self, comments: Sequence[Comment], issue: IssueRef | None = None
    ) -> tuple[tuple[Comment, ...], bool]:
        """With each mark's verdict, and whether there is one for all of them.

        They come as the association has it. Those whom that speaks for are looked up first, so that
        strangers cannot use up the lookups. `issue`: the one they are on, for what is signed.
        """
        marks = [one for one in comments if self._believing.needs_verdict(one, issue)]
        self._meet(marks)
        verdicts: dict[str, bool | None] = {}
        for mark in sorted(marks, key=lambda one: not one.by_writer):
            if mark.author not in verdicts:
                verdicts[mark.author] = self.author(mark.author, associated=mark.by_writer)
        judged = {
            mark.id: replace(mark, by_writer=verdict)
            for mark in marks
            if (verdict := verdicts[mark.author]) is not None
        }
        whole = self._holding or None not in verdicts.values()
        return tuple(judged.get(one.id, one) for one in comments), whole

    def lowest(self, authors: Iterable[tuple[int, str, bool]]) -> int | None:
        """Of issues with their authors and associations, the first number that counts."""
        for number, login, associated in sorted(authors):
            verdict = self.author(login, associated=associated)
            if verdict is None:
                raise Unavailable(f"#{number}: too many accounts to ask about at once")
            if verdict:
                return number
        return None


def _written_by_the_reader(told: Mapping[str, Any]) -> Iterator[str]:
    """Logins; all the same one, since one account reads.

    Not of an App's bot: here it is called like a user that anybody may sign up as.
    """
    for part in told.values():
        found = part.get("nodes", [part]) if isinstance(part, Mapping) else ()
        for node in filter(None, found):
            said = (node.get("comments") or {}).get("nodes") or ()
            for one in (node, *said):
                author = one.get("author") if one and one.get("viewerDidAuthor") else None
                if author and author.get("__typename") == _USER:
                    yield author["login"]


def is_mark(body: str) -> bool:
    """Whether it is well formed, so that it decides something if its author counts."""
    mark = parse_mark(body)
    return not isinstance(mark, UnknownMark) if mark is not None else parse_entry(body) is not None


class Viewer:
    def __init__(
        self,
        transport: Transport,
        door: RepositoryDoor,
        translator: Translator,
        believing: Believing,
    ) -> None:
        self._transport = transport
        self._door = door
        self._translator = translator
        self._believing = believing
        self._lock = threading.Lock()
        self._asked = False
        self._login: str | None = None

    def login(self) -> str | None:
        """None for a token that belongs to an App's installation: nobody is logged in there."""
        with self._lock:
            if not self._asked:
                try:
                    reply = self._transport.rest("GET", "/user", purpose=Purpose.LOOK)
                    self._login = decode(reply.body, RestUser).login or None
                except NotPermitted:
                    self._login = None
                self._asked = True
            return self._login

    def may_write(self) -> bool | None:
        """As GitHub says of our account; None if it does not."""
        _, may = _may(self._door.told())
        return may

    def standpoint(self) -> Standpoint:
        told = self._door.told()
        permission, may_write = _may(told)
        if not self._translator.trusts_by_name:
            return Standpoint(
                "those by accounts that may write to the repository",
                permission,
                may_write,
                ours_count=may_write,
                doubt=self._doubt(told),
            )
        login = self.login()
        counts = None if login is None else self._translator.believed(login, "")
        return Standpoint("those by [github] trusted", permission, may_write, ours_count=counts)

    def flaws(self) -> tuple[str, ...]:
        try:
            told = self._door.told()
        except Outage as flaw:
            return (str(flaw),)
        name, found = self._translator.repository, []
        if folded(told.full_name) != folded(name):
            found.append(
                f"{name} is called {told.full_name} now; it still answers to its old name, until "
                "somebody else takes that: set tracker to the new one, in every worker at once"
            )
        if told.archived:
            found.append(f"{name} is archived: nothing can be written to it")
        if not told.has_issues:
            found.append(f"{name} has its issues turned off")
        return tuple(found)

    def _doubt(self, told: RestRepository) -> str:
        """Why readers may come to different verdicts about one card; nothing if they do not."""
        login = self.login()
        if login is None:
            why = "an App's bot cannot be looked up"
        elif self._believing.refused(login):
            why = "GitHub does not tell this token who may write"
        else:
            return ""
        depends = "" if told.owner.type == "User" else ", which depends on who asks"
        return f"{why}, so cards are judged by what GitHub says with each comment{depends}"


def _may(told: RestRepository) -> tuple[str, bool | None]:
    if told.permissions is None:
        return "", None
    word = "admin" if told.permissions.admin else "write" if told.permissions.push else "read"
    return word, told.permissions.push
