"""Our marks as the issue-claim state machine spells them: the same records, other words.

    <!-- agent-claim:codename=C firing_id=F ts=T run=.. ttl=.. v=1 stage=.. state=held prev=.. -->
    <!-- agent-release:codename=C firing_id=F outcome=O pr=P ts=T run=.. -->

Its runners read the words they know and skip the others, so that they see our leases as held and
our releases as releases. Translates lines of text, word by word and back, so that nothing else has
to know of the dialect: the fold, the proof and the signatures work on the native line. A claim of
theirs has no `run`: it is none of our cards, and `foreign` reads it.

Their key is (codename, firing_id), and one release of a key counts for all its claims, earlier and
later ones. So a key must not come twice on an issue: a holder that has no firing id is given its
run for one, and whoever brings ids of its own says so in the holder's name.
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
_NOBODY = escape("--").removeprefix("-")  # nothing that anybody is called is spelt so
_LONGEST_PART = 48
_DIGEST = 12
_ROOM = 64
"""Their readers skip white space before a line; nobody writes more of it than this."""
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
    """A holder that has a firing id of its own, as one name for people to read.

    `turn` is put behind the id as it is, however long that was.
    """
    return HolderId(f"{_part(codename)}{_FIRING}{_part(firing_id)}{turn}")


def firing_of(holder: str) -> tuple[str, str] | None:
    """Codename and firing id; None for a holder that has none of its own."""
    codename, found, firing_id = holder.partition(_FIRING)
    return (codename, firing_id) if found else None


def _part(text: str) -> str:
    """In one line. What is too long is told from others that begin like it by its digest: who is
    called alike may release alike.
    """
    told = " ".join(text.split()) or "unnamed"
    if len(told) <= _LONGEST_PART:
        return told
    from hashlib import sha256  # loads OpenSSL: not at every start

    digest = sha256(told.encode("utf-8", "replace")).hexdigest()[:_DIGEST]
    return f"{told[: _LONGEST_PART - _DIGEST - 1].strip()}-{digest}"


# Our line, in their words


def spell(body: str, ts: str) -> str:
    """The comment as it goes out. What is no card of ours stays as it is.

    A conceded bid stays in our own words: to their readers it is over when it is no claim any more,
    and a release would also cancel another claim of the same key.
    """
    match = re.match(_OURS, body)
    if match is None:
        return body
    pairs = _pairs(match[2])
    if match[1] == "claim":
        if pairs.get("state") == "conceded":
            return body
        said = {**_key(pairs), "ts": ts, **_beyond_key(pairs)}
        return f"{CLAIM_PREFIX}{_written(said)} -->{body[match.end() :]}"
    told = {**_key(pairs), **_ending(pairs), "ts": ts, "shown": "1"}
    kept = _beyond_key(pairs)
    said = told | {"ended" if key == "outcome" else key: value for key, value in kept.items()}
    return f"{RELEASE_PREFIX}{_written(said)} -->{body[match.end() :]}"


def release_beside(body: str, ts: str) -> str | None:
    """What goes out beside a card that says that its ending is shown: their readers want a release
    of its own. No mark to us: the card has said it.
    """
    match = re.match(_OURS, body)
    pairs = _pairs(match[2]) if match is not None and match[1] == "claim" else {}
    if pairs.get("state") != "released" or pairs.get("shown") != "1":
        return None
    said = {**_key(pairs), **_ending(pairs), "ts": ts, "run": pairs.get("run", "")}
    codename = plain(unquote(said["codename"]))
    return f"{RELEASE_PREFIX}{_written(said)} -->\n**{codename}** released it: {said['outcome']}."


def their_release(
    codename: str, firing_id: str, outcome: str, ts: str, *, pr: str = "", swept_by: str = ""
) -> str:
    """A release as one of their runners writes it: of a claim of theirs, or of one that is over."""
    said = {"codename": codename, "firing_id": firing_id, "outcome": outcome}
    said |= {"pr": pr, "swept_by": swept_by, "ts": ts}
    words = {key: value for key, value in said.items() if value}
    kept = {key: escape(value).replace("%25", "%") for key, value in words.items()}
    return f"{RELEASE_PREFIX}{_written(kept)} -->"


# Their words, read


def as_native(body: str) -> str | None:
    """Our own mark out of a line in this dialect; None if it is not one of ours."""
    match = re.match(_THEIRS, body[: LONGEST_LINE + 1])
    if match is None:
        return None
    pairs = _pairs(match[2])
    twice = len(pairs) < len(match[2].split())
    if twice or "v" not in pairs or not is_ours(pairs):
        return None
    kept = _holder(pairs) | _without(pairs, "codename", "firing_id", *_ONLY_THEIRS)
    if match[1] == "claim":
        return f"<!-- claim {_written(kept)} -->"
    if kept.pop("shown", "") != "1":
        return None
    del kept["outcome"]
    said = {"outcome" if key == "ended" else key: value for key, value in kept.items()}
    return f"<!-- shown {_written(said)} -->"


def is_ours(fields: Mapping[str, str]) -> bool:
    """Whether a claim or a release in this dialect was written by us."""
    return "run" in fields


def key_of(holder: str, run: str) -> tuple[str, str]:
    """The key that their readers know a run of ours by."""
    codename, firing_id = firing_of(holder) or (holder, run)
    return escape(codename) or _NOBODY, escape(firing_id)


def key_in(native: str) -> tuple[str, str]:
    """The same, out of a card in our own words."""
    match = re.match(_OURS, native)
    key = _key(_pairs(match[2]) if match is not None else {})
    return key["codename"], key["firing_id"]


def others_release(body: str) -> tuple[tuple[str, str], Mapping[str, str]] | None:
    """The key and the words of a release that one of their runners wrote; None if it is not one."""
    if not body[:_ROOM].lstrip().startswith(RELEASE_PREFIX):
        return None
    fields = fields_of(body)
    if is_ours(fields) or not fields.keys() >= {"codename", "firing_id"}:
        return None
    return (fields["codename"], fields["firing_id"]), fields


def fields_of(body: str) -> dict[str, str]:
    """What their readers see in a comment of either kind: the words with `=`, the last one counts.

    Of ours the values are unescaped. Empty for any other comment.
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


