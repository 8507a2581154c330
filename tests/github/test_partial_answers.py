"""GraphQL's answers with holes in them: the fake's own, of which a part is taken on the way."""

from contextlib import ExitStack
from dataclasses import replace as replace_limits
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from dibs.adapters.github.documents import MOST_AT_ONCE, snapshots
from dibs.adapters.github.limits import Budget, Purpose, Resource
from dibs.adapters.github.replies import (
    Exhausted,
    GraphqlError,
    Reply,
    graphql_errors,
    limit_among,
)
from dibs.adapters.github.shapes import RestIssue, decode
from dibs.core.card import CardState
from dibs.core.errors import (
    IssueHidden,
    IssueMoved,
    NoSuchIssue,
    NotPermitted,
    RateLimited,
    Unavailable,
)
from dibs.core.granter import CONTROL_LABEL
from dibs.core.ids import IssueRef, LocalTime, ServerTime
from dibs.core.issue import Draft
from dibs.core.labels import AddLabels, EditComment, LabelLook, PostComment, RemoveLabels
from dibs.ports.tracker import IssueQuery
from dibs.services.reading import walk_snapshots
from dibs_lab.fakehub import Cut, Fault, Limits, Wrong
from dibs_lab.fakehub.graphql_door import priced

from .hubs import REPOSITORY, Hub
from .projects import QUICK, project_on_a_hub
from .test_believing import card

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
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


def test_over_rest_an_issue_of_another_number_is_not_taken_for_this_one(hub, ref):
    door = hub.client(graphql=False).door
    shape = decode(door.look(f"/issues/{ref.key}", purpose=Purpose.LOOK).body, RestIssue)
    assert door.insist_on(ref, shape) is shape
    with pytest.raises(IssueMoved):
        door.insist_on(IssueRef(REPOSITORY, "77"), shape)


def test_an_issue_whose_timeline_is_not_shown_is_read_all_the_same(hub, ref):
    def hidden(reply):
        reply.data["repository"]["issue"]["timelineItems"] = None
        return reply

    assert answering(hub.client(), hidden).read(ref).issue.labels == {"stage:ready"}


def test_an_edit_that_is_not_listed_counts_as_the_authors(hub):
    """The editor that GitHub names is only the last one."""
    acting = hub.acting("mallory")
    made = acting.create_issue(hub.state.named(REPOSITORY), "one", body="text")
    hub.clock.advance(2)
    hub.acting().edit_issue(made, body="better")

    def unlisted(reply):
        reply.data["repository"]["issue"]["userContentEdits"]["nodes"] = []
        return reply

    changed = answering(hub.client(), unlisted).read(IssueRef(REPOSITORY, str(made.number)))
    assert changed.issue.changed is not None
    assert changed.issue.changed.by == "mallory"


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


# Documents that GitHub gives up

USES = {
    "read": lambda tracker, ref: tracker.read(ref),
    "read_many": lambda tracker, ref: tracker.read_many([ref]),
    "find_snapshots": lambda tracker, ref: tracker.find_snapshots([IssueQuery(("stage:ready",))]),
    "pulls_of": lambda tracker, ref: tracker.pulls_of([ref]),
    "tally": lambda tracker, ref: tracker.tally(["stage:ready"]),
    "apply": lambda tracker, ref: tracker.apply(ref, (AddLabels(("claimed",)),)),
}


@pytest.mark.parametrize("cut", list(Cut))
@pytest.mark.parametrize("use", sorted(USES))
def test_what_github_gave_up_is_tried_again_and_never_taken_for_an_answer(hub, ref, cut, use):
    tracker = hub.client()
    tracker.read(ref)
    hub.hub.faults.add(Fault(Wrong.RESOURCE_LIMITS, cut=cut))
    with pytest.raises(Unavailable):
        USES[use](tracker, ref)
    hub.hub.faults.clear()
    USES[use](tracker, ref)
    assert tracker.read(ref).issue.labels >= {"stage:ready"}


@pytest.mark.parametrize(
    "path", [(), ("repository",), ("repository", "i0"), ("repository", "i0", PULLS)]
)
def test_an_error_above_or_without_a_place_makes_a_reading_not_whole(hub, ref, path):
    """Whatever its type: the pull requests that are not there would read as none."""

    def change(reply):
        reply.data["repository"]["i0"][PULLS] = None
        return replace(reply, errors=(GraphqlError("SOMETHING_NEW", path, "timed out"),))

    broken = answering(hub.client(), change)
    with pytest.raises(Unavailable, match="timed out"):
        broken.read_many([ref])


def test_an_unclear_error_at_a_named_pull_request_is_not_taken_for_its_absence(hub, ref):
    def change(reply):
        path = ("repository", "p0")
        return replace(reply, errors=(GraphqlError("SOMETHING_NEW", path, "timed out"),))

    with pytest.raises(Unavailable, match="timed out"):
        answering(hub.client(), change).pulls_named([ref])


