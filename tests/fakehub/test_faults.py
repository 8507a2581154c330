"""What goes wrong on demand, over real HTTP."""

import threading

import httpx
import pytest

from dibs_lab.fakehub import Cut, FakeHub, Fault, Limits, Permission, Wrong

from .clients import SHOP, Shop, label_names, opened, said

COMMENTS = f"{SHOP}/issues/1/comments"
POST_COMMENT = "POST .*/comments$"


def bodies(client, **params) -> list[str]:
    return [comment["body"] for comment in client.get(COMMENTS, params=params).json()]


def test_a_write_that_lags_shows_in_its_own_reply_and_to_readers_later(shop, writer):
    opened(writer)
    shop.hub.faults.add(Fault(Wrong.LAG, seconds=(5, 5), kind=POST_COMMENT))
    assert said(writer, 1, "late")["body"] == "late"
    assert bodies(writer) == []
    assert writer.get(f"{SHOP}/issues/1").json()["comments"] == 0
    shop.clock.turn(5)
    assert bodies(writer) == ["late"]
    assert writer.get(f"{SHOP}/issues/1").json()["comments"] == 1


def test_writes_may_arrive_in_another_order_than_they_were_made(shop, writer):
    opened(writer)
    shop.hub.faults.set([Fault(Wrong.LAG, seconds=(5, 5), containing="first")])
    first = said(writer, 1, "first")
    second = said(writer, 1, "second")
    assert first["id"] < second["id"]
    assert bodies(writer) == ["second"], "the one that was made first is not there yet"
    shop.clock.turn(5)
    assert bodies(writer) == ["first", "second"]


def test_an_edit_that_lags_shows_the_text_from_before(shop, writer):
    opened(writer)
    made = said(writer, 1, "before")
    shop.hub.faults.add(Fault(Wrong.LAG, seconds=(3, 3)))
    writer.patch(f"{SHOP}/issues/comments/{made['id']}", json={"body": "after"})
    assert bodies(writer) == ["before"]
    shop.clock.turn(3)
    assert bodies(writer) == ["after"]


def test_a_lagging_write_changes_the_etag_only_when_it_arrives(shop, writer):
    opened(writer)
    shop.hub.faults.add(Fault(Wrong.LAG, seconds=(5, 5), kind=POST_COMMENT))
    before = writer.get(COMMENTS).headers["etag"]
    said(writer, 1, "late")
    assert writer.get(COMMENTS, headers={"If-None-Match": before}).status_code == 304
    shop.clock.turn(5)
    assert writer.get(COMMENTS, headers={"If-None-Match": before}).status_code == 200


def test_graphql_lags_in_queries_and_not_in_payloads_of_mutations(shop, writer):
    node = opened(writer)["node_id"]
    shop.hub.faults.add(Fault(Wrong.LAG, seconds=(5, 5), kind="mutation Say"))
    say = """mutation Say($id: ID!) { addComment(input: {subjectId: $id, body: "x"}) {
      subject { ... on Issue { comments(first: 5) { totalCount } } } } }"""
    look = """query Look($id: ID!) { node(id: $id) {
      ... on Issue { comments(first: 5) { totalCount } } } }"""

    def ask(document):
        asked = {"query": document, "variables": {"id": node}}
        return writer.post("/graphql", json=asked).json()["data"]

    assert ask(say)["addComment"]["subject"]["comments"]["totalCount"] == 1
    assert ask(look)["node"]["comments"]["totalCount"] == 0
    shop.clock.turn(5)
    assert ask(look)["node"]["comments"]["totalCount"] == 1


def test_a_stale_list_is_the_list_of_a_while_ago(shop, writer):
    opened(writer)
    said(writer, 1, "old")
    shop.clock.turn(60)
    said(writer, 1, "new")
    shop.hub.faults.add(Fault(Wrong.STALE, seconds=(30, 30), kind="GET .*/comments$", times=1))
    assert bodies(writer) == ["old"]
    assert bodies(writer) == ["old", "new"], "once was all that was asked for"


def test_a_short_list_is_betrayed_by_the_count(shop, writer):
    opened(writer)
    for text in ("one", "two", "three"):
        said(writer, 1, text)
    shop.hub.faults.add(Fault(Wrong.SHORT, count=2))
    assert bodies(writer) == ["one"]
    assert writer.get(f"{SHOP}/issues/1").json()["comments"] == 3


