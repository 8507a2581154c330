"""The claim card and what is said about one: comments for machines first, people second.

Decides the one spelling of a card (native dialect, version 1) and reads it back, in whichever
dialect it comes. Refuses to know when a card is in force: that is `fold`. A comment that is not
exactly a card is no card; a card of an unknown version is left alone.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from dibs.core.agent_dialect import OPENINGS as AGENT_OPENINGS
from dibs.core.agent_dialect import as_native
from dibs.core.durations import (
    describe_span,
    format_instant,
    format_seconds,
    parse_duration,
    parse_instant,
)
from dibs.core.ids import HolderId, RunId, ServerTime, StageName, server_time
from dibs.core.lease import Ending, Outcome, Revocation
from dibs.core.marker import (
    LONGEST_LINE,
    VERSION,
    Fields,
    plain,
    read_line,
    shortened,
    write_line,
)

__all__ = [
    "LONGEST_LINE",
    "Card",
    "CardState",
    "Mark",
    "RevokeMark",
    "ShownMark",
    "UnknownMark",
    "parse_mark",
    "render_card",
    "render_revoke",
    "render_shown",
    "same_mark",
]

_LONGEST_WHY = 200
_LONGEST_KEPT = 2000
_OPENINGS = ("<!-- claim ", "<!-- revoke ", "<!-- shown ")
_RUN = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}"


class CardState(StrEnum):
    BID = "bid"
    HELD = "held"
    RELEASED = "released"
    CONCEDED = "conceded"


class Card(Struct, frozen=True):
    run: RunId
    ttl: timedelta
    state: CardState = CardState.BID
    holder: HolderId = HolderId("")
    stage: StageName = StageName("")
    prev: ServerTime | None = None
    """The expiry as it was just before the edit that wrote this state; None: never edited."""
    beats: int = 0
    ending: Ending | None = None
    shown: bool = False
    """Its ending is painted: a second edit, whose `prev` is when the lease ended."""
    floor: int = 0
    """What another store's fences had reached before: the card's own counts from there."""
    fence: int = 0
    """Where the card only shows a lease: the fence that the store granted."""
    extra: tuple[tuple[str, str], ...] = ()
    """Keys this version does not know, kept as they came."""


class RevokeMark(Struct, frozen=True):
    revocation: Revocation
    extra: tuple[tuple[str, str], ...] = ()


class ShownMark(Struct, frozen=True):
    """Somebody painted the ending of a run that did not live to do it."""

    run: RunId
    extra: tuple[tuple[str, str], ...] = ()


class UnknownMark(Struct, frozen=True):
    """Looks like one of ours, but of another version or not well formed. Left alone."""

    why: str


Mark = Card | RevokeMark | ShownMark | UnknownMark


def parse_mark(body: str) -> Mark | None:
    """Read a comment's first line. None for a comment that is no mark of ours."""
    if body.startswith(AGENT_OPENINGS):
        body = as_native(body) or ""
    if not body.startswith(_OPENINGS):
        return None
    return _parse_known(body) if len(body) <= _LONGEST_KEPT else _parse(body)


def same_mark(body: str, other: str) -> bool:
    """Whether two comments say the same, whatever somebody signed or added to one of them."""
    mine = _bare(body)
    return body == other or (mine is not None and mine == _bare(other))


def _bare(body: str) -> Mark | None:
    match parse_mark(body):
        case Card() | RevokeMark() | ShownMark() as mark:
            return replace(mark, extra=())
        case UnknownMark() | None:
            return None


def _parse(body: str) -> Mark:
    try:
        kind, fields = read_line(body)
        return _READERS[kind](fields)
    except (ValueError, OverflowError) as flaw:
        return UnknownMark(str(flaw)[:_LONGEST_WHY])


_parse_known = lru_cache(maxsize=4096)(_parse)
"""Every reading of an issue reads all its cards again, and most of them have not changed."""


def _run(fields: Fields) -> RunId:
    run = fields.take("run") or ""
    if not re.fullmatch(_RUN, run):
        raise ValueError(f"run {run[:40]!r} is not a run id")
    return RunId(run)


