"""Signatures on marks: who has the key wrote this line, for this issue of this repository.

Decides what is signed, how a signature is spelt, and whether one holds. Refuses to know what a mark
means (`card`, `control`) and where the key comes from. A mark that is altered, or moved to another
issue or repository, is not signed any more. Not covered is *when* it was written: a line that was
copied whole on its own issue still holds, so of several cards of one run only the first counts.
"""

import hmac
import re
from collections.abc import Iterable
from enum import Enum, StrEnum
from hashlib import sha256
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.agent_dialect import OPENINGS as AGENT_OPENINGS
from dibs.core.agent_dialect import as_native, key_in, others_release
from dibs.core.ids import IssueRef
from dibs.core.issue import Comment, Thread
from dibs.core.marker import LONGEST_LINE, starts_as

KINDS = ("claim", "revoke", "shown", "granter", "pause", "resume")
"""Every line that changes what is believed of an issue or of the whole backlog."""

SHORTEST_SECRET = 16
LONGEST_ID = 32
_LINE = rf"<!-- ({'|'.join(KINDS)})((?: [a-z][a-z0-9_]{{0,31}}=[!-~]*)*) -->(?=[ \r\n]|$)"
_ID = r"[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*"
_SIGNATURE = rf"({_ID}):([0-9a-f]{{64}})"
_DOMAIN = "dibs mark v1"
_ID_DOMAIN = b"dibs key id v1"


class BadKey(ValueError):
    """The setting is not a list of keys. Its text never shows any of it."""


class Key(Struct, frozen=True):
    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Key(id={self.id!r})"  # logs and tracebacks show no secret

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("id", self.id)]


class Strictness(StrEnum):
    STRICT = "strict"
    """Only what is signed is believed."""
    LENIENT = "lenient"
    """What carries no signature is believed as without a key: while a fleet is given one."""


class Keyring(Struct, frozen=True):
    """The first key signs, all of them verify: so keys can be changed under a running fleet."""

    keys: tuple[Key, ...]
    strictness: Strictness = Strictness.STRICT

    def __post_init__(self) -> None:
        if not self.keys:
            raise BadKey("no key is given")
        if len({key.id for key in self.keys}) < len(self.keys):
            raise BadKey("two keys have the same id")

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(key.id for key in self.keys)

    def believes(self, verdict: "Signed") -> bool:
        match verdict:
            case Signed.NO_MARK | Signed.VALID:
                return True
            case Signed.UNSIGNED:
                return self.strictness is Strictness.LENIENT
            case Signed.INVALID:
                return False


class Signed(Enum):
    """What a comment's first line says of itself."""

    NO_MARK = "not a line of ours"
    VALID = "signed"
    UNSIGNED = "not signed"
    INVALID = "its signature does not hold"


def parse_keyring(text: str, strictness: Strictness = Strictness.STRICT) -> Keyring:
    """Read `id:secret,id:secret` or bare secrets. Raises BadKey, which shows nothing of them."""
    keys = (_key(part.strip(), place) for place, part in enumerate(text.split(","), 1))
    return Keyring(tuple(keys), strictness)


def _key(text: str, place: int) -> Key:
    before, colon, after = text.partition(":")
    named = bool(colon) and re.fullmatch(_ID, before) is not None
    secret = (after if named else text).encode("utf-8", "surrogateescape")
    if len(secret) < SHORTEST_SECRET:
        raise BadKey(f"key {place} is shorter than {SHORTEST_SECRET} characters")
    if named and len(before) > LONGEST_ID:
        raise BadKey(f"the id of key {place} is longer than {LONGEST_ID} characters")
    return Key(before if named else _id_of(secret), secret)


def _id_of(secret: bytes) -> str:
    """A key without a name is called by what it makes of a fixed text, which tells nothing else."""
    return hmac.new(secret, _ID_DOMAIN, sha256).hexdigest()[:8]


