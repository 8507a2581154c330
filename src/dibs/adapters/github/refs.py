"""The refs of a GitHub repository through its API: for whoever has a token and no git at hand.

A ref is created once and refused to everybody else, and moved only forward: of two commits with
the same parent, one can be moved to. So the parent is what is compared. Several refs cannot be
moved together: what says that a lease is held is written before the record and removed after it,
and never trusted without it.
"""

import http.client
import json
import os
import re
import threading
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from email.message import Message
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Self, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dibs.adapters.github.auth import TOKENS, api_at, api_of, token_of
from dibs.core.errors import BadConfiguration, NotPermitted, Outage, RateLimited, Unavailable
from dibs.ports.refs import EMPTY_TREE, Move, Refused

_MOST_REMEMBERED = 10_000
_MOST_PAGES = 1000
_RATE_LIMIT_S = 60.0
_NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')
_REPOSITORY = re.compile(r"[\w-]+/(?!\.{1,2}$)[\w.-]+", re.ASCII)
_LIMITED = (HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)
_UNKNOWN = (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.NOT_FOUND)
_REFUSALS = (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.CONFLICT)

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


class _Reply(Struct, frozen=True):
    status: int
    body: bytes
    headers: Message

    @property
    def text(self) -> str:
        """What GitHub says is wrong."""
        try:
            told = json.loads(self.body).get("message", "")
        except (ValueError, AttributeError):
            return ""
        return str(told)[:200]


