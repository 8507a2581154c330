"""Who may see and do what: tokens, permissions, associations, archives and locks."""

import pytest

from dibs_lab.fakehub import Permission, Standing

from .clients import SHOP, opened, said


def test_an_unknown_expired_or_revoked_token_is_401_even_for_what_is_public(shop, writer):
    shop.hub.state.add_token("old", "alice", standing=Standing.EXPIRED)
    shop.hub.state.add_token("taken", "alice", standing=Standing.REVOKED)
    for token in ("nobody's", "old", "taken"):
        with shop.client(token) as client:
            reply = client.get(SHOP)
            assert reply.status_code == 401
            assert reply.json()["message"] == "Bad credentials"


def test_a_token_that_is_revoked_ends_at_once(shop, writer):
    assert writer.get("/user").status_code == 200
    shop.hub.state.set_standing("alice-token", Standing.REVOKED)
    assert writer.get("/user").status_code == 401


def test_without_a_token_what_is_public_can_be_read_and_nothing_written(shop, writer):
    opened(writer)
    with shop.client(None) as nobody:
        assert nobody.get(f"{SHOP}/issues/1").status_code == 200
        reply = nobody.post(f"{SHOP}/issues/1/comments", json={"body": "x"})
        assert (reply.status_code, reply.json()["message"]) == (401, "Requires authentication")
        assert nobody.get("/user").status_code == 401


def test_a_private_repository_is_not_there_for_strangers(shop, stranger):
    shop.hub.repository("acme/secret", private=True)
    member = shop.hub.user("eve", {"acme/secret": Permission.READ})
    assert stranger.get("/repos/acme/secret/issues").status_code == 404
    assert stranger.post("/repos/acme/secret/issues", json={"title": "x"}).status_code == 404
    with shop.client(member) as eve:
        assert eve.get("/repos/acme/secret/issues").status_code == 200


def test_a_stranger_may_comment_and_open_and_not_label_assign_or_close(writer, stranger):
    opened(writer)
    said(stranger, 1, "hello")
    made = opened(stranger, labels=["ready"], assignees=["alice"])
    assert (made["labels"], made["assignees"]) == ([], []), "dropped without a word"
    for reply in (
        stranger.post(f"{SHOP}/issues/1/labels", json={"labels": ["ready"]}),
        stranger.post(f"{SHOP}/issues/1/assignees", json={"assignees": ["mallory"]}),
        stranger.patch(f"{SHOP}/issues/1", json={"state": "closed"}),
        stranger.post(f"{SHOP}/labels", json={"name": "mine"}),
        stranger.put(f"{SHOP}/issues/1/lock"),
    ):
        assert reply.status_code == 403, reply.request.url
    own = f"{SHOP}/issues/{made['number']}"
    assert stranger.patch(own, json={"state": "closed"}).status_code == 200, "one's own"


def test_a_stranger_edits_no_comment_but_their_own(writer, stranger):
    opened(writer)
    theirs, own = said(writer, 1, "mine"), said(stranger, 1, "yours")
    path = f"{SHOP}/issues/comments"
    assert stranger.patch(f"{path}/{theirs['id']}", json={"body": "forged"}).status_code == 403
    assert stranger.delete(f"{path}/{theirs['id']}").status_code == 403
    assert stranger.patch(f"{path}/{own['id']}", json={"body": "edited"}).status_code == 200
    assert writer.patch(f"{path}/{own['id']}", json={"body": "by a writer"}).status_code == 200


def test_triage_labels_and_closes_and_makes_no_labels(shop, writer):
    opened(writer)
    writer.post(f"{SHOP}/labels", json={"name": "ready"})
    with shop.as_("tom", Permission.TRIAGE) as triager:
        added = triager.post(f"{SHOP}/issues/1/labels", json={"labels": ["ready"]})
        assert added.status_code == 200
        assert triager.post(f"{SHOP}/labels", json={"name": "x"}).status_code == 403
        assert triager.patch(f"{SHOP}/issues/1", json={"state": "closed"}).status_code == 200


def test_an_archived_repository_can_be_read_only(shop, writer):
    opened(writer)
    shop.hub.state.archive("acme/shop")
    assert writer.get(f"{SHOP}/issues/1").status_code == 200
    reply = writer.post(f"{SHOP}/issues/1/comments", json={"body": "x"})
    assert reply.status_code == 403
    assert reply.json()["message"] == "Repository was archived so is read-only."


def test_a_locked_conversation_is_for_writers(writer, stranger):
    opened(writer)
    assert writer.put(f"{SHOP}/issues/1/lock", json={"lock_reason": "spam"}).status_code == 204
    locked = writer.get(f"{SHOP}/issues/1").json()
    assert (locked["locked"], locked["active_lock_reason"]) == (True, "spam")
    assert stranger.post(f"{SHOP}/issues/1/comments", json={"body": "x"}).status_code == 403
    said(writer, 1, "still mine to say")
    assert writer.delete(f"{SHOP}/issues/1/lock").status_code == 204
    said(stranger, 1, "thanks")