def sign(body: str, issue: IssueRef, keyring: Keyring) -> str:
    """The same comment, its mark signed by the first key. What is no mark stays as it is."""
    match = re.match(_LINE, body)
    if match is None:
        return body
    kind, pairs = match[1], [pair for pair in match[2].split() if not pair.startswith("sig=")]
    key = keyring.keys[0]
    signature = f"sig={key.id}:{_digest(key, issue, kind, pairs)}"
    return f"<!-- {' '.join((kind, *pairs, signature))} -->" + body[match.end() :]


def verify(body: str, issue: IssueRef, keyring: Keyring) -> Signed:
    body = _native(body)
    if not starts_as(body, KINDS):
        return Signed.NO_MARK
    match = re.match(_LINE, body[: LONGEST_LINE + 1])
    if match is None or match.end() > LONGEST_LINE:
        return Signed.UNSIGNED  # and no mark that anybody reads
    pairs = match[2].split()
    signatures = [pair for pair in pairs if pair.startswith("sig=")]
    if not signatures:
        return Signed.UNSIGNED
    spelt = re.fullmatch(_SIGNATURE, signatures[0].removeprefix("sig="))
    key = _key_called(spelt[1], keyring) if spelt else None
    if spelt is None or key is None or len(signatures) > 1:
        return Signed.INVALID
    others = [pair for pair in pairs if not pair.startswith("sig=")]
    holds = hmac.compare_digest(_digest(key, issue, match[1], others), spelt[2])
    return Signed.VALID if holds else Signed.INVALID


def _key_called(name: str, keyring: Keyring) -> Key | None:
    return next((key for key in keyring.keys if key.id == name), None)


def _digest(key: Key, issue: IssueRef, kind: str, pairs: Iterable[str]) -> str:
    """Over everything the line says, in an order of its own, each part with its length before it.

    Trackers fold the case of a repository's name, and so do two people's settings differ in it.
    """
    parts = (_DOMAIN, issue.repo.casefold(), issue.key, kind, *sorted(pairs))
    encoded = (part.encode("utf-8", "surrogateescape") for part in parts)
    message = b"".join(b"%d:%s" % (len(part), part) for part in encoded)
    return hmac.new(key.secret, message, sha256).hexdigest()


def believing(thread: Thread, keyring: Keyring) -> Thread:
    """The same reading, with what nobody signed said to be by nobody who counts."""
    comments = believed(thread.comments, thread.issue.ref, keyring)
    return thread if comments is thread.comments else replace(thread, comments=comments)


def believed(
    comments: tuple[Comment, ...], issue: IssueRef, keyring: Keyring
) -> tuple[Comment, ...]:
    refused = _refused(comments, issue, keyring)
    if not refused:
        return comments
    return tuple(
        replace(comment, by_writer=False) if comment.id in refused else comment
        for comment in comments
    )


def _refused(comments: Iterable[Comment], issue: IssueRef, keyring: Keyring) -> set[int]:
    """A run posts one card and edits it: another signed card of the same run is a copy.

    The release by which another tool takes a lease of ours away has no signature either.
    """
    refused: set[int] = set()
    runs: set[str] = set()
    keys: set[tuple[str, str]] = set()
    for comment in sorted(comments, key=lambda one: (one.created_at, one.id)):
        if not comment.by_writer:
            continue
        verdict = verify(comment.body, issue, keyring)
        run = _run_of(comment.body) if verdict is Signed.VALID else None
        if not keyring.believes(verdict) or run in runs:
            refused.add(comment.id)
        if run is not None:
            runs.add(run)
            keys.add(key_in(_native(comment.body)))
        elif keyring.strictness is Strictness.STRICT and _releases(comment.body, keys):
            refused.add(comment.id)
    return refused


def _releases(body: str, keys: set[tuple[str, str]]) -> bool:
    released = others_release(body)
    return released is not None and released[0] in keys


def _native(body: str) -> str:
    """The line that was signed: before it was spelt in another dialect."""
    return (as_native(body) or body) if body.startswith(AGENT_OPENINGS) else body


def _run_of(body: str) -> str | None:
    """Whose card it is; None if it is no card."""
    match = re.match(_LINE, _native(body))
    if match is None or match[1] != "claim":
        return None
    return next((pair for pair in match[2].split() if pair.startswith("run=")), None)
