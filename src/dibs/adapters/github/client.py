"""GitHub's REST and GraphQL APIs for one token at one address.

`Transport` turns a call into a `Request` and a reply into a value or an error. It answers unchanged
reads from a cache and follows the rename of a repository. It knows nothing of issues; the caller
says which status is an answer and which an error. `Transports` opens one `Transport` per token.

`Sender` sends one request: it asks the ledger whether the request may be sent now, and notes in the
ledger, for every process that uses the token, what the reply says of limits, or that no reply came.
A write is never sent twice: if its reply is lost, `Unavailable` says that nobody knows whether it
was carried out. A read is sent once more if its connection was dropped.

GitHub refuses requests by mistake: good tokens get a 401 now and then, and what was just made is
not found. Nothing was done then, so the request may be sent again. `Sender.confirmed` believes a
refusal only if it came twice, five seconds apart, and if a second endpoint refuses as well. A
refusal of one thing or one right is shared by no other endpoint: then the repository must answer.
Until then the refusal is `Unconfirmed`, except for callers who have the time: for these the request
is sent again here. A holder has not: it decides itself when to try again, and until when.
Nor has a person at a `git push`.
"""

import logging
import re
import threading
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Any, TypeVar, assert_never
from urllib.parse import urlencode

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.github.auth import (
    Answered,
    Api,
    Credential,
    Remedy,
    Token,
    api_of,
    credential_of,
)
from dibs.adapters.github.cache import CachedReply, Renames, Replies, place_of
from dibs.adapters.github.connections import REPLY_S, Dropped, Wire
from dibs.adapters.github.ledger import (
    FileLedger,
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
    Doubted,
    Exhausted,
    GraphqlReply,
    NoGraphql,
    Reply,
    SlowDown,
    graphql_errors,
    is_broken,
    is_doubtful,
    limit_among,
    limit_in,
    refusal_of,
    served_at,
)
from dibs.adapters.system import SystemClock
from dibs.core.bounded import Bounded
from dibs.core.durations import NEW_TOKEN, REFUSED
from dibs.core.errors import DibsError, NotPermitted, Outage, RateLimited, Unavailable, Unconfirmed
from dibs.core.ids import LocalTime, ServerTime
from dibs.ports.system import Clock
from dibs.ports.tracker import Allowance, BudgetReport, is_in_haste, is_persons_word

__all__ = ["Limits", "Purpose", "Transport", "Transports"]

_log = logging.getLogger("dibs.github")
Answer = TypeVar("Answer")
_UNTOLD_RESET_S = 60.0
_MOST_REFUSALS = 1000
_FORGOTTEN_S = 60.0
"""A refusal that came so long ago has nothing to do with the same refusal now."""
_SHORTEST_WAIT_S = 0.1
_FINE = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT)
_MOVED = (
    HTTPStatus.MOVED_PERMANENTLY,
    HTTPStatus.FOUND,
    HTTPStatus.TEMPORARY_REDIRECT,
    HTTPStatus.PERMANENT_REDIRECT,
)
# Requests that notify people, as marked in GitHub's description of its API.
_CREATING_PATH = re.compile(r"/(?:issues|comments|pulls|reviews|releases)$")
_CREATING_FIELD = re.compile(r"\b(?:addComment|createIssue|createPullRequest)\b")
_MUTATION = re.compile(r"(?:\s|#[^\n]*\n)*mutation\b")


class Request(Struct, frozen=True):
    verb: str
    address: str
    kind: Kind
    purpose: Purpose
    content: bytes | None = None
    kept: CachedReply | None = None
    """Our cached reply to the same request, to ask whether it has changed."""


