"""The agent dialect: our marks in the words of the issue-claim state machine.

    <!-- agent-claim:codename=C firing_id=F ts=T run=.. ttl=.. v=1 stage=.. state=held prev=.. -->
    <!-- agent-release:codename=C firing_id=F outcome=O pr=P ts=T run=.. -->

The runners of the issue-claim state machine read the words they know and skip the rest, so they see
our leases as held and our releases as releases. This module translates lines of text, word by word
and back. The fold, the proof and the signatures work on the native line and know nothing of the
dialect. A claim by one of their runners has no `run`: it is no card of ours, and `foreign` reads
it.

Their key is (codename, firing_id), and one release of a key counts for all its claims, earlier and
later ones. So a key must not come twice on an issue: a holder without a firing id gets its run as
its firing id, and a holder with firing ids of its own carries the id in its name (`firing_holder`).
"""

import re
from collections.abc import Mapping
from urllib.parse import unquote

from dibs.core.ids import HolderId
from dibs.core.marker import LONGEST_LINE, escape, plain

CLAIM_PREFIX = "<!-- agent-claim:"
RELEASE_PREFIX = "<!-- agent-release:"
OPENINGS = (CLAIM_PREFIX, RELEASE_PREFIX)

_FIRING = " firing "
_ESCAPED_FIRING = escape(_FIRING)
_NO_NAME = escape("--").removeprefix("-")  # for an empty holder; no escaped name is spelt like this
_LONGEST_PART = 48
_DIGEST = 12
_LONGEST_INDENT = 64
"""Their readers skip white space before a line; no runner writes more of it than this."""
_PAIRS = r"(?:[a-z][a-z0-9_]{0,31}=[!-~]*)"
_THEIRS = rf"<!-- agent-(claim|release):({_PAIRS}(?: {_PAIRS})*) -->(?=[ \r\n]|$)"
_OURS = rf"<!-- (claim|shown)((?: {_PAIRS})*) -->(?=[ \r\n]|$)"
_OUTCOMES = {
    "advanced": "success",
    "returned": "returned",
    "failed": "failure",
    "parked": "failure",
    "conceded": "race-yielded",
}
_ONLY_THEIRS = ("ts", "pr")


# Who holds it


def firing_holder(codename: str, firing_id: str, turn: str = "") -> HolderId:
    """The name of a holder with a firing id of its own: `CODENAME firing ID`, for people to read.

    `turn` is appended to the firing id and is never shortened.
    """
    return HolderId(f"{_bounded(codename)}{_FIRING}{_bounded(firing_id)}{turn}")


def firing_of(holder: str) -> tuple[str, str] | None:
    """Codename and firing id; None for a holder without a firing id."""
    codename, found, firing_id = holder.partition(_FIRING)
    return (codename, firing_id) if found else None


def first_turn(firing: tuple[str, str]) -> tuple[str, str]:
    """Codename and firing id without the `~N` that a firing appends when it claims again."""
    codename, firing_id = firing
    first, again, turn = firing_id.rpartition("~")
    return (codename, first) if again and turn.isdigit() else firing


def _bounded(text: str) -> str:
    """The text in one line of at most 48 characters; a longer text is cut and ends in its digest.

    The digest keeps long names with the same beginning apart: holders with the same key release
    each other's claims.
    """
    line = " ".join(text.split()) or "unnamed"
    if len(line) <= _LONGEST_PART:
        return line
    from hashlib import sha256  # loads OpenSSL: not at every start

    digest = sha256(line.encode("utf-8", "replace")).hexdigest()[:_DIGEST]
    return f"{line[: _LONGEST_PART - _DIGEST - 1].strip()}-{digest}"


# Our line, in their words


def spell(body: str, ts: str) -> str:
    """Translate a native card or shown mark; any other comment stays unchanged.

    A conceded bid stays native: their readers see no claim, and a release would also cancel another
    claim with the same key.
    """
    match = re.match(_OURS, body)
    if match is None:
        return body
    pairs = _pairs(match[2])
    if match[1] == "claim":
        if pairs.get("state") == "conceded":
            return body
        words = {**_key(pairs), "ts": ts, **_pairs_beside_key(pairs)}
        return f"{CLAIM_PREFIX}{_joined(words)} -->{body[match.end() :]}"
    words = {**_key(pairs), **_outcome_words(pairs), "ts": ts, "shown": "1"}
    for key, value in _pairs_beside_key(pairs).items():
        words["ended" if key == "outcome" else key] = value
    return f"{RELEASE_PREFIX}{_joined(words)} -->{body[match.end() :]}"


def release_beside(body: str, ts: str) -> str | None:
    """The release to post beside a card with a shown ending; None for any other comment.

    Their readers want the release as a separate comment. To our readers the release is no mark: the
    card already marks the ending as shown.
    """
    match = re.match(_OURS, body)
    pairs = _pairs(match[2]) if match is not None and match[1] == "claim" else {}
    if pairs.get("state") != "released" or pairs.get("shown") != "1":
        return None
    words = {**_key(pairs), **_outcome_words(pairs), "ts": ts, "run": pairs.get("run", "")}
    codename = plain(unquote(words["codename"]))
    return f"{RELEASE_PREFIX}{_joined(words)} -->\n`{codename}` released it: `{words['outcome']}`."


