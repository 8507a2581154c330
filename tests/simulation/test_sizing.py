"""Sizing a fleet: relations that must hold whatever the machine, the seed or the version."""

import random
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dibs.core.errors import RateLimited
from dibs.core.events import Event, EventKind
from dibs.core.ids import IssueRef, RunId, StageName
from dibs.core.issue import Draft
from dibs.ports.tracker import IssueQuery
from dibs_lab.sim.counting import Busiest, Line, Series, Tally
from dibs_lab.sim.fibres import Process, Simulation
from dibs_lab.sim.loads import (
    AtOnce,
    AtRandom,
    Between,
    Evenly,
    Exponential,
    Fixed,
    Recorded,
    Sampled,
    format_rate,
    parse_arrival,
    parse_rate,
    parse_work,
)
from dibs_lab.sim.metering import (
    GITHUB,
    HOUR_US,
    MINUTE_US,
    NO_LIMITS,
    Allowance,
    Costs,
    Limits,
    Price,
    github,
    parse_limits,
)
from dibs_lab.sim.server import Server
from dibs_lab.sim.sizing import STORE, Distribution, Fleet, _Trial, simulate

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
SMALL = Fleet(workers=6, issues=40, work=Between(5 * MINUTE, 15 * MINUTE))
CRASHING = replace(SMALL, issues=150, crash_per_hour=1.5, attempts=50)
CROWD = Fleet(workers=16, issues=60, work=Fixed(2 * MINUTE), arrival=AtRandom(120), lag=5 * SECOND)
"""Idle workers that all bid for each issue that comes, on a tracker that shows writes late."""


# Issues


def test_where_nothing_goes_wrong_every_issue_is_done_once():
    found = simulate(SMALL)
    assert (found.done, found.parked, found.unfinished, found.lost) == (40, 0, 0, 0)
    assert (found.starts, found.duplicate_starts, found.repeated_starts) == (40, 0, 0)
    assert (found.advanced_twice, found.crashes, found.leases_lost) == (0, 0, 0)
    assert found.wasted_s == 0
    assert 0.8 < found.utilisation <= 1.0


def test_the_same_fleet_gives_the_same_answer_and_another_seed_another():
    fleet = replace(CRASHING, issues=40, lag=SECOND, settle=2 * SECOND)
    found = simulate(fleet)
    assert simulate(fleet) == found
    assert simulate(replace(fleet, seed=2)) != found


def test_twice_as_many_workers_get_about_twice_as_much_done():
    few, many = (simulate(replace(SMALL, workers=n, issues=n * 10)).an_hour for n in (4, 8))
    assert 1.7 < many / few < 2.3


def test_a_worker_with_several_jobs_counts_as_that_many_places():
    alone, several = simulate(SMALL), simulate(replace(SMALL, workers=2, jobs=3))
    assert several.done == alone.done
    assert 0.8 < several.an_hour / alone.an_hour < 1.2


def test_compared_fleets_have_the_same_work_and_the_same_luck():
    """So that a difference between two rows is the setting's, and not the dice's."""
    short, long = (replace(CRASHING, ttl=ttl) for ttl in (2 * MINUTE, 20 * MINUTE))
    assert _Trial(short, Costs())._work_s == _Trial(long, Costs())._work_s


def test_issues_wait_for_a_worker_where_more_come_than_can_be_worked():
    slow = simulate(replace(SMALL, issues=20, poll=MINUTE, arrival=Evenly(20 * MINUTE)))
    fast = simulate(replace(SMALL, issues=20, poll=MINUTE, arrival=Evenly(SECOND)))
    assert slow.wait.p90_s < 90
    assert fast.wait.p90_s > 10 * slow.wait.p90_s
    assert slow.passed_s > 20 * 20 * 60


def test_when_the_time_is_over_what_is_left_is_said():
    found = simulate(replace(SMALL, longest=timedelta(minutes=30)))
    assert found.passed_s == 30 * 60
    assert found.unfinished == 40 - found.done > 0
    assert found.lost == 0


# Crashes


def test_crashes_repeat_work_and_lose_nothing():
    found = simulate(CRASHING)
    assert (found.done, found.unfinished, found.lost) == (150, 0, 0)
    assert (found.duplicate_starts, found.advanced_twice) == (0, 0)
    assert found.crashes >= found.holders_died > 10
    assert found.repeated_starts == found.starts - 150 > 10
    assert found.wasted_s > 0
    assert found.takeover.count == found.repeated_starts


