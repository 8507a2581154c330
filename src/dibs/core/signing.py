"""Signatures on marks: an owner of the key wrote this line, for this issue of this repository.

Decides what is signed, how a signature is spelt, and whether a signature holds. Refuses to know
what a mark means (`card`, `granter`) and where the key comes from. The signature does not hold on a
mark that was altered, or moved to another issue or repository. The time of writing is not covered:
a line copied whole on its own issue still holds, so of several cards of a run only the first
counts.
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
from dibs.core.eligibility import GATE_KINDS
from dibs.core.ids import IssueRef
from dibs.core.issue import Comment, Snapshot
from dibs.core.marker import LONGEST_LINE, starts_as

KINDS = (
    *("claim", "revoke", "shown", "excused", "granter", "pause", "resume"),
    *("parked", *GATE_KINDS),
)
"""The kinds of line which are signed: all that decide about an issue or about the whole backlog."""

SHORTEST_SECRET = 16
LONGEST_ID = 32
_LINE = rf"<!-- ({'|'.join(KINDS)})((?: [a-z][a-z0-9_]{{0,31}}=[!-~]*)*) -->(?=[ \r\n]|$)"
_ID = r"[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*"
_SIGNATURE = rf"({_ID}):([0-9a-f]{{64}})"
_DOMAIN = "dibs mark v1"
_ID_DOMAIN = b"dibs key id v1"


class BadKey(ValueError):
    """The setting is not a list of keys. The error text shows no part of the setting."""


class Key(Struct, frozen=True):
    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Key(id={self.id!r})"  # logs and tracebacks show no secret

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("id", self.id)]


class Strictness(StrEnum):
    STRICT = "strict"
    """Only signed marks are believed."""
    LENIENT = "lenient"
    """Marks without a signature are believed too: for the time in which a fleet gets its key."""


class Keyring(Struct, frozen=True):
    """The first key signs, all keys verify: so keys can be changed under a running fleet."""

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
    """Whether a comment's first line is a mark, and whether its signature holds."""

    NO_MARK = "not a line of ours"
    VALID = "signed"
    UNSIGNED = "not signed"
    INVALID = "its signature does not hold"


def parse_keyring(text: str, strictness: Strictness = Strictness.STRICT) -> Keyring:
    """Read `id:secret,id:secret` or bare secrets. Raises BadKey, which shows no secret.

    A bare secret gets an id: the start of its HMAC over a fixed text, which betrays no more.
    """
    keys = []
    for place, part in enumerate(text.split(","), 1):
        before, colon, after = part.strip().partition(":")
        named = bool(colon) and re.fullmatch(_ID, before) is not None
        secret = (after if named else part.strip()).encode("utf-8", "surrogateescape")
        if len(secret) < SHORTEST_SECRET:
            raise BadKey(f"key {place} is shorter than {SHORTEST_SECRET} characters")
        if named and len(before) > LONGEST_ID:
            raise BadKey(f"the id of key {place} is longer than {LONGEST_ID} characters")
        made_id = hmac.new(secret, _ID_DOMAIN, sha256).hexdigest()[:8]
        keys.append(Key(before if named else made_id, secret))
    return Keyring(tuple(keys), strictness)


def sign(body: str, issue: IssueRef, keyring: Keyring) -> str:
    """The comment with its mark signed by the first key; unchanged without a mark."""
    match = re.match(_LINE, body)
    if match is None:
        return body
    kind, pairs = match[1], [pair for pair in match[2].split() if not pair.startswith("sig=")]
    key = keyring.keys[0]
    signature = f"sig={key.id}:{_digest(key, issue, kind, pairs)}"
    return f"<!-- {' '.join((kind, *pairs, signature))} -->" + body[match.end() :]


def verify(body: str, issue: IssueRef, keyring: Keyring) -> Signed:
    """Check the signature of a comment's mark, in any dialect."""
    body = _native(body)
    if not starts_as(body, KINDS):
        return Signed.NO_MARK
    match = re.match(_LINE, body[: LONGEST_LINE + 1])
    if match is None or match.end() > LONGEST_LINE:
        return Signed.UNSIGNED  # malformed: no reader takes it for a mark
    pairs = match[2].split()
    signatures = [pair for pair in pairs if pair.startswith("sig=")]
    if not signatures:
        return Signed.UNSIGNED
    spelt = re.fullmatch(_SIGNATURE, signatures[0].removeprefix("sig="))
    key = next((key for key in keyring.keys if spelt and key.id == spelt[1]), None)
    if spelt is None or key is None or len(signatures) > 1:
        return Signed.INVALID
    others = [pair for pair in pairs if not pair.startswith("sig=")]
    holds = hmac.compare_digest(_digest(key, issue, match[1], others), spelt[2])
    return Signed.VALID if holds else Signed.INVALID


def _digest(key: Key, issue: IssueRef, kind: str, pairs: Iterable[str]) -> str:
    """The HMAC over repository, issue, kind and the sorted pairs, each after its length.

    The repository's name is case-folded: trackers ignore case in the name, and the settings of two
    people may differ in case.
    """
    parts = (_DOMAIN, issue.repo.casefold(), issue.key, kind, *sorted(pairs))
    encoded = (part.encode("utf-8", "surrogateescape") for part in parts)
    message = b"".join(b"%d:%s" % (len(part), part) for part in encoded)
    return hmac.new(key.secret, message, sha256).hexdigest()


def believing(snapshot: Snapshot, keyring: Keyring) -> Snapshot:
    """The snapshot, with all unbelievable comments marked as not by a writer (see `believed`)."""
    comments = believed(snapshot.comments, snapshot.issue.ref, keyring)
    return snapshot if comments is snapshot.comments else replace(snapshot, comments=comments)


def believed(
    comments: tuple[Comment, ...], issue: IssueRef, keyring: Keyring
) -> tuple[Comment, ...]:
    """The comments, with `by_writer=False` on all marks that are not believed.

    A run posts one card and edits it: a second signed card of the same run is a copy and is not
    believed. A strict fleet does not believe the release by which another tool takes a lease of
    ours away: the release has no signature. A person's ruling with a valid signature gets
    `signed=True`, in a lenient fleet too: a gate, or a relay, may need it.
    """
    refused: set[int] = set()
    signed: set[int] = set()
    runs: set[str] = set()
    keys: set[tuple[str, str]] = set()
    for comment in sorted(comments, key=lambda comment: (comment.created_at, comment.id)):
        if not comment.by_writer:
            continue
        native, run = _native(comment.body), None
        verdict = verify(comment.body, issue, keyring)
        mark = re.match(_LINE, native) if verdict is Signed.VALID else None
        if mark is not None and mark[1] == "claim":
            run = next((pair for pair in mark[2].split() if pair.startswith("run=")), None)
        if mark is not None and mark[1] in GATE_KINDS[:2]:
            signed.add(comment.id)
        if not keyring.believes(verdict) or run in runs:
            refused.add(comment.id)
        if run is not None:
            runs.add(run)
            keys.add(key_in(native))
        elif keyring.strictness is Strictness.STRICT:
            release = others_release(comment.body)
            if release is not None and release[0] in keys:
                refused.add(comment.id)
    if not refused and not signed:
        return comments
    return tuple(
        replace(comment, by_writer=comment.id not in refused, signed=comment.id in signed)
        if comment.id in refused | signed
        else comment
        for comment in comments
    )


def _native(body: str) -> str:
    """The native spelling of a mark, over which signatures are made; any other body unchanged."""
    return (as_native(body) or body) if body.startswith(AGENT_OPENINGS) else body
