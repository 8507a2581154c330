"""Comments, reactions and labels over REST."""

import threading

from .clients import SHOP, label_names, opened, said


def bodies(reply) -> list[str]:
    assert reply.status_code == 200, reply.text
    return [comment["body"] for comment in reply.json()]


def test_a_comment_is_told_with_its_times_and_an_id_past_32_bits(shop, writer):
    opened(writer)
    made = said(writer, 1, "hello")
    assert made["id"] > 2**32
    assert made["created_at"] == "2026-05-01T12:00:00Z", "whole seconds"
    shop.clock.turn(5.7)
    edited = writer.patch(f"{SHOP}/issues/comments/{made['id']}", json={"body": "hello!"}).json()
    assert (edited["body"], edited["updated_at"]) == ("hello!", "2026-05-01T12:00:05Z")
    assert writer.get(f"{SHOP}/issues/comments/{made['id']}").json() == edited


def test_the_issue_counts_its_comments_and_deleted_ones_no_more(writer):
    opened(writer)
    made = said(writer, 1, "one")
    said(writer, 1, "two")
    assert writer.get(f"{SHOP}/issues/1").json()["comments"] == 2
    assert writer.delete(f"{SHOP}/issues/comments/{made['id']}").status_code == 204
    assert writer.get(f"{SHOP}/issues/1").json()["comments"] == 1
    assert writer.get(f"{SHOP}/issues/comments/{made['id']}").status_code == 404
    assert bodies(writer.get(f"{SHOP}/issues/1/comments")) == ["two"]


def test_an_issue_with_2500_comments_takes_no_more_and_those_that_are_there_can_be_edited(
    shop, writer
):
    opened(writer)
    state = shop.hub.state
    issue = state.primary().issue(state.named("acme/shop").id, 1)
    for number in range(2_499):
        state.acting(state.viewer("alice-token")).create_comment(issue, f"comment {number}")
    last = said(writer, 1, "the last that fits")
    refused = writer.post(f"{SHOP}/issues/1/comments", json={"body": "one too many"})
    assert refused.status_code == 403
    assert "more than 2500 comments" in refused.json()["message"]
    edited = writer.patch(f"{SHOP}/issues/comments/{last['id']}", json={"body": "edited"})
    assert edited.status_code == 200
    writer.delete(f"{SHOP}/issues/comments/{last['id']}")
    said(writer, 1, "there is room again")
    state.most_comments = None
    said(writer, 1, "and more than GitHub takes")


def test_since_gives_comments_that_were_changed_after(shop, writer):
    opened(writer)
    first = said(writer, 1, "first")
    said(writer, 1, "second")
    shop.clock.turn(60)
    writer.patch(f"{SHOP}/issues/comments/{first['id']}", json={"body": "first, edited"})
    later = {"since": "2026-05-01T12:01:00Z"}
    assert bodies(writer.get(f"{SHOP}/issues/1/comments", params=later)) == ["first, edited"]


def test_the_repositorys_comments_are_in_one_list(writer):
    opened(writer)
    opened(writer)
    said(writer, 2, "on the second")
    said(writer, 1, "on the first")
    everything = writer.get(f"{SHOP}/issues/comments")
    assert bodies(everything) == ["on the second", "on the first"]
    newest = writer.get(f"{SHOP}/issues/comments", params={"sort": "created"})
    assert bodies(newest) == ["on the first", "on the second"]


