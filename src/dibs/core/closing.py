"""Which issues a text says that it closes, in the words and spellings that GitHub honours.

Nine keywords, in any case, with or without a colon, each before one reference: `#12`, `GH-12`,
`owner/repo#12` or an issue's address. Every issue needs a keyword of its own, anywhere in a line;
"does not close #12" closes it, because nobody reads sentences. A pull request's text is Markdown,
so code, comments and quotations in it close nothing; a commit's message is not.

Refuses to know which repository a bare number is in.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator

from dibs.core.ids import IssueRef

LONGEST_TEXT = 262_144
"""Four times what GitHub lets a pull request say. Of a longer text both its ends are read."""

_KEYWORD = r"(?<!\w)(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)"
_NUMBER = r"([1-9][0-9]{0,17})(?![0-9A-Za-z_])"
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
_SPACE = r"(?:[ \t]{1,20}|[ \t]{0,20}\r?\n[ \t]{0,20})"  # a line may end there, a paragraph may not
_CLOSING = re.compile(
    rf"{_KEYWORD}(?: {{0,3}}:)?{_SPACE}[\[<]?"
    rf"(?:(?:({_NAME}/{_NAME})?#|GH-){_NUMBER}"
    rf"|https?://[^\s/]{{1,253}}/({_NAME}/{_NAME})/issues/{_NUMBER})",
    re.IGNORECASE,
)

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_QUOTED = re.compile(r" {0,3}>")
_INDENTED = re.compile(r"(?: {4}| {0,3}\t)")
_LISTED = re.compile(r"\s{0,40}(?:[-*+]|[0-9]{1,9}[.)])\s")
_TICKS = re.compile(r"`+")
_GAP = "\x00"
"""Stands where something was left out: what it parted stays apart."""
_PARAGRAPHS = re.compile(rf"\n[ \t{_GAP}]*\n")
_HIDDEN = tuple(
    (re.compile(start), re.compile(end, re.IGNORECASE))
    for start, end in (
        ("<!--", "-->|\\Z"),
        ("(?i:<pre\\b)", "</pre>"),
        ("(?i:<code\\b)", "</code>"),
    )
)
"""Where hidden text begins and ends. A comment that nobody ends goes on to the end of the text."""


def closed_by_commit(message: str) -> tuple[IssueRef, ...]:
    """What a commit closes once it is on the default branch. A bare number has no repository."""
    return _closed_by(_bounded(message))


def closed_by_pull(body: str) -> tuple[IssueRef, ...]:
    """What a pull request closes once it is merged, by its text."""
    return _closed_by(_spoken(_bounded(body)))


def _bounded(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2  # trailers stand at the end
    return f"{text[:half]}\n\n{text[-half:]}"


def _closed_by(text: str) -> tuple[IssueRef, ...]:
    found = (IssueRef(one[1] or one[3] or "", one[2] or one[4]) for one in _CLOSING.finditer(text))
    return tuple(dict.fromkeys(found))


# Markdown, as far as it hides words from GitHub


def _spoken(text: str) -> str:
    """The text without code, comments and quotations."""
    shown = "\n".join(_outside_blocks(text.splitlines()))
    for start, end in _HIDDEN:
        shown = _without(shown, start, end)
    return f"\n{_GAP}\n".join(_without_code(paragraph) for paragraph in _PARAGRAPHS.split(shown))


def _outside_blocks(lines: list[str]) -> Iterator[str]:
    """Lines that are in no fenced or indented code and in no quotation."""
    fence = ""
    after_blank, in_list = True, False
    for line in lines:
        opened = _FENCE.match(line)
        if fence:
            if opened and opened[1].startswith(fence) and not line[opened.end() :].strip():
                fence = ""
            yield _GAP
            continue
        if opened:
            fence = opened[1]
        elif _QUOTED.match(line):
            pass
        elif not (after_blank and not in_list and _INDENTED.match(line)):
            yield line
            if line.strip():
                in_list = bool(_LISTED.match(line)) or (in_list and line[:1] in " \t")
                after_blank = False
            else:
                after_blank = True
            continue
        yield _GAP


def _without(text: str, start: re.Pattern[str], end: re.Pattern[str]) -> str:
    """What stands between the two is left out."""
    kept: list[str] = []
    place = 0
    while (found := start.search(text, place)) and (over := end.search(text, found.end())):
        kept.append(text[place : found.start()])
        place = over.end()
    return _GAP.join([*kept, text[place:]])


def _without_code(paragraph: str) -> str:
    """Code between as many backticks as began it; without such an end they are backticks."""
    runs = list(_TICKS.finditer(paragraph))
    places: dict[int, list[int]] = {}
    for number, run in enumerate(runs):
        places.setdefault(len(run[0]), []).append(number)
    kept: list[str] = []
    at = number = 0
    while number < len(runs):
        alike = places[len(runs[number][0])]
        following = bisect_right(alike, number)
        if following == len(alike):
            number += 1
            continue
        kept.append(paragraph[at : runs[number].start()])
        at = runs[alike[following]].end()
        number = alike[following] + 1
    return _GAP.join([*kept, paragraph[at:]])
