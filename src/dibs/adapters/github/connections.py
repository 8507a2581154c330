"""HTTP requests and replies, to a single server; every wait of a call ends with the call.

A library's timeouts begin anew with each step of connecting and with each piece that comes or goes,
so a server that sends a byte now and then would be listened to for ever. Here a call has a single
end, set before the call for the thread that makes it. After the end nothing is sent, read or waited
for, and the connection is torn down, so that the kernel does not deliver its unsent rest later.

Connections stay open between calls. `Dropped` tells a connection that was dropped from a reply that
did not come: after either the caller cannot know whether the request was carried out, but after a
dropped connection it is worth asking again at once. Redirects are not followed, and nothing is sent
without a call. The environment names the proxy.
"""

import math
import socket
import ssl
import struct
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpcore
import httpx

from dibs.adapters.github.auth import Answered, Api
from dibs.core.errors import BadConfiguration, Unavailable
from dibs.ports.system import Clock

_MOST = 32
"""GitHub takes a hundred connections at once from all processes that use a token."""
_IDLE_S = 30.0
_PIECE = 16 * 1024
_DROP_WHAT_IS_UNSENT = struct.pack("ii", 1, 0)


class Deadline(threading.local):
    """When the present call of each thread has to be over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = math.inf

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Make a call that has to be over after `seconds`."""
        self._until = self._clock.now() + seconds
        try:
            yield
        finally:
            self._until = math.inf

    def left(self, timeout: float | None, late: type[Exception]) -> float | None:
        """Seconds left to wait, at most `timeout`; None: no limit. Raises `late` after the end."""
        left_s = self._until - self._clock.now()
        if left_s <= 0:
            raise late("the call is over")
        waits_s = min(left_s, math.inf if timeout is None else timeout)
        return None if waits_s == math.inf else waits_s


