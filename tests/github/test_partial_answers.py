"""GraphQL's answers with holes in them: the fake's own, of which a part is taken on the way."""

from contextlib import ExitStack

import pytest
from msgspec.structs import replace

from dibs.adapters.github.limits import Budget, Purpose, Resource
from dibs.adapters.github.replies import GraphqlError
from dibs.core.card import CardState
from dibs.core.errors import IssueMoved, NoSuchIssue, NotPermitted, RateLimited, Unavailable
from dibs.core.ids import IssueRef, LocalTime
from dibs.core.issue import Draft
from dibs.core.labels import AddLabels, EditComment, PostComment
from dibs.ports.tracker import IssueQuery
from dibs.services.reading import walk_snapshots

from .hubs import REPOSITORY, Hub
from .test_believing import card

PULLS = "closedByPullRequestsReferences"


@pytest.fixture
def hub():
    with ExitStack() as opened:
        yield Hub(opened)


@pytest.fixture
def ref(hub):
    tracker = hub.client()
    tracker.prepare(["stage:ready", "claimed"])
    return tracker.create(Draft("one", labels=frozenset({"stage:ready"}))).ref


def answering(client, change):
    """Lets `change` have each reply of GraphQL before the client has it."""
    asked = client._transport.graphql

    def graphql(document, variables, *, purpose):
        return change(asked(document, variables, purpose=purpose))

    client._transport.graphql = graphql
    return client


def without(field, kind):
    """Takes the field out of every issue, and says that it was not told."""

    def walk(told, path, errors):
        if isinstance(told, list):
            for place, one in enumerate(told):
                walk(one, (*path, place), errors)
        elif isinstance(told, dict):
            for name, inner in told.items():
                if name == field and "comments" in told:
                    told[name] = None
                    errors.append(GraphqlError(kind, (*path, name), "not accessible"))
                else:
                    walk(inner, (*path, name), errors)

    def change(reply):
        errors = list(reply.errors)
        walk(reply.data, (), errors)
        return replace(reply, errors=tuple(errors))

    return change


READINGS = pytest.mark.parametrize(
    "read",
    [
        lambda tracker, ref: tracker.read(ref),
        lambda tracker, ref: tracker.read_many([ref]),
        lambda tracker, ref: tracker.find_snapshots([IssueQuery(("stage:ready",))]),
    ],
    ids=["read", "read_many", "find_snapshots"],
)


@READINGS
def test_a_reading_with_a_hole_is_none(hub, ref, read):
    broken = answering(hub.client(), without("assignees", ""))
    with pytest.raises(Unavailable, match="assignees"):
        read(broken, ref)


@READINGS
def test_pull_requests_that_the_token_may_not_see_are_a_refusal_that_says_what_it_needs(
    hub, ref, read
):
    blind = answering(hub.client(), without(PULLS, "FORBIDDEN"))
    with pytest.raises(NotPermitted, match="Pull requests: read"):
        read(blind, ref)


def test_what_was_changed_is_not_refused_because_it_cannot_be_read(hub, ref):
    blind = hub.client()
    blind.read(ref)
    answering(blind, without(PULLS, "FORBIDDEN"))
    with pytest.raises(Unavailable, match=r"changed, but .* Pull requests: read"):
        blind.apply(ref, (AddLabels(("claimed",)), PostComment("said")))
    snapshot = hub.client().read(ref)
    assert "claimed" in snapshot.issue.labels
    assert [comment.body for comment in snapshot.comments] == ["said"], "and not twice"


def test_a_change_whose_reply_has_a_hole_is_read_again(hub, ref):
    tracker, holes = hub.client(), [without("labels", "")]
    tracker.read(ref)
    answering(tracker, lambda reply: holes.pop()(reply) if holes else reply)
    snapshot = tracker.apply(ref, (AddLabels(("claimed",)),))
    assert snapshot.issue.labels == {"stage:ready", "claimed"}


def test_an_issue_of_another_number_or_repository_is_not_taken_for_this_one(hub, ref):
    def other(field, value):
        def change(reply):
            told = reply.data["repository"]
            for name in ("issue", "i0"):
                if told.get(name):
                    told[name][field] = value
            return reply

        return change

    for field, value in (("number", 77), ("repository", {"nameWithOwner": "acme/other"})):
        lied_to = answering(hub.client(), other(field, value))
        with pytest.raises(IssueMoved):
            lied_to.read(ref)
        assert lied_to.read_many([ref]) == {}


@pytest.mark.parametrize("graphql", [True, False])
@pytest.mark.parametrize("number", [2**31, 9_999_999_999, 10**17])
def test_a_number_that_no_issue_can_have_is_no_such_issue(hub, number, graphql):
    with pytest.raises(NoSuchIssue):
        hub.client(graphql=graphql).read(IssueRef(REPOSITORY, str(number)))


# What a reading is for


def purposes_of(client, do):
    seen, sender = [], client._transport._sender
    send = sender.send
    sender.send = lambda request: (seen.append(request.purpose), send(request))[1]
    try:
        do()
    finally:
        sender.send = send
    return set(seen)


def test_only_what_we_bid_for_or_hold_is_read_as_a_heartbeat(hub, ref):
    tracker = hub.client()
    strangers, issue = hub.acting("mallory"), hub.issue(int(ref.key))
    for number in range(120):
        strangers.create_comment(issue, f"junk {number}")

    def swept():
        return purposes_of(
            tracker, lambda: list(walk_snapshots(tracker, IssueQuery(("stage:ready",))))
        )

    tracker.comment(ref, "we wrote here once")
    tracker.edit_labels(ref, add=("claimed",))
    assert Purpose.HOLD not in swept()
    posted = tracker.comment(ref, card("aaaaaaaaaaaa"))
    assert purposes_of(tracker, lambda: tracker.read(ref)) == {Purpose.HOLD}
    tracker.apply(ref, (EditComment(posted.id, card("aaaaaaaaaaaa", CardState.HELD)),))
    assert purposes_of(tracker, lambda: tracker.read(ref)) == {Purpose.HOLD}
    tracker.apply(ref, (EditComment(posted.id, card("aaaaaaaaaaaa", CardState.RELEASED)),))
    assert Purpose.HOLD not in swept()
    again = tracker.comment(ref, card("bbbbbbbbbbbb"))
    tracker.edit_comment(ref, again.id, card("bbbbbbbbbbbb", CardState.CONCEDED))
    assert Purpose.HOLD not in swept()


# Pull requests that cannot be seen


def test_nothing_is_bid_for_while_pull_requests_cannot_be_seen(hub, ref):
    for minds in (True, False):
        tracker = hub.client(minds_people=minds)
        held = tracker.comment(ref, card("aaaaaaaaaaaa"))
        now = tracker._transport.clock.now()
        spending = tracker._transport._sender._ledger._spending
        spending.budgets[Resource.GRAPHQL] = Budget(5000, 0, LocalTime(now + 1800))
        if minds:
            with pytest.raises(RateLimited, match="pull request") as limit:
                tracker.comment(ref, card("bbbbbbbbbbbb"))
            assert 1700 < limit.value.retry_after_s <= 1800
        else:
            tracker.comment(ref, card("bbbbbbbbbbbb"))
        assert tracker.apply(
            ref, (EditComment(held.id, card("aaaaaaaaaaaa", CardState.HELD)),)
        ).complete, "what is held goes on"
    over_rest = hub.client(graphql=False, minds_people=True)
    over_rest.comment(ref, card("cccccccccccc"))
