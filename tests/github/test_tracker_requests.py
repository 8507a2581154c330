"""What each operation costs, counted at the server: the fake GitHub, over HTTP."""

from contextlib import ExitStack

import pytest
from msgspec.structs import replace

from dibs.adapters.github.replies import GraphqlError, GraphqlReply, NoGraphql
from dibs.core.errors import NoSuchIssue, NotPermitted, RateLimited
from dibs.core.ids import IssueRef, LocalTime
from dibs.core.issue import Draft
from dibs.core.labels import (
    AddLabels,
    CloseIssue,
    EditComment,
    PostComment,
    RemoveLabels,
    label_looks,
)
from dibs.core.presets import STAGES
from dibs.ports.tracker import IssueQuery
from dibs.services.reading import walk

from .hubs import REPOSITORY, Hub

COMMENT = "POST /repos/{owner}/{repo}/issues/{number}/comments"
LIST = "GET /repos/{owner}/{repo}/issues"
COMMENTS = "GET /repos/{owner}/{repo}/issues/{number}/comments"
READ, TRIP = "graphql query Read", "graphql mutation Trip"
THREADS, FIND = "graphql query Threads", "graphql query Find"
EDIT = "PATCH /repos/{owner}/{repo}/issues/comments/{comment_id}"


@pytest.fixture
def hub():
    with ExitStack() as opened:
        yield Hub(opened)


@pytest.fixture
def tracker(hub):
    made = hub.client(looks=label_looks(STAGES))
    made.prepare(STAGES.every_label)
    return made


def ready(tracker, count=1):
    drafts = [
        Draft(f"issue {number}", labels=frozenset({"stage:ready"})) for number in range(count)
    ]
    return [tracker.create(draft).ref for draft in drafts]


def many(hub, count):
    """The same by somebody else, and faster."""
    acting, repository = hub.acting(), hub.state.named(REPOSITORY)
    made = [
        acting.create_issue(repository, f"issue {n}", labels=("stage:ready",)) for n in range(count)
    ]
    return [IssueRef(REPOSITORY, str(issue.number)) for issue in made]


def test_an_issue_from_ready_to_advanced_costs_five_requests_and_one_comment(hub, tracker):
    (ref,) = ready(tracker)
    worker = hub.client(looks=label_looks(STAGES))
    worker.find(IssueQuery(("stage:ready",)))
    with hub.counted() as counted:
        bid = worker.comment(ref, "bid")
        worker.read(ref)
        shown = worker.apply(
            ref, (EditComment(bid.id, "held"), AddLabels(("claimed", "stage:processing")))
        )
        worker.read(ref)
        done = worker.apply(
            ref,
            (
                EditComment(bid.id, "released"),
                AddLabels(("stage:review",)),
                RemoveLabels(("stage:ready", "stage:processing")),
                RemoveLabels(("claimed",)),
            ),
        )
    assert counted == {COMMENT: 1, READ: 2, TRIP: 2}
    assert shown.issue.labels == {"stage:ready", "claimed", "stage:processing"}
    assert done.issue.labels == {"stage:review"}
    assert [comment.body for comment in done.comments] == ["released"]


def test_a_lost_race_and_a_renewal_cost_what_they_must(hub, tracker):
    (ref,) = ready(tracker)
    with hub.counted() as lost:
        bid = tracker.comment(ref, "bid")
        tracker.read(ref)
        tracker.edit_comment(ref, bid.id, "conceded")
    assert lost == {COMMENT: 1, READ: 1, EDIT: 1}
    with hub.counted() as renewal:
        snapshot = tracker.apply(ref, (EditComment(bid.id, "held again"),))
    assert renewal == {TRIP: 1}
    assert snapshot.complete


def test_a_list_that_has_not_changed_is_free(hub, tracker):
    ready(tracker, 3)
    query = IssueQuery(("stage:ready",), without=("claimed",))
    assert len(tracker.find(query).issues) == 3
    with hub.counted() as counted:
        for _ in range(100):
            hub.clock.advance(5)
            assert len(tracker.find(query).issues) == 3
    assert counted == {LIST: 100}
    assert hub.points == 0


def test_a_hundred_issues_with_their_comments_are_one_request(hub, tracker):
    refs = many(hub, 130)
    tracker.comment(refs[7], "a card")
    with hub.counted() as counted:
        threads = tracker.read_many(refs[:100])
    assert counted == {THREADS: 1}
    assert len(threads) == 100
    assert [comment.body for comment in threads[refs[7]].comments] == ["a card"]
    with hub.counted() as counted:
        (found,) = tracker.find_snapshots((IssueQuery(("stage:ready",), limit=100),))
    assert (len(found.snapshots), found.more) == (100, True)
    assert counted == {FIND: 1}
    with hub.counted() as counted:
        assert len(tracker.read_many(refs)) == 130
    assert counted == {THREADS: 2}


