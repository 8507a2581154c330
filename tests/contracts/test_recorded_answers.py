"""What GitHub really said, as recorded and described by others, through our own eyes."""

import inspect
import json
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from dibs.adapters.github import shapes
from dibs.adapters.github.shapes import Translator
from dibs.adapters.github.webhooks import READ, GithubDeliveries
from dibs.core.ids import IssueRef
from dibs_lab.fakehub.hooks import signature

from . import npm, webhooks
from .recorded import all_examples, answers, scenarios
from .recorded import webhooks as examples


def described(name: str) -> Any:
    """An example in GitHub's own description."""
    return json.loads(npm.openapi().read_bytes())["components"]["examples"][name]["value"]


def _each(*bodies: Any) -> list[Any]:
    return [one for body in bodies for one in (body if isinstance(body, list) else [body])]


def issues() -> list[Any]:
    listed = [body for body in answers("GET", "/issues") if isinstance(body, list)]
    recorded = (*listed, *answers("POST", "/issues"))
    searched = [issue for found in answers("GET", "/search/issues") for issue in found["items"]]
    # A webhook may leave out the state, which REST never does.
    hooks = [payload["issue"] for event in HOOKS for payload in examples(event)]
    told = [issue for issue in hooks if "state" in issue]
    assert len(hooks) - len(told) <= 3
    return [
        *_each(*recorded, *searched),
        *_each(described("issue"), described("issue-items")),
        *told,
    ]


HOOKS = ("issues", "issue_comment")


def comments() -> list[Any]:
    told = [payload["comment"] for payload in examples("issue_comment")]
    return [*_each(described("issue-comment"), described("issue-comment-items")), *told]


def labels() -> list[Any]:
    recorded = (*answers("GET", "/labels"), *answers("POST", "/labels"))
    told = [payload["label"] for payload in examples("label")]
    return [*_each(*recorded, described("label-items")), *told]


def repositories() -> list[Any]:
    recorded = (*answers("GET", "/hello-world"), *answers("GET", "/repositories/1000"))
    return _each(*recorded, described("full-repository"))


def users() -> list[Any]:
    owners = [repository["owner"] for repository in repositories()]
    return [*owners, *(issue["user"] for issue in issues())]


def permissions() -> list[Any]:
    return [repository["permissions"] for repository in repositories()]


def permission_of_somebody() -> list[Any]:
    return [described("repository-collaborator-permission-response-if-user-has-admin-permissions")]


def collaborators() -> list[Any]:
    return _each(described("collaborator-items"))


def pulls() -> list[Any]:
    return _each(described("pull-request"), described("pull-request-simple-items"))


def events() -> list[Any]:
    return _each(described("issue-event-for-issue-items"), described("issue-event"))


RECORDED = {
    "RestEvent": events,
    "RestPull": pulls,
    "RestCollaborator": collaborators,
    "RestPermission": permission_of_somebody,
    "RestIssue": issues,
    "RestComment": comments,
    "RestLabel": labels,
    "RestRepository": repositories,
    "RestUser": users,
    "RestPermissions": permissions,
}


def rest_shapes() -> list[str]:
    return [
        name
        for name, kind in inspect.getmembers(shapes, inspect.isclass)
        if name.startswith("Rest") and issubclass(kind, msgspec.Struct)
    ]


def test_every_shape_of_rest_is_tried():
    assert sorted(rest_shapes()) == sorted(RECORDED)


@pytest.mark.parametrize("name", rest_shapes())
def test_what_was_recorded_fits_the_shape(name):
    recorded = RECORDED[name]()
    assert recorded
    for body in recorded:
        shapes.decode(json.dumps(body).encode(), getattr(shapes, name))


def test_recorded_issues_and_comments_mean_something_to_us():
    eyes = Translator("octocat/hello", labels=("Bug",))
    read = [shapes.convert(issue, shapes.RestIssue) for issue in issues()]
    for shape, body in zip(read, issues(), strict=True):
        issue = eyes.rest_issue(shape)
        assert (issue.ref.key, issue.title) == (str(body["number"]), body["title"])
        assert issue.open == (body["state"] == "open")
        assert issue.comment_count == body["comments"]
        assert issue.created_at <= issue.updated_at
    assert any(shape.pull_request for shape in read)
    assert any(label == "Bug" for shape in read for label in eyes.rest_issue(shape).labels)
    for body in comments():
        comment = eyes.comment(shapes.convert(body, shapes.RestComment))
        assert (comment.id, comment.author) == (body["id"], body["user"]["login"])


def test_recorded_pages_are_linked_by_the_repository_s_id():
    """So a client that builds the next page's address by itself is asking for another."""
    pages = scenarios()["paginate-issues"]
    assert [page.headers["link"].count("/repositories/1000/issues?") for page in pages] == [
        2,
        4,
        4,
        4,
        2,
    ]


def test_a_recorded_redirect_keeps_a_write_a_write():
    moved = {
        exchange.verb: exchange
        for exchange in scenarios()["rename-repository"]
        if exchange.status in (301, 307)
    }
    assert {verb: exchange.status for verb, exchange in moved.items()} == {"GET": 301, "PATCH": 307}
    assert all("/repositories/1000" in exchange.headers["location"] for exchange in moved.values())


# webhooks

# One example of each is older than fields that the schemas require.
OLD = {"issues": 1, "issue_comment": 1, "label": 1, "ping": 1}


@pytest.mark.parametrize("event", OLD)
def test_examples_of_webhooks_are_as_their_schemas_say(event):
    wrong = [payload for payload in examples(event) if webhooks.flaws(event, payload)]
    assert len(wrong) == OLD[event]
    assert len(examples(event)) > len(wrong)


def test_a_payload_that_is_wrong_is_found():
    payload = next(one for one in examples("issues") if not webhooks.flaws("issues", one))
    assert webhooks.flaws("issues", {**payload, "sender": None})
    assert webhooks.flaws("issues", {**payload, "issue": {}})
    assert webhooks.flaws("issues", {**payload, "action": "vanished"})


@pytest.mark.parametrize("event", sorted(READ))
def test_examples_of_webhooks_mean_something_to_us(event):
    key = b"secret"
    for payload in examples(event):
        body = json.dumps(payload).encode()
        headers = {
            "content-type": "application/json",
            "x-github-event": event,
            "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
            "x-hub-signature-256": signature(key.decode(), body),
        }
        reader = GithubDeliveries([b"another", key])
        assert reader.vouched_for(body, headers)
        assert not reader.vouched_for(body + b" ", headers)
        happening = reader.read(body, headers)
        assert (happening.event, happening.action) == (event, payload["action"])
        assert happening.repo == payload["repository"]["full_name"]
        subject = payload.get("issue") or payload.get("pull_request")
        assert happening.issue == (
            IssueRef(happening.repo, str(subject["number"])) if subject else None
        )
        if "issue" in payload:
            assert happening.on_pull == ("pull_request" in payload["issue"])
        assert happening.label == payload.get("label", {}).get("name", "")
        as_form = urlencode({"payload": body.decode()}).encode()
        form = {**headers, "content-type": "application/x-www-form-urlencoded"}
        assert reader.read(as_form, form) == happening


def test_every_other_event_is_passed_over():
    reader = GithubDeliveries([])
    others = {one["name"] for one in all_examples()} - READ
    assert "ping" in others
    for one in all_examples():
        if one["name"] in others:
            for payload in one["examples"]:
                body, kind = json.dumps(payload).encode(), "application/json"
                headers = {"content-type": kind, "x-github-event": one["name"]}
                assert reader.read(body, headers).event == one["name"]
