"""Every page can be found, every link leads somewhere, and pages have the shape they promise."""

import itertools
import re
from collections import Counter
from pathlib import Path

from .pages import (
    DOCS,
    ROOT,
    anchors,
    headings,
    links,
    name_of,
    numbered_headings,
    pages,
    prose,
    text,
)

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
_FOREIGN = re.compile(r"^[^#]*://")


def test_every_link_resolves():
    broken = [
        f"{name_of(page)}:{number}: {target}"
        for page in (*pages(), INDEX)
        for number, target in links(page)
        if not _FOREIGN.match(target) and not _leads_somewhere(page, target)
    ]
    assert not broken, "\n".join(broken)


def _leads_somewhere(page: Path, target: str) -> bool:
    place, _, anchor = target.partition("#")
    found = (page.parent / place).resolve() if place else page
    return found.exists() and (not anchor or anchor in anchors(found))


def test_every_page_is_listed_in_the_index_once():
    listed = Counter(target for _, target in links(INDEX) if not target.startswith("../"))
    there = Counter(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
    wrong = [f"{name_of(INDEX)}: lacks {page}" for page in sorted(there - listed)]
    wrong += [f"{name_of(INDEX)}: {page} is no page, or there twice" for page in listed - there]
    assert not wrong, "\n".join(wrong)


def test_the_entrances_lead_to_the_index():
    lost = [
        name
        for name in ("README.md", "AGENTS.md")
        if "docs/llms.txt" not in [target for _, target in links(ROOT / name)]
    ]
    assert lost == []


def test_a_page_has_one_title_and_skips_no_level():
    wrong = []
    for page in pages():
        levels = [level for level, _ in headings(page)]
        if levels[:1] != [1] or levels.count(1) != 1:
            wrong.append(f"{name_of(page)}: does not begin with its one title")
        wrong += [
            f"{name_of(page)}:{number}: {heading}: skips a level"
            for (_, above, _), (number, below, heading) in itertools.pairwise(
                numbered_headings(page)
            )
            if below > above + 1
        ]
    assert not wrong, "\n".join(wrong)


def test_no_two_headings_of_a_page_share_an_anchor():
    shared = [
        f"{name_of(page)}: {heading}"
        for page in pages()
        if page.name != "CHANGELOG.md"  # every release has the same headings
        for heading, times in Counter(heading for _, heading in headings(page)).items()
        if times > 1
    ]
    assert not shared, "\n".join(shared)


def test_every_profile_has_the_same_headings():
    profiles = [page for kind in ("trackers", "stores") for page in (DOCS / kind).glob("*.md")]
    assert profiles
    others = {name_of(page): _parts(page) for page in profiles if _parts(page) != PROFILE}
    wrong = [f"{name}: {parts}" for name, parts in sorted(others.items())]
    assert not wrong, "\n".join(wrong)


def _parts(page: Path) -> list[str]:
    return [heading for level, heading in headings(page) if level == 2]


# A full stop, a space and a capital: a second sentence on the line. Enumerations like "1. Stop"
# begin a line and do not count.
_SECOND = re.compile(r"(?<=[a-z0-9)`*])[.?!] (?=[A-Z`*])")
_NO_PARAGRAPH = ("|", "#", "-", " ", "1", "2", "3", "4", "5", "6", "7", "8", "9")


def test_a_paragraph_has_one_sentence_a_line():
    crowded = [
        f"{name_of(page)}:{number}: {line}"
        for page in pages()
        for number, line in prose(page)
        if not line.startswith(_NO_PARAGRAPH) and _SECOND.search(line)
    ]
    assert not crowded, "\n".join(crowded)


_BANNED = re.compile(
    r"\b(tasks?|tickets?|fencing tokens?|work items?|reap(?:s|ed|er)?)\b", re.IGNORECASE
)
_NAMING = ("vocabulary.md", "AGENTS.md")


def test_the_words_are_those_of_the_vocabulary():
    found = [
        f"{name_of(page)}:{number}: {match[0]}"
        for page in (*pages(), INDEX)
        if page.name not in _NAMING
        for number, line in prose(page)
        for match in _BANNED.finditer(line)
    ]
    assert not found, "\n".join(found)


_HOSTS = re.compile(
    r"\b(?:pypi|npmjs|ghcr|docker|quay|anaconda|files\.pythonhosted)\.(?:org|io|com)"
)


def test_no_page_names_a_registry():
    named = [
        f"{name_of(page)}:{number}: {host}"
        for page in (*pages(), INDEX)
        for number, line in enumerate(text(page).splitlines(), 1)
        for host in _HOSTS.findall(line)
    ]
    assert not named, "\n".join(named)