@pytest.mark.parametrize("cut", list(Cut))
def test_too_large_a_look_is_halved_at_once_and_grows_slowly_again(hub, ref, cut):
    tracker = hub.client()
    refs = [ref, *(tracker.create(Draft(f"{number}")).ref for number in range(59))]
    many = priced(snapshots(20), {"away": False, "labels": False}).nodes
    hub.hub.faults.add(Fault(Wrong.RESOURCE_LIMITS, cut=cut, nodes=many))
    with hub.counted() as counted:
        assert set(tracker.read_many(refs)) == set(refs)
    assert 4 <= counted["graphql query Threads"] <= 9
    small = tracker.traits.reads_together
    hub.hub.faults.clear()
    tracker.read_many(refs[:2])
    assert small < tracker.traits.reads_together <= small + 5
    for _ in range(60):
        tracker.read_many(refs[:2])
    assert tracker.traits.reads_together == MOST_AT_ONCE


def test_lists_with_comments_are_halved_too(hub, ref):
    tracker = hub.client()
    for number in range(59):
        tracker.create(Draft(f"{number}", labels=frozenset({"stage:ready"})))
    hub.hub.faults.add(Fault(Wrong.RESOURCE_LIMITS, cut=Cut.PATHLESS, nodes=8_000))
    (found,) = tracker.find_snapshots([IssueQuery(("stage:ready",), limit=100)])
    assert len(found.snapshots) == 60


@pytest.mark.parametrize("use", ["read_many", "find_snapshots"])
def test_no_reading_that_github_gave_up_is_sent_again_unchanged(hub, ref, use):
    tracker = hub.client()
    refs = [ref, *(tracker.create(Draft(f"{number}")).ref for number in range(4))]
    hub.hub.faults.add(Fault(Wrong.RESOURCE_LIMITS, cut=Cut.PATHLESS))
    ask = {
        "read_many": lambda: tracker.read_many(refs),
        "find_snapshots": lambda: tracker.find_snapshots([IssueQuery(("stage:ready",), limit=5)]),
    }
    with hub.counted() as counted, pytest.raises(Unavailable):
        ask[use]()
    assert sum(counted.values()) == 3, "five, two, one"


def test_a_look_at_one_that_is_too_large_ends_in_an_outage_and_not_in_a_loop(hub, ref):
    hub.hub.faults.add(Fault(Wrong.RESOURCE_LIMITS))
    tracker = hub.client()
    with hub.counted() as counted, pytest.raises(Unavailable):
        tracker.read_many([ref] * 100)
    assert counted["graphql query Threads"] <= 8


def test_a_refusal_of_the_budget_that_the_headers_do_not_confirm_rests_for_a_minute(hub, ref):
    tracker = hub.client()
    tracker.read(ref)
    hub.hub.world.meter.limits = replace_limits(Limits.off(), graphql_per_hour=5_000)
    hub.hub.faults.add(Fault(Wrong.RATE_LIMIT))
    with hub.counted() as counted, pytest.raises(RateLimited) as limit:
        tracker.find_snapshots([IssueQuery(("stage:ready",))])
    assert 50 < limit.value.retry_after_s <= 65
    assert sum(counted.values()) == 1
    hub.hub.faults.clear()
    with hub.counted() as counted, pytest.raises(RateLimited):
        tracker.read_many([ref])
    assert counted == {}, "nothing is asked before that is over"


@pytest.mark.parametrize("kind", ["RATE_LIMITED", "RATE_LIMIT", "graphql_rate_limit"])
def test_a_spent_budget_is_known_by_each_of_its_names(kind):
    told = {"type": kind} if kind.isupper() else {"code": kind}
    headers = {"x-ratelimit-remaining": "0"}
    reply = Reply(200, headers, b"", ServerTime(EPOCH), LocalTime(1.0))
    assert limit_among(graphql_errors([{**told, "message": "exceeded"}]), reply) == Exhausted()


# Issues that the token may not read


def test_an_issue_that_the_token_may_not_read_is_named_and_the_others_are_read(hub, ref, caplog):
    tracker = hub.client(clock=hub.clock)
    draft = Draft("shown", labels=frozenset({"stage:ready"}))
    shown = [tracker.create(draft).ref for _ in range(2)]
    hub.hub.faults.add(Fault(Wrong.FORBIDDEN_NODE, number=int(ref.key)))
    with pytest.raises(IssueHidden, match="not accessible") as refusal:
        tracker.read(ref)
    assert refusal.value.code == "ISSUE_HIDDEN"
    assert set(tracker.read_many([ref, *shown])) == set(shown)
    (found,) = tracker.find_snapshots([IssueQuery(("stage:ready",))])
    assert [snapshot.issue.ref for snapshot in found.snapshots] == shown
    assert f"{ref} is left alone" in caplog.text
    before = len(caplog.records)
    tracker.read_many([ref, *shown])
    assert len(caplog.records) == before, "once is enough"


