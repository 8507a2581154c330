"""One request to GitHub: whether it may be sent now, and what its reply means for those after it.

Decides nothing about what is asked. What a reply says of limits, and that none came, is noted for
every process that uses the token. A write is never sent twice: if its reply is lost, `Unavailable`
says that nobody knows. What changes nothing is asked once more when a connection was dropped.
"""

from http import HTTPStatus
from typing import assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dibs.adapters.github.app import Answered
from dibs.adapters.github.auth import Api, Credential
from dibs.adapters.github.budget import Budget, Purpose, Resource, budget_told
from dibs.adapters.github.ledger import Ledger
from dibs.adapters.github.pace import Kind, Limits
from dibs.adapters.github.refusals import Exhausted, SlowDown, limit_in, refusal_of
from dibs.adapters.github.remembering import Kept
from dibs.adapters.github.replies import Reply, served_at
from dibs.adapters.github.report import allowances_in, kept_in, shut_in
from dibs.adapters.github.spending import Failed, Limited, Passed
from dibs.adapters.github.wire import Dropped, Wire
from dibs.core.errors import Outage, RateLimited, Unavailable
from dibs.core.ids import LocalTime, ServerTime
from dibs.ports.budget import Allowance, BudgetReport
from dibs.ports.clock import Clock

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
