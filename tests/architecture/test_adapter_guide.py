"""The guide for adapters names everything its readers need, and shows what they will see."""

import subprocess
import sys

import pytest

from dibs.testing import conformance

from .pages import DOCS, blocks, codes, section, table

PAGE = DOCS / "guides" / "write-an-adapter.md"


def test_every_public_name_of_the_suite_is_explained():
    assert table(PAGE, "The names").names() == set(conformance.__all__)
    explained = codes(table(PAGE, "The names").by_name()["Report"][1])
    members = {name for name in vars(conformance.Report) if not name.startswith("_")}
    assert {name.removesuffix("()") for name in explained} <= members


@pytest.mark.parametrize(
    ("heading", "harness", "subject"),
    [
        ("The harness of a lease store", conformance.LeaseHarness, "store"),
        ("A tracker", conformance.TrackerHarness, "tracker"),
    ],
    ids=["leases", "tracker"],
)
def test_every_member_of_a_harness_is_explained(heading, harness, subject):
    explained = {name.split("(")[0] for name in table(PAGE, heading).names()}
    members = {name for name in vars(harness) if not name.startswith("_")}
    assert explained == {*members, subject}


def test_the_report_that_is_shown_is_the_one_that_is_printed(tmp_path):
    example = next(block for block in blocks(PAGE) if block.words == ("run",))
    [shown] = [block for block in blocks(PAGE) if block.language == "text"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example.text],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == (shown.text, "")


def test_every_word_of_a_report_is_explained():
    words = {name for row in table(PAGE, "What the report says").rows for name in codes(row[0])}
    results = {result.value for result in conformance.Result} - {"passed"}
    assert results | {"NOT PROVED", "not declared"} == words
    assert "DOES NOT CONFORM" not in section(PAGE, "What the report says")