def test_an_error_before_the_write_leaves_nothing(shop, writer):
    opened(writer)
    shop.hub.faults.add(Fault(Wrong.ERROR_BEFORE, kind=POST_COMMENT, status=503))
    assert writer.post(COMMENTS, json={"body": "x"}).status_code == 503
    shop.hub.faults.clear()
    assert bodies(writer) == []


def test_an_error_after_the_write_leaves_what_was_written(shop, writer):
    opened(writer)
    shop.hub.faults.add(Fault(Wrong.ERROR_AFTER, kind=POST_COMMENT))
    assert writer.post(COMMENTS, json={"body": "x"}).status_code == 502
    assert bodies(writer) == ["x"]


@pytest.mark.parametrize(("wrong", "kept"), [(Wrong.DROP_BEFORE, []), (Wrong.DROP_AFTER, ["x"])])
def test_a_connection_that_drops_before_or_after_the_write(shop, writer, wrong, kept):
    opened(writer)
    shop.hub.faults.add(Fault(wrong, kind=POST_COMMENT, times=1))
    with pytest.raises(httpx.RemoteProtocolError):
        writer.post(COMMENTS, json={"body": "x"})
    assert bodies(writer) == kept
    assert shop.hub.counts.told()["by_status"]["0"] == 1, "asked, and not answered"


def test_a_slow_reply_is_slow_after_its_work_is_done(shop, writer):
    opened(writer)
    shop.hub.faults.add(Fault(Wrong.SLOW, seconds=(60, 60), kind=POST_COMMENT))
    made = threading.Event()
    shop.hub.state.listeners.append(lambda _: made.set())
    hurry = httpx.Timeout(30, read=0.3)
    with shop.client("alice-token") as hasty, pytest.raises(httpx.ReadTimeout):
        hasty.post(COMMENTS, json={"body": "x"}, timeout=hurry)
    assert made.wait(timeout=50), "the work is done long before the reply comes"
    assert bodies(writer) == ["x"]


def test_another_bot_takes_a_fresh_label_off(shop, writer):
    opened(writer)
    shop.hub.faults.add(Fault(Wrong.UNLABEL, label="^doing$"))
    reply = writer.post(f"{SHOP}/issues/1/labels", json={"labels": ["doing", "kept"]})
    assert label_names(reply.json()) == ["doing", "kept"], "it was on when the reply was made"
    assert label_names(writer.get(f"{SHOP}/issues/1").json()["labels"]) == ["kept"]
    events = writer.get(f"{SHOP}/issues/1/events").json()
    assert (events[-1]["event"], events[-1]["actor"]["type"]) == ("unlabeled", "Bot")


def outcomes(seed: int) -> list[int]:
    with FakeHub(limits=Limits.off(), seed=seed) as hub:
        token = hub.user("alice", {"acme/shop": Permission.WRITE})
        hub.faults.add(Fault(Wrong.ERROR_BEFORE, chance=0.5))
        with Shop(hub, None).client(token) as client:
            return [client.get(SHOP).status_code for _ in range(40)]


def test_the_same_seed_goes_wrong_in_the_same_places():
    once, again, other = outcomes(1), outcomes(1), outcomes(2)
    assert once == again
    assert once != other
    assert set(once) == {200, 502}


def test_faults_are_set_from_outside(shop, writer):
    opened(writer)
    put = writer.put(
        "/_fakehub/faults",
        json={"seed": 3, "faults": [{"wrong": "error_before", "status": 500, "login": "alice"}]},
    )
    assert put.status_code == 200
    assert writer.get(SHOP).status_code == 500
    with shop.as_("bob") as bob:
        assert bob.get(SHOP).status_code == 200
    assert writer.get("/_fakehub/faults").json()["faults"][0]["wrong"] == "error_before"
    writer.delete("/_fakehub/faults")
    assert writer.get(SHOP).status_code == 200
    lag = {"wrong": "lag", "seconds": 2}
    assert writer.post("/_fakehub/faults", json=lag).json()["faults"][0]["seconds"] == [2, 2]
    assert writer.post("/_fakehub/faults", json={"wrong": "whatever"}).status_code == 422


# Refusals without a reason


def listed(client):
    return client.get(f"{SHOP}/issues")


def asked(client, document, **variables):
    reply = client.post("/graphql", json={"query": document, "variables": variables})
    assert reply.status_code == 200, reply.text
    return reply.json()


