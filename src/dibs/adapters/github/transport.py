"""GitHub's REST and GraphQL APIs as one conversation: with one token, at one address.

Reads that have not changed are answered from what is kept; a repository that was renamed is found
where it is now. Knows nothing of issues: which status is an answer and which an error, the caller
says. Who may send, and what is told to the others, is decided by `sending`.
"""

import os
import re
import threading
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace

from dibs.adapters.clocks import SystemClock
from dibs.adapters.github.auth import Api, Credential, Token, api_of, credential_of
from dibs.adapters.github.budget import Purpose, Resource
from dibs.adapters.github.ledger import FileLedger, Ledger, ledger_path
from dibs.adapters.github.pace import Kind, Limits
from dibs.adapters.github.refusals import NoGraphql, is_broken, limit_among, refusal_of
from dibs.adapters.github.remembering import Kept, Renames, Replies, place_of
from dibs.adapters.github.replies import GraphqlError, GraphqlReply, Reply, graphql_errors
from dibs.adapters.github.sending import Request, Sender
from dibs.adapters.github.wire import REPLY_S, Wire
from dibs.core.errors import Unavailable
from dibs.ports.budget import BudgetReport
from dibs.ports.clock import Clock
from dibs.ports.urgency import is_persons_word

__all__ = [
    "GraphqlError",
    "GraphqlReply",
    "Limits",
    "Purpose",
    "Reply",
    "Transport",
    "Transports",
]

_FINE = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT)
_MOVED = (
    HTTPStatus.MOVED_PERMANENTLY,
    HTTPStatus.FOUND,
    HTTPStatus.TEMPORARY_REDIRECT,
    HTTPStatus.PERMANENT_REDIRECT,
)
# What notifies people, as GitHub's description of its API marks these.
_CREATING_PATH = re.compile(r"/(?:issues|comments|pulls|reviews|releases)$")
_CREATING_FIELD = re.compile(r"\b(?:addComment|createIssue|createPullRequest)\b")
_MUTATION = re.compile(r"(?:\s|#[^\n]*\n)*mutation\b")


class Transport:
    """Safe for many threads."""

    def __init__(
        self,
        api: Api,
        credential: Credential,
        ledger: Ledger,
        clock: Clock,
        *,
        limits: Limits | None = None,
        reply_s: float = REPLY_S,
    ) -> None:
        self._api, self._limits = api, limits or Limits()
        self.clock = clock
        self._sender = Sender(api, credential, ledger, Wire(api, clock, reply_s=reply_s), clock)
        self._replies = Replies()
        self._renames = Renames(api.rest)
        self.graphql_gone = False
        """True once the server said that it has none."""

    def budget(self) -> BudgetReport:
        return self._sender.report(self._limits)

    def close(self) -> None:
        self._sender.close()

    # REST

    def rest(
        self,
        verb: str,
        path_or_url: str,
        *,
        purpose: Purpose,
        wanted: object = None,
        params: Mapping[str, str] | None = None,
        conditional: bool = False,
        fresh: bool = False,
        ok: Collection[int] = _FINE,
    ) -> Reply:
        """The reply, if its status is one of `ok`; the error that it means otherwise.

        A limit is RateLimited whatever `ok` says, and nothing was done. A redirect is followed only
        if the repository was renamed: an issue that was transferred answers 301, which may be `ok`.
        A write whose reply was lost is Unavailable: it may have been done. `fresh`: what we have of
        it is replaced, and not only asked after.
        """
        address = self._renames.current(self._address(path_or_url, params))
        conditional = conditional and verb == "GET"
        request = Request(
            verb,
            address,
            _rest_kind(verb, address),
            _urgent(purpose),
            msgspec.json.encode(wanted) if wanted is not None else None,
            self._replies.get(address) if conditional and not fresh else None,
        )
        reply = self._sender.send(request)
        if reply.status in _MOVED and (there := self._renamed(request, reply)) is not None:
            request = replace(request, address=there, kept=None)
            reply = self._sender.send(request)
        if reply.status not in ok:
            raise refusal_of(reply, self._sender.what(request))
        if conditional and reply.status == HTTPStatus.OK and "etag" in reply.headers:
            kept = Kept(reply.headers["etag"], reply.headers, reply.body, self.clock.now())
            self._replies.put(address, kept)
        return reply

    def follow(self, reply: Reply) -> str | None:
        """The address of the next page, as GitHub names it: to be asked for as it is."""
        following = reply.next_page
        if following is not None and not self._api.owns(following):
            raise Unavailable(
                f"{self._api.host} refers to another server, which is not told the token"
            )
        return following

    def _address(self, path_or_url: str, params: Mapping[str, str] | None) -> str:
        whole = path_or_url if "://" in path_or_url else self._api.rest + path_or_url
        if not params:
            return whole
        return f"{whole}{'&' if '?' in whole else '?'}{urlencode(params)}"

    def _renamed(self, request: Request, reply: Reply) -> str | None:
        """Where to ask instead; None if it is not the repository that has moved.

        An issue that was transferred looks the same where it has the same number there. So what the
        repository itself answers decides: its new name is never learnt from an issue's.
        """
        old = place_of(request.address, self._api.rest)
        if old is None or self._target(reply, old.rest) is None:
            return None
        asked = replace(request, verb="GET", address=old.whole, content=None, kept=None)
        said = self._sender.send(replace(asked, kind=Kind.REST_READ))
        repository = self._target(said, "") if said.status in _MOVED else None
        if repository is None:
            return None
        if said.status in {HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.PERMANENT_REDIRECT}:
            self._renames.learn(old, repository)
        return str(replace(old, repository=repository))

    def _target(self, reply: Reply, rest: str) -> str | None:
        """The repository that a redirect names, if it is about the same thing of it."""
        there = place_of(self._address(reply.headers.get("location", ""), None), self._api.rest)
        same = there is not None and _path(there.rest) == _path(rest)
        return there.repository if there is not None and same else None

    # GraphQL

    def graphql(
        self, document: str, variables: Mapping[str, object], *, purpose: Purpose
    ) -> GraphqlReply:
        """What was done, and what went wrong with the rest.

        RateLimited and NoGraphql mean that nothing was done, Unavailable that nobody knows.
        """
        content = msgspec.json.encode({"query": document, "variables": variables})
        kind = _graphql_kind(document)
        request = Request("POST", self._api.graphql, kind, _urgent(purpose), content)
        reply = self._sender.send(request)
        if reply.status == HTTPStatus.NOT_FOUND:
            self.graphql_gone = True
            raise NoGraphql(f"{self._api.host} has no GraphQL")
        if reply.status != HTTPStatus.OK:
            raise refusal_of(reply, self._sender.what(request))
        return self._executed(request, reply)

    def graphql_left(self) -> bool:
        """False while there is no use in asking over GraphQL: it is spent, or not there at all."""
        return not self.graphql_gone and not self._sender.spent(Resource.GRAPHQL)

    def graphql_back_in(self) -> float | None:
        """When it starts anew, in seconds; None if it is not spent, or is not there at all."""
        return None if self.graphql_gone else self._sender.back_in(Resource.GRAPHQL)

    def _executed(self, request: Request, reply: Reply) -> GraphqlReply:
        try:
            told = msgspec.json.decode(reply.body, type=dict[str, Any])
        except msgspec.MsgspecError as flaw:
            what = self._sender.what(request)
            raise Unavailable(f"{what}: the answer is not GitHub's") from flaw
        data = told.get("data")
        data = data if isinstance(data, dict) else {}
        errors = graphql_errors(told.get("errors"))
        if all(part is None for part in data.values()):
            self._refuse(request, reply, errors)
        return GraphqlReply(data, errors, reply.now, reply.asked_at)

    def _refuse(self, request: Request, reply: Reply, errors: tuple[GraphqlError, ...]) -> None:
        """A status of success says nothing here: the refusal of a whole document is an error."""
        limit = limit_among(errors)
        if limit is not None:
            raise self._sender.limited(request, reply, limit)
        if is_broken(errors):
            raise Unavailable(f"{self._sender.what(request)}: {errors[0].message}")


