"""What GitHub refuses, moves or loses, as errors that say who must act: on the fake, over HTTP."""

from contextlib import ExitStack

import pytest

from dibs.core.durations import REFUSED
from dibs.core.errors import (
    IssueLocked,
    IssueMoved,
    NoSuchComment,
    NoSuchIssue,
    NotPermitted,
    Unavailable,
)
from dibs.core.ids import IssueRef
from dibs.core.issue import Draft
from dibs.core.labels import AddLabels, EditComment, PostComment, RemoveLabels, label_looks
from dibs.core.presets import STAGES
from dibs.ports.tracker import IssueQuery
from dibs_lab.fakehub import Fault, Permission, Standing, Wrong

from .hubs import REPOSITORY, Hub

BOTH = pytest.mark.parametrize("graphql", [True, False], ids=["graphql", "rest"])
LOOKS = label_looks(STAGES)


@pytest.fixture
def hub():
    with ExitStack() as opened:
        yield Hub(opened)


@pytest.fixture
def tracker(hub):
    made = hub.client(looks=LOOKS)
    made.prepare(STAGES.every_label)
    return made


@pytest.fixture
def ref(tracker):
    return tracker.create(Draft("one", labels=frozenset({"stage:ready"}))).ref


def every_call(client, ref):
    """Each that a worker makes, on an issue that was there."""
    return {
        "find": lambda: client.find(IssueQuery(("stage:ready",))),
        "read": lambda: client.read(ref),
        "read_many": lambda: client.read_many([ref]),
        "find_snapshots": lambda: client.find_snapshots((IssueQuery(("stage:ready",)),)),
        "tally": lambda: client.tally(("stage:ready",)),
        "create": lambda: client.create(Draft("two")),
        "comment": lambda: client.comment(ref, "bid"),
        "edit_labels": lambda: client.edit_labels(ref, add=("claimed",)),
        "remove_labels": lambda: client.edit_labels(ref, remove=("stage:ready",)),
        "close": lambda: client.close(ref),
        "apply": lambda: client.apply(ref, (AddLabels(("claimed",)),)),
        "prepare": lambda: client.prepare(("one-more",)),
    }


# Tokens


@BOTH
@pytest.mark.parametrize("standing", [Standing.EXPIRED, Standing.REVOKED])
def test_a_token_that_no_longer_works_is_said_to_be_so(hub, tracker, ref, standing, graphql):
    client = hub.client(looks=LOOKS, graphql=graphql)
    client.read(ref)
    hub.state.set_standing("fleet-token", standing)
    for name, call in every_call(client, ref).items():
        with pytest.raises(NotPermitted, match="revoked or expired") as told:
            call()
        assert "fleet-token" not in str(told.value), name


@BOTH
def test_a_token_that_may_only_read_changes_nothing(hub, tracker, ref, graphql):
    hub.state.add_token("reader", "fleet", read_only=True)
    client = hub.client(token="reader", looks=LOOKS, graphql=graphql)
    reading = ("find", "read", "read_many", "find_snapshots", "tally")
    for name, call in every_call(client, ref).items():
        if name in reading:
            call()
        else:
            with pytest.raises(NotPermitted):
                call()
    snapshot = tracker.read(ref)
    assert (snapshot.issue.labels, snapshot.comments) == ({"stage:ready"}, ())


@BOTH
def test_a_classic_token_without_the_scope_is_told_so_and_not_that_the_issue_is_gone(
    hub, tracker, ref, graphql
):
    card = tracker.comment(ref, "bid")
    hub.state.add_token("narrow", "fleet", scopes=frozenset({"read:org"}))
    client = hub.client(token="narrow", looks=LOOKS, graphql=graphql)
    writing = ("create", "comment", "edit_labels", "remove_labels", "close", "apply", "prepare")
    calls = {name: call for name, call in every_call(client, ref).items() if name in writing}
    calls["edit_comment"] = lambda: client.edit_comment(ref, card.id, "held")
    for name, call in calls.items():
        with pytest.raises(NotPermitted, match="scopes"):
            call()
        assert name
    assert client.read(ref).comments == tracker.read(ref).comments


@BOTH
def test_a_private_repository_that_is_not_for_us_is_not_there(hub, graphql):
    hub.hub.repository("acme/secret", private=True)
    client = hub.client("mallory", repository="acme/secret", graphql=graphql)
    for name, call in every_call(client, IssueRef("acme/secret", "1")).items():
        with pytest.raises(NotPermitted):
            call()
        assert name


# The repository


@BOTH
def test_an_archived_repository_can_be_read_and_takes_nothing(hub, tracker, ref, graphql):
    client = hub.client(looks=LOOKS, graphql=graphql)
    card = client.comment(ref, "bid")
    client.read(ref)
    hub.state.archive(REPOSITORY)
    assert client.read(ref).complete
    for call in (
        lambda: client.comment(ref, "bid"),
        lambda: client.apply(ref, (EditComment(card.id, "held"), AddLabels(("claimed",)))),
        lambda: client.edit_labels(ref, add=("claimed",)),
        lambda: client.close(ref),
        lambda: client.create(Draft("two")),
    ):
        with pytest.raises(NotPermitted, match="archived"):
            call()
    assert "archived" in " ".join(client.flaws())