class GithubRefs:
    """One repository of GitHub or of a GitHub Enterprise server."""

    atomic = False
    guesses = False  # every write counts against a limit

    def __init__(self, repository: str, *, token: str, api: str, timeout_s: float) -> None:
        if not _REPOSITORY.fullmatch(repository):
            raise BadConfiguration(
                f"'git+github:{repository}' names no repository; write it as git+github:OWNER/REPO"
            )
        self.name = f"git+github:{repository}"
        self._repository = f"{api_at(api).rest}/repos/{repository}"
        self._base = f"{self._repository}/git"
        self.identity = self._base
        self._token = token
        self._timeout_s = timeout_s
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._lock = threading.Lock()
        self._messages: OrderedDict[str, str] = OrderedDict()
        self._tree = EMPTY_TREE

    @classmethod
    def connect(cls, repository: str, *, timeout_s: float = 20.0) -> Self:
        """With the token and the API address of the environment. Sends nothing yet."""
        token = token_of(os.environ)
        if token is None:
            raise BadConfiguration(
                f"git+github:{repository} needs a token in one of {', '.join(TOKENS)}"
            )
        api = api_of(os.environ).rest
        return cls(repository, token=token.secret, api=api, timeout_s=timeout_s)

    def close(self) -> None:
        """Nothing stays open between two requests."""

    # Looking

    def tips(self, folders: Sequence[str]) -> Mapping[str, str]:
        return {ref: commit for folder in folders for ref, commit in self._list(folder)}

    def _list(self, folder: str) -> list[tuple[str, str]]:
        # Asked for alone, a ref that is not there and a repository that is not ours are both 404.
        address = f"{self._base}/matching-refs/{folder.removeprefix('refs/')}"
        found: list[_Ref] = []
        for _ in range(_MOST_PAGES):
            reply = self._ask("GET", address)
            found += self._expect(reply, HTTPStatus.OK, list[_Ref])
            following = _NEXT.search(reply.headers.get("Link", ""))
            if following is None:
                break
            address = self._same_server(following[1])
        return [(one.ref, one.object.sha) for one in found if one.ref.startswith(folder)]

    def _same_server(self, address: str) -> str:
        if urlsplit(address)[:2] != urlsplit(self._base)[:2]:
            raise Unavailable(f"{self.name} refers to another server, which is not told the token")
        return address

    def messages(self, commits: Iterable[str]) -> Mapping[str, str]:
        return {commit: self._message(commit) for commit in commits}

    def _message(self, commit: str) -> str:
        with self._lock:
            known = self._messages.get(commit)
        if known is not None:
            return known
        reply = self._ask("GET", f"{self._base}/commits/{commit}")
        return self._remember(commit, self._expect(reply, HTTPStatus.OK, _Commit).message)

    def _remember(self, commit: str, message: str) -> str:
        with self._lock:
            self._messages[commit] = message
            while len(self._messages) > _MOST_REMEMBERED:
                self._messages.popitem(last=False)
        return message

    # Writing

    def commit(self, message: str, parent: str | None) -> str | None:
        parents = [parent] if parent is not None else []
        reply = self._post_commit(message, parents)
        if reply.status in _UNKNOWN and "tree" in reply.text.lower():
            # Not every server knows the empty tree unless it has it: any tree that it has will do.
            self._tree = self._any_tree()
            reply = self._post_commit(message, parents)
        if reply.status in _UNKNOWN and "parent" in reply.text.lower():
            return None
        commit = self._expect(reply, HTTPStatus.CREATED, _Commit).sha
        self._remember(commit, message)
        return commit

    def _post_commit(self, message: str, parents: list[str]) -> _Reply:
        wanted = {"message": message, "tree": self._tree, "parents": parents}
        return self._ask("POST", f"{self._base}/commits", wanted)

    def _any_tree(self) -> str:
        reply = self._ask("GET", f"{self._repository}/commits?per_page=1")
        listed = self._expect(reply, HTTPStatus.OK, list[_Listed])
        return listed[0].commit.tree.sha if listed else EMPTY_TREE

    def swap(self, moves: Sequence[Move]) -> Refused | None:
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

    def _move(self, move: Move) -> Refused | None:
        if move.expected is None:
            return self._create(move)
        reply = self._ask("PATCH", self._address(move.ref), {"sha": move.to, "force": False})
        return self._refusal(reply, HTTPStatus.OK)

    def _create(self, move: Move) -> Refused | None:
        reply = self._ask("POST", f"{self._base}/refs", {"ref": move.ref, "sha": move.to})
        return self._refusal(reply, HTTPStatus.CREATED)

    def _refusal(self, reply: _Reply, done: HTTPStatus) -> Refused | None:
        if reply.status in _REFUSALS:
            return Refused(reply.text)
        self._expect(reply, done, _Ref)
        return None

    def _address(self, ref: str) -> str:
        return f"{self._base}/refs/{ref.removeprefix('refs/')}"

    # Requests

    def _ask(self, verb: str, address: str, wanted: object = None) -> _Reply:
        request = urllib.request.Request(  # noqa: S310 - the address is the operator's setting
            address,
            method=verb,
            data=json.dumps(wanted).encode() if wanted is not None else None,
            headers={
                "Accept": "application/vnd.github+json",
                "Authorization": f"Bearer {self._token}",
                "Content-Type": "application/json",
                "User-Agent": "dibs",
                "X-GitHub-Api-Version": "2022-11-28",
            },
        )
        try:
            with self._opener.open(request, timeout=self._timeout_s) as reply:
                return _Reply(reply.status, reply.read(), reply.headers)
        except urllib.error.HTTPError as refusal:
            with refusal:
                return _Reply(refusal.code, refusal.read(), refusal.headers)
        except (OSError, http.client.HTTPException, ValueError) as flaw:
            reason = getattr(flaw, "reason", flaw)
            raise Unavailable(
                f"{self.name} did not answer: {reason or type(flaw).__name__}"
            ) from flaw

    def _expect(self, reply: _Reply, status: HTTPStatus, shape: type[Shape]) -> Shape:
        if reply.status != status:
            raise self._outage(reply)
        try:
            return msgspec.json.decode(reply.body, type=shape)
        except msgspec.MsgspecError as flaw:
            raise Unavailable(f"{self.name} answered something that GitHub does not") from flaw

    def _outage(self, reply: _Reply) -> Outage:
        said = f"{self.name} answered {reply.status:d} {reply.text}".rstrip()
        if reply.status in _LIMITED and (wait_s := _wait_s(reply)) is not None:
            return RateLimited(said, retry_after_s=wait_s)
        if reply.status == HTTPStatus.NOT_FOUND:
            return NotPermitted(f"{said}: there is no such repository, or not for this token")
        if reply.status == HTTPStatus.CONFLICT:
            return NotPermitted(f"{said}: a repository without any commit cannot keep leases")
        if HTTPStatus.MULTIPLE_CHOICES <= reply.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return NotPermitted(said)
        return Unavailable(said)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token is not handed on to wherever a reply points."""

    def redirect_request(self, *_: object) -> None:
        return None


def _wait_s(reply: _Reply) -> float | None:
    """How long GitHub asks us to wait; None if it is not about how often we ask."""
    headers = reply.headers
    if (told := headers.get("Retry-After", "")).isdecimal():
        return float(told)
    if headers.get("X-RateLimit-Remaining") == "0":
        with suppress(ValueError, TypeError):
            asked_at = parsedate_to_datetime(headers.get("Date", "")).timestamp()
            return max(1.0, int(headers.get("X-RateLimit-Reset", "")) - asked_at)
        return _RATE_LIMIT_S
    limited = reply.status == HTTPStatus.TOO_MANY_REQUESTS or "rate limit" in reply.text.lower()
    return _RATE_LIMIT_S if limited else None
