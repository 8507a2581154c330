"""The threat model names a test for everything that it claims, and every attack is in it."""

import re

from .pages import DOCS, ENTRANCES, ROOT, absent, codes, links, name_of, tables, text

PAGE = DOCS / "concepts" / "security.md"
FIRST_ATTACKS = 27
SHOWN = "shown by"


def _rows() -> list[tuple[str, tuple[str, ...]]]:
    """Each row that claims something, with a name for it."""
    return [
        (f"{name_of(PAGE)}: {table.heading}: {' '.join(row[:2])}", row)
        for table in tables(PAGE)
        if table.columns[-1] == SHOWN
        for row in table.rows
    ]


def test_every_row_names_tests_that_exist():
    assert len(_rows()) > 40
    wrong = []
    for place, row in _rows():
        named = codes(row[-1])
        wrong += [f"{place}: there is no {test}" for test in named if not _is_there(test)]
        if not named:
            wrong.append(f"{place}: names no test")
    assert not wrong, "\n".join(wrong)


def _is_there(test: str) -> bool:
    return not absent([test]) if "::" in test else (ROOT / test).is_file()


def test_every_actor_has_its_table():
    actors = next(table for table in tables(PAGE) if table.heading == "Actors")
    claimed = {table.heading for table in tables(PAGE) if table.columns[-1] == SHOWN}
    assert len(actors.rows) == len(claimed)


def test_every_attack_is_on_the_page():
    named = {test.partition("::")[0] for _, row in _rows() for test in codes(row[-1])}
    there = {name_of(path) for path in (ROOT / "tests" / "security").glob("test_*.py")}
    assert sorted(there - named) == []


def test_every_attack_of_the_first_round_has_its_number_on_the_page():
    named = {int(number) for number in re.findall(r"\bS(\d+)\b", text(PAGE))}
    assert sorted(set(range(1, FIRST_ATTACKS + 1)) - named) == []


def test_the_way_to_report_is_easy_to_find():
    assert "SECURITY.md" in ENTRANCES
    assert "SECURITY.md" in [target for _, target in links(ROOT / "README.md")]
    assert "../SECURITY.md" in [target for _, target in links(DOCS / "llms.txt")]
    page = name_of(PAGE)
    assert page in [target for _, target in links(ROOT / "SECURITY.md")]