class Refusals:
    """Since when GitHub refuses what. Safe for many threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._heard: Bounded[str, tuple[str, LocalTime, LocalTime]] = Bounded(_MOST_REFUSALS)
        """By request: how it was refused, and when it came first and last."""

    def left_s(self, request: str, refusal: str) -> float:
        """Note that the request was refused now. Returns the seconds until that may count."""
        now = self._clock.now()
        with self._lock:
            before, first, last = self._heard.get(request) or ("", now, now)
            if before != refusal or now > last + _FORGOTTEN_S:
                first = now
            self._heard[request] = refusal, first, now
        return first + REFUSED.pause_s - now

    def passed(self, request: str) -> None:
        with self._lock:
            self._heard.pop(request, None)


class Sender:
    """Sends requests with a token, as the ledger allows. Safe for many threads."""

    def __init__(
        self, api: Api, credential: Credential, ledger: FileLedger, wire: Wire, clock: Clock
    ) -> None:
        self._api, self._credential, self._ledger = api, credential, ledger
        self._wire, self._clock = wire, clock
        self._refusals = Refusals(clock)

    def send(self, request: Request) -> Reply:
        """Send the request; return the server's reply, which may be an error.

        Raises RateLimited (the request was not carried out) or Unavailable (nobody knows).
        """
        token = self._token(request.purpose)
        answered = self._attempt(request, token)
        renewed = False
        for pause_s in NEW_TOKEN.pauses():
            if answered.status != HTTPStatus.UNAUTHORIZED:
                break
            remedy = self._credential.refused(token)
            if remedy is Remedy.NONE or (remedy is Remedy.ANOTHER and renewed):
                break
            # Note the 401 as a success of the server: if this request was the breaker's probe, it
            # must not hold back its own second attempt.
            self._ledger.note(Passed(answered.asked_at, request.kind))
            if remedy is Remedy.ANOTHER:
                renewed, token = True, self._token(request.purpose)
            elif pause_s and request.purpose is Purpose.HOLD:
                raise Unconfirmed(f"{self.what(request)}: GitHub does not know the new token yet")
            else:
                self._clock.sleep(pause_s)
            answered = self._attempt(request, token)
        reply = self._reply(request, _without_token(token, answered))
        if reply.status < HTTPStatus.BAD_REQUEST:
            self._refusals.passed(self.what(request))
        return reply

    def confirmed(self, request: Request, reply: Reply) -> Reply:
        """The reply, or the reply to the same request sent again. See the module.

        Raises Unconfirmed if the reply is a refusal that may be a mistake, and NotPermitted if the
        whole repository is not found.
        """
        what, again = self.what(request), reply
        if not is_doubtful(reply):
            return reply
        refusal = refusal_of(reply, what)
        if not isinstance(refusal, NotPermitted):
            raise refusal
        if self._wait_for_proof(what, refusal, request.purpose):
            again = self.send(request)
        if not is_doubtful(again):
            return again
        refused_again = refusal_of(again, what)
        if self._refusals.left_s(what, str(refused_again)) > 0:  # it differs, or others had success
            raise Unconfirmed(str(refused_again))
        return self._seconded(request, again)

    def insist(
        self, what: str, ask: Callable[[], Answer], second: Callable[[], object], purpose: Purpose
    ) -> Answer:
        """What `ask` returns, which raises `Doubted` if a reply without an error status refuses.

        Raises the refusal if it came twice and `second`, which asks REST for the repository, has
        its answer; Unconfirmed if the refusal may be a mistake.
        """
        text = what
        for _ in range(REFUSED.most):
            try:
                answer = ask()
            except Doubted as doubt:
                if not self._wait_for_proof(what, doubt.refusal, purpose):
                    second()
                    raise doubt.refusal from None
                text = str(doubt.refusal)
            else:
                self._refusals.passed(what)
                return answer
        raise Unconfirmed(text)

    def _wait_for_proof(self, request: str, refusal: DibsError, purpose: Purpose) -> bool:
        """Whether the request must be sent again; waits until then.

        Raises Unconfirmed for a holder and for a caller in haste, who do not wait.
        """
        left_s = self._refusals.left_s(request, str(refusal))
        if left_s <= 0:
            return False
        if purpose is Purpose.HOLD or is_in_haste():
            raise Unconfirmed(str(refusal))
        _log.warning("%s; asking again in %.0f s", refusal, left_s)
        self._clock.sleep(left_s)
        return True

    def _seconded(self, request: Request, reply: Reply) -> Reply:
        """The refusal, if a second endpoint agrees; raises Unconfirmed if not.

        `narrow`: no further endpoint refuses the same right, and an answer of the second is enough.
        Raises NotPermitted if the whole repository is not found.
        """
        place = place_of(request.address, self._api.rest)
        narrow = reply.status != HTTPStatus.UNAUTHORIZED
        if place is None or not narrow:
            address = f"{self._api.rest}/rate_limit"
        elif _path(place.rest):
            address = place.whole
        else:
            address, narrow = f"{place.whole}/labels?per_page=1", False
        second = Request("GET", address, Kind.REST_READ, request.purpose)
        answer = self.send(second)
        refusal = refusal_of(reply, self.what(request))
        refused = HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR
        of_token = HTTPStatus.UNAUTHORIZED in (answer.status, reply.status)
        if refused and narrow and place is not None and not of_token:
            raise refusal  # of the repository: a thing in it is not proved to be gone
        agrees = answer.status == reply.status if of_token else refused or narrow
        if not agrees or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise Unconfirmed(f"{refusal}; but {self.what(second)} was answered {answer.status}")
        return reply

    def what(self, request: Request) -> str:
        """The server and the request, for people."""
        path = request.address.removeprefix(self._api.rest).partition("?")[0]
        return f"{self._api.host}: {request.verb} {path}"

    def close(self) -> None:
        self._wire.close()
        self._ledger.close()

    def as_stranger(self, path: str) -> Answered:
        """The answer to a GET without a token; it counts against this address, not the token."""
        return self._wire.send("GET", self._api.rest + path, "")

    # There and back

    def _token(self, purpose: Purpose) -> str:
        """The credential's token. A credential may ask for a new token first, by a request that is
        admitted and noted like any request.
        """

        def as_app(verb: str, path: str, bearer: str) -> Answered:
            request = Request(verb, self._api.rest + path, Kind.AS_APP, purpose)
            answered = _without_token(bearer, self._send_admitted(request, bearer))
            self._reply(request, answered)
            return answered

        try:
            return self._credential.token(as_app)
        except NotPermitted as refusal:
            self._wait_for_proof("a token for the App", refusal, purpose)
        return self._credential.token(as_app)

    def _attempt(self, request: Request, token: str) -> Answered:
        """Send the request; a read once more if the connection was dropped."""
        try:
            return self._send_admitted(request, token)
        except Dropped:
            if request.kind.writes:
                raise
            return self._send_admitted(request, token)

    def _send_admitted(self, request: Request, token: str) -> Answered:
        """Send the request if the ledger admits it, and note a missing reply."""
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
            self._note_failure(asked_at, str(flaw))
            raise

    def _reply(self, request: Request, answered: Answered) -> Reply:
        """The answer as a `Reply`, noted in the ledger; a 304 with the body from the cache.

        Raises RateLimited if the answer reports a limit.
        """
        try:
            reply = self._with_time(request, answered)
        except Unavailable:
            self._note_failure(answered.asked_at, "a reply without its time")
            raise
        limit = limit_in(reply)
        if limit is not None:
            raise self.limited(request, reply, limit)
        if reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            why = f"GitHub answered {reply.status}"
            retry_after = reply.headers.get("retry-after", "")
            if retry_after.isdecimal():
                rest_s = float(retry_after[:9])
                self._ledger.note(Limited(reply.asked_at, self._clock.now(), rest_s, why))
            else:
                self._note_failure(reply.asked_at, why)
            return reply
        kept = request.kept if reply.status == HTTPStatus.NOT_MODIFIED else None
        budgets = self._budgets_in(request, reply)
        self._ledger.note(Passed(reply.asked_at, request.kind, budgets, free=kept is not None))
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

    def _with_time(self, request: Request, answered: Answered) -> Reply:
        """The answer with the server's time. Raises Unavailable if the answer has none."""
        now = served_at(answered.headers)
        if now is None:
            raise Unavailable(f"{self.what(request)}: the answer does not tell its time")
        return Reply(answered.status, answered.headers, answered.body, now, answered.asked_at)

    # What a reply means for the requests after it

    def limited(self, request: Request, reply: Reply, limit: Exhausted | SlowDown) -> RateLimited:
        """Note the limit that the reply reports, and return the error to raise."""
        what, now = self.what(request), self._clock.now()
        match limit:
            case SlowDown(rest_s):
                self._ledger.note(Limited(reply.asked_at, now, rest_s, "GitHub wants a rest"))
                wait_s = self._ledger.read(
                    lambda spending, at: spending.breaker.wait_s(request.purpose, at)
                )
                return RateLimited(f"{what}: GitHub wants a rest", retry_after_s=max(wait_s, 1.0))
            case Exhausted() if request.kind is Kind.AS_APP:
                self._ledger.note(Passed(reply.asked_at, request.kind))
                text = f"{what}: the App has asked for too many tokens"
                return RateLimited(text, retry_after_s=_UNTOLD_RESET_S)
            case Exhausted():
                unknown = Budget(1, 0, LocalTime(now + _UNTOLD_RESET_S))
                reported = self._budgets_in(request, reply) or ((request.kind.resource, unknown),)
                spent = tuple((name, replace(budget, remaining=0)) for name, budget in reported)
                self._ledger.note(Passed(reply.asked_at, request.kind, spent))
                wait_s = spent[0][1].resets_at - now
                text = f"{what}: nothing is left of this token's budget"
                return RateLimited(text, retry_after_s=max(wait_s, 1.0))
            case never:
                assert_never(never)

    def _note_failure(self, asked_at: LocalTime, why: str) -> None:
        self._ledger.note(Failed(asked_at, self._clock.now(), why))

    def _budgets_in(self, request: Request, reply: Reply) -> tuple[tuple[Resource, Budget], ...]:
        """The budget in the reply's headers, with its resource; empty if the reply names none."""
        if request.kind is Kind.AS_APP:
            return ()
        budget = budget_told(reply.headers, reply.now.timestamp(), self._clock.now())
        name = reply.headers.get("x-ratelimit-resource", request.kind.resource)
        return ((Resource(name), budget),) if budget and name in set(Resource) else ()

    # For people

    def report(self) -> BudgetReport:
        """The state of the limits. Asks GitHub, a free request, unless the breaker is open."""
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
                kept_in(spending, self._ledger.limits, at),
                {kind.value: count for kind, count in spending.counted(at).items()},
                shut_in(spending, at),
                self._ledger.shared,
                trouble,
            )
        )

    def _allowances(self) -> tuple[ServerTime, tuple[Allowance, ...]]:
        """Ask GitHub for the budgets; past the ledger, because the request is free."""
        request = Request("GET", f"{self._api.rest}/rate_limit", Kind.REST_READ, Purpose.LOOK)
        token = self._token(Purpose.LOOK)
        answered = self._wire.send("GET", request.address, token)
        reply = self._with_time(request, _without_token(token, answered))
        if reply.status == HTTPStatus.NOT_FOUND:
            return reply.now, ()  # an Enterprise server that does not count
        if reply.status != HTTPStatus.OK:
            raise refusal_of(reply, self.what(request))
        try:
            return reply.now, allowances_in(reply.body)
        except msgspec.MsgspecError as flaw:
            raise Unavailable(f"{self.what(request)}: the answer is not GitHub's") from flaw


