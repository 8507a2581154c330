"""What an issue's pull requests decide, and which of them belong to an earlier life of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.core.agent_dialect import their_release
from dibs.core.following import (
    LinkedPull,
    PullFate,
    decided_by,
    entered_at,
    heeded,
    opened_by_a_run,
)
from dibs.core.ids import IssueRef, StageName
from dibs.core.issue import Person
from dibs.core.pipeline import People

from .builders import at, edited, make_comment

OPEN, MERGED, UNMERGED = PullFate.OPEN, PullFate.MERGED, PullFate.UNMERGED
ANN = Person("ann")


def pull(number, fate, *, opened=0, ended=None):
    if fate is not OPEN and ended is None:
        ended = opened + 10
    ref = IssueRef("acme/shop", str(number))
    return LinkedPull(ref, ANN, fate, at(opened), None if ended is None else at(ended))


@pytest.mark.parametrize(
    ("login", "by_writer", "fate", "elsewhere", "counts"),
    [
        ("ann", True, OPEN, False, True),
        ("mallory", False, OPEN, False, False),
        ("mallory", False, MERGED, False, True),  # a writer merged it
        ("mallory", False, MERGED, True, False),  # perhaps one who may write only there
        ("Fleet-Bot", False, OPEN, False, True),
    ],
)
def test_whose_pull_requests_may_move_an_issue(login, by_writer, fate, elsewhere, counts):
    one = replace(pull(1, fate), author=Person(login), by_writer=by_writer, elsewhere=elsewhere)
    assert heeded([one], People(fleet=frozenset({"fleet-bot"}))) == ((one,) if counts else ())


@pytest.mark.parametrize(
    ("pulls", "issue_open", "decides"),
    [
        ([], True, None),
        ([pull(1, OPEN)], True, None),
        ([pull(1, MERGED)], True, 1),
        ([pull(1, MERGED)], False, 1),  # the merge closed it
        ([pull(1, UNMERGED)], True, 1),
        ([pull(1, UNMERGED)], False, None),  # whoever closed the issue has said the last word
        ([pull(1, UNMERGED), pull(2, OPEN)], True, None),
        ([pull(1, MERGED), pull(2, OPEN)], True, None),  # a chain: one is not through yet
        ([pull(1, MERGED), pull(2, OPEN)], False, 1),
        ([pull(1, UNMERGED), pull(2, MERGED)], True, 2),
        ([pull(1, MERGED), pull(2, UNMERGED, ended=99)], True, 1),
        ([pull(1, UNMERGED, ended=99), pull(2, UNMERGED)], True, 1),  # the one closed last
    ],
)
def test_which_pull_request_decides(pulls, issue_open, decides):
    found = decided_by(pulls, None, issue_open=issue_open)
    assert (found.ref.key if found else None) == (str(decides) if decides else None)


@pytest.mark.parametrize(("began", "counts"), [(9, True), (10, True), (11, False)])
@pytest.mark.parametrize("fate", [MERGED, UNMERGED])
def test_what_ended_before_the_run_began_that_led_here_decides_nothing(began, counts, fate):
    assert bool(decided_by([pull(1, fate)], at(began), issue_open=True)) is counts


@given(
    st.lists(
        st.builds(
            pull,
            st.integers(1, 9),
            st.sampled_from([OPEN, MERGED, UNMERGED]),
            opened=st.integers(0, 50),
        )
    ),
    st.none() | st.integers(0, 70).map(at),
    st.booleans(),
)
def test_an_open_issue_with_an_open_pull_request_stays_and_only_what_is_over_decides(
    pulls, since, issue_open
):
    found = decided_by(pulls, since, issue_open=issue_open)
    if issue_open and any(one.fate is OPEN for one in pulls):
        assert found is None
    if found is not None:
        assert found in pulls
        assert found.fate is not OPEN
        assert since is None or found.ended_at >= since


TO_PR = {"outcome": "advanced", "target": "pr-open"}
BACK = {"outcome": "advanced", "target": "implement"}


def test_the_last_run_that_led_into_the_stage_is_when_it_was_entered():
    first = edited("a", "released", 1, 0, updated=9, prev=20, **TO_PR)
    back = edited("b", "released", 2, 30, updated=39, prev=50, **BACK)
    second = edited("c", "released", 3, 60, updated=69, prev=80, **TO_PR)
    late = edited("d", "released", 4, 90, updated=150, prev=110, **TO_PR)
    assert entered_at(StageName("pr-open"), [first, back]) == at(0)
    assert entered_at(StageName("pr-open"), [first, back, second]) == at(60)
    assert entered_at(StageName("pr-open"), [first, late]) == at(0), "too late counts for nothing"
    assert entered_at(StageName("pr-open"), [back]) is None
    assert entered_at(StageName("pr-open"), []) is None


def test_without_a_card_the_run_whose_release_names_a_pull_request_led_into_the_stage():
    url = "https://github.com/acme/shop/pull/32"
    claim = make_comment("<!-- agent-claim:codename=lucius firing_id=f ts=x -->", 1, 10)
    other = make_comment("<!-- agent-claim:codename=lucius firing_id=g ts=x -->", 2, 12)
    release = make_comment(their_release("lucius", "f", "success", "x", pr=url), 3, 20)
    nameless = make_comment(their_release("lucius", "g", "failed", "x"), 4, 25)
    forged = replace(release, id=5, created_at=at(30), by_writer=False)
    entered = entered_at(StageName("pr-open"), [claim, other, release, nameless, forged])
    assert entered == at(10)
    assert entered_at(StageName("pr-open"), [other, release]) == at(20)
    card = edited("a", "released", 6, 5, updated=9, prev=20, **TO_PR)
    assert entered_at(StageName("pr-open"), [claim, release, card]) == at(5)


@pytest.mark.parametrize(("opened", "by_it"), [(-1, False), (0, True), (9, True), (10, False)])
def test_a_pull_request_is_a_runs_if_it_was_opened_while_the_run_was_at_work(opened, by_it):
    ended = edited("a", "released", 1, 0, updated=9, prev=20, **TO_PR)
    assert opened_by_a_run(pull(1, OPEN, opened=opened), [ended]) is by_it


@pytest.mark.parametrize(("opened", "by_it"), [(24, True), (26, False)])
def test_a_holder_that_vanished_may_have_opened_it_until_its_lease_ran_out(opened, by_it):
    held = edited("a", "held", 1, 0, updated=5, prev=20)
    assert opened_by_a_run(pull(1, OPEN, opened=opened), [held]) is by_it


def test_a_bid_that_was_conceded_opened_nothing():
    conceded = edited("a", "conceded", 1, 0, updated=9, prev=20)
    assert not opened_by_a_run(pull(1, OPEN, opened=3), [conceded])