SAY = """mutation Say($id: ID!) {
  a: addComment(input: {subjectId: $id, body: "one"}) { subject { id } }
  b: addComment(input: {subjectId: $id, body: "two"}) { subject { id } }
}"""


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        (Wrong.UNAUTHORIZED_ONCE, 401),
        (Wrong.FORBIDDEN_ONCE, 403),
        (Wrong.NOT_FOUND_ONCE, 404),
    ],
)
def test_a_stray_refusal_comes_once_does_nothing_and_is_no_limit(shop, writer, wrong, status):
    opened(writer)
    shop.hub.faults.add(Fault(wrong, kind=POST_COMMENT))
    refused = writer.post(COMMENTS, json={"body": "x"})
    assert refused.status_code == status
    assert "Retry-After" not in refused.headers
    assert bodies(writer) == []
    said(writer, 1, "again")
    assert bodies(writer) == ["again"]
    shop.hub.faults.add(Fault(wrong, kind="graphql"))
    assert writer.post("/graphql", json={"query": "{ viewer { login } }"}).status_code == status
    assert asked(writer, "{ viewer { login } }") == {"data": {"viewer": {"login": "alice"}}}


def test_a_node_that_a_replica_does_not_know_yet_fails_one_field_of_a_document(shop, writer):
    node = opened(writer)["node_id"]
    shop.hub.faults.add(Fault(Wrong.NODE_NOT_FOUND_ONCE))
    told = asked(writer, SAY, id=node)
    (error,) = told["errors"]
    assert (error["type"], error["path"]) == ("NOT_FOUND", ["a"])
    assert error["message"].startswith("Could not resolve to a node")
    assert bodies(writer) == ["two"]
    shop.hub.faults.add(Fault(Wrong.NODE_NOT_FOUND_ONCE))
    told = asked(writer, '{ repository(owner: "acme", name: "shop") { issue(number: 1) { id } } }')
    assert told["data"] == {"repository": {"issue": None}}


def test_rest_refuses_a_comment_on_a_node_that_it_does_not_know_yet(shop, writer):
    opened(writer)
    shop.hub.faults.add(Fault(Wrong.NODE_NOT_FOUND_ONCE))
    assert listed(writer).status_code == 200, "it strikes new content only"
    refused = writer.post(COMMENTS, json={"body": "x"})
    assert refused.status_code == 422
    assert refused.json()["message"].startswith("Could not resolve to a node")
    assert bodies(writer) == []


def test_content_that_was_submitted_too_quickly_is_not_made(shop, writer):
    node = opened(writer)["node_id"]
    shop.hub.faults.add(Fault(Wrong.TOO_QUICKLY, times=2))
    refused = writer.post(COMMENTS, json={"body": "x"})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["message"] == "was submitted too quickly"
    told = asked(writer, SAY, id=node)
    (error,) = told["errors"]
    assert (error["type"], error["message"]) == ("UNPROCESSABLE", "was submitted too quickly")
    assert bodies(writer) == ["two"]


def test_a_fault_may_wait_for_a_certain_request(shop, writer):
    shop.hub.faults.add(Fault(Wrong.UNAUTHORIZED_ONCE, after=2))
    assert [listed(writer).status_code for _ in range(4)] == [200, 200, 401, 200]


# Incidents that others reported of GitHub

LOOK = """query Look { repository(owner: "acme", name: "shop") {
  issue(number: 1) {
    number labels(first: 10) { nodes { name } } comments(first: 10) { totalCount nodes { body } }
  } } }"""


def looked(client, document=LOOK):
    return client.post("/graphql", json={"query": document}).json()


@pytest.mark.parametrize("cut", list(Cut))
def test_a_document_that_was_given_up_has_holes_and_errors(shop, writer, cut):
    opened(writer)
    said(writer, 1, "said")
    shop.hub.faults.add(Fault(Wrong.RESOURCE_LIMITS, cut=cut, nodes=15, times=1))
    assert "errors" not in looked(writer, LOOK.replace("10", "5")), "ten entries are not too many"
    answer = looked(writer)
    assert {error["type"] for error in answer["errors"]} == {"RESOURCE_LIMITS_EXCEEDED"}
    deep = ["repository", "issue", "comments", "nodes"]
    paths = [error.get("path") for error in answer["errors"]]
    issue = (answer["data"]["repository"] or {}).get("issue")
    match cut:
        case Cut.DEEP:
            assert deep in paths
            assert issue["comments"] == {"totalCount": 1, "nodes": None}
        case Cut.BUBBLED:
            assert (paths, issue) == ([deep], None)
        case Cut.PREFIX | Cut.PATHLESS:
            assert paths == [["repository"] if cut is Cut.PREFIX else None]
            assert (issue["number"], issue["labels"]) == (1, None)
    assert "errors" not in looked(writer)


