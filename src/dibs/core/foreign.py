"""Other tools' claim markers: what they say of an issue, in the dialects that could be verified.

Decides which comments are such markers, which of them take one back, and until when one counts.
Server times only: the times that tools write into their markers come from their own clocks. The
labels-as-locks dialect is not here, because `card` reads it: it takes part in the fold like any
bid of ours.

    issue-claim state machine   <!-- agent-claim:codename=C firing_id=F ts=T -->, taken back by
                                <!-- agent-release:codename=C firing_id=F outcome=O ts=T -->
    afk                         <!-- afk:claim v1 worker=W kind=claim -->, taken back by the same
                                with kind=concede
    kagan                       <!-- kagan:lease:v1 --> and a block of JSON; a later one replaces it
    fabrika                     <!-- fabrika-triage-claim session=S lane=L --> and
                                build-claim: build:S:U · T; taken back by deleting the comment
"""

import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from msgspec import Struct

from dibs.core.agent_dialect import is_ours
from dibs.core.ids import ServerTime, later
from dibs.core.issue import Comment

_LONGEST_MARKER = 4000
_LONGEST_NAME = 80
_KAGAN_GRACE = timedelta(hours=2)  # how long kagan itself leaves an expired lease of its own alone

_AGENT = r"<!-- agent-(claim|release):([^>]{0,2000}?)-->"
_AFK = r"<!-- afk:claim v1 ([^>]{0,2000}?)-->"
_TRIAGE = r"<!-- fabrika-triage-claim (session=[^>]{0,2000}?)-->"
_BUILD = r"build-claim: (build:[!-~]{1,200}) · "
_KAGAN = r"<!-- kagan:lease:v1 -->\s{0,20}```json\s{0,20}(\{[^`]{0,3000}\})\s{0,20}```"


class ForeignClaim(Struct, frozen=True):
    """Another tool says that it is at work on an issue."""

    tool: str
    who: str
    comment: int
    since: ServerTime
    until: ServerTime
    """When it stops counting, if nobody takes it back before."""


class _Says(Struct, frozen=True):
    """What one comment says: this key of this tool is claimed, or is not any more."""

    tool: str
    key: str
    who: str = ""
    over: bool = False
    lasts: timedelta | None = None


def foreign_claims(
    comments: Iterable[Comment], *, now: ServerTime, ttl: timedelta
) -> tuple[ForeignClaim, ...]:
    """The markers in force, the oldest first. A stranger's marker is not one."""
    said = [
        (comment, says)
        for comment in comments
        if comment.by_writer and (says := _read(comment.body)) is not None
    ]
    claims: dict[tuple[str, str], ForeignClaim] = {}
    for comment, says in sorted(said, key=lambda one: (one[0].created_at, one[0].id)):
        claims.pop((says.tool, says.key), None)
        if not says.over:
            lasts = ttl if says.lasts is None else min(ttl, says.lasts)
            until = later(comment.updated_at, lasts)
            claim = ForeignClaim(says.tool, says.who, comment.id, comment.created_at, until)
            claims[says.tool, says.key] = claim
    return tuple(claim for claim in claims.values() if now < claim.until)


def is_foreign(body: str) -> bool:
    """Whether it is another tool's marker, so that it decides something if its author counts."""
    return _read(body) is not None


def _read(body: str) -> _Says | None:
    """Only what a comment begins with counts: a marker that is quoted further down claims nothing.

    So a junk comment costs a look at its first characters.
    """
    start = body[:_LONGEST_MARKER].lstrip()
    for prefix, reader in _DIALECTS:
        if start.startswith(prefix):
            return reader(start)
    return None


def _agent(text: str) -> _Says | None:
    match = re.match(_AGENT, text)
    if match is None:
        return None
    fields = _fields(match[2])
    if is_ours(fields):
        return None  # a card of ours in the same dialect, or its release: `card` reads it
    codename, firing = fields.get("codename", ""), fields.get("firing_id", "")
    key = f"{codename} {firing}"
    return _Says("agent-claim", key, _plain(codename), over=match[1] == "release")


def _afk(text: str) -> _Says | None:
    match = re.match(_AFK, text)
    fields = _fields(match[1]) if match else {}
    worker, kind = fields.get("worker", ""), fields.get("kind")
    if not worker or kind not in ("claim", "concede"):
        return None
    return _Says("afk", worker, _plain(worker), over=kind == "concede")


def _triage(text: str) -> _Says | None:
    match = re.match(_TRIAGE, text)
    if match is None:
        return None
    fields = _fields(match[1])
    session = fields.get("session", "")
    return _Says("fabrika", f"triage {session} {fields.get('lane', '')}", _plain(session))


def _build(text: str) -> _Says | None:
    match = re.match(_BUILD, text)
    return _Says("fabrika", match[1], _plain(match[1])) if match else None


def _kagan(text: str) -> _Says | None:
    """Its last comment is the one that counts, whoever wrote those before."""
    match = re.match(_KAGAN, text)
    if match is None:
        return None
    try:
        import json

        told = json.loads(match[1])
    except (ValueError, RecursionError):
        return None
    who = _plain(str(told.get("instance_id", "")))
    return _Says("kagan", "", who, lasts=_kagan_length(told))


def _kagan_length(told: dict[str, object]) -> timedelta | None:
    """How long the lease was to run: both its times are of one clock, so their difference counts.

    None if it does not say: then it counts as long as any marker.
    """
    try:
        start = datetime.fromisoformat(str(told.get("acquired_at")))
        end = datetime.fromisoformat(str(told.get("expires_at")))
        return max(end - start, timedelta()) + _KAGAN_GRACE
    except (ValueError, TypeError, OverflowError):
        return None


_DIALECTS: tuple[tuple[str, Callable[[str], _Says | None]], ...] = (
    ("<!-- agent-claim:", _agent),
    ("<!-- agent-release:", _agent),
    ("<!-- afk:claim ", _afk),
    ("<!-- fabrika-triage-claim ", _triage),
    ("build-claim: ", _build),
    ("<!-- kagan:lease:v1 -->", _kagan),
)


def _fields(text: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in text.split())
    return {key: value for key, _, value in pairs}


def _plain(text: str) -> str:
    """A name out of a comment, fit for a line of ours: no markup and no control characters."""
    kept = "".join(char if char.isalnum() or char in "._-/:@" else "_" for char in text)
    return kept[:_LONGEST_NAME] or "somebody"
