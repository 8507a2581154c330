"""What is decided without any place: marks, keys, errors, and how statements are spelled."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.errors import DibsError, LeaseLost, Misuse
from dibs.core.ids import Fence, IssueRef
from dibs.fencing import (
    AlreadyApplied,
    Applied,
    Conflict,
    Duplicate,
    Missing,
    NotApplied,
    Stale,
    StaleFence,
    insist,
    key_for,
)
from dibs.fencing.connections import counted, may_pass, spell
from dibs.fencing.values import HIGHEST, Mark, check

WRITES = st.lists(st.tuples(st.integers(1, 5), st.none() | st.integers(1, 4)), max_size=30)


@given(WRITES)
def test_a_mark_never_goes_back_and_applies_no_step_twice(writes):
    mark, applied = Mark(), []
    for fence, step in writes:
        if mark.refusal(fence, step) is None:
            after = mark.after(fence, step)
            assert (after.fence, after.step) >= (mark.fence, mark.step)
            mark = after
            applied.append((fence, step))
    fences = [fence for fence, _ in applied]
    assert fences == sorted(fences)
    stepped = [(fence, step) for fence, step in applied if step is not None]
    assert stepped == sorted(set(stepped))


@given(WRITES)
def test_what_was_applied_is_a_duplicate_until_a_later_step_or_fence(writes):
    mark = Mark()
    for fence, step in writes:
        if mark.refusal(fence, step) is not None:
            continue
        mark = mark.after(fence, step)
        if step is None:
            assert mark.refusal(fence) is None  # the holder's next write
        else:
            assert mark.refusal(fence, step) == Duplicate()
            assert mark.refusal(fence, step + 1) is None
            assert isinstance(mark.refusal(fence, step - 1), Conflict)
        assert mark.refusal(fence - 1, step) == Stale(Fence(fence))


@pytest.mark.parametrize("fence", [0, -1, True, "7", 7.0, None, HIGHEST + 1])
def test_what_cannot_be_a_fence_is_refused(fence):
    with pytest.raises(Misuse):
        check(fence)


@pytest.mark.parametrize("step", [0, -1, True, "1", 1.0, HIGHEST + 1])
def test_what_cannot_be_a_step_is_refused(step):
    with pytest.raises(Misuse):
        check(1, step)


# Errors


@pytest.mark.parametrize("outcome", [Applied(), Applied(3), Duplicate()])
def test_who_insists_hears_nothing_if_the_write_is_there(outcome):
    assert insist(outcome, "report 12", 7) is None


def test_a_stale_write_is_a_lost_lease():
    with pytest.raises(StaleFence) as told:
        insist(Stale(Fence(8)), "report 12", 7)
    assert isinstance(told.value, LeaseLost)  # so a Python handler stops, and no attempt is counted
    assert (told.value.resource, told.value.fence, told.value.seen) == ("report 12", 7, 8)
    assert str(told.value).startswith("report 12: ")
    assert "fence 7" in str(told.value)
    assert "fence 8" in str(told.value)


@pytest.mark.parametrize(
    ("outcome", "words"), [(Conflict("version 4 is there"), "version 4"), (Missing(), "no such")]
)
def test_conflict_and_missing_are_not_a_lost_lease(outcome, words):
    with pytest.raises(NotApplied, match=words) as told:
        insist(outcome, "report 12", 7)
    assert told.value.outcome == outcome
    assert not isinstance(told.value, LeaseLost)


def test_every_error_has_a_code_of_its_own_and_a_hint():
    errors = [
        StaleFence("r", fence=1, seen=2),
        AlreadyApplied("r", fence=1, step=2),
        NotApplied("r", Missing()),
    ]
    assert all(isinstance(error, DibsError) and error.hint for error in errors)
    assert [error.code for error in errors] == ["STALE_FENCE", "ALREADY_APPLIED", "NOT_APPLIED"]


# Keys


def test_a_key_is_the_same_in_every_process():
    assert key_for("#12", 7, "charge") == "dibs-7-1e7ea85cb95f7a0f5acfaff4"
    assert key_for(IssueRef("", "12"), 7, "charge") == key_for("#12", 7, "charge")
    assert key_for("#12", None, "charge") == "dibs-b592ce9bd476cc117d2e3828"


PARTS = st.tuples(st.text(), st.none() | st.integers(1, HIGHEST), st.text() | st.integers(0, 99))


@given(PARTS, PARTS)
def test_two_effects_share_a_key_only_if_they_are_the_same(one, other):
    same = [str(part) for part in one] == [str(part) for part in other]
    assert (key_for(*one) == key_for(*other)) is same


@given(PARTS)
def test_a_key_is_short_and_plain(parts):
    key = key_for(*parts)
    assert len(key) <= 50
    assert set(key) <= set(string.ascii_lowercase + string.digits + "-")


# Statements


@pytest.mark.parametrize(
    ("paramstyle", "text", "values"),
    [
        ("qmark", "SET a = ? WHERE b = ?", ("x", 2)),
        ("format", "SET a = %s WHERE b = %s", ("x", 2)),
        ("numeric", "SET a = :1 WHERE b = :2", ("x", 2)),
        ("numeric_dollar", "SET a = $1 WHERE b = $2", ("x", 2)),
        ("named", "SET a = :v1 WHERE b = :v2", {"v1": "x", "v2": 2}),
        ("pyformat", "SET a = %(v1)s WHERE b = %(v2)s", {"v1": "x", "v2": 2}),
    ],
)
def test_parameters_are_spelled_as_the_driver_wants_them(paramstyle, text, values):
    assert spell("SET a = ? WHERE b = ?", ["x", 2], paramstyle) == (text, values)


def test_an_unknown_spelling_is_refused():
    with pytest.raises(Misuse, match="paramstyle"):
        spell("?", [1], "percent")


def test_a_driver_that_cannot_count_is_not_believed():
    assert counted(0) == 0
    with pytest.raises(Misuse, match="not known"):
        counted(-1)


def test_an_error_that_nobody_knows_does_not_pass():
    assert not may_pass(RuntimeError("40001"))
    assert not may_pass(KeyboardInterrupt())