@pytest.mark.parametrize("ttl_s", [120, 600, 1800])
def test_a_dead_holder_blocks_its_issue_for_about_a_ttl(ttl_s):
    """Two thirds of it at least, because renewals come every third; and then a sweep."""
    found = simulate(replace(CRASHING, ttl=ttl_s * SECOND))
    assert found.blocked.count > 10
    assert 0.6 * ttl_s < found.blocked.p50_s < 1.1 * ttl_s
    assert found.blocked.p90_s < 1.5 * ttl_s
    assert found.takeover.p50_s >= found.blocked.p50_s * 0.95


def test_an_issue_whose_every_run_dies_is_parked():
    found = simulate(replace(CRASHING, issues=40, crash_per_hour=8.0, attempts=2))
    assert found.parked > 0
    assert found.done + found.parked == 40


# Lag


def test_a_settle_shorter_than_the_lag_starts_work_twice_and_a_longer_one_never():
    assert simulate(CROWD).duplicate_starts > 0
    settled = simulate(replace(CROWD, settle=6 * SECOND))
    assert (settled.duplicate_starts, settled.advanced_twice, settled.lost) == (0, 0, 0)
    assert settled.done == CROWD.issues


def test_a_store_needs_no_settle():
    found = simulate(replace(CROWD, leases=STORE))
    assert (found.duplicate_starts, found.advanced_twice, found.done) == (0, 0, CROWD.issues)
    assert found.requests.to_store > 0


# Requests


def test_requests_add_up_however_they_are_counted():
    found = simulate(CRASHING)
    asked, line = found.requests, found.timeline
    assert sum(asked.by_call.values()) == sum(asked.by_purpose.values()) == asked.total
    assert sum(line.requests) == asked.total
    assert sum(line.creating) == asked.creating
    assert (sum(line.arrived), sum(line.rested)) == (150, 150)
    assert sum(line.started) == found.starts
    assert all(count > 0 for count in asked.by_purpose.values())
    assert asked.an_hour == pytest.approx(asked.total / found.passed_s * 3600)
    assert asked.busiest_hour <= asked.total
    assert (asked.refused, asked.limited_s) == (0, 0)


def test_a_shorter_ttl_costs_more_requests():
    often, seldom = (simulate(replace(SMALL, ttl=n * MINUTE)) for n in (2, 20))
    assert often.requests.by_purpose["renewing"] > 3 * seldom.requests.by_purpose["renewing"]
    assert often.requests.by_purpose["claiming"] < 2 * seldom.requests.by_purpose["claiming"]


def test_limits_are_honoured_and_what_they_cost_is_said():
    tight = Limits(requests_an_hour=1200)
    free, limited = simulate(SMALL), simulate(replace(SMALL, limits=tight, attempts=50))
    assert free.requests.busiest_hour > 1200
    assert limited.requests.busiest_hour <= 1200 + 10, "the last one let through may cost a few"
    assert limited.requests.refused > 0
    assert limited.requests.limited_s > 0
    assert limited.an_hour < free.an_hour
    assert (limited.lost, limited.duplicate_starts) == (0, 0)


def test_new_comments_are_limited_by_themselves():
    found = simulate(replace(SMALL, limits=Limits(creating_a_minute=2), attempts=50))
    assert found.requests.creating_busiest_minute <= 2
    assert found.done == 40


@pytest.mark.parametrize(
    ("op", "arguments", "wanted"),
    [
        ("comment", ("a body",), Price(1, creating=1)),
        ("create", (), Price(1, creating=1)),
        ("edit_comment", (7, "a body"), Price(1)),
        ("close", (), Price(1)),
        ("tally", (), Price(1)),
        ("edit_labels", (("a", "b"), ()), Price(1)),
        ("edit_labels", ((), ("a", "b")), Price(2)),
        ("edit_labels", (("a",), ("b",)), Price(2)),
        ("acquire", ("run1",), Price()),
        ("renew", ("run1",), Price()),
    ],
)
def test_every_call_has_its_price(op, arguments, wanted):
    assert Costs().of(op, arguments, None) == wanted


