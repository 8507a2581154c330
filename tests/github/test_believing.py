"""Whose marks count, on the fake GitHub over HTTP: by what accounts may do, not by who asks."""

from contextlib import ExitStack
from datetime import timedelta

import pytest
from tests.core.builders import ruling

from dibs.adapters.github.control import GithubControl
from dibs.adapters.github.limits import Purpose
from dibs.adapters.github.shapes import Translator
from dibs.adapters.github.trust import LOOKUPS, Judging
from dibs.adapters.wrappers.trackers import SignedTracker
from dibs.core.card import Card, CardState, render_card, render_revoke
from dibs.core.eligibility import PauseScope
from dibs.core.errors import NotPermitted
from dibs.core.fold import FoldRules
from dibs.core.ids import Fence, HolderId, IssueRef, RunId, StageName
from dibs.core.issue import Draft
from dibs.core.labels import EditComment
from dibs.core.lease import Bid, Busy, Ending, Granted, Outcome, Renewed, Revocation
from dibs.core.signing import parse_keyring
from dibs.services.comment_leases import CommentLeases
from dibs.testing.clock import EPOCH, FakeClock
from dibs_lab.fakehub import Fault, Permission, Wrong

from .hubs import REPOSITORY, Hub

LIST = "GET /repos/{owner}/{repo}/collaborators"
LOOKUP = "GET /repos/{owner}/{repo}/collaborators/{login}/permission"
COMMENT = "POST /repos/{owner}/{repo}/issues/{number}/comments"
READ, TRIP = "graphql query Read", "graphql mutation Trip"
WHO = ("alice", "mallory")
BOTH = pytest.mark.parametrize("graphql", [True, False], ids=["graphql", "rest"])


@pytest.fixture
def hub():
    with ExitStack() as opened:
        yield Hub(opened)


@pytest.fixture
def ref(hub):
    return hub.client().create(Draft("one", labels=frozenset({"stage:ready"}))).ref


def card(run, state=CardState.BID):
    ended = Ending(Outcome.ADVANCED) if state is CardState.RELEASED else None
    prev = None if state is CardState.BID else EPOCH
    mark = Card(RunId(run), timedelta(minutes=10), state, HolderId(run), prev=prev, ending=ended)
    return render_card(mark)


def leases(tracker):
    return CommentLeases(tracker, FakeClock(), rules=FoldRules(), claimed_label="claimed")


def bid(ref, run):
    ttl = timedelta(minutes=10)
    return Bid(ref, RunId(run), HolderId(run), StageName("ready"), ttl, Fence(0))


def forge(hub, ref, logins):
    for login in logins:
        hub.hub.user(login)
        hub.acting(login).create_comment(hub.issue(int(ref.key)), card(f"evil-{login}"))


def a_private_member(hub, login="alice"):
    """May write by a team, and only members know that she is one."""
    hub.hub.user(login)
    hub.state.join("acme", login, public=False)
    hub.state.grant_by_team(REPOSITORY, login, Permission.WRITE)


@BOTH
def test_a_private_members_lease_is_seen_by_whoever_is_no_member(hub, ref, graphql):
    a_private_member(hub)
    held = leases(hub.client("alice", graphql=graphql)).acquire(bid(ref, "aaaaaaaaaaaa"))
    assert isinstance(held, Granted)
    rival = leases(hub.client("colleague", graphql=graphql)).acquire(bid(ref, "bbbbbbbbbbbb"))
    assert isinstance(rival, Busy)


@BOTH
def test_a_collaborator_who_may_only_read_is_not_believed(hub, ref, graphql):
    hub.state.grant(REPOSITORY, "mallory", Permission.TRIAGE)
    hub.acting("mallory").create_comment(hub.issue(int(ref.key)), card("evil"))
    snapshot = hub.client(graphql=graphql).read(ref)
    assert [comment.by_writer for comment in snapshot.comments] == [False]
    with pytest.raises(NotPermitted, match="may not write"):
        hub.client("mallory", graphql=graphql, trusted=()).comment(ref, card("evil-too"))


