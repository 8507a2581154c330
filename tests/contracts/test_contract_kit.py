"""The contract kit: what it keeps, that it finds a difference, and the transcripts that were kept.

No real GitHub was reached when these were written: the transcript in this folder is the fake's own,
and the answers that GitHub's people recorded and published stand in for GitHub's.
"""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.in_process import run_in_process

from dibs.adapters.github.auth import Answered
from dibs.core.ids import LocalTime
from dibs_lab.contract import (
    Names,
    Transcript,
    differences,
    read,
    record,
    replayed,
    written,
)
from dibs_lab.contract.__main__ import main
from dibs_lab.fakehub import FakeHub, Limits, Permission

from . import recorded

KEPT = sorted((Path(__file__).parent / "transcripts").glob("*.json"))
SECRET = "ghp_aVeryRealTokenOfSomebody0123456789"
NAMES = Names("jane-doe/private-plans", "jane-doe", "https://api.github.com")


def redacted(verb, path, body, *, content=b"", headers=None):
    answered = Answered(200, headers or {}, json.dumps(body).encode(), LocalTime(0.0))
    return NAMES.redacted(verb, path, content, answered)


def transcript(*exchanges):
    return Transcript("GitHub", "", "write", list(exchanges), {})


@pytest.fixture(scope="module")
def fake():
    with FakeHub(limits=Limits.off()) as hub:
        token = hub.user("jane-doe", {"jane-doe/private-plans": Permission.WRITE}, token=SECRET)
        environment = {"GITHUB_API_URL": hub.url, "GITHUB_TOKEN": token, "DIBS_STATE": "/dev/null"}
        return record(environment, "jane-doe/private-plans", note="in a test")


# What is kept of an answer


def test_nothing_of_a_person_is_in_a_transcript(fake):
    text = written(fake)
    for name in (SECRET, "jane-doe", "private-plans", "@", "127.0.0.1", "dibs:scratch", "#1"):
        assert name not in text
    assert not re.search(r"\d{6,}", re.sub(r"\"document\": \"\w*\"", "", text)), "no id, no time"
    assert all("OWNER/REPO" in one.asked or one.asked.count("/") < 3 for one in fake.exchanges)


def test_what_an_answer_says_of_people_is_replaced_and_its_form_is_kept():
    body = {
        "login": "jane-doe",
        "id": 48151623,
        "node_id": "MDQ6VXNlcjQ4MTUxNjIz",
        "email": "jane@example.com",
        "type": "User",
        "created_at": "2011-01-26T19:01:12Z",
        "html_url": "https://github.com/jane-doe",
        "token": SECRET,
        "body": "",
        "comments": 3,
        "site_admin": False,
        "labels": [{"name": "acme secret plan"}],
        "assignee": None,
    }
    kept = redacted(
        "GET",
        "/repos/jane-doe/private-plans/issues/48151623?per_page=100",
        body,
        headers={"x-github-request-id": "48AF", "x-ratelimit-limit": "5000", "set-cookie": "me"},
    )
    assert kept.asked == "GET /repos/OWNER/REPO/issues/N"
    assert kept.headers == {"x-ratelimit-limit": "5000"}
    assert kept.body == {
        "login": "text",
        "id": 1,
        "node_id": "text",
        "email": "text",
        "type": "User",
        "created_at": "2000-01-01T00:00:00Z",
        "html_url": "https://example.invalid/",
        "token": "text",
        "body": "",
        "comments": 3,
        "site_admin": False,
        "labels": [{"name": "text"}],
        "assignee": None,
    }


def test_paths_and_documents_name_nobody():
    permission = "/repos/jane-doe/private-plans/collaborators/jane-doe/permission"
    assert (
        redacted("GET", permission, {}).asked
        == "GET /repos/OWNER/REPO/collaborators/LOGIN/permission"
    )
    assert redacted("GET", "/users/jane-doe", {}).asked == "GET /users/LOGIN"
    assert redacted("GET", "/repositories/4815/issues", {}).asked == "GET /repos/OWNER/REPO/issues"
    document = json.dumps({"query": "query Look($n: Int!) { viewer { login } }"}).encode()
    address = "https://api.github.com/graphql"
    assert redacted("POST", address, {}, content=document).asked == "query Look"


def test_a_path_names_no_app():
    names = Names("acme/shop", "My-App[bot]", "https://api.github.com")
    answered = Answered(200, {}, b"{}", LocalTime(0.0))
    for login in ("my-app%5Bbot%5D", "My-App[bot]"):
        path = f"/repos/acme/shop/collaborators/{login}/permission"
        asked = names.redacted("GET", path, b"", answered).asked
        assert asked == "GET /repos/OWNER/REPO/collaborators/LOGIN/permission"


