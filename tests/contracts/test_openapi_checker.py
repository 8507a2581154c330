"""The checker itself: it takes what GitHub really answered, and finds what is wrong."""

import json
from dataclasses import replace

import pytest

from .openapi import Exchange, flaws
from .recorded import answers, scenarios

# Scenarios that are older than today's description, and how it shows.
OUTDATED = {
    "branch-protection": "answer: restrictions.teams[0]: 'type' is a required property",
    "get-archive": "no such route",  # the second is of another host
    "get-content": "answer: the whole: NotJson",  # a file's text, asked for as such
    "get-organization": "answer: the whole: 'archived_at' is a required property",
    "get-repository": "answer: the whole: 'has_discussions' is a required property",
    "git-refs": "no such route",  # listing all refs was dropped for matching-refs
    "project-cards": "no such route",  # classic projects were dropped
    "release-assets": "'digest' is a required property",
    "release-assets-conflict": "'digest' is a required property",
    "rename-repository": "answer: the whole: 'has_discussions' is a required property",
    "search-issues": "answer: the whole: 'search_type' is a required property",
}


@pytest.mark.parametrize("scenario", sorted(scenarios()))
def test_recorded_exchanges_are_as_described(scenario):
    found = [flaw for exchange in scenarios()[scenario] for flaw in flaws(exchange)]
    if scenario in OUTDATED:
        assert found, "it is as described after all"
        assert [flaw for flaw in found if OUTDATED[scenario] not in flaw] == []
    else:
        assert found == []


def test_how_many_of_the_recorded_exchanges_are_as_described():
    every = [exchange for recorded in scenarios().values() for exchange in recorded]
    fitting = [exchange for exchange in every if not flaws(exchange)]
    assert (len(fitting), len(every)) == (45, 71)


ISSUE = "/repos/octo/hello/issues"


def opened(**changes):
    recorded = answers("POST", "/issues")[0]
    body = json.dumps({"title": "It broke"}).encode()
    return Exchange("POST", ISSUE, 201, body, json.dumps({**recorded, **changes}).encode())


def test_an_open_issue_has_no_reason_though_the_enumeration_does_not_say_null():
    assert flaws(opened(state_reason=None)) == []
    assert "state_reason" in flaws(opened(state_reason="because"))[0]


def test_a_wrong_type_and_a_field_that_is_missing_are_found():
    assert "title" in flaws(opened(title=["It", "broke"]))[0]
    assert "created_at" in flaws(opened(created_at="yesterday"))[0]
    assert "html_url" in flaws(opened(html_url="no address"))[0]
    whole = json.loads(opened().answered)
    short = json.dumps({key: whole[key] for key in whole if key != "comments"}).encode()
    assert "'comments' is a required property" in flaws(replace(opened(), answered=short))[0]


def test_what_is_wrong_with_a_request_is_found():
    assert "title" in flaws(replace(opened(), asked=b"{}"))[0]
    assert "a body is required" in flaws(replace(opened(), asked=b""))[0]
    odd = json.dumps({"title": "It broke", "label": "bug"}).encode()
    assert "label is not described" in flaws(replace(opened(), asked=odd))[0]
    nameless = json.dumps({"title": "It broke", "labels": [7]}).encode()
    assert "labels[0]" in flaws(replace(opened(), asked=nameless))[0]


def listed(query, body=b"[]"):
    return flaws(Exchange("GET", f"{ISSUE}?{query}", 200, b"", body))


def test_what_is_wrong_with_a_query_is_found():
    assert listed("state=open&per_page=100&labels=a,b&since=2026-11-15T12:00:00Z") == []
    assert "per_page" in listed("per_page=many")[0]
    assert "state" in listed("state=shut")[0]
    assert "label is not described" in listed("label=a")[0]
    assert "since" in listed("since=today")[0]


def test_an_answer_that_is_no_json_is_found():
    assert "answer" in listed("state=open", b"<html>")[0]


def test_statuses_that_nobody_described_are_found():
    assert "418" in flaws(Exchange("GET", ISSUE, 418, b"", b"{}"))[0]
    refused = json.dumps({"message": "Server Error"}).encode()
    assert flaws(Exchange("GET", ISSUE, 502, b"", refused)) == []
    assert flaws(Exchange("GET", ISSUE, 304)) == []
    assert "a body with status 304" in flaws(Exchange("GET", ISSUE, 304, b"", b"[]"))[0]


def test_routes_by_the_repository_s_id_are_those_by_its_name():
    assert flaws(Exchange("GET", "/repositories/1000/issues?page=2", 200, b"", b"[]")) == []
    assert "no such route" in flaws(Exchange("GET", "/repos/o/r/isues", 200, b"", b"[]"))[0]
