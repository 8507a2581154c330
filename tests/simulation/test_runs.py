"""Whole runs: the same seed gives the same run, and a run can be read."""

import pytest
from msgspec.structs import replace

from dibs import __version__
from dibs.core.events import Event, EventKind
from dibs_lab.sim import MEMORY, Faults, Scenario, holds, play, timeline, violations
from dibs_lab.sim.history import Called, Fault
from dibs_lab.sim.scenarios import ALL, BY_NAME

CALM = Scenario(name="calm", faults=Faults())


def kinds(run):
    return {note.what.kind for note in run.notes if isinstance(note.what, Fault)}


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_the_same_seed_is_the_same_run(scenario):
    assert play(scenario, 11).notes == play(scenario, 11).notes


def test_another_seed_is_another_run():
    scenario = BY_NAME["no lag"]
    assert play(scenario, 1).notes != play(scenario, 2).notes


@pytest.mark.parametrize("leases", ["comments", MEMORY])
def test_in_calm_weather_one_worker_wins_finishes_and_everybody_rests(leases):
    run = play(replace(CALM, leases=leases), 5)
    assert violations(run) == []
    assert [hold.fence for hold in holds(run)] == [min(hold.fence for hold in holds(run))]
    ended = [note.what for note in run.notes if isinstance(note.what, Event)]
    assert [event.kind for event in ended].count(EventKind.ADVANCED) == 1
    assert all(run.at_rest.values())


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        (Faults(freeze=0.2), "frozen"),
        (Faults(crash=1.0), "killed"),
        (Faults(lost_reply=0.2), "reply lost"),
        (Faults(unavailable=0.2), "unavailable"),
        (Faults(rate_limited=0.2), "rate limited"),
        (Faults(stranger=3), "forged"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_fault_that_is_asked_for_comes(faults, kind):
    runs = [play(Scenario(faults=faults), seed) for seed in range(5)]
    assert any(kind in kinds(run) for run in runs)
    assert all(kind not in kinds(play(CALM, seed)) for seed in range(5))


@pytest.mark.parametrize(
    "faults",
    [Faults(person=5), Faults(vandal=5), Faults(bot=5), Faults(operator=5), Faults(force=5)],
)
def test_every_hand_that_is_asked_for_acts(faults):
    before = {note.process for seed in range(5) for note in play(CALM, seed).notes}
    after = {
        note.process
        for seed in range(5)
        for note in play(Scenario(faults=faults), seed).notes
        if isinstance(note.what, Called) and note.what.writes
    }
    assert after - before


def test_timestamps_have_the_grain_that_is_asked_for():
    run = play(Scenario(faults=Faults(grain_s=1.0)), 1)
    stamps = [one.created_at for snapshot in run.snapshots.values() for one in snapshot.comments]
    assert stamps
    assert all(stamp.microsecond == 0 for stamp in stamps)


def test_a_run_prints_as_a_timeline_with_what_it_takes_to_play_it_again():
    scenario = BY_NAME["no lag"]
    run = play(scenario, 3)
    text = timeline(run, ["one holder at 1.000 s: made up"])
    assert f"scenario no lag, seed 3, dibs {__version__}" in text
    assert "bid [00:" in text
    assert "! w" in text, "faults are marked"
    assert "VIOLATED  one holder at 1.000 s: made up" in text
    assert len(timeline(run, steps=True)) > len(text)


def test_every_call_of_every_kind_can_be_told():
    for scenario in ALL:
        for seed in (1, 2):
            assert timeline(play(scenario, seed), steps=True)
