"""The fake on a socket: `with FakeHub() as hub:` serves a GitHub at `hub.url`.

HTTP/1.1 with persistent connections, one thread for each. It listens on loopback, also on a Unix
socket if asked, and accepts requests in the form that a proxy gets, so that the real `gh` can use
it. The prefixes of GitHub Enterprise, `/api/v3` and `/api/graphql`, lead to the same API.
"""

import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import parse_qsl, urlsplit

from .apps import Apps, Installation
from .counting import Counts
from .exchange import Request
from .faults import Faults
from .front import Front, Sent
from .limits import Limits
from .records import Permission, Repository, UserKind
from .state import State, wall_clock
from .world import make_world

ENTERPRISE = "/api/v3"
WAITING_CONNECTIONS = 512


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: two packets would wait for acknowledgements
    server: "_Server"

    def setup(self) -> None:
        super().setup()
        if self.connection.family != socket.AF_UNIX:  # a Unix socket has no such option
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _serve(self) -> None:
        request = self._request()
        sent = None if request is None else self.server.front.answer(request)
        if request is not None:
            for observe in tuple(FakeHub.observers):
                observe(request, sent)
        if sent is None:
            self.close_connection = True
            return
        self.send_response(sent.status)
        for name, text in sent.headers.items():
            self.send_header(name, text)
        if sent.status not in (204, 304):
            if sent.raw or "Content-Type" not in sent.headers:
                self.send_header("Content-Type", "application/json; charset=utf-8")
            self.send_header("Content-Length", str(len(sent.raw)))
        self.end_headers()
        self.wfile.write(sent.raw)
        self.wfile.flush()

    do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = do_DELETE = _serve  # noqa: N815 - its names

    def _request(self) -> Request | None:
        parts = urlsplit(self.path)
        host = parts.netloc or self.headers.get("Host", "localhost")
        path = parts.path
        api = f"http://{host}"
        if path == ENTERPRISE or path.startswith(f"{ENTERPRISE}/"):
            path, api = path.removeprefix(ENTERPRISE), f"{api}{ENTERPRISE}"
        body = self._body()
        if body is None:
            return None
        headers = {name.lower(): text for name, text in self.headers.items()}
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        return Request(self.command, path, query, headers, body, api)

    def _body(self) -> bytes | None:
        """None if the client disconnected in the middle of the body."""
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            return self._chunks()
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        return body if len(body) == length else None

    def _chunks(self) -> bytes | None:
        body = b""
        while True:
            size = int(self.rfile.readline().split(b";")[0] or b"0", 16)
            if not size:
                self.rfile.readline()
                return body
            piece = self.rfile.read(size)
            if len(piece) < size:
                return None
            body += piece
            self.rfile.readline()

    def version_string(self) -> str:
        return "fakehub"

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The fake's own time: clients take it for the server's."""
        del timestamp
        return format_datetime(self.server.now(), usegmt=True)

    def address_string(self) -> str:
        return "client"

    def log_message(self, *_: Any) -> None:
        """Log nothing: the counts have every request."""


class _Server(ThreadingMixIn, TCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = WAITING_CONNECTIONS

    def __init__(
        self, address: Any, family: int, front: Front, now: Callable[[], datetime]
    ) -> None:
        self.address_family = family
        self.front = front
        self.now = now
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect; report any other error as usual."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def hang_up(self) -> None:
        """Close persistent connections."""
        with self._lock:
            still_open = tuple(self._open)
        for connection in still_open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class FakeHub:
    """A fake GitHub. While it runs, `state`, `faults` and `counts` may be used."""

    observers: ClassVar[list[Callable[[Request, Sent | None], None]]] = []
    """Called with each exchange of every fake in this process, before the answer is sent."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        clock: Callable[[], datetime] = wall_clock,
        seed: int = 0,
        port: int = 0,
        unix_socket: Path | None = None,
        graphql: bool = True,
    ) -> None:
        """GitHub's limits by default; `Limits.off()` for none. `seed` decides the faults."""
        self.world = make_world(
            clock=clock,
            limits=limits or Limits(),
            seed=seed,
            api=lambda: self.url,
            graphql=graphql,
        )
        self._front = Front(self.world)
        self._tcp = self._listen(("127.0.0.1", port), socket.AF_INET)
        self._servers = [self._tcp]
        self._unix_socket = unix_socket
        if unix_socket is not None:
            self._servers.append(self._listen(str(unix_socket), socket.AF_UNIX))
        self._threads: list[threading.Thread] = []

    def _listen(self, address: Any, family: int) -> _Server:
        return _Server(address, family, self._front, self.world.state.now)

    @property
    def port(self) -> int:
        return int(self._tcp.server_address[1])

    @property
    def url(self) -> str:
        """The address of the REST API; GraphQL is at `/graphql` below it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def state(self) -> State:
        return self.world.state

    @property
    def faults(self) -> Faults:
        return self.world.faults

    @property
    def counts(self) -> Counts:
        return self.world.counts

    @property
    def apps(self) -> Apps:
        return self.world.apps

    def repository(self, full_name: str, *, private: bool = False) -> Repository:
        """The repository of that name; created if it does not exist."""
        if full_name.lower() in self.state.names:
            return self.state.named(full_name)
        return self.state.add_repository(full_name, private=private)

    def user(
        self,
        login: str,
        may: Mapping[str, Permission] | None = None,
        *,
        token: str | None = None,
        kind: UserKind = "User",
    ) -> str:
        """An account with its permissions by repository, and the text of a token of its own."""
        self.state.add_user(login, kind=kind)
        for full_name, permission in (may or {}).items():
            self.repository(full_name)
            self.state.grant(full_name, login, permission)
        return self.state.add_token(token or f"{login}-token", login).text

    def install(self, slug: str, public_key: str, *repositories: str) -> Installation:
        return self.apps.install(slug, public_key, repositories)

    def start(self) -> Self:
        for server in self._servers:
            thread = threading.Thread(
                target=server.serve_forever,
                kwargs={"poll_interval": 0.05},
                name="fakehub",
                daemon=True,
            )
            thread.start()
            self._threads.append(thread)
        return self

    def close(self) -> None:
        self._front.closing.set()
        for server in self._servers:
            if self._threads:
                server.shutdown()
            server.server_close()
            server.hang_up()
        for thread in self._threads:
            thread.join()
        if self._unix_socket is not None:
            self._unix_socket.unlink(missing_ok=True)
        self.world.deliveries.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