def their_release(
    codename: str, firing_id: str, outcome: str, ts: str, *, pr: str = "", swept_by: str = ""
) -> str:
    """A release in the form of the runners: of a runner's claim, or of a lease which is over.

    The key is written even if empty: runners compare the keys of claim and release word by word.
    """
    key = {"codename": codename, "firing_id": firing_id}
    words = {"outcome": outcome, "pr": pr, "swept_by": swept_by, "ts": ts}
    words = {**key, **{name: value for name, value in words.items() if value}}
    escaped = {name: escape(value).replace("%25", "%") for name, value in words.items()}
    return f"{RELEASE_PREFIX}{_joined(escaped)} -->"


# Their words, read


def as_native(body: str) -> str | None:
    """Translate a line of this dialect back into our native mark; None if we did not write it."""
    match = re.match(_THEIRS, body[: LONGEST_LINE + 1])
    if match is None:
        return None
    pairs = _pairs(match[2])
    twice = len(pairs) < len(match[2].split())
    if twice or "v" not in pairs or not is_ours(pairs):
        return None
    native = _holder(pairs) | _without(pairs, "codename", "firing_id", *_ONLY_THEIRS)
    if match[1] == "claim":
        return f"<!-- claim {_joined(native)} -->"
    if native.pop("shown", "") != "1":
        return None
    del native["outcome"]
    shown = {"outcome" if key == "ended" else key: value for key, value in native.items()}
    return f"<!-- shown {_joined(shown)} -->"


def is_ours(fields: Mapping[str, str]) -> bool:
    """Whether we wrote this claim or release: only our lines have a `run`."""
    return "run" in fields


def key_of(holder: str, run: str) -> tuple[str, str]:
    """The (codename, firing_id) by which their readers know a run of ours, escaped."""
    codename, firing_id = firing_of(holder) or (holder, run)
    return escape(codename) or _NO_NAME, escape(firing_id)


def key_in(native: str) -> tuple[str, str]:
    """The key of `key_of`, read out of a native card."""
    match = re.match(_OURS, native)
    key = _key(_pairs(match[2]) if match is not None else {})
    return key["codename"], key["firing_id"]


def others_release(body: str) -> tuple[tuple[str, str], Mapping[str, str]] | None:
    """The key and the fields of a release by a runner of theirs; None for any other comment."""
    if not body[:_LONGEST_INDENT].lstrip().startswith(RELEASE_PREFIX):
        return None
    fields = fields_of(body)
    if is_ours(fields) or not fields.keys() >= {"codename", "firing_id"}:
        return None
    return (fields["codename"], fields["firing_id"]), fields


def fields_of(body: str) -> dict[str, str]:
    """The fields which their readers see in a claim or release: words with `=`, the last of a key.

    The values are unescaped if we wrote the comment. Empty for any other comment.
    """
    text = body.strip()
    if not text.startswith(OPENINGS):
        return {}
    words = text.partition(":")[2].partition("-->")[0].split()
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    return {key: unquote(value) for key, value in pairs.items()} if is_ours(pairs) else pairs


# The parts


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split())


def _joined(pairs: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in pairs.items())


def _without(pairs: Mapping[str, str], *keys: str) -> dict[str, str]:
    return {key: value for key, value in pairs.items() if key not in keys}


def _key(pairs: Mapping[str, str]) -> dict[str, str]:
    """Their key for the holder and run of a native line."""
    holder = pairs.get("holder", "") or _NO_NAME
    codename, found, firing_id = holder.partition(_ESCAPED_FIRING)
    return {"codename": codename, "firing_id": firing_id if found else pairs.get("run", "")}


def _pairs_beside_key(pairs: Mapping[str, str]) -> dict[str, str]:
    """The pairs without the holder, unless codename and firing id would read as another holder."""
    as_read = _holder({**_key(pairs), "run": pairs.get("run", "")})
    return (
        dict(pairs) if as_read.get("holder") != pairs.get("holder") else _without(pairs, "holder")
    )


def _holder(pairs: Mapping[str, str]) -> dict[str, str]:
    """The `holder` field of the native line, from codename and firing id; none for no name."""
    codename, firing_id = pairs.get("codename", _NO_NAME), pairs.get("firing_id", "")
    if firing_id == pairs["run"]:
        return {} if codename == _NO_NAME else {"holder": codename}
    return {"holder": f"{codename}{_ESCAPED_FIRING}{firing_id}"}


def _outcome_words(pairs: Mapping[str, str]) -> dict[str, str]:
    """Their `outcome`, and `pr` for the pull request.

    Their outcome may be any word. The note of the ending may give the word and the pull request
    (`ending_note`); otherwise the outcome is the closest to ours.
    """
    note = unquote(pairs.get("note", ""))
    given = dict(word.split("=", 1) for word in note.split() if "=" in word)
    outcome = given.get("outcome") or _OUTCOMES.get(pairs.get("outcome", ""), "returned")
    words = {"outcome": escape(unquote(outcome))}
    return words | ({"pr": escape(unquote(given["pr"]))} if given.get("pr") else {})


def ending_note(outcome: str, pr_url: str | None) -> str:
    """The note of an ending which hands their outcome and the pull request to the release."""
    pull = f" pr={escape(pr_url)}" if pr_url else ""
    return f"outcome={escape(outcome) or 'success'}{pull}"