@pytest.mark.parametrize(
    ("token", "status"),
    [
        ({"read_only": True, "scopes": None}, 403),
        ({"lacks": frozenset({"issues:write"}), "scopes": None}, 403),
        ({"scopes": frozenset({"read:org"})}, 404),
    ],
)
def test_a_token_that_may_less_than_its_account(shop, writer, token, status):
    opened(writer)
    shop.hub.state.add_token("weak", "alice", **token)
    with shop.client("weak") as weak:
        assert weak.get(f"{SHOP}/issues/1").status_code == 200
        reply = weak.post(f"{SHOP}/issues/1/comments", json={"body": "x"})
        assert reply.status_code == status
        if status == 404:  # a classic token; which scopes would do is in the headers
            assert reply.headers["x-oauth-scopes"] == "read:org"
            assert reply.headers["x-accepted-oauth-scopes"] == "repo"


def test_associations_are_as_github_computes_them(shop, writer, stranger):
    state = shop.hub.state
    state.join("acme", "carol")
    state.contribute("acme/shop", "dave")
    bot = shop.hub.user("helper[bot]", {"acme/shop": Permission.WRITE}, kind="Bot")
    reader = shop.hub.user("rita", {"acme/shop": Permission.READ})
    owner = shop.hub.user("acme")
    opened(writer)
    expected = {
        owner: "OWNER",
        shop.hub.user("carol"): "MEMBER",
        "alice-token": "COLLABORATOR",
        reader: "COLLABORATOR",  # invited to read only, and called so all the same
        shop.hub.user("dave"): "CONTRIBUTOR",
        bot: "NONE",  # an App may write and is not called a collaborator
        "mallory-token": "NONE",
    }
    for token, association in expected.items():
        with shop.client(token) as client:
            assert said(client, 1, "hi")["author_association"] == association, token


def test_a_private_membership_is_told_to_members_only(shop, writer):
    shop.hub.state.join("acme", "carol", public=False)
    shop.hub.state.join("acme", "max", public=True)
    opened(writer)
    with shop.as_("carol") as carol, shop.as_("max") as max_:
        made = said(carol, 1, "hi")
        path = f"{SHOP}/issues/comments/{made['id']}"
        assert max_.get(path).json()["author_association"] == "MEMBER"
        assert writer.get(path).json()["author_association"] == "NONE"


def test_who_may_write_is_listed_for_members_who_may_write(shop, writer, stranger):
    assert stranger.get(f"{SHOP}/collaborators").status_code == 403
    assert writer.get(f"{SHOP}/collaborators").status_code == 403, "no member of the organisation"
    shop.hub.state.join("acme", "alice")
    told = writer.get(f"{SHOP}/collaborators").json()
    assert {one["login"]: one["permissions"]["push"] for one in told}["alice"] is True
    assert "mallory" not in {one["login"] for one in told}


def test_permissions_are_told_to_writers(writer, stranger):
    got = writer.get(f"{SHOP}/collaborators/alice/permission").json()
    assert (got["permission"], got["role_name"]) == ("write", "write")
    assert writer.get(f"{SHOP}/collaborators/mallory").status_code == 404
    assert writer.get(f"{SHOP}/collaborators/alice").status_code == 204
    assert stranger.get(f"{SHOP}/collaborators/alice/permission").status_code == 403
    assert writer.get(SHOP).json()["permissions"]["push"] is True
    assert stranger.get(SHOP).json()["permissions"]["push"] is False


def test_accounts_and_repositories_of_ones_own(writer):
    assert writer.get("/user").json()["login"] == "alice"
    assert writer.get("/users/ALICE").json()["login"] == "alice"
    assert writer.get("/users/nobody").status_code == 404
    made = writer.post("/user/repos", json={"name": "own", "private": True})
    assert (made.status_code, made.json()["full_name"]) == (201, "alice/own")
    assert writer.post("/user/repos", json={"name": "OWN"}).status_code == 422
    assert writer.post("/repos/alice/own/labels", json={"name": "x"}).status_code == 201
    assert "verifiable_password_authentication" in writer.get("/meta").json()


def test_what_an_account_may_is_told_to_writers_alike_also_of_a_team_and_not_of_a_bot(shop, writer):
    state = shop.hub.state
    state.join("acme", "carol", public=False)
    state.grant_by_team("acme/shop", "carol", Permission.WRITE)
    state.add_user("ci[bot]", kind="Bot")
    member = shop.as_("dora", Permission.WRITE)
    state.join("acme", "dora")
    with member:
        for client in (writer, member):
            told = client.get(f"{SHOP}/collaborators/carol/permission").json()
            assert told["permission"] == "write"
            bot = client.get(f"{SHOP}/collaborators/ci%5Bbot%5D/permission")
            assert bot.status_code == 404
    with shop.client("mallory-token") as stranger:
        assert stranger.get(f"{SHOP}/collaborators/carol/permission").status_code in (401, 403)


def test_an_unchanged_page_does_not_say_where_the_next_one_is(writer):
    for number in range(3):
        opened(writer, f"issue {number}")
    page = writer.get(f"{SHOP}/issues", params={"per_page": 2})
    assert 'rel="next"' in page.headers["Link"]
    known = {"If-None-Match": page.headers["ETag"]}
    again = writer.get(f"{SHOP}/issues", params={"per_page": 2}, headers=known)
    assert (again.status_code, "Link" in again.headers) == (304, False)
