"""Reading the documentation: headings, tables, code blocks and links of a page."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "dibs"
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
ENTRANCES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md", "CHANGELOG.md")

_FENCE = re.compile(r"^\s*```(.*)$")
_HEADING = re.compile(r"^(#{1,6}) (.+?)\s*$")
_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, the words after it, and its text."""

    language: str
    words: tuple[str, ...]
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Table:
    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def by_name(self) -> dict[str, tuple[str, ...]]:
        """The rows by the first name in their first cell."""
        return {codes(row[0])[0]: row for row in self.rows}

    def names(self) -> set[str]:
        """Every name in the first column."""
        return {name for row in self.rows for name in codes(row[0])}


def pages() -> list[Path]:
    return [*(ROOT / name for name in ENTRANCES), *sorted(DOCS.rglob("*.md"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def text(path: Path) -> str:
    return path.read_text("utf-8")


def codes(cell: str) -> list[str]:
    return _CODE.findall(cell.replace("\\|", "|"))


@cache
def blocks(path: Path) -> tuple[Block, ...]:
    found: list[Block] = []
    opened: tuple[int, list[str]] | None = None
    lines: list[str] = []
    for number, line in enumerate(text(path).splitlines(), 1):
        fence = _FENCE.match(line)
        if fence is None:
            lines.append(line)
        elif opened is None:
            opened, lines = (number, fence[1].split()), []
        else:
            start, words = opened
            language = words[0] if words else ""
            inside = "\n".join(lines) + "\n"
            found.append(Block(language, tuple(words[1:]), inside, start))
            opened = None
    assert opened is None, f"{name_of(path)}: the block at line {opened} is not closed"
    return tuple(found)


@cache
def prose(path: Path) -> tuple[tuple[int, str], ...]:
    """The lines outside code blocks, with their numbers."""
    found, inside = [], False
    for number, line in enumerate(text(path).splitlines(), 1):
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            found.append((number, line))
    return tuple(found)


@cache
def numbered_headings(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Line, level and text of each heading."""
    matches = ((number, _HEADING.match(line)) for number, line in prose(path))
    return tuple((number, len(match[1]), match[2]) for number, match in matches if match)


@cache
def headings(path: Path) -> tuple[tuple[int, str], ...]:
    """Level and text of each heading."""
    return tuple((level, heading) for _, level, heading in numbered_headings(path))


@cache
def anchors(path: Path) -> frozenset[str]:
    made = {_slug(heading) for _, heading in headings(path)}
    return frozenset(made | set(re.findall(r'<a id="([^"]+)">', text(path))))


def _slug(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return kept.replace(" ", "-")


@cache
def section(path: Path, heading: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    lines = text(path).splitlines()
    level, start = 0, None
    for place, line in enumerate(lines):
        match = _HEADING.match(line)
        if match is None:
            continue
        if start is not None and len(match[1]) <= level:
            return "\n".join(lines[start:place])
        if start is None and match[2] == heading:
            level, start = len(match[1]), place + 1
    assert start is not None, f"{name_of(path)} has no heading {heading!r}"
    return "\n".join(lines[start:])


@cache
def tables(path: Path) -> tuple[Table, ...]:
    found: list[Table] = []
    heading, gathered = "", []
    for _, line in (*prose(path), (0, "")):
        if match := _HEADING.match(line):
            heading = match[2]
        if line.startswith("|"):
            gathered.append(_cells(line))
        elif gathered:
            columns, _, *rows = gathered
            assert all(len(row) == len(columns) for row in rows), f"{name_of(path)}: {heading}"
            found.append(Table(heading, columns, tuple(rows)))
            gathered = []
    return tuple(found)


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])


def table(path: Path, heading: str, column: str | None = None) -> Table:
    """The one table under a heading, or the one whose first column has that name."""
    found = [
        one for one in tables(path) if one.heading == heading and column in (None, one.columns[0])
    ]
    assert len(found) == 1, f"{name_of(path)}: {len(found)} tables under {heading!r}"
    return found[0]


def absent(references: Iterable[str]) -> list[str]:
    """Of names like `tests/core/test_fold.py::test_x`, those that name no function there."""
    return [reference for reference in references if not _is_there(reference)]


def _is_there(reference: str) -> bool:
    place, _, name = reference.partition("::")
    return name in _functions(ROOT / place)


@cache
def _functions(path: Path) -> frozenset[str]:
    """The functions of a file that begin a line; none if there is no such file."""
    if not path.is_file():
        return frozenset()
    return frozenset(re.findall(r"^def (\w+)\(", text(path), re.MULTILINE))


def links(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in prose(path):
        for target in _LINK.findall(re.sub(r"`[^`]*`", "", line)):
            yield number, target