@BOTH
@pytest.mark.parametrize(
    "permission", [Permission.WRITE, Permission.MAINTAIN, Permission.ADMIN], ids=str
)
def test_whoever_may_write_by_a_lookup_is_believed(hub, ref, graphql, permission):
    hub.hub.user("somebody")
    hub.state.grant(REPOSITORY, "somebody", permission)
    hub.acting("somebody").create_comment(hub.issue(int(ref.key)), card("aaaaaaaaaaaa"))
    with hub.counted() as counted:
        snapshot = hub.client("colleague", graphql=graphql).read(ref)
    assert [comment.by_writer for comment in snapshot.comments] == [True]
    assert counted[LOOKUP] == 1


@BOTH
def test_an_approval_counts_if_its_author_may_write(hub, ref, graphql):
    """A triager is associated with the repository, and a private member does not seem to be."""
    a_private_member(hub)
    hub.state.grant(REPOSITORY, "mallory", Permission.TRIAGE)
    body = ruling(hub.client().read(ref).issue)
    for login in ("alice", "mallory"):
        hub.acting(login).create_comment(hub.issue(int(ref.key)), body)
    snapshot = hub.client("colleague", graphql=graphql).read(ref)
    assert [comment.by_writer for comment in snapshot.comments] == [True, False]
    with pytest.raises(NotPermitted, match="may not write"):
        hub.client("mallory", graphql=graphql, trusted=()).comment(ref, body)


@BOTH
@pytest.mark.parametrize("key", [None, "k:a key that is long enough"], ids=["plain", "signed"])
def test_another_tools_claim_is_judged_like_ours(hub, ref, graphql, key):
    """A runner of the published state machine may be a private member, or a stranger."""
    a_private_member(hub)
    hub.hub.user("mallory")
    claims = {who: f"<!-- agent-claim:codename={who} firing_id=1 ts=0 -->" for who in WHO}
    for who, body in claims.items():
        hub.acting(who).create_comment(hub.issue(int(ref.key)), body)
    keyring = parse_keyring(key) if key else None
    snapshot = hub.client("colleague", graphql=graphql, keyring=keyring).read(ref)
    assert [comment.by_writer for comment in snapshot.comments] == [True, False]


@BOTH
def test_a_private_members_pause_is_seen(hub, graphql):
    a_private_member(hub)
    clock = FakeClock()
    alice = GithubControl([hub.client("alice", graphql=graphql)], clock)
    alice.pause(PauseScope.FLEET, repo="", reason="stop", by="alice")
    other = GithubControl([hub.client("colleague", graphql=graphql)], clock)
    assert [pause.by for pause in other.pauses()] == ["alice"]


def test_an_account_is_looked_up_once_and_again_after_ten_minutes(hub, ref):
    hub.client().comment(ref, card("aaaaaaaaaaaa"))
    clock = FakeClock()
    reader = hub.client("colleague", clock=clock)
    for advanced, lookups in ((0, 1), (590, 0), (20, 1), (1, 0)):
        clock.advance(advanced)
        with hub.counted() as counted:
            assert reader.read(ref).comments[0].by_writer
        assert counted.get(LOOKUP, 0) == lookups, advanced


def test_what_is_no_mark_needs_no_lookup_and_neither_does_a_list_or_the_owner(hub, ref):
    hub.acting("mallory").create_comment(hub.issue(int(ref.key)), "<!-- claim me -->")
    hub.acting("mallory").create_comment(hub.issue(int(ref.key)), "I would like to do this")
    with hub.counted() as counted:
        hub.client("colleague").read(ref)
    assert counted == {READ: 1}
    forge(hub, ref, ["mallory"])
    with hub.counted() as counted:
        hub.client("colleague", trusted=("fleet",)).read(ref)
    assert counted == {READ: 1}
    hub.hub.user("ann")
    hub.repository("ann/own")
    owner = hub.client("ann", repository="ann/own")
    own = owner.create(Draft("one")).ref
    with hub.counted() as counted:
        owner.comment(own, card("aaaaaaaaaaaa"))
        assert owner.read(own).comments[0].by_writer
    assert counted == {COMMENT: 1, READ: 1, "graphql query Reader": 1}


