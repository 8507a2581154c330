"""A client of etcd's JSON gateway: the URL, the requests, and the clock of each server.

`etcd_place` reads the URL `etcd://host:port,host:port/prefix?timeout=5`. `etcds://` is the same
over TLS.

`Gateway` sends a request to one endpoint after another until an endpoint answers. Every request is
linearizable (none is serializable), so a reply speaks for the whole cluster; without a reply the
caller gets an Outage. The gateway sends a request again if the reply is lost. So the second sending
of a transaction must do nothing if the first was carried out: every transaction compares a revision
that the transaction itself changes.

`ServerSeconds` works out a server's clock from the `Date` of its replies. A reply names the second
in which the server wrote it, which was after we asked and before we received the reply: two bounds
on how far the server's clock is ahead of our monotonic clock. Each reply narrows the bounds. When
both bounds lie in the same second, the server's second is certain and no request is needed.

This module decides nothing about leases, does not know what the keys mean, and never reads a wall
clock of ours.
"""

import http.client
import select
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from math import floor
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Struct

from dibs.adapters.system import IdlePool
from dibs.core.errors import BadConfiguration, BadTtl, Damaged, NotPermitted, Outage, Unavailable
from dibs.core.ids import LocalTime, ServerTime, server_time
from dibs.core.references import seconds_in, split_host, split_url
from dibs.ports.system import Clock

_PORT = 2379
_OPTIONS = ("timeout", "ca", "cert", "key")
_UNREADABLE = (
    "the etcd URL cannot be read: it names a host that is not written as host:port; "
    "in a password, write / as %2F, ? as %3F, # as %23 and @ as %40"
)


@dataclass(frozen=True, slots=True)
class EtcdPlace:
    endpoints: tuple[tuple[str, int], ...]
    prefix: str
    timeout_s: float
    user: str
    password: str = field(repr=False)
    tls: ssl.SSLContext | None = None
    """None: plain HTTP."""

    @property
    def name(self) -> str:
        """The URL without user, password and options."""
        hosts = (  # an IPv6 address goes into brackets
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.endpoints
        )
        return f"etcd{'s' if self.tls else ''}://{','.join(hosts)}/{self.prefix}"


def etcd_place(url: str) -> EtcdPlace:
    """Read the URL of a store. Raises BadConfiguration, without repeating a password."""
    parts = split_url(url, _UNREADABLE)
    if parts.scheme not in ("etcd", "etcds"):
        raise BadConfiguration("an etcd store begins with etcd:// or etcds://")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise BadConfiguration(
            f"the etcd URL has no option {', '.join(unknown)}; it has {', '.join(_OPTIONS)}"
        )
    secure = parts.scheme == "etcds"
    if not secure and (options.keys() & {"ca", "cert", "key"}):
        raise BadConfiguration("the options ca, cert and key are for etcds://, which is TLS")
    userinfo, _, hosts = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    endpoints = [split_host(host.strip(), _UNREADABLE) for host in hosts.split(",")]
    timeout = options.get("timeout", "5")
    wrong = f"timeout={timeout} in the etcd URL is not a number of seconds"
    return EtcdPlace(
        endpoints=tuple((host, _PORT if port is None else port) for host, port in endpoints),
        prefix=unquote(parts.path).strip("/") or "dibs",
        timeout_s=seconds_in(timeout, 600, wrong),
        user=unquote(user),
        password=unquote(password),
        tls=_tls_context(options) if secure else None,
    )


def _tls_context(options: dict[str, str]) -> ssl.SSLContext:
    """Load the trusted authorities (`ca`) and the client certificate (`cert`, `key`).

    Servers without a valid certificate are refused.
    """
    try:
        context = ssl.create_default_context(cafile=options.get("ca") or None)
        if cert := options.get("cert"):
            context.load_cert_chain(cert, options.get("key") or None)
    except (OSError, ssl.SSLError) as failure:
        raise BadConfiguration(
            f"the certificates of the etcd URL cannot be read: {failure}"
        ) from failure
    return context


# A clock that is being slewed gains or loses up to 0.0005 s in a second. We allow for twice as
# much.
_DRIFT = 0.001


