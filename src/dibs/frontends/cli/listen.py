"""A tracker's deliveries over HTTP: dibs listen.

Knows HTTP and nothing of what is delivered. Whoever talks to it may be anybody: bodies, times and
numbers are bounded, and a refusal says nothing.

Pull requests as stages: `dibs follow` does once what every worker does as it goes.
"""

import contextlib
import http.server
import ipaddress
import logging
import signal
import socket
import socketserver
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http import HTTPStatus
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from dibs.core.errors import BadConfiguration
from dibs.frontends.cli import output
from dibs.frontends.cli.context import Context, answering, as_json, as_name, dry_run
from dibs.frontends.cli.output import Answer, Exit, tell

if TYPE_CHECKING:
    from dibs.services.listening import Heard, Listening


@click.command("follow")
@click.option("--limit", default=1000, show_default=True, type=click.IntRange(1, 1_000_000))
@as_name
@dry_run
@as_json
@answering
def follow_command(context: Context, limit: int, name: str | None, dry_run: bool) -> Answer:
    """Move issues where their pull requests went: on if merged, back if closed unmerged."""
    following = context.services.following
    stages = [stage.name for stage in following.stages]
    data: dict[str, object] = {"stages": stages, "dry_run": dry_run}
    if not stages:
        line = "no stage follows pull requests, or the tracker has none"
        return Answer({**data, "looked_at": 0, "followed": []}, [line], Exit.NOTHING)
    report = following.follow(context.holder(name), limit=limit, dry_run=dry_run)
    data |= {
        "looked_at": report.looked_at,
        "followed": [
            {"issue": str(entry.issue), "action": entry.action.value, "text": entry.text}
            for entry in report.followed
        ],
    }
    would = "would be " if dry_run else ""
    lines = [
        f"{entry.issue} {would if entry.changed else ''}{entry.action.value}: {entry.text}"
        for entry in report.followed
    ]
    if not report.changed:
        lines.append(f"nothing to follow: {report.looked_at} looked at in {', '.join(stages)}")
        return Answer(data, lines, Exit.NOTHING)
    return Answer(data, lines)


_log = logging.getLogger("dibs.listen")
_LONGEST_BODY = 4 * 1024 * 1024
_LONGEST_S = 15.0
"""From the first byte of a request to the last of its reply."""
_AT_ONCE = 32
_HEALTH = "/healthz"


@click.command("listen")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    default=8787,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port; 0 for any that is free.",
)
@click.option("--path", default="/webhook", show_default=True, help="Where deliveries are sent to.")
@click.option("--insecure", is_flag=True, help="Without a secret: believe whoever reaches it.")
@as_json
@answering
def listen_command(context: Context, host: str, port: int, path: str, insecure: bool) -> Answer:
    """Wake the workers of this folder when the tracker says that something changed.

    Give the tracker's webhook the secret that is in GITHUB_WEBHOOK_SECRET; several are separated by
    commas. Workers go on polling, so nothing is lost if a delivery is.
    """
    from dibs.wiring.services import listening

    if not path.startswith("/") or path == _HEALTH:
        raise click.UsageError(f"--path must begin with / and be another than {_HEALTH}")
    loopback = _is_loopback(host)
    if insecure and not loopback:
        raise click.UsageError("--insecure needs a --host that only this machine can reach")
    service = listening(context.settings, unsigned=insecure)
    counts: Counter[str] = Counter()
    hear = _Ear(service, counts, as_json=context.as_json)
    with _serving(host, port, path, hear) as server, _signals(server) as received:
        where = f"http://{_shown(host)}:{server.server_address[1]}{path}"
        _say({"listening": where}, f"listening on {where}", as_json=context.as_json)
        waking = threading.Thread(target=service.wake_workers, name="dibs-waking", daemon=True)
        waking.start()
        try:
            server.serve_forever(poll_interval=0.2)
        finally:
            service.end()
            waking.join(2.0)
    did = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    code = Exit.INTERRUPTED if signal.SIGINT in received else Exit.DONE
    return Answer(dict(counts), [f"heard {did or 'nothing'}"], code)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _shown(host: str) -> str:
    return f"[{host.strip('[]')}]" if ":" in host else host


def _say(data: dict[str, Any], line: str, *, as_json: bool) -> None:
    if as_json:
        output.write_json(data)
        sys.stdout.flush()
    else:
        tell(line)


