"""Every request's way through the fake: credentials, limits, faults, the answer, the counts.

The order is GitHub's: credentials, limits, then the handler. A fault strikes before anything was
done or after everything, never in between. An exchange is counted as it was answered.
"""

import threading
import traceback
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from uuid import uuid4

from . import admin
from .apps import LIFE
from .counting import Tally
from .exchange import Answer, BadJson, Call, Request
from .faults import OTHER_BOT, Asked, Fault, Wrong
from .limits import Cost, TooMuch
from .records import Viewer
from .refusal import NO_NODE, TOO_QUICKLY, Kind, Refusal, invalid, not_found, unprocessable
from .rest import Route, routed
from .world import World

DOCUMENTATION = "https://docs.github.com/rest"
MOST_KEPT = 2_000
_NEW_ISSUE = "POST /repos/{owner}/{repo}/issues"
GRAPHQL_PATHS = ("/graphql", "/api/graphql")


@dataclass(frozen=True, slots=True)
class Sent:
    """The bytes to send. None: drop the connection without a reply."""

    status: int
    raw: bytes
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Way:
    """A request with its name in the counts, its price, and the function that answers it."""

    kind: str
    cost: Cost
    route: Route | None = None
    at: tuple[tuple[str, str], ...] = ()
    document: object = None
    """A `graphql_entry.Document`, if it is one; that module is imported only when needed."""


@dataclass(frozen=True, slots=True)
class _Kept:
    changes: int
    answer: Answer
    raw: bytes
    etag: str


