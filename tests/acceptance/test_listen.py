"""`dibs listen` as a process: real HTTP, real signatures, a real worker on a fake GitHub."""

import contextlib
import hashlib
import hmac
import http.client
import json
import signal
import socket
import uuid
from collections.abc import Iterator

import httpx
import pytest

from dibs_lab.fakehub import FakeHub, Limits, Permission

from .harness import Child, Project, until

SECRET = "between us and GitHub"
KEYS = {"GITHUB_WEBHOOK_SECRET": f" {SECRET} , the new one of two"}
CONFIG = """
tracker = "github:acme/shop"

[worker]
poll = "10m"

[[stage]]
name = "ready"
run = "echo $DIBS_ISSUE >> ledger"
"""
REPOSITORY = {"full_name": "acme/shop", "id": 1}
OPENED = {"action": "opened", "repository": REPOSITORY, "issue": {"number": 1}}


class Listener:
    """The process, and whoever talks to it."""

    def __init__(
        self, project: Project, *arguments: str, env: dict[str, str] | None = None
    ) -> None:
        self.project = project
        self.child: Child = project.start(
            "listener", "listen", "--port", "0", "--json", *arguments, env=env or KEYS
        )
        until(lambda: self.lines or not self.child.running, "the listener's first line")
        assert self.child.running, self.child.err
        where = self.lines[0]["listening"]
        self.port = int(where.rpartition(":")[2].partition("/")[0])

    @property
    def lines(self) -> list[dict[str, object]]:
        text = self.child._out.read_text("utf-8")
        return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]

    @property
    def heard(self) -> list[object]:
        return [line["did"] for line in self.lines[1:] if "did" in line]

    def send(
        self,
        body: bytes,
        *,
        key: str | None = SECRET,
        number: str | None = None,
        path: str = "/webhook",
        **headers: str,
    ) -> tuple[int, str]:
        told = {
            "Content-Type": "application/json",
            "X-GitHub-Event": "issues",
            "X-GitHub-Delivery": number or str(uuid.uuid4()),
        }
        if key is not None:
            digest = hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
            told["X-Hub-Signature-256"] = f"sha256={digest}"
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", path, body, told)

    def ask(
        self, verb: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            link.request(verb, path, body, headers or {})
            reply = link.getresponse()
            return reply.status, reply.read().decode().strip()
        finally:
            link.close()

    @property
    def woken(self) -> bool:
        return (self.project.root / ".dibs" / "wake").exists()


@pytest.fixture
def listener(project: Project) -> Listener:
    project.configure(CONFIG)
    return Listener(project)


def body(document: object = OPENED) -> bytes:
    return json.dumps(document).encode()


# Who is believed


def test_a_signed_delivery_wakes_the_workers(listener: Listener) -> None:
    assert not listener.woken
    assert listener.send(body()) == (202, "woke")
    until(lambda: listener.woken, "a hint")
    assert listener.send(body(), key="the new one of two") == (202, "woke"), (
        "one of several secrets"
    )
    (first, _) = listener.lines[1:]
    assert (first["event"], first["action"], first["issue"]) == ("issues", "opened", "acme/shop#1")


def test_what_is_not_signed_is_refused_without_a_word(listener: Listener) -> None:
    for key in (None, "another", "", SECRET + " "):
        assert listener.send(body(), key=key) == (401, "no")
    assert listener.send(body(), X_Hub_Signature_256="sha256=" + "0" * 64) == (401, "no")
    assert listener.send(b"rubbish", key=None) == (401, "no")
    assert set(listener.heard) == {"refused"}
    assert not listener.woken


def test_a_flood_of_what_is_not_signed_does_not_fill_the_log(listener: Listener) -> None:
    for _ in range(60):
        assert listener.send(body(), key=None) == (401, "no")
    assert listener.heard.count("refused") < 10
    listener.child.signal(signal.SIGTERM)
    listener.child.wait().quiet()
    assert listener.lines[-1]["data"] == {"refused": 60}


def test_a_delivery_that_comes_again_is_dropped(listener: Listener) -> None:
    assert listener.send(body(), number="one") == (202, "woke")
    assert listener.send(body(), number="one") == (200, "repeated")
    assert listener.send(body(), number="two") == (202, "woke")


def test_rubbish_is_told_as_such_if_it_is_signed(listener: Listener) -> None:
    assert listener.send(b"{") == (400, "rubbish")
    assert listener.send(b"\xff\x00") == (400, "rubbish")
    assert listener.send(body([1, 2])) == (400, "rubbish")
    assert listener.send(body(), Content_Type="text/plain") == (400, "rubbish")
    assert listener.send(body(), Content_Type="application/x-www-form-urlencoded")[0] == 400
    assert not listener.woken
    assert listener.send(body()) == (202, "woke"), "and goes on"


def test_what_cannot_matter_wakes_nobody(listener: Listener) -> None:
    assert listener.send(b"{}", X_GitHub_Event="ping") == (200, "pong")
    assert listener.send(b"{}", X_GitHub_Event="star") == (200, "ignored")
    elsewhere = {**OPENED, "repository": {"full_name": "acme/other", "id": 2}}
    assert listener.send(body(elsewhere)) == (200, "ignored")
    assert listener.send(body({**OPENED, "action": "edited"})) == (200, "ignored")
    assert not listener.woken


def test_a_closed_issue_is_a_hint_to_its_holder(listener: Listener) -> None:
    assert listener.send(body({**OPENED, "action": "closed"})) == (202, "woke")
    listener.project.appears(".dibs/wake-acme+shop#1")
    assert not listener.woken, "no idle worker"


# Whoever talks to it


def test_what_is_too_long_is_not_even_read(listener: Listener) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), timeout=30) as link:
        link.sendall(b"POST /webhook HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n")
        assert b" 413 " in link.recv(1000)
    with socket.create_connection(("127.0.0.1", listener.port), timeout=30) as link:
        link.sendall(b"POST /webhook HTTP/1.1\r\nContent-Length: " + b"9" * 500 + b"\r\n\r\n")
        assert b" 413 " in link.recv(1000)
    large = body({**OPENED, "padding": "x" * 3_000_000})
    assert listener.send(large) == (202, "woke")


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: -1\r\n",
        b"Content-Length: ten\r\n",
        b"Content-Length: \xd9\xa1\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        b"",
    ],
)
def test_a_length_that_is_none_is_refused(listener: Listener, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), timeout=30) as link:
        link.sendall(b"POST /webhook HTTP/1.1\r\n" + head + b"\r\n{}")
        assert b" 411 " in link.recv(1000)


