"""Issues over REST: filters, pages, edits, and issues that are no longer where they were."""

import re

import pytest

from dibs_lab.fakehub import Permission

from .clients import SHOP, label_names, opened, said


def numbers(reply) -> list[int]:
    assert reply.status_code == 200, reply.text
    return [issue["number"] for issue in reply.json()]


def links(reply) -> dict[str, str]:
    found = re.findall(r'<([^>]+)>; rel="(\w+)"', reply.headers.get("link", ""))
    return {rel: url for url, rel in found}


def test_an_issue_tells_what_it_was_given(writer):
    made = opened(writer, "Broken", body="It is.", labels=["Bug"], assignees=["alice"])
    got = writer.get(f"{SHOP}/issues/{made['number']}").json()
    assert (got["title"], got["body"], got["state"]) == ("Broken", "It is.", "open")
    assert label_names(got["labels"]) == ["Bug"]
    assert [user["login"] for user in got["assignees"]] == ["alice"]
    assert got["user"]["login"] == "alice"
    assert got["id"] > 2**32, "ids do not fit into 32 bits"


def test_labels_are_a_conjunction_whatever_their_case(writer):
    opened(writer, labels=["Ready"])
    opened(writer, labels=["ready", "Urgent"])
    assert numbers(writer.get(f"{SHOP}/issues", params={"labels": "READY"})) == [2, 1]
    assert numbers(writer.get(f"{SHOP}/issues", params={"labels": "ready,URGENT"})) == [2]
    assert numbers(writer.get(f"{SHOP}/issues", params={"labels": "ready,nobody-has-it"})) == []


def test_a_list_has_open_issues_newest_first_and_pull_requests_among_them(writer):
    opened(writer)
    opened(writer)
    writer.patch(f"{SHOP}/issues/1", json={"state": "closed"})
    pull = {"title": "A fix", "head": "fix", "base": "main"}
    assert writer.post(f"{SHOP}/pulls", json=pull).status_code == 201
    assert numbers(writer.get(f"{SHOP}/issues")) == [3, 2]
    assert "pull_request" in writer.get(f"{SHOP}/issues").json()[0]
    assert numbers(writer.get(f"{SHOP}/issues", params={"state": "closed"})) == [1]
    oldest = {"state": "all", "direction": "asc"}
    assert numbers(writer.get(f"{SHOP}/issues", params=oldest)) == [1, 2, 3]


def test_since_and_sort_go_by_the_last_change(shop, writer):
    opened(writer)
    opened(writer)
    shop.clock.turn(60)
    said(writer, 1, "news")
    later = {"since": "2026-05-01T12:01:00Z"}
    assert numbers(writer.get(f"{SHOP}/issues", params=later)) == [1]
    assert numbers(writer.get(f"{SHOP}/issues", params={"sort": "updated"})) == [1, 2]
    assert numbers(writer.get(f"{SHOP}/issues", params={"sort": "comments"})) == [1, 2]


def test_assignee_filters(writer):
    opened(writer, assignees=["alice"])
    opened(writer)
    assert numbers(writer.get(f"{SHOP}/issues", params={"assignee": "ALICE"})) == [1]
    assert numbers(writer.get(f"{SHOP}/issues", params={"assignee": "none"})) == [2]
    assert numbers(writer.get(f"{SHOP}/issues", params={"assignee": "*"})) == [1]


def test_pages_link_by_the_repositorys_id_and_end(shop, writer):
    for _ in range(5):
        opened(writer)
    first = writer.get(f"{SHOP}/issues", params={"per_page": 2, "state": "open"})
    number = shop.hub.state.named("acme/shop").id
    assert f"/repositories/{number}/issues?" in links(first)["next"]
    assert set(links(first)) == {"next", "last"}
    second = writer.get(links(first)["next"])
    assert numbers(second) == [3, 2]
    assert set(links(second)) == {"prev", "next", "last", "first"}
    last = writer.get(links(second)["next"])
    assert numbers(last) == [1]
    assert set(links(last)) == {"prev", "first"}


def test_a_page_has_30_by_default_and_100_at_most(writer):
    for _ in range(101):
        opened(writer)
    assert len(numbers(writer.get(f"{SHOP}/issues"))) == 30
    assert len(numbers(writer.get(f"{SHOP}/issues", params={"per_page": 1000}))) == 100


def test_closing_says_why_and_by_whom_and_reopening_takes_it_back(writer):
    opened(writer)
    closed = writer.patch(
        f"{SHOP}/issues/1", json={"state": "closed", "state_reason": "not_planned"}
    ).json()
    assert (closed["state"], closed["state_reason"]) == ("closed", "not_planned")
    assert closed["closed_by"]["login"] == "alice"
    opened_again = writer.patch(f"{SHOP}/issues/1", json={"state": "open"}).json()
    assert (opened_again["state"], opened_again["state_reason"]) == ("open", "reopened")
    assert opened_again["closed_at"] is None


@pytest.mark.parametrize(
    ("given", "field", "code"),
    [
        ({}, "title", "missing_field"),
        ({"title": "  "}, "title", "missing_field"),
        ({"title": "long", "body": "x" * 65_537}, "body", "custom"),
    ],
)
def test_what_is_wrong_with_an_issue_is_named(writer, given, field, code):
    reply = writer.post(f"{SHOP}/issues", json=given)
    assert reply.status_code == 422
    assert reply.json()["message"] == "Validation Failed"
    [error] = reply.json()["errors"]
    assert (error["field"], error["code"]) == (field, code)