def test_what_is_read_is_paid_for_by_the_page():
    simulation = Simulation()
    server = Server(simulation, random.Random(1))
    refs = [server.create(Draft("one", labels=frozenset({"a"}))).ref for _ in range(101)]
    query = IssueQuery(("a",), limit=200)
    assert Costs().of("find", (query,), server.find(query)) == Price(2)
    assert Costs().of("find", (query,), server.find(IssueQuery(("b",)))) == Price(1)
    assert Costs().of("read", (), server.read(refs[0])) == Price(1)
    for _ in range(101):
        server.comment(refs[0], "a word")
    assert Costs().of("read", (), server.read(refs[0])) == Price(3)
    assert Costs(page=10).of("read", (), server.read(refs[0])) == Price(12)


def test_a_window_refuses_until_the_next_one_begins():
    allowance = Allowance(Limits(requests_an_hour=2, creating_a_minute=1))
    allowance.admit("comment", 0)
    allowance.charge(Price(1, creating=1), 0)
    allowance.admit("read", MINUTE_US // 2)
    with pytest.raises(RateLimited) as refusal:
        allowance.admit("comment", MINUTE_US // 2)
    assert refusal.value.retry_after_s == 30
    allowance.admit("comment", MINUTE_US)
    allowance.charge(Price(1, creating=1), MINUTE_US)
    with pytest.raises(RateLimited) as refusal:
        allowance.admit("read", MINUTE_US)
    assert refusal.value.retry_after_s == 59 * 60
    allowance.admit("read", HOUR_US)


# What a fleet is


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"workers": 0}, "workers 0 is not between 1 and"),
        ({"workers": 10_001}, "workers"),
        ({"issues": 0}, "issues 0"),
        ({"jobs": 0}, "jobs"),
        ({"attempts": 0}, "attempts"),
        ({"leases": "paper"}, "leases 'paper' is not one of comments, store"),
        ({"settle": -SECOND}, "settle may not be negative"),
        ({"poll": timedelta()}, "poll must be longer than nothing"),
        ({"ttl": SECOND / 10}, "ttl 100ms is too short"),
        ({"ttl": 3 * SECOND}, "ttl 3s is too short for a tracker that counts in whole seconds"),
        ({"crash_per_hour": -1.0}, "crash"),
        ({"settle": 10 * MINUTE}, "with settle 10m and delay 500ms, a lease of 10m is over"),
        ({"delay": 5 * MINUTE}, "is over before it can be proved"),
    ],
)
def test_a_fleet_that_makes_no_sense_says_why(wrong, words):
    with pytest.raises(ValueError, match=words):
        Fleet(**wrong)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("10m", Fixed(10 * MINUTE)),
        (" 5m..20m ", Between(5 * MINUTE, 20 * MINUTE)),
        ("0s..20m", Between(timedelta(), 20 * MINUTE)),
        ("~10m", Exponential(10 * MINUTE)),
    ],
)
def test_work_is_read_as_it_is_written(text, wanted):
    assert parse_work(text) == wanted
    assert parse_work(str(wanted)) == wanted


@pytest.mark.parametrize("text", ["", "10", "0s", "~", "~0s", "20m..5m", "5m..", "..5m", "ten"])
def test_work_that_means_nothing_is_refused(text):
    with pytest.raises(ValueError, match=r"is not a duration|no time at all|ends before it begins"):
        parse_work(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("all", AtOnce()),
        ("2m", Evenly(2 * MINUTE)),
        ("30/h", AtRandom(30)),
        ("12/d", AtRandom(0.5)),
    ],
)
def test_arrivals_are_read_as_they_are_written(text, wanted):
    assert parse_arrival(text) == wanted
    assert parse_arrival(str(wanted)) == wanted


@pytest.mark.parametrize("text", ["", "never", "0/h", "30/w", "30/", "/h", "0s", "-1/h"])
def test_arrivals_that_mean_nothing_are_refused(text):
    with pytest.raises(ValueError, match=r"is not a|brings no issue|no time at all"):
        parse_arrival(text)


@pytest.mark.parametrize(("text", "per_hour"), [("0", 0), ("2/h", 2), ("12/d", 0.5), ("1/m", 60)])
def test_rates_are_read_as_they_are_written(text, per_hour):
    assert parse_rate(text) == pytest.approx(per_hour)
    assert parse_rate(format_rate(per_hour)) == pytest.approx(per_hour)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("none", NO_LIMITS),
        ("github", GITHUB),
        ("github*4", github(4)),
        ("15000/h", Limits(requests_an_hour=15000)),
    ],
)
def test_limits_are_read_as_they_are_written(text, wanted):
    assert parse_limits(text) == wanted
    assert str(wanted) == text


