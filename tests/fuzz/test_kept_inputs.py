"""Every input that is kept is replayed, and every one that ever failed says what it taught."""

import re

import pytest

from .kept import CORPUS, HERE, NAMES, REGRESSIONS, inputs
from .targets import TARGETS

KEPT = [(name, path) for name in NAMES for path in inputs(name, CORPUS, REGRESSIONS)]
LONGEST = 20_000


@pytest.mark.parametrize(
    ("target", "path"), KEPT, ids=[path.relative_to(HERE).as_posix() for _, path in KEPT]
)
def test_a_kept_input_holds(target, path):
    TARGETS[target](path.read_bytes())


@pytest.mark.parametrize("target", NAMES)
def test_a_target_holds_for_nothing_at_all_and_for_every_single_byte(target):
    TARGETS[target](b"")
    for byte in range(256):
        TARGETS[target](bytes([byte]))


def test_every_target_has_a_corpus_and_a_dictionary():
    assert tuple(TARGETS) == NAMES
    for name in NAMES:
        assert inputs(name, CORPUS)
        assert (HERE / "dictionaries" / f"{name}.dict").is_file()


def test_every_input_that_failed_says_what_it_taught():
    text = (HERE / REGRESSIONS / "README.md").read_text("utf-8")
    told = re.findall(r"^\| `([^`]+)` \| \S.* \|$", text, re.MULTILINE)
    kept = [
        path.relative_to(HERE / REGRESSIONS).as_posix()
        for name in NAMES
        for path in inputs(name, REGRESSIONS)
    ]
    assert sorted(told) == sorted(kept)


def test_kept_inputs_are_small():
    assert [path for _, path in KEPT if path.stat().st_size > LONGEST] == []
