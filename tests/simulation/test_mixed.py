"""A fleet that is being switched, in the simulator: their runners, ours, and both on one issue."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from dibs_lab.sim.campaign import Count
from dibs_lab.sim.checkers import RULES, advanced_once, picture_is_true, promised
from dibs_lab.sim.mixed import WORLDS, Fleet, Pair, count_pairs, play_mixed
from dibs_lab.sim.scenarios import ALL

SCHEDULES = 60
BY_NAME = {world.name: world for world in WORLDS}
TIES = BY_NAME["timestamps in whole seconds, nothing lags"]
LAG = BY_NAME["writes seen within 2 s"]
FAILING = BY_NAME["one request in ten fails"]
LONG = BY_NAME["work longer than a claim counts"]
STALLS = BY_NAME["crashes and stalls"]


@pytest.mark.parametrize(
    "world", [world for world in WORLDS if world.covered], ids=lambda world: world.name
)
def test_no_two_of_ours_ever_hold_an_issue_whoever_else_is_there(world):
    for fleet in (Fleet(0, 4), Fleet(2, 2)):
        assert count_pairs(world, range(SCHEDULES), fleet)[Pair.OURS] == 0


@pytest.mark.parametrize(
    "name",
    [
        "timestamps in milliseconds, nothing lags",
        "timestamps in whole seconds, nothing lags",
    ],
)
def test_ours_never_takes_what_one_of_theirs_visibly_holds_nor_the_other_way_round(name):
    """Claims in the same second included: theirs wins a tie, and ours sees that and concedes."""
    assert count_pairs(BY_NAME[name], range(3 * SCHEDULES), Fleet(2, 2))[Pair.MIXED] == 0


@pytest.mark.parametrize(
    ("flaw", "world"),
    [(2, TIES), (3, LAG), (4, FAILING), (6, LONG), (7, STALLS)],
    ids=["2 ties", "3 lag", "4 failed reads", "6 long work", "7 stalls"],
)
def test_what_only_the_old_rules_allow_happens_to_none_of_ours(flaw, world):
    """By the numbers of the flaws: counted among theirs, never among ours."""
    assert count_pairs(world, range(SCHEDULES), Fleet(4, 0))[Pair.THEIRS] > 0, flaw
    assert count_pairs(world, range(SCHEDULES), Fleet(0, 4)) == {}, flaw


@pytest.mark.parametrize("world", [LAG, FAILING, LONG], ids=lambda world: world.name)
def test_the_more_of_a_fleet_is_ours_the_fewer_hold_together(world):
    theirs = count_pairs(world, range(SCHEDULES), Fleet(4, 0))
    mixed = count_pairs(world, range(SCHEDULES), Fleet(2, 2))
    assert mixed[Pair.THEIRS] <= theirs[Pair.THEIRS]


# The labels and the dialect of preset `agent`, in every world that the protocol is put through


def _rules(scenario):
    """Whoever writes whole label sets back re-queues by writing `claimed`: the checker counts only
    stage labels as such a word.
    """
    kept = [rule for rule in RULES if promised(rule, scenario)]
    return [rule for rule in kept if not (rule is advanced_once and scenario.faults.bot)]


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_nothing_that_is_promised_is_broken_in_the_agents_dialect(scenario):
    count = Count()
    for seed in range(12):
        count.take(play_mixed(scenario, seed, Fleet(0, scenario.workers)))
    names = {rule.__name__.replace("_", " ") for rule in _rules(scenario)}
    assert not {rule for rule in count.broken if rule in names}, count.first
    assert count.lost == 0


TRIPS = [
    replace(scenario, one_trip=True)
    for scenario in ALL
    if "atomic" not in scenario.name and not scenario.faults.bot
]


@pytest.mark.parametrize("scenario", TRIPS, ids=lambda scenario: scenario.name)
def test_a_stage_that_gives_way_keeps_every_promise_but_for_a_sleeper_that_dies(scenario):
    """Where labels are swapped in one trip. A sweeper that sleeps for a ttl between look and write,
    and dies before it can read the reply, leaves a label behind: that one is counted.
    """
    count = Count()
    for seed in range(12):
        count.take(play_mixed(scenario, seed, Fleet(0, scenario.workers)))
    odd = count.broken.pop(picture_is_true.__name__.replace("_", " "), 0)
    assert odd <= 1
    assert count.broken == {}, count.first
    assert count.lost == 0


# What the guide says


GUIDE = Path(__file__).parents[2] / "docs/guides/switch-from-label-state.md"


def _documented():
    rows = GUIDE.read_text("utf-8").partition("| world |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {name: [int(count) for count in counts] for name, *counts in cells}


def test_the_guide_has_every_world_and_never_two_of_ours_where_ours_is_made_for_it():
    documented = _documented()
    assert list(documented) == [world.name for world in WORLDS]
    for world in WORLDS:
        if world.covered:
            assert documented[world.name][3:] == [0, 0]


def test_the_guides_numbers_come_out_again():
    """One row of them: all are a minute's work, and `make bench-mixed-fleet` does it."""
    alone = count_pairs(TIES, range(300), Fleet(4, 0))
    assert _documented()[TIES.name][0] == alone[Pair.THEIRS]