class _Ear:
    """Every delivery to the service, and a line about each that is worth one."""

    def __init__(self, service: "Listening", counts: Counter[str], *, as_json: bool) -> None:
        self._service = service
        self._counts = counts
        self._as_json = as_json
        self._lock = threading.Lock()

    @property
    def healthy(self) -> bool:
        return self._service.healthy

    def hear(self, body: bytes, headers: dict[str, str]) -> str:
        """What came of it, in one word."""
        heard = self._service.receive(body, headers)
        with self._lock:
            self._counts[heard.did.value] += 1
            with contextlib.suppress(BrokenPipeError):
                if heard.worth_telling:
                    _say(_data(heard), _line(heard), as_json=self._as_json)
        return heard.did.value


def _data(heard: "Heard") -> dict[str, Any]:
    told = heard.happening
    return {
        "did": heard.did.value,
        "delivery": heard.number[:80],
        "event": told.event[:80] if told else "",
        "action": told.action[:80] if told else "",
        "repo": told.repo[:200] if told else "",
        "issue": str(told.issue) if told and told.issue else None,
        "why": heard.why,
    }


def _line(heard: "Heard") -> str:
    data = _data(heard)
    what = " ".join(data[key] for key in ("event", "action") if data[key])
    about = data["issue"] or data["repo"]
    said = f"{what or 'a delivery'}{f' ({about})' if about else ''}: {heard.did.value}"
    line = f"{said}, {heard.why}" if heard.why else said
    return "".join(letter if letter.isprintable() else "?" for letter in line)


_STATUS = {
    "woke": HTTPStatus.ACCEPTED,
    "rubbish": HTTPStatus.BAD_REQUEST,
    "refused": HTTPStatus.UNAUTHORIZED,
}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: "_Server"
    timeout = _LONGEST_S
    error_content_type = "text/plain"
    error_message_format = "%(message)s\n"

    def do_GET(self) -> None:
        if self.path != _HEALTH:
            self._answer(HTTPStatus.NOT_FOUND, "not found")
        elif self.server.ear.healthy:
            self._answer(HTTPStatus.OK, "ok")
        else:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "workers cannot be woken")

    def do_POST(self) -> None:
        if self.path != self.server.path:
            self._answer(HTTPStatus.NOT_FOUND, "not found")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            self._answer(HTTPStatus.LENGTH_REQUIRED, "say how long it is")
        elif len(length) > 9 or int(length) > _LONGEST_BODY:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too long")
        else:
            self._hear(self.rfile.read(int(length)), int(length))

    def _hear(self, body: bytes, length: int) -> None:
        if len(body) < length:
            return  # hung up in the middle
        headers = {name.lower(): value for name, value in self.headers.items()}
        did = self.server.ear.hear(body, headers)
        said = "no" if did == "refused" else did
        self._answer(_STATUS.get(did, HTTPStatus.OK), said)

    def _answer(self, status: HTTPStatus, said: str) -> None:
        text = f"{said}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def version_string(self) -> str:
        return "dibs"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's word
        _log.debug(format, *args)


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, host: str, port: int, path: str, ear: _Ear) -> None:
        self.ear, self.path = ear, path
        self._places = threading.BoundedSemaphore(_AT_ONCE)
        host = host.strip("[]")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without asking a name server who we are, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "dibs", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)  # a tracker tries again, and workers poll
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started, so nobody else gives the place back
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            with _in_time(request):
                super().process_request_thread(request, client_address)
        except RuntimeError:  # no thread for its time: without an end it is not begun
            self.shutdown_request(request)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        _log.debug("a request broke off", exc_info=True)


@contextlib.contextmanager
def _in_time(request: socket.socket) -> Iterator[None]:
    """A timeout of the socket begins anew with every byte; this one does not."""
    late = threading.Timer(_LONGEST_S, _hang_up, (request,))
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


def _hang_up(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _serving(host: str, port: int, path: str, ear: _Ear) -> Iterator[_Server]:
    try:
        server = _Server(host, port, path, ear)
    except OSError as failure:
        said = failure.strerror or str(failure)
        raise BadConfiguration(f"{host} port {port} cannot be listened on: {said}") from failure
    with server:
        yield server


@contextlib.contextmanager
def _signals(server: _Server) -> Iterator[list[int]]:
    received: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        received.append(number)
        # It waits for the loop to end, which this very handler has interrupted.
        threading.Thread(target=server.shutdown, daemon=True).start()

    handlers: dict[int, Callable[..., Any] | int | None] = {
        number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
