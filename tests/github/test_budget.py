"""What is left of a token, who may spend it, and when a server is left alone: pure, by rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.adapters.github.limits import (
    Breaker,
    Budget,
    Failed,
    Kind,
    Limited,
    Limits,
    Pace,
    Passed,
    Purpose,
    Resource,
    Spending,
    budget_told,
)
from dibs.core.ids import LocalTime

HOUR = 3600.0
moments = st.floats(0, 1e7, allow_nan=False).map(LocalTime)
spans = st.floats(0, HOUR, allow_nan=False)
purposes = st.sampled_from(Purpose)
budgets = st.builds(
    lambda limit, share, at, left: (Budget(limit, int(limit * share), LocalTime(at + left)), at),
    st.integers(60, 15_000),
    st.floats(0, 1),
    moments,
    spans,
)

# Budgets


@given(budgets)
def test_who_matters_more_never_waits_longer(told):
    budget, now = told
    waits = [budget.wait_s(purpose, now) for purpose in Purpose]
    assert waits == sorted(waits, reverse=True)


@given(budgets, purposes)
def test_after_the_wait_there_is_no_wait(told, purpose):
    budget, now = told
    later = LocalTime(now + budget.wait_s(purpose, now) + 0.01)
    assert budget.wait_s(purpose, later) <= 0.01


@given(budgets)
def test_a_heartbeat_is_refused_only_when_nothing_is_left(told):
    budget, now = told
    refused = budget.wait_s(Purpose.HOLD, now) > 0
    assert refused == (budget.remaining == 0 and now < budget.resets_at)
    assert refused == budget.spent(now)


@pytest.mark.parametrize(
    ("remaining", "left_s", "allowed"),
    [
        (5000, 3600, set(Purpose)),
        (2500, 1800, set(Purpose)),
        (900, 1800, {Purpose.LOOK, Purpose.CLAIM, Purpose.FINISH, Purpose.HOLD}),
        (400, 1800, {Purpose.CLAIM, Purpose.FINISH, Purpose.HOLD}),
        (200, 1800, {Purpose.FINISH, Purpose.HOLD}),
        (9, 1800, {Purpose.HOLD}),
        (0, 1800, set()),
        # so near to the end that an even share is next to nothing, something is still kept
        (90, 5, {Purpose.LOOK, Purpose.CLAIM, Purpose.FINISH, Purpose.HOLD}),
        (11, 5, {Purpose.FINISH, Purpose.HOLD}),
        (0, 0, set(Purpose)),
    ],
)
def test_what_is_shed_first(remaining, left_s, allowed):
    budget = Budget(5000, remaining, LocalTime(1000.0 + left_s))
    now = LocalTime(1000.0)
    assert {purpose for purpose in Purpose if budget.wait_s(purpose, now) == 0} == allowed


def test_replies_that_overtake_each_other_do_not_give_anything_back():
    budget = Budget(5000, 100, LocalTime(5000.0))
    assert budget.after(Budget(5000, 120, LocalTime(5001.0))).remaining == 100
    assert budget.after(Budget(5000, 90, LocalTime(4999.0))).remaining == 90
    assert budget.after(Budget(5000, 4999, LocalTime(8600.0))).remaining == 4999
    assert budget.after(Budget(5000, 1, LocalTime(1400.0))).remaining == 100


HEADERS = {
    "x-ratelimit-limit": "5000",
    "x-ratelimit-remaining": "4321",
    "x-ratelimit-reset": "2000",
}


def test_what_a_reply_tells():
    assert budget_told(HEADERS, 1400.0, LocalTime(77.0)) == Budget(5000, 4321, LocalTime(677.0))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {**HEADERS, "x-ratelimit-limit": "many"},
        {**HEADERS, "x-ratelimit-limit": "0"},
        {name: value for name, value in HEADERS.items() if "reset" not in name},
    ],
)
def test_a_server_that_does_not_count_tells_nothing(headers):
    assert budget_told(headers, 1400.0, LocalTime(77.0)) is None


def test_a_reset_in_the_far_future_shuts_nobody_out_for_longer_than_an_hour():
    told = budget_told({**HEADERS, "x-ratelimit-reset": "99999999"}, 1400.0, LocalTime(0.0))
    assert told is not None
    assert told.resets_at == HOUR


# Pace

SMALL = Limits(
    creations_a_minute=7,
    creations_an_hour=20,
    rest_points_a_minute=60,
    graphql_points_a_minute=80,
    issues_a_minute=3,
    issues_an_hour=9,
)


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from(Kind), purposes), max_size=120))
def test_no_minute_and_no_hour_ever_holds_more_than_it_may(asks):
    pace, now, let = Pace(), LocalTime(1000.25), []
    for wait, kind, purpose in asks:
        now = LocalTime(now + wait)
        if pace.wait_s(kind, purpose, SMALL, now) <= 0:
            pace.add(kind, SMALL, now)
            let.append((now, kind))

    def most(span, weight):
        return max(
            (
                sum(weight(kind) for at, kind in let if start <= at < start + span)
                for start, _ in let
            ),
            default=0,
        )

    assert most(60, lambda kind: kind.creates) <= SMALL.creations_a_minute
    assert most(HOUR, lambda kind: kind.creates) <= SMALL.creations_an_hour
    assert most(60, lambda kind: kind is Kind.REST_ISSUE) <= SMALL.issues_a_minute
    assert most(HOUR, lambda kind: kind is Kind.REST_ISSUE) <= SMALL.issues_an_hour
    assert most(60, lambda kind: kind.points * kind.graphql) <= SMALL.graphql_points_a_minute
    assert most(60, lambda kind: kind.points * (not kind.graphql)) <= SMALL.rest_points_a_minute


@given(st.lists(st.floats(0, 5), max_size=40), st.sampled_from(Kind), purposes)
def test_after_the_wait_for_the_pace_there_is_room(gaps, kind, purpose):
    pace, now = Pace(), LocalTime(500.0)
    for gap in gaps:
        now = LocalTime(now + gap)
        if pace.wait_s(kind, Purpose.HOLD, SMALL, now) <= 0:
            pace.add(kind, SMALL, now)
    wait_s = pace.wait_s(kind, purpose, SMALL, now)
    assert 0 <= wait_s <= HOUR + 120
    assert pace.wait_s(kind, purpose, SMALL, LocalTime(now + wait_s + 0.001)) == 0


def test_a_part_is_kept_for_finishing_and_for_heartbeats():
    pace, now, limits = Pace(), LocalTime(100.0), Limits()

    def fill(purpose):
        count = 0
        while pace.wait_s(Kind.REST_CREATE, purpose, limits, now) <= 0:
            pace.add(Kind.REST_CREATE, limits, now)
            count += 1
        return count

    assert fill(Purpose.CLAIM) == 72
    assert fill(Purpose.CLAIM) == 0
    assert fill(Purpose.FINISH) == 5
    assert fill(Purpose.HOLD) == 3


def test_edits_and_reads_are_not_content():
    pace, now, limits = Pace(), LocalTime(100.0), Limits()
    for _ in range(100):
        pace.add(Kind.REST_EDIT, limits, now)
        pace.add(Kind.GRAPHQL_EDIT, limits, now)
        pace.add(Kind.REST_READ, limits, now)
    used = {rule.name: pace.used(rule, now) for rule in limits.rules}
    assert used == {
        "creations a minute": 0,
        "creations an hour": 0,
        "REST points a minute": 600,
        "GraphQL points a minute": 500,
        "new issues a minute": 0,
        "new issues an hour": 0,
    }


def test_new_issues_have_a_limit_of_their_own_and_leave_comments_theirs():
    pace, now, limits = Pace(), LocalTime(100.0), Limits()
    made = 0
    while pace.wait_s(Kind.REST_ISSUE, Purpose.FINISH, limits, now) <= 0:
        pace.add(Kind.REST_ISSUE, limits, now)
        made += 1
    assert made == 19
    assert 60 <= pace.wait_s(Kind.REST_ISSUE, Purpose.FINISH, limits, now) <= 63
    assert pace.wait_s(Kind.REST_CREATE, Purpose.FINISH, limits, now) == 0
    assert limits.shared_by(4).issues_a_minute == 5


def test_several_machines_keep_to_their_parts():
    assert Limits().shared_by(1) == Limits()
    assert Limits().shared_by(4) == Limits(20, 125, 225, 500, 5, 37)
    tiny = Limits().shared_by(1_000_000)
    pace = Pace()
    assert all(pace.wait_s(kind, Purpose.DISCOVER, tiny, T) == 0 for kind in Kind)


def test_where_there_is_no_limit_it_is_counted_all_the_same():
    pace, limits = Pace(), Limits.none()
    for _ in range(1000):
        assert pace.wait_s(Kind.REST_CREATE, Purpose.DISCOVER, limits, T) == 0
        pace.add(Kind.REST_CREATE, limits, T)
    assert pace.used(limits.rules[0], T) == 1000


def test_what_another_clock_counted_counts_nothing():
    pace, limits = Pace(), Limits(creations_a_minute=1)
    pace.add(Kind.REST_CREATE, limits, LocalTime(9_000_000.0))
    assert pace.wait_s(Kind.REST_CREATE, Purpose.CLAIM, limits, LocalTime(100.0)) == 0


# The breaker

T = LocalTime(1000.0)


def at(seconds):
    return LocalTime(T + seconds)


def test_a_rest_that_was_asked_for_is_kept_by_everybody():
    shut = Breaker().limited(T, T, 30, "asked")
    assert shut.wait_s(Purpose.HOLD, T) == 30
    assert shut.wait_s(Purpose.DISCOVER, T) > 30
    assert shut.wait_s(Purpose.HOLD, at(29.9)) > 0
    assert shut.wait_s(Purpose.HOLD, at(30)) == 0


def test_who_matters_most_tries_first():
    shut = Breaker().limited(T, T, 30, "asked")
    turns = [shut.wait_s(purpose, at(30)) for purpose in Purpose]
    assert turns == sorted(turns, reverse=True)
    assert len(set(turns)) == len(Purpose)


def test_nobody_tries_beside_the_first_who_does():
    trying = Breaker().limited(T, T, 30, "asked").admitted(at(31))
    assert trying.wait_s(Purpose.HOLD, at(31)) > 0
    assert trying.succeeded(at(31)).closed
    # one who is never heard of again does not bar the way for ever
    assert trying.wait_s(Purpose.HOLD, at(60)) == 0


def test_a_reply_to_what_was_asked_before_proves_nothing():
    shut = Breaker().limited(T, T, 30, "asked")
    assert not shut.succeeded(at(-1)).closed
    assert not shut.succeeded(at(29)).closed


def test_many_who_are_told_the_same_are_one_reason():
    shut = Breaker().limited(at(-1), T, None, "asked")
    for _ in range(16):
        shut = shut.limited(at(-1), at(0.5), None, "asked")
    assert shut.times == 1
    assert shut.wait_s(Purpose.HOLD, T) <= 61


def test_a_rest_without_a_time_grows():
    shut, now, waits = Breaker(), T, []
    for _ in range(8):
        shut = shut.admitted(now).limited(now, now, None, "asked")
        waits.append(shut.wait_s(Purpose.HOLD, now))
        now = LocalTime(shut.open_until + 1)
    assert waits[:4] == [60, 120, 240, 480]
    assert max(waits) == HOUR


def test_failures_open_it_only_in_a_row():
    breaker = Breaker()
    for _ in range(4):
        breaker = breaker.failed(T, T, "502")
    assert breaker.closed
    assert breaker.succeeded(T).failures == 0
    assert not breaker.failed(T, T, "502").closed


def test_failures_shut_it_for_longer_each_time_but_never_for_long():
    breaker, now, waits = Breaker(failures=4), T, []
    for _ in range(8):
        breaker = breaker.admitted(now).failed(now, now, "502")
        waits.append(breaker.wait_s(Purpose.HOLD, now))
        now = LocalTime(breaker.open_until + 1)
    assert waits == [2, 4, 8, 16, 30, 30, 30, 30]


@given(st.floats(allow_nan=False, allow_infinity=False), moments)
def test_no_word_of_the_server_shuts_it_for_longer_than_an_hour(told_s, now):
    shut = Breaker().limited(now, now, told_s, "asked")
    assert 0.9 <= shut.wait_s(Purpose.HOLD, now) <= HOUR + 0.01
    assert shut.sane(now) == shut


def test_what_no_process_can_have_meant_is_not_believed():
    assert Breaker("mad", opened_at=T, open_until=LocalTime(1e12)).sane(T).closed
    told = {Resource.REST: Budget(5000, 0, LocalTime(1e12))}
    assert Spending(budgets=told).sane(T).budgets == {}


# Together


def test_a_refusal_is_for_the_reason_that_lasts_longest():
    spending = Spending()
    spending.note(Limited(T, T, 10, "asked"))
    spending.budgets[Resource.REST] = Budget(5000, 0, at(900))
    refusal = spending.admit(Kind.REST_READ, Purpose.HOLD, Limits(), T)
    assert refusal is not None
    assert refusal.wait_s == 900
    assert "REST" in refusal.why
    over_graphql = spending.admit(Kind.GRAPHQL_READ, Purpose.HOLD, Limits(), T)
    assert over_graphql is not None
    assert over_graphql.wait_s == 10


def test_what_is_refused_is_not_counted():
    spending = Spending()
    spending.budgets[Resource.REST] = Budget(5000, 0, at(900))
    assert spending.admit(Kind.REST_READ, Purpose.DISCOVER, Limits(), T) is not None
    assert sum(spending.counted(T).values()) == 0


def test_a_reading_that_had_not_changed_is_counted_apart():
    spending = Spending()
    assert spending.admit(Kind.REST_READ, Purpose.DISCOVER, Limits(), T) is None
    spending.note(Passed(T, Kind.REST_READ, free=True))
    counted = spending.counted(at(1))
    assert (counted[Kind.REST_READ], counted[Kind.REST_UNCHANGED]) == (0, 1)
    assert sum(spending.counted(at(2 * HOUR)).values()) == 0


def test_one_success_after_failures_begins_the_count_anew():
    spending = Spending()
    for _ in range(4):
        spending.note(Failed(T, T, "502"))
    spending.note(Passed(T, Kind.REST_READ))
    spending.note(Failed(T, T, "502"))
    assert spending.breaker.closed


def test_a_late_reply_that_cost_nothing_takes_only_its_own_request_out_of_the_count():
    spending = Spending()
    spending.admit(Kind.REST_READ, Purpose.HOLD, Limits(), LocalTime(59.9))
    for _ in range(50):
        spending.admit(Kind.REST_READ, Purpose.HOLD, Limits(), LocalTime(60.1))
    spending.note(Passed(LocalTime(59.9), Kind.REST_READ, (), free=True))
    counted = spending.counted(LocalTime(61))
    assert (counted[Kind.REST_READ], counted[Kind.REST_UNCHANGED]) == (50, 1)


def test_a_request_that_was_sent_in_the_minute_after_it_was_let_through_is_found():
    spending = Spending()
    spending.admit(Kind.REST_READ, Purpose.HOLD, Limits(), LocalTime(59.999))
    spending.note(Passed(LocalTime(60.001), Kind.REST_READ, (), free=True))
    counted = spending.counted(LocalTime(61))
    assert (counted[Kind.REST_READ], counted[Kind.REST_UNCHANGED]) == (0, 1)
