"""The claim card and what is said about one: comments for machines first, people second.

Decides the one spelling of a card (native dialect, version 1) and reads it back. Refuses to know
when a card is in force: that is `fold`. A comment that is not exactly a card is no card; a card of
an unknown version is left alone.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from urllib.parse import quote, unquote

from dibs.core.durations import (
    describe_span,
    format_instant,
    format_seconds,
    parse_duration,
    parse_instant,
)
from dibs.core.ids import HolderId, RunId, ServerTime, StageName, server_time
from dibs.core.lease import Ending, Outcome, Revocation

VERSION = 1
LONGEST_LINE = 16_000
_LONGEST_WHY = 200
_LONGEST_KEPT = 2000
_EXACT = 2**53  # where Redis' scripts stop counting exactly
_LINE = re.compile(
    r"<!-- (claim|revoke|shown)((?: [a-z][a-z0-9_]{0,31}=[!-~]*)*) -->(?=[ \r\n]|$)", re.ASCII
)
_END = re.compile(r"--!?>")  # Markdown ends a comment at the one, browsers at both
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)
# Everything that could end an HTML comment, split a field or ping a person is escaped.
_SAFE = "-._~:/+"


class CardState(StrEnum):
    BID = "bid"
    HELD = "held"
    RELEASED = "released"
    CONCEDED = "conceded"


@dataclass(frozen=True, slots=True)
class Card:
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


@dataclass(frozen=True, slots=True)
class RevokeMark:
    revocation: Revocation
    extra: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ShownMark:
    """Somebody painted the ending of a run that did not live to do it."""

    run: RunId
    extra: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class UnknownMark:
    """Looks like one of ours, but of another version or not well formed. Left alone."""

    why: str


Mark = Card | RevokeMark | ShownMark | UnknownMark


@dataclass(slots=True)
class _Fields:
    """The key=value pairs of one line, taken out one by one; what is left over is kept."""

    pairs: dict[str, str] = field(default_factory=dict)

    def take(self, key: str) -> str | None:
        value = self.pairs.pop(key, None)
        return None if value is None else unquote(value, errors="strict")

    @property
    def rest(self) -> tuple[tuple[str, str], ...]:
        return tuple((key, unquote(value, errors="strict")) for key, value in self.pairs.items())


def parse_mark(body: str) -> Mark | None:
    """Read a comment's first line. None for a comment that is no mark of ours."""
    if not body.startswith(("<!-- claim ", "<!-- revoke ", "<!-- shown ")):
        return None
    return _parse_known(body) if len(body) <= _LONGEST_KEPT else _parse(body)


def _parse(body: str) -> Mark:
    match = _LINE.match(body[: LONGEST_LINE + 1])  # one more, to see what the line ends at
    if match is None or match.end() > LONGEST_LINE:
        return UnknownMark("the first line is not a well-formed mark")
    if _END.search(match[2]):
        return UnknownMark("the HTML comment ends inside a value")
    pairs = [pair.split("=", 1) for pair in match[2].split()]
    fields = _Fields(dict(pairs))
    if len(fields.pairs) != len(pairs):
        return UnknownMark("a field stands twice")
    try:
        _check_version(fields)
        return _READERS[match[1]](fields)
    except (ValueError, OverflowError) as flaw:
        return UnknownMark(str(flaw)[:_LONGEST_WHY])


_parse_known = lru_cache(maxsize=4096)(_parse)
"""Every reading of an issue reads all its cards again, and most of them have not changed."""


def _check_version(fields: _Fields) -> None:
    version = fields.take("v")
    if version not in (None, str(VERSION)):
        raise ValueError(f"version {version!r} is not {VERSION}")


def _run(fields: _Fields) -> RunId:
    run = fields.take("run") or ""
    if not _RUN.fullmatch(run):
        raise ValueError(f"run {run[:40]!r} is not a run id")
    return RunId(run)


def _card(fields: _Fields) -> Card:
    run = _run(fields)
    ttl = parse_duration(fields.take("ttl") or "")
    state = CardState(fields.take("state") or "bid")
    prev = fields.take("prev")
    beats = _count(fields, "beats", digits=9)
    floor, fence = _count(fields, "floor", digits=18), _count(fields, "fence", digits=18)
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


def _count(fields: _Fields, key: str, *, digits: int) -> int:
    text = fields.take(key) or "0"
    if not text.isascii() or not text.isdigit() or len(text) > digits:
        raise ValueError(f"{key} is not a count")
    if (count := int(text)) >= _EXACT:
        raise ValueError(f"{key} is more than every store can count")
    return count


def _revoke(fields: _Fields) -> RevokeMark:
    run = _run(fields)
    revocation = Revocation(
        run=run,
        by=fields.take("by") or "",
        reason=fields.take("reason") or "",
        force=fields.take("force") == "1",
    )
    return RevokeMark(revocation, extra=fields.rest)


def _shown(fields: _Fields) -> ShownMark:
    return ShownMark(_run(fields), extra=fields.rest)


_READERS: dict[str, Callable[[_Fields], Mark]] = {
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
    return _line("claim", fields, card.extra) + "\n" + _sentence(card)


def render_revoke(revocation: Revocation) -> str:
    fields = [
        ("run", revocation.run),
        ("v", str(VERSION)),
        ("by", _short(revocation.by)),
        ("reason", _short(revocation.reason)),
        ("force", "1" if revocation.force else ""),
    ]
    who = _plain(revocation.by) or "An operator"
    what = "ended" if revocation.force else "asked to end"
    return f"{_line('revoke', fields)}\n{who} {what} the lease of run `{revocation.run}`."


def render_shown(run: RunId) -> str:
    line = _line("shown", [("run", run), ("v", str(VERSION))])
    return f"{line}\nThe labels now show how the lease of run `{run}` ended."


def _short(text: str, most: int = 3000) -> str:
    """As much of it as fits: a line that is too long would be no card."""
    while len(_escape(text)) > most:
        text = text[: len(text) * 3 // 4]
    return text


def _line(kind: str, fields: list[tuple[str, str]], extra: tuple[tuple[str, str], ...] = ()) -> str:
    known = [(key, value) for key, value in fields if value]
    written = " ".join(f"{key}={_escape(value)}" for key, value in (*known, *extra))
    return f"<!-- {kind} {written} -->"


def _escape(value: str) -> str:
    return quote(value, safe=_SAFE, errors="replace").replace("--", "-%2D")


def _plain(text: str) -> str:
    """A name inside a sentence: no markup, no mentions."""
    return "".join(char if char.isalnum() or char in " ._-/:" else "_" for char in text)[:80]


def _sentence(card: Card) -> str:
    holder = f"**{_plain(card.holder) or 'an unnamed worker'}**"
    stage = f"`{_plain(card.stage)}`"
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
    onward = f" to `{_plain(ending.next)}`" if ending.next else ""
    return f"{ending.outcome.value}{onward}"
