"""Writers in several processes at once, and writers that were frozen: nothing goes back."""

import contextlib
from itertools import pairwise

import pytest

from dibs.fencing import Applied, Stale

from .places import KINDS, ONE_OF_EACH, make, reach
from .processes import children

_WRITERS, _TURNS = 4, 25


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_no_write_is_applied_after_one_with_a_higher_fence(kind, tmp_path):
    """Each writer adds itself to what it read, so the content is the order of what was applied."""
    address = make(kind, tmp_path)
    with children("writer", kind, address, count=_WRITERS) as writers:
        for seed, writer in enumerate(writers):
            writer.tell({"do": "race", "seed": seed, "times": _TURNS})
        told = [writer.hear() for writer in writers]
    with contextlib.closing(reach(kind, address)) as place:
        seen = place.read()
    entries = seen.value.split()
    fences = [int(entry.split("/")[0]) for entry in entries]
    assert all(earlier <= later for earlier, later in pairwise(fences))
    assert sorted(entries) == sorted(entry for one in told for entry in one["applied"])
    assert seen.fence == fences[-1]
    assert sum(one["refused"] for one in told) == _WRITERS * _TURNS - len(entries)
    assert 0 < len(entries) < _WRITERS * _TURNS


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_that_was_frozen_past_a_newer_stamp_is_refused_when_it_wakes(kind, tmp_path):
    address = make(kind, tmp_path)
    with (
        contextlib.closing(reach(kind, address)) as place,
        children("writer", kind, address) as [writer],
    ):
        assert writer.ask({"do": "write", "value": "mine", "fence": 7}) == ["Applied"]
        writer.freeze()
        assert isinstance(place.stamp(8), Applied)
        writer.tell({"do": "write", "value": "late", "fence": 7})
        writer.wake()
        assert writer.hear() == ["Stale", 8]
        assert place.read().value == "mine"
        assert isinstance(place.write("yours", 8), Applied)


@pytest.mark.parametrize("kind", ["s3", "file"])
def test_a_writer_that_was_frozen_between_comparing_and_writing_is_refused(kind, tmp_path):
    """Where a write takes several steps: it has compared, and nothing is left but to write."""
    address = make(kind, tmp_path)
    with (
        contextlib.closing(reach(kind, address)) as place,
        children("writer", kind, address) as [writer],
    ):
        place.write("before", 7)
        writer.tell({"do": "write", "value": "late", "fence": 7, "pause": True})
        writer.wait_until_frozen()
        assert isinstance(place.stamp(8), Applied)  # and does not wait for the frozen one
        assert place.write("too late as well", 7) == Stale(8)
        writer.wake()
        assert writer.hear() == ["Stale", 8]
        assert place.read().value == "before"
        assert place.read().fence == 8


@pytest.mark.parametrize("kind", ["s3", "file"])
def test_a_writer_that_was_frozen_while_the_content_came_back_is_refused(kind, tmp_path):
    """The same bytes as it saw are there again, by a newer holder: still not its turn."""
    address = make(kind, tmp_path)
    with (
        contextlib.closing(reach(kind, address)) as place,
        children("writer", kind, address) as [writer],
    ):
        place.write("before", 7)
        writer.tell({"do": "write", "value": "late", "fence": 7, "pause": True})
        writer.wait_until_frozen()
        for value in ("changed", "before"):
            assert isinstance(place.write(value, 8), Applied)
        writer.wake()
        assert writer.hear() == ["Stale", 8]
        assert place.read().value == "before"