def test_a_list_of_which_few_are_wanted_is_not_asked_for_one_by_one(hub):
    """Lists are asked for by one label; what else an issue must carry is seen in the answer."""
    tracker = hub.client()
    for number in range(60):
        other = "stage:ready" if number in (0, 59) else "stage:review"
        tracker.create(Draft("one", labels=frozenset({"claimed", other})))
    both = IssueQuery(("stage:ready", "claimed"), limit=2)
    with hub.counted() as counted:
        (found,) = tracker.find_snapshots((both,))
    first, last = (snapshot.issue.ref for snapshot in found.snapshots)
    assert sum(counted.values()) == 2
    with hub.counted() as counted:
        (found,) = hub.client().find_snapshots((replace(both, limit=1, after=first),))
    assert [snapshot.issue.ref for snapshot in found.snapshots] == [last]
    assert sum(counted.values()) <= 2, "the one where it goes on, and the list"


def test_several_lists_with_their_comments_are_one_request(hub, tracker):
    refs = ready(tracker, 20)
    for ref in refs[:5]:
        tracker.edit_labels(ref, add=("claimed",))
    queries = (IssueQuery(("claimed",)), IssueQuery(("stage:ready",)), IssueQuery(("parked",)))
    with hub.counted() as counted:
        answers = tracker.find_snapshots(queries)
    assert counted == {FIND: 1}
    assert [len(answer.snapshots) for answer in answers] == [5, 20, 0]


def test_walking_a_long_list_asks_for_each_page_about_once(hub, tracker):
    refs = many(hub, 450)
    with hub.counted() as counted:
        walked = [issue.ref for issue in walk(tracker, IssueQuery(("stage:ready",), limit=10_000))]
    assert walked == refs
    assert counted[LIST] <= 10


def test_a_walk_goes_on_where_it_was_though_the_list_shrinks(hub, tracker):
    refs = many(hub, 320)
    walked = []
    for issue in walk(tracker, IssueQuery(("stage:ready",), limit=10_000)):
        walked.append(issue.ref)
        tracker.edit_labels(issue.ref, remove=("stage:ready",))
    assert walked == refs


def test_labels_are_counted_in_one_request(hub, tracker):
    ready(tracker, 3)
    with hub.counted() as counted:
        tally = tracker.tally(STAGES.every_label)
    assert counted == {"graphql query Tally": 1}
    assert tally["stage:ready"] == 3


def test_a_fresh_process_looks_before_its_first_trip_and_not_again(hub, tracker):
    (ref,) = ready(tracker)
    card = tracker.comment(ref, "bid")
    worker = hub.client(looks=label_looks(STAGES))
    with hub.counted() as counted:
        worker.apply(ref, (EditComment(card.id, "held"), AddLabels(("claimed",))))
    assert counted == {READ: 1, TRIP: 1}
    with hub.counted() as counted:
        worker.apply(ref, (EditComment(card.id, "renewed"), RemoveLabels(("claimed",))))
    assert counted == {TRIP: 1}


def test_every_kind_of_effect_is_one_request_by_itself(hub, tracker):
    (ref,) = ready(tracker)
    card = tracker.comment(ref, "bid")
    tracker.read(ref)
    effects = (
        EditComment(card.id, "held"),
        AddLabels(("claimed",)),
        RemoveLabels(("claimed",)),
        PostComment("hello"),
        CloseIssue(),
    )
    for effect in effects:
        with hub.counted() as counted:
            tracker.apply(ref, (effect,))
        assert counted == {TRIP: 1}, effect


# Long conversations


@pytest.mark.parametrize("count", [101, 250])
def test_a_long_thread_is_read_whole_and_its_old_pages_are_free(hub, tracker, count):
    (ref,) = ready(tracker)
    strangers, issue = hub.acting("mallory"), hub.issue(int(ref.key))
    for number in range(count):
        strangers.create_comment(issue, f"junk {number}")
    bid = tracker.comment(ref, "bid")
    snapshot = tracker.read(ref)
    assert snapshot.complete
    assert len(snapshot.comments) == count + 1
    assert [comment.id for comment in snapshot.comments if comment.by_writer] == [bid.id]
    pages = (count + 1 + 99) // 100
    hub.clock.advance(1)
    with hub.counted() as counted:
        again = tracker.read(ref)
    assert counted == {COMMENTS: pages, READ: 1}
    assert hub.points == 1
    assert again.comments == snapshot.comments
    held = tracker.apply(ref, (EditComment(bid.id, "held"), AddLabels(("claimed",))))
    assert held.complete
    assert held.comments[-1].body == "held"