def test_an_odd_node_below_an_issue_hides_this_issue_only(hub, ref):
    tracker = hub.client()
    other = tracker.create(Draft("other")).ref
    path = ("repository", "i0", PULLS, "nodes", 0)

    def change(reply):
        return replace(reply, errors=(GraphqlError("FORBIDDEN", path, "not accessible"),))

    assert set(answering(tracker, change).read_many([ref, other])) == {other}


def test_an_issue_that_we_hold_is_not_taken_for_gone(hub, ref):
    tracker = hub.client()
    tracker.read(ref)
    tracker.comment(ref, card("aaaaaaaaaaaa", CardState.HELD))
    hub.hub.faults.add(Fault(Wrong.FORBIDDEN_NODE, number=int(ref.key)))
    with pytest.raises(Unavailable):
        tracker.read(ref)


def test_one_unreadable_issue_neither_ends_a_worker_nor_keeps_it_from_the_others(tmp_path):
    with project_on_a_hub(tmp_path) as project:
        project.begin_with(QUICK)
        hidden, *others = project.backlog(3)
        project.hub.faults.add(Fault(Wrong.FORBIDDEN_NODE, number=hidden))
        answer = project.start("work", "work", "--drain").wait(60)
        assert answer.code == 0
        project.assert_worked_once(*others)
        assert project.label_names(hidden) == {"stage:ready"}
        assert f"acme/shop#{hidden} is left alone" in answer.err


# Pages that were too small


def test_what_a_look_at_many_cuts_is_read_to_its_end(hub, ref):
    tracker, acting = hub.client(), hub.acting()
    others = [tracker.create(Draft("short")).ref for _ in range(3)]
    tracker.edit_labels(ref, add=[f"label-{number}" for number in range(30)])
    issue = hub.issue(int(ref.key))
    for number in range(60):
        acting.create_comment(issue, f"{number}")
    with hub.counted() as counted:
        (read, *_) = tracker.read_many([ref, *others]).values()
    assert counted == {"graphql query Threads": 2}
    assert read.complete
    assert len(read.comments) == 60
    assert len(read.issue.labels) == 31
    tracker.edit_labels(ref, add=["zz-last"])
    (found,) = tracker.find_snapshots([IssueQuery(("zz-last",))])
    assert [len(snapshot.comments) for snapshot in found.snapshots] == [60]


# Labels that the repository spells in another way

QUERY = IssueQuery(("stage:ready",))


@pytest.fixture
def spelt():
    """A repository whose labels differ in case from the settings', and a GraphQL that heeds it."""
    with ExitStack() as opened:
        hub = Hub(opened)
        for name in ("Stage:Ready", "CLAIMED", "Dibs:Control"):
            hub.client().make_label(name)
        for number in range(2):
            hub.client().create(Draft(f"{number}", labels=frozenset({"stage:ready"})))
        hub.hub.faults.add(Fault(Wrong.LABEL_CASE))
        yield hub


def looks():
    return {name: LabelLook() for name in ("stage:ready", "claimed")}


def test_issues_are_counted_and_found_by_labels_as_the_repository_spells_them(spelt):
    tracker = spelt.client(looks=looks())
    assert tracker.tally(["stage:ready", "claimed"]) == {"stage:ready": 2, "claimed": 0}
    (found,) = spelt.client(looks=looks()).find_snapshots([QUERY])
    assert [one.issue.labels for one in found.snapshots] == [{"stage:ready"}] * 2


def test_labels_are_put_on_and_taken_off_as_the_repository_spells_them(spelt):
    tracker = spelt.client()
    first, _ = (issue.ref for issue in tracker.find(QUERY).issues)
    tracker.apply(first, (AddLabels(("claimed",)), PostComment("said")))
    assert spelt.client(looks=looks()).read(first).issue.labels == {"stage:ready", "claimed"}
    spelt.client().apply(first, (RemoveLabels(("claimed",)),))
    assert spelt.client(looks=looks()).read(first).issue.labels == {"stage:ready"}


def test_the_control_issue_is_found_by_its_label_in_any_case(spelt):
    spelt.client().create(Draft("control", labels=frozenset({CONTROL_LABEL})))
    tracker = spelt.client()
    tracker.find_control()
    assert tracker.control_readings.number == 3


def test_a_repository_with_more_labels_than_a_page_is_read_to_its_last(spelt):
    for number in range(120):
        spelt.client().make_label(f"a-{number}")
    spelt.client().make_label("Zz")
    spelt.client().create(Draft("last", labels=frozenset({"zz"})))
    assert spelt.client().tally(["zz"]) == {"zz": 1}


def test_doctor_names_labels_with_another_spelling(spelt):
    found = spelt.client().misspelt_labels(["stage:ready", "claimed", "stage:done"])
    assert found == {"stage:ready": "Stage:Ready", "claimed": "CLAIMED"}