@pytest.mark.parametrize("text", ["", "gitlab", "github*0", "0/h", "github*", "15000"])
def test_limits_that_mean_nothing_are_refused(text):
    with pytest.raises(ValueError, match=r"is not a limit|allows nothing"):
        parse_limits(text)


def test_draws_have_the_mean_that_was_asked_for():
    dice = random.Random(3)
    for work in (
        Fixed(MINUTE),
        Between(timedelta(), 2 * MINUTE),
        Exponential(MINUTE),
        Sampled((30.0, 90.0)),
    ):
        drawn = [work.draw_s(dice) for _ in range(4000)]
        assert sum(drawn) / len(drawn) == pytest.approx(60, rel=0.1)
        assert work.mean_s == 60


def test_recorded_gaps_come_over_again():
    gaps = Recorded((1.0, 2.0)).gaps_s(random.Random(1))
    assert [next(gaps) for _ in range(5)] == [1, 2, 1, 2, 1]


# Counting


ISSUE = IssueRef("", "1")


def said(kind, run="run1", issue=ISSUE):
    return Event(EventKind(kind), issue=issue, run=RunId(run), stage=StageName("ready"))


class Counted:
    """A tally, two processes, and a clock that is turned by hand."""

    def __init__(self):
        self.simulation = Simulation()
        self.tally = Tally(self.simulation)
        self.one, self.two = (Process(self.simulation, name) for name in ("one", "two"))
        self.tally.arrive(ISSUE)

    def at(self, seconds):
        self.simulation.now_us = int(seconds * 1e6)

    def hear(self, process, *kinds, run="run1"):
        for kind in kinds:
            self.tally.hear(process, said(kind, run))


def test_a_start_while_another_is_at_work_is_a_duplicate():
    counted = Counted()
    counted.hear(counted.one, "claimed", "handler_started")
    counted.hear(counted.two, "claimed", "handler_started", run="run2")
    assert (counted.tally.starts, counted.tally.duplicate_starts) == (2, 1)
    assert counted.tally.repeated_starts == 0


def test_a_start_after_the_issue_was_done_is_a_duplicate():
    counted = Counted()
    counted.hear(counted.one, "claimed", "handler_started", "handler_exited")
    counted.tally.rest(ISSUE, done=True)
    counted.hear(counted.one, "advanced")
    counted.hear(counted.two, "claimed", "handler_started", run="run2")
    assert counted.tally.duplicate_starts == 1


@pytest.mark.parametrize("end", ["lease_lost", "handler_exited"])
def test_a_start_after_another_was_over_is_a_repetition(end):
    counted = Counted()
    counted.hear(counted.one, "claimed", "handler_started")
    counted.at(30)
    counted.hear(counted.one, end)
    counted.hear(counted.two, "claimed", "handler_started", run="run2")
    assert (counted.tally.duplicate_starts, counted.tally.repeated_starts) == (0, 1)
    assert counted.tally.busy_us == 30_000_000
    assert counted.tally.wasted_us == (30_000_000 if end == "lease_lost" else 0)


def test_a_takeover_lasts_from_the_death_to_the_next_start():
    counted = Counted()
    counted.hear(counted.one, "claimed", "handler_started")
    counted.at(10)
    counted.tally.die(counted.one)
    counted.at(70)
    counted.tally.hear(counted.two, Event(EventKind.FREED, issue=ISSUE))
    counted.tally.hear(counted.two, Event(EventKind.FREED, issue=ISSUE))
    counted.at(100)
    counted.hear(counted.two, "claimed", "handler_started", run="run2")
    assert list(counted.tally.blocked_s) == [60]
    assert list(counted.tally.takeovers_s) == [90]
    assert counted.tally.holders_died == 1
    assert counted.tally.wasted_us == 10_000_000


