"""Every REST answer of the fake, good and bad, is one that GitHub could give.

That they are is asserted by the fixture in `tests/conftest.py`, over everything exchanged.
"""

import httpx
import pytest

from dibs_lab.fakehub import FakeHub, Fault, Limits, Permission, Standing, Wrong
from dibs_lab.fakehub.rest import ROUTES

from .tour import SHOP, tour


def test_every_route_of_the_fake_answers_as_github_describes():
    assert sorted({route.kind for route in ROUTES} - tour()) == []


@pytest.fixture
def hub():
    with FakeHub(limits=Limits.off()) as made:
        made.user("alice", {"acme/shop": Permission.ADMIN})
        made.user("bob", {"acme/shop": Permission.READ})
        made.user("mallory")
        yield made


@pytest.fixture
def ask(hub):
    with httpx.Client(base_url=hub.url, timeout=20, follow_redirects=False) as http:

        def asked(verb, path, wanted=None, *, by="alice", **headers):
            told = {"Authorization": f"Bearer {by}-token", **headers}
            return http.request(verb, path, json=wanted, headers=told)

        yield asked


def issue(hub, title="It broke"):
    alice = hub.state.acting(hub.state.viewer("alice-token"))
    return alice, alice.create_issue(hub.state.named("acme/shop"), title)


def test_who_is_not_known_or_not_any_more(hub, ask):
    assert ask("GET", SHOP, by="nobody").status_code == 401
    hub.state.set_standing("bob-token", Standing.EXPIRED)
    assert ask("GET", SHOP, by="bob").status_code == 401


def test_who_may_not(hub, ask):
    issue(hub)
    assert ask("POST", f"{SHOP}/issues/1/labels", {"labels": ["a"]}, by="bob").status_code == 403
    assert ask("POST", f"{SHOP}/labels", {"name": "a"}, by="mallory").status_code in (403, 404)
    hub.state.archive("acme/shop")
    assert ask("POST", f"{SHOP}/issues", {"title": "Late"}).status_code == 403


def test_what_is_not_there(hub, ask):
    assert ask("GET", f"{SHOP}/issues/7").status_code == 404
    assert ask("GET", f"{SHOP}/issues/comments/7").status_code == 404
    assert ask("GET", f"{SHOP}/labels/none").status_code == 404
    hub.state.change_repository("acme/shop", private=True)
    assert ask("GET", SHOP, by="mallory").status_code == 404


def test_what_is_gone_or_elsewhere(hub, ask):
    alice, made = issue(hub)
    alice.delete_issue(made)
    assert ask("GET", f"{SHOP}/issues/1").status_code == 410
    _, second = issue(hub)
    hub.user("alice", {"acme/attic": Permission.WRITE})
    alice.transfer_issue(second, hub.state.named("acme/attic"))
    assert ask("GET", f"{SHOP}/issues/2").status_code == 301
    hub.state.rename("acme/shop", "acme/store")
    assert ask("GET", SHOP).status_code == 301
    assert ask("POST", f"{SHOP}/issues", {"title": "x"}).status_code == 307


def test_what_is_wrong_with_a_request(hub, ask):
    issue(hub)
    for verb, path, wanted in (
        ("POST", f"{SHOP}/issues", {}),
        ("POST", f"{SHOP}/issues", {"title": ""}),
        ("POST", f"{SHOP}/issues/1/comments", {"body": ""}),
        ("POST", f"{SHOP}/issues/1/comments", {"body": "x" * 70_000}),
        ("POST", f"{SHOP}/labels", {"name": "a", "color": "green"}),
        ("POST", f"{SHOP}/git/refs", {"ref": "refs/heads/x", "sha": "0" * 40}),
    ):
        assert ask(verb, path, wanted).status_code == 422, (verb, path, wanted)


def test_a_conversation_that_is_locked(hub, ask):
    alice, made = issue(hub)
    alice.lock_issue(made)
    assert ask("POST", f"{SHOP}/issues/1/comments", {"body": "x"}, by="bob").status_code == 403


def test_what_has_not_changed(hub, ask):
    issue(hub)
    first = ask("GET", f"{SHOP}/issues")
    again = ask("GET", f"{SHOP}/issues", **{"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_pages_are_linked_by_the_repository_s_id(hub, ask):
    for _ in range(3):
        issue(hub)
    reply = ask("GET", f"{SHOP}/issues?per_page=1")
    assert "/repositories/" in reply.links["next"]["url"]
    assert ask("GET", reply.links["next"]["url"]).status_code == 200


def test_an_outage(hub, ask):
    hub.faults.add(Fault(Wrong.ERROR_BEFORE, status=502, times=1))
    assert ask("GET", SHOP).status_code == 502


@pytest.mark.parametrize("status", [403, 429])
def test_who_asks_too_much(status):
    limits = Limits(rest_points_per_minute=2, secondary_status=status)
    with FakeHub(limits=limits) as hub, httpx.Client(base_url=hub.url, timeout=20) as http:
        token = hub.user("alice", {"acme/shop": Permission.WRITE})
        told = [http.get(SHOP, headers={"Authorization": f"Bearer {token}"}) for _ in range(3)]
    assert [reply.status_code for reply in told] == [200, 200, status]
    assert int(told[-1].headers["retry-after"]) > 0
