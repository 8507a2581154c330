"""The fast part of the proof: ours holds, the controls and the mutants do not."""

import pytest
from msgspec.structs import replace

from dibs_lab.sim import (
    CASES,
    MUTANTS,
    Broken,
    explore,
    play,
    seed_script,
    state_machine,
    violations,
    workers_of,
)
from dibs_lab.sim.campaign import Count, Order, Who, count_runs, hunt, run_orders
from dibs_lab.sim.scenarios import ALL, BY_NAME

from .regressions import REGRESSIONS

SCHEDULES = 25


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_nothing_that_is_promised_is_broken(scenario):
    count = count_runs(scenario, Who.OURS, range(SCHEDULES))
    assert count.schedules == SCHEDULES
    assert count.holds > 0, "a proof in which nobody ever holds proves nothing"
    assert count.broken == {}, count.first
    # Where reads lag longer than settle, one issue in a hundred schedules rests past the bound.
    assert count.lost == 0 or not scenario.timely


# Every interleaving of the smaller cases; `make sim` walks all and prints how many there are.

SMALLER = (
    "two claimants",
    "two claimants and a sweep",
    "an expired lease, a claimant and a sweep",
    "holder, late claimant and operator revoke",
    "two claimants and a sweep (one trip)",
    "a holder that finishes and a claimant (one trip)",
    "a holder that finishes and a sweep (one trip)",
)


@pytest.mark.parametrize("name", SMALLER)
def test_every_interleaving_holds(name):
    """The walk raises Broken at the first state in which a promise is broken."""
    case = next(case for case in CASES if case.name == name)
    tally = explore(case)
    print(f"{name}: {tally.schedules} schedules, {tally.states} states")
    assert tally.schedules > tally.states > len(case.parts)


@pytest.mark.parametrize("deaths", [0, 1])
def test_walking_states_counts_exactly_the_schedules_that_there_are(deaths):
    case = replace(CASES[0], deaths=deaths)
    merged, plain = explore(case), explore(case, merge=False)
    assert merged.schedules == plain.schedules
    assert merged.states < plain.states


# Controls and mutants: a proof that cannot fail proves nothing.


@pytest.mark.parametrize("control", [seed_script, state_machine], ids=lambda one: one.__name__)
def test_the_controls_fail_in_the_same_world(control):
    cast, count = workers_of(control), Count()
    for seed in range(60):
        count.take(play(BY_NAME["writes seen within 2 s, settle 2.5 s"], seed, cast))
    assert count.two_holders > 0
    assert count.finished_twice > 0


def test_the_seed_script_strands_an_issue_whose_first_claimant_died():
    cast, count = workers_of(seed_script), Count()
    for seed in range(60):
        count.take(play(BY_NAME["network trouble"], seed, cast))
    assert count.lost > 0


FOUND_AT = {
    "eligibility is not judged again": 1300,
    "trust is counted from the reply": 570,
    "painted is what is not claimed": 280,
    "a stage left behind is a person's word": 550,
    "a renewal under way is not awaited": 230,
    "an ending in doubt is sent again unseen": 160,
    "what is painted is acknowledged at once": 280,
    "the stage is not asked for in the confirming reply": 240,
    "labels are taken to be as new as the cards": 165,
}
"""Shortly before the first seed that shows it, where that is far from 0: `make sim` looks at all.
If the calls change so that it moves, the hunt goes on from there.
"""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant):
    catch = hunt(mutant, most=3000, first=FOUND_AT.get(mutant.name, 0))
    assert catch is not None
    print(f"{mutant.name}: {catch.where}, seed {catch.seed}: {catch.text}")


def test_a_hunt_knows_the_mutants_that_it_begins_late_for():
    assert FOUND_AT.keys() <= {mutant.name for mutant in MUTANTS}


def test_a_mutant_leaves_nothing_behind():
    before = violations(play(BY_NAME["no lag"], 24))
    for mutant in MUTANTS:
        with mutant.in_force():
            pass
    assert violations(play(BY_NAME["no lag"], 24)) == before == []


def test_a_broken_case_says_which_schedule_broke_it():
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "ties by time only")
    with mutant.in_force(), pytest.raises(Broken, match="both trust their leases") as caught:
        explore(CASES[0])
    assert "a goes on" in str(caught.value)


# Seeds that failed once


@pytest.mark.parametrize(
    ("scenario", "seed"),
    [(one.scenario, one.seed) for one in REGRESSIONS],
    ids=[f"{one.scenario}-{one.seed}" for one in REGRESSIONS],
)
def test_a_seed_that_failed_once_fails_no_more(scenario, seed):
    assert violations(play(BY_NAME[scenario], seed)) == []


def test_every_kept_seed_says_what_it_taught():
    assert all(one.taught for one in REGRESSIONS)


@pytest.mark.long
def test_orders_are_divided_among_processes_and_counted_once():
    orders = [Order(BY_NAME["no lag"], Who.OURS, 150), Order(ALL[-1], Who.OURS, 30, first_seed=7)]
    heard = []
    both = run_orders(orders, jobs=2, played=heard.append)
    assert [count.schedules for count in both] == [150, 30]
    assert sum(heard) == 180
    assert both[1].holds == count_runs(ALL[-1], Who.OURS, range(7, 37)).holds
