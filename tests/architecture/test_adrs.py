"""Each decision says why, what follows, and which tests keep it true; and those tests exist."""

import re
from collections.abc import Iterator
from pathlib import Path

from .pages import DOCS, absent, codes, headings, name_of, section, text

RECORDS = sorted((DOCS / "internals" / "adr").glob("*.md"))
PARTS = ["Context", "Decision", "Consequences", "Kept true by"]
_STATUS = re.compile(r"^Status: (accepted|superseded by \d{4})\.$", re.MULTILINE)


def test_records_are_numbered_without_gaps():
    numbers = [int(path.name[:4]) for path in RECORDS]
    assert numbers == list(range(1, len(RECORDS) + 1))


def test_a_record_has_its_parts():
    flaws = [f"{name_of(record)}: {flaw}" for record in RECORDS for flaw in _flaws(record)]
    assert not flaws, "\n".join(flaws)


def _flaws(record: Path) -> Iterator[str]:
    (_, title), *parts = headings(record) or ((1, ""),)
    if not title.startswith(f"{record.name[:4]}: "):
        yield f"its title is {title!r}"
    if [heading for _, heading in parts] != PARTS:
        yield f"its parts are {[heading for _, heading in parts]}"
    if not _STATUS.search(text(record)):
        yield "it has no status"


def test_the_tests_that_keep_it_true_exist():
    wrong = []
    for record in RECORDS:
        named = codes(section(record, PARTS[-1])) if _has(record, PARTS[-1]) else []
        wrong += [f"{name_of(record)}: there is no {test}" for test in absent(named)]
        if not named:
            wrong.append(f"{name_of(record)}: names no test")
    assert not wrong, "\n".join(wrong)


def _has(record: Path, part: str) -> bool:
    return part in [heading for _, heading in headings(record)]
