"""Five outcomes at every kind of place, and what a place remembers."""

import contextlib
from collections.abc import Iterator

import pytest

from dibs.fencing import Applied, Conflict, Duplicate, Missing, Stale

from .places import KINDS, Place, make, reach

HUGE = 2**53 + 1
"""A number that floating point cannot tell from the one before it."""


@pytest.fixture(params=KINDS)
def place(request, tmp_path) -> Iterator[Place]:
    with contextlib.closing(reach(request.param, make(request.param, tmp_path))) as found:
        yield found


def content(place: Place) -> tuple[str, int]:
    seen = place.read()
    assert seen is not None
    return seen.value, seen.fence


def test_a_holder_may_write_as_often_as_it_likes_under_one_fence(place):
    for value in ("draft", "better", "final"):
        assert isinstance(place.write(value, 7), Applied)
    assert content(place) == ("final", 7)


def test_the_same_content_may_be_written_twice(place):
    assert isinstance(place.write("same", 7), Applied)
    assert isinstance(place.write("same", 7), Applied)
    assert content(place) == ("same", 7)


def test_a_stale_write_changes_nothing_and_is_told_the_fence_that_was_seen(place):
    place.write("new", 900)
    assert place.write("late", 7) == Stale(900)
    assert content(place) == ("new", 900)


def test_a_stamp_refuses_the_holder_before_although_nobody_has_written_since(place):
    place.write("mine", 7)
    assert isinstance(place.stamp(8), Applied)
    assert content(place) == ("mine", 8)
    assert place.write("late", 7) == Stale(8)
    assert place.stamp(7) == Stale(8)
    assert isinstance(place.stamp(8), Applied)  # a retry
    assert isinstance(place.write("yours", 8), Applied)
    assert content(place) == ("yours", 8)


def test_a_version_that_is_there_no_more_is_a_conflict_within_one_holder(place):
    place.write("one", 7)
    version = place.read().version
    first = place.write("two", 7, version=version)
    assert isinstance(first, Applied)
    assert isinstance(place.write("lost update", 7, version=version), Conflict)
    assert content(place) == ("two", 7)
    assert isinstance(place.write("three", 7, version=first.version), Applied)


def test_every_write_makes_a_new_version(place):
    version = place.read().version
    place.write("unversioned", 7)
    assert isinstance(place.write("x", 7, version=version), Conflict)


def test_where_nothing_is_the_write_is_missing(place):
    place.remove()
    assert place.write("x", 7) == Missing()
    assert place.read() is None
    assert place.write("x", 7, version=1) == Missing()


def test_the_same_step_again_is_a_duplicate_and_applied_once(place):
    assert isinstance(place.write("one", 7, step=1), Applied)
    assert isinstance(place.write("two", 7, step=2), Applied)
    assert place.write("two, sent again", 7, step=2) == Duplicate()
    assert content(place) == ("two", 7)


def test_an_earlier_step_that_comes_late_is_a_conflict_and_not_applied(place):
    place.write("two", 7, step=2)
    assert isinstance(place.write("one, late", 7, step=1), Conflict)
    assert content(place) == ("two", 7)


def test_a_write_without_a_step_forgets_none(place):
    place.write("one", 7, step=1)
    assert isinstance(place.write("between", 7), Applied)
    assert place.write("one, sent again", 7, step=1) == Duplicate()
    assert isinstance(place.write("two", 7, step=2), Applied)
    assert content(place) == ("two", 7)


@pytest.mark.parametrize("stamped", [True, False])
def test_a_new_fence_counts_its_steps_anew(place, stamped):
    place.write("old", 7, step=5)
    if stamped:
        place.stamp(8)
    assert isinstance(place.write("new", 8, step=1), Applied)
    assert place.write("new, again", 8, step=1) == Duplicate()
    assert place.write("old, again", 7, step=5) == Stale(8)
    assert content(place) == ("new", 8)


def test_a_fence_that_rises_without_a_step_starts_the_steps_anew(place):
    place.write("old", 7, step=5)
    place.write("no step", 8)
    assert isinstance(place.write("first", 8, step=1), Applied)


def test_a_retry_is_a_duplicate_even_if_its_version_has_moved_on(place):
    version = place.read().version
    assert isinstance(place.write("one", 7, version=version, step=1), Applied)
    assert place.write("one", 7, version=version, step=1) == Duplicate()


def test_fences_are_exact_where_floating_point_is_not(place):
    assert isinstance(place.write("high", HUGE), Applied)
    assert place.write("one lower", HUGE - 1) == Stale(HUGE)
    assert isinstance(place.write("as high", HUGE), Applied)
    assert isinstance(place.write("highest", 2**63 - 1, step=2**62), Applied)
    assert content(place) == ("highest", 2**63 - 1)


def test_a_refused_write_leaves_its_mark_nowhere(place):
    place.write("x", 7, step=3)
    version = place.read().version
    place.write("y", 7, version="no such version" if isinstance(version, str) else 999, step=4)
    assert content(place) == ("x", 7)
    assert place.read().version == version
    assert isinstance(place.write("y", 7, step=4), Applied)
