"""Who may push what closes an issue, case by case."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.core.agent_dialect import firing_holder, their_release
from dibs.core.fold import standing_on_comments
from dibs.core.following import LinkedPull, PullFate
from dibs.core.ids import Fence, HolderId, IssueRef, RunId
from dibs.core.issue import Person, Snapshot
from dibs.core.pipeline import Dialect, People, WhosePulls
from dibs.core.presets import AGENT, STAGES
from dibs.hook.rules import Pusher, judge_push

from .builders import REF, RULES, at, bid, edited, make_comment, make_issue, revoke

ANN = Person("ann")
CLAIM = "<!-- agent-claim:codename=lucius firing_id={} ts=x -->"
PULL = "https://github.com/acme/shop/pull/32"
HELD = edited("a", "held", 5, 0, prev=20, updated=1, ttl=100)
EXPIRED = edited("a", "held", 5, 0, prev=20, updated=1, ttl=20)
NAMED = [
    make_comment(CLAIM.format("f"), 5, 10),
    make_comment(their_release("lucius", "f", "success", "x", pr=PULL), 6, 20),
]
RETURNED = edited("a", "released", 5, 0, prev=20, updated=10)
ME = Pusher(runs=frozenset({RunId("a")}))
STRANGER = Pusher()


def judged(comments=(), pusher=STRANGER, *, pulls=(), pipeline=STAGES, labels=(), now=50, grace=0):
    first = () if pipeline.dialect is Dialect.AGENT else ("stage:ready",)
    issue = make_issue([*first, *labels], count=len(comments))
    snapshot = Snapshot(issue, tuple(comments), at(now))
    standing = standing_on_comments(snapshot, RULES)
    return judge_push(snapshot, standing, pulls, pipeline, timedelta(seconds=grace), pusher)


def codes(result):
    return [objection.code for objection in result.objections]


def pull(fate=PullFate.OPEN, *, head="fix", foreign=False, repo="acme/shop", ended=None):
    return LinkedPull(IssueRef(repo, "31"), ANN, fate, at(0), ended, head, foreign)


@pytest.mark.parametrize(
    ("comments", "now", "refused"),
    [
        ([], 50, []),
        ([HELD], 50, ["HELD"]),
        ([bid("a", 5, 45)], 50, ["BID_PENDING"]),
        ([EXPIRED], 50, []),
        ([RETURNED], 50, []),
        ([make_comment(CLAIM.format("f"), 5, 0)], 50, ["FOREIGN_CLAIM"]),
        ([make_comment(CLAIM.format("f"), 5, 0, by_writer=False)], 50, []),
        ([make_comment("Closes #7, I am on it", 5, 0)], 50, []),
    ],
)
def test_a_stranger_is_refused_while_it_is_in_flight(comments, now, refused):
    assert codes(judged(comments, now=now)) == refused


def test_an_expired_lease_counts_as_long_as_its_grace():
    assert codes(judged([EXPIRED], now=25, grace=10)) == ["IN_GRACE"]


@pytest.mark.parametrize(
    ("comments", "refused"),
    [
        ([HELD], []),
        ([EXPIRED], ["LEASE_LOST"]),
        ([RETURNED], []),  # it was ended: what comes after is anybody's
        (
            [EXPIRED, edited("b", "held", 6, 30, prev=50, updated=31, ttl=100)],
            ["LEASE_LOST", "HELD"],
        ),
        ([RETURNED, edited("b", "held", 6, 30, prev=50, updated=31, ttl=100)], ["HELD"]),
        ([], []),  # a run that is not said to be for this issue
    ],
)
def test_a_holder_is_let_through_while_its_lease_is_current(comments, refused):
    assert codes(judged(comments, ME)) == refused


def test_a_run_that_is_said_to_be_for_the_issue_and_is_not_there_is_refused():
    assert codes(judged([], replace(ME, issue=REF))) == ["LEASE_LOST"]
    assert codes(judged([], replace(ME, issue=IssueRef("acme/shop", "8")))) == []


@pytest.mark.parametrize(("fence", "refused"), [(5, []), (4, ["LEASE_LOST"]), (6, ["LEASE_LOST"])])
def test_a_fence_that_is_told_has_to_be_the_leases(fence, refused):
    assert codes(judged([HELD], replace(ME, fence=Fence(fence)))) == refused


def test_a_lease_that_an_operator_asks_for_is_still_current_and_its_holder_is_told():
    result = judged([HELD, revoke("a", 6, 40)], ME)
    assert result.objections == ()
    assert "operator asked for your lease back" in result.remarks[0]


@pytest.mark.parametrize(("firing", "refused"), [("f-1", []), ("f-2", ["HELD"]), ("f", ["HELD"])])
def test_commits_that_name_the_firing_are_the_holders(firing, refused):
    pusher = Pusher(firings=frozenset({("lucius", firing)}))
    for holder in (firing_holder("lucius", "f-1"), firing_holder("lucius", "f-1~2")):
        body = HELD.body.replace("worker-a", str(HolderId(holder)).replace(" ", "%20"))
        assert codes(judged([replace(HELD, body=body)], pusher)) == refused


def test_a_firing_id_that_is_too_long_for_a_card_is_known_by_what_the_card_says():
    firing, other = ("f" * 60 + end for end in ("1", "2"))
    holder = str(firing_holder("lucius", firing)).replace(" ", "%20")
    held = [replace(HELD, body=HELD.body.replace("worker-a", holder))]
    assert codes(judged(held, Pusher(firings=frozenset({("lucius", firing)})))) == []
    assert codes(judged(held, Pusher(firings=frozenset({("lucius", other)})))) == ["HELD"]


def test_another_tools_claim_is_its_own_commits():
    claim = make_comment(CLAIM.format("f-1"), 5, 0)
    assert codes(judged([claim], Pusher(firings=frozenset({("lucius", "f-1")})))) == []
    assert codes(judged([claim], Pusher(firings=frozenset({("robin", "f-1")})))) == [
        "FOREIGN_CLAIM"
    ]


@pytest.mark.parametrize(
    ("firing", "refused"), [("f-1", []), ("f-2", ["FOREIGN_CLAIM"]), (None, ["FOREIGN_CLAIM"])]
)
def test_the_label_beside_another_tools_claim_is_the_claims(firing, refused):
    """As an old runner leaves it: the label, and a comment that says whose it is."""
    pusher = Pusher(firings=frozenset({("lucius", firing)} if firing else ()))
    claim = make_comment(CLAIM.format("f-1"), 5, 0)
    labels = ["agent:implement", "agent:in-flight"]
    assert codes(judged([claim], pusher, pipeline=AGENT, labels=labels)) == refused


def test_a_label_is_nobodys_where_the_claims_of_other_tools_do_not_count():
    pipeline = replace(AGENT, people=People(markers=False))
    claim = make_comment(CLAIM.format("f-1"), 5, 0)
    told = judged([claim], pipeline=pipeline, labels=["agent:in-flight"])
    assert codes(told) == ["CLAIM_LABEL_ONLY"]


def test_flaw_08_a_strangers_release_frees_nothing_and_a_runners_own_does():
    claim = make_comment(CLAIM.format("f-1"), 5, 0)
    text = "<!-- agent-release:codename=lucius firing_id=f-1 outcome=success ts=x -->"
    forged = make_comment(text, 6, 1, by_writer=False)
    assert codes(judged([claim, forged])) == ["FOREIGN_CLAIM"]
    assert codes(judged([claim, replace(forged, by_writer=True)])) == []


def test_flaw_09_a_strangers_claim_keeps_nobody_from_pushing():
    assert codes(judged([make_comment(CLAIM.format("f"), 5, 0, by_writer=False)])) == []
    assert codes(judged([replace(HELD, by_writer=False)])) == []


@pytest.mark.parametrize("label", ["paused", "parked", "do-not-pickup", "approved", "anything"])
def test_flaw_22_labels_that_keep_workers_off_keep_nobody_from_pushing(label):
    assert codes(judged(labels=[label])) == []


@pytest.mark.parametrize("label", ["claimed", "stage:processing"])
def test_a_label_without_a_card_counts_for_a_ttl(label):
    assert codes(judged(labels=[label], now=50)) == ["CLAIM_LABEL_ONLY"]
    assert codes(judged(labels=[label], now=100_000)) == []


def test_a_working_label_that_an_expired_lease_explains_is_left_over():
    assert codes(judged([EXPIRED], labels=["stage:processing", "claimed"], now=50)) == []


@pytest.mark.parametrize(
    ("pulls", "pusher", "refused"),
    [
        ([pull()], STRANGER, ["PULL_OPEN"]),
        ([pull(PullFate.MERGED), pull(PullFate.UNMERGED)], STRANGER, []),
        ([pull()], Pusher(branches=frozenset({"fix"})), []),
        ([pull()], Pusher(branches=frozenset({"fix"}), repo="ACME/shop"), []),
        ([pull()], Pusher(branches=frozenset({"fix"}), repo="me/shop"), ["PULL_OPEN"]),
        ([pull(foreign=True)], Pusher(branches=frozenset({"fix"}), repo="me/shop"), []),
        ([pull(foreign=True)], Pusher(branches=frozenset({"fix"})), ["PULL_OPEN"]),
        ([pull()], Pusher(branches=frozenset({"other"})), ["PULL_OPEN"]),
        ([pull(head="")], Pusher(branches=frozenset({""})), ["PULL_OPEN"]),
        ([pull()] * 9, STRANGER, ["PULL_OPEN"] * 3),
    ],
)
def test_an_open_pull_request_from_another_branch_is_refused(pulls, pusher, refused):
    assert codes(judged(pulls=pulls, pusher=pusher)) == refused


def test_a_holder_is_only_told_of_a_pull_request():
    result = judged([HELD], ME, pulls=[pull()])
    assert result.objections == ()
    assert "ann has an open pull request for it: acme/shop#31 from branch fix" in result.remarks[0]


MOVED_ON = edited(
    "a", "released", 5, 0, prev=20, updated=10, outcome="advanced", target="pr-open", shown=True
)
BRANCH = Pusher(branches=frozenset({"fix"}))


@pytest.mark.parametrize(
    ("comments", "pulls", "pusher", "refused"),
    [
        ([], [], STRANGER, ["PULL_OPEN"]),
        ([], [], BRANCH, ["PULL_OPEN"]),
        ([], [pull()], BRANCH, []),  # more commits for its pull request
        ([], [pull()], STRANGER, ["PULL_OPEN"]),
        ([], [replace(pull(), by_writer=False)], BRANCH, ["PULL_OPEN"]),
        ([], [], Pusher(pulls_for=frozenset({REF})), []),  # a pull request that names it
        ([], [], Pusher(pulls_for=frozenset({IssueRef("acme/shop", "8")})), ["PULL_OPEN"]),
        ([MOVED_ON], [], ME, []),
        ([MOVED_ON], [], STRANGER, ["PULL_OPEN"]),
        ([RETURNED], [], ME, ["PULL_OPEN"]),
        ([], [pull(PullFate.MERGED, ended=at(30))], STRANGER, []),  # not followed yet
        ([], [pull(PullFate.UNMERGED, ended=at(30))], STRANGER, []),
        ([MOVED_ON], [pull(PullFate.UNMERGED, ended=at(-5))], STRANGER, ["PULL_OPEN"]),
        # One that ended before the old runner whose release names another.
        (NAMED, [pull(PullFate.UNMERGED, ended=at(5))], STRANGER, ["PULL_OPEN"]),
        (NAMED, [pull(PullFate.UNMERGED, ended=at(15))], STRANGER, []),
    ],
)
def test_a_stage_that_follows_a_pull_request_is_refused_to_all_but_its_author(
    comments, pulls, pusher, refused
):
    told = judged(comments, pusher, pulls=pulls, pipeline=AGENT, labels=["agent:pr-open"])
    assert codes(told) == refused


def test_the_label_of_a_closed_issue_refuses_nothing():
    issue = make_issue(["agent:pr-open"], open=False)
    snapshot = Snapshot(issue, (), at(50))
    standing = standing_on_comments(snapshot, RULES)
    assert codes(judge_push(snapshot, standing, (), AGENT, timedelta(), STRANGER)) == []


def test_commits_of_the_firing_that_moved_it_on_are_its_authors():
    holder = str(firing_holder("lucius", "f-1")).replace(" ", "%20")
    comment = replace(MOVED_ON, body=MOVED_ON.body.replace("worker-a", holder))
    for firing, refused in (("f-1", []), ("f-2", ["PULL_OPEN"])):
        pusher = Pusher(firings=frozenset({("lucius", firing)}))
        assert codes(judged([comment], pusher, pipeline=AGENT, labels=["agent:pr-open"])) == refused


def test_what_is_turned_off_for_workers_is_turned_off_for_pushes():
    pipeline = replace(STAGES, people=People(pulls=WhosePulls.NONE, markers=False))
    comments = [make_comment(CLAIM.format("f"), 5, 0)]
    assert codes(judged(comments, pulls=[pull()], pipeline=pipeline)) == []
    pipeline = replace(AGENT, people=People(pulls=WhosePulls.NONE))
    assert codes(judged(pipeline=pipeline, labels=["agent:pr-open"])) == []


def test_no_objection_offers_a_way_to_take_it():
    everything = judged([EXPIRED, make_comment(CLAIM.format("f"), 7, 1)], ME, pulls=[pull()])
    assert len(everything.objections) == 3
    for objection in everything.objections:
        text = f"{objection.text} {objection.look}"
        assert not {"revoke", "--force", "--no-verify"} & set(text.split()), text
