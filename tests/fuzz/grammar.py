"""The spellings of a reference, read a second time, letter by letter.

The program reads them with regular expressions, whose inside the fuzzer cannot see. This reader
has a branch for every choice, so a fuzzer that watches it finds its way; and where the two
disagree, one of them is wrong. Knows the documented spellings, and nothing of how the program
reads them.
"""

from dibs.core.ids import IssueRef

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DIGITS = frozenset("0123456789")
_WORD = _LETTERS | _DIGITS | {"_"}
_WHITE = frozenset(" \t\n\r\f\v")
_KINDS = ("issues", "pull", "pulls", "merge_requests", "work_items")
_KEY_KINDS = ("browse", "issue")


def spelled(text: str, home: str) -> IssueRef | None:
    """The issue that the text names; None if it names none."""
    wanted = text.strip()
    if len(wanted) > 2000:
        return None
    bare = wanted.removeprefix("#")
    if _is_number(bare, 18):
        return IssueRef(home, bare)
    repo, _, number = wanted.partition("#")
    if _is_repo(repo.split("/")) and _is_number(number, 18):
        return IssueRef(repo, number)
    if _is_key(wanted):
        return IssueRef(home, wanted.upper())
    for scheme in ("https://", "http://"):
        if wanted.startswith(scheme):
            return _address(wanted.removeprefix(scheme), home)
    return None


def _address(rest: str, home: str) -> IssueRef | None:
    host, slash, path = rest.partition("/")
    if not slash or not 1 <= len(host) <= 253 or _WHITE & set(rest):
        return None
    parts = path.split("/")
    return _numbered(parts) or _keyed(parts, home)


def _numbered(parts: list[str]) -> IssueRef | None:
    """The shortest repository that is followed by a kind and a number."""
    for count in range(2, 7):
        after = parts[count:]
        if after[:1] == ["-"]:
            after = after[1:]
        if len(after) < 2 or after[0] not in _KINDS or not _is_repo(parts[:count]):
            continue
        number = _before_the_tail(after[1])
        if _is_number(number, 18):
            return IssueRef("/".join(parts[:count]), number)
    return None


def _keyed(parts: list[str], home: str) -> IssueRef | None:
    """The last key that follows a kind."""
    for place in range(len(parts) - 1, 0, -1):
        key = _before_the_tail(parts[place])
        if parts[place - 1] in _KEY_KINDS and _is_key(key):
            return IssueRef(home, key.upper())
    return None


def _before_the_tail(part: str) -> str:
    for sign in "?#":
        part = part.partition(sign)[0]
    return part


def _is_repo(parts: list[str]) -> bool:
    return 2 <= len(parts) <= 6 and all(map(_is_segment, parts))


def _is_segment(part: str) -> bool:
    if not 1 <= len(part) <= 100 or part in (".", ".."):
        return False
    if part[0] not in _WORD and part[0] != ".":
        return False
    return all(sign in _WORD or sign in ".-" for sign in part)


def _is_number(text: str, longest: int) -> bool:
    if not 1 <= len(text) <= longest or text[0] == "0":
        return False
    return all(sign in _DIGITS for sign in text)


def _is_key(text: str) -> bool:
    project, dash, number = text.partition("-")
    if not dash or not 1 <= len(project) <= 20 or project[0] not in _LETTERS:
        return False
    return all(sign in _WORD for sign in project) and _is_number(number, 12)