def _written(pairs: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in pairs.items())


def _without(pairs: Mapping[str, str], *keys: str) -> dict[str, str]:
    return {key: value for key, value in pairs.items() if key not in keys}


def _key(pairs: Mapping[str, str]) -> dict[str, str]:
    holder = pairs.get("holder", "") or _NOBODY
    codename, found, firing_id = holder.partition(_ESCAPED_FIRING)
    return {"codename": codename, "firing_id": firing_id if found else pairs.get("run", "")}


def _beyond_key(pairs: Mapping[str, str]) -> dict[str, str]:
    """The pairs without the holder, unless codename and firing id would read as another one."""
    as_read = _holder({**_key(pairs), "run": pairs.get("run", "")})
    return (
        dict(pairs) if as_read.get("holder") != pairs.get("holder") else _without(pairs, "holder")
    )


def _holder(pairs: Mapping[str, str]) -> dict[str, str]:
    codename, firing_id = pairs.get("codename", _NOBODY), pairs.get("firing_id", "")
    if firing_id == pairs["run"]:
        return {} if codename == _NOBODY else {"holder": codename}
    return {"holder": f"{codename}{_ESCAPED_FIRING}{firing_id}"}


def _ending(pairs: Mapping[str, str]) -> dict[str, str]:
    """Their outcome is any word: the one that was given, or the one that ours comes closest to."""
    note = unquote(pairs.get("note", ""))
    given = dict(word.split("=", 1) for word in note.split() if "=" in word)
    outcome = given.get("outcome") or _OUTCOMES.get(pairs.get("outcome", ""), "returned")
    said = {"outcome": escape(unquote(outcome))}
    return said | ({"pr": escape(unquote(given["pr"]))} if given.get("pr") else {})


def ending_note(outcome: str, pr_url: str | None) -> str:
    """A note that says their outcome and the pull request, so that the release can."""
    pull = f" pr={escape(pr_url)}" if pr_url else ""
    return f"outcome={escape(outcome) or 'success'}{pull}"