def _urgent(purpose: Purpose) -> Purpose:
    """Who steers the fleet is not to wait behind those whom he would stop."""
    return max(purpose, Purpose.FINISH) if is_persons_word() else purpose


def _path(rest: str) -> str:
    return rest.partition("?")[0].rstrip("/")


def _rest_kind(verb: str, address: str) -> Kind:
    if verb == "GET":
        return Kind.REST_READ
    creating = verb == "POST" and _CREATING_PATH.search(_path(address))
    return Kind.REST_CREATE if creating else Kind.REST_EDIT


def _graphql_kind(document: str) -> Kind:
    if not _MUTATION.match(document):
        return Kind.GRAPHQL_READ
    return Kind.GRAPHQL_CREATE if _CREATING_FIELD.search(document) else Kind.GRAPHQL_EDIT


class Transports:
    """The transports of one configuration: one for each token. `ports.budget.Budgeted`."""

    def __init__(
        self,
        environment: Mapping[str, str],
        clock: Clock | None = None,
        *,
        limits: Limits | None = None,
        reply_s: float = REPLY_S,
    ) -> None:
        self._environment, self._clock = environment, clock or SystemClock()
        self._limits, self._reply_s = limits, reply_s
        self._api = api_of(environment)
        self._lock = threading.Lock()
        self._opened: dict[str, Transport] = {}

    @classmethod
    def from_environment(cls, *, limits: Limits | None = None) -> "Transports":
        return cls(os.environ, limits=limits)

    @property
    def api(self) -> Api:
        return self._api

    def for_repository(self, repository: str) -> Transport:
        """`OWNER/REPO`: a GitHub App has another token for each owner, a person one for all."""
        owner = repository.partition("/")[0].lower()
        with self._lock:
            known = self._opened.get("") or self._opened.get(owner)
            return known or self._open(owner, repository)

    def _open(self, owner: str, repository: str) -> Transport:
        credential = credential_of(self._environment, self._clock, self._api, repository=repository)
        path = ledger_path(self._environment, credential.identity, self._api.rest)
        opened = Transport(
            self._api,
            credential,
            FileLedger(path, self._clock, self._limits),
            self._clock,
            limits=self._limits,
            reply_s=self._reply_s,
        )
        self._opened["" if isinstance(credential, Token) else owner] = opened
        return opened

    def budgets(self) -> tuple[BudgetReport, ...]:
        with self._lock:
            opened = tuple(self._opened.values())
        return tuple(one.budget() for one in opened)

    def close(self) -> None:
        with self._lock:
            for one in self._opened.values():
                one.close()
            self._opened.clear()
