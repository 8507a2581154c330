"""GitHub's REST and GraphQL APIs as one conversation: with one token, at one address.

Reads that have not changed are answered from what is kept; a repository that was renamed is found
where it is now. Knows nothing of issues: which status is an answer and which an error, the caller
says. Who may send, and what is told to the others, is decided by `sending`.

One request to GitHub: whether it may be sent now, and what its reply means for those after it.

Decides nothing about what is asked. What a reply says of limits, and that none came, is noted for
every process that uses the token. A write is never sent twice: if its reply is lost, `Unavailable`
says that nobody knows. What changes nothing is asked once more when a connection was dropped.
"""

import os
import re
import threading
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any, assert_never
from urllib.parse import urlencode

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.github.auth import Answered, Api, Credential, Token, api_of, credential_of
from dibs.adapters.github.cache import Kept, Renames, Replies, place_of
from dibs.adapters.github.connections import REPLY_S, Dropped, Wire
from dibs.adapters.github.ledger import (
    FileLedger,
    Ledger,
    allowances_in,
    kept_in,
    ledger_path,
    shut_in,
)
from dibs.adapters.github.limits import (
    Budget,
    Failed,
    Kind,
    Limited,
    Limits,
    Passed,
    Purpose,
    Resource,
    budget_told,
)
from dibs.adapters.github.replies import (
    Exhausted,
    GraphqlError,
    GraphqlReply,
    NoGraphql,
    Reply,
    SlowDown,
    graphql_errors,
    is_broken,
    limit_among,
    limit_in,
    refusal_of,
    served_at,
)
from dibs.adapters.system import SystemClock
from dibs.core.errors import Outage, RateLimited, Unavailable
from dibs.core.ids import LocalTime, ServerTime
from dibs.ports.system import Clock
from dibs.ports.tracker import Allowance, BudgetReport, is_persons_word

_UNTOLD_RESET_S = 60.0
_SHORTEST_WAIT_S = 0.1


class Request(Struct, frozen=True):
    verb: str
    address: str
    kind: Kind
    purpose: Purpose
    content: bytes | None = None
    kept: Kept | None = None
    """What we have of it already."""

    @property
    def resource(self) -> Resource:
        return Resource.GRAPHQL if self.kind.graphql else Resource.REST