def test_an_issue_costs_five_requests_and_none_for_the_account(hub):
    made = hub.acting().create_issue(hub.state.named(REPOSITORY), "a colleague's")
    ref = IssueRef(REPOSITORY, str(made.number))
    worker = hub.client()
    worker.read(ref)
    with hub.counted() as counted:
        posted = worker.comment(ref, card("aaaaaaaaaaaa"))
        worker.read(ref)
        worker.apply(ref, (EditComment(posted.id, card("aaaaaaaaaaaa", CardState.HELD)),))
        worker.read(ref)
        worker.apply(ref, (EditComment(posted.id, card("aaaaaaaaaaaa", CardState.RELEASED)),))
    assert counted == {COMMENT: 1, READ: 2, TRIP: 2}


def test_of_the_account_that_reads_a_reading_tells_by_itself(hub, ref):
    hub.client().comment(ref, card("aaaaaaaaaaaa"))
    with hub.counted() as counted:
        assert hub.client().read(ref).comments[0].by_writer
    assert counted == {READ: 1}


def test_a_reader_who_may_not_write_hears_nothing_good_of_itself(hub, ref):
    forge(hub, ref, ["mallory"])
    with hub.counted() as counted:
        client = hub.client("mallory", clock=hub.clock)
        assert not client.read(ref).comments[0].by_writer
    assert counted == {READ: 1, LOOKUP: 2, "GET /repos/{owner}/{repo}": 1}


# Strangers


@BOTH
def test_forged_marks_cost_a_lookup_each_and_five_a_reading(hub, ref, graphql):
    own = hub.client().comment(ref, card("aaaaaaaaaaaa"))
    forge(hub, ref, [f"stranger{number}" for number in range(12)])
    reader = hub.client("colleague", graphql=graphql)
    complete = []
    for _ in range(4):
        with hub.counted() as counted:
            snapshot = reader.read(ref)
        complete.append((counted.get(LOOKUP, 0), snapshot.complete))
        assert [one.id for one in snapshot.comments if one.by_writer] == [own.id]
    assert complete == [(5, False), (5, False), (3, True), (0, True)]


@BOTH
def test_a_heartbeat_does_not_fail_by_strangers(hub, ref, graphql):
    held = leases(hub.client(graphql=graphql))
    granted = held.acquire(bid(ref, "aaaaaaaaaaaa"))
    shown = held.show(granted.lease, ())
    assert isinstance(shown, Renewed)
    forge(hub, ref, [f"stranger{number}" for number in range(12)])
    assert isinstance(held.renew(shown.lease), Renewed)
    hub.hub.faults.add(Fault(Wrong.ERROR_BEFORE, kind="collaborators"))
    forge(hub, ref, [f"other{number}" for number in range(12)])
    assert isinstance(held.renew(shown.lease), Renewed)
    # and what a colleague says is looked up before anything that strangers say
    hub.hub.faults.clear()
    word = render_revoke(Revocation(RunId("aaaaaaaaaaaa"), "colleague", "stop", force=False))
    hub.acting("colleague").create_comment(hub.issue(int(ref.key)), word)
    assert not isinstance(held.renew(shown.lease), Renewed)


@BOTH
def test_a_private_member_is_believed_as_the_author_of_an_issue(hub, graphql):
    a_private_member(hub)
    ref = hub.client("alice").create(Draft("hers")).ref
    reader = hub.client("colleague", graphql=graphql)
    read = reader.read(ref)
    assert not read.issue.by_writer, "only members know that she is one"
    assert reader.with_authors(read).issue.by_writer


def test_the_list_is_fetched_as_long_as_a_lookup_is_left(hub):
    for login in ("colleague", "fleet"):
        hub.state.join("acme", login, public=False)
    judging = Judging(hub.client("colleague").trust, Purpose.LOOK)
    strangers = [hub.hub.user(f"stranger{number}") for number in range(LOOKUPS + 2)]
    for login in strangers[: LOOKUPS - 1]:
        assert judging.author(login, associated=False) is False
    rest = strangers[LOOKUPS - 1 :]
    assert judging.authors((login, False) for login in rest) == dict.fromkeys(rest, False)


