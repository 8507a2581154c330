"""Webhooks: real deliveries to a real receiver, signed, in order."""

import hashlib
import hmac
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs
from uuid import UUID

import pytest

from .clients import SHOP, opened, said

SECRET = "between us"


class Receiver:
    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.status = 204
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): text for name, text in self.headers.items()}
                receiver.got.append((headers, body))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook?a=b"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

    def told(self) -> list[tuple[str, str | None]]:
        return [(head["x-github-event"], json.loads(body).get("action")) for head, body in self.got]


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.close()


def hook(client, url, *events, **config):
    wanted = {
        "events": list(events),
        "config": {"url": url, "content_type": "json", "secret": SECRET, **config},
    }
    reply = client.post(f"{SHOP}/hooks", json=wanted)
    assert reply.status_code == 201, reply.text
    return reply.json()


def test_what_happens_is_told_in_order_and_signed(shop, admin, receiver):
    hook(admin, receiver.url, "issues", "issue_comment")
    opened(admin, labels=["ready"])
    said(admin, 1, "mine")
    admin.delete(f"{SHOP}/issues/1/labels/ready")
    admin.patch(f"{SHOP}/issues/1", json={"state": "closed"})
    shop.hub.world.deliveries.settle()
    assert receiver.told() == [
        ("ping", None),
        ("issues", "opened"),
        ("issues", "labeled"),
        ("issue_comment", "created"),
        ("issues", "unlabeled"),
        ("issues", "closed"),
    ]
    for headers, body in receiver.got:
        expected = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        assert headers["x-hub-signature-256"] == f"sha256={expected}"
        assert headers["user-agent"].startswith("GitHub-Hookshot/")
        assert UUID(headers["x-github-delivery"])
    labelled = json.loads(receiver.got[2][1])
    assert labelled["label"]["name"] == "ready"
    assert labelled["repository"]["full_name"] == "acme/shop"
    assert labelled["sender"]["login"] == "olga"


def test_an_edit_tells_what_was_there_before(shop, admin, receiver):
    hook(admin, receiver.url, "issue_comment")
    opened(admin)
    made = said(admin, 1, "before")
    admin.patch(f"{SHOP}/issues/comments/{made['id']}", json={"body": "after"})
    shop.hub.world.deliveries.settle()
    edited = json.loads(receiver.got[-1][1])
    assert edited["changes"] == {"body": {"from": "before"}}
    assert edited["comment"]["body"] == "after"


def test_only_what_was_subscribed_is_told_and_everything_by_a_star(shop, admin, receiver):
    made = hook(admin, receiver.url, "issue_comment")
    opened(admin)
    shop.hub.world.deliveries.settle()
    assert receiver.told() == [("ping", None)]
    changed = admin.patch(f"{SHOP}/hooks/{made['id']}", json={"events": ["*"]})
    assert changed.json()["events"] == ["*"]
    admin.post(f"{SHOP}/labels", json={"name": "new"})
    shop.hub.world.deliveries.settle()
    assert receiver.told()[1:] == [("label", "created")]


def test_a_form_is_signed_as_it_is_sent(shop, admin, receiver):
    hook(admin, receiver.url, "issues", content_type="form")
    shop.hub.world.deliveries.settle()
    headers, body = receiver.got[0]
    assert headers["content-type"] == "application/x-www-form-urlencoded"
    assert json.loads(parse_qs(body.decode())["payload"][0])["hook_id"]
    expected = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert headers["x-hub-signature-256"] == f"sha256={expected}"


def test_a_receiver_that_is_away_is_noted_and_nothing_waits_for_it(shop, admin, receiver):
    made = hook(admin, receiver.url, "issues")
    shop.hub.world.deliveries.settle()
    receiver.status = 500
    opened(admin)
    shop.hub.world.deliveries.settle()
    told = admin.get(f"{SHOP}/hooks/{made['id']}").json()["last_response"]
    assert (told["code"], told["status"]) == (500, "failed")
    admin.patch(f"{SHOP}/hooks/{made['id']}", json={"config": {"url": "http://127.0.0.1:1/"}})
    opened(admin)
    assert admin.get("/_fakehub/deliveries").json()["deliveries"][-1]["status"] == 0


def test_hooks_are_for_admins_and_the_secret_is_not_shown(shop, admin, writer, receiver):
    made = hook(admin, receiver.url, "issues")
    assert SECRET not in json.dumps(made)
    assert writer.get(f"{SHOP}/hooks").status_code == 404
    assert len(admin.get(f"{SHOP}/hooks").json()) == 1
    again = {"config": {"url": receiver.url}}
    assert admin.post(f"{SHOP}/hooks", json=again).status_code == 422
    assert admin.post(f"{SHOP}/hooks/{made['id']}/pings").status_code == 204
    assert admin.delete(f"{SHOP}/hooks/{made['id']}").status_code == 204
    assert admin.get(f"{SHOP}/hooks").json() == []


def test_a_webhook_may_come_before_readers_see_what_it_is_about(shop, admin, receiver):
    hook(admin, receiver.url, "issue_comment")
    opened(admin)
    admin.post("/_fakehub/faults", json={"wrong": "lag", "seconds": 5})
    said(admin, 1, "late")
    shop.hub.world.deliveries.settle()
    assert json.loads(receiver.got[-1][1])["comment"]["body"] == "late"
    assert admin.get(f"{SHOP}/issues/1/comments").json() == []