@BOTH
def test_a_renamed_repository_goes_on_and_the_doctor_says_so(hub, tracker, ref, graphql):
    client = hub.client(looks=LOOKS, graphql=graphql)
    card = client.comment(ref, "bid")
    client.read(ref)
    hub.state.rename(REPOSITORY, "acme/store")
    for fresh in (client, hub.client(looks=LOOKS, graphql=graphql)):
        snapshot = fresh.apply(ref, (EditComment(card.id, "held"), AddLabels(("claimed",))))
        assert snapshot.issue.ref == ref, "an issue's name is the one in the settings"
        assert [issue.ref for issue in fresh.find(IssueQuery(("claimed",))).issues] == [ref]
        fresh.comment(ref, "one more")
        fresh.edit_labels(ref, remove=("claimed",))
        (told,) = fresh.flaws()
        assert "is called acme/store now" in told
    assert client.create(Draft("two")).ref == IssueRef(REPOSITORY, "2")


# The conversation and the issue


@BOTH
def test_a_locked_conversation_takes_nothing_from_those_who_may_not_write(
    hub, tracker, ref, graphql
):
    hub.state.grant(REPOSITORY, "triage", Permission.TRIAGE)
    hub.user_token = hub.state.add_token("triage-token", "triage")
    client = hub.client("triage", looks=LOOKS, graphql=graphql)
    client.read(ref)
    hub.acting("colleague").lock_issue(hub.issue(int(ref.key)))
    with pytest.raises(IssueLocked):
        client.comment(ref, "bid")
    with pytest.raises(IssueLocked):
        client.apply(ref, (PostComment("bid"),))
    tracker.comment(ref, "whoever may write still may")


@BOTH
def test_a_transferred_issue_is_said_to_be_elsewhere(hub, tracker, ref, graphql):
    client = hub.client(looks=LOOKS, graphql=graphql)
    card = client.comment(ref, "bid")
    client.read(ref)
    there = hub.repository("acme/warehouse")
    hub.acting().create_issue(there, "already here")
    hub.acting().transfer_issue(hub.issue(int(ref.key)), there)
    for fresh in (client, hub.client(looks=LOOKS, graphql=graphql)):
        for call in (
            lambda client=fresh: client.read(ref),
            lambda client=fresh: client.comment(ref, "bid"),
            lambda client=fresh: client.edit_labels(ref, add=("claimed",)),
            lambda client=fresh: client.close(ref),
            lambda client=fresh: client.apply(ref, (AddLabels(("claimed",)),)),
        ):
            with pytest.raises(IssueMoved, match="warehouse/issues/2"):
                call()
        assert fresh.read_many([ref]) == {}
        assert fresh.find(IssueQuery(("stage:ready",))).issues == ()
    with pytest.raises((IssueMoved, NoSuchComment)):
        client.edit_comment(ref, card.id, "held")
    moved = hub.issue(2, "acme/warehouse")
    bodies = [comment.body for comment in hub.state.view().comments(moved.id)]
    assert "held" not in bodies


@BOTH
def test_a_transfer_to_the_same_number_is_no_rename(hub, tracker, ref, graphql):
    client = hub.client(looks=LOOKS, graphql=graphql)
    there = hub.repository("acme/warehouse")
    hub.acting().transfer_issue(hub.issue(int(ref.key)), there)
    with pytest.raises(IssueMoved, match="warehouse/issues/1"):
        client.read(ref)
    other = client.create(Draft("two", labels=frozenset({"stage:ready"})))
    assert client.read(other.ref).issue.title == "two"


@BOTH
@pytest.mark.parametrize("fate", ["delete_issue", "convert_issue"])
def test_an_issue_that_is_none_any_more_is_not_there(hub, tracker, ref, fate, graphql):
    hub.state.grant(REPOSITORY, "colleague", Permission.ADMIN)
    client = hub.client(looks=LOOKS, graphql=graphql)
    card = client.comment(ref, "bid")
    client.read(ref)
    getattr(hub.acting(), fate)(hub.issue(int(ref.key)))
    for fresh in (client, hub.client(looks=LOOKS, graphql=graphql)):
        for call in (
            lambda client=fresh: client.read(ref),
            lambda client=fresh: client.comment(ref, "bid"),
            lambda client=fresh: client.edit_comment(ref, card.id, "held"),
            lambda client=fresh: client.edit_labels(ref, add=("claimed",)),
            lambda client=fresh: client.edit_labels(ref, remove=("claimed",)),
            lambda client=fresh: client.close(ref),
            lambda client=fresh: client.apply(ref, (EditComment(card.id, "held"),)),
            lambda client=fresh: client.apply(ref, (AddLabels(("claimed",)),)),
        ):
            with pytest.raises(NoSuchIssue):
                call()
        assert fresh.read_many([ref]) == {}


