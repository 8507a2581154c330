"""Retries have one policy: core/durations.py, as docs/internals/architecture.md has it."""

import re

from dibs.core import durations

from .pages import DOCS, SRC

_OWN_NUMBER = re.compile(
    r"^_(?:MOST_)?(?:TRIES|TURNS|READINGS|SENDINGS|RETRIES)\b.*= *\d", re.MULTILINE
)


def test_the_documented_policy_is_the_one_in_force():
    page = (DOCS / "internals" / "architecture.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\|[^|]+\| `([A-Z_]+)` \| (\d+) \|", page, re.MULTILINE))
    policies = {
        name: str(value.most)
        for name, value in vars(durations).items()
        if isinstance(value, durations.Retries)
    }
    assert rows == policies


def test_no_other_module_has_numbers_of_its_own():
    own = [
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if _OWN_NUMBER.search(path.read_text(encoding="utf-8"))
    ]
    assert own == []


def test_the_pauses_of_a_policy_double_if_it_says_so():
    assert list(durations.UNSEEN_WRITE.pauses()) == [0, 0.5, 0.5, 0.5]
    assert list(durations.UNANSWERED_PAINTING.pauses()) == [0, 1, 2, 4, 8, 16]