class Front:
    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, ...], _Kept] = OrderedDict()
        self.closing = threading.Event()

    def answer(self, request: Request) -> Sent | None:
        """None drops the connection."""
        try:
            return self._answer(request)
        except Exception as bug:  # noqa: BLE001
            traceback.print_exc()  # a bug of the fake must not look like one of its faults
            return _plain(_problem(500, f"the fake itself failed: {bug!r}", {"X-Fakehub-Bug": "1"}))

    def _answer(self, request: Request) -> Sent | None:
        if request.path.startswith(admin.PREFIX):
            self._world.faults.begin(None)
            return _plain(admin.answer(self._world, request))
        try:
            way = self._way(request)
        except BadJson:
            return _plain(_problem(400, "Problems parsing JSON"))
        try:
            viewer = Viewer() if way.route and way.route.by_app else self._viewer(request, way)
        except Refusal as refusal:
            self._count(request, way, 401, free=True)
            return _plain(_refused(refusal))
        return self._admitted(request, way, viewer)

    def _way(self, request: Request) -> _Way:
        if request.verb == "POST" and request.path in GRAPHQL_PATHS and self._world.graphql:
            with suppress(ImportError):
                return _graphql_way(request)
        found = routed(request.verb, request.path)
        if found is None:
            return _Way(f"{request.verb} other", Cost())
        route, at = found
        points = 1 if request.verb in ("GET", "HEAD") else 5
        issues = int(route.kind == _NEW_ISSUE)
        cost = Cost("core", 0 if route.free else 1, points, route.content, issues)
        return _Way(route.kind, cost, route, tuple(at.items()))

    def _viewer(self, request: Request, way: _Way) -> Viewer:
        viewer = self._world.state.viewer(request.token)
        if viewer.user is None and (way.document or way.kind.startswith("graphql")):
            message = "This endpoint requires you to be authenticated."
            raise Refusal(Kind.UNAUTHENTICATED, message)
        return viewer

    def _admitted(self, request: Request, way: _Way, viewer: Viewer) -> Sent | None:
        faults, meter = self._world.faults, self._world.meter
        faults.begin(Asked(way.kind, request.body, viewer.login))
        before = faults.strikes(Wrong.ERROR_BEFORE)
        if before or faults.strikes(Wrong.DROP_BEFORE):
            self._count(request, way, before.status if before else 0, free=True)
            return _plain(_outage(before)) if before else None
        stray = faults.stray() or self._too_new(viewer)
        if stray is not None:
            self._count(request, way, stray[0], free=True)
            sent = _plain(_problem(*stray))
            headers = self._world.meter.headers(viewer, way.cost.resource)
            return replace(sent, headers=_headers(viewer, headers, sent))
        refused = meter.begin(viewer, way.cost)
        try:
            sent = self._limited(way, refused) if refused else self._done(request, way, viewer)
            unpaid = sent.status in (304, 401)
            if unpaid and refused is None:
                meter.give_back(viewer, way.cost)
            return self._replied(request, way, viewer, sent, free=unpaid or refused is not None)
        finally:
            meter.end(viewer)

    def _too_new(self, viewer: Viewer) -> tuple[int, str] | None:
        """The refusal of an installation's token that the replicas do not know yet."""
        token, lag_s = viewer.token, self._world.faults.new_token_lag_s()
        if not lag_s or token is None or token.repositories is None or token.expires_at is None:
            return None
        age = self._world.state.now() - (token.expires_at - LIFE)
        return (401, "Bad credentials") if age.total_seconds() < lag_s else None

    def _replied(
        self, request: Request, way: _Way, viewer: Viewer, sent: Sent, *, free: bool
    ) -> Sent | None:
        """The request was carried out; decide whether and how the reply arrives."""
        faults = self._world.faults
        self._drop_labels()
        slow, after = faults.strikes(Wrong.SLOW), faults.strikes(Wrong.ERROR_AFTER)
        dropped = faults.strikes(Wrong.DROP_AFTER)
        if slow:
            self.closing.wait(faults.seconds(slow))
        if after:
            sent = _plain(_outage(after))
        self._count(request, way, 0 if dropped else sent.status, free=free)
        headers = self._world.meter.headers(viewer, way.cost.resource)
        return None if dropped else replace(sent, headers=_headers(viewer, headers, sent))

    def _done(self, request: Request, way: _Way, viewer: Viewer) -> Sent:
        if way.document is not None:
            return _run_document(self._world, request, way, viewer)
        # Both are read before the world: a write in between outdates the answer.
        keeps, changes = self._keeps(request, way), self._world.state.changes
        kept = self._remembered(request, viewer, changes) if keeps else None
        if kept is None:
            answer = self._handled(request, way, viewer)
            raw = answer.raw()
            kept = _Kept(changes, answer, raw, _etag(raw))
            if keeps and answer.status == 200:
                self._remember(request, viewer, kept)
        return _conditional(request, kept)

    def _handled(self, request: Request, way: _Way, viewer: Viewer) -> Answer:
        try:
            if way.route is None:
                raise not_found()
            if way.cost.content and self._world.faults.strikes(Wrong.TOO_QUICKLY):
                raise invalid("IssueComment", "data", "unprocessable", TOO_QUICKLY)
            if way.cost.content and self._world.faults.strikes(Wrong.NODE_NOT_FOUND_ONCE):
                raise unprocessable(NO_NODE)
            return way.route.handler(Call(self._world, request, viewer, dict(way.at)))
        except Refusal as refusal:
            return _refused(refusal, request.api, request.verb)
        except BadJson:
            return _problem(400, "Problems parsing JSON")

    def _remembered(self, request: Request, viewer: Viewer, changes: int) -> _Kept | None:
        with self._lock:
            found = self._kept.get(_key(request, viewer))
        return found if found and found.changes == changes else None

    def _remember(self, request: Request, viewer: Viewer, kept: _Kept) -> None:
        with self._lock:
            self._kept[_key(request, viewer)] = kept
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)

    def _keeps(self, request: Request, way: _Way) -> bool:
        """Whether the same request has the same answer until the next write."""
        state = self._world.state
        return (
            request.verb == "GET"
            and way.route is not None
            and way.route.kept
            and not self._world.faults.of_readings
            and state.now() >= state.settles_at
        )

    def _limited(self, way: _Way, refused: TooMuch) -> Sent:
        meter = self._world.meter
        if way.document is not None and not refused.secondary:
            error = {"type": "RATE_LIMITED", "message": refused.message}
            return _plain(Answer(200, {"errors": [error]}))
        headers = {}
        if refused.retry_after_s is not None:
            headers["Retry-After"] = str(refused.retry_after_s)
        status = meter.limits.secondary_status if refused.secondary else 403
        return _plain(_problem(status, refused.message, headers))

    def _drop_labels(self) -> None:
        state = self._world.state
        for issue, label in self._world.faults.labels_to_drop():
            state.add_user(OTHER_BOT, kind="Bot")
            bot = state.acting(Viewer(state.users[OTHER_BOT]))
            bot.drop_label(issue, label)

    def _count(self, request: Request, way: _Way, status: int, *, free: bool) -> None:
        points = 0 if free else way.cost.primary
        mutations = getattr(way.document, "mutations", 0)
        content = 0 if free else way.cost.content
        tally = Tally(way.kind, status, way.cost.resource, points, content, mutations)
        self._world.counts.add(tally, request.token)