@BOTH
def test_a_card_that_somebody_deleted_is_said_to_be_missing(hub, tracker, ref, graphql):
    client = hub.client(looks=LOOKS, graphql=graphql, clock=hub.clock)
    card = client.comment(ref, "bid")
    client.read(ref)
    hub.acting().delete_comment(hub.state.view().comment(card.id))
    with pytest.raises(Unavailable):
        client.edit_comment(ref, card.id, "held")
    hub.clock.advance(REFUSED.pause_s)
    with pytest.raises(NoSuchComment):
        client.apply(ref, (EditComment(card.id, "held"), AddLabels(("claimed",))))
    with pytest.raises(NoSuchComment):
        client.edit_comment(ref, card.id, "held")


# Labels


@BOTH
def test_a_deleted_label_heals(hub, tracker, ref, graphql):
    client = hub.client(looks=LOOKS, graphql=graphql)
    card = client.comment(ref, "bid")
    client.apply(ref, (AddLabels(("claimed",)), RemoveLabels(("claimed",))))
    repository = hub.state.named(REPOSITORY)
    for name in ("claimed", "stage:ready"):
        hub.acting().delete_label(hub.state.view().label_named(repository.id, name))
    hub.clock.advance(5)
    snapshot = client.apply(
        ref,
        (
            EditComment(card.id, "held"),
            AddLabels(("claimed", "stage:review")),
            RemoveLabels(("stage:ready",)),
        ),
    )
    assert snapshot.issue.labels == {"claimed", "stage:review"}
    assert [comment.body for comment in snapshot.comments] == ["held"]
    made = hub.state.view().label_named(repository.id, "claimed")
    assert made.name == "claimed"
    assert client.apply(ref, (RemoveLabels(("claimed",)),)).issue.labels == {"stage:review"}


def test_a_label_is_made_with_its_colour_when_it_is_first_needed(hub):
    client = hub.client(looks=LOOKS)
    ref = client.create(Draft("one")).ref
    client.apply(ref, (AddLabels(("claimed",)),))
    repository = hub.state.named(REPOSITORY)
    made = hub.state.view().label_named(repository.id, "claimed")
    assert (made.color, made.description) == (
        LOOKS["claimed"].colour,
        LOOKS["claimed"].description,
    )


def test_preparing_makes_what_is_missing_and_leaves_the_rest(hub):
    repository, acting = hub.state.named(REPOSITORY), hub.acting()
    acting.create_label(repository, "Claimed", color="123456", description="ours")
    for number in range(150):
        acting.create_label(repository, f"label {number}")
    client = hub.client(looks=LOOKS)
    labels = STAGES.every_label
    assert set(client.missing_labels(labels)) == set(labels) - {"claimed"}
    for _ in range(2):
        client.prepare(labels)
    assert client.missing_labels(labels) == ()
    kept = hub.state.view().label_named(repository.id, "claimed")
    assert (kept.name, kept.color, kept.description) == ("Claimed", "123456", "ours")


def test_an_account_that_may_put_no_label_on_is_told_so(hub, tracker):
    with pytest.raises(NotPermitted, match="without its labels"):
        hub.client("mallory").create(Draft("one", labels=frozenset({"stage:ready"})))


# Replies that are lost, lists that lie


@BOTH
@pytest.mark.parametrize("wrong", [Wrong.ERROR_AFTER, Wrong.DROP_AFTER])
def test_a_write_whose_reply_is_lost_is_unknown_and_not_sent_again(
    hub, tracker, ref, wrong, graphql
):
    client = hub.client(looks=LOOKS, graphql=graphql)
    client.read(ref)
    hub.hub.faults.add(Fault(wrong, kind="POST.*comments", times=1))
    with pytest.raises(Unavailable):
        client.comment(ref, "bid")
    (posted,) = client.read(ref).comments
    hub.hub.faults.add(Fault(wrong, kind="mutation Trip|PATCH.*comments", times=1))
    hub.clock.advance(3)
    with pytest.raises(Unavailable):
        client.apply(ref, (EditComment(posted.id, "held"), PostComment("said once")))
    bodies = [comment.body for comment in client.read(ref).comments]
    assert bodies == (["held", "said once"] if graphql else ["held"])


@BOTH
def test_a_list_that_lacks_its_last_comments_is_not_taken_for_whole(hub, tracker, ref, graphql):
    client = hub.client(looks=LOOKS, graphql=graphql)
    for number in range(3):
        client.comment(ref, f"comment {number}")
    hub.hub.faults.add(Fault(Wrong.SHORT, kind="comments|query Read"))
    snapshot = client.read(ref)
    assert not snapshot.complete
    hub.hub.faults.clear()
    assert client.read(ref).complete


def test_an_outage_makes_the_next_large_reading_smaller(hub, tracker):
    refs = [tracker.create(Draft(f"issue {number}")).ref for number in range(60)]
    hub.hub.faults.add(Fault(Wrong.ERROR_BEFORE, kind="query Threads", times=1))
    with pytest.raises(Unavailable):
        tracker.read_many(refs)
    with hub.counted() as counted:
        assert len(tracker.read_many(refs)) == 60
    assert counted == {"graphql query Threads": 2}