def test_the_newer_refusal_of_the_budget_has_a_type_a_code_and_no_data(shop, writer):
    opened(writer)
    shop.hub.faults.add(Fault(Wrong.RATE_LIMIT, times=1))
    (error,) = looked(writer)["errors"]
    assert (error["type"], error["code"]) == ("RATE_LIMIT", "graphql_rate_limit")
    assert "errors" not in looked(writer)


def test_a_forbidden_issue_is_null_beside_the_others(shop, writer):
    opened(writer)
    opened(writer)
    shop.hub.faults.add(Fault(Wrong.FORBIDDEN_NODE, number=2))
    document = """query All { repository(owner: "acme", name: "shop") {
      issues(first: 5) { nodes { number } } issue(number: 2) { number } } }"""
    answer = looked(writer, document)
    assert answer["data"]["repository"] == {
        "issues": {"nodes": [{"number": 1}, None]},
        "issue": None,
    }
    told = [(error["type"], error["path"]) for error in answer["errors"]]
    assert ("FORBIDDEN", ["repository", "issues", "nodes", 1]) in told
    assert ("FORBIDDEN", ["repository", "issue"]) in told


def test_a_flagged_accounts_comments_are_counted_and_shown_to_itself_only(shop, writer):
    opened(writer)
    said(writer, 1, "hidden")
    shop.hub.faults.add(Fault(Wrong.HIDDEN_COMMENT, author="alice"))
    assert bodies(writer) == ["hidden"]
    with shop.as_("bea", Permission.WRITE) as reader:
        assert bodies(reader) == []
        assert reader.get(f"{SHOP}/issues/1").json()["comments"] == 1


def test_graphql_can_heed_the_case_of_labels(shop, writer):
    writer.post(f"{SHOP}/labels", json={"name": "Ready"})
    writer.post(f"{SHOP}/issues", json={"title": "one", "labels": ["ready"]})
    shop.hub.faults.add(Fault(Wrong.LABEL_CASE))
    document = """query By($name: String!) { repository(owner: "acme", name: "shop") {
      label(name: $name) { name } issues(first: 1, labels: [$name]) { totalCount } } }"""
    for name, there in (("ready", False), ("Ready", True)):
        asked = {"query": document, "variables": {"name": name}}
        found = writer.post("/graphql", json=asked).json()["data"]["repository"]
        assert (found["label"] is not None, found["issues"]["totalCount"]) == (there, int(there))
    assert len(writer.get(f"{SHOP}/issues", params={"labels": "ready"}).json()) == 1


def test_an_older_server_refuses_a_document_with_a_field_that_it_does_not_know(shop, writer):
    opened(writer)
    shop.hub.faults.add(Fault(Wrong.UNKNOWN_FIELD, containing="assignedActors"))
    assert "errors" not in looked(writer)
    (error,) = looked(
        writer,
        LOOK.replace("labels", "a: assignedActors(first: 1) { nodes { __typename } } labels"),
    )["errors"]
    assert error["extensions"]["code"] == "undefinedField"


def test_a_program_is_assigned_and_only_the_newer_list_has_it(shop, writer):
    shop.hub.state.add_user("Copilot", kind="Bot")
    opened(writer)
    writer.post(f"{SHOP}/issues/1/assignees", json={"assignees": ["Copilot"]})
    (there,) = writer.get(f"{SHOP}/issues/1").json()["assignees"]
    assert (there["login"], there["type"]) == ("Copilot", "Bot")
    document = """query Who { repository(owner: "acme", name: "shop") { issue(number: 1) {
      assignees(first: 5) { nodes { login } }
      assignedActors(first: 5) { nodes { __typename ... on Actor { login } } } } } }"""
    issue = looked(writer, document)["data"]["repository"]["issue"]
    assert issue["assignees"]["nodes"] == []
    assert issue["assignedActors"]["nodes"] == [{"__typename": "Bot", "login": "copilot-swe-agent"}]
