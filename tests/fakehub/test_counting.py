"""Counts at the server, and the rest of the admin door, over real HTTP."""

from dibs_lab.fakehub import Permission

from .clients import SHOP, opened, said

ISSUE = "/repos/{owner}/{repo}/issues"


def test_requests_are_counted_by_kind_and_told_as_json(shop, writer):
    opened(writer)
    said(writer, 1, "x")
    first = writer.get(f"{SHOP}/issues/1")
    writer.get(f"{SHOP}/issues/1", headers={"If-None-Match": first.headers["etag"]})
    writer.get("/nowhere")
    writer.post("/graphql", json={"query": "query Me { viewer { login } }"})
    writer.post("/graphql", json={"query": "{ viewer { login } }"})
    told = writer.get("/_fakehub/counts").json()
    assert told["by_kind"] == {
        f"POST {ISSUE}": 1,
        f"POST {ISSUE}/{{number}}/comments": 1,
        f"GET {ISSUE}/{{number}}": 2,
        "GET other": 1,
        "graphql query Me": 1,
        "graphql query viewer": 1,
    }
    assert told["requests"] == 7
    assert told["not_modified"] == 1
    assert told["content"] == 2
    assert told["created"] == {"issue_comment": 1, "issues": 1}
    assert told["points"] == {"core": 4, "graphql": 2}
    assert told["by_status"] == {"200": 3, "201": 2, "304": 1, "404": 1}


def test_mutations_are_counted_apart_and_by_their_fields(shop, writer):
    node = opened(writer)["node_id"]
    document = """mutation Two($id: ID!) {
      a: addComment(input: {subjectId: $id, body: "a"}) { subject { id } }
      b: closeIssue(input: {issueId: $id}) { issue { id } } }"""
    writer.post("/graphql", json={"query": document, "variables": {"id": node}})
    told = shop.hub.counts.told()
    assert told["by_kind"]["graphql mutation Two"] == 1
    assert told["mutations"] == 2
    assert told["created"]["issue_comment"] == 1


def test_each_token_has_counts_of_its_own_and_is_not_named(shop, writer, stranger):
    opened(writer)
    stranger.get(f"{SHOP}/issues/1")
    stranger.get(f"{SHOP}/issues/1")
    assert shop.hub.counts.of("alice-token")["requests"] == 1
    assert shop.hub.counts.of("mallory-token")["requests"] == 2
    assert "alice-token" not in writer.get("/_fakehub/counts").text


def test_counts_are_reset_and_the_admin_door_is_not_counted(shop, writer):
    opened(writer)
    writer.delete("/_fakehub/counts")
    writer.get("/_fakehub/counts")
    told = writer.get("/_fakehub/counts").json()
    assert told["requests"] == 0
    assert told["by_kind"] == {}


def test_a_world_is_set_up_from_outside(shop, writer):
    writer.post("/_fakehub/users", json={"login": "ci[bot]", "kind": "Bot"})
    writer.post(
        "/_fakehub/repositories",
        json={
            "full_name": "acme/new",
            "private": True,
            "permissions": {"bea": "write"},
            "labels": [{"name": "ready", "color": "0e8a16"}],
            "issues": [{"title": "First", "labels": ["ready"], "author": "bea"}],
        },
    )
    writer.post("/_fakehub/tokens", json={"token": "B", "login": "bea", "scopes": None})
    with shop.client("B") as bea:
        [issue] = bea.get("/repos/acme/new/issues").json()
        assert (issue["user"]["login"], issue["labels"][0]["color"]) == ("bea", "0e8a16")
        bea.post("/repos/acme/new/issues/1/comments", json={"body": "seen"})
    told = writer.get("/_fakehub/state", params={"repository": "acme/new"}).json()
    assert told["issues"][0]["labels"] == ["ready"]
    assert told["issues"][0]["comments"][0]["body"] == "seen"
    writer.post("/_fakehub/members", json={"organization": "acme", "login": "bea"})
    writer.post("/_fakehub/repositories", json={"full_name": "acme/new", "renamed_to": "acme/o"})
    with shop.client("B") as bea:
        assert bea.get("/repos/acme/new").status_code == 301


def test_the_clock_is_turned_on_and_never_back(shop, writer):
    before = writer.get(SHOP).headers["date"]
    told = writer.post("/_fakehub/clock", json={"seconds": 90}).json()
    assert told == {"now": "2026-05-01T12:01:30Z"}
    assert before == "Fri, 01 May 2026 12:00:00 GMT"
    assert writer.get(SHOP).headers["date"] == "Fri, 01 May 2026 12:01:30 GMT"
    assert writer.post("/_fakehub/clock", json={"seconds": -1}).status_code == 422


def test_the_door_lists_what_it_takes_and_says_what_was_wrong(writer):
    told = writer.get("/_fakehub/").json()["endpoints"]
    assert "GET /_fakehub/counts" in told
    assert writer.get("/_fakehub/nothing").status_code == 404
    wrong = writer.post(
        "/_fakehub/repositories", json={"full_name": "a/b", "permissions": {"x": "y"}}
    )
    assert wrong.status_code == 422


def test_what_was_counted_is_the_same_for_an_account_with_rights(shop):
    with shop.as_("alice", Permission.WRITE) as writer:
        opened(writer)
        assert shop.hub.counts.told() == writer.get("/_fakehub/counts").json()
