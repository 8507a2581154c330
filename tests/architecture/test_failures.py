"""Each failure on the list is shown by tests that exist, or is plainly said to be not yet shown."""

import re

import pytest

from dibs.testing.conformance import LEASE_CHECKS, TRACKER_CHECKS

from .pages import DOCS, absent, codes, table

PAGE = DOCS / "internals" / "failures.md"
LISTS = {"What went wrong elsewhere": 24, "What a lease must mean": 42}
CHECKS = {
    "src/dibs/testing/conformance/leases.py": {check.name for check in LEASE_CHECKS},
    "src/dibs/testing/conformance/tracker.py": {check.name for check in TRACKER_CHECKS},
}
_NOT_YET = re.compile(r"not yet: belongs to ([A-Za-z ]+)")


def _rows():
    return [
        pytest.param(*row, id=f"{heading.split()[1]}-{row[0]}")
        for heading in LISTS
        for row in table(PAGE, heading).rows
    ]


@pytest.mark.parametrize("heading", LISTS)
def test_every_number_is_there_once_and_in_order(heading):
    numbers = [int(row[0]) for row in table(PAGE, heading).rows]
    assert numbers == list(range(1, LISTS[heading] + 1))


@pytest.mark.parametrize(("number", "what", "holds", "shown"), _rows())
def test_what_is_said_to_be_shown_is_shown_by_tests_that_exist(number, what, holds, shown):
    named = codes(shown)
    assert absent(named) == []
    assert len(set(named)) == len(named)
    if not named:
        assert _NOT_YET.fullmatch(holds), "a row without a test says to what it belongs"


@pytest.mark.parametrize(("number", "what", "holds", "shown"), _rows())
def test_a_check_that_is_named_is_one_that_adapters_are_put_through(number, what, holds, shown):
    for reference in codes(shown):
        place, _, name = reference.partition("::")
        assert place.startswith("tests/") or name in CHECKS[place], reference


def test_what_is_not_yet_there_is_explained_and_nothing_else_is():
    explained = {row[0] for row in table(PAGE, "Not yet").rows}
    told = {
        match
        for heading in LISTS
        for row in table(PAGE, heading).rows
        for match in _NOT_YET.findall(row[2])
    }
    assert told == explained


def test_tests_are_named_nowhere_but_in_the_last_column():
    for heading in LISTS:
        for row in table(PAGE, heading).rows:
            assert not [name for cell in row[:3] for name in codes(cell) if "::" in name]