def test_five_thousand_comments_of_a_stranger_cost_paging_and_nothing_else(hub, tracker):
    hub.state.most_comments = None  # GitHub's own limit is half of that
    (ref,) = ready(tracker)
    bid = tracker.comment(ref, "bid")
    strangers, issue = hub.acting("mallory"), hub.issue(int(ref.key))
    for number in range(5_000):
        strangers.create_comment(issue, f"<!-- claim run=evil{number} ttl=600s v=1 -->")
    snapshot = tracker.read(ref)
    assert snapshot.complete
    assert [comment.id for comment in snapshot.comments if comment.by_writer] == [bid.id]
    hub.clock.advance(1)
    with hub.counted() as counted:
        assert tracker.read(ref).complete
    assert counted == {COMMENTS: 51, READ: 1}
    assert hub.points == 1


def test_a_batch_says_which_of_its_threads_are_too_long_for_it(hub, tracker):
    long, short = ready(tracker, 2)
    for number in range(120):
        hub.acting().create_comment(hub.issue(int(long.key)), f"comment {number}")
    threads = tracker.read_many([long, short])
    assert not threads[long].complete
    assert threads[short].complete


# Without GraphQL


def test_without_graphql_everything_goes_over_rest(hub):
    with ExitStack() as opened:
        alone = Hub(opened, graphql=False)
        tracker = alone.client(graphql=True)
        ref = tracker.create(Draft("one", labels=frozenset({"stage:ready"}))).ref
        card = tracker.comment(ref, "bid")
        snapshot = tracker.apply(ref, (EditComment(card.id, "held"), AddLabels(("claimed",))))
        assert snapshot.issue.labels == {"stage:ready", "claimed"}
        with alone.counted() as counted:
            assert tracker.read(ref).complete
        assert set(counted) == {COMMENTS, "GET /repos/{owner}/{repo}/issues/{number}"}
        assert "GraphQL is not to be had" in tracker.flaws()[0]


def test_a_server_that_does_not_know_a_field_is_asked_over_rest_from_then_on(hub, tracker):
    (ref,) = ready(tracker)
    now = tracker.read(ref).now
    unknown = "Field 'fullDatabaseId' doesn't exist on type 'IssueComment'"
    error = GraphqlError("undefinedField", ("fragment Said", "fullDatabaseId"), unknown)
    with pytest.raises(NoGraphql, match="fullDatabaseId"):
        tracker._graphql.insist_understood(GraphqlReply({}, (error,), now, LocalTime(1.0)))
    with hub.counted() as counted:
        assert tracker.read(ref).complete
        assert tracker.apply(ref, (PostComment("said"),)).complete
    assert not any(kind.startswith("graphql") for kind in counted)
    assert "GraphQL is not to be had" in tracker.flaws()[0]


def test_when_the_graphql_budget_is_spent_rest_takes_over(hub, tracker):
    (ref,) = ready(tracker)
    viewer = hub.state.viewer("fleet-token")
    meter = hub.hub.world.meter
    meter.limits = type(meter.limits)(graphql_per_hour=100)
    meter.spend(viewer, 100, "graphql")
    snapshot = tracker.read(ref)
    assert snapshot.complete
    with hub.counted() as counted:
        tracker.apply(ref, (AddLabels(("claimed",)), PostComment("over REST")))
        assert len(tracker.read_many([ref])) == 1
    assert not any(kind.startswith("graphql") for kind in counted)
    assert tracker.read(ref).issue.labels == {"stage:ready", "claimed"}
    with hub.counted() as counted, pytest.raises(RateLimited) as refusal:
        tracker.find_snapshots([IssueQuery(labels=("stage:ready",))])
    assert refusal.value.retry_after_s > 60, "until the budget starts anew"
    assert counted == {}, "one point is not replaced by a hundred requests"
    without = hub.client(graphql=False)
    (found,) = without.find_snapshots([IssueQuery(labels=("stage:ready",))])
    assert [snapshot.issue.ref for snapshot in found.snapshots] == [ref]


# Whose word counts


