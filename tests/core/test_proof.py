"""A bid has won only on proof."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.core.fold import FoldRules, LostTo, NoProof, Won, prove
from dibs.core.ids import RunId

from .builders import RULES, at, bid, edited, make_snapshot, revoke, s, shown_by_another

ME = RunId("me")


def verdict(*comments, now, rules=RULES):
    return prove(make_snapshot(comments, now=now, labels=["stage:ready"]), ME, rules)


@pytest.mark.parametrize(
    ("comments", "now", "fence", "ends"),
    [
        ([bid("me", 5, 0)], 1, 5, 20),
        ([bid("me", 5, 0), bid("b", 6, 0)], 1, 5, 20),
        ([bid("b", 4, 0), bid("me", 5, 20)], 21, 5, 40),
        ([edited("b", "released", 4, 0, prev=20, updated=7), bid("me", 5, 7)], 8, 5, 27),
        ([edited("b", "conceded", 4, 0, prev=20, updated=7), bid("me", 5, 8)], 8, 5, 28),
        ([edited("b", "held", 4, 0, prev=20, updated=7), bid("me", 5, 27)], 28, 5, 47),
        # posted between the end and the edit that says its labels are painted
        ([edited("b", "released", 4, 0, prev=7, updated=9, shown=True), bid("me", 5, 8)], 9, 5, 28),
    ],
)
def test_a_bid_wins_if_the_fold_names_it(comments, now, fence, ends):
    won = verdict(*comments, now=now)
    assert isinstance(won, Won)
    assert (won.lease.fence, won.lease.run, won.lease.expires_at) == (fence, "me", at(ends))


@pytest.mark.parametrize(
    ("comments", "now", "rival"),
    [
        ([bid("b", 4, 0), bid("me", 5, 0)], 1, "b"),
        ([bid("b", 4, 0), bid("me", 5, 19)], 19, "b"),
        ([edited("b", "held", 4, 0, prev=20, updated=7), bid("me", 5, 26)], 26, "b"),
        ([bid("me", 5, 0), edited("b", "held", 6, 1, prev=21, updated=2)], 3, "b"),
        ([bid("b", 4, 0), bid("me", 5, 10), bid("c", 6, 20)], 21, "c"),
    ],
)
def test_a_bid_loses_to_the_run_that_was_in_force(comments, now, rival):
    lost = verdict(*comments, now=now)
    assert isinstance(lost, LostTo)
    assert lost.record.lease.run == rival
    assert lost.record.as_of == at(now)


def test_a_bidder_that_lost_is_told_the_bid_that_beat_it_and_not_a_lease_long_over():
    over = edited("old", "released", 1, 0, prev=20, updated=5, outcome="failed")
    lost = verdict(over, bid("b", 2, 30), bid("me", 3, 31), now=32)
    assert isinstance(lost, LostTo)
    assert lost.record.lease.run == "b"
    assert lost.record.live


@pytest.mark.parametrize(
    ("marks", "painted"),
    [
        ([edited("b", "released", 4, 0, prev=20, updated=7)], False),
        ([edited("b", "released", 4, 0, prev=7, updated=9, shown=True)], True),
        ([edited("b", "released", 4, 0, prev=20, updated=7), shown_by_another("b", 6, 8)], True),
    ],
)
def test_a_bidder_that_lost_is_told_whether_the_ending_it_lost_to_is_painted(marks, painted):
    lost = verdict(*marks, bid("me", 5, 6), now=9)
    assert isinstance(lost, LostTo)
    assert lost.record.unpainted is not painted


@pytest.mark.parametrize(
    ("comments", "now"),
    [
        ([], 1),
        ([bid("b", 4, 0)], 1),
        ([bid("me", 5, 0, by_writer=False)], 1),
        ([bid("me", 5, 0, ttl=90_000)], 1),
        ([bid("me", 5, 0)], 20),  # expired before it could be confirmed
        ([bid("me", 5, 0)], 99),
        ([bid("me", 5, 0), revoke("me", 6, 1, force=True)], 2),
    ],
)
def test_without_proof_there_is_no_win_and_no_loss(comments, now):
    doubt = verdict(*comments, now=now)
    assert isinstance(doubt, NoProof)
    assert doubt.why


@given(
    st.integers(0, 4),
    st.integers(1, 3),
    st.booleans(),
)
def test_an_incomplete_list_proves_nothing(others, missing, pages_missing):
    comments = [bid("me", 1, 0), *(bid(f"b{n}", n + 2, 1) for n in range(others))]
    snapshot = make_snapshot(comments, now=2)
    if pages_missing:
        short = replace(snapshot, all_pages=False)
    else:
        count = snapshot.issue.comment_count + missing
        short = replace(snapshot, issue=replace(snapshot.issue, comment_count=count))
    assert isinstance(prove(snapshot, ME, RULES), Won)
    assert isinstance(prove(short, ME, RULES), NoProof)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([3, 9])), min_size=1, max_size=7),
    st.integers(0, 45),
)
def test_of_all_bidders_on_one_list_at_most_one_is_told_that_it_won(bids, now):
    """Every bidder reads the same list at the same time; ids follow the server's order."""
    now = max(now, *(created for created, _ in bids))
    comments = [
        bid(f"r{n}", n, created, ttl=ttl) for n, (created, ttl) in enumerate(sorted(bids), 1)
    ]
    snapshot = make_snapshot(comments, now=now)
    rules = FoldRules(max_ttl=s(60))
    verdicts = [prove(snapshot, RunId(f"r{n}"), rules) for n in range(1, len(comments) + 1)]
    assert sum(isinstance(one, Won) for one in verdicts) <= 1
    if any(isinstance(one, Won) for one in verdicts):
        assert not any(isinstance(one, NoProof) for one in verdicts)
