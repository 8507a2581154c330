"""Who we are to a repository: the account of the token, what it may do, and whether it counts."""

import threading

from dibs.adapters.github.believing import Believing
from dibs.adapters.github.repository import RepositoryDoor
from dibs.adapters.github.shapes import RestRepository, RestUser, decode
from dibs.adapters.github.translating import Translator, folded
from dibs.adapters.github.transport import Purpose, Transport
from dibs.core.errors import NotPermitted, Outage
from dibs.ports.whoami import Standpoint


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