def test_other_paths_and_verbs_are_not_there(listener: Listener) -> None:
    assert listener.send(body(), path="/")[0] == 404
    assert listener.send(body(), path="/webhook/x")[0] == 404
    assert listener.ask("GET", "/webhook")[0] == 404
    assert listener.ask("PUT", "/webhook", b"{}")[0] == 501
    assert listener.ask("GET", "/healthz") == (200, "ok")
    assert not listener.woken


def test_callers_that_say_nothing_do_not_keep_others_out(listener: Listener) -> None:
    """They call from another address: each has a share of the places."""
    there = ("127.0.0.1", listener.port)
    silent = [socket.create_connection(there, None, ("127.0.0.2", 0)) for _ in range(40)]
    try:
        for link in silent:
            with contextlib.suppress(ConnectionError):  # turned away
                link.sendall(b"POST /webhook HTTP/1.1\r\nX-Slow: ")
        assert listener.send(body()) == (202, "woke")
    finally:
        for link in silent:
            link.close()
    assert listener.ask("GET", "/healthz") == (200, "ok")


def test_a_folder_that_cannot_be_written_shows_in_its_health(project: Project) -> None:
    project.configure(CONFIG)
    (project.root / ".dibs").write_text("a file where the folder should be")
    listener = Listener(project)
    assert listener.send(body()) == (202, "woke")
    until(lambda: listener.ask("GET", "/healthz")[0] == 503, "its health to tell")


