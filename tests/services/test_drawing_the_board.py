"""The board as text: it fits every terminal, and no stranger's text reaches it raw."""

from datetime import timedelta

import pytest
from rich.cells import cell_len

from dibs.frontends.cli.board import Sight, View, page, picture

from .world import World

WIDE = "日本語のタイトルは幅が広い"
SIZES = [(width, height) for width in (1, 9, 40, 80, 81, 160) for height in (1, 2, 5, 9, 24, 60)]


@pytest.fixture
def sight():
    world = World()
    for number in range(30):
        world.add("stage:ready", "parked", title=f"parked {number} {WIDE * 9}")
        world.add("stage:review", title=f"gated {number} \x1b[2Jcleared\nnext\u202e")
        world.add("stage:ready", title=f"waiting {number}")
    worker = world.process("a worker with a long name " * 4)
    runs = [
        worker.claimed(world.add(title=f"running {WIDE * number}")).lease.run for number in (0, 5)
    ]
    survey = worker.services.board.survey()
    return Sight(
        survey, "memory:", timedelta(seconds=75), 60, dict.fromkeys(runs, "\x1b]0;title\x07")
    )


def drawn(sight, view=None, width=80, height=40):
    return [line.plain for line in picture(sight, view or View(), width, height)]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_it_fits(sight, width, height):
    for view in (View(), View(first=1000), View(needle="gated 7"), View(typed="/" + WIDE * 20)):
        lines = drawn(sight, view, width, height)
        assert len(lines) == height
        assert max(map(cell_len, lines)) <= width
    folded = page([WIDE * 20, "", "text"], 3, max(width, 2), height)
    assert len(folded) == height


def test_control_characters_are_shown_and_not_sent(sight):
    text = "\n".join(drawn(sight, width=160))
    assert r"\x1b[2Jcleared\nnext\u202e" in text
    assert r"\x1b]0;title\x07" in text
    assert all(char.isprintable() or char == "\n" for char in text)


def test_every_kind_for_a_person_is_seen_and_scrolls(sight):
    text = "\n".join(drawn(sight, height=24))
    assert "gated 0" in text
    assert "parked 0" in text
    later = "\n".join(drawn(sight, View(first=5), height=24))
    assert "gated 0" not in later
    assert "gated 5" in later
    assert "parked 5" in later
    last = "\n".join(drawn(sight, View(first=1000), height=24))
    assert "gated 29" in last


def test_a_filter_leaves_what_matches_in_any_column(sight):
    text = "\n".join(drawn(sight, View(needle="GATED 17")))
    assert "1 to approve" in text
    assert "running  0" in text
    assert "running  2" in "\n".join(drawn(sight, View(needle="long name")))
