"""Long lists on the fake GitHub, over HTTP, while somebody takes away what was on them."""

from contextlib import ExitStack

import pytest

from dibs.adapters.github.client import Purpose
from dibs.adapters.github.trust import Judging
from dibs.core.issue import Draft
from dibs.ports.tracker import IssueQuery

from .hubs import REPOSITORY, Hub

COMMENTS = "GET /repos/{owner}/{repo}/issues/{number}/comments"
CARD = "<!-- claim run=aaaaaaaaaaaa ttl=600s v=1 holder=A stage=ready state=bid -->\nx"
BOTH = pytest.mark.parametrize("graphql", [True, False], ids=["graphql", "rest"])


@pytest.fixture
def hub():
    with ExitStack() as opened:
        yield Hub(opened)


def an_issue(hub, junk):
    ref = hub.client().create(Draft("one", labels=frozenset({"stage:ready"}))).ref
    strangers, issue = hub.acting("mallory"), hub.issue(int(ref.key))
    return ref, [strangers.create_comment(issue, f"junk {number}") for number in range(junk)]


def meanwhile(client, happens):
    """Calls `happens` with the number of each page of comments, once it was served."""
    asked, pages = client._transport.rest, [0]

    def rest(verb, path, **options):
        reply = asked(verb, path, **options)
        if verb == "GET" and "/comments" in path:
            pages[0] += 1
            happens(pages[0])
        return reply

    client._transport.rest = rest
    return pages


@BOTH
def test_what_is_deleted_between_two_pages_hides_no_card(hub, graphql):
    ref, junk = an_issue(hub, 200)
    card = hub.client().comment(ref, CARD)
    reader, stranger = hub.client("colleague", graphql=graphql), hub.acting("mallory")

    def deletes(page):
        if page == 2:
            stranger.delete_comment(junk[0])

    meanwhile(reader, deletes)
    snapshot = reader.read(ref)
    assert snapshot.complete
    assert card.id in {comment.id for comment in snapshot.comments}


@BOTH
def test_what_is_deleted_and_said_anew_meanwhile_hides_no_card(hub, graphql):
    ref, junk = an_issue(hub, 200)
    card = hub.client().comment(ref, CARD)
    reader, stranger = hub.client("colleague", graphql=graphql), hub.acting("mallory")

    def swaps(page):
        if page == 2:
            stranger.delete_comment(junk[0])
            stranger.create_comment(hub.issue(int(ref.key)), "in its place")

    meanwhile(reader, swaps)
    snapshot = reader.read(ref)
    assert card.id in {comment.id for comment in snapshot.comments}


@BOTH
def test_a_list_that_never_rests_is_no_whole_list(hub, graphql):
    ref, junk = an_issue(hub, 250)
    reader, stranger = hub.client("colleague", graphql=graphql), hub.acting("mallory")
    left = iter(junk)
    pages = meanwhile(reader, lambda _: stranger.delete_comment(next(left)))
    assert not reader.read(ref).complete
    assert pages[0] <= 30


def test_a_comment_between_the_pages_and_the_count_costs_a_reading_and_no_claim(hub):
    ref, _ = an_issue(hub, 150)
    reader, stranger = hub.client("colleague"), hub.acting("mallory")

    def comments(page):
        if page == 3:  # two pages, and the proof of the first
            stranger.create_comment(hub.issue(int(ref.key)), "and another")

    meanwhile(reader, comments)
    snapshot = reader.read(ref)
    assert snapshot.complete
    assert len(snapshot.comments) == 151


def test_pages_that_another_thread_read_meanwhile_prove_nothing(hub):
    ref, junk = an_issue(hub, 200)
    card = hub.client().comment(ref, CARD)
    reader, stranger = hub.client("colleague", graphql=False), hub.acting("mallory")
    reader.read(ref)
    asked = reader._transport.rest
    done = []

    def rest(verb, path, **options):
        reply = asked(verb, path, **options)
        if verb == "GET" and path.endswith("/comments") and not done:
            done.append(path)
            stranger.delete_comment(junk[0])
            reader.read(ref)  # somebody else of this process: all pages are kept as they are now
        return reply

    reader._transport.rest = rest
    snapshot = reader.read(ref)
    assert snapshot.complete
    assert card.id in {comment.id for comment in snapshot.comments}
    assert junk[0].id not in {comment.id for comment in snapshot.comments}


def test_a_reading_of_many_pages_tells_the_time_at_which_they_were_as_they_are(hub):
    ref, _ = an_issue(hub, 150)
    reader = hub.client("colleague", graphql=False)
    meanwhile(reader, lambda page: hub.clock.advance(60) if page == 3 else None)
    before = hub.clock.server_now()
    snapshot = reader.read(ref)
    assert (snapshot.now - before).total_seconds() < 60, "what was read then may be renewed since"


@BOTH
def test_a_page_that_was_full_is_outgrown(hub, graphql):
    ref, _ = an_issue(hub, 100)
    reader = hub.client("colleague", graphql=graphql)
    assert reader.read_pages(ref, Judging(reader.trust, Purpose.LOOK)).complete
    assert reader.read(ref).complete
    hub.acting("mallory").create_comment(hub.issue(int(ref.key)), "the 101st")
    for _ in range(2):
        assert len(reader.read_pages(ref, Judging(reader.trust, Purpose.LOOK)).comments) == 101
        assert reader.read(ref).complete


def test_a_list_of_issues_that_was_full_is_outgrown(hub):
    acting, repository = hub.acting(), hub.state.named(REPOSITORY)
    for number in range(100):
        acting.create_issue(repository, f"issue {number}", labels=("stage:ready",))
    reader, query = hub.client(), IssueQuery(("stage:ready",), limit=500)
    for _ in range(2):
        assert len(reader.find(query).issues) == 100
    acting.create_issue(repository, "one more", labels=("stage:ready",))
    for _ in range(2):
        assert len(reader.find(query).issues) == 101


def test_labels_beyond_a_hundred_are_not_missing(hub):
    acting, repository = hub.acting(), hub.state.named(REPOSITORY)
    for number in range(130):
        acting.create_label(repository, f"a{number:03}")
    acting.create_label(repository, "zz")
    for graphql in (True, False):
        assert hub.client(graphql=graphql).missing_labels(["zz", "a129", "no"]) == ("no",)
    hub.client(graphql=False).prepare(["zz"])
