"""One sender keeps `dibs listen` from hearing anybody else, or guesses its secret.

Actor: a stranger who can reach the listener. Attack (S19): 32 connections that say nothing took all
places, and GitHub's deliveries were turned away; after 15 s they were free, and the stranger began
again. A secret of one letter was accepted. Wall: one address has at most 8 of the 32 places, the
headers must be there within 5 s, all of it within 15 s of the connection's start, and a secret has
at least 16 characters. A proxy on this machine stands for many senders: its address, 127.0.0.1, has
all places.

127.0.0.2 and 127.0.0.3 are further addresses of this machine.
"""

import contextlib
import hashlib
import hmac
import http.client
import json
import select
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest

from .conftest import PROGRAM, Victim

SECRET = "a secret of some length"
CONFIG = 'tracker = "github:acme/shop"\n'
BODY = json.dumps(
    {"action": "opened", "repository": {"full_name": "acme/shop"}, "issue": {"number": 1}}
).encode()
PROXY, GITHUB, ATTACKER = "127.0.0.1", "127.0.0.2", "127.0.0.3"


@contextlib.contextmanager
def _listening(victim: Victim, *words: str) -> Iterator[int]:
    """The port of a running listener."""
    victim.configure(CONFIG)
    process = subprocess.Popen(
        [PROGRAM, "listen", "--port", "0", "--json", *words],
        cwd=victim.folder,
        env={**victim.env, "GITHUB_WEBHOOK_SECRET": SECRET},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        where = json.loads(process.stdout.readline())["listening"]
        yield int(where.rpartition(":")[2].partition("/")[0])
    finally:
        process.kill()
        process.communicate(timeout=30)


def _deliver(port: int, origin: str = GITHUB) -> int | None:
    """The status of a genuine delivery; None if it was turned away without a word."""
    digest = hmac.new(SECRET.encode(), BODY, hashlib.sha256).hexdigest()
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": "issues",
        "X-Hub-Signature-256": f"sha256={digest}",
    }
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(origin, 0))
    try:
        link.request("POST", "/webhook", BODY, headers)
        return link.getresponse().status
    except (ConnectionError, http.client.HTTPException):
        return None
    finally:
        link.close()


class Crowd:
    """Connections of one address that keep their places: as many as the listener gives them."""

    def __init__(
        self, port: int, said: bytes, *, drip: bool = False, origin: str = ATTACKER, size: int = 32
    ) -> None:
        self._port, self._said, self._drip, self._origin = port, said, drip, origin
        self._over = threading.Event()
        self.links: list[socket.socket] = []
        for _ in range(size):
            self._join()
        threading.Thread(target=self._stay, daemon=True).start()

    def _join(self) -> None:
        with contextlib.suppress(OSError):
            link = socket.create_connection(("127.0.0.1", self._port), 10, (self._origin, 0))
            self.links.append(link)
            link.sendall(self._said)

    def _stay(self) -> None:
        """Come back for every connection that was ended; send a byte now and then."""
        while not self._over.wait(0.2):
            for link in tuple(self.links):
                with contextlib.suppress(OSError):
                    if self._drip:
                        link.sendall(b"a")
                    if select.select([link], [], [], 0)[0] and not link.recv(4096):
                        self.links.remove(link)
                        link.close()
                        self._join()

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for link in self.links:
            link.close()


WAYS = {
    "idle": (b"", False),
    "half a request": (b"POST /webhook HTTP/1.1\r\nHost: x\r\n", False),
    "a byte at a time": (b"GET /", True),
    "a body that does not come": (b"POST /webhook HTTP/1.1\r\nContent-Length: 1000\r\n\r\n", False),
}


@pytest.mark.parametrize("way", WAYS)
def test_one_address_does_not_take_every_place(victim: Victim, way: str) -> None:
    said, drip = WAYS[way]
    with _listening(victim) as port, Crowd(port, said, drip=drip):
        for _ in range(20):
            assert _deliver(port) == 202


def test_control_the_operator_trusts_the_address(victim: Victim) -> None:
    """`--proxy`: connections from a proxy stand for many senders, and may take all places."""
    with _listening(victim, "--proxy", ATTACKER) as port, Crowd(port, b"GET /", drip=True):
        assert None in {_deliver(port) for _ in range(20)}


def test_a_proxy_on_this_machine_has_all_places_and_needs_no_option(victim: Victim) -> None:
    """Twenty senders that say nothing, and GitHub, all of them behind the proxy."""
    with _listening(victim) as port, Crowd(port, b"", origin=PROXY, size=20):
        for _ in range(20):
            assert _deliver(port, PROXY) == 202


def test_control_the_share_is_8_if_the_proxy_is_another(victim: Victim) -> None:
    with _listening(victim, "--proxy", GITHUB) as port, Crowd(port, b"", origin=PROXY, size=20):
        assert None in {_deliver(port, PROXY) for _ in range(20)}


@pytest.mark.long  # it waits for the limit
def test_slow_headers_stretch_no_limit(victim: Victim) -> None:
    """Two requests without a body: the one that began first is ended first, slow as it is."""
    request = WAYS["a body that does not come"][0]
    with _listening(victim) as port, contextlib.ExitStack() as ending:
        slow = ending.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        slow.sendall(request[:20])
        assert not select.select([slow], [], [], 1)[0]
        quick = ending.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        quick.sendall(request)
        assert not select.select([slow], [], [], 2)[0]
        slow.sendall(request[20:])
        assert select.select([slow, quick], [], [], 60)[0] == [slow]


@pytest.mark.long  # it waits for both limits
def test_headers_have_less_time_than_a_whole_request(victim: Victim) -> None:
    """The later connection, which does not finish its headers, is ended before the earlier one."""
    with _listening(victim) as port, contextlib.ExitStack() as ending:
        links = []
        for said in (WAYS["a body that does not come"][0], b"GET / HTTP/1.1\r\nHost: "):
            link = ending.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            link.sendall(said)
            links.append(link)
        body, headers = links
        ended, _, _ = select.select(links, [], [], 60)
        assert ended == [headers]
        assert headers.recv(100) == b""
        assert select.select([body], [], [], 60)[0], "the whole request has its limit, too"


@pytest.mark.parametrize("secret", ["a", "fifteen letters", f"{SECRET},short"])
def test_a_secret_that_can_be_guessed_is_refused(victim: Victim, secret: str) -> None:
    victim.configure(CONFIG)
    try:
        ran = victim.dibs("listen", "--port", "0", limit_s=20, GITHUB_WEBHOOK_SECRET=secret)
    except subprocess.TimeoutExpired:
        pytest.fail("it listens")
    assert ran.returncode == 1
    assert "shorter than 16 characters" in ran.stderr
    assert (
        secret not in ran.stderr.replace("characters", "").replace("a listener", "")
        or secret == "a"
    )
    told = victim.dibs("doctor", "--offline", GITHUB_WEBHOOK_SECRET=secret)
    assert "fail  webhooks" in told.stdout + told.stderr


def test_control_a_longer_one_is_accepted(victim: Victim) -> None:
    with _listening(victim) as port:
        assert _deliver(port) == 202