# Starting and ending


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it(listener: Listener, number: signal.Signals, code: int) -> None:
    listener.send(body())
    listener.child.signal(number)
    reply = listener.child.wait().quiet()
    assert reply.code == code
    assert listener.lines[-1] == {"ok": code == 0, "exit": code, "data": {"woke": 1}}


def test_without_a_secret_it_does_not_start(project: Project) -> None:
    project.configure(CONFIG)
    for keys in ({}, {"GITHUB_WEBHOOK_SECRET": " , "}):
        reply = project.dibs("listen", env=keys).told(1, "GITHUB_WEBHOOK_SECRET")
        assert "config validate" not in reply.err, "that looks at no variable"
        assert "accepts nothing" in project.dibs("doctor", "--offline", env=keys).out
    assert "a secret is set" in project.dibs("doctor", "--offline", env=KEYS).out
    reply = project.dibs("listen", "--insecure", "--host", "0.0.0.0", env={}).quiet()
    assert reply.code == 2
    assert "--insecure" in reply.err


def test_without_a_secret_it_listens_to_this_machine_if_it_must(project: Project) -> None:
    project.configure(CONFIG)
    listener = Listener(project, "--insecure", env={"GITHUB_WEBHOOK_SECRET": ""})
    assert listener.send(body(), key=None) == (202, "woke")


def test_with_a_secret_insecure_changes_nothing(project: Project) -> None:
    project.configure(CONFIG)
    listener = Listener(project, "--insecure", "--path", "/here")
    assert listener.send(body(), key=None, path="/here") == (401, "no")
    assert listener.send(body(), path="/here") == (202, "woke")


def test_a_tracker_that_tells_nothing_is_refused(project: Project) -> None:
    project.configure("")
    project.dibs("listen", env=KEYS).told(1, "sends nothing by itself")


def test_a_port_that_is_taken_is_told(listener: Listener) -> None:
    port = str(listener.port)
    listener.project.dibs("listen", "--port", port, env=KEYS).told(1, "dibs cannot listen on")


@pytest.mark.parametrize("path", ["webhook", "/healthz"])
def test_a_path_that_cannot_be_is_refused(project: Project, path: str) -> None:
    project.configure(CONFIG)
    assert project.dibs("listen", "--path", path, env=KEYS).quiet().code == 2


# The whole way


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub(limits=Limits.off()) as made:
        made.repository("acme/shop")
        for login in ("fleet", "ada"):
            made.user(login, {"acme/shop": Permission.ADMIN})
        yield made


def test_a_worker_with_a_poll_of_ten_minutes_hears_of_an_issue_at_once(
    project: Project, hub: FakeHub
) -> None:
    """GitHub tells the listener, the listener hints, the worker looks."""
    project.configure(CONFIG)
    github = {"GITHUB_API_URL": hub.url, "GITHUB_TOKEN": "fleet-token"}
    assert project.dibs("init", env=github).code == 0
    listener = Listener(project)
    ada = httpx.Client(base_url=hub.url, headers={"Authorization": "token ada-token"})
    hook = {
        "events": ["issues"],
        "config": {
            "url": f"http://127.0.0.1:{listener.port}/webhook",
            "content_type": "json",
            "secret": SECRET,
        },
    }
    with ada:
        assert ada.post("/repos/acme/shop/hooks", json=hook).status_code == 201
        until(lambda: "pong" in listener.heard, "GitHub's ping")
        hub.counts.reset()
        project.worker("w1", env=github)
        until(lambda: _listed(hub) >= 1, "the worker's first look for work")
        new = {"title": "Prices are wrong", "labels": ["stage:ready"]}
        assert ada.post("/repos/acme/shop/issues", json=new).status_code == 201
        until(lambda: project.lines("ledger"), "the handler's run")
    assert project.lines("ledger")[0].startswith("acme/shop#")
    assert _listed(hub) >= 2, "it looked again, and not because its poll was due"


def _listed(hub: FakeHub) -> int:
    """How often somebody asked for the issues of a stage."""
    return hub.counts.told()["by_kind"].get("GET /repos/{owner}/{repo}/issues", 0)
