"""What counts as a failed attempt, what starts afresh, and how long an issue rests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.core.eligibility import Attempts, count_attempts
from dibs.core.pipeline import Backoff
from dibs.core.presets import STAGES

from .builders import at, make_try, s

READY = replace(STAGES.stage("ready"), attempts=3, backoff=Backoff(s(30), s(100)))
FAILED, CRASHED = make_try("failed"), make_try(None)
RETURNED, CONCEDED = make_try("returned"), make_try("conceded")
ADVANCED, PARKED = make_try("advanced"), make_try("parked")
RUNNING = make_try(None, ended=None)
TRIES = st.builds(
    make_try,
    st.sampled_from([None, "failed", "returned", "conceded", "advanced", "parked"]),
    stage=st.sampled_from(["ready", "ready", "ready", "review"]),
    ended=st.none() | st.integers(0, 1000),
    excused=st.booleans(),
)


@pytest.mark.parametrize(
    ("tries", "failed"),
    [
        ([], 0),
        ([FAILED], 1),
        ([CRASHED], 1),
        ([FAILED, CRASHED, FAILED], 3),
        ([RETURNED], 0),
        ([CONCEDED], 0),
        ([RUNNING], 0),
        ([make_try("failed", excused=True)], 0),
        ([make_try(None, excused=True)], 0),
        ([FAILED, RETURNED, FAILED], 2),  # giving back neither counts nor forgives
        ([FAILED, CONCEDED, FAILED], 2),
        ([FAILED, make_try(None, excused=True), FAILED], 2),
        ([FAILED, RUNNING], 1),
        ([FAILED, FAILED, ADVANCED], 0),
        ([FAILED, FAILED, ADVANCED, FAILED], 1),
        ([FAILED, FAILED, FAILED, PARKED], 0),
        ([FAILED, FAILED, FAILED, PARKED, CRASHED], 1),
        ([FAILED, make_try("failed", stage="review")], 0),
        ([FAILED, make_try("returned", stage="review"), FAILED], 1),
        ([make_try("failed", stage="review"), FAILED], 1),
    ],
)
def test_failures_in_this_stage_are_counted_since_the_issue_last_moved(tries, failed):
    assert count_attempts(tries, READY).failed == failed


@pytest.mark.parametrize(("failures", "spent"), [(0, False), (2, False), (3, True), (4, True)])
def test_attempts_are_spent_at_the_stages_limit(failures, spent):
    assert count_attempts([FAILED] * failures, READY).spent is spent


@pytest.mark.parametrize(("failures", "rest"), [(1, 30), (2, 60), (3, 100), (4, 100), (90, 100)])
def test_the_rest_after_the_last_failure_doubles_and_is_capped(failures, rest):
    tries = [make_try(ended=10 * number) for number in range(1, failures + 1)]
    attempts = count_attempts(tries, READY)
    assert attempts.rests_until == at(10 * failures + rest)


def test_an_issue_that_never_failed_does_not_rest():
    assert count_attempts([RETURNED, RUNNING], READY) == Attempts()
    assert Attempts() == Attempts(0, False, None)


@pytest.mark.parametrize(
    ("tries", "rests"),
    [
        ([CRASHED], None),
        ([FAILED, CRASHED], None),
        ([CRASHED, make_try("failed", ended=20)], 80),  # the second failure: twice the first rest
    ],
)
def test_a_vanished_holders_ttl_was_rest_enough(tries, rests):
    attempts = count_attempts(tries, READY)
    assert attempts.rests_until == (None if rests is None else at(rests))
    assert attempts.failed == len(tries)


def test_a_later_try_that_is_no_failure_does_not_move_the_rest():
    attempts = count_attempts([make_try(ended=10), make_try("returned", ended=50)], READY)
    assert attempts.rests_until == at(40)


@given(st.lists(TRIES, max_size=12))
def test_the_count_agrees_with_a_plain_reading_of_the_rule(tries):
    since = [
        number + 1
        for number, found in enumerate(tries)
        if found.stage != "ready" or found.outcome in ("advanced", "parked")
    ]
    window = tries[max(since, default=0) :]
    failures = [
        found
        for found in window
        if found.ended_at is not None and not found.excused and found.outcome in (None, "failed")
    ]
    attempts = count_attempts(tries, READY)
    assert attempts.failed == len(failures)
    assert attempts.spent is (len(failures) >= 3)
    said = bool(failures) and failures[-1].outcome is not None
    assert (attempts.rests_until is not None) is said


@given(st.lists(TRIES, max_size=12), st.sampled_from([ADVANCED, PARKED]))
def test_nothing_from_before_a_fresh_start_is_remembered(tries, fresh):
    assert count_attempts([*tries, fresh], READY) == Attempts()
    assert count_attempts([*tries, fresh, FAILED], READY) == count_attempts([FAILED], READY)