def test_ids_rise_in_the_order_of_times_with_many_writers(shop, writer):
    opened(writer)

    def talk():
        with shop.client("alice-token") as client:
            for _ in range(10):
                said(client, 1, "x")

    threads = [threading.Thread(target=talk) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    listed = writer.get(f"{SHOP}/issues/1/comments", params={"per_page": 100}).json()
    ids = [comment["id"] for comment in listed]
    assert len(set(ids)) == 80
    assert ids == sorted(ids)


def test_a_comment_too_long_or_empty_is_refused_with_its_field(writer):
    opened(writer)
    for body in ("x" * 65_537, ""):
        reply = writer.post(f"{SHOP}/issues/1/comments", json={"body": body})
        assert reply.status_code == 422
        assert reply.json()["errors"][0]["field"] == "body"
    assert said(writer, 1, "x" * 65_536)["body"] == "x" * 65_536


def test_a_reaction_twice_is_one_and_is_counted_on_its_subject(writer, stranger):
    opened(writer)
    made = said(writer, 1, "nice")
    path = f"{SHOP}/issues/comments/{made['id']}/reactions"
    assert writer.post(path, json={"content": "rocket"}).status_code == 201
    assert writer.post(path, json={"content": "rocket"}).status_code == 200
    assert stranger.post(path, json={"content": "eyes"}).status_code == 201
    assert writer.post(path, json={"content": "shrug"}).status_code == 422
    rollup = writer.get(f"{SHOP}/issues/comments/{made['id']}").json()["reactions"]
    assert (rollup["total_count"], rollup["rocket"], rollup["eyes"]) == (2, 1, 1)
    rockets = writer.get(path, params={"content": "rocket"}).json()
    assert [one["user"]["login"] for one in rockets] == ["alice"]
    assert writer.delete(f"{path}/{rockets[0]['id']}").status_code == 204
    assert writer.post(f"{SHOP}/issues/1/reactions", json={"content": "+1"}).status_code == 201


def test_a_label_is_one_whatever_its_case(writer):
    made = writer.post(f"{SHOP}/labels", json={"name": "Ready", "color": "0E8A16"})
    assert made.status_code == 201
    assert made.json()["color"] == "0e8a16"
    again = writer.post(f"{SHOP}/labels", json={"name": "rEADY"})
    assert again.status_code == 422
    assert again.json()["errors"][0]["code"] == "already_exists"
    assert writer.get(f"{SHOP}/labels/READY").json()["name"] == "Ready"


def test_adding_makes_unknown_labels_and_keeps_the_spelling_of_known_ones(writer):
    writer.post(f"{SHOP}/labels", json={"name": "Ready"})
    opened(writer)
    added = writer.post(f"{SHOP}/issues/1/labels", json={"labels": ["ready", "new one"]})
    assert label_names(added.json()) == ["Ready", "new one"]
    again = writer.post(f"{SHOP}/issues/1/labels", json=["READY"])
    assert label_names(again.json()) == ["Ready", "new one"]
    assert label_names(writer.get(f"{SHOP}/labels").json()) == ["Ready", "new one"]


def test_removing_a_label_that_is_not_on_is_404(writer):
    opened(writer, labels=["a/b", "c"])
    left = writer.delete(f"{SHOP}/issues/1/labels/A%2FB")
    assert label_names(left.json()) == ["c"]
    gone = writer.delete(f"{SHOP}/issues/1/labels/a%2Fb")
    assert gone.status_code == 404
    assert gone.json()["message"] == "Label does not exist"


def test_replacing_and_clearing_labels(writer):
    opened(writer, labels=["a", "b"])
    replaced = writer.put(f"{SHOP}/issues/1/labels", json={"labels": ["b", "c"]})
    assert label_names(replaced.json()) == ["b", "c"]
    assert writer.delete(f"{SHOP}/issues/1/labels").status_code == 204
    assert writer.get(f"{SHOP}/issues/1/labels").json() == []


def test_a_renamed_label_is_renamed_on_issues_and_a_deleted_one_is_off(writer):
    opened(writer, labels=["ready"])
    writer.patch(f"{SHOP}/labels/ready", json={"new_name": "Go", "description": "may begin"})
    assert label_names(writer.get(f"{SHOP}/issues/1").json()["labels"]) == ["Go"]
    assert writer.delete(f"{SHOP}/labels/go").status_code == 204
    assert writer.get(f"{SHOP}/issues/1").json()["labels"] == []
    assert writer.get(f"{SHOP}/labels/go").status_code == 404


def test_two_who_add_labels_do_not_undo_each_other(shop, writer):
    opened(writer)

    def add(name):
        with shop.client("alice-token") as client:
            client.post(f"{SHOP}/issues/1/labels", json={"labels": [name]})

    threads = [threading.Thread(target=add, args=(f"label {n}",)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(writer.get(f"{SHOP}/issues/1/labels").json()) == 16