@pytest.mark.parametrize("secret", [SECRET, "jane@example.com", "-----BEGIN RSA PRIVATE KEY-----"])
def test_what_looks_like_a_secret_all_the_same_is_not_written(fake, secret):
    with pytest.raises(ValueError, match="looks like a secret"):
        written(replace(fake, note=secret))


# What a comparison finds


def test_the_fake_does_not_differ_from_itself(fake):
    assert differences(fake, replayed(fake)) == []


def changed(fake, asked, change):
    """The transcript, as if GitHub had answered that request otherwise."""
    bodies = json.loads(written(fake))
    for exchange in bodies["exchanges"]:
        if exchange["asked"] == asked:
            change(exchange)
    return transcript_of(bodies)


def transcript_of(plain):
    import msgspec

    return msgspec.convert(plain, Transcript)


COMMENT = "POST /repos/OWNER/REPO/issues/N/comments"


@pytest.mark.parametrize(
    ("asked", "change", "words"),
    [
        (COMMENT, lambda one: one["body"].pop("node_id"), "the fake answers .node_id"),
        (COMMENT, lambda one: one["body"].update(id="text"), ".id is ['str'], and the fake's"),
        (COMMENT, lambda one: one.update(status=202), "GitHub answers [202], the fake [201]"),
        (
            "query ProbeComments",
            lambda one: one["body"]["data"]["repository"]["issue"]["comments"].pop("nodes"),
            ".nodes, and GitHub does not",
        ),
        (COMMENT, lambda one: one.update(asked="PUT /elsewhere"), "only GitHub was asked"),
    ],
)
def test_a_difference_is_found(fake, asked, change, words):
    found = differences(changed(fake, asked, change), fake)
    assert any(words in line for line in found), found


def test_what_the_fake_leaves_out_is_no_difference(fake):
    more = changed(fake, COMMENT, lambda one: one["body"].update(performed_via_github_app=None))
    assert differences(more, fake) == []


def test_a_field_that_an_older_document_did_not_ask_for_is_no_difference(fake):
    def older(exchange):
        del exchange["body"]["data"]["repository"]["issue"]["comments"]["nodes"]
        exchange["document"] = "another"

    assert differences(changed(fake, "query ProbeComments", older), fake) == []


# The transcripts


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_kept_transcript_is_clean_and_the_fake_answers_as_it_says(path):
    kept = read(path)
    assert written(kept) == path.read_text("utf-8")
    assert differences(kept, replayed(kept)) == []
    if kept.source != "GitHub":
        assert "no real GitHub" in kept.note


def test_there_is_a_transcript():
    assert KEPT


def test_the_fakes_answers_have_the_shapes_of_those_that_were_recorded_at_github(fake):
    """Other people's recordings, by the same comparison, for the requests that both have."""
    seen = {one.asked for one in fake.exchanges}
    theirs = []
    for exchanges in recorded.scenarios().values():
        for one in exchanges:
            names = (
                Names("octokit-fixture-org/" + one.target.split("/")[3], "", "")
                if (one.target.startswith("/repos/octokit-fixture-org/"))
                else NAMES
            )
            answered = Answered(one.status, {}, one.answered, LocalTime(0.0))
            kept = names.redacted(one.verb, one.target, b"", answered)
            if kept.asked in seen and kept.status < 300:
                theirs.append(kept)
    both = {one.asked for one in theirs}
    assert both == {"GET /repos/OWNER/REPO/collaborators", "POST /repos/OWNER/REPO/issues"}
    ours = [one for one in fake.exchanges if one.asked in both and one.status < 300]
    assert differences(transcript(*theirs), transcript(*ours)) == []


def test_the_kit_runs_as_a_program(tmp_path, monkeypatch):
    with FakeHub(limits=Limits.off()) as hub:
        token = hub.user("jane-doe", {"jane-doe/private-plans": Permission.ADMIN}, token=SECRET)
        environment = {
            "GITHUB_API_URL": hub.url,
            "GITHUB_TOKEN": token,
            "DIBS_STATE": str(tmp_path),
        }
        words = ("--repo", "jane-doe/private-plans", "--out", "kept.json", "--note", "in a test")
        done = run_in_process(main, words, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].endswith("; 0 differences to the fake")
        assert read(tmp_path / "kept.json").permission == "admin"
        assert [
            issue.state
            for issue in hub.state.primary().issues(hub.state.named("jane-doe/private-plans").id)
        ] == ["closed"]
        refused = run_in_process(
            main, ("--repo", "acme/none", "--out", "none.json"), cwd=tmp_path, env=environment
        )
    assert refused.returncode == 1
    assert not (tmp_path / "none.json").exists()