def test_a_body_that_is_no_json_is_400(writer):
    assert writer.post(f"{SHOP}/issues", content=b"{").status_code == 400


def test_a_deleted_issue_is_gone(shop, writer, admin):
    opened(writer)
    admin.post("/_fakehub/issues", json={"repository": "acme/shop", "number": 1, "act": "delete"})
    assert writer.get(f"{SHOP}/issues/1").status_code == 410
    assert numbers(writer.get(f"{SHOP}/issues")) == []
    reply = writer.post(f"{SHOP}/issues/1/comments", json={"body": "still?"})
    assert reply.status_code == 410


def test_a_transferred_issue_redirects_to_where_it_went(shop, writer):
    shop.hub.repository("acme/attic")
    shop.hub.state.grant("acme/attic", "alice", Permission.WRITE)
    opened(writer, "Moves")
    said(writer, 1, "goes along")
    act = {"repository": "acme/shop", "number": 1, "act": "transfer", "to": "acme/attic"}
    assert writer.post("/_fakehub/issues", json=act).json() == {"number": 1}
    reply = writer.get(f"{SHOP}/issues/1")
    assert reply.status_code == 301
    attic = shop.hub.state.named("acme/attic")
    assert reply.headers["location"].endswith(f"/repositories/{attic.id}/issues/1")
    there = writer.get(reply.headers["location"]).json()
    assert (there["title"], there["comments"]) == ("Moves", 1)


def test_a_converted_issue_is_no_issue(shop, writer):
    opened(writer)
    act = {"repository": "acme/shop", "number": 1, "act": "convert"}
    assert writer.post("/_fakehub/issues", json=act).status_code == 200
    assert writer.get(f"{SHOP}/issues/1").status_code == 410
    assert opened(writer)["number"] == 2, "its number stays taken"


def test_a_renamed_repository_redirects_to_its_id(shop, writer):
    opened(writer)
    shop.hub.state.rename("acme/shop", "acme/store")
    reply = writer.get(f"{SHOP}/issues/1")
    assert reply.status_code == 301
    assert writer.get(reply.headers["location"]).json()["url"].endswith("/acme/store/issues/1")
    post = writer.post(f"{SHOP}/issues/1/comments", json={"body": "hello"})
    assert post.status_code == 307, "nothing is written under a name that was given up"
    assert writer.get("/repos/acme/store/issues/1").json()["comments"] == 0


def test_a_repository_that_takes_the_old_name_ends_the_redirect(shop, writer):
    shop.hub.state.rename("acme/shop", "acme/store")
    shop.hub.state.add_repository("acme/shop")
    assert writer.get(SHOP).json()["full_name"] == "acme/shop"


def test_assigning_leaves_out_who_cannot_be_and_unassigning_takes_off(shop, writer):
    shop.hub.user("mallory")
    opened(writer)
    wanted = {"assignees": ["alice", "mallory", "nobody"]}
    got = writer.post(f"{SHOP}/issues/1/assignees", json=wanted)
    assert got.status_code == 201
    assert [user["login"] for user in got.json()["assignees"]] == ["alice"]
    less = writer.request("DELETE", f"{SHOP}/issues/1/assignees", json={"assignees": ["ALICE"]})
    assert less.json()["assignees"] == []


def test_history_has_what_happened_in_order_and_comments_only_in_the_timeline(writer):
    opened(writer, labels=["ready"])
    said(writer, 1, "mine")
    writer.delete(f"{SHOP}/issues/1/labels/ready")
    opened(writer, "Second", body="See #1")
    writer.patch(f"{SHOP}/issues/1", json={"state": "closed"})
    events = writer.get(f"{SHOP}/issues/1/events").json()
    assert [event["event"] for event in events] == ["labeled", "unlabeled", "closed"]
    assert events[0]["label"] == {"name": "ready", "color": "ededed"}
    timeline = writer.get(f"{SHOP}/issues/1/timeline").json()
    assert [entry["event"] for entry in timeline] == [
        "labeled",
        "commented",
        "unlabeled",
        "cross-referenced",
        "closed",
    ]
    every = writer.get(f"{SHOP}/issues/events").json()
    assert every[0]["event"] == "closed"
    assert every[0]["issue"]["number"] == 1
    one = writer.get(f"{SHOP}/issues/events/{every[0]['id']}").json()
    assert one["event"] == "closed"


def test_a_pull_request_closes_what_it_says_when_it_is_merged(writer):
    opened(writer)
    pull = {"title": "A fix", "head": "fix", "base": "main", "body": "Fixes #1"}
    made = writer.post(f"{SHOP}/pulls", json=pull).json()
    assert (made["number"], made["merged"], made["mergeable"]) == (2, False, True)
    merged = writer.put(f"{SHOP}/pulls/2/merge")
    assert merged.json()["merged"] is True
    assert writer.get(f"{SHOP}/issues/1").json()["state"] == "closed"
    assert writer.put(f"{SHOP}/pulls/2/merge").status_code == 405
    assert writer.get(f"{SHOP}/pulls/1").status_code == 404, "an issue is no pull request"
    assert [one["number"] for one in writer.get(f"{SHOP}/pulls?state=all").json()] == [2]