def _graphql_way(request: Request) -> _Way:
    from .graphql_entry import read  # noqa: PLC0415 - imported when needed

    document = read(request)
    if document is None:
        return _Way("graphql query missing", Cost("graphql"))
    return _Way(document.kind, document.cost, document=document)


def _run_document(world: World, request: Request, way: _Way, viewer: Viewer) -> Sent:
    from .bodies import Bodies  # noqa: PLC0415
    from .graphql_entry import Document, run  # noqa: PLC0415 - imported when needed

    assert isinstance(way.document, Document)
    web = Bodies(world.state.primary(), viewer, request.api).web
    return _plain(Answer(200, run(world, viewer, way.document, web)))


def _key(request: Request, viewer: Viewer) -> tuple[str, ...]:
    asked = tuple(f"{name}={value}" for name, value in sorted(request.query.items()))
    token = viewer.token.text if viewer.token else ""
    return (request.api, request.path, token, *asked)


def _etag(raw: bytes) -> str:
    return f'W/"{sha256(raw).hexdigest()}"'


def _conditional(request: Request, kept: _Kept) -> Sent:
    """304 without a body, if the client has the current version."""
    if request.verb not in ("GET", "HEAD") or kept.answer.status != 200:
        return Sent(kept.answer.status, kept.raw, dict(kept.answer.headers))
    headers = {**kept.answer.headers, "ETag": kept.etag, "Cache-Control": "private, max-age=60"}
    known = [one.strip() for one in request.headers.get("if-none-match", "").split(",")]
    if kept.etag in known or kept.etag.removeprefix("W/") in known or "*" in known:
        # GitHub does not repeat the link to the next page.
        bare = {name: value for name, value in headers.items() if name.lower() != "link"}
        return Sent(304, b"", bare)
    return Sent(200, b"" if request.verb == "HEAD" else kept.raw, headers)


def _headers(viewer: Viewer, limits: dict[str, str], sent: Sent) -> dict[str, str]:
    told = {
        "X-GitHub-Media-Type": "github.v3; format=json",
        "X-GitHub-Request-Id": uuid4().hex[:16].upper(),
        "Vary": "Accept, Authorization, Cookie, X-GitHub-OTP",
        **limits,
        **sent.headers,
    }
    if viewer.token and viewer.token.scopes is not None:
        told["X-OAuth-Scopes"] = ", ".join(sorted(viewer.token.scopes))
    return told


def _plain(answer: Answer) -> Sent:
    return Sent(answer.status, answer.raw(), dict(answer.headers))


def _problem(status: int, message: str, headers: dict[str, str] | None = None) -> Answer:
    body = {"message": message, "documentation_url": DOCUMENTATION, "status": str(status)}
    return Answer(status, body, headers or {})


def _refused(refusal: Refusal, api: str = "", verb: str = "GET") -> Answer:
    headers: dict[str, str] = {}
    body: dict[str, object] = {}
    if refusal.errors:
        body["errors"] = list(refusal.errors)
    if refusal.location:
        headers["Location"] = body["url"] = api + refusal.location
    if refusal.kind is Kind.INSUFFICIENT_SCOPES:
        headers["X-Accepted-OAuth-Scopes"] = "repo"
    # A redirected write must stay a write: after a 301 a client may send a GET.
    kept = refusal.kind is Kind.MOVED and verb not in ("GET", "HEAD")
    status = 307 if kept else refusal.status
    plain = _problem(status, refusal.message)
    assert isinstance(plain.body, dict)
    return Answer(status, {**plain.body, **body}, headers)


def _outage(fault: Fault) -> Answer:
    return Answer(fault.status, {"message": "Server Error"})
