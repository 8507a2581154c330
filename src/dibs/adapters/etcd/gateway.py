"""etcd over its JSON gateway: a request goes to one endpoint after the other until one answers.

What comes back is the word of the whole cluster (nothing here is serializable) or an Outage. A
request whose reply is lost is sent again, so a transaction must be such that the second one does
nothing if the first one was carried out: it compares a revision that it changes. Decides nothing
about leases.

Where an etcd is and how it is reached, as one URL: `etcd://host:port,host:port/prefix?timeout=5`.

`etcds://` is the same over TLS. Knows nothing of what is kept there.

What a server's clock says now, worked out from the `Date` of its replies.

A reply says the second in which it was written, and we know that this was after we asked and before
we heard: two bounds on how far the server's clock is ahead of our monotonic one. Each reply narrows
them. Where both bounds lie in one second, that second is certain and nobody has to ask for it.
Decides nothing about leases, and never looks at a wall clock of ours.
"""

import http.client
import select
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from math import floor
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dibs.core.errors import BadConfiguration, BadTtl, Damaged, NotPermitted, Outage, Unavailable
from dibs.core.ids import LocalTime, ServerTime, server_time
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
        """The place without user, password and options."""
        hosts = ",".join(f"{_bracketed(host)}:{port}" for host, port in self.endpoints)
        return f"etcd{'s' if self.tls else ''}://{hosts}/{self.prefix}"


def etcd_place(url: str) -> EtcdPlace:
    try:
        parts = urlsplit(url)
        url.encode()  # half letters cannot be sent
    except ValueError:
        raise BadConfiguration(_UNREADABLE) from None
    # A password with one of / ? # in it is cut there, and its rest must not be taken for a prefix
    # or an option, and so be shown.
    if parts.fragment or "@" in parts.path + parts.query:
        raise BadConfiguration(_UNREADABLE)
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
    return EtcdPlace(
        endpoints=tuple(_endpoint(host) for host in hosts.split(",")),
        prefix=unquote(parts.path).strip("/") or "dibs",
        timeout_s=_seconds(options.get("timeout", "5")),
        user=unquote(user),
        password=unquote(password),
        tls=_trust(options) if secure else None,
    )


def _endpoint(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text.strip()}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        # Not quoted: a password that was meant to stand before an @ may be in it.
        raise BadConfiguration(_UNREADABLE)
    return host, port if port is not None else _PORT


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 600:
        raise BadConfiguration(f"timeout={text} in the etcd URL is not a number of seconds")
    return seconds


def _trust(options: dict[str, str]) -> ssl.SSLContext:
    """Whom we believe, and who we say we are. A server that proves nothing is refused."""
    try:
        context = ssl.create_default_context(cafile=options.get("ca") or None)
        if cert := options.get("cert"):
            context.load_cert_chain(cert, options.get("key") or None)
    except (OSError, ssl.SSLError) as failure:
        raise BadConfiguration(
            f"the certificates of the etcd URL cannot be read: {failure}"
        ) from failure
    return context


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# A clock that is being slewed gains or loses up to 0.0005 s in a second; twice that is allowed for.
_DRIFT = 0.001


