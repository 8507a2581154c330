"""Each failure on the list is shown by tests that exist, or is plainly said to be not yet shown."""

import re

from dibs.testing.conformance import LEASE_CHECKS, TRACKER_CHECKS

from .pages import DOCS, absent, codes, name_of, table

PAGE = DOCS / "internals" / "failures.md"
LISTS = {"What went wrong elsewhere": 24, "What a lease must mean": 42}
CHECKS = {
    "src/dibs/testing/conformance/leases.py": {check.name for check in LEASE_CHECKS},
    "src/dibs/testing/conformance/tracker.py": {check.name for check in TRACKER_CHECKS},
}
_NOT_YET = re.compile(r"not yet: belongs to ([A-Za-z ]+)")


def _rows() -> list[tuple[str, tuple[str, ...]]]:
    """Each row with a name for it."""
    return [
        (f"{name_of(PAGE)}: {heading}, {row[0]}", row)
        for heading in LISTS
        for row in table(PAGE, heading).rows
    ]


def test_every_number_is_there_once_and_in_order():
    wrong = []
    for heading, last in LISTS.items():
        numbers = [int(row[0]) for row in table(PAGE, heading).rows]
        if numbers != list(range(1, last + 1)):
            wrong.append(f"{name_of(PAGE)}: {heading}: {numbers}")
    assert not wrong, "\n".join(wrong)


def test_what_is_said_to_be_shown_is_shown_by_tests_that_exist():
    wrong = []
    for place, (_, _, holds, shown) in _rows():
        named = codes(shown)
        wrong += [f"{place}: there is no {test}" for test in absent(named)]
        if len(set(named)) < len(named):
            wrong.append(f"{place}: names a test twice")
        if not named and not _NOT_YET.fullmatch(holds):
            wrong.append(f"{place}: has no test, and does not say to what it belongs")
    assert not wrong, "\n".join(wrong)


def test_a_check_that_is_named_is_one_that_adapters_are_put_through():
    wrong = [
        f"{place}: {reference}"
        for place, row in _rows()
        for reference in codes(row[3])
        if not reference.startswith("tests/") and not _is_check(reference)
    ]
    assert not wrong, "\n".join(wrong)


def _is_check(reference: str) -> bool:
    place, _, name = reference.partition("::")
    return name in CHECKS.get(place, ())


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
    wrong = [
        f"{place}: {name}"
        for place, row in _rows()
        for cell in row[:3]
        for name in codes(cell)
        if "::" in name
    ]
    assert not wrong, "\n".join(wrong)