def _card(fields: Fields) -> Card:
    run = _run(fields)
    ttl = parse_duration(fields.take("ttl") or "")
    state = CardState(fields.take("state") or "bid")
    prev = fields.take("prev")
    beats = fields.count("beats", digits=9)
    floor, fence = fields.count("floor", digits=18), fields.count("fence", digits=18)
    outcome = fields.take("outcome")
    target, note = fields.take("next"), fields.take("note")
    shown = fields.take("shown") == "1"
    if shown and state is not CardState.RELEASED:
        raise ValueError(f"a {state} card has no ending that could be shown")
    if (prev is None) != (state is CardState.BID):
        raise ValueError(f"a {state} card {'must' if prev is None else 'may not'} carry prev")
    return Card(
        run=run,
        ttl=ttl,
        state=state,
        holder=HolderId(fields.take("holder") or ""),
        stage=StageName(fields.take("stage") or ""),
        prev=server_time(parse_instant(prev)) if prev is not None else None,
        beats=beats,
        ending=Ending(Outcome(outcome), StageName(target) if target else None, note or "")
        if outcome is not None
        else None,
        shown=shown,
        floor=floor,
        fence=fence,
        extra=fields.rest,
    )


def _revoke(fields: Fields) -> RevokeMark:
    run = _run(fields)
    revocation = Revocation(
        run=run,
        by=fields.take("by") or "",
        reason=fields.take("reason") or "",
        force=fields.take("force") == "1",
    )
    return RevokeMark(revocation, extra=fields.rest)


def _shown(fields: Fields) -> ShownMark:
    run = _run(fields)
    for told in ("holder", "outcome", "note"):  # for readers of other dialects
        fields.take(told)
    return ShownMark(run, extra=fields.rest)


_READERS: dict[str, Callable[[Fields], Mark]] = {
    "claim": _card,
    "revoke": _revoke,
    "shown": _shown,
}


def render_card(card: Card) -> str:
    ending = card.ending
    fields = [
        ("run", card.run),
        ("ttl", format_seconds(card.ttl)),
        ("v", str(VERSION)),
        ("holder", card.holder),
        ("stage", card.stage),
        ("state", card.state.value),
        ("prev", format_instant(card.prev) if card.prev is not None else ""),
        ("beats", str(card.beats) if card.beats else ""),
        ("outcome", ending.outcome.value if ending else ""),
        ("next", (ending.next or "") if ending else ""),
        ("note", ending.note if ending else ""),
        ("shown", "1" if card.shown else ""),
        ("floor", str(card.floor) if card.floor else ""),
        ("fence", str(card.fence) if card.fence else ""),
    ]
    return write_line("claim", fields, card.extra) + "\n" + _sentence(card)


def render_revoke(revocation: Revocation) -> str:
    fields = [
        ("run", revocation.run),
        ("v", str(VERSION)),
        ("by", shortened(revocation.by)),
        ("reason", shortened(revocation.reason)),
        ("force", "1" if revocation.force else ""),
    ]
    who = plain(revocation.by) or "An operator"
    what = "ended" if revocation.force else "asked to end"
    return f"{write_line('revoke', fields)}\n{who} {what} the lease of run `{revocation.run}`."


def render_shown(run: RunId, holder: HolderId = HolderId(""), ending: Ending | None = None) -> str:
    """`holder` and `ending` are for readers of other dialects: the run says it all."""
    fields = [
        ("run", run),
        ("v", str(VERSION)),
        ("holder", holder),
        ("outcome", ending.outcome.value if ending else ""),
        ("note", ending.note if ending else ""),
    ]
    line = write_line("shown", fields)
    return f"{line}\nThe labels now show how the lease of run `{run}` ended."


def _sentence(card: Card) -> str:
    holder = f"**{plain(card.holder) or 'an unnamed worker'}**"
    stage = f"`{plain(card.stage)}`"
    match card.state:
        case CardState.BID:
            return f"{holder} bids for {stage}."
        case CardState.CONCEDED:
            return f"{holder} bid for {stage} and conceded."
        case CardState.HELD:
            times = f" and was renewed {card.beats} times" if card.beats else ""
            return (
                f"Claimed by {holder} for {stage}; the lease runs {describe_span(card.ttl)}{times}."
            )
        case CardState.RELEASED:
            return f"{holder} ended its lease for {stage}: {_ending_words(card.ending)}."


def _ending_words(ending: Ending | None) -> str:
    if ending is None:
        return "released"
    onward = f" to `{plain(ending.next)}`" if ending.next else ""
    return f"{ending.outcome.value}{onward}"
