"""Anybody who reaches `dibs listen` is refused cheaply unless GitHub signed what they send.

The actor: anybody on the network between GitHub and the listener. The attack: deliveries without a
signature, with a wrong, an old or an odd one, repeated ones, and requests made to exhaust it. The
wall: a signature with a key, limits on what is read before it is checked. What a signed delivery
does, and the rest of what is refused, is in tests/acceptance/test_listen.py.
"""

import hashlib
import hmac
import socket

import pytest
from tests.acceptance.harness import Project
from tests.acceptance.test_listen import CONFIG, SECRET, Listener, body


@pytest.fixture
def listener(tmp_path):
    project = Project(tmp_path / "project")
    project.configure(CONFIG)
    try:
        yield Listener(project)
    finally:
        project.end()


def _raw(listener, head):
    with socket.create_connection(("127.0.0.1", listener.port), timeout=30) as link:
        link.sendall(head)
        return link.recv(1000).partition(b"\r\n")[0]


def test_what_github_signed_is_heard(listener):
    """Control: the same request with the right signature wakes the workers."""
    assert listener.send(body()) == (202, "woke")


def test_a_signature_of_the_old_kind_or_of_no_kind_is_refused(listener):
    sha1 = hmac.new(SECRET.encode(), body(), hashlib.sha1).hexdigest()
    sha256 = hmac.new(SECRET.encode(), body(), hashlib.sha256).hexdigest()
    assert listener.send(body(), key=None, X_Hub_Signature=f"sha1={sha1}") == (401, "no")
    for odd in (
        *("", "sha256=", f"sha1={sha1}", sha256, f"sha256={sha256.upper()}x", f"sha512={sha256}"),
        *(f"sha256={sha256}00", f"sha256={sha256[:-1]}", "sha256=\xe9" + "0" * 63),
    ):
        assert listener.send(body(), key=None, X_Hub_Signature_256=odd) == (401, "no"), odd
    empty = hmac.new(b"", body(), hashlib.sha256).hexdigest()
    assert listener.send(body(), key=None, X_Hub_Signature_256=f"sha256={empty}") == (401, "no")
    assert not listener.woken


def test_a_delivery_that_is_sent_again_does_nothing(listener):
    assert listener.send(body(), number="the same")[0] == 202
    assert listener.send(body(), number="the same") == (200, "repeated")


def test_json_of_any_depth_is_rubbish_and_not_a_crash(listener):
    assert listener.send(b"[" * 200_000) == (400, "rubbish")
    assert listener.send(b'{"a":' * 200_000) == (400, "rubbish")
    assert listener.send(body())[0] == 202, "it goes on"


def test_ninety_nine_megabytes_are_refused_before_they_are_sent(listener):
    head = b"POST /webhook HTTP/1.1\r\nContent-Length: 99000000\r\n\r\n"
    assert b" 413 " in _raw(listener, head)


def test_three_hundred_headers_and_an_endless_one_are_refused(listener):
    many = b"".join(b"X-%d: y\r\n" % number for number in range(300))
    assert b" 431 " in _raw(listener, b"POST /webhook HTTP/1.1\r\n" + many + b"\r\n")
    assert b" 431 " in _raw(
        listener, b"POST /webhook HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n"
    )
    assert b" 414 " in _raw(listener, b"POST /" + b"y" * 70_000 + b" HTTP/1.1\r\n\r\n")
    assert listener.send(body())[0] == 202, "it goes on"
