"""The refs of a GitHub repository through its API, for machines that have a token and no git.

GitHub creates a ref once, and moves it only forward: of two commits with the same parent, only one
can be moved to. So the parent is compared. Several refs cannot be moved together: the entry that
says that a lease is held is written before the record and removed after it, and counts only if the
record confirms it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from threading import Lock
from typing import TypeVar

import msgspec

from dibs.adapters.github.client import Transport
from dibs.adapters.github.limits import Purpose
from dibs.adapters.github.replies import Reply, refusal_of
from dibs.adapters.github.trust import repositories
from dibs.core.bounded import Bounded
from dibs.core.durations import REFUSED
from dibs.core.errors import BadConfiguration, NotPermitted, Outage, Unavailable, Unconfirmed
from dibs.ports.refs import EMPTY_TREE, Move, SwapRefused

_MOST_REMEMBERED = 10_000
_MOST_PAGES = 1000
_UNKNOWN = (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.NOT_FOUND)
_REFUSALS = (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.CONFLICT)

_ANY_STATUS = range(100, 600)
_FINAL = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)

Shape = TypeVar("Shape")


class _Object(msgspec.Struct):
    sha: str


class _Ref(msgspec.Struct):
    ref: str
    object: _Object


class _Commit(msgspec.Struct):
    sha: str
    message: str


class _Tree(msgspec.Struct):
    tree: _Object


class _Listed(msgspec.Struct):
    commit: _Tree


class GithubRefs:
    """One repository of GitHub or of a GitHub Enterprise server.

    Requests go through the transport of the tracker: a token has a single budget, pace and breaker.
    All requests are urgent: a shed renewal loses the work of a running handler.
    """

    atomic = False
    guesses = False  # every write counts against a limit

    def __init__(
        self,
        repository: str,
        transport: Transport,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_close` closes a transport that was opened for this repository alone."""
        try:
            (self._repository,) = repositories(repository)
        except (BadConfiguration, ValueError):
            raise BadConfiguration(
                f"'git+github:{repository}' names no repository; write it as git+github:OWNER/REPO"
            ) from None
        self._transport, self._on_close = transport, on_close
        self.name = f"git+github:{repository}"
        self._base = f"/repos/{repository}/git"
        self.identity = f"{transport.api.rest}{self._base}"
        self._lock = Lock()
        self._messages: Bounded[str, str] = Bounded(_MOST_REMEMBERED)
        self._tree = EMPTY_TREE

    def close(self) -> None:
        self._on_close()

    # Looking

    def tips(self, folders: Sequence[str]) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for folder in folders:
            # Asked for alone, a missing ref and a repository that is not ours are both 404.
            address = f"{self._base}/matching-refs/{folder.removeprefix('refs/')}"
            for _ in range(_MOST_PAGES):
                reply = self._ask("GET", address)
                listed = self._expect(reply, HTTPStatus.OK, list[_Ref])
                found |= {ref.ref: ref.object.sha for ref in listed if ref.ref.startswith(folder)}
                following = self._transport.follow(reply)
                if following is None:
                    break
                address = following
        return found

    def messages(self, commits: Iterable[str]) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for commit in commits:
            with self._lock:
                message = self._messages.get(commit)
            if message is None:
                reply = self._ask("GET", f"{self._base}/commits/{commit}")
                message = self._expect(reply, HTTPStatus.OK, _Commit).message
                with self._lock:
                    self._messages[commit] = message
            found[commit] = message
        return found

    # Writing

    def commit(self, message: str, parent: str | None) -> str | None:
        parents = [parent] if parent is not None else []
        reply = self._post_commit(message, parents)
        if reply.status in _UNKNOWN and "tree" in reply.message.lower():
            # Not every server knows the empty tree unless it has it: any tree that it has will do.
            reply = self._ask("GET", f"/repos/{self._repository}/commits?per_page=1")
            listed = self._expect(reply, HTTPStatus.OK, list[_Listed])
            self._tree = listed[0].commit.tree.sha if listed else EMPTY_TREE
            reply = self._post_commit(message, parents)
        if reply.status in _UNKNOWN and "parent" in reply.message.lower():
            return None
        commit = self._expect(reply, HTTPStatus.CREATED, _Commit).sha
        with self._lock:
            self._messages[commit] = message
        return commit

    def _post_commit(self, message: str, parents: list[str]) -> Reply:
        wanted = {"message": message, "tree": self._tree, "parents": parents}
        return self._ask("POST", f"{self._base}/commits", wanted)

    def swap(self, moves: Sequence[Move]) -> SwapRefused | None:
        guarded = [move for move in moves if move.guarded]
        made = [move for move in moves if not move.guarded and move.to is not None]
        gone = [move for move in moves if not move.guarded and move.to is None]
        assert len(guarded) <= 1, "only one ref at a time can be swapped here"
        for move in made:
            self._create(move)
        refused = next(filter(None, map(self._move, guarded)), None)
        if refused is not None:
            # What was made stays: a request of ours that was given up may have arrived after all
            # and be what is in the way, and then the entry is that of a live lease.
            return refused
        for move in gone:
            # If this fails, an entry stays that its record does not confirm.
            with suppress(Outage):
                self._ask("DELETE", self._address(move.ref))
        return None

    def _move(self, move: Move) -> SwapRefused | None:
        if move.expected is None:
            return self._create(move)
        reply = self._ask("PATCH", self._address(move.ref), {"sha": move.to, "force": False})
        return self._refusal(reply, HTTPStatus.OK)

    def _create(self, move: Move) -> SwapRefused | None:
        reply = self._ask("POST", f"{self._base}/refs", {"ref": move.ref, "sha": move.to})
        return self._refusal(reply, HTTPStatus.CREATED)

    def _refusal(self, reply: Reply, done: HTTPStatus) -> SwapRefused | None:
        if reply.status in _REFUSALS:
            return SwapRefused(reply.message)
        self._expect(reply, done, _Ref)
        return None

    def _address(self, ref: str) -> str:
        return f"{self._base}/refs/{ref.removeprefix('refs/')}"

    # Requests

    def _ask(self, verb: str, address: str, wanted: object = None) -> Reply:
        def ask() -> Reply:
            return self._transport.rest(
                verb, address, purpose=Purpose.HOLD, wanted=wanted, ok=_ANY_STATUS, final=_FINAL
            )

        try:
            return ask()
        except Unconfirmed:  # urgent requests are not kept waiting, but these are not only beats
            self._transport.clock.sleep(REFUSED.pause_s)
            return ask()

    def _expect(self, reply: Reply, status: HTTPStatus, shape: type[Shape]) -> Shape:
        """The reply's body. Raises the error that another status means."""
        if reply.status == HTTPStatus.CONFLICT:
            raise NotPermitted(
                f"{self.name}: GitHub answered 409 {reply.message}: "
                "a repository without any commit cannot keep leases"
            )
        if reply.status != status:
            raise refusal_of(reply, self.name)
        try:
            return msgspec.json.decode(reply.body, type=shape)
        except msgspec.MsgspecError as flaw:
            raise Unavailable(f"{self.name} answered something that GitHub does not") from flaw