class Sender:
    """Safe for many threads."""

    def __init__(
        self, api: Api, credential: Credential, ledger: Ledger, wire: Wire, clock: Clock
    ) -> None:
        self._api, self._credential, self._ledger = api, credential, ledger
        self._wire, self._clock = wire, clock

    def send(self, request: Request) -> Reply:
        """Whatever the server answers. Raises RateLimited (nothing was done) or Unavailable."""
        token = self._token(request.purpose)
        answered = self._attempt(request, token)
        if answered.status == HTTPStatus.UNAUTHORIZED and self._credential.refused(token):
            # An answer all the same: if this was the one that tries, it must not bar its own second
            # attempt.
            self._ledger.note(Passed(answered.asked_at, request.kind))
            token = self._token(request.purpose)
            answered = self._attempt(request, token)
        return self._reply(request, _without(token, answered))

    def what(self, request: Request) -> str:
        """The request, for people."""
        path = request.address.removeprefix(self._api.rest).partition("?")[0]
        return f"{self._api.host}: {request.verb} {path}"

    def spent(self, resource: Resource) -> bool:
        return self._ledger.spent(resource)

    def back_in(self, resource: Resource) -> float | None:
        """How long nothing is left of it; None if something is."""
        return self._ledger.read(lambda spending, now: spending.back_in(resource, now))

    def close(self) -> None:
        self._wire.close()
        self._ledger.close()

    # There and back

    def _token(self, purpose: Purpose) -> str:
        """One that is at hand, or a new one: whoever asks for that asks like everybody else."""

        def as_app(verb: str, path: str, bearer: str) -> Answered:
            request = Request(verb, self._api.rest + path, Kind.AS_APP, purpose)
            answered = _without(bearer, self._once(request, bearer))
            self._reply(request, answered)
            return answered

        return self._credential.token(as_app)

    def _attempt(self, request: Request, token: str) -> Answered:
        try:
            return self._once(request, token)
        except Dropped:
            if request.kind.writes:
                raise
            return self._once(request, token)

    def _once(self, request: Request, token: str) -> Answered:
        refusal = self._ledger.admit(request.kind, request.purpose)
        if refusal is not None:
            wait_s = max(refusal.wait_s, _SHORTEST_WAIT_S)
            raise RateLimited(f"{self._api.host}: {refusal.why}", retry_after_s=wait_s)
        asked_at = self._clock.now()
        etag = request.kept.etag if request.kept else ""
        try:
            return self._wire.send(
                request.verb, request.address, token, content=request.content, etag=etag
            )
        except Unavailable as flaw:
            self._failed(asked_at, str(flaw))
            raise

    def _reply(self, request: Request, answered: Answered) -> Reply:
        now = served_at(answered.headers)
        if now is None:
            self._failed(answered.asked_at, "a reply without its time")
            raise Unavailable(f"{self.what(request)}: the answer does not tell its time")
        reply = Reply(
            answered.status,
            answered.headers,
            answered.body,
            now,
            answered.asked_at,
            address=request.address,
        )
        limit = limit_in(reply)
        if limit is not None:
            raise self.limited(request, reply, limit)
        if reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._broken(reply)
            return reply
        return self._passed(request, reply)

    def _passed(self, request: Request, reply: Reply) -> Reply:
        kept = request.kept if reply.status == HTTPStatus.NOT_MODIFIED else None
        free = kept is not None
        self._ledger.note(Passed(reply.asked_at, request.kind, self._told(request, reply), free))
        if kept is None:
            return reply
        return replace(
            reply,
            status=int(HTTPStatus.OK),
            headers={**kept.headers, **reply.headers},
            body=kept.body,
            unchanged=True,
            kept_at=kept.at,
        )

    # What it means for others

    def limited(self, request: Request, reply: Reply, limit: Exhausted | SlowDown) -> RateLimited:
        what, now = self.what(request), self._clock.now()
        match limit:
            case SlowDown(told_s):
                self._ledger.note(Limited(reply.asked_at, now, told_s, "GitHub wants a rest"))
                wait_s = self._ledger.read(
                    lambda spending, at: spending.breaker.wait_s(request.purpose, at)
                )
                return RateLimited(f"{what}: GitHub wants a rest", retry_after_s=max(wait_s, 1.0))
            case Exhausted() if request.kind is Kind.AS_APP:
                self._ledger.note(Passed(reply.asked_at, request.kind))
                text = f"{what}: the App has asked for too many tokens"
                return RateLimited(text, retry_after_s=_UNTOLD_RESET_S)
            case Exhausted():
                spent = self._spent(request, reply, now)
                self._ledger.note(Passed(reply.asked_at, request.kind, spent))
                wait_s = spent[0][1].resets_at - now
                text = f"{what}: nothing is left of this token's budget"
                return RateLimited(text, retry_after_s=max(wait_s, 1.0))
            case never:
                assert_never(never)

    def _failed(self, asked_at: LocalTime, why: str) -> None:
        self._ledger.note(Failed(asked_at, self._clock.now(), why))

    def _broken(self, reply: Reply) -> None:
        why, told = f"GitHub answered {reply.status}", reply.headers.get("retry-after", "")
        if told.isdecimal():
            now = self._clock.now()
            self._ledger.note(Limited(reply.asked_at, now, float(told[:9]), why))
        else:
            self._failed(reply.asked_at, why)

    def _told(self, request: Request, reply: Reply) -> tuple[tuple[Resource, Budget], ...]:
        if request.kind is Kind.AS_APP:
            return ()
        told = budget_told(reply.headers, reply.now.timestamp(), self._clock.now())
        name = reply.headers.get("x-ratelimit-resource", request.resource)
        return ((Resource(name), told),) if told and name in set(Resource) else ()

    def _spent(
        self, request: Request, reply: Reply, now: LocalTime
    ) -> tuple[tuple[Resource, Budget], ...]:
        unknown = Budget(1, 0, LocalTime(now + _UNTOLD_RESET_S))
        told = self._told(request, reply) or ((request.resource, unknown),)
        return tuple((resource, replace(budget, remaining=0)) for resource, budget in told)

    # For people

    def report(self, limits: Limits) -> BudgetReport:
        """Asks what is left, which costs nothing, unless the server is to be left alone."""
        now: ServerTime | None = None
        allowances: tuple[Allowance, ...] = ()
        trouble: Outage | None = None
        if self._ledger.read(shut_in) is None:
            try:
                now, allowances = self._allowances()
            except Outage as flaw:
                trouble = flaw
        return self._ledger.read(
            lambda spending, at: BudgetReport(
                self._api.host,
                now,
                allowances,
                kept_in(spending, limits, at),
                {kind.value: count for kind, count in spending.counted(at).items()},
                shut_in(spending, at),
                self._ledger.shared,
                trouble,
            )
        )

    def _allowances(self) -> tuple[ServerTime, tuple[Allowance, ...]]:
        address = f"{self._api.rest}/rate_limit"
        request = Request("GET", address, Kind.REST_READ, Purpose.LOOK)
        token = self._token(Purpose.LOOK)
        answered = _without(token, self._wire.send("GET", address, token))
        now = served_at(answered.headers)
        if now is None:
            raise Unavailable(f"{self.what(request)}: the answer does not tell its time")
        if answered.status == HTTPStatus.NOT_FOUND:
            return now, ()  # an Enterprise server that does not count
        if answered.status != HTTPStatus.OK:
            reply = Reply(answered.status, answered.headers, answered.body, now, answered.asked_at)
            raise refusal_of(reply, self.what(request))
        try:
            return now, allowances_in(answered.body)
        except msgspec.MsgspecError as flaw:
            raise Unavailable(f"{self.what(request)}: the answer is not GitHub's") from flaw


def _without(token: str, answered: Answered) -> Answered:
    """A server or a proxy may quote what we sent in its complaint; we do not repeat it."""
    if answered.status < HTTPStatus.BAD_REQUEST:
        return answered
    return replace(answered, body=answered.body.replace(token.encode(), b"***"))


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

    @property
    def api(self) -> Api:
        return self._api

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
    """The transports of one configuration: one for each token. `ports.tracker.Budgeted`."""

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