def _without_token(token: str, answered: Answered) -> Answered:
    """Mask the token in an error's body: a server or a proxy may quote the request there."""
    if answered.status < HTTPStatus.BAD_REQUEST:
        return answered
    return replace(answered, body=answered.body.replace(token.encode(), b"***"))


class Transport:
    """REST and GraphQL requests with one token. Safe for many threads."""

    def __init__(
        self,
        api: Api,
        credential: Credential,
        ledger: FileLedger,
        clock: Clock,
        *,
        reply_s: float = REPLY_S,
        wire: Wire | None = None,
    ) -> None:
        self.api, self.clock, self._ledger = api, clock, ledger
        wire = wire or Wire(api, clock, reply_s=reply_s)
        self._sender = Sender(api, credential, ledger, wire, clock)
        self._replies = Replies()
        self._renames = Renames(api.rest)
        self.graphql_gone = False
        """True once the server has confirmed that it has no GraphQL."""

    def budget(self) -> BudgetReport:
        return self._sender.report()

    def insist(
        self, what: str, ask: Callable[[], Answer], second: Callable[[], object], purpose: Purpose
    ) -> Answer:
        """See `Sender`: a refusal by GraphQL with status 200 counts once it is confirmed."""
        return self._sender.insist(what, ask, second, purpose)

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
        final: Collection[int] = (),
    ) -> Reply:
        """Send a REST request; return a reply with a status in `ok`, raise the error otherwise.

        A limit raises RateLimited even if `ok` has the status; the request was not carried out. A
        redirect is followed only if the repository was renamed: a transferred issue answers 301,
        which may be in `ok`. A write without a reply raises Unavailable: the server may have
        carried the write out. `conditional`: use the cache, and ask only whether the reply has
        changed. `fresh`: read anew, and replace the cached reply. `final`: statuses in `ok` on
        which the caller acts as on a refusal. Like a refusal, they are returned once confirmed;
        until then Unconfirmed is raised.
        """
        address = self._renames.current(self._address(path_or_url, params))
        if verb == "GET":
            kind = Kind.REST_READ
        elif verb == "POST" and (creates := _CREATING_PATH.search(_path(address))):
            kind = Kind.REST_ISSUE if creates[0] == "/issues" else Kind.REST_CREATE
        else:
            kind = Kind.REST_EDIT
        conditional = conditional and verb == "GET"
        request = Request(
            verb,
            address,
            kind,
            _urgent(purpose),
            msgspec.json.encode(wanted) if wanted is not None else None,
            self._replies.get(address) if conditional and not fresh else None,
        )
        reply = self._sender.send(request)
        if reply.status in _MOVED and (renamed := self._renamed(request, reply)) is not None:
            request = replace(request, address=renamed, kept=None)
            reply = self._sender.send(request)
        if reply.status not in ok or reply.status in final:
            reply = self._sender.confirmed(request, reply)
        if reply.status not in ok:
            raise refusal_of(reply, self._sender.what(request))
        if conditional and reply.status == HTTPStatus.OK and "etag" in reply.headers:
            kept = CachedReply(reply.headers["etag"], reply.headers, reply.body, self.clock.now())
            self._replies.put(address, kept)
        return reply

    def as_stranger(self, path: str) -> Answered:
        """What GitHub answers to a GET without a token."""
        return self._sender.as_stranger(path)

    def follow(self, reply: Reply) -> str | None:
        """The address of the next page, unchanged from GitHub's reply; None on the last page."""
        following = reply.next_page
        if following is not None:
            self.api.insist_owns(following)
        return following

    def _address(self, path_or_url: str, params: Mapping[str, str] | None) -> str:
        address = path_or_url if "://" in path_or_url else self.api.rest + path_or_url
        if not params:
            return address
        return f"{address}{'&' if '?' in address else '?'}{urlencode(params)}"

    def _renamed(self, request: Request, reply: Reply) -> str | None:
        """The request's address under the repository's new name; None if not renamed.

        The redirect for a transferred issue looks the same if the issue kept its number. Therefore
        we ask for the repository itself: only its redirect proves a new name.
        """
        old = place_of(request.address, self.api.rest)
        if old is None or self._target(reply, old.rest) is None:
            return None
        asked = replace(request, verb="GET", address=old.whole, content=None, kept=None)
        moved = self._sender.send(replace(asked, kind=Kind.REST_READ))
        repository = self._target(moved, "") if moved.status in _MOVED else None
        if repository is None:
            return None
        if moved.status in {HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.PERMANENT_REDIRECT}:
            self._renames.learn(old, repository)
        return str(replace(old, repository=repository))

    def _target(self, reply: Reply, rest: str) -> str | None:
        """The repository in a redirect's address if the path after the name is equal to `rest`."""
        there = place_of(self._address(reply.headers.get("location", ""), None), self.api.rest)
        same = there is not None and _path(there.rest) == _path(rest)
        return there.repository if there is not None and same else None

    # GraphQL

    def graphql(
        self, document: str, variables: Mapping[str, object], *, purpose: Purpose
    ) -> GraphqlReply:
        """Run a document; return the data with the errors of single fields.

        Raises RateLimited or NoGraphql (the document was not run), or Unavailable (any part of the
        document may have been carried out).
        """
        if not _MUTATION.match(document):
            kind = Kind.GRAPHQL_READ
        elif _CREATING_FIELD.search(document):
            kind = Kind.GRAPHQL_CREATE
        else:
            kind = Kind.GRAPHQL_EDIT
        content = msgspec.json.encode({"query": document, "variables": variables})
        request = Request("POST", self.api.graphql, kind, _urgent(purpose), content)
        reply = self._sender.send(request)
        if reply.status != HTTPStatus.OK:
            reply = self._sender.confirmed(request, reply)
        if reply.status == HTTPStatus.NOT_FOUND:
            self.graphql_gone = True
            raise NoGraphql(f"{self.api.host} has no GraphQL")
        if reply.status != HTTPStatus.OK:
            raise refusal_of(reply, self._sender.what(request))
        try:
            answer = msgspec.json.decode(reply.body, type=dict[str, Any])
        except msgspec.MsgspecError as flaw:
            what = self._sender.what(request)
            raise Unavailable(f"{what}: the answer is not GitHub's") from flaw
        found = answer.get("data")
        data = found if isinstance(found, dict) else {}
        errors = graphql_errors(answer.get("errors"))
        done = any(part is not None for part in data.values())
        # GitHub refuses a whole document with status 200: the errors say why.
        limit = limit_among(errors, reply)
        if limit is not None and (not done or isinstance(limit, SlowDown)):
            limited = self._sender.limited(request, reply, limit)
            raise Unavailable(str(limited)) if done else limited
        if not done and is_broken(errors):
            raise Unavailable(f"{self._sender.what(request)}: {errors[0].message}")
        return GraphqlReply(data, errors, reply.now, reply.asked_at)

    def graphql_left(self) -> bool:
        """False while asking over GraphQL is no use: the budget is spent, or GraphQL is missing."""
        return not self.graphql_gone and not self._ledger.spent(Resource.GRAPHQL)

    def graphql_back_in(self) -> float | None:
        """Seconds until the spent GraphQL budget starts anew; None if not spent, or no GraphQL."""
        if self.graphql_gone:
            return None
        return self._ledger.read(lambda spending, now: spending.back_in(Resource.GRAPHQL, now))


