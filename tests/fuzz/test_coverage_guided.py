"""The coverage-guided fuzzer: a short run of every target, and whether it would tell.

Where atheris does not exist for the Python at hand, the runs are skipped and say so.
"""

import os
import shutil
import subprocess
import sys

import pytest

from .__main__ import Code
from .kept import HERE, NAMES

pytestmark = pytest.mark.long

ROOT = HERE.parent.parent
RUNS = 3000


def fuzz(*arguments, python=(), root=ROOT, folder):
    """One call of the driver, with its temporary files where the test's own are."""
    return subprocess.run(
        [sys.executable, *python, "-m", "tests.fuzz", *arguments],
        cwd=root,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def finished(done):
    if done.returncode == Code.NOT_RUN:
        pytest.skip(done.stdout.strip())
    return done


def row(done, target):
    lines = [line.split() for line in done.stdout.splitlines()]
    head = next(line for line in lines if line[:1] == ["target"])
    found = next(line for line in lines if line[:1] == [target])
    return dict(zip(head, found, strict=True))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("target", NAMES)
def test_a_few_thousand_guided_runs_find_nothing(target, tmp_path):
    done = finished(fuzz(target, "--runs", str(RUNS), "--seed", "1", folder=tmp_path))
    assert done.returncode == Code.NOTHING_FOUND, done.stdout + done.stderr
    told = row(done, target)
    assert told["crashes"] == "0"
    assert int(told["runs"]) >= RUNS
    assert int(told["features"]) > int(told["coverage"]) > 50, "nothing guides the fuzzer"
    assert list(tmp_path.iterdir()) == []


PLANTED = """
from dibs.core.card import parse_mark

def fuzz_card(data):
    parse_mark(data.decode("utf-8", "replace"))
    assert b"state=held" not in data, "planted"

TARGETS = {"card": fuzz_card}
"""


@pytest.mark.timeout(120)
def test_a_planted_mistake_is_found_told_and_its_input_kept(tmp_path):
    copy = tmp_path / "tests" / "fuzz"
    shutil.copytree(HERE, copy, ignore=shutil.ignore_patterns("test_*", "__pycache__"))
    (copy / "targets.py").write_text(PLANTED, "utf-8")
    kept = tmp_path / "kept"
    kept.mkdir()
    done = finished(fuzz("card", "--runs", "3000", root=tmp_path, folder=kept))
    assert done.returncode == Code.FOUND, done.stdout + done.stderr
    assert row(done, "card")["crashes"] == "1"
    assert "AssertionError: planted" in done.stdout
    (crash,) = kept.glob("*/crash-*")
    assert b"state=held" in crash.read_bytes()
    assert str(crash) in done.stdout


def test_without_atheris_nothing_is_run_and_that_is_said(tmp_path):
    done = fuzz(python=("-S",), folder=tmp_path)
    assert done.returncode == Code.NOT_RUN
    assert done.stdout.startswith("not run: atheris is not available for this Python")


@pytest.mark.parametrize("arguments", [["cards"], ["card", "--runs", "0"], ["--seconds", "x"]])
def test_what_is_not_there_is_not_fuzzed(arguments, tmp_path):
    done = fuzz(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert "usage:" in done.stderr
