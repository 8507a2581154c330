"""Fifty threads in each of two processes want one hold: never are two inside."""

from itertools import pairwise
from pathlib import Path

import pytest

from .places import KINDS, Place
from .processes import Company

pytestmark = pytest.mark.long

THREADS, TIMES = 50, 2


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_never_are_two_inside(place: Place, company: Company, tmp_path: Path) -> None:
    words = (str(tmp_path / "inside"), str(THREADS), str(TIMES))
    both = [company.start("threads.py", name, place.url(), name, *words) for name in ("a", "b")]
    for process in both:
        assert process.hear() == "ready"
    for process in both:
        process.tell("go")
    entries = [
        (came_at, left_at, fence, name)
        for name, process in enumerate(both)
        for fence, came_at, left_at in process.hear()
    ]
    assert len(entries) == 2 * THREADS * TIMES
    entries.sort()
    for earlier, later in pairwise(entries):
        assert earlier[1] < later[0], "they were inside at the same time"
        assert earlier[2] < later[2], "the fence rises with every grant"
    assert any(earlier[3] != later[3] for earlier, later in pairwise(entries)), "both took part"