def test_a_comment_of_ours_that_would_not_count_is_an_error(hub, tracker):
    (ref,) = ready(tracker)
    stranger = hub.client("mallory")
    with pytest.raises(NotPermitted, match=r"'mallory' .*\[github\] trusted"):
        stranger.comment(ref, "bid")
    with pytest.raises(NotPermitted, match="counts for nothing"):
        stranger.apply(ref, (PostComment("bid"),))


def test_a_list_of_trusted_accounts_replaces_write_access(hub, tracker):
    (ref,) = ready(tracker)
    tracker.comment(ref, "by the fleet")
    hub.acting("colleague").create_comment(hub.issue(int(ref.key)), "by a colleague")
    reader = hub.client("colleague", trusted=("FLEET",))
    assert [one.by_writer for one in reader.read(ref).comments] == [True, False]
    with pytest.raises(NotPermitted, match="not among those"):
        reader.comment(ref, "me too")


def test_a_bot_is_trusted_by_the_name_that_rest_gives_it(hub, tracker):
    (ref,) = ready(tracker)
    hub.state.add_user("worker[bot]", kind="Bot")
    hub.state.add_user("worker")
    for login in ("worker[bot]", "worker"):
        hub.state.add_token(f"{login}-token", login)
        hub.acting(login).create_comment(hub.issue(int(ref.key)), f"by {login}")
    for graphql in (True, False):
        reader = hub.client(trusted=("worker[bot]",), graphql=graphql)
        believed = {one.author: one.by_writer for one in reader.read(ref).comments}
        assert believed == {"worker[bot]": True, "worker": False}


# Labels, assignees, pull requests


def test_labels_are_told_as_the_settings_spell_them(hub):
    repository = hub.state.named(REPOSITORY)
    acting = hub.acting()
    for name in ("Stage:Ready", "CLAIMED", "Untouched"):
        acting.create_label(repository, name)
    tracker = hub.client(looks=label_looks(STAGES))
    tracker.prepare(STAGES.every_label)
    made = hub.acting().create_issue(repository, "one", labels=("Stage:Ready", "Untouched"))
    ref = IssueRef(REPOSITORY, str(made.number))
    assert tracker.read(ref).issue.labels == {"stage:ready", "Untouched"}
    (found,) = tracker.find(IssueQuery(("stage:ready",), without=("claimed",))).issues
    assert found.labels == {"stage:ready", "Untouched"}
    snapshot = tracker.apply(ref, (AddLabels(("claimed",)), RemoveLabels(("stage:ready",))))
    assert snapshot.issue.labels == {"claimed", "Untouched"}
    assert tracker.tally(("claimed", "STAGE:READY")) == {"claimed": 1, "STAGE:READY": 0}
    labels = hub.state.view().labels(repository.id)
    assert sorted(label.name.lower() for label in labels).count("claimed") == 1


def test_people_on_an_issue_are_seen(hub, tracker):
    (ref,) = ready(tracker)
    acting, repository = hub.acting(), hub.state.named(REPOSITORY)
    acting.assign(hub.issue(int(ref.key)), ("colleague",))
    pull = acting.create_pull(repository, "mend it", "mending", "main", body=f"Fixes #{ref.key}")
    snapshot = tracker.read(ref)
    assert [person.login for person in snapshot.issue.assignees] == ["colleague"]
    (linked,) = snapshot.issue.pulls
    assert (linked.ref, linked.author.login) == (
        IssueRef(REPOSITORY, str(pull.number)),
        "colleague",
    )
    acting.close_issue(hub.issue(pull.number))
    assert tracker.read(ref).issue.pulls == ()
    (listed,) = tracker.find(IssueQuery(("stage:ready",))).issues
    assert listed.assignees == snapshot.issue.assignees


def test_a_pull_request_is_no_issue(hub, tracker):
    (ref,) = ready(tracker)
    acting, repository = hub.acting(), hub.state.named(REPOSITORY)
    pull = acting.create_pull(repository, "mend it", "mending", "main")
    acting.add_labels(hub.issue(pull.number), ("stage:ready",))
    wrong = IssueRef(REPOSITORY, str(pull.number))
    assert [issue.ref for issue in tracker.find(IssueQuery(("stage:ready",))).issues] == [ref]
    for client in (tracker, hub.client(graphql=False)):
        with pytest.raises(NoSuchIssue):
            client.read(wrong)
        with pytest.raises(NoSuchIssue):
            client.comment(wrong, "bid")
        assert set(client.read_many([ref, wrong])) == {ref}
        assert client.tally(("stage:ready",)) == {"stage:ready": 1}
    assert hub.state.view().comments(hub.issue(pull.number).id) == []
