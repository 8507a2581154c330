"""A real HTTP server of a few lines: answers what a test tells it to, and keeps what it heard."""

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dibs.adapters.github.auth import Api, Credential, Token
from dibs.adapters.github.client import Transport
from dibs.adapters.github.ledger import FileLedger
from dibs.adapters.github.limits import Limits
from dibs.ports.system import Clock
from dibs.testing.clock import FakeClock

SECRET = "ghp_never-to-be-seen-0123456789"
NOW_S = 1_777_636_800


@dataclass(frozen=True)
class Heard:
    verb: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def bearer(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Say:
    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    date: str | None = formatdate(NOW_S, usegmt=True)
    hang_up: bool = False
    """End the connection without a word."""

    @property
    def text(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def budget(
    remaining: int, *, limit: int = 5000, left_s: int = 1800, resource: str = "core"
) -> dict:
    return {
        "X-RateLimit-Limit": str(limit),
        "X-RateLimit-Remaining": str(remaining),
        "X-RateLimit-Reset": str(NOW_S + left_s),
        "X-RateLimit-Resource": resource,
    }


def memory_ledger(clock: Clock, limits: Limits | None = None) -> FileLedger:
    """A ledger whose file cannot be opened: it counts this process alone."""
    return FileLedger(Path("/dev/null/ledger"), clock, limits)


class TinyServer:
    def __init__(self, answer: Callable[[Heard], Say]) -> None:
        self.answer = answer
        self.heard: list[Heard] = []
        self._transports: list[Transport] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "TinyServer":
        return self

    def __exit__(self, *_: object) -> None:
        for transport in self._transports:
            transport.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def transport(
        self,
        *,
        clock: FakeClock | None = None,
        ledger: FileLedger | None = None,
        credential: Credential | None = None,
        limits: Limits | None = None,
        reply_s: float = 10.0,
    ) -> Transport:
        clock = clock or FakeClock()
        made = Transport(
            Api(self.url),
            credential or Token(SECRET, "GITHUB_TOKEN"),
            ledger or memory_ledger(clock, limits),
            clock,
            reply_s=reply_s,
        )
        self._transports.append(made)
        return made

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        tiny = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # a reply in one piece: two small ones would wait for each other

            def handle_one_request(self) -> None:
                with suppress(ConnectionError):
                    super().handle_one_request()

            def _any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                heard = Heard(self.command, self.path, headers, body)
                tiny.heard.append(heard)
                said = tiny.answer(heard)
                if said.hang_up:
                    self.close_connection = True
                    return
                text = b"" if said.status in (204, 304) else said.text
                self.send_response_only(said.status)
                if said.date is not None:
                    self.send_header("Date", said.date)
                for name, value in said.headers.items():
                    self.send_header(name, value)
                if said.status != 304:
                    self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _any  # noqa: N815 - its names

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def always(*said: Say) -> Callable[[Heard], Say]:
    """One after the other, and the last for ever."""
    left = list(said)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]