@lru_cache(maxsize=16)
def http_date(text: str) -> ServerTime:
    """Raises ValueError on anything but a date of HTTP."""
    moment = parsedate_to_datetime(text)
    return server_time(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


class ServerSeconds:
    """The clock of one server, in whole seconds. For many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: tuple[float, float, LocalTime] | None = None
        """The least and the most that the server is ahead, and when that was last narrowed."""

    def observe(self, asked: LocalTime, said: ServerTime, heard: LocalTime) -> None:
        least, most = said.timestamp() - heard, said.timestamp() + 1 - asked
        with self._lock:
            known = self._bounds(heard)
            if known is not None and max(known[0], least) <= min(known[1], most):
                least, most = max(known[0], least), min(known[1], most)
            # Otherwise the server's clock was set: what we knew of it is void.
            self._known = (least, most, heard)

    def certain(self, now: LocalTime) -> ServerTime | None:
        """The second that the server would put on a reply now, if there is no doubt about it."""
        with self._lock:
            known = self._bounds(now)
        if known is None or floor(known[0] + now) != floor(known[1] + now):
            return None
        return _moment(known[0] + now)

    def earliest(self, now: LocalTime) -> ServerTime | None:
        """A second that has begun for sure; at most a little over one behind."""
        with self._lock:
            known = self._bounds(now)
        return _moment(known[0] + now) if known is not None else None

    def _bounds(self, now: LocalTime) -> tuple[float, float] | None:
        if self._known is None:
            return None
        least, most, at = self._known
        drift = _DRIFT * max(0.0, now - at)
        return least - drift, most + drift


def _moment(seconds: float) -> ServerTime:
    return ServerTime(datetime.fromtimestamp(floor(seconds), UTC))


_MOST_ROUNDS, _PAUSE_S = 1000, 0.05
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


class _Refusal(msgspec.Struct):
    code: int = 2
    message: str = ""


class Event(msgspec.Struct):
    kv: KeyValue
    type: str = "PUT"


class _Watched(msgspec.Struct):
    events: list[Event] = []
    canceled: bool = False


class _WatchLine(msgspec.Struct):
    result: _Watched


class Transacted(Struct, frozen=True):
    """What came of a transaction: which branch was taken, and what its ranges found."""

    succeeded: bool
    ranges: tuple[Ranged, ...]
    revision: int
    at: ServerTime
    resent: bool = False
    """It was sent before, and nobody knows what came of that."""


class Found(Struct, frozen=True):
    keys: list[KeyValue]
    revision: int
    at: ServerTime


class LeaseGone(Exception):
    """A key was to be attached to an etcd lease that is no more: nothing was written.

    Caught by whoever attaches keys, and seen by nobody else.
    """


class _Unanswered(Exception):
    """The endpoint did not do its part; what was asked may have been done all the same."""

    def __init__(self, why: str, *, spoke: bool = False) -> None:
        self.spoke = spoke
        """It said so itself: the member is there, and the cluster may be soon."""
        super().__init__(why)


class _TokenRefused(Exception):
    """The token is missing, unknown or old: nothing was done."""


class _Answer(Struct, Generic[T], frozen=True):
    body: T
    at: ServerTime
    resent: bool = False


class Gateway:
    """One client of a cluster, for many threads of one process: a child needs its own."""

    def __init__(self, place: EtcdPlace, clock: Clock, revision: int = 0) -> None:
        """`revision`: the highest that is known already."""
        self._place, self._clock = place, clock
        self._endpoints = [
            _Endpoint(host, port, place.tls, clock) for host, port in place.endpoints
        ]
        self._lock = threading.Lock()
        self._first = 0
        self._token: str | None = None
        self._revision = revision

    @property
    def revision(self) -> int:
        """The highest that was told: whatever is written from now on is above it."""
        return self._revision

    def deadline(self) -> LocalTime:
        """Until when an operation that begins now may go on."""
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
        """Raises LeaseGone if it would attach a key to a lease that is over."""
        known = self._revision
        body = {"compare": compare, "success": success, "failure": failure}
        answer = self._call("/v3/kv/txn", body, _TxnReply, until)
        told = answer.body
        self._learn(told.header.revision, known)
        ranges = (part.response_range for part in told.responses)
        return Transacted(
            told.succeeded,
            tuple(found for found in ranges if found is not None),
            told.header.revision,
            answer.at,
            answer.resent,
        )

    def range(self, until: LocalTime, body: Json) -> Found:
        known = self._revision
        answer = self._call("/v3/kv/range", body, _RangeReply, until)
        self._learn(answer.body.header.revision, known)
        return Found(answer.body.kvs, answer.body.header.revision, answer.at)

    def grant(self, until: LocalTime, seconds: int) -> tuple[int, int, ServerTime]:
        """A new lease of etcd's: its id, for how many seconds it was granted, and when."""
        answer = self._call("/v3/lease/grant", {"TTL": seconds}, _Lease, until)
        return answer.body.id, answer.body.ttl_s, answer.at

    def now(self, until: LocalTime) -> ServerTime:
        """The server's time, in whole seconds; asked for only if it is not known for certain."""
        certain = self._endpoints[self._first].seconds.certain(self._clock.now())
        return certain if certain is not None else self._call("/version", None, _Version, until).at

    def lately(self, until: LocalTime) -> ServerTime:
        """The server's time, perhaps a second ago."""
        known = self._endpoints[self._first].seconds.earliest(self._clock.now())
        return known if known is not None else self.now(until)

    @contextmanager
    def watch(self, until: LocalTime, key: bytes, end: bytes, since: int) -> Iterator["Watching"]:
        """Whatever happens to the keys from that revision on, as it happens."""
        wish = {"create_request": {"key": key, "range_end": end, "start_revision": since}}
        endpoint, wait_s = self._endpoints[self._first], self._place.timeout_s
        connection: http.client.HTTPConnection | None = None
        try:
            token = self._signed_in(endpoint, wait_s)
            connection = endpoint.connect(wait_s)
            response = _send(connection, "/v3/watch", msgspec.json.encode(wish), token)
            if response.status != 200:
                _refuse(f"{endpoint}", response.status, response.read())
            yield Watching(connection, response, until, self._clock)
        except (_Unanswered, _TokenRefused, OSError, http.client.HTTPException) as failure:
            self._token = None
            self._turn_from(endpoint)
            raise Unavailable(f"{self._place.name}: the watch broke off: {failure}") from failure
        finally:
            if connection is not None:
                connection.close()

    # One endpoint after the other

    def _call(self, path: str, body: Json | None, kind: type[T], until: LocalTime) -> _Answer[T]:
        failure: _Unanswered | None = None
        sent = msgspec.json.encode(body) if body is not None else None
        for number in range(_MOST_ROUNDS):
            spoke = False
            for untried, endpoint in self._in_turn():
                left = until - self._clock.now()
                if left <= 0:
                    raise self._no_answer(path, failure)
                try:
                    answer = self._ask(endpoint, path, sent, kind, left / untried)
                    return replace(answer, resent=failure is not None)
                except _Unanswered as why:
                    failure, spoke = why, spoke or why.spoke
                    self._turn_from(endpoint)
            # The second round is for connections that had died; more, for members that elect.
            if number > 0 and not spoke:
                break
            self._clock.sleep(_PAUSE_S if spoke else 0)
        raise self._no_answer(path, failure)

    def _no_answer(self, path: str, failure: _Unanswered | None) -> Outage:
        text = f"{self._place.name}: no answer to {path} ({failure or 'the time was over'})"
        if failure is not None and _distrusted(failure.__cause__):
            return NotPermitted(f"{text}; look at the certificates of both sides")
        return Unavailable(text)

    def _in_turn(self) -> list[tuple[int, "_Endpoint"]]:
        """The last one that answered first; with how many there are from each on."""
        first = self._first
        turns = self._endpoints[first:] + self._endpoints[:first]
        return [(len(turns) - place, endpoint) for place, endpoint in enumerate(turns)]

    def _turn_from(self, endpoint: "_Endpoint") -> None:
        with self._lock:
            if self._endpoints[self._first] is endpoint:
                self._first = (self._first + 1) % len(self._endpoints)

    def _ask(
        self, endpoint: "_Endpoint", path: str, body: bytes | None, kind: type[T], wait_s: float
    ) -> _Answer[T]:
        for _ in range(2):
            try:
                text, at = endpoint.ask(path, body, self._signed_in(endpoint, wait_s), wait_s)
            except _TokenRefused as why:
                if not self._place.user:
                    raise NotPermitted(f"{self._place.name}: {why}") from why
                self._token = None
            except _Unanswered:
                self._token = None  # some releases hang up on an old token, without a word
                raise
            except Outage as told:
                raise type(told)(f"{self._place.name}: {told}") from told
            else:
                return _Answer(self._decoded(text, kind), at)
        raise NotPermitted(f"{self._place.name}: the user is signed in and refused all the same")

    def _decoded(self, text: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(text, type=kind, strict=False)
        except msgspec.MsgspecError as failure:
            raise Damaged(f"{self._place.name}: not an answer of etcd's: {failure}") from failure

    def _signed_in(self, endpoint: "_Endpoint", wait_s: float) -> str | None:
        """The token to show; None where there is nobody to sign in as."""
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

    def _learn(self, revision: int, known: int) -> None:
        """A linearizable reply cannot be older than one that was there before it was asked for."""
        if revision < known:
            raise Damaged(
                f"{self._place.name}: the store went back from revision {known} to {revision},"
                " as after restoring an old snapshot: fences would be handed out again"
            )
        with self._lock:
            self._revision = max(self._revision, revision)


class Watching:
    """One stream of events. It is read by one thread."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        until: LocalTime,
        clock: Clock,
    ) -> None:
        self._connection, self._response = connection, response
        self._until, self._clock = until, clock

    def events(self) -> Sequence[Event] | None:
        """The next ones; None if the time is over or there will be none."""
        left = self._until - self._clock.now()
        if left <= 0:
            return None
        self._connection.sock.settimeout(left)
        try:
            line = self._response.readline()
        except TimeoutError:
            return None
        try:
            told = msgspec.json.decode(line, type=_WatchLine, strict=False).result
        except msgspec.MsgspecError as failure:  # cut off, or an error in the place of a result
            raise _Unanswered(f"the stream ended with {line[:200]!r}") from failure
        return None if told.canceled else told.events

    def quiet(self, seconds: float) -> bool:
        """Whether nothing arrives for so long. May miss what came together with the last event."""
        wait_s = max(0.0, min(seconds, self._until - self._clock.now()))
        return not select.select([self._connection.sock], [], [], wait_s)[0]


class _Endpoint:
    """One member: its idle connections, and what is known of its clock."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, clock: Clock) -> None:
        self._host, self._port, self._tls, self._clock = host, port, tls, clock
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self.seconds = ServerSeconds()

    def ask(
        self, path: str, body: bytes | None, token: str | None, wait_s: float
    ) -> tuple[bytes, ServerTime]:
        connection = self._idle_one(wait_s) or self.connect(wait_s)
        asked = self._clock.now()
        try:
            response = _send(connection, path, body, token)
            text = response.read()
        except (OSError, http.client.HTTPException) as failure:
            connection.close()
            self.close()  # after a restart of the server the idle ones are dead as well
            raise _Unanswered(f"{self}: {str(failure) or type(failure).__name__}") from failure
        self._keep(connection, response)
        if response.status != 200:
            _refuse(f"{self}", response.status, text)
        return text, self._date(asked, response)

    def connect(self, wait_s: float) -> http.client.HTTPConnection:
        connection = (
            http.client.HTTPConnection(self._host, self._port, timeout=wait_s)
            if self._tls is None
            else http.client.HTTPSConnection(
                self._host, self._port, timeout=wait_s, context=self._tls
            )
        )
        try:
            connection.connect()
        except OSError as failure:
            connection.close()
            raise _Unanswered(f"{self}: {failure}") from failure
        return connection

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _idle_one(self, wait_s: float) -> http.client.HTTPConnection | None:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is not None:
            connection.sock.settimeout(wait_s)
        return connection

    def _keep(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        with self._lock:
            if not response.will_close and len(self._idle) < _IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _date(self, asked: LocalTime, response: http.client.HTTPResponse) -> ServerTime:
        try:
            said = http_date(response.headers["Date"] or "")
        except ValueError as failure:
            raise Damaged(f"{self}: a reply without the server's time") from failure
        self.seconds.observe(asked, said, self._clock.now())
        return said

    def __str__(self) -> str:
        return f"{self._host}:{self._port}"


def _send(
    connection: http.client.HTTPConnection, path: str, body: bytes | None, token: str | None
) -> http.client.HTTPResponse:
    # A member that has lost its leader then says so at once, instead of after its own timeout.
    headers = {"Grpc-Metadata-hasleader": "true"}
    if token:
        headers["Authorization"] = token
    connection.request("GET" if body is None else "POST", path, body, headers)
    return connection.getresponse()


def _distrusted(cause: BaseException | None) -> bool:
    """Whether one side would not believe the other, which no waiting mends."""
    return isinstance(cause, ssl.SSLError) and not isinstance(
        cause, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError
    )


# What etcd refuses, by the number of gRPC's status

_INVALID, _NOT_FOUND, _DENIED, _EXHAUSTED, _PRECONDITION = 3, 5, 7, 8, 9
_OUT_OF_RANGE, _UNIMPLEMENTED, _DATA_LOSS, _UNAUTHENTICATED = 11, 12, 15, 16
_NO_TOKEN = ("auth store is old", "user name is empty")


class _AuthIsOff(Exception):
    """The server knows no users, so there is nothing to sign in to."""


def _refuse(endpoint: str, status: int, text: bytes) -> None:
    """Raises what the refusal means: try the next one, sign in again, or a person must act."""
    try:
        told = msgspec.json.decode(text, type=_Refusal, strict=False)
    except msgspec.MsgspecError:
        said = text[:200].decode("utf-8", "replace").strip()
        told = _Refusal(_by_status(status, said), f"HTTP {status}: {said}")
    said = f"{endpoint}: {told.message}"
    match told.code:
        case code if code == _NOT_FOUND and "lease not found" in told.message:
            raise LeaseGone(said)
        case code if code == _UNAUTHENTICATED or any(sign in told.message for sign in _NO_TOKEN):
            raise _TokenRefused(said)
        case code if code == _PRECONDITION and "not enabled" in told.message:
            raise _AuthIsOff(said)
        case code if code == _DENIED or (code == _INVALID and "user" in told.message):
            raise NotPermitted(said)
        case code if code == _EXHAUSTED and "space" in told.message:
            raise Damaged(f"{said}; look at: etcdctl alarm list")
        case code if code == _OUT_OF_RANGE and "TTL" in told.message:
            raise BadTtl(said)
        case code if code == _EXHAUSTED and "larger than max" in told.message:
            raise Damaged(f"{said}; what was to be written is too large, as by a very long note")
        case code if code in (_INVALID, _NOT_FOUND, _PRECONDITION, _UNIMPLEMENTED, _DATA_LOSS):
            raise Damaged(said)
        case _:
            raise _Unanswered(said, spoke=True)


def _by_status(status: int, said: str) -> int:
    """For an answer in plain text: of a proxy, of another server, of etcd's own front door."""
    # With users on, etcd turns away a client's certificate that has a common name.
    if status in (401, 403) or "CommonName" in said:
        return _DENIED
    return 14 if status >= 500 or status == 429 else _UNIMPLEMENTED
