"""Where an issue's picture contradicts its truth, and what would mend it.

Only what follows from the truth is mended; where a person's intent is in doubt, the flaw is named
and left to a person.
"""

from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct

from dibs.core.card import UnknownMark, parse_mark
from dibs.core.eligibility import abandoned_at
from dibs.core.ids import IssueRef
from dibs.core.issue import Thread
from dibs.core.lease import Standing
from dibs.core.painting import leftovers, stands_in
from dibs.core.pipeline import Pipeline, Stage
from dibs.core.plan import (
    CloseIssue,
    Effects,
    claim_effects,
    ending_effects,
    freeing_effects,
)


class FlawCode(StrEnum):
    UNPAINTED_ENDING = "UNPAINTED_ENDING"
    CLAIMED_WITHOUT_LEASE = "CLAIMED_WITHOUT_LEASE"
    LEASE_WITHOUT_LABEL = "LEASE_WITHOUT_LABEL"
    SEVERAL_STAGES = "SEVERAL_STAGES"
    NO_STAGE = "NO_STAGE"
    OPEN_AT_THE_END = "OPEN_AT_THE_END"
    UNREADABLE_CARD = "UNREADABLE_CARD"


class Flaw(Struct, frozen=True):
    issue: IssueRef
    code: FlawCode
    text: str
    repair: Effects = ()
    """Empty where only a person can decide."""


def diagnose(thread: Thread, standing: Standing, pipeline: Pipeline) -> tuple[Flaw, ...]:
    if not thread.complete:
        return ()  # an incomplete list decides nothing
    if standing.unpainted is not None:
        # Half painted explains everything else about the labels; finish that first.
        paint = ending_effects(pipeline, standing.unpainted, thread.issue.labels)
        text = "an ending was decided but its labels do not show it"
        return (Flaw(thread.issue.ref, FlawCode.UNPAINTED_ENDING, text, paint),)
    return (
        *_lease(thread, standing, pipeline),
        *_stages(thread, pipeline),
        *_cards(thread),
    )


def _lease(thread: Thread, standing: Standing, pipeline: Pipeline) -> Iterator[Flaw]:
    ref, labels = thread.issue.ref, thread.issue.labels
    working = {stage.working_label for stage in pipeline.stages} & labels
    shown = pipeline.labels.claimed in labels or bool(working)
    if standing.live is not None:
        stage = _stage_named(pipeline, standing.live.lease.stage)
        missing = claim_effects(pipeline, stage, labels) if stage else ()
        if missing:
            text = f"{standing.live.lease.holder} holds it but its labels do not say so"
            yield Flaw(ref, FlawCode.LEASE_WITHOUT_LABEL, text, missing)
    elif shown and standing.bidding_until is None and not _young(thread, standing, pipeline):
        text = "its labels say claimed but no lease is live"
        worked = standing.record.lease.stage if standing.record is not None else None
        repair = freeing_effects(pipeline, labels, worked)
        yield Flaw(ref, FlawCode.CLAIMED_WITHOUT_LEASE, text, repair)


def _young(thread: Thread, standing: Standing, pipeline: Pipeline) -> bool:
    return standing.record is None and thread.now < abandoned_at(thread.issue, pipeline)


def _stages(thread: Thread, pipeline: Pipeline) -> Iterator[Flaw]:
    ref, labels = thread.issue.ref, thread.issue.labels
    stages = pipeline.stages_of(labels)
    if len(stages) > 1:
        names = ", ".join(stage.label for stage in stages)
        text = f"it carries {len(stages)} stage labels: {names}"
        yield Flaw(ref, FlawCode.SEVERAL_STAGES, text, leftovers(pipeline, thread))
    elif not stages and thread.issue.open and _fell_out(thread, pipeline):
        stood = stands_in(pipeline, thread)[0]
        text = f"it carries no stage label; by its cards it stands in {stood!r}"
        yield Flaw(ref, FlawCode.NO_STAGE, text)
    elif stages and stages[0].closes and thread.issue.open:
        text = f"it is in {stages[0].label!r} but still open"
        yield Flaw(ref, FlawCode.OPEN_AT_THE_END, text, (CloseIssue(),))


def _fell_out(thread: Thread, pipeline: Pipeline) -> bool:
    """Whether its cards know where it stands and its labels do not."""
    homes = stands_in(pipeline, thread)
    return bool(homes) and thread.issue.labels.isdisjoint(homes)


def _cards(thread: Thread) -> Iterator[Flaw]:
    for comment in thread.comments:
        mark = parse_mark(comment.body) if comment.by_writer else None  # strangers may say anything
        if isinstance(mark, UnknownMark):
            text = f"comment {comment.id} looks like a card but is left alone: {mark.why}"
            yield Flaw(thread.issue.ref, FlawCode.UNREADABLE_CARD, text)


def _stage_named(pipeline: Pipeline, name: str) -> Stage | None:
    return next((stage for stage in pipeline.stages if stage.name == name), None)
