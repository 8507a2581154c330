"""GitHub's deliveries as bytes: whose they are, and what they say."""

import hashlib
import hmac
import json
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.adapters.github.webhooks import READ, GithubDeliveries, parse, payload, verified
from dibs.core.ids import IssueRef
from dibs.ports.system import Happening, Rubbish

REPOSITORY = {"full_name": "acme/shop", "id": 7, "private": False}


def signed(body, key):
    return "sha256=" + hmac.new(key, body, hashlib.sha256).hexdigest()


def told(event, **document):
    return parse(event, json.dumps({"repository": REPOSITORY, **document}).encode())


# Whose


def test_a_body_is_believed_if_one_of_the_keys_signed_it():
    body = b'{"zen": "..."}'
    old, new = b"old", b"new"
    assert verified(body, signed(body, old), (new, old))
    assert verified(body, signed(body, new), (new, old))
    assert not verified(body, signed(body, b"third"), (new, old))
    assert not verified(body + b" ", signed(body, new), (new, old))
    assert not verified(body, signed(body, new), ())


@pytest.mark.parametrize(
    "signature",
    ["", "sha256=", "sha1=abc", "sha256=zz", "sha256=" + "0" * 64, "\udcff", "sha256=" + "é" * 64],
)
def test_a_signature_that_is_none_is_refused_without_ado(signature):
    assert not verified(b"body", signature, (b"key",))


def test_the_example_of_githubs_documentation_is_verified():
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert verified(b"Hello, World!", signature, (b"It's a Secret to Everybody",))


def test_without_keys_anybody_is_believed():
    assert GithubDeliveries(()).vouched_for(b"", {})
    assert not GithubDeliveries((b"key",)).vouched_for(b"", {})


# What


def test_an_issues_label():
    said = told("issues", action="labeled", issue={"number": 12}, label={"name": "stage:ready"})
    assert said == Happening(
        event="issues",
        action="labeled",
        repo="acme/shop",
        repo_id=7,
        issue=IssueRef("acme/shop", "12"),
        label="stage:ready",
    )


def test_a_comment():
    said = told(
        "issue_comment", action="created", issue={"number": 3}, comment={"body": "hello", "id": 1}
    )
    assert (said.comment, said.on_pull) == ("hello", False)
    assert told("issue_comment", action="edited", issue={"number": 3}, comment={"body": None})


def test_a_comment_on_a_pull_request_is_told_apart():
    said = told("issue_comment", action="created", issue={"number": 3, "pull_request": {"url": ""}})
    assert said.on_pull


def test_a_pull_request():
    said = told("pull_request", action="closed", number=9, pull_request={"number": 9})
    assert (said.issue, said.on_pull) == (IssueRef("acme/shop", "9"), True)


def test_a_repository_that_was_renamed_or_transferred_tells_what_it_was():
    renamed = told(
        "repository", action="renamed", changes={"repository": {"name": {"from": "store"}}}
    )
    assert (renamed.repo, renamed.was_repo) == ("acme/shop", "acme/store")
    moved = told(
        "repository",
        action="transferred",
        changes={"owner": {"from": {"organization": {"login": "umbrella"}}}},
    )
    assert moved.was_repo == "umbrella/shop"
    assert told("repository", action="archived").was_repo == ""


def test_changes_of_other_events_are_left_alone():
    """Each event has changes of a shape of its own."""
    said = told(
        "issues", action="edited", issue={"number": 1}, changes={"repository": "no such thing"}
    )
    assert said.action == "edited"


def test_of_an_event_that_is_not_read_nothing_is_read():
    assert parse("star", b"not even JSON") == Happening("star")
    assert parse("ping", b"{}") == Happening("ping")


def test_a_form_is_read_like_json():
    document = json.dumps({"action": "opened", "repository": REPOSITORY, "issue": {"number": 1}})
    form = urlencode({"payload": document}).encode()
    assert payload(form, "application/x-www-form-urlencoded; charset=utf-8") == document.encode()
    headers = {"x-github-event": "issues", "content-type": "application/x-www-form-urlencoded"}
    assert GithubDeliveries(()).read(form, headers).issue == IssueRef("acme/shop", "1")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"[]", "application/json"),
        (b"{}", "application/json"),
        (b'{"repository": null}', "application/json"),
        (b'{"repository": {"full_name": 5}}', "application/json"),
        (b'{"repository": {"full_name": "a/b"}, "issue": {"number": "x"}}', "application/json"),
        (b"\xff\xfe", "application/json"),
        (b'{"a":' * 100_000, "application/json"),
        (b"{}", "text/plain"),
        (b"{}", ""),
        (b"payload", "application/x-www-form-urlencoded"),
        (b"a=1&" * 50, "application/x-www-form-urlencoded"),
        (b"payload=%ff", "application/x-www-form-urlencoded"),
        ("payload=ä".encode(), "application/x-www-form-urlencoded"),
    ],
)
def test_rubbish_is_told_as_such(body, kind):
    with pytest.raises(Rubbish):
        GithubDeliveries(()).read(body, {"x-github-event": "issues", "content-type": kind})


def test_a_delivery_without_an_event_is_rubbish():
    with pytest.raises(Rubbish):
        GithubDeliveries(()).read(b"{}", {"content-type": "application/json"})


@given(st.binary(max_size=200), st.sampled_from(sorted(READ)))
def test_whatever_comes_is_read_or_rubbish(body, event):
    with pytest.raises(Rubbish):
        parse(event, body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["action", "repository", "full_name", "issue", "number", "label", "changes", "from"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, st.sampled_from(sorted(READ)))
def test_whatever_json_comes_is_read_or_rubbish(document, event):
    try:
        said = parse(event, json.dumps(document).encode())
    except Rubbish:
        return
    assert said.repo