class _Stream(httpcore.NetworkStream):
    """A stream on which every wait ends with the deadline."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with self._torn_down_if_late():
            left_s = self._deadline.left(timeout, httpcore.ReadTimeout)
            return self._stream.read(max_bytes, left_s)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with self._torn_down_if_late():
            for start in range(0, len(buffer), _PIECE):
                left_s = self._deadline.left(timeout, httpcore.WriteTimeout)
                self._stream.write(buffer[start : start + _PIECE], left_s)

    @contextmanager
    def _torn_down_if_late(self) -> Iterator[None]:
        """After a timeout, let the kernel drop unsent bytes when the stream is closed."""
        try:
            yield
        except httpcore.TimeoutException:
            with suppress(OSError, AttributeError):  # httpcore closes the stream next
                self._stream.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, _DROP_WHAT_IS_UNSENT
                )
            raise

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        left_s = self._deadline.left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left_s), self._deadline)

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    """Opens streams that keep to the deadline."""

    def __init__(self, deadline: Deadline) -> None:
        self._plain, self._deadline = httpcore.SyncBackend(), deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        left_s = self._deadline.left(timeout, httpcore.ConnectTimeout)
        stream = self._plain.connect_tcp(host, port, left_s, local_address, socket_options or ())
        return _Stream(stream, self._deadline)


class Connections(httpx.BaseTransport):
    """A pool of open connections to a server, through the proxy that the environment names."""

    def __init__(self, address: str, deadline: Deadline) -> None:
        """Raises ValueError, ImportError or RuntimeError if the proxy cannot be used."""
        if address.startswith("https:"):
            certificates = httpx.create_ssl_context()
        else:
            # Reading the certificates of the world takes a tenth of a second: not needed here.
            certificates = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        options: dict[str, Any] = {
            "ssl_context": certificates,
            "max_connections": _MOST,
            "max_keepalive_connections": _MOST,
            "keepalive_expiry": _IDLE_S,
            "network_backend": _Backend(deadline),
        }
        parts, proxies = urlsplit(address), urllib.request.getproxies()
        named = proxies.get(parts.scheme) or proxies.get("all")
        self._pool: httpcore.ConnectionPool
        if not named or urllib.request.proxy_bypass(parts.netloc):
            self._pool = httpcore.ConnectionPool(**options)
            return
        proxy = httpx.Proxy(named if "://" in named else f"http://{named}")
        options |= {"proxy_url": _url(proxy.url), "proxy_auth": proxy.raw_auth}
        if proxy.url.scheme.startswith("socks"):
            self._pool = httpcore.SOCKSProxy(**options)
        else:
            self._pool = httpcore.HTTPProxy(**options, proxy_headers=proxy.headers.raw)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        reply = self._pool.handle_request(
            httpcore.Request(
                method=request.method,
                url=_url(request.url),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx.Response(reply.status, headers=reply.headers, stream=_Body(reply))

    def close(self) -> None:
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, reply: httpcore.Response) -> None:
        self._reply = reply

    def __iter__(self) -> Iterator[bytes]:
        yield from self._reply.iter_stream()

    def close(self) -> None:
        self._reply.close()


def _url(url: httpx.URL) -> httpcore.URL:
    return httpcore.URL(
        scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
    )


CONNECT_S = 5.0
REPLY_S = 10.0
"""For a whole call: connecting, the request and all of its reply."""
_LARGEST = 64 * 1024 * 1024
_HEADERS = {
    "Accept": "application/vnd.github+json",
    "User-Agent": "dibs",
    "X-GitHub-Api-Version": "2022-11-28",
}
_DROPPED = (httpcore.RemoteProtocolError, httpcore.ReadError, httpcore.WriteError)
_FAILED = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    httpcore.UnsupportedProtocol,
    httpcore.ConnectionNotAvailable,
    httpx.HTTPError,
    httpx.InvalidURL,
    OSError,
    RuntimeError,  # another thread has closed the client
)


class Dropped(Unavailable):
    """The connection ended before the reply did."""


class Wire:
    """Sends requests to the server of an API. Safe for many threads."""

    def __init__(self, api: Api, clock: Clock, *, reply_s: float = REPLY_S) -> None:
        self._api, self._clock, self._reply_s = api, clock, reply_s
        self._deadline = Deadline(clock)
        try:
            self._client = httpx.Client(
                headers=_HEADERS,
                transport=Connections(api.rest, self._deadline),
                timeout=httpx.Timeout(reply_s, connect=min(CONNECT_S, reply_s)),
                follow_redirects=False,
            )
        except (ValueError, ImportError, RuntimeError):  # the text may quote a proxy's password
            raise BadConfiguration("the proxy that the environment names cannot be used") from None

    def send(
        self,
        verb: str,
        address: str,
        bearer: str,
        *,
        content: bytes | None = None,
        etag: str = "",
    ) -> Answered:
        """Without a `bearer`, as a stranger.

        Raises Unavailable if no whole reply came: the request may have been carried out.
        """
        self._api.insist_owns(address)
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        if content is not None:
            headers["Content-Type"] = "application/json"
        if etag:
            headers["If-None-Match"] = etag
        asked_at = self._clock.now()
        body = bytearray()
        try:
            request = self._client.build_request(verb, address, content=content, headers=headers)
            with self._deadline.within(self._reply_s):
                reply = self._client.send(request, stream=True)
                try:
                    for part in reply.iter_bytes():
                        body += part
                        if len(body) > _LARGEST:
                            break
                finally:
                    reply.close()
        except _DROPPED as flaw:
            raise Dropped(self._no_answer(flaw)) from flaw
        except _FAILED as flaw:
            raise Unavailable(self._no_answer(flaw)) from flaw
        if len(body) > _LARGEST:
            raise Unavailable(f"{self._api.host} did not come to the end of its reply")
        lowered = {name.lower(): value for name, value in reply.headers.items()}
        return Answered(reply.status_code, lowered, bytes(body), asked_at)

    def _no_answer(self, flaw: Exception) -> str:
        reason = "it took too long" if isinstance(flaw, httpcore.TimeoutException) else str(flaw)
        return f"{self._api.host} did not answer: {reason or type(flaw).__name__}"

    def close(self) -> None:
        self._client.close()
