"""Each decision says why, what follows, and which tests keep it true; and those tests exist."""

import re

import pytest

from .pages import DOCS, absent, codes, headings, name_of, section

RECORDS = sorted((DOCS / "internals" / "adr").glob("*.md"))


def test_records_are_numbered_without_gaps():
    numbers = [int(path.name[:4]) for path in RECORDS]
    assert numbers == list(range(1, len(RECORDS) + 1))


@pytest.mark.parametrize("record", RECORDS, ids=name_of)
def test_a_record_has_its_parts(record):
    (_, title), *parts = headings(record)
    assert title.startswith(f"{record.name[:4]}: ")
    assert [text for _, text in parts] == ["Context", "Decision", "Consequences", "Kept true by"]
    assert re.search(
        r"^Status: (accepted|superseded by \d{4})\.$", record.read_text(), re.MULTILINE
    )


@pytest.mark.parametrize("record", RECORDS, ids=name_of)
def test_the_tests_that_keep_it_true_exist(record):
    named = codes(section(record, "Kept true by"))
    assert named
    assert absent(named) == []
