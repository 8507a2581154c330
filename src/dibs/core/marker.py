"""The spelling of a comment's line for machines: `<!-- kind key=value ... -->`.

Decides how values are escaped, what ends a line, and which lines are malformed. Refuses to know
which kinds there are and what their fields mean: that is in `card`, `granter`, `eligibility` and
`labels`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from urllib.parse import quote, unquote

from msgspec import Struct, field

from dibs.core.issue import Comment

VERSION = 1
LONGEST_LINE = 16_000
_LINE = r"<!-- ([a-z]{1,20})((?: [a-z][a-z0-9_]{0,31}=[!-~]*)*) -->(?=[ \r\n]|$)"
_END = r"--!?>"  # Markdown ends a comment at the one, browsers at both
_EXACT = 2**53  # where Redis' scripts stop counting exactly
# Everything that could end an HTML comment, split a field or ping a person is escaped.
_SAFE = "-._~:/+"
_WITHOUT_SAFE = str.maketrans("", "", _SAFE)


class Fields(Struct):
    """The key=value pairs of a line. Readers take out the fields they know; `rest` is left."""

    pairs: dict[str, str] = field(default_factory=dict)

    def take(self, key: str) -> str | None:
        value = self.pairs.pop(key, None)
        return None if value is None else unquote(value, errors="strict")

    def count(self, key: str, *, digits: int) -> int:
        text = self.take(key) or "0"
        if not text.isascii() or not text.isdigit() or len(text) > digits:
            raise ValueError(f"{key} is not a count")
        if (count := int(text)) >= _EXACT:
            raise ValueError(f"{key} is more than every store can count")
        return count

    @property
    def rest(self) -> tuple[tuple[str, str], ...]:
        return tuple((key, unquote(value, errors="strict")) for key, value in self.pairs.items())


def starts_as(body: str, kinds: Iterable[str]) -> bool:
    """Whether a comment begins as a mark of the given kinds, well formed or not."""
    return body.startswith(tuple(f"<!-- {kind} " for kind in kinds))


def read_line(body: str) -> tuple[str, Fields]:
    """The kind and the fields of a comment's first line. Raises ValueError with the flaw."""
    match = re.match(_LINE, body[: LONGEST_LINE + 1])  # one more, to see what the line ends at
    if match is None or match.end() > LONGEST_LINE:
        raise ValueError("the first line is not a well-formed mark")
    if re.search(_END, match[2]):
        raise ValueError("the HTML comment ends inside a value")
    pairs = [pair.split("=", 1) for pair in match[2].split()]
    fields = Fields(dict(pairs))
    if len(fields.pairs) != len(pairs):
        raise ValueError("a field stands twice")
    version = fields.take("v")
    if version not in (None, str(VERSION)):
        raise ValueError(f"version {version!r} is not {VERSION}")
    return match[1], fields


def marks(
    comments: Iterable[Comment], kinds: Sequence[str]
) -> Iterator[tuple[Comment, str, Mapping[str, str]]]:
    """The marks of these kinds by writers, the oldest first: comment, kind and fields."""
    for comment in sorted(comments, key=lambda comment: (comment.created_at, comment.id)):
        if comment.by_writer and starts_as(comment.body, kinds):
            with suppress(ValueError):
                kind, fields = read_line(comment.body)
                yield comment, kind, dict(fields.rest)


def write_line(
    kind: str, fields: Sequence[tuple[str, str]], extra: Sequence[tuple[str, str]] = ()
) -> str:
    """Spell a line. Fields without a value are left out; `extra` fields are not."""
    known = [f"{key}={escape(value)}" for key, value in fields if value]
    written = " ".join([*known, *(f"{key}={escape(value)}" for key, value in extra)])
    return f"<!-- {kind} {written} -->"


def escape(value: str) -> str:
    if value.isascii() and "--" not in value:  # most values are names, numbers and times
        bare = value if value.isalnum() else value.translate(_WITHOUT_SAFE)
        if not bare or bare.isalnum():
            return value
    return quote(value, safe=_SAFE, errors="replace").replace("--", "-%2D")


def shortened(text: str, most: int = 3000) -> str:
    """Cut the text until the escaped form fits: a line that is too long would be no mark."""
    while len(escape(text)) > most:
        text = text[: len(text) * 3 // 4]
    return text


def quoted(text: str) -> str:
    """Another's words in a sentence of a comment, as code.

    A link, an image, a mention, a reference or markup in it has no effect.
    """
    line = "".join(char if char.isprintable() else " " for char in text.replace("`", "'"))
    return f"`{' '.join(line.split()) or ' '}`"


@lru_cache(maxsize=256)  # of names: a fleet has few
def plain(text: str, keep: str = " ._-/:") -> str:
    """A name, for use as code: only letters, digits and `keep`, at most 80 characters.

    As code, because what is left may still be an address, or the number of an issue (GH-1).
    """
    return "".join(char if char.isalnum() or char in keep else "_" for char in text[:80])