@BOTH
def test_a_crowd_of_strangers_is_told_from_one_list_by_whoever_gets_it(hub, ref, graphql):
    """A member of the organisation does; who is no member looks up five a reading, as before."""
    for login in ("colleague", "fleet"):
        hub.state.join("acme", login, public=False)
    a_private_member(hub)
    held = leases(hub.client("alice", graphql=graphql)).acquire(bid(ref, "aaaaaaaaaaaa"))
    forge(hub, ref, [f"stranger{number}" for number in range(30)])
    clock = FakeClock()
    reader = hub.client("colleague", graphql=graphql, clock=clock)
    for lists in (1, 0):
        with hub.counted() as counted:
            snapshot = reader.read(ref)
        assert snapshot.complete
        assert [one.id for one in snapshot.comments if one.by_writer] == [held.lease.card]
        assert counted.get(LIST, 0) == lists
        assert counted.get(LOOKUP, 0) == 0
    rival = leases(hub.client("fleet", graphql=graphql)).acquire(bid(ref, "bbbbbbbbbbbb"))
    assert isinstance(rival, Busy)
    forge(hub, ref, [f"another{number}" for number in range(30)])
    clock.advance(601)
    with hub.counted() as counted:
        assert reader.read(ref).complete
    assert (counted[LIST], counted.get(LOOKUP, 0)) == (1, 0), "it is kept for ten minutes, too"


def test_a_list_that_is_not_given_is_asked_for_once_in_ten_minutes(hub, ref):
    forge(hub, ref, [f"stranger{number}" for number in range(30)])
    reader = hub.client("colleague")
    with hub.counted() as counted:
        complete = [reader.read(ref).complete for _ in range(6)]
    assert complete == [False] * 5 + [True]
    assert (counted[LIST], counted[LOOKUP]) == (1, 30)


def test_a_list_that_fills_its_page_tells_of_nobody(hub, ref):
    """There may be another page, and a list of several pages may miss somebody."""
    hub.state.join("acme", "colleague")
    for number in range(100):
        hub.hub.user(f"member{number}")
        hub.state.grant(REPOSITORY, f"member{number}", Permission.WRITE)
    forge(hub, ref, [f"stranger{number}" for number in range(6)])
    assert not hub.client("colleague").read(ref).complete


@BOTH
def test_with_a_key_what_nobody_signed_is_not_asked_about(hub, ref, graphql):
    keyring = parse_keyring("a secret that is long enough")
    made = SignedTracker(hub.client(graphql=graphql, keyring=keyring), keyring)
    own = made.comment(ref, card("aaaaaaaaaaaa"))
    forge(hub, ref, [f"stranger{number}" for number in range(12)])
    reader = SignedTracker(hub.client("colleague", graphql=graphql, keyring=keyring), keyring)
    with hub.counted() as counted:
        snapshot = reader.read(ref)
    assert snapshot.complete
    assert [one.id for one in snapshot.comments if one.by_writer] == [own.id]
    assert (counted.get(LOOKUP), counted.get(LIST)) == (1, None)


@BOTH
@pytest.mark.parametrize(
    ("permission", "writes"),
    [
        (Permission.READ, False),
        (Permission.TRIAGE, False),
        (Permission.WRITE, True),
        (Permission.MAINTAIN, True),
        (Permission.ADMIN, True),
    ],
)
def test_who_is_on_the_list_and_may_not_write_is_not_believed(
    hub, ref, graphql, permission, writes
):
    """The list names everybody with access: their permissions decide."""
    hub.state.join("acme", "colleague", public=False)
    hub.hub.user("somebody")
    hub.state.grant(REPOSITORY, "somebody", permission)
    forge(hub, ref, [f"stranger{number}" for number in range(12)])
    hub.acting("somebody").create_comment(hub.issue(int(ref.key)), card("aaaaaaaaaaaa"))
    reader = hub.client("colleague", graphql=graphql)
    with hub.counted() as counted:
        snapshot = reader.read(ref)
    assert counted.get(LIST) == 1
    assert snapshot.complete
    assert [one.author for one in snapshot.comments if one.by_writer] == ["somebody"] * writes


