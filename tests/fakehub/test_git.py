"""Git commits and refs over the fake's REST API: by hand, by real git's names, and by our store."""

import subprocess
import threading
from datetime import timedelta

import pytest
from tests.conformance.git_harness import github_refs

from dibs.adapters.git.leases import GitLeases
from dibs.adapters.wrappers.leases import MemoryObservations
from dibs.core.ids import IssueRef
from dibs.core.lease import Busy, Granted, Released
from dibs.testing.clock import FakeClock
from dibs.testing.conformance.lease_harness import CONCEDED, bid

from .clients import SHOP

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def commit(client, message, *parents, tree=EMPTY_TREE):
    wanted = {"message": message, "tree": tree, "parents": list(parents)}
    reply = client.post(f"{SHOP}/git/commits", json=wanted)
    assert reply.status_code == 201, reply.text
    return reply.json()["sha"]


def create_ref(client, name, sha):
    return client.post(f"{SHOP}/git/refs", json={"ref": name, "sha": sha})


def test_objects_have_the_names_that_git_gives_them(writer, tmp_path):
    author = {"name": "Alice", "email": "a@example.org", "date": "2026-05-01T12:00:00Z"}
    wanted = {"message": "Hello\n", "tree": EMPTY_TREE, "parents": [], "author": author}
    made = writer.post(f"{SHOP}/git/commits", json=wanted).json()["sha"]
    blob = writer.post(f"{SHOP}/git/blobs", json={"content": "hi\n"}).json()["sha"]
    raw = (
        f"tree {EMPTY_TREE}\nauthor Alice <a@example.org> 1777636800 +0000\n"
        "committer Alice <a@example.org> 1777636800 +0000\n\nHello\n"
    )
    for kind, content, sha in (("commit", raw, made), ("blob", "hi\n", blob)):
        named = subprocess.run(
            ["git", "hash-object", "-t", kind, "--stdin"],
            input=content.encode(),
            capture_output=True,
            check=True,
            cwd=tmp_path,
            timeout=30,
        )
        assert named.stdout.decode().strip() == sha


def test_a_ref_is_created_once_by_one_of_many(shop, writer):
    sha = commit(writer, "tip")
    replies = []

    def race():
        with shop.client("alice-token") as client:
            replies.append(create_ref(client, "refs/dibs/one", sha).status_code)

    threads = [threading.Thread(target=race) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(replies) == [201] + [422] * 15


def test_a_ref_moves_forward_only_unless_forced(writer):
    first = commit(writer, "first")
    second = commit(writer, "second", first)
    rival = commit(writer, "rival", first)
    create_ref(writer, "refs/dibs/x", first)
    path = f"{SHOP}/git/refs/dibs/x"
    assert writer.patch(path, json={"sha": second}).status_code == 200
    refused = writer.patch(path, json={"sha": rival})
    assert (refused.status_code, refused.json()["message"]) == (422, "Update is not a fast forward")
    assert writer.patch(path, json={"sha": rival, "force": True}).status_code == 200
    assert writer.get(f"{SHOP}/git/ref/dibs/x").json()["object"]["sha"] == rival
    assert writer.delete(path).status_code == 204
    assert writer.get(f"{SHOP}/git/ref/dibs/x").status_code == 404
    assert writer.delete(path).status_code == 422


def test_what_is_not_there_is_named(writer):
    nothing = "0" * 40
    assert create_ref(writer, "refs/dibs/x", nothing).json()["message"] == "Object does not exist"
    assert create_ref(writer, "dibs", commit(writer, "x")).status_code == 422
    lost = writer.post(f"{SHOP}/git/commits", json={"message": "x", "tree": nothing, "parents": []})
    assert lost.json()["message"] == "Tree SHA does not exist"
    assert writer.get(f"{SHOP}/git/commits/{nothing}").status_code == 404


def test_matching_refs_are_paged_and_the_branch_has_a_first_commit(writer):
    sha = commit(writer, "tip")
    for number in range(3):
        create_ref(writer, f"refs/dibs/held/{number}", sha)
    page = writer.get(f"{SHOP}/git/matching-refs/dibs/held", params={"per_page": 2})
    assert [one["ref"] for one in page.json()] == ["refs/dibs/held/0", "refs/dibs/held/1"]
    assert 'rel="next"' in page.headers["link"]
    [first] = writer.get(f"{SHOP}/commits").json()
    tree = writer.get(f"{SHOP}/git/trees/{first['commit']['tree']['sha']}").json()
    assert [entry["path"] for entry in tree["tree"]] == ["README.md"]


def test_who_cannot_write_moves_no_ref(stranger, writer):
    sha = commit(writer, "tip")
    assert create_ref(stranger, "refs/dibs/x", sha).status_code == 403
    assert stranger.get(f"{SHOP}/git/matching-refs/heads").status_code == 200


@pytest.mark.parametrize("knows_empty_tree", [True, False])
def test_our_lease_store_over_github_works_on_it(shop, writer, knows_empty_tree):
    shop.hub.world.git.knows_empty_tree = knows_empty_tree
    clock = FakeClock()
    issue = IssueRef("acme/shop", "17")

    def store():
        refs = github_refs("acme/shop", token="alice-token", api=shop.hub.url, timeout_s=20)
        return GitLeases(refs, MemoryObservations(clock), clock)

    ours, theirs, ttl = store(), store(), timedelta(minutes=10)
    granted = ours.acquire(bid(issue, "a", ttl))
    assert isinstance(granted, Granted)
    assert isinstance(theirs.acquire(bid(issue, "b", ttl)), Busy)
    assert isinstance(ours.release(granted.lease, CONCEDED), Released)
    assert isinstance(theirs.acquire(bid(issue, "b", ttl)), Granted)
