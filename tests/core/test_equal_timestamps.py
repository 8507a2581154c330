"""Servers count in whole seconds: what happens in the same one is ordered by the comment's id."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from dibs.core.fold import FoldRules, LostTo, Won, fold, prove, read_marks
from dibs.core.ids import RunId

from .builders import bid, edited, make_snapshot

RULES = FoldRules(max_ttl=timedelta(minutes=1))


@given(st.permutations(range(1, 8)), st.integers(0, 3))
def test_of_all_bids_in_one_second_the_lowest_id_wins_however_they_are_listed(ids, now):
    comments = [bid(f"r{number}", number, 0) for number in ids]
    snapshot = make_snapshot(comments, now=now)
    verdicts = {number: prove(snapshot, RunId(f"r{number}"), RULES) for number in ids}
    assert isinstance(verdicts.pop(1), Won)
    assert {type(verdict) for verdict in verdicts.values()} == {LostTo}
    assert {verdict.record.lease.run for verdict in verdicts.values()} == {"r1"}


@given(st.lists(st.integers(0, 2), min_size=2, max_size=9), st.randoms(use_true_random=False))
def test_with_few_distinct_seconds_at_most_one_of_many_bids_is_in_force(seconds, dice):
    """Three seconds for up to nine bids: ties everywhere, listed in any order."""
    comments = [bid(f"r{n}", n, second, ttl=2) for n, second in enumerate(sorted(seconds), 1)]
    dice.shuffle(comments)
    now = max(seconds)
    snapshot = make_snapshot(comments, now=now)
    won = [
        number
        for number in range(1, len(comments) + 1)
        if isinstance(prove(snapshot, RunId(f"r{number}"), RULES), Won)
    ]
    assert len(won) <= 1
    assert won == [] or won[0] == fold(read_marks(comments, RULES), RULES).current.id


def test_a_bid_in_the_very_second_of_a_release_comes_after_it_and_counts():
    """The tie is decided for the newcomer on purpose: the holder had let go by then."""
    released = edited("old", "released", 1, 0, prev=20, updated=5)
    newcomer = bid("new", 2, 5)
    snapshot = make_snapshot([newcomer, released], now=5)
    assert isinstance(prove(snapshot, RunId("new"), RULES), Won)