@BOTH
def test_a_writer_who_is_newer_than_the_list_is_looked_up(hub, ref, graphql):
    """Or a live card would be nobody's for ten minutes, and another would claim the issue."""
    for login in ("colleague", "fleet"):
        hub.state.join("acme", login, public=False)
    forge(hub, ref, [f"stranger{number}" for number in range(12)])
    reader = hub.client("colleague", graphql=graphql)
    with hub.counted() as counted:
        assert reader.read(ref).complete
    assert counted.get(LIST) == 1
    hub.hub.user("newcomer")
    hub.state.grant(REPOSITORY, "newcomer", Permission.WRITE)
    held = leases(hub.client("newcomer", graphql=graphql)).acquire(bid(ref, "aaaaaaaaaaaa"))
    assert isinstance(held, Granted)
    assert [one.id for one in reader.read(ref).comments if one.by_writer] == [held.lease.card]
    assert isinstance(leases(reader).acquire(bid(ref, "bbbbbbbbbbbb")), Busy)


# Where GitHub does not tell


@pytest.mark.parametrize(
    ("association", "writes"),
    [
        ("OWNER", True),
        ("MEMBER", True),
        ("COLLABORATOR", True),
        ("CONTRIBUTOR", False),
        ("FIRST_TIME_CONTRIBUTOR", False),
        ("FIRST_TIMER", False),
        ("MANNEQUIN", False),
        ("NONE", False),
    ],
)
def test_of_the_associations_a_merged_commit_is_no_right_to_write(association, writes):
    """Otherwise anybody with one merged commit could forge cards where the association decides."""
    translator = Translator(REPOSITORY)
    assert translator.believed("somebody", association) is writes
    assert translator.may_write("somebody", association) is writes


@BOTH
def test_who_may_not_ask_goes_by_the_association(hub, ref, graphql):
    hub.client().comment(ref, card("aaaaaaaaaaaa"))
    hub.acting("colleague").create_comment(hub.issue(int(ref.key)), card("bbbbbbbbbbbb"))
    onlooker = hub.client("mallory", graphql=graphql, clock=hub.clock)
    with hub.counted() as counted:
        assert [one.by_writer for one in onlooker.read(ref).comments] == [True, True]
        onlooker.read(ref)
    assert counted[LOOKUP] == 2, "a refusal is believed if it comes again"
    assert "depends on who asks" in onlooker.standpoint().doubt
    assert hub.client().standpoint().doubt == ""
    assert hub.client("mallory", trusted=("fleet",)).standpoint().doubt == ""


def test_a_bot_is_not_looked_up(hub, ref):
    hub.state.add_user("worker[bot]", kind="Bot")
    hub.state.grant(REPOSITORY, "worker[bot]", Permission.WRITE)
    hub.state.add_token("worker[bot]-token", "worker[bot]")
    hub.acting("worker[bot]").create_comment(hub.issue(int(ref.key)), card("aaaaaaaaaaaa"))
    reader = hub.client("colleague")
    with hub.counted() as counted:
        assert [one.by_writer for one in reader.read(ref).comments] == [False]
    assert counted == {READ: 1}
    with pytest.raises(NotPermitted, match=r"\[github\] trusted"):
        hub.client("worker[bot]").comment(ref, card("bbbbbbbbbbbb"))


def test_a_user_who_is_called_like_an_app_is_not_taken_for_its_bot(hub, ref):
    hub.state.add_user("worker[bot]", kind="Bot")
    hub.state.grant(REPOSITORY, "worker[bot]", Permission.WRITE)
    hub.state.add_token("worker[bot]-token", "worker[bot]")
    hub.acting("worker[bot]").create_comment(hub.issue(int(ref.key)), card("aaaaaaaaaaaa"))
    forge(hub, ref, ["worker"])
    snapshot = hub.client("worker[bot]").read(ref)
    assert {one.author: one.by_writer for one in snapshot.comments}["worker"] is False