@lru_cache(maxsize=16)
def http_date(text: str) -> ServerTime:
    """Raises ValueError if the text is not a date as HTTP writes dates."""
    moment = parsedate_to_datetime(text)
    return server_time(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


class ServerSeconds:
    """The clock of one server, in whole seconds. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bounds: tuple[float, float, LocalTime] | None = None
        """The least and the most by which the server is ahead, and when they were last narrowed."""

    def observe(self, asked: LocalTime, dated: ServerTime, heard: LocalTime) -> None:
        """Narrow the bounds by a reply with the date `dated`.

        `asked` and `heard` are the local times before the request and after the reply.
        """
        least, most = dated.timestamp() - heard, dated.timestamp() + 1 - asked
        with self._lock:
            bounds = self._bounds_at(heard)
            if bounds is not None and max(bounds[0], least) <= min(bounds[1], most):
                least, most = max(bounds[0], least), min(bounds[1], most)
            # Otherwise the server's clock was set, and the earlier bounds are void.
            self._bounds = (least, most, heard)

    def certain(self, now: LocalTime) -> ServerTime | None:
        """The second that the server would put on a reply now; None if two are possible."""
        with self._lock:
            bounds = self._bounds_at(now)
        if bounds is None or floor(bounds[0] + now) != floor(bounds[1] + now):
            return None
        return _whole_second(bounds[0] + now)

    def earliest(self, now: LocalTime) -> ServerTime | None:
        """A second that has certainly begun on the server; little more than a second behind.

        None before the first reply.
        """
        with self._lock:
            bounds = self._bounds_at(now)
        return _whole_second(bounds[0] + now) if bounds is not None else None

    def _bounds_at(self, now: LocalTime) -> tuple[float, float] | None:
        """The bounds, widened by the drift since they were last narrowed."""
        if self._bounds is None:
            return None
        least, most, at = self._bounds
        drift = _DRIFT * max(0.0, now - at)
        return least - drift, most + drift


def _whole_second(seconds: float) -> ServerTime:
    return ServerTime(datetime.fromtimestamp(floor(seconds), UTC))


_MOST_ROUNDS, _PAUSE_S = 1000, 0.05
_BROKE_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_IDLE = 64
Json = dict[str, Any]
T = TypeVar("T")


class KeyValue(msgspec.Struct):
    key: bytes
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    lease: int = 0


class Ranged(msgspec.Struct):
    kvs: list[KeyValue] = []
    count: int = 0


class _Header(msgspec.Struct):
    revision: int = 0


class _Response(msgspec.Struct):
    response_range: Ranged | None = None


class _TxnReply(msgspec.Struct):
    header: _Header
    succeeded: bool = False
    responses: list[_Response] = []


class _RangeReply(Ranged, kw_only=True):
    header: _Header


class _Lease(msgspec.Struct):
    id: int = msgspec.field(name="ID")
    ttl_s: int = msgspec.field(name="TTL")


class _Token(msgspec.Struct):
    token: str


class _Version(msgspec.Struct):
    etcdserver: str


class _GrpcError(msgspec.Struct):
    code: int = 2
    message: str = ""


class KeyEvent(msgspec.Struct):
    kv: KeyValue
    type: str = "PUT"


class _Watched(msgspec.Struct):
    events: list[KeyEvent] = []
    canceled: bool = False


class _WatchLine(msgspec.Struct):
    result: _Watched


class Transacted(Struct, frozen=True):
    """The reply to a transaction: which branch etcd took, and the results of the branch's ranges.

    Ranges are etcd's read requests.
    """

    succeeded: bool
    ranges: tuple[Ranged, ...]
    revision: int
    at: ServerTime
    resent: bool = False
    """The transaction was sent before without a reply, so it may have been done by then."""


class RangeResult(Struct, frozen=True):
    keys: list[KeyValue]
    revision: int
    at: ServerTime


class LeaseGone(Exception):
    """A key was to be attached to an etcd lease that no longer exists: etcd wrote no key.

    The code that attaches keys catches the exception; the callers of the store never see it.
    """


class _Unanswered(Exception):
    """The endpoint gave no usable answer. The request may have been carried out all the same."""

    def __init__(self, why: str, *, spoke: bool = False) -> None:
        self.spoke = spoke
        """The endpoint itself reported the failure: the member is up, and the cluster may soon be
        up as well."""
        super().__init__(why)


class _TokenRefused(Exception):
    """The token is missing, unknown or old. The request was not carried out."""


class _Answer(Struct, Generic[T], frozen=True):
    body: T
    at: ServerTime
    resent: bool


class Gateway:
    """A client of one cluster, for many threads of one process. A forked child needs its own."""

    def __init__(self, place: EtcdPlace, clock: Clock, revision: int = 0) -> None:
        self._place, self._clock = place, clock
        self._endpoints = [
            _Endpoint(host, port, place.tls, clock) for host, port in place.endpoints
        ]
        self._lock = threading.Lock()
        self._first = 0
        """Which endpoint is asked first: the last that answered."""
        self._token: str | None = None
        """None: not signed in yet; empty: the cluster has no users."""
        self.revision = revision
        """The highest revision seen in a reply. Every later write gets a higher revision."""

    def deadline(self) -> LocalTime:
        """The end of the time that an operation may take if the operation begins now."""
        return LocalTime(self._clock.now() + self._place.timeout_s)

    def close(self) -> None:
        for endpoint in self._endpoints:
            endpoint.close()

    # Requests

    def txn(
        self,
        until: LocalTime,
        *,
        compare: Sequence[Json] = (),
        success: Sequence[Json],
        failure: Sequence[Json] = (),
    ) -> Transacted:
        """Raises LeaseGone if a key would be attached to an etcd lease that is over."""
        revision_before = self.revision
        body = {"compare": compare, "success": success, "failure": failure}
        answer = self._call("/v3/kv/txn", body, _TxnReply, until)
        reply = answer.body
        self._note_revision(reply.header.revision, revision_before)
        ranges = (part.response_range for part in reply.responses)
        return Transacted(
            reply.succeeded,
            tuple(found for found in ranges if found is not None),
            reply.header.revision,
            answer.at,
            answer.resent,
        )

    def range(self, until: LocalTime, body: Json) -> RangeResult:
        revision_before = self.revision
        answer = self._call("/v3/kv/range", body, _RangeReply, until)
        self._note_revision(answer.body.header.revision, revision_before)
        return RangeResult(answer.body.kvs, answer.body.header.revision, answer.at)

    def grant(self, until: LocalTime, seconds: int) -> tuple[int, int, ServerTime]:
        """Create an etcd lease. Returns the id, the granted seconds, and the server's time."""
        answer = self._call("/v3/lease/grant", {"TTL": seconds}, _Lease, until)
        return answer.body.id, answer.body.ttl_s, answer.at

    def now(self, until: LocalTime) -> ServerTime:
        """The server's time, in whole seconds. Sends a request only if the second is uncertain."""
        certain = self._endpoints[self._first].seconds.certain(self._clock.now())
        return certain if certain is not None else self._call("/version", None, _Version, until).at

    def recent_time(self, until: LocalTime) -> ServerTime:
        """The server's time, perhaps a second old. Sends a request only before the first reply."""
        earliest = self._endpoints[self._first].seconds.earliest(self._clock.now())
        return earliest if earliest is not None else self.now(until)

    @contextmanager
    def watch(self, until: LocalTime, key: bytes, end: bytes, since: int) -> Iterator["Watching"]:
        """Stream the changes of the keys from `key` to `end`, beginning with revision `since`."""
        wish = {"create_request": {"key": key, "range_end": end, "start_revision": since}}
        endpoint, wait_s = self._endpoints[self._first], self._place.timeout_s
        try:
            token = self._signed_in(endpoint, wait_s)
            with closing(endpoint.connect(wait_s)) as connection:
                response = _send(connection, "/v3/watch", msgspec.json.encode(wish), token)
                if response.status != 200:
                    _refuse(f"{endpoint}", response.status, response.read())
                yield Watching(connection, response, until, self._clock)
        except (_Unanswered, _TokenRefused, OSError, http.client.HTTPException) as failure:
            self._token = None
            self._turn_from(endpoint)
            raise Unavailable(f"{self._place.name}: the watch broke off: {failure}") from failure

    # One endpoint after another

    def _call(self, path: str, body: Json | None, kind: type[T], until: LocalTime) -> _Answer[T]:
        """Ask the endpoints in turn until an endpoint answers or the time is over.

        The last endpoint that answered comes first. Each may use an equal share of the time left.
        """
        failure: _Unanswered | None = None
        sent = msgspec.json.encode(body) if body is not None else None
        for number in range(_MOST_ROUNDS):
            spoke, first = False, self._first
            endpoints = self._endpoints[first:] + self._endpoints[:first]
            for tried, endpoint in enumerate(endpoints):
                left = until - self._clock.now()
                if left <= 0:
                    raise self._no_answer(path, failure)
                wait_s = left / (len(endpoints) - tried)
                try:
                    read, at = self._ask_signed_in(endpoint, path, sent, kind, wait_s)
                    return _Answer(read, at, resent=failure is not None)
                except _Unanswered as why:
                    failure, spoke = why, spoke or why.spoke
                    self._turn_from(endpoint)
            # The second round is for connections that had died; further rounds are for members that
            # are electing a leader.
            if number > 0 and not spoke:
                break
            self._clock.sleep(_PAUSE_S if spoke else 0)
        raise self._no_answer(path, failure)

    def _no_answer(self, path: str, failure: _Unanswered | None) -> Outage:
        text = f"{self._place.name}: no answer to {path} ({failure or 'the time was over'})"
        cause = failure.__cause__ if failure is not None else None
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _BROKE_OFF):
            # One side does not trust the other's certificate; waiting does not help.
            return NotPermitted(f"{text}; look at the certificates of both sides")
        return Unavailable(text)

    def _turn_from(self, endpoint: "_Endpoint") -> None:
        """Ask the next endpoint first from now on, if this endpoint is the first."""
        with self._lock:
            if self._endpoints[self._first] is endpoint:
                self._first = (self._first + 1) % len(self._endpoints)

    def _ask_signed_in(
        self, endpoint: "_Endpoint", path: str, body: bytes | None, kind: type[T], wait_s: float
    ) -> tuple[T, ServerTime]:
        """Ask one endpoint. If the token is refused, sign in again and ask once more."""
        for _ in range(2):
            try:
                text, at = endpoint.ask(path, body, self._signed_in(endpoint, wait_s), wait_s)
            except _TokenRefused as why:
                if not self._place.user:
                    raise NotPermitted(f"{self._place.name}: {why}") from why
                self._token = None
            except _Unanswered:
                self._token = None  # some releases of etcd just hang up on an old token
                raise
            except Outage as refusal:
                raise type(refusal)(f"{self._place.name}: {refusal}") from refusal
            else:
                return self._decoded(text, kind), at
        raise NotPermitted(f"{self._place.name}: the user is signed in and refused all the same")

    def _decoded(self, text: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(text, type=kind, strict=False)
        except msgspec.MsgspecError as failure:
            raise Damaged(f"{self._place.name}: not an answer of etcd's: {failure}") from failure

    def _signed_in(self, endpoint: "_Endpoint", wait_s: float) -> str | None:
        """The token to send; None if the URL names no user, or if etcd has no users."""
        if not self._place.user or self._token is not None:
            return self._token or None
        wish = {"name": self._place.user, "password": self._place.password}
        try:
            text, _ = endpoint.ask("/v3/auth/authenticate", msgspec.json.encode(wish), None, wait_s)
        except _AuthIsOff:
            self._token = ""
            return None
        self._token = self._decoded(text, _Token).token
        return self._token

    def _note_revision(self, revision: int, before: int) -> None:
        """Remember the revision of a reply. `before`: the highest when the request was sent.

        Replies are linearizable, hence never older than a reply that arrived before the request.
        Raises Damaged if etcd went back.
        """
        if revision < before:
            raise Damaged(
                f"{self._place.name}: the store went back from revision {before} to {revision},"
                " as after restoring an old snapshot: fences would be handed out again"
            )
        with self._lock:
            self.revision = max(self.revision, revision)


class Watching:
    """A stream of events, read by one thread."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        until: LocalTime,
        clock: Clock,
    ) -> None:
        self._connection, self._response = connection, response
        self._until, self._clock = until, clock

    def events(self) -> Sequence[KeyEvent] | None:
        """Wait for the next events. None if the time is over or etcd canceled the watch."""
        left = self._until - self._clock.now()
        if left <= 0:
            return None
        self._connection.sock.settimeout(left)
        try:
            line = self._response.readline()
        except TimeoutError:
            return None
        try:
            watched = msgspec.json.decode(line, type=_WatchLine, strict=False).result
        except msgspec.MsgspecError as failure:  # cut off, or an error in the place of a result
            raise _Unanswered(f"the stream ended with {line[:200]!r}") from failure
        return None if watched.canceled else watched.events

    def quiet(self, seconds: float) -> bool:
        """Wait for `seconds`, or until data arrives. True if no data arrived.

        Events that arrived together with the last event read are already buffered, and missed.
        """
        wait_s = max(0.0, min(seconds, self._until - self._clock.now()))
        return not select.select([self._connection.sock], [], [], wait_s)[0]


class _Endpoint:
    """A member of the cluster: the idle connections to the member, and the member's clock."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, clock: Clock) -> None:
        self._host, self._port, self._clock = host, port, clock
        self._new_connection = (
            http.client.HTTPConnection
            if tls is None
            else partial(http.client.HTTPSConnection, context=tls)
        )
        self._idle = IdlePool(_IDLE, http.client.HTTPConnection.close)
        self.seconds = ServerSeconds()

    def ask(
        self, path: str, body: bytes | None, token: str | None, wait_s: float
    ) -> tuple[bytes, ServerTime]:
        """Send a request on an idle or a new connection.

        Returns the body of the reply, and the server's time when the reply was written.
        """
        connection = self._idle.take() or self.connect(wait_s)
        connection.sock.settimeout(wait_s)
        asked = self._clock.now()
        try:
            response = _send(connection, path, body, token)
            text = response.read()
        except (OSError, http.client.HTTPException) as failure:
            connection.close()
            self._idle.drop()  # after a restart of the server they are dead as well
            raise _Unanswered(f"{self}: {str(failure) or type(failure).__name__}") from failure
        if response.will_close:
            connection.close()
        else:
            self._idle.keep(connection)
        if response.status != 200:
            _refuse(f"{self}", response.status, text)
        try:
            dated = http_date(response.headers["Date"] or "")
        except ValueError as failure:
            raise Damaged(f"{self}: a reply without the server's time") from failure
        self.seconds.observe(asked, dated, self._clock.now())
        return text, dated

    def connect(self, wait_s: float) -> http.client.HTTPConnection:
        connection = self._new_connection(self._host, self._port, timeout=wait_s)
        try:
            connection.connect()
        except OSError as failure:
            connection.close()
            raise _Unanswered(f"{self}: {failure}") from failure
        return connection

    def close(self) -> None:
        self._idle.drop()

    def __str__(self) -> str:
        return f"{self._host}:{self._port}"


def _send(
    connection: http.client.HTTPConnection, path: str, body: bytes | None, token: str | None
) -> http.client.HTTPResponse:
    # With this header, a member that has lost its leader answers at once, instead of after its own
    # timeout.
    headers = {"Grpc-Metadata-hasleader": "true"}
    if token:
        headers["Authorization"] = token
    connection.request("GET" if body is None else "POST", path, body, headers)
    return connection.getresponse()


# Refusals of etcd, by gRPC's status code

_INVALID, _NOT_FOUND, _DENIED, _EXHAUSTED, _PRECONDITION = 3, 5, 7, 8, 9
_OUT_OF_RANGE, _UNIMPLEMENTED, _DATA_LOSS, _UNAUTHENTICATED = 11, 12, 15, 16
_NO_TOKEN = ("auth store is old", "user name is empty")


class _AuthIsOff(Exception):
    """Authentication is off at the server, so signing in is neither possible nor needed."""


def _refuse(endpoint: str, status: int, text: bytes) -> None:
    """Raise the error for a refusal: try the next endpoint, sign in again, or a person must act."""
    try:
        error = msgspec.json.decode(text, type=_GrpcError, strict=False)
    except msgspec.MsgspecError:
        # In plain text, from a proxy, another server, or etcd's HTTP front. With users on, etcd
        # turns away a client certificate that has a common name.
        plain = text[:200].decode("utf-8", "replace").strip()
        refused = status in (401, 403) or "CommonName" in plain
        code = 14 if status >= 500 or status == 429 else _UNIMPLEMENTED
        error = _GrpcError(_DENIED if refused else code, f"HTTP {status}: {plain}")
    why = f"{endpoint}: {error.message}"
    match error.code:
        case code if code == _NOT_FOUND and "lease not found" in error.message:
            raise LeaseGone(why)
        case code if code == _UNAUTHENTICATED or any(sign in error.message for sign in _NO_TOKEN):
            raise _TokenRefused(why)
        case code if code == _PRECONDITION and "not enabled" in error.message:
            raise _AuthIsOff(why)
        case code if code == _DENIED or (code == _INVALID and "user" in error.message):
            raise NotPermitted(why)
        case code if code == _EXHAUSTED and "space" in error.message:
            raise Damaged(f"{why}; look at: etcdctl alarm list")
        case code if code == _OUT_OF_RANGE and "TTL" in error.message:
            raise BadTtl(why)
        case code if code == _EXHAUSTED and "larger than max" in error.message:
            raise Damaged(f"{why}; what was to be written is too large, as by a very long note")
        case code if code in (_INVALID, _NOT_FOUND, _PRECONDITION, _UNIMPLEMENTED, _DATA_LOSS):
            raise Damaged(why)
        case _:
            raise _Unanswered(why, spoke=True)