def test_an_issue_that_nobody_takes_up_again_is_lost():
    counted = Counted()
    counted.hear(counted.one, "claimed", "handler_started")
    counted.at(10)
    assert counted.tally.left_alone(since_us=9_000_000) == 0, "somebody is at work"
    counted.tally.die(counted.one)
    assert counted.tally.left_alone(since_us=9_000_000) == 0, "not for long enough"
    assert counted.tally.left_alone(since_us=11_000_000) == 1
    counted.tally.rest(ISSUE, done=True)
    assert counted.tally.left_alone(since_us=11_000_000) == 0


def test_a_second_advance_is_counted():
    counted = Counted()
    counted.hear(counted.one, "advanced")
    assert counted.tally.advanced_twice == 0
    counted.hear(counted.two, "advanced", run="run2")
    assert counted.tally.advanced_twice == 1


def test_a_series_keeps_its_sums_however_long_it_gets():
    series, dice = Series(), random.Random(5)
    moments = sorted(dice.randrange(10**11) for _ in range(5000))
    for moment in moments:
        series.add(Line.STARTED, moment)
    counts = series.counts(Line.STARTED, moments[-1])
    assert sum(counts) == 5000
    assert len(counts) <= 480
    assert counts[0] == sum(moment < series.width_us for moment in moments)
    assert sum(series.counts(Line.STOPPED, moments[-1])) == 0


def test_the_busiest_hour_is_found():
    busiest = Busiest(HOUR_US)
    for moment in (0, 1, HOUR_US, HOUR_US + 1, HOUR_US + 2, 3 * HOUR_US):
        busiest.add(moment, 1)
    assert busiest.most == 3


def test_a_distribution_in_short():
    found = Distribution.of(float(number) for number in range(1, 101))
    assert (found.count, found.mean_s, found.p50_s, found.p90_s, found.most_s) == (
        100,
        50.5,
        50,
        90,
        100,
    )
    assert sum(found.bins) == 100
    assert Distribution.of([]) == Distribution()
    assert sum(Distribution.of([0.0, 0.0]).bins) == 2


def test_no_history_is_kept():
    """A hundred thousand issues must fit."""
    trial = _Trial(SMALL, Costs())
    try:
        trial.run(lambda _: None)
    finally:
        trial.end()
    assert trial.history.notes == []
    assert trial.tally._at_work == {}
    assert trial.tally._touched_us == {}
    assert trial.tally.open == 0


def test_progress_is_told_and_may_end_it():
    told = []
    simulate(replace(SMALL, workers=20, issues=200), progress=told.append)
    assert told[-1].rested == told[-1].issues == 200
    assert [one.rested for one in told] == sorted(one.rested for one in told)

    def enough(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(SMALL, progress=enough)


# The tracker underneath


LABELS = ("a", "b", "c")


def scribble(server, dice, refs):
    match dice.randrange(6):
        case 0:
            refs.append(server.create(Draft("one", labels=frozenset(dice.sample(LABELS, 2)))).ref)
        case 1:
            server.close(dice.choice(refs))
        case 2:
            server.comment(dice.choice(refs), "a word")
        case _:
            add, remove = dice.sample(LABELS, 2)
            server.edit_labels(dice.choice(refs), add=(add,), remove=(remove,))


@pytest.mark.parametrize("lag_s", [0.0, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_finding_shows_what_reading_everything_would(lag_s, seed):
    """Kept lists and lag change the cost of finding, and nothing else."""
    simulation, dice = Simulation(), random.Random(seed)
    server = Server(simulation, random.Random(seed), write_lag_s=lag_s)
    refs = [server.create(Draft("one", labels=frozenset({"a"}))).ref for _ in range(5)]
    for _ in range(150):
        scribble(server, dice, refs)
        simulation.now_us += dice.randrange(1_000_000)
        wanted, without = dice.sample(LABELS, 2)
        query = IssueQuery(
            (wanted,),
            (without,),
            limit=dice.randrange(1, 6),
            skip=dice.randrange(3),
            after=dice.choice([None, *refs]),
            closed_too=dice.random() < 0.5,
        )
        seen = [server.read(ref).issue for ref in refs]
        matching = [
            issue
            for issue in seen
            if wanted in issue.labels
            and without not in issue.labels
            and (issue.open or query.closed_too)
            and (query.after is None or int(issue.ref.key) > int(query.after.key))
        ]
        found = server.find(query)
        assert list(found.issues) == matching[query.skip : query.skip + query.limit]
        assert found.more == (len(matching) > query.skip + query.limit)
