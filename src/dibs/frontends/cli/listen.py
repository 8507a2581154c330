"""`dibs listen` receives a tracker's webhooks over HTTP; `dibs follow` follows pull requests once.

The server handles HTTP and leaves the content of a delivery to the service. Any client may connect,
also a hostile one: the size of a body, the time of a request and the number of connections are
bounded, also for each address, and a refusal gives no reason. `dibs follow` does a step that every
worker also does.
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
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from dibs.core.errors import BadConfiguration
from dibs.core.references import this_machine
from dibs.frontends.cli import output
from dibs.frontends.cli.context import Context, as_name, command, dry_run
from dibs.frontends.cli.output import Answer, Exit, tell
from dibs.frontends.cli.work import catching_signals
from dibs.ports.system import Happening

if TYPE_CHECKING:
    from dibs.services.listening import Listening


@command("follow")
@click.option("--limit", default=1000, show_default=True, type=click.IntRange(1, 1_000_000))
@as_name
@dry_run
def follow_command(context: Context, limit: int, name: str | None, dry_run: bool) -> Answer:
    """Move issues where their pull requests went: on if merged, back if closed unmerged."""
    following = context.services.following
    stages = [stage.name for stage in following.stages]
    data: dict[str, object] = {"stages": stages, "dry_run": dry_run}
    if not stages:
        line = "no stage follows pull requests, or the tracker has no pull requests"
        return Answer({**data, "looked_at": 0, "followed": []}, [line], Exit.NOTHING)
    report = following.follow(context.holder(name), limit=limit, dry_run=dry_run)
    data |= {
        "looked_at": report.looked_at,
        "followed": [asdict(entry) for entry in report.followed],
    }
    would = "would be " if dry_run else ""
    lines = [
        f"{entry.issue} {would if entry.changed else ''}{entry.action}: {entry.text}"
        for entry in report.followed
    ]
    if not report.changed:
        lines.append(f"no issue moved: {report.looked_at} checked in {', '.join(stages)}")
        return Answer(data, lines, Exit.NOTHING)
    return Answer(data, lines)


_log = logging.getLogger("dibs.listen")
_LONGEST_BODY = 4 * 1024 * 1024
_LONGEST_HEADERS_S = 5.0
"""The longest time from the start of a connection to the end of the headers."""
_LONGEST_S = 15.0
"""The longest time from the start of a connection to the last byte of the reply."""
_AT_ONCE = 32
_AT_ONCE_BY_ONE = 8
"""The most connections from one address: a single sender cannot take every place."""
_PROXIES = ("127.0.0.1", "::1")
"""The addresses that may take every place: a proxy on this machine, if `--proxy` names none."""
_HEALTH = "/healthz"


@command("listen")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    default=8787,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port; 0 for any that is free.",
)
@click.option("--path", default="/webhook", show_default=True, help="The path for deliveries.")
@click.option("--insecure", is_flag=True, help="Accept deliveries without a secret.")
@click.option(
    "--proxy",
    help="The address of your proxy, which may take every connection; this machine's by default.",
)
def listen_command(
    context: Context, host: str, port: int, path: str, insecure: bool, proxy: str | None
) -> Answer:
    """Wake the workers of this folder when the tracker reports a change.

    Give the tracker's webhook the secret in GITHUB_WEBHOOK_SECRET; several secrets are separated by
    commas. Workers go on polling, so a lost delivery costs only time.
    """
    from dibs.wiring.services import listening

    if not path.startswith("/") or path == _HEALTH:
        raise click.UsageError(f"--path must begin with / and must not be {_HEALTH}")
    bare_host = host.strip("[]")
    try:
        proxies = frozenset(map(_neighbourhood, (proxy,) if proxy else _PROXIES))
    except ValueError:
        raise click.UsageError(f"--proxy must be an IP address, not {proxy!r}") from None
    if insecure and not (host and this_machine(bare_host)):
        raise click.UsageError("--insecure needs a --host that only this machine can reach")
    service = listening(context.settings, unsigned=insecure)
    receiver = _Receiver(service, as_json=context.as_json)
    try:
        server = _Server(host, port, path, receiver, proxies)
    except OSError as failure:
        cause = failure.strerror or str(failure)
        raise BadConfiguration(f"dibs cannot listen on {host} port {port}: {cause}") from failure
    with server, catching_signals(lambda _: server.shutdown()) as received:
        shown_host = f"[{bare_host}]" if ":" in host else host
        where = f"http://{shown_host}:{server.server_address[1]}{path}"
        _say({"listening": where}, f"listening on {where}", as_json=context.as_json)
        waking = threading.Thread(target=service.wake_workers, name="dibs-waking", daemon=True)
        waking.start()
        try:
            server.serve_forever(poll_interval=0.2)
        finally:
            service.end()
            waking.join(2.0)
    counts = receiver.counts
    did = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    code = Exit.INTERRUPTED if signal.SIGINT in received else Exit.DONE
    return Answer(dict(counts), [f"deliveries: {did or 'none'}"], code)


def _say(data: dict[str, Any], line: str, *, as_json: bool) -> None:
    if as_json:
        output.write_json(data)
        sys.stdout.flush()
    else:
        tell(line)


class _Receiver:
    """Passes each delivery to the service, counts the results, and prints the notable ones."""

    def __init__(self, service: "Listening", *, as_json: bool) -> None:
        self._service = service
        self.counts: Counter[str] = Counter()
        self._as_json = as_json
        self._lock = threading.Lock()

    @property
    def healthy(self) -> bool:
        return self._service.healthy

    def hear(self, body: bytes, headers: dict[str, str]) -> str:
        """Receive a delivery and return the result as a word: `woke`, `refused` and the like."""
        heard = self._service.receive(body, headers)
        did, happening = heard.did.value, heard.happening or Happening("")
        with self._lock:
            self.counts[did] += 1
            if not heard.worth_telling:
                return did
            event, action, repo = happening.event[:80], happening.action[:80], happening.repo[:200]
            issue = str(happening.issue) if happening.issue else None
            data = {
                "did": did,
                "delivery": heard.number[:80],
                "event": event,
                "action": action,
                "repo": repo,
                "issue": issue,
                "why": heard.why,
            }
            what = f"{event} {action}".strip() or "a delivery"
            about = f" ({issue or repo})" if issue or repo else ""
            line = f"{what}{about}: {did}" + (f", {heard.why}" if heard.why else "")
            printable = "".join(letter if letter.isprintable() else "?" for letter in line)
            with contextlib.suppress(BrokenPipeError):
                _say(data, printable, as_json=self._as_json)
        return did


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

    def setup(self) -> None:
        """Start a watch that hangs up in time: every byte restarts a timeout of the socket."""
        super().setup()
        self._headers_read, self._over = threading.Event(), threading.Event()

        def watch() -> None:
            # Both waits are for the end: early headers must not begin the second wait early.
            over = self._over.wait(_LONGEST_HEADERS_S) or (
                self._headers_read.is_set() and self._over.wait(_LONGEST_S - _LONGEST_HEADERS_S)
            )
            if not over:
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=watch, name="dibs-watch", daemon=True).start()

    def finish(self) -> None:
        self._over.set()
        super().finish()

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        self._headers_read.set()
        return parsed

    def do_GET(self) -> None:
        if self.path != _HEALTH:
            self._answer(HTTPStatus.NOT_FOUND, "not found")
        elif self.server.receiver.healthy:
            self._answer(HTTPStatus.OK, "ok")
        else:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "workers cannot be woken")

    def do_POST(self) -> None:
        if self.path != self.server.path:
            self._answer(HTTPStatus.NOT_FOUND, "not found")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            self._answer(HTTPStatus.LENGTH_REQUIRED, "a Content-Length is required")
        elif len(length) > 9 or int(length) > _LONGEST_BODY:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too long")
        else:
            body = self.rfile.read(int(length))
            if len(body) < int(length):
                return  # the client hung up in the middle
            headers = {name.lower(): value for name, value in self.headers.items()}
            did = self.server.receiver.hear(body, headers)
            self._answer(_STATUS.get(did, HTTPStatus.OK), "no" if did == "refused" else did)

    def _answer(self, status: HTTPStatus, line: str) -> None:
        text = f"{line}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def version_string(self) -> str:
        return "dibs"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's word
        _log.debug(format, *args)


def _neighbourhood(address: str) -> str:
    """The sender of an address: an IPv4 address, or an IPv6 network of 64 bits."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self, host: str, port: int, path: str, receiver: _Receiver, proxies: frozenset[str]
    ) -> None:
        self.receiver, self.path, self._proxies = receiver, path, proxies
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()
        host = host.strip("[]")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without the base class's look-up of our host name, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "dibs", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        sender = _neighbourhood(client_address[0])
        with self._lock:
            share = _AT_ONCE if sender in self._proxies else _AT_ONCE_BY_ONE
            full = self._open.total() >= _AT_ONCE or self._open[sender] >= share
            if not full:
                self._open[sender] += 1
        if full:
            self.shutdown_request(request)  # the tracker tries again, and workers poll
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was started that would free the place
            self._leave(sender)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(_neighbourhood(client_address[0]))

    def _leave(self, sender: str) -> None:
        with self._lock:
            self._open -= Counter((sender,))  # drops a sender without connections

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        _log.debug("a request broke off", exc_info=True)
