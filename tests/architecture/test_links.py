"""Every page can be found, every link leads somewhere, and pages have the shape they promise."""

import itertools
import re

import pytest

from .pages import DOCS, ROOT, anchors, headings, links, name_of, pages, prose

PROFILE = [
    "Scope",
    "Identity",
    "Ordering",
    "Limits",
    "Errors",
    "Guarantees",
    "What a pause longer than the ttl does",
]
INDEX = DOCS / "llms.txt"


@pytest.mark.parametrize("page", [*pages(), INDEX], ids=name_of)
def test_every_link_resolves(page):
    broken = []
    for number, target in links(page):
        place, _, anchor = target.partition("#")
        if "://" in place:
            continue
        found = (page.parent / place).resolve() if place else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(f"{name_of(page)}:{number}: {target}")
    assert broken == []


def test_every_page_is_listed_in_the_index_once():
    listed = [target for _, target in links(INDEX)]
    there = [page.relative_to(DOCS).as_posix() for page in sorted(DOCS.rglob("*.md"))]
    assert sorted(listed) == there


def test_the_entrances_lead_to_the_index():
    for name in ("README.md", "AGENTS.md"):
        assert "docs/llms.txt" in [target for _, target in links(ROOT / name)], name


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_page_has_one_title_and_skips_no_level(page):
    levels = [level for level, _ in headings(page)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    steps = itertools.pairwise(levels)
    assert all(below <= above + 1 for above, below in steps)


# Every release in the changelog has the same headings.
@pytest.mark.parametrize("page", [p for p in pages() if p.name != "CHANGELOG.md"], ids=name_of)
def test_no_two_headings_of_a_page_share_an_anchor(page):
    texts = [text for _, text in headings(page)]
    assert len(texts) == len(set(texts))


@pytest.mark.parametrize(
    "page",
    [*sorted((DOCS / "trackers").glob("*.md")), *sorted((DOCS / "stores").glob("*.md"))],
    ids=name_of,
)
def test_every_profile_has_the_same_headings(page):
    assert [text for level, text in headings(page) if level == 2] == PROFILE


# A full stop, a space and a capital: a second sentence on the line. Enumerations like "1. Stop"
# begin a line and do not count.
_SECOND = re.compile(r"(?<=[a-z0-9)`*])[.?!] (?=[A-Z`*])")


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_paragraph_has_one_sentence_a_line(page):
    crowded = [
        f"{name_of(page)}:{number}: {line}"
        for number, line in prose(page)
        if not line.startswith(("|", "#", "-", " ", "1", "2", "3", "4", "5", "6", "7", "8", "9"))
        and _SECOND.search(line)
    ]
    assert crowded == []


_BANNED = re.compile(
    r"\b(tasks?|tickets?|fencing tokens?|work items?|reap(?:s|ed|er)?)\b", re.IGNORECASE
)
_NAMING = ("vocabulary.md", "AGENTS.md")


@pytest.mark.parametrize(
    "page", [p for p in (*pages(), INDEX) if p.name not in _NAMING], ids=name_of
)
def test_the_words_are_those_of_the_vocabulary(page):
    found = [
        f"{name_of(page)}:{number}: {match[0]}"
        for number, line in prose(page)
        for match in _BANNED.finditer(line)
    ]
    assert found == []


_HOSTS = re.compile(
    r"\b(?:pypi|npmjs|ghcr|docker|quay|anaconda|files\.pythonhosted)\.(?:org|io|com)"
)


@pytest.mark.parametrize("page", [*pages(), INDEX], ids=name_of)
def test_no_page_names_a_registry(page):
    assert _HOSTS.findall(page.read_text("utf-8")) == []
