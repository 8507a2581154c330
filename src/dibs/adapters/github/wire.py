"""Requests and replies over HTTP, to one server and no other.

Keeps connections open. A call has one end for all its waits, also for a reply which trickles in:
when it is over, nothing more of it is sent. Tells a
connection that was dropped from a reply that did not come: after either nobody knows what was done,
but the first is worth asking again at once. Follows no redirect and sends nothing by itself.
"""

import httpcore
import httpx

from dibs.adapters.github.app import Answered
from dibs.adapters.github.auth import Api
from dibs.adapters.github.connections import Connections, Deadline
from dibs.core.errors import BadConfiguration, Unavailable
from dibs.ports.clock import Clock

CONNECT_S = 5.0
REPLY_S = 10.0
"""A whole call: for a connection, the request and all of its reply."""
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
    RuntimeError,  # somebody closed us meanwhile
)


class Dropped(Unavailable):
    """The connection ended before the reply did."""


class Wire:
    """Safe for many threads."""

    def __init__(self, api: Api, clock: Clock, *, reply_s: float = REPLY_S) -> None:
        self._api, self._clock, self._reply_s = api, clock, reply_s
        self._deadline = Deadline(clock)
        self._client = _client(api, self._deadline, reply_s)

    def send(
        self,
        verb: str,
        address: str,
        bearer: str,
        *,
        content: bytes | None = None,
        etag: str = "",
    ) -> Answered:
        """Raises Unavailable if no whole reply came: then nobody knows what was done."""
        if not self._api.owns(address):
            raise Unavailable(
                f"{self._api.host} refers to another server, which is not told the token"
            )
        headers = {"Authorization": f"Bearer {bearer}"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        if etag:
            headers["If-None-Match"] = etag
        asked_at = self._clock.now()
        try:
            request = self._client.build_request(verb, address, content=content, headers=headers)
            with self._deadline.within(self._reply_s):
                reply = self._client.send(request, stream=True)
                try:
                    body = self._whole(reply)
                finally:
                    reply.close()
        except _DROPPED as flaw:
            raise Dropped(self._silent(flaw)) from flaw
        except _FAILED as flaw:
            raise Unavailable(self._silent(flaw)) from flaw
        told = {name.lower(): value for name, value in reply.headers.items()}
        return Answered(reply.status_code, told, body, asked_at)

    def _whole(self, reply: httpx.Response) -> bytes:
        parts: list[bytes] = []
        size = 0
        for part in reply.iter_bytes():
            parts.append(part)
            size += len(part)
            if size > _LARGEST:
                raise Unavailable(f"{self._api.host} did not come to the end of its reply")
        return b"".join(parts)

    def _silent(self, flaw: Exception) -> str:
        reason = "it took too long" if isinstance(flaw, httpcore.TimeoutException) else str(flaw)
        return f"{self._api.host} did not answer: {reason or type(flaw).__name__}"

    def close(self) -> None:
        self._client.close()


def _client(api: Api, deadline: Deadline, reply_s: float) -> httpx.Client:
    try:
        return httpx.Client(
            headers=_HEADERS,
            transport=Connections(api.rest, deadline),
            timeout=httpx.Timeout(reply_s, connect=min(CONNECT_S, reply_s)),
            follow_redirects=False,
        )
    except (ValueError, ImportError, RuntimeError):  # its text may quote a proxy's password
        raise BadConfiguration("the proxy that the environment names cannot be used") from None
