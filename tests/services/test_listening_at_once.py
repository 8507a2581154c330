"""How many `dibs listen` talks to at once: a real server whose threads cannot always be had."""

import contextlib
import http.client
import threading

import pytest

from dibs.frontends.cli.listen import _AT_ONCE, _Server
from dibs.services.listening import LogThrottle
from dibs.testing.clock import FakeClock


class Ear:
    healthy = True

    def hear(self, _body, _headers):
        return "ignored"


@pytest.fixture
def server():
    with _Server("127.0.0.1", 0, "/webhook", Ear(), frozenset()) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join()


def health(server):
    link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        link.request("GET", "/healthz")
        return link.getresponse().status
    finally:
        link.close()


@pytest.mark.parametrize("watch", [False, True])
def test_a_place_is_given_back_where_no_thread_can_be_had(server, monkeypatch, watch):
    """Neither for the request, nor for the watch that would end it in time."""
    start = threading.Thread.start
    refused = []

    def scarce(snapshot):
        if (snapshot.name == "dibs-watch") is watch:
            refused.append(snapshot)
            raise RuntimeError("can't start new thread")
        start(snapshot)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", scarce)
        for _ in range(_AT_ONCE + 1):
            with contextlib.suppress(OSError, http.client.HTTPException):
                health(server)
    assert len(refused) == _AT_ONCE + 1
    assert health(server) == 200


def test_what_anybody_can_cause_is_told_once_in_a_while():
    clock = FakeClock()
    throttle = LogThrottle(clock)
    assert [throttle.admit() for _ in range(4)] == [0, None, None, None]
    clock.advance(61)
    assert [throttle.admit() for _ in range(2)] == [3, None]
