"""Claim markers of other tools, in the dialects that could be verified.

Decides which comments are markers, which comments take a marker back, and until when a marker
counts. Only server times count: the times in a marker come from the tool's own clock. The
labels-as-locks dialect is not here: `card` reads it, and its claims take part in the fold like any
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

from dibs.core.agent_dialect import CLAIM_PREFIX, RELEASE_PREFIX, fields_of, is_ours
from dibs.core.ids import ServerTime, later
from dibs.core.issue import Comment
from dibs.core.marker import plain

_LONGEST_MARKER = 4000
_KAGAN_GRACE = timedelta(hours=2)  # how long kagan itself leaves an expired lease of its own alone

_RUNNERS = "agent-claim"
_AFK = r"<!-- afk:claim v1 ([^>]{0,2000}?)-->"
_TRIAGE = r"<!-- fabrika-triage-claim (session=[^>]{0,2000}?)-->"
_BUILD = r"build-claim: (build:[!-~]{1,200}) · "
_KAGAN = r"<!-- kagan:lease:v1 -->\s{0,20}```json\s{0,20}(\{[^`]{0,3000}\})\s{0,20}```"


class ForeignClaim(Struct, frozen=True):
    """A marker in force: another tool claims to be at work on the issue."""

    tool: str
    who: str
    comment: int
    since: ServerTime
    until: ServerTime
    """When the marker stops counting, unless its tool takes it back earlier."""


class _Marker(Struct, frozen=True):
    """The content of a marker comment: the tool claims this key, or takes the claim back."""

    tool: str
    key: str
    who: str = ""
    over: bool = False
    """The comment takes the claim back."""
    lasts: timedelta | None = None
    """How long the tool itself lets the claim count; None if the marker does not tell."""


def foreign_claims(
    comments: Iterable[Comment], *, now: ServerTime, ttl: timedelta
) -> tuple[ForeignClaim, ...]:
    """The markers in force, the oldest first. A marker by a stranger (no writer) does not count.

    A marker counts for `ttl` after its last edit, or for its own length if shorter. A later marker
    of the same tool and key replaces the earlier.
    """
    markers = [
        (comment, marker)
        for comment in comments
        if comment.by_writer and (marker := _read(comment.body)) is not None
    ]
    claims: dict[tuple[str, str], ForeignClaim] = {}
    for comment, marker in sorted(markers, key=lambda pair: (pair[0].created_at, pair[0].id)):
        claims.pop((marker.tool, marker.key), None)
        if not marker.over:
            lasts = ttl if marker.lasts is None else min(ttl, marker.lasts)
            until = later(comment.updated_at, lasts)
            who = plain(marker.who, keep="._-/:@") or "somebody"
            claim = ForeignClaim(marker.tool, who, comment.id, comment.created_at, until)
            claims[marker.tool, marker.key] = claim
    return tuple(claim for claim in claims.values() if now < claim.until)


def by_runners(comments: Iterable[Comment]) -> tuple[Comment, ...]:
    """The claims and releases, in force or not, of runners of the issue-claim state machine."""
    return tuple(
        comment
        for comment in comments
        if comment.by_writer
        and (marker := _read(comment.body)) is not None
        and marker.tool == _RUNNERS
    )


def is_foreign(body: str) -> bool:
    """Whether the comment is a marker of another tool, and decides if its author is a writer."""
    return _read(body) is not None


def _read(body: str) -> _Marker | None:
    """Read the marker at the beginning of a comment. A marker quoted further down does not count.

    So a junk comment costs a look at its first characters.
    """
    start = body[:_LONGEST_MARKER].lstrip()
    for prefix, reader in _DIALECTS:
        if start.startswith(prefix):
            return reader(start)
    return None


def _agent(text: str) -> _Marker | None:
    """Read a claim as the tool's own runners do: with a `>` inside, or without an end."""
    fields = fields_of(text)
    if is_ours(fields):
        return None  # a card of ours in the same dialect, or its release: `card` reads it
    if "-->" not in text and not fields.keys() >= {"codename", "firing_id"}:
        return None
    codename, firing = fields.get("codename", ""), fields.get("firing_id", "")
    key = f"{codename} {firing}"
    return _Marker(_RUNNERS, key, codename, over=text.startswith(RELEASE_PREFIX))


def _afk(text: str) -> _Marker | None:
    match = re.match(_AFK, text)
    fields = _fields(match[1]) if match else {}
    worker, kind = fields.get("worker", ""), fields.get("kind")
    if not worker or kind not in ("claim", "concede"):
        return None
    return _Marker("afk", worker, worker, over=kind == "concede")


def _fabrika(text: str) -> _Marker | None:
    if match := re.match(_TRIAGE, text):
        fields = _fields(match[1])
        session = fields.get("session", "")
        return _Marker("fabrika", f"triage {session} {fields.get('lane', '')}", session)
    if match := re.match(_BUILD, text):
        return _Marker("fabrika", match[1], match[1])
    return None


def _kagan(text: str) -> _Marker | None:
    """All markers of kagan have the same key: the last comment counts, by whichever instance.

    Both times in the marker are of the same clock, so their difference is how long the lease was
    to run. Without the times, the marker counts as long as any marker.
    """
    match = re.match(_KAGAN, text)
    if match is None:
        return None
    try:
        import json

        lease = json.loads(match[1])
    except (ValueError, RecursionError):
        return None
    lasts: timedelta | None
    try:
        start = datetime.fromisoformat(str(lease.get("acquired_at")))
        end = datetime.fromisoformat(str(lease.get("expires_at")))
        lasts = max(end - start, timedelta()) + _KAGAN_GRACE
    except (ValueError, TypeError, OverflowError):
        lasts = None
    return _Marker("kagan", "", str(lease.get("instance_id", "")), lasts=lasts)


_DIALECTS: tuple[tuple[str, Callable[[str], _Marker | None]], ...] = (
    (CLAIM_PREFIX, _agent),
    (RELEASE_PREFIX, _agent),
    ("<!-- afk:claim ", _afk),
    ("<!-- fabrika-triage-claim ", _fabrika),
    ("build-claim: ", _fabrika),
    ("<!-- kagan:lease:v1 -->", _kagan),
)


def _fields(text: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in text.split())
    return {key: value for key, _, value in pairs}