def _urgent(purpose: Purpose) -> Purpose:
    """At least FINISH for a person's command: people who steer the fleet must not wait behind the
    workers that they want to stop.
    """
    return max(purpose, Purpose.FINISH) if is_persons_word() else purpose


def _path(rest: str) -> str:
    return rest.partition("?")[0].rstrip("/")


class Transports:
    """The transports of a configuration, by token. `ports.tracker.Budgeted`."""

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
        """By owner in lower case; under the empty string: the transport for all owners."""

    def for_repository(self, repository: str) -> Transport:
        """The transport for `OWNER/REPO`, opened on first use.

        A GitHub App has a token for each owner, a person the same token for all.
        """
        owner = repository.partition("/")[0].lower()
        with self._lock:
            opened = self._opened.get("") or self._opened.get(owner)
            if opened is None:
                credential = credential_of(
                    self._environment, self._clock, self._api, repository=repository
                )
                path = ledger_path(self._environment, credential.identity, self._api.rest)
                opened = Transport(
                    self._api,
                    credential,
                    FileLedger(path, self._clock, self._limits),
                    self._clock,
                    reply_s=self._reply_s,
                )
                self._opened["" if isinstance(credential, Token) else owner] = opened
            return opened

    def budgets(self) -> tuple[BudgetReport, ...]:
        with self._lock:
            opened = tuple(self._opened.values())
        return tuple(transport.budget() for transport in opened)

    def close(self) -> None:
        with self._lock:
            for transport in self._opened.values():
                transport.close()
            self._opened.clear()
