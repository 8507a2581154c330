"""The watch over all tests: it sees what is exchanged, and finds what is wrong with it."""

import json

import httpx

from dibs_lab.fakehub import FakeHub, Limits, Permission
from dibs_lab.fakehub.exchange import Request
from dibs_lab.fakehub.front import Sent

from .watching import flaws

OURS, THEIRS = {"user-agent": "dibs"}, {"user-agent": "GitHub CLI"}
LABELS = "/repos/acme/shop/labels"


def asked(verb="GET", path=LABELS, query=(), headers=OURS, body=b""):
    return Request(verb, path, dict(query), headers, body, "http://127.0.0.1")


def document(text, headers=OURS):
    return asked("POST", "/graphql", (), headers, json.dumps({"query": text}).encode())


def test_an_answer_is_checked_whoever_asked():
    for headers in (OURS, THEIRS):
        wrong = Sent(200, json.dumps([{"name": "bug"}]).encode(), {})
        assert "is a required property" in flaws([(asked(headers=headers), wrong)])[0]
    assert flaws([(asked(), Sent(200, b"[]", {}))]) == []


def test_a_request_is_checked_if_it_is_ours():
    odd = {"query": {"colour": "red"}}
    assert "colour is not described" in flaws([(asked(**odd), Sent(200, b"[]", {}))])[0]
    assert flaws([(asked(**odd, headers=THEIRS), Sent(200, b"[]", {}))]) == []


def test_a_request_whose_reply_is_lost_is_checked_all_the_same():
    assert flaws([(asked(query={"per_page": "many"}), None)])
    assert flaws([(asked(), None)]) == []


def test_a_document_is_checked_if_it_is_ours():
    reply = Sent(200, b'{"errors": []}', {})
    assert "nonsense" in flaws([(document("{ viewer { nonsense } }"), reply)])[0]
    assert flaws([(document("{ viewer { login } }"), reply)]) == []
    assert flaws([(document("{ viewer { nonsense } }", THEIRS), reply)]) == []


def test_the_door_for_tests_is_no_part_of_github():
    assert flaws([(asked(path="/_fakehub/counts"), Sent(200, b"{}", {}))]) == []


def test_a_fault_is_told_once():
    wrong = Sent(200, json.dumps([{"name": "bug"}]).encode(), {})
    assert len(flaws([(asked(), wrong)] * 3)) == len(flaws([(asked(), wrong)]))


def test_every_exchange_is_seen():
    seen = []
    with FakeHub(limits=Limits.off()) as hub:
        token = hub.user("alice", {"acme/shop": Permission.WRITE})
        FakeHub.observers.append(lambda *both: seen.append(both))
        try:
            for _ in range(3):
                httpx.get(hub.url + LABELS, headers={"Authorization": f"Bearer {token}"})
        finally:
            FakeHub.observers.pop()
    assert [(request.path, sent.status) for request, sent in seen] == [(LABELS, 200)] * 3
