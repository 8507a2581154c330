"""Marks: card, revoke, shown mark and excuse, as comments with a line for machines first.

Decides how a mark is spelt (native dialect, version 1), and reads a mark in any dialect. Refuses to
know when a card is in force: that is `fold`. A comment which is not exactly a mark is no mark; a
mark of an unknown version is left alone.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import assert_never

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
from dibs.core.marker import VERSION, Fields, plain, quoted, read_line, shortened, write_line

_LONGEST_WHY = 200
_LONGEST_CACHED = 2000
_OPENINGS = ("<!-- claim ", "<!-- revoke ", "<!-- shown ", "<!-- excused ")
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
    """The expiry just before the edit that wrote this state; None: the card was never edited."""
    beats: int = 0
    """How often the lease was renewed."""
    ending: Ending | None = None
    shown: bool = False
    """The labels show the ending: a second edit, whose `prev` is the end of the lease."""
    floor: int = 0
    """The highest fence of an earlier store: the fence of a comment lease is this plus its id."""
    fence: int = 0
    """The fence granted by an atomic store, on a card that only shows the lease; 0 on others."""
    extra: tuple[tuple[str, str], ...] = ()
    """Fields which this version does not know, kept unchanged."""


class RevokeMark(Struct, frozen=True):
    revocation: Revocation
    extra: tuple[tuple[str, str], ...] = ()


class ShownMark(Struct, frozen=True):
    """Another worker painted the ending of this run, which died before painting."""

    run: RunId
    extra: tuple[tuple[str, str], ...] = ()


class ExcuseMark(Struct, frozen=True):
    """The failure of this run does not count: the handler was at fault, not the issue."""

    run: RunId
    extra: tuple[tuple[str, str], ...] = ()


class UnknownMark(Struct, frozen=True):
    """A comment which begins like a mark, but is malformed or of another version. Left alone."""

    why: str


Mark = Card | RevokeMark | ShownMark | ExcuseMark | UnknownMark


def parse_mark(body: str) -> Mark | None:
    """Read a comment's first line, in any dialect. None if the comment does not begin as a mark."""
    if body.startswith(AGENT_OPENINGS):
        body = as_native(body) or ""
    if not body.startswith(_OPENINGS):
        return None
    return _parse_cached(body) if len(body) <= _LONGEST_CACHED else _parse(body)


def same_mark(body: str, other: str) -> bool:
    """Whether two comments are equal, or are the same mark apart from unknown fields (`extra`).

    A signature is such a field.
    """
    mine = _without_extra(body)
    return body == other or (mine is not None and mine == _without_extra(other))


def _without_extra(body: str) -> Mark | None:
    match parse_mark(body):
        case Card() | RevokeMark() | ShownMark() | ExcuseMark() as mark:
            return replace(mark, extra=())
        case UnknownMark() | None:
            return None


def _parse(body: str) -> Mark:
    try:
        kind, fields = read_line(body)
        return _READERS[kind](fields)
    except (ValueError, OverflowError) as flaw:
        return UnknownMark(str(flaw)[:_LONGEST_WHY])


_parse_cached = lru_cache(maxsize=4096)(_parse)
"""Each reading of an issue parses all its cards again, and most cards have not changed."""


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
    for key in ("holder", "outcome", "note"):  # for readers of other dialects
        fields.take(key)
    return ShownMark(run, extra=fields.rest)


def _excused(fields: Fields) -> ExcuseMark:
    run = _run(fields)
    for key in ("by", "reason"):  # for people
        fields.take(key)
    return ExcuseMark(run, extra=fields.rest)


_READERS: dict[str, Callable[[Fields], Mark]] = {
    "claim": _card,
    "revoke": _revoke,
    "shown": _shown,
    "excused": _excused,
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
    holder = f"`{plain(card.holder) or 'an unnamed worker'}`"
    stage = f"`{plain(card.stage)}`"
    match card.state:
        case CardState.BID:
            sentence = f"{holder} bids for {stage}."
        case CardState.CONCEDED:
            sentence = f"{holder} bid for {stage} and conceded."
        case CardState.HELD:
            runs = f"the lease runs {describe_span(card.ttl)}"
            times = f" and was renewed {card.beats} times" if card.beats else ""
            sentence = f"Claimed by {holder} for {stage}; {runs}{times}."
        case CardState.RELEASED:
            how = ending.outcome.value if ending else "released"
            onward = f" to `{plain(ending.next)}`" if ending and ending.next else ""
            sentence = f"{holder} ended its lease for {stage}: {how}{onward}."
        case _:
            assert_never(card.state)
    return f"{write_line('claim', fields, card.extra)}\n{sentence}"


def render_revoke(revocation: Revocation) -> str:
    fields = [
        ("run", revocation.run),
        ("v", str(VERSION)),
        ("by", shortened(revocation.by)),
        ("reason", shortened(revocation.reason)),
        ("force", "1" if revocation.force else ""),
    ]
    who = f"`{plain(revocation.by)}`" if revocation.by else "An operator"
    what = "ended" if revocation.force else "asked to end"
    return f"{write_line('revoke', fields)}\n{who} {what} the lease of run `{revocation.run}`."


def render_shown(run: RunId, holder: HolderId = HolderId(""), ending: Ending | None = None) -> str:
    """Our readers need the run only; `holder` and `ending` are for readers of other dialects."""
    fields = [
        ("run", run),
        ("v", str(VERSION)),
        ("holder", holder),
        ("outcome", ending.outcome.value if ending else ""),
        ("note", ending.note if ending else ""),
    ]
    line = write_line("shown", fields)
    return f"{line}\nThe labels now show how the lease of run `{run}` ended."


def render_excuse(run: RunId, by: HolderId, reason: str) -> str:
    fields = [("run", run), ("v", str(VERSION)), ("by", shortened(by))]
    line = write_line("excused", [*fields, ("reason", shortened(reason))])
    return f"{line}\nThe failure of run `{run}` does not count: {quoted(reason)}."
