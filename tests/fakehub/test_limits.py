"""GitHub's rate limits over real HTTP, on a clock that is turned by hand."""

import threading
from contextlib import suppress
from dataclasses import replace

import httpx
import pytest

from dibs_lab.fakehub import FakeHub, Fault, Limits, Permission, Wrong

from .clients import SHOP, Shop, opened

FEW = Limits(rest_per_hour=10, graphql_per_hour=4, content_per_minute=3, content_per_hour=5)
QUERY = {"query": "query Me { viewer { login } }"}


@pytest.fixture
def limits():
    return FEW


@pytest.fixture
def shop(clock, limits):
    with FakeHub(clock=clock, limits=limits) as hub:
        hub.repository("acme/shop")
        yield Shop(hub, clock)


def left(reply) -> tuple[int, int]:
    headers = reply.headers
    return int(headers["x-ratelimit-used"]), int(headers["x-ratelimit-remaining"])


def test_a_budget_goes_down_and_is_full_again_after_its_hour(shop, writer):
    reply = writer.get(SHOP)
    assert left(reply) == (1, 9)
    assert reply.headers["x-ratelimit-resource"] == "core"
    for _ in range(9):
        reply = writer.get(SHOP)
    assert left(reply) == (10, 0)
    over = writer.get(SHOP)
    assert over.status_code == 403
    assert over.json()["message"].startswith("API rate limit exceeded for user ID")
    assert "retry-after" not in over.headers, "it says when it resets instead"
    assert left(over) == (10, 0)
    shop.clock.turn(int(over.headers["x-ratelimit-reset"]) - shop.clock().timestamp())
    assert left(writer.get(SHOP)) == (1, 9)


def test_what_has_not_changed_costs_nothing(shop, writer):
    first = writer.get(f"{SHOP}/issues")
    unchanged = {"If-None-Match": first.headers["etag"]}
    for _ in range(30):
        again = writer.get(f"{SHOP}/issues", headers=unchanged)
        assert again.status_code == 304
        assert again.content == b""
        assert left(again) == (1, 9)
    opened(writer)
    assert writer.get(f"{SHOP}/issues", headers=unchanged).status_code == 200
    counts = shop.hub.counts.told()
    assert counts["not_modified"] == 30
    assert counts["points"]["core"] == 3


def test_asking_for_the_limits_is_free(shop, writer):
    for _ in range(20):
        told = writer.get("/rate_limit").json()
    assert told["resources"]["core"]["remaining"] == 10
    assert told["resources"]["graphql"] == {"limit": 4, "used": 0, "remaining": 4} | {
        "reset": told["resources"]["graphql"]["reset"]
    }


def test_graphql_has_a_budget_of_its_own_and_ends_in_an_error_with_200(shop, writer):
    for _ in range(4):
        reply = writer.post("/graphql", json=QUERY)
        assert "data" in reply.json()
    assert left(reply) == (4, 0)
    assert reply.headers["x-ratelimit-resource"] == "graphql"
    over = writer.post("/graphql", json=QUERY)
    assert over.status_code == 200
    assert over.json()["errors"][0]["type"] == "RATE_LIMITED"
    assert writer.get(SHOP).status_code == 200


def test_too_much_content_in_a_minute_and_in_an_hour(shop, writer):
    for _ in range(3):
        opened(writer)
    over = writer.post(f"{SHOP}/issues", json={"title": "one more"})
    assert over.status_code == 403
    assert "secondary rate limit" in over.json()["message"]
    assert int(over.headers["retry-after"]) == 60
    assert writer.get(f"{SHOP}/issues").status_code == 200, "reading goes on"
    shop.clock.turn(60)
    opened(writer)
    opened(writer)
    over = writer.post(f"{SHOP}/issues", json={"title": "one more"})
    assert int(over.headers["retry-after"]) == 3600 - 60


def test_a_comment_by_graphql_is_content_too(shop, writer):
    node = opened(writer)["node_id"]
    say = """mutation Say($id: ID!) {
      addComment(input: {subjectId: $id, body: "x"}) { subject { id } } }"""
    ask = {"query": say, "variables": {"id": node}}
    assert [writer.post("/graphql", json=ask).status_code for _ in range(3)] == [200, 200, 403]


@pytest.mark.parametrize("limits", [replace(FEW, content_per_minute=0, secondary_status=429)])
def test_the_status_of_secondary_limits_can_be_429(shop, writer):
    assert writer.post(f"{SHOP}/issues", json={"title": "x"}).status_code == 429


@pytest.mark.parametrize("limits", [Limits(rest_points_per_minute=11)])
def test_a_write_is_five_points_of_the_minute_and_a_read_one(shop, writer):
    opened(writer)
    opened(writer)
    assert writer.get(SHOP).status_code == 200
    assert writer.get(SHOP).status_code == 403
    shop.clock.turn(60)
    assert writer.get(SHOP).status_code == 200


@pytest.mark.parametrize("limits", [Limits(concurrent=1)])
def test_too_many_at_once_are_turned_away_until_one_is_done(shop, writer):
    shop.hub.faults.add(Fault(Wrong.SLOW, seconds=(60, 60), kind="POST .*/issues$"))
    made = threading.Event()
    shop.hub.state.listeners.append(lambda _: made.set())

    def slowly():
        with shop.client("alice-token") as client, suppress(httpx.TransportError):
            client.post(f"{SHOP}/issues", json={"title": "takes its time"})

    slow = threading.Thread(target=slowly)
    slow.start()
    assert made.wait(timeout=30)
    over = writer.get(SHOP)
    assert (over.status_code, over.headers["retry-after"]) == (403, "1")
    shop.hub.close()
    slow.join(timeout=30)


def test_an_accounts_tokens_share_a_budget_and_accounts_do_not(shop, writer):
    shop.hub.user("alice", token="another")
    with shop.client("another") as same, shop.as_("bob", Permission.WRITE) as other:
        writer.get(SHOP)
        assert left(same.get(SHOP)) == (2, 8)
        assert left(other.get(SHOP)) == (1, 9)


def test_without_a_token_there_are_60_an_hour(clock):
    with FakeHub(clock=clock) as hub:
        hub.repository("acme/shop")
        with Shop(hub, clock).client(None) as nobody:
            replies = [nobody.get(SHOP).status_code for _ in range(61)]
    assert replies == [200] * 60 + [403]


def test_github_s_numbers_hold_unless_told_otherwise(clock):
    with FakeHub(clock=clock) as hub, Shop(hub, clock).client(None) as client:
        told = client.get("/_fakehub/limits").json()
    assert (told["rest_per_hour"], told["graphql_per_hour"]) == (5000, 5000)
    assert (told["content_per_minute"], told["content_per_hour"]) == (80, 500)
    assert (told["rest_points_per_minute"], told["concurrent"]) == (900, 100)


def test_limits_can_be_set_while_it_runs(shop, writer):
    for _ in range(10):
        writer.get(SHOP)
    assert writer.get(SHOP).status_code == 403
    writer.put("/_fakehub/limits", json={"off": True})
    assert writer.get(SHOP).status_code == 200
    writer.put("/_fakehub/limits", json={"rest_per_hour": 1})
    assert [writer.get(SHOP).status_code for _ in range(2)] == [200, 403]
