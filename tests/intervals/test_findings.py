"""When a run has failed: by what it saw, or because it could not have seen anything."""

import pytest

from .__main__ import FEWEST_GRANTS, Outcome, findings, main, table
from .grounds import CONTROL, GROUNDS
from .judging import Ended, Granted, Record, judge


def in_turn(fences: range) -> list[Record]:
    return [
        record
        for start, fence in enumerate(fences)
        for record in (
            Granted(f"run {fence}", "n", fence, start - 0.1, start, start + 9),
            Ended(f"run {fence}", start + 1, "given back"),
        )
    ]


CLEAN = in_turn(range(0, 10 * FEWEST_GRANTS, 10))
SECOND = Granted("second", "n", 5, 0.4, 0.5, 0.8)
"""Trusted while the first run is, with a higher fence."""
FALLING = in_turn(range(FEWEST_GRANTS, 0, -1))


def test_a_store_with_enough_grants_and_no_overlap_has_no_finding():
    assert findings("redis", judge(CLEAN)) == []


def test_too_few_grants_are_a_finding():
    [found] = findings("redis", judge(CLEAN[2:]))
    assert "which shows nothing" in found


@pytest.mark.parametrize("store", [name for name in GROUNDS if name != CONTROL])
def test_an_overlap_and_a_fall_are_findings(store):
    [overlap] = findings(store, judge([*CLEAN, SECOND]))
    assert "both run 0 " in overlap
    assert len(findings(store, judge(FALLING))) == FEWEST_GRANTS - 1


def test_documented_overlaps_are_excused_and_fences_are_not():
    assert findings("redis", judge([*CLEAN, SECOND]), excused=True) == []
    assert len(findings("redis", judge(FALLING), excused=True)) == FEWEST_GRANTS - 1


def test_a_control_that_is_not_caught_is_a_finding_and_one_that_is_is_none():
    assert findings(CONTROL, judge(CLEAN)) == ["no overlap was found: the checker is blind"]
    assert findings(CONTROL, judge([*CLEAN, SECOND])) == []
    assert findings(CONTROL, judge(FALLING)) == ["no overlap was found: the checker is blind"]


def test_the_table_shows_each_fault_and_a_dash_for_those_that_a_store_cannot_have():
    shown = table([Outcome("redis", {"kill": 7}, judge([*CLEAN, SECOND]), [])]).splitlines()
    assert shown[0].split()[:2] == ["store", "grants"]
    assert shown[1].split() == ["redis", "11", "0", "0", "7", *("-" * 7), "1", "0"]


def test_a_store_that_there_is_not_is_refused_with_those_that_there_are(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--stores", "redis,mongo"])
    assert ended.value.code == 2
    assert f"no such store: mongo; there are {', '.join(GROUNDS)}" in capsys.readouterr().err
