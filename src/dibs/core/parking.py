"""What is said when an issue is parked: each attempt that failed, for the person who looks at it.

One comment for a parking, whoever paints it: it carries the run that parked the issue, so that a
second painter sees that it has been said. It is made of the cards alone, so every painter would say
the same. A handler's output is no part of it: that may hold anything, and comments are read by all.
"""

import re
from collections.abc import Sequence
from datetime import timedelta

from msgspec.structs import replace

from dibs.core.attempts import failed_tries
from dibs.core.card import Card
from dibs.core.durations import format_instant
from dibs.core.errors import NoSuchStage
from dibs.core.fold import FoldRules, Marks, read_marks, tries_on_comments, tries_on_picture
from dibs.core.ids import RunId
from dibs.core.issue import Comment, Thread
from dibs.core.lease import Outcome, Record, Try
from dibs.core.mark_line import VERSION, plain, write_line
from dibs.core.pipeline import Pipeline, Stage

_MOST_LISTED = 10
_LINK = r"https?://[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]{1,300}"


def parking_comment(pipeline: Pipeline, record: Record, thread: Thread) -> str | None:
    """None if this ending parks nothing, or if somebody has said it already."""
    ending = record.ending
    if ending is None or ending.outcome is not Outcome.PARKED:
        return None
    if _said(record.lease.run, thread.comments):
        return None
    try:
        stage = pipeline.stage(record.lease.stage)
    except NoSuchStage:  # it was renamed or dropped from the configuration meanwhile
        return None
    return _render(pipeline, stage, record, thread)


def _line(run: RunId) -> str:
    return write_line("parked", [("run", run), ("v", str(VERSION))])


def _said(run: RunId, comments: Sequence[Comment]) -> bool:
    line = _line(run)
    return any(one.by_writer and one.body.startswith(line) for one in comments)


def _render(pipeline: Pipeline, stage: Stage, record: Record, thread: Thread) -> str:
    marks = read_marks(thread.comments, FoldRules(max_ttl=timedelta.max))
    cards = {posted.card.run: posted.card for posted in marks.cards}
    parking = cards.get(record.lease.run)
    if parking is not None:  # a store has decided before the card shows it
        cards[record.lease.run] = replace(parking, ending=record.ending)
    failed = _failed(marks, record, thread, stage)
    left_out = len(failed) - _MOST_LISTED
    listed = [
        f"{number}. {_told(attempt, cards.get(attempt.run))}"
        for number, attempt in enumerate(failed, 1)
    ]
    if left_out > 0:
        listed = [f"- {left_out} more before these", *listed[-_MOST_LISTED:]]
    times = f"{len(failed)} failed attempt{'s' * (len(failed) != 1)}"
    again = f"{stage.attempts} attempt{'s' * (stage.attempts != 1)}"
    label = plain(pipeline.labels.parked)
    return "\n".join(
        [
            _line(record.lease.run),
            f"Set aside for a person after {times} in `{plain(stage.name) or 'no stage'}`:",
            "",
            *listed,
            "",
            f"`dibs runs {record.lease.issue.typed}` shows them, and where a handler's output is.",
            f"Once a person has taken the label `{label}` off, it starts afresh with {again}.",
        ]
    )


def _failed(marks: Marks, record: Record, thread: Thread, stage: Stage) -> tuple[Try, ...]:
    """The attempts that were counted; the run that parked it is one, unless it came to do that."""
    shown = any(posted.card.fence for posted in marks.cards)
    rules = FoldRules(max_ttl=timedelta.max)
    tries = (
        tries_on_picture(marks, record) if shown else tries_on_comments(marks, rules, thread.now)
    )
    run = record.lease.run
    before = [attempt for attempt in tries if attempt.run != run]
    failed = failed_tries(before, stage.name)
    if len(failed) >= stage.attempts:
        return failed
    return (*failed, Try(run, stage.name, record.lease.expires_at, Outcome.PARKED))


def _told(attempt: Try, card: Card | None) -> str:
    when = format_instant(attempt.ended_at) if attempt.ended_at is not None else "now"
    who = plain(card.holder if card else "") or "an unnamed worker"
    return f"{when}, **{who}** (run `{plain(attempt.run)}`): {_why(attempt, card)}"


def _why(attempt: Try, card: Card | None) -> str:
    if attempt.outcome is None:
        return "it vanished without a word"
    note = card.ending.note if card is not None and card.ending is not None else ""
    if not note:
        return "it failed and said nothing more"
    links = " ".join(f"<{link}>" for link in re.findall(_LINK, note)[:2])
    return f"`{note.replace('`', chr(39))}`{' ' if links else ''}{links}"
